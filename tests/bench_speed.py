"""Speculative against plain decoding in one process, interleaved prompt by prompt. A script, not a test.

    python tests/bench_speed.py
    python tests/bench_speed.py --prompts questions.jsonl --tokens 96 --lengths 4 8

Greedy, with the default pair, and with its drafter requantised to Q4_K_M. Ratios are medians over the
prompts: each speculative run is divided by the plain run of the same prompt right before it, so a machine
whose speed drifts does not matter much. "in llama_decode" is the share of the wall time spent there.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import llama_cpp
import numpy as np
from rich.console import Console
from rich.progress import track

from specdec.acceptance import BlockVerification
from specdec.backend import ChatTemplate, Context, Model
from specdec.decoder import Decoder
from specdec.drafters import Drafter, LookupDrafter, ModelDrafter, NoDrafter
from specdec.registry import Registry
from specdec.sampling import Sampler
from specdec.schedule import FixedSchedule
from specdec.settings import SamplingParams
from specdec.tokens import Tokens

GREEDY = SamplingParams(temperature=0.0)
PROMPTS = [
    "Explain why the sky is blue.",
    "Write a short story about a lighthouse keeper who finds a letter in a bottle.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it.",
    "What is the difference between a virus and a bacterium?",
    "Summarize: The industrial revolution began in Britain in the late eighteenth century. Machines took "
    "over work that had been done by hand, people moved from villages to towns, and within a hundred years "
    "the way most people lived and worked had changed more than in the thousand years before.",
    "Translate to French: The weather is beautiful today and we are going to the beach.",
    "A train travels 60 miles in one and a half hours. What is its average speed?",
    "List five tips for learning a new language.",
]


@dataclass
class Timed:
    """One generation: its tokens, the wall time of its rounds, and the part of it inside llama_decode."""

    tokens: list[int]
    seconds: float
    inside: float
    acceptance_rate: float


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, help="JSON lines with 'turns', as Spec-Bench has them")
    parser.add_argument("--tokens", type=int, default=96, help="tokens for each prompt (default 96)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 8], help="draft lengths (default 4 8)")
    parser.add_argument("--model", default="smollm2-135m-wide")
    parser.add_argument("--draft", default="smollm2-135m")
    parser.add_argument("--lookup", action="store_true", help="measure prompt lookup too")
    options = parser.parse_args()
    registry = Registry.load()
    target_path, draft_path = registry.fetch(options.model), registry.fetch(options.draft)
    with tempfile.TemporaryDirectory() as directory:
        coarse_path = Path(directory) / "drafter.Q4_K_M.gguf"
        requantise(draft_path, coarse_path)
        with Model(target_path) as model, Model(draft_path) as draft, Model(coarse_path) as coarse:
            target = Context(model, n_outputs=max(options.lengths) + 1)
            contexts = {draft_path.name: Context(draft), "its Q4_K_M": Context(coarse)}
            report(target, contexts, read_prompts(model, options.prompts), options)


def requantise(source: Path, destination: Path) -> None:
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M, True
    if llama_cpp.llama_model_quantize(str(source).encode(), str(destination).encode(), params) != 0:
        raise SystemExit(f"cannot requantise {source}")


def read_prompts(model: Model, path: Path | None) -> list[Tokens]:
    texts = PROMPTS if path is None else [json.loads(line)["turns"][0] for line in path.open()]
    template = ChatTemplate(model)
    chats = [template.render([{"role": "user", "content": text}]) for text in texts]
    return [model.vocab.tokenize(chat, special=True) for chat in chats]


def report(
    target: Context, contexts: dict[str, Context], prompts: list[Tokens], options: argparse.Namespace
) -> None:
    names = [*contexts, *(["lookup"] if options.lookup else [])]
    runs = [(name, k) for name in names for k in options.lengths]
    plain: list[Timed] = []
    found: dict[tuple[str, int], list[Timed]] = {run: [] for run in runs}
    for prompt in track(prompts, description="prompts", console=Console(stderr=True)):
        plain.append(timed(target, None, prompt, 1, options.tokens))
        for name, k in runs:
            found[name, k].append(timed(target, contexts.get(name, name), prompt, k, options.tokens))
    speeds = [len(run.tokens) / run.seconds for run in plain]
    speed = statistics.median(speeds)
    print(f"\n{target.model.path.name}: plain {speed:.1f} tok/s, greedy, {len(prompts)} prompts\n")
    print("| drafter | k | ÷ plain, median | least | most | accepted | in llama_decode | same tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for (name, k), timings in found.items():
        pairs = list(zip(plain, timings, strict=True))
        ratios = [(len(b.tokens) / b.seconds) / (len(a.tokens) / a.seconds) for a, b in pairs]
        inside = sum(t.inside for t in timings) / sum(t.seconds for t in timings)
        same = sum(a.tokens == b.tokens for a, b in pairs)
        accepted = statistics.mean(t.acceptance_rate for t in timings)
        print(
            f"| {name} | {k} | {statistics.median(ratios):.2f} | {min(ratios):.2f} | {max(ratios):.2f} "
            f"| {accepted:.0%} | {inside:.2%} | {same} of {len(pairs)} |"
        )


def timed(target: Context, source: Context | str | None, prompt: Tokens, k: int, n: int) -> Timed:
    """Reads the prompt with both models first, then times the rounds alone."""
    rng = np.random.default_rng(0)
    drafter: Drafter = NoDrafter()
    if isinstance(source, Context):
        source.hold(prompt)
        drafter = ModelDrafter(source, GREEDY, rng, draft_max=k)
    elif source == "lookup":
        drafter = LookupDrafter()
    target.hold(prompt[:-1])
    sampler = Sampler(target.model.vocab, GREEDY, rng, target.n_ctx)
    decoder = Decoder(target, drafter, sampler, FixedSchedule(k), BlockVerification(), rng)
    contexts = [target, source] if isinstance(source, Context) else [target]
    inside = sum(c.decode_seconds for c in contexts)
    began = time.perf_counter()
    tokens = [token for step in decoder.generate(prompt, n) for token in step.tokens]
    seconds = time.perf_counter() - began
    inside = sum(c.decode_seconds for c in contexts) - inside
    return Timed(tokens, seconds, inside, decoder.stats.acceptance_rate)


if __name__ == "__main__":
    main()
