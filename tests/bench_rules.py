"""How many more tokens a round block verification keeps than token rejection. A script, not a test.

    python tests/bench_rules.py -m big.gguf -md small.gguf --prompts spec_bench.jsonl

Two sampled runs differ more by chance than by their rules, so both rules judge the same drafts: in each
round the expected number of accepted tokens is summed over each rule's law, and one of the rules draws from
its own. Each prompt is run once with either. The interval is a bootstrap over the prompts.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from specdec.cli.bench_prompts import read_prompts

from specdec import Drafting, Engine, Loading, SamplingParams
from specdec.acceptance import BlockVerification, Law, Rule, TokenRejection
from specdec.distribution import Distribution
from specdec.drafters import DraftBlock

RULES: tuple[Rule, ...] = (BlockVerification(), TokenRejection())
RESAMPLED = 10_000


class Compared:
    """Judges by one of the rules, and notes what either would be expected to emit."""

    lossless = True

    def __init__(self, rule: Rule) -> None:
        self.name = rule.name
        self.expected: list[tuple[float, ...]] = []
        self._rule = rule

    def law(self, draft: DraftBlock, p: Sequence[Distribution]) -> Law:
        laws = {rule.name: rule.law(draft, p) for rule in RULES}
        self.expected.append(tuple(1.0 + mean(law) for law in laws.values()))
        return laws[self.name]

    def follow(self, draft: DraftBlock, p: Sequence[Distribution], accepted: int) -> Distribution:
        return self._rule.follow(draft, p, accepted)


def mean(law: Law) -> float:
    return float(law @ np.arange(len(law)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=Path, required=True, help="the target")
    parser.add_argument("-md", type=Path, required=True, help="the drafter")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("-n", type=int, default=96, help="tokens for each prompt")
    parser.add_argument("-t", type=int, help="threads")
    parser.add_argument("--draft-max", type=int, default=8)
    parser.add_argument("--temp", type=float, default=0.8)
    options = parser.parse_args()
    engine = Engine(
        options.m,
        options.md,
        loading=Loading(threads=options.t),
        drafting=Drafting(drafter="model", draft_max=options.draft_max),
    )
    by_prompt: list[np.ndarray] = []
    for i, prompt in enumerate(read_prompts(options.prompts)):
        judged = [run(engine, rule, prompt.text, options, seed=i) for rule in RULES]
        by_prompt.append(np.concatenate(judged))
        print(f"{i + 1:3} {prompt.kind:15} {summary(by_prompt[-1:])}", flush=True)
    rng = random.Random(0)
    ratios = [ratio(rng.choices(by_prompt, k=len(by_prompt))) for _ in range(RESAMPLED)]
    low, high = np.quantile(ratios, (0.025, 0.975))
    print(f"\n{summary(by_prompt)}, 95 % interval {low:.3f} to {high:.3f}")


def run(engine: Engine, rule: Rule, text: str, options: argparse.Namespace, *, seed: int) -> np.ndarray:
    """Expected tokens of each round under each rule, [rounds, rules]."""
    decoder = engine.decoder(SamplingParams(temperature=options.temp), seed)
    compared = decoder.rule = Compared(rule)
    for _ in decoder.generate(engine.tokenize(engine.question(text)), options.n):
        pass
    return np.array(compared.expected)


def ratio(by_prompt: Sequence[np.ndarray]) -> float:
    block, token = np.concatenate(by_prompt).sum(axis=0)
    return float(block / token)


def summary(by_prompt: Sequence[np.ndarray]) -> str:
    rounds = np.concatenate(by_prompt)
    block, token = rounds.mean(axis=0)
    return f"{len(rounds)} rounds: block {block:.3f}, token {token:.3f}, ratio {ratio(by_prompt):.3f}"


if __name__ == "__main__":
    main()
