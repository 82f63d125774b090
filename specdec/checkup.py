"""A loaded pair, measured: what drafting costs and brings on this machine, and whether it is lossless."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from .audit import SAMPLING, GreedyAudit, SampledAudit, replayed
from .engine import Engine
from .forecast import Forecast, forecast
from .limit import Curve
from .passes import measured_passes
from .prompts import BenchPrompt
from .sampling import Sampler
from .settings import Drafting, SamplingParams
from .stats import Stats
from .tokens import Tokens

PROBED = 8  # tokens: the length of the drafts that acceptance is measured with
ROUNDING_TEXT = 64  # tokens that single and batched passes are compared on
GREEDY = SamplingParams(temperature=0.0)
PLAIN = Drafting(drafter="none", draft_max=1)

Progress = Callable[[str, float], None]


class Run(NamedTuple):
    """What one way of decoding made of one prompt. accepted: of each round that drafted."""

    stats: Stats
    tokens: list[int]
    accepted: list[int]


@dataclass(frozen=True)
class Visit:
    """One prompt, decoded greedily without drafts, with drafts of ``PROBED`` tokens, and as it was set up."""

    kind: str
    plain: Run
    probed: Run
    own: Run

    @property
    def speedup(self) -> float:
        """Tokens per second as it was set up, over plain decoding's."""
        return self.own.stats.tokens_per_second / self.plain.stats.tokens_per_second


@dataclass(frozen=True)
class Checkup:
    """curve: seconds of the target's pass, by rows. drafter_seconds: for each drafted token. visits: one for
    each prompt. forecast: what fixed draft lengths will bring, over all prompts. greedy, sampled: the audits.
    """

    curve: Curve
    drafter_seconds: float
    visits: Sequence[Visit]
    forecast: Forecast
    greedy: GreedyAudit
    sampled: SampledAudit

    @property
    def passed(self) -> bool:
        """Whether the pair is lossless on this machine, as far as the audits can tell."""
        return self.greedy.passed and self.sampled.passed


def checkup(engine: Engine, prompts: Sequence[BenchPrompt], n: int, seed: int, progress: Progress) -> Checkup:
    """Measures a loaded pair, as it is set up, on prompts.

    engine: made with a ``longest_draft`` of ``PROBED`` or more. n: tokens for each prompt, three times
    greedily and once sampled. seed: of the sampled runs. progress: told what is done, and its share, 0 to 1.
    Raises UsageError for a prompt that the context has no room for.
    """
    asked = [engine.tokenize(engine.question(prompt.text)) for prompt in prompts]
    text = np.concatenate(asked)
    curve = measured_passes(engine.target, text, partial(progress, "timing passes"))
    progress("measuring how batches round", 0.0)
    greedy = GreedyAudit(engine.target, np.resize(text, min(ROUNDING_TEXT, engine.target.n_ctx)))
    sampled = SampledAudit(random.Random(seed))
    visits = []
    for i, (prompt, tokens) in enumerate(zip(prompts, asked, strict=True)):
        label = f"prompt {i + 1} of {len(prompts)} ({prompt.kind})"
        visit = _visit(engine, prompt.kind, tokens, n, i, partial(progress, label))
        greedy.compare(tokens, visit.plain.tokens, visit.probed.tokens)
        greedy.compare(tokens, visit.plain.tokens, visit.own.tokens)
        visits.append(visit)
        progress(f"{label}, sampled", 0.75)
        _sample(engine, tokens, n, seed + i, sampled)
    accepted = [a for visit in visits for a in visit.probed.accepted]
    drafted = sum(visit.probed.stats.drafted for visit in visits)
    seconds = sum(visit.probed.stats.seconds["draft"] for visit in visits)
    drafter = seconds / drafted if drafted else 0.0
    return Checkup(curve, drafter, visits, forecast(accepted or [0], PROBED, curve, drafter), greedy, sampled)


def _visit(
    engine: Engine, kind: str, prompt: Tokens, n: int, turn: int, progress: Callable[[float], None]
) -> Visit:
    """The three ways take turns in being the first: a machine that gets slower wrongs none of them."""
    own = engine.drafting
    ways = [PLAIN, _probing(own), own]
    runs: dict[int, Run] = {}
    for done in range(3):
        way = (turn + done) % 3
        progress(done / 4)
        runs[way] = _run(engine, ways[way], GREEDY, prompt, n, None)
    return Visit(kind, runs[0], runs[1], runs[2])


def _probing(own: Drafting) -> Drafting:
    return replace(own, draft_max=PROBED, draft_min=0)


def _sample(engine: Engine, prompt: Tokens, n: int, seed: int, audit: SampledAudit) -> None:
    """One sampled run with drafts, token by token before the audit."""
    run = _run(engine, _probing(engine.drafting), SAMPLING, prompt, n, seed)
    target = engine.target
    sampler = Sampler(target.model.vocab, SAMPLING, random.Random(seed), target.n_ctx)
    for p, token in zip(replayed(target, sampler, prompt, run.tokens, PROBED), run.tokens, strict=True):
        audit.observe(p, token)


def _run(
    engine: Engine, drafting: Drafting, sampling: SamplingParams, prompt: Tokens, n: int, seed: int | None
) -> Run:
    """Decodes in one way; afterwards the engine is set up as before."""
    own, loaded = engine.drafting, engine.draft
    draft = None if loaded is None else loaded.model.path
    engine.redraft(drafting, draft)
    try:
        decoder = engine.decoder(sampling, seed)
        tokens: list[int] = []
        accepted = []
        for step in decoder.generate(prompt, n):
            tokens += step.tokens
            accepted += [step.accepted] if step.drafted else []
        return Run(decoder.stats, tokens, accepted)
    finally:
        engine.redraft(own, draft)
