"""Is it lossless on this machine? Measured on the pair itself, against plain decoding."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from .backend import Context
from .distribution import Distribution, Rng
from .neartie import Parting, measured_difference, parting
from .sampling import Sampler
from .settings import SamplingParams
from .tokens import Tokens

DOUBT = 1e-4  # a test of chance that gives less than this fails: one audit in 5,000 would, by chance alone
RAREST = 0.01  # tokens less likely count as this likely: rounding may cut one off that a batch had kept
SAMPLING = SamplingParams(ignore_eos=True)  # a drawn end would show only by its absence


class GreedyAudit:
    """Greedy runs with drafts against plain ones: equal, or parting where two logits nearly tie.

    context: the target's. tokens: int32 [n], a text to measure rounding on (``specdec.neartie``).
    difference: the largest |Δ| of logits found. runs, tokens: how much was compared.
    """

    def __init__(self, context: Context, tokens: Tokens) -> None:
        self.difference = measured_difference(context, tokens)
        self.runs = self.tokens = 0
        self.partings: list[Parting] = []
        self._context = context

    def compare(self, prompt: Tokens, plain: Sequence[int], drafted: Sequence[int]) -> None:
        """Takes in a run with drafts, and the plain one from the same prompt. What follows a near tie is
        another text, and not compared."""
        parted = parting(self._context, prompt, plain, drafted)
        self.runs += 1
        self.tokens += len(plain) if parted is None else parted.position
        if parted is not None:
            self.partings.append(parted)

    @property
    def bound(self) -> float:
        """How far apart the logits of a near tie may be."""
        return 2.0 * self.difference

    @property
    def passed(self) -> bool:
        """Whether every run was equal, up to a near tie."""
        return all(parted.gap <= self.bound for parted in self.partings)


class SampledAudit:
    """Are sampled tokens distributed as the target would have drawn them?

    Each token of a run with drafts is held against the target's distribution p at its position, from passes
    over the finished text (:func:`replayed`). If the run is lossless, two things follow whatever the text:

    - Let F(x) be the mass of the tokens likelier than x, and u uniform: F(x) + u·p(x) is uniform in [0, 1]
      and independent from token to token (the randomised probability integral transform). Kolmogorov and
      Smirnov's test.
    - log p(x), cut off below, differs from its expectation by nothing but chance: a martingale, which over
      many tokens is normal with the summed variances.

    A rule that accepts too eagerly fails both. Positions where only one token can come tell nothing and are
    left out. tokens: how many remained.
    """

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        self._uniform: list[float] = []
        self._surprise = self._variance = 0.0

    def observe(self, p: Distribution, token: int) -> None:
        """A run emitted ``token`` where the target draws from ``p``."""
        mass = p.prob(token)
        if len(p.ids) == 1 and mass:
            return
        before = (p.probs > mass) | ((p.probs == mass) & (p.ids < token))
        self._uniform.append(min(float(p.probs[before].sum()) + self._rng.random() * mass, 1.0))
        logs = np.log(np.maximum(p.probs, RAREST))
        expected = float(p.probs @ logs)
        self._surprise += math.log(max(mass, RAREST)) - expected
        self._variance += float(p.probs @ (logs - expected) ** 2)

    @property
    def tokens(self) -> int:
        """How many tokens were compared."""
        return len(self._uniform)

    @property
    def distance(self) -> float:
        """Kolmogorov and Smirnov's D: how far the transformed tokens' distribution is from the uniform."""
        n = len(self._uniform)
        if not n:
            return 0.0
        u, steps = np.sort(np.asarray(self._uniform)), np.arange(n + 1) / n
        return float(max((steps[1:] - u).max(), (u - steps[:-1]).max()))

    @property
    def deviation(self) -> float:
        """How many standard deviations the tokens' log-probabilities are from what was expected."""
        return self._surprise / math.sqrt(self._variance) if self._variance else 0.0

    @property
    def p_values(self) -> tuple[float, float]:
        """The chance of such a distance and of such a deviation, or more, when nothing is wrong."""
        return _kolmogorov(self.distance, self.tokens), math.erfc(abs(self.deviation) / math.sqrt(2.0))

    @property
    def passed(self) -> bool:
        """Whether chance explains what was seen."""
        return min(self.p_values) >= DOUBT


def replayed(
    context: Context, sampler: Sampler, prompt: Tokens, tokens: Sequence[int], batch: int
) -> Iterator[Distribution]:
    """What the target would have drawn each of the tokens from, given those before.

    The text is read as it stands, from an empty cache, nothing taken back. It is read in batches of up to
    ``batch`` tokens (at most ``n_outputs``) and, from two on, never singly. So does a run with drafts, and
    where batched and single passes round differently (``specdec.neartie``), that would show as another
    distribution.
    """
    history = np.array([*prompt, *tokens], np.int32)
    context.clear()
    context.hold(history[: len(prompt) - 1])
    positions = range(len(prompt), len(history))
    for piece in np.array_split(positions, -(-len(positions) // batch)):
        rows = context.score(history[piece - 1], sure=len(piece))
        for i, row in zip(piece, rows, strict=True):
            yield sampler.distributions(row[None], history[:i], [])[0]


def _kolmogorov(distance: float, n: int) -> float:
    """P(D ≥ distance) for n values: the asymptotic series, with Stephens' (1970) correction for small n."""
    if not n:
        return 1.0
    x = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    if x < 0.2:  # the series converges slowly there, and the sum is 1 to 12 places
        return 1.0
    total = sum((-1.0) ** (k - 1) * math.exp(-2.0 * k * k * x * x) for k in range(1, 101))
    return min(max(2.0 * total, 0.0), 1.0)
