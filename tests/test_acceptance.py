"""Losslessness by enumeration: every draft, every outcome of the rule, weighed exactly."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from specdec.acceptance import BlockVerification, Rule, TokenRejection, Typical, accept
from specdec.distribution import Distribution
from specdec.drafters import DraftBlock

Conditional = Callable[[Sequence[int]], Distribution]
LOSSLESS: list[Rule] = [TokenRejection(), BlockVerification()]


def conditional(rng: np.random.Generator, n_vocab: int, depth: int, zeros: float) -> Conditional:
    """A random distribution for each prefix up to a depth, each entry missing with probability ``zeros``."""
    table: dict[tuple[int, ...], Distribution] = {}
    for length in range(depth + 1):
        for prefix in itertools.product(range(n_vocab), repeat=length):
            weights = rng.gamma(0.5, size=n_vocab) * (rng.random(n_vocab) >= zeros)
            if weights.sum() == 0.0:
                weights[rng.integers(n_vocab)] = 1.0
            ids = np.flatnonzero(weights).astype(np.int32)
            order = rng.permutation(len(ids))
            table[prefix] = Distribution(ids[order], (weights[ids] / weights.sum())[order])
    return lambda prefix: table[tuple(prefix)]


def output_law(rule: Rule, p: Conditional, q: Conditional | None, n_vocab: int, k: int) -> np.ndarray:
    """The exact law of the next k + 1 tokens: one round of the rule, then the target alone.

    q = None drafts a point mass, drawn uniformly; the output must not depend on how it was chosen.
    """
    law = np.zeros((n_vocab,) * (k + 1))
    for x in itertools.product(range(n_vocab), repeat=k):
        drawn = [q(x[:i]) if q else Distribution.point(x[i]) for i in range(k)]
        weight = np.prod([d.prob(t) for d, t in zip(drawn, x, strict=True)]) if q else n_vocab**-k
        if weight == 0.0:
            continue
        draft = DraftBlock(x, drawn if q else ())
        targets = [p(x[:i]) for i in range(k + 1)]
        chances = rule.law(draft, targets)
        assert chances.sum() == pytest.approx(1.0, abs=1e-12)
        assert (chances >= 0.0).all()
        for accepted in np.flatnonzero(chances > 0.0):
            follow = rule.follow(draft, targets, int(accepted))
            for token, chance in zip(follow.ids, follow.probs, strict=True):
                emitted = (*x[:accepted], int(token))
                _spread(law, emitted, float(weight * chances[accepted] * chance), p, n_vocab, k)
    return law


def _spread(law: np.ndarray, emitted: tuple[int, ...], mass: float, p: Conditional, n: int, k: int) -> None:
    """Adds the mass of a prefix to the sequences it can grow into under the target."""
    if len(emitted) == k + 1:
        law[emitted] += mass
        return
    d = p(emitted)
    for token, chance in zip(d.ids, d.probs, strict=True):
        _spread(law, (*emitted, int(token)), mass * float(chance), p, n, k)


Stops = Callable[[Sequence[int]], bool]


def stopped_law(rule: Rule, p: Conditional, q: Conditional, stops: Stops, n_vocab: int, k: int) -> np.ndarray:
    """The same of drafts that end where ``stops(tokens so far)`` says so, at k at the latest."""
    law = np.zeros((n_vocab,) * (k + 1))
    prefixes: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while prefixes:
        x, weight = prefixes.pop()
        if len(x) < k and not stops(x):
            prefixes += [((*x, int(t)), weight * float(c)) for t, c in zip(q(x).ids, q(x).probs, strict=True)]
            continue
        draft = DraftBlock(x, [q(x[:i]) for i in range(len(x))])
        _judge(law, rule, draft, p, weight)
    return law


def _judge(law: np.ndarray, rule: Rule, draft: DraftBlock, p: Conditional, weight: float) -> None:
    """Adds what becomes of a draft that is made with this chance."""
    n_vocab, k = law.shape[0], law.ndim - 1
    targets = [p(draft.tokens[:i]) for i in range(len(draft) + 1)]
    for accepted, chance in enumerate(rule.law(draft, targets)):
        if chance > 0.0:
            follow = rule.follow(draft, targets, accepted)
            for token, c in zip(follow.ids, follow.probs, strict=True):
                emitted = (*draft.tokens[:accepted], int(token))
                _spread(law, emitted, float(weight * chance * c), p, n_vocab, k)


def target_law(p: Conditional, n_vocab: int, k: int) -> np.ndarray:
    law = np.zeros((n_vocab,) * (k + 1))
    _spread(law, (), 1.0, p, n_vocab, k)
    return law


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
@pytest.mark.parametrize(("n_vocab", "k"), [(2, 1), (2, 4), (3, 1), (3, 2), (3, 3), (4, 2), (5, 2)])
@pytest.mark.parametrize("zeros", [0.0, 0.4])
@pytest.mark.parametrize("point_mass", [False, True])
def test_the_output_law_is_the_targets(
    rule: Rule, n_vocab: int, k: int, zeros: float, point_mass: bool
) -> None:
    for seed in range(5):
        rng = np.random.default_rng(seed)
        p = conditional(rng, n_vocab, k, zeros)
        q = None if point_mass else conditional(rng, n_vocab, k, zeros)
        difference = np.abs(output_law(rule, p, q, n_vocab, k) - target_law(p, n_vocab, k)).max()
        assert difference <= 1e-12, f"seed {seed}"


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
@pytest.mark.parametrize(("n_vocab", "k"), [(2, 1), (2, 4), (3, 3), (4, 2)])
def test_a_draft_may_stop_wherever_what_was_drawn_so_far_says(rule: Rule, n_vocab: int, k: int) -> None:
    for seed in range(12):
        rng = np.random.default_rng(seed)
        zeros = 0.4 if seed % 2 else 0.0
        p, q = conditional(rng, n_vocab, k, zeros), conditional(rng, n_vocab, k, zeros)
        at_random = {
            x: rng.random() < 0.4 for d in range(k) for x in itertools.product(range(n_vocab), repeat=d)
        }
        rules: dict[str, Stops] = {
            "any": lambda x, at_random=at_random: at_random[tuple(x)],
            "the last token's q": lambda x, q=q: bool(x) and q(x[:-1]).prob(x[-1]) < 0.5,
            "the next row's peak (--draft-p-min)": lambda x, q=q: q(x).probs.max() < 0.6,
        }
        expected = target_law(p, n_vocab, k)
        for name, stops in rules.items():
            difference = np.abs(stopped_law(rule, p, q, stops, n_vocab, k) - expected).max()
            assert difference <= 1e-12, f"seed {seed}, stopping by {name}"


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
def test_cutting_a_drawn_token_for_its_own_q_changes_the_output(rule: Rule) -> None:
    """Why a schedule asks before a token is drawn, and --draft-p-min looks at the likeliest token instead."""
    d = Distribution(np.array([0, 1], np.int32), np.array([0.9, 0.1]))
    law = np.zeros(2)
    for x in range(2):
        draft = DraftBlock((x,), [d]) if d.prob(x) >= 0.5 else DraftBlock()
        for accepted, chance in enumerate(rule.law(draft, [d, d])):
            if accepted:
                law[x] += d.prob(x) * chance
            elif chance > 0.0:
                follow = rule.follow(draft, [d, d], 0)
                for token, c in zip(follow.ids, follow.probs, strict=True):
                    law[token] += d.prob(x) * chance * c
    assert law == pytest.approx([0.99, 0.01], abs=1e-12)


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
def test_what_is_certain_may_be_cut_however_late(rule: Rule) -> None:
    """Drafts x₁ x₂ x₃ of which only x₁ is drawn: cut after 1, 2 or 3 tokens, by what the whole draft is."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        p, q = conditional(rng, 3, 3, 0.2), conditional(rng, 3, 0, 0.0)
        follow = rng.integers(0, 3, (3, 2))
        keep = rng.integers(1, 4, 3)
        law = np.zeros((3,) * 4)
        for x in range(3):
            tokens = (x, int(follow[x, 0]), int(follow[x, 1]))
            dists = [q(()), *(Distribution.point(t) for t in tokens[1:])]
            draft = DraftBlock(tokens, dists)
            assert draft.drawn == 1
            _judge(law, rule, draft.first(int(keep[x])), p, q(()).prob(x))
        assert np.abs(law - target_law(p, 3, 3)).max() <= 1e-12, f"seed {seed}"


@pytest.mark.parametrize("rule", [*LOSSLESS, Typical(0.2)], ids=lambda r: r.name)
def test_what_follows_a_token_without_a_chance_is_not_asked_for(rule: Rule) -> None:
    shortened = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p, q = conditional(rng, 4, 3, 0.5), conditional(rng, 4, 3, 0.2)
        for x in itertools.product(range(4), repeat=3):
            drawn = [q(x[:i]) for i in range(3)]
            if not all(d.prob(t) for d, t in zip(drawn, x, strict=True)):
                continue
            whole = [p(x[:i]) for i in range(4)]
            end = next((i + 1 for i in range(3) if whole[i].prob(x[i]) == 0.0), 4)
            shortened += end < 4
            draft = DraftBlock(x, drawn)
            law = rule.law(draft, whole[:end])
            assert law.tolist() == rule.law(draft, whole).tolist()
            assert not law[end:].any()
    assert shortened > 100


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
def test_a_drafter_like_the_target_is_always_accepted(rule: Rule) -> None:
    rng = np.random.default_rng(3)
    p = conditional(rng, 4, 3, 0.3)
    for x in itertools.product(range(4), repeat=3):
        drawn = [p(x[:i]) for i in range(3)]
        if all(d.prob(t) for d, t in zip(drawn, x, strict=True)):
            law = rule.law(DraftBlock(x, drawn), [p(x[:i]) for i in range(4)])
            assert law.tolist() == [0.0, 0.0, 0.0, 1.0]


def test_block_verification_never_accepts_less() -> None:
    gains = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        p, q = conditional(rng, 3, 3, 0.2), conditional(rng, 3, 3, 0.2)
        expected = [_expected_accepted(rule, p, q, 3, 3) for rule in LOSSLESS]
        gains.append(expected[1] - expected[0])
    assert min(gains) >= -1e-12
    assert max(gains) > 0.05


def _expected_accepted(rule: Rule, p: Conditional, q: Conditional, n_vocab: int, k: int) -> float:
    total = 0.0
    for x in itertools.product(range(n_vocab), repeat=k):
        drawn = [q(x[:i]) for i in range(k)]
        weight = float(np.prod([d.prob(t) for d, t in zip(drawn, x, strict=True)]))
        if weight:
            law = rule.law(DraftBlock(x, drawn), [p(x[:i]) for i in range(k + 1)])
            total += weight * float(law @ np.arange(k + 1))
    return total


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
def test_a_dishonest_q_is_noticed(rule: Rule) -> None:
    """The enumeration can fail: a drafter that reports its q at another temperature shifts the output.

    (Reporting a point mass is no lie that shows: for any one x the rules are lossless, however x was chosen.)
    """
    rng = np.random.default_rng(0)
    p, q = conditional(rng, 3, 1, 0.0), conditional(rng, 3, 1, 0.0)
    told = Distribution(q(()).ids, np.sqrt(q(()).probs) / np.sqrt(q(()).probs).sum())
    law = np.zeros((3, 3))
    for x in range(3):
        draft, targets = DraftBlock((x,), [told]), [p(()), p((x,))]
        for accepted, chance in enumerate(rule.law(draft, targets)):
            if chance > 0.0:
                follow = rule.follow(draft, targets, accepted)
                for token, weight in zip(follow.ids, follow.probs, strict=True):
                    mass = q(()).prob(x) * chance * weight
                    _spread(law, (*(x,)[:accepted], int(token)), float(mass), p, 3, 1)
    assert np.abs(law - target_law(p, 3, 1)).max() > 0.01


@pytest.mark.parametrize("rule", [*LOSSLESS, Typical(0.5)], ids=lambda r: r.name)
def test_point_masses_become_equals_the_argmax(rule: Rule) -> None:
    targets = [Distribution.point(t) for t in (7, 8, 9, 4)]
    rng = np.random.default_rng(0)
    for x, accepted, token in [((7, 8, 9), 3, 4), ((7, 8, 1), 2, 9), ((1, 8, 9), 0, 7), ((), 0, 7)]:
        verdict = accept(rule, DraftBlock(x), targets[: len(x) + 1], rng)
        assert (verdict.accepted, verdict.token) == (accepted, token)


@pytest.mark.parametrize("rule", LOSSLESS, ids=lambda r: r.name)
def test_accept_draws_from_the_law(rule: Rule) -> None:
    seed = 11
    rng = np.random.default_rng(seed)
    p, q = conditional(rng, 3, 2, 0.0), conditional(rng, 3, 2, 0.0)
    x = (0, 2)
    draft = DraftBlock(x, [q(x[:i]) for i in range(2)])
    targets = [p(x[:i]) for i in range(3)]
    n = 20_000
    counts = np.zeros((3, 3))
    for _ in range(n):
        verdict = accept(rule, draft, targets, rng)
        counts[verdict.accepted, verdict.token] += 1
    for accepted, chance in enumerate(rule.law(draft, targets)):
        follow = rule.follow(draft, targets, accepted)
        expected = chance * np.array([follow.prob(t) for t in range(3)])
        error = 5 * np.sqrt(expected * (1 - expected) / n) + 1e-12
        assert (np.abs(counts[accepted] / n - expected) <= error).all(), f"seed {seed}"


def test_typical_keeps_what_reaches_the_threshold_and_then_draws_from_the_target() -> None:
    p = Distribution(np.array([0, 1, 2], np.int32), np.array([0.6, 0.3, 0.1]))
    rule = Typical(0.5)
    assert not rule.lossless
    assert rule.law(DraftBlock((1, 0, 2)), [p] * 4).tolist() == [0.0, 0.0, 1.0, 0.0]
    assert rule.law(DraftBlock((2, 0, 0)), [p] * 4).tolist() == [1.0, 0.0, 0.0, 0.0]
    assert rule.law(DraftBlock((0, 1, 1)), [p] * 4).tolist() == [0.0, 0.0, 0.0, 1.0]
    assert rule.follow(DraftBlock((1, 0, 2)), [p] * 4, 2) is p


@pytest.mark.parametrize("threshold", [0.0, -0.1, 1.1])
def test_typical_refuses_a_threshold_that_is_none(threshold: float) -> None:
    with pytest.raises(ValueError, match="threshold must be above 0"):
        Typical(threshold)


def test_a_draft_needs_a_distribution_for_each_token() -> None:
    with pytest.raises(ValueError, match="2 draft tokens with 1 distributions"):
        DraftBlock((1, 2), [Distribution.point(1)])
    assert DraftBlock((1, 2)).q[1].prob(2) == 1.0
