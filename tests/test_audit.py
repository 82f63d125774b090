"""The audit finds what is lossy, and lets pass what is lossless."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tiny

from specdec import Drafting, Engine, Loading
from specdec.audit import DOUBT, SAMPLING, GreedyAudit, SampledAudit, _kolmogorov, replayed
from specdec.backend import Context
from specdec.distribution import Distribution
from specdec.neartie import Parting, measured_difference, parting
from specdec.sampling import Sampler

TEXT = np.arange(300, 364, dtype=np.int32)
PROMPT = np.array([300, 301, 302], np.int32)


def test_no_rounding_means_equality(tmp_path: Path) -> None:
    """Where batches give the same logits, the bound is 0: any difference fails."""
    tiny.llama(tmp_path / "t.gguf", dtype="q8_0", tokenizer="bpe", n_vocab=768)
    with Engine(tmp_path / "t.gguf", loading=Loading(n_ctx=128, threads=1)) as engine:
        audit = GreedyAudit(engine.target, TEXT)
        assert audit.bound == 0.0
        audit.compare(PROMPT, [5, 6, 7], [5, 6, 7])
        assert (audit.passed, audit.runs, audit.tokens) == (True, 1, 3)
        audit.compare(PROMPT, [5, 6, 7], [5, 8, 7])
        assert (audit.passed, audit.runs, audit.tokens) == (False, 2, 4)


def test_a_parting_is_as_wide_as_the_logits_are_apart(target: Context) -> None:
    target.hold(np.array([*PROMPT, 9], np.int32))
    row = target.feed(np.array([10], np.int32))[0].copy()
    ends = target.model.vocab.eog_tokens
    expected = abs(float(row[11]) - float(row[12]))
    assert parting(target, PROMPT, [9, 10, 11, 1], [9, 10, 12]) == Parting(2, 11, 12, expected)
    likeliest = max(ends, key=lambda token: float(row[token]))
    ended = Parting(2, 11, likeliest, abs(float(row[11]) - float(row[likeliest])))
    assert parting(target, PROMPT, [9, 10, 11], [9, 10]) == ended
    assert parting(target, PROMPT, [9, 10], [9, 10]) is None


def test_rounding_is_measured_in_batches_that_the_context_allows(target: Context) -> None:
    difference = measured_difference(target, TEXT)
    assert 0.0 <= difference < 0.1
    assert len(target) == 0


def zipf(n: int, flatness: float) -> Distribution:
    weights = 1.0 / np.arange(1, n + 1) ** flatness
    return Distribution(np.arange(n, dtype=np.int32), weights / weights.sum())


def audited(drawn: Callable[[Distribution, random.Random], int], n: int = 400, seed: int = 1) -> SampledAudit:
    rng = random.Random(seed)
    audit = SampledAudit(random.Random(seed + 1))
    for i in range(n):
        p = zipf(40, 0.5 + i % 5 / 2)
        audit.observe(p, drawn(p, rng))
    return audit


def test_honest_draws_pass_as_often_as_they_should() -> None:
    """p-values of draws from p itself are uniform: a tenth of them is below a tenth."""
    found = np.array([audited(lambda p, rng: p.sample(rng), seed=seed).p_values for seed in range(0, 600, 2)])
    for column, name in zip(found.T, ("distance", "deviation"), strict=True):
        for level in (0.1, 0.5, 0.9):
            share = float((column < level).mean())
            assert abs(share - level) < 4 * math.sqrt(level * (1 - level) / len(column)), (name, level, share)
    assert found.min() > DOUBT


@pytest.mark.parametrize("temperature", [0.7, 1.4], ids=["too often what is likely", "too often what is not"])
def test_draws_from_another_distribution_fail(temperature: float) -> None:
    def drawn(p: Distribution, rng: random.Random) -> int:
        bent = p.probs ** (1.0 / temperature)
        return Distribution(p.ids, bent / bent.sum()).sample(rng)

    audit = audited(drawn)
    assert not audit.passed
    assert math.copysign(1, audit.deviation) == (1 if temperature < 1 else -1)


def test_tokens_that_cannot_come_fail() -> None:
    rng = random.Random(3)
    audit = audited(lambda p, rng: 99 if rng.random() < 0.1 else p.sample(rng))
    assert not audit.passed
    few = audited(lambda p, _: p.sample(rng), n=200)
    few.observe(zipf(40, 1.0), 99)  # one, as rounding may bring about
    assert few.passed


def test_equal_chances_are_told_apart() -> None:
    """All tokens equally likely: a run that writes one of them all the time is still found out."""
    flat = Distribution(np.arange(8, dtype=np.int32), np.full(8, 0.125))
    audit = SampledAudit(random.Random(1))
    for _ in range(60):
        audit.observe(flat, 3)
    assert audit.p_values[0] < 1e-9


def test_certain_tokens_tell_nothing() -> None:
    audit = SampledAudit(random.Random(1))
    for _ in range(100):
        audit.observe(Distribution.point(7), 7)
    assert (audit.tokens, audit.distance, audit.deviation) == (0, 0.0, 0.0)
    assert audit.passed
    audit.observe(Distribution.point(7), 8)
    assert audit.tokens == 1


def test_kolmogorov_s_distribution() -> None:
    # Quantiles of the limit distribution (Smirnov 1948); for n = 10 the table of exact values (Miller 1956).
    for x, p in ((1.2238, 0.1), (1.3581, 0.05), (1.6276, 0.01)):
        assert _kolmogorov(x / math.sqrt(1e8), int(1e8)) == pytest.approx(p, rel=2e-3)
    for distance, p in ((0.36866, 0.1), (0.40925, 0.05), (0.48893, 0.01)):
        assert _kolmogorov(distance, 10) == pytest.approx(p, rel=0.05)
    assert _kolmogorov(0.0, 5) == 1.0


@pytest.fixture
def pair(models: Path) -> Iterator[Callable[[Drafting], Engine]]:
    made: list[Engine] = []

    def start(drafting: Drafting) -> Engine:
        made.append(
            Engine(
                models / "target.gguf",
                models / "cousin.gguf",
                loading=Loading(n_ctx=1024, threads=1),
                drafting=drafting,
            )
        )
        return made[-1]

    yield start
    for engine in made:
        engine.close()


def sampled(engine: Engine, n: int, seed: int = 5) -> SampledAudit:
    audit = SampledAudit(random.Random(seed))
    tokens = [t for step in engine.decoder(SAMPLING, seed).generate(PROMPT, n) for t in step.tokens]
    assert len(tokens) == n
    sampler = Sampler(engine.target.model.vocab, SAMPLING, random.Random(seed), engine.target.n_ctx)
    for p, token in zip(replayed(engine.target, sampler, PROMPT, tokens, 5), tokens, strict=True):
        audit.observe(p, token)
    return audit


@pytest.mark.parametrize("rule", ["block", "token"])
def test_real_runs_of_lossless_rules_pass(pair: Callable[[Drafting], Engine], rule: str) -> None:
    audit = sampled(pair(Drafting(draft_max=4, accept=rule)), 500)  # type: ignore[arg-type]
    assert audit.tokens > 400
    assert audit.passed, audit.p_values


def test_a_real_run_of_a_lossy_rule_fails(pair: Callable[[Drafting], Engine]) -> None:
    assert not sampled(pair(Drafting(draft_max=4, accept="typical", typical_threshold=0.02)), 900).passed


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 17])
def test_a_replay_gives_what_each_token_was_drawn_from(target: Context, n: int) -> None:
    tokens = list(range(310, 310 + n))
    sampler = Sampler(target.model.vocab, SAMPLING, random.Random(1), target.n_ctx)
    found = list(replayed(target, sampler, PROMPT, tokens, 8))
    assert len(found) == n
    for i, p in enumerate(found):
        history = np.array([*PROMPT, *tokens[:i]], np.int32)
        target.clear()
        row = target.feed(history)
        expected = sampler.distributions(row, history, [])[0]
        assert p.ids.tolist() == expected.ids.tolist()
        assert np.abs(p.probs - expected.probs).max() < 1e-4
