"""A probability distribution over token ids, held on its support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .kernels import excess, residual
from .tokens import Tokens

Probs = npt.NDArray[np.float64]


CERTAIN = np.ones(1)
CERTAIN.flags.writeable = False


class Rng(Protocol):
    """Uniform random numbers: ``random.Random``, or numpy's ``Generator``."""

    def random(self) -> float:
        """A number in [0, 1)."""
        ...


@dataclass(frozen=True, eq=False)
class Distribution:
    """ids: int32 [n], each once; probs: float64 [n], all positive, summing to 1."""

    ids: Tokens
    probs: Probs

    @classmethod
    def point(cls, token: int) -> Distribution:
        """All mass on one token: greedy decoding, or a draft that was looked up rather than drawn."""
        return cls(np.array([token], np.int32), CERTAIN)

    @classmethod
    def from_logits(cls, ids: Tokens, logits: npt.NDArray[np.float32]) -> Distribution:
        """The softmax of the candidates' logits, in float64; candidates at minus infinity are left out.

        ids: int32 [n]; logits: float32 [n]. Both are copied. Raises ValueError when no logit is finite.
        """
        weights = logits.astype(np.float64)
        with np.errstate(invalid="ignore"):  # −∞ − −∞, refused below
            weights -= weights.max(initial=-np.inf)
        np.exp(weights, out=weights)
        total = weights.sum()
        if not total > 0.0:
            raise ValueError("no candidate has a finite logit: nothing can be sampled")
        weights /= total
        if weights.all():
            return cls(ids.copy(), weights)
        keep = weights > 0.0
        return cls(ids[keep], weights[keep])

    def prob(self, token: int) -> float:
        """The token's probability, 0 outside the support."""
        if len(self.ids) == 1:
            return float(self.probs[0]) if self.ids[0] == token else 0.0
        where = (self.ids == token).argmax()
        return float(self.probs[where]) if self.ids[where] == token else 0.0

    def sample(self, rng: Rng) -> int:
        """Draws a token."""
        if len(self.ids) == 1:
            return int(self.ids[0])
        cumulative = self.probs.cumsum()
        at = int(cumulative.searchsorted(rng.random() * cumulative[-1], side="right"))
        return int(self.ids[min(at, len(self.ids) - 1)])

    def excess(self, scale: float, q: Distribution) -> float:
        """Σₓ max(0, scale · p(x) − q(x))."""
        return excess(self.ids, self.probs, q.ids, q.probs, scale)[1]

    def residual(self, scale: float, q: Distribution) -> Distribution:
        """norm(max(0, scale · p − q)), what is left for the next token after a rejection."""
        ids, probs = residual(self.ids, self.probs, q.ids, q.probs, scale)
        # Empty only where p and q agree to rounding: then no rejection had a chance worth the name.
        return Distribution(ids, probs) if len(ids) else self
