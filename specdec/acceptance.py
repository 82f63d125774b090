"""Which drafted tokens stay, and the token that follows them.

A rule is written as the law of one round: how likely each number of accepted tokens is, and the
distribution of the next token given that number. :func:`accept` draws from that law; a test can sum
over it, which is how losslessness is proved rather than sampled.

The papers' letters: p is the target's distribution at a position, q the drafter's, x the drafted token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .distribution import Distribution, Rng
from .drafters.draft import DraftBlock

Law = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """accepted: how many drafted tokens stay; token: the bonus token or the correction after them."""

    accepted: int
    token: int


class Rule(Protocol):
    """An acceptance rule for a draft of k tokens and the target's k + 1 distributions.

    p may end with the first distribution that gives its drafted token no chance: nothing later is accepted.
    """

    name: str
    lossless: bool

    def law(self, draft: DraftBlock, p: Sequence[Distribution]) -> Law:
        """Float64 [k + 1]: the probability that exactly i tokens are accepted."""
        ...

    def follow(self, draft: DraftBlock, p: Sequence[Distribution], accepted: int) -> Distribution:
        """The distribution of the next token, given how many were accepted."""
        ...


def accept(rule: Rule, draft: DraftBlock, p: Sequence[Distribution], rng: Rng) -> Verdict:
    """Draws one outcome of the rule."""
    law = rule.law(draft, p)
    if law.max() == 1.0:
        accepted = int(law.argmax())
    else:
        accepted = min(int(law.cumsum().searchsorted(rng.random(), side="right")), len(draft))
        while law[accepted] == 0.0:  # rounding can push the draw past the last possible outcome
            accepted -= 1
    return Verdict(accepted, rule.follow(draft, p, accepted).sample(rng))


class TokenRejection:
    """Token by token: x stays with probability min(1, p(x)/q(x)), else the next token comes from
    norm(max(0, p − q)) (Leviathan et al. 2023, algorithm 1; Chen et al. 2023, algorithm 2)."""

    name = "token"
    lossless = True

    def law(self, draft: DraftBlock, p: Sequence[Distribution]) -> Law:
        law = np.zeros(len(draft) + 1)
        alive = 1.0
        for i, (x, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            stays = min(1.0, p[i].prob(x) / q.prob(x))
            law[i] = alive * (1.0 - stays)
            alive *= stays
            if alive == 0.0:
                return law
        law[-1] = alive
        return law

    def follow(self, draft: DraftBlock, p: Sequence[Distribution], accepted: int) -> Distribution:
        if accepted == len(draft):
            return p[accepted]
        return p[accepted].residual(1.0, draft.q[accepted])


class BlockVerification:
    """The draft judged as a block (Sun et al., ICLR 2025, algorithm 2): as lossless as token rejection,
    and never expected to accept less.

    c₀ = 1, cᵢ = min(1, cᵢ₋₁·pᵢ(xᵢ)/qᵢ(xᵢ)); Sᵢ = Σₓ max(0, cᵢ·p(x|x₁..xᵢ) − q(x|x₁..xᵢ));
    hᵢ = Sᵢ/(Sᵢ + 1 − cᵢ) for i < k, h_k = c_k. The longest prefix i whose uniform is ≤ hᵢ stays.
    """

    name = "block"
    lossless = True

    def law(self, draft: DraftBlock, p: Sequence[Distribution]) -> Law:
        k = len(draft)
        h = np.ones(k + 1)
        c = self._joint_ratios(draft, p)
        for i in range(1, k):
            if c[i] == 0.0:
                h[i] = 0.0
            elif c[i] < 1.0:
                s = p[i].excess(c[i], draft.q[i])
                h[i] = s / (s + 1.0 - c[i])
        h[k] = c[k]  # 1 for an empty draft
        law = np.empty(k + 1)
        none_longer = 1.0
        for i in range(k, -1, -1):
            law[i] = none_longer * h[i]
            none_longer *= 1.0 - h[i]
        return law

    def follow(self, draft: DraftBlock, p: Sequence[Distribution], accepted: int) -> Distribution:
        if accepted == len(draft):
            return p[accepted]
        c = self._joint_ratios(draft, p)[accepted]
        return p[accepted].residual(c, draft.q[accepted])

    @staticmethod
    def _joint_ratios(draft: DraftBlock, p: Sequence[Distribution]) -> list[float]:
        c = [1.0]
        for i, (x, q) in enumerate(zip(draft.tokens, draft.q, strict=True)):
            c.append(min(1.0, c[-1] * p[i].prob(x) / q.prob(x)) if c[-1] > 0.0 else 0.0)
        return c


class Typical:
    """Lossy: x stays while p(x) ≥ threshold · max p, whatever q said; else the next token comes from p.

    threshold: above 0, at most 1. The lower it is, the more is accepted and the further the text strays
    from the target's own. At temperature 0 p is a point mass, and only the target's own choice stays.
    """

    name = "typical"
    lossless = False

    def __init__(self, threshold: float) -> None:
        if not 0.0 < threshold <= 1.0:
            raise ValueError(f"the threshold must be above 0 and at most 1, got {threshold:g}")
        self.threshold = threshold

    def law(self, draft: DraftBlock, p: Sequence[Distribution]) -> Law:
        law = np.zeros(len(draft) + 1)
        accepted = 0
        for x, target in zip(draft.tokens, p, strict=False):
            if target.prob(x) < self.threshold * target.probs.max():
                break
            accepted += 1
        law[accepted] = 1.0
        return law

    def follow(self, draft: DraftBlock, p: Sequence[Distribution], accepted: int) -> Distribution:
        return p[accepted]
