"""The most a drafter can bring on a text, whoever decides how far it drafts.

Let R be the number of tokens that would be accepted in a round if drafting went on for ever, C(n) the seconds
of the target's pass over n rows and d the seconds of a drafted token. A perfect schedule knows R in advance,
drafts j ≤ R tokens, and spends no time outside the two models:

    limit = max over j(·) of  E[j(R) + 1] / E[C(j(R) + 1) + j(R)·d]    tokens per second

R is known from rounds of a fixed length k: as often as they accepted i < k tokens it was i; where they
accepted all k, it goes on token by token with the acceptance rate that the rounds had.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Mapping, Sequence

from .settings import LONGEST_DRAFT


def perfect_rate(
    accepted: Sequence[int],
    length: int,
    target: Callable[[int], float],
    drafter: float,
    longest: int = LONGEST_DRAFT,
) -> float:
    """Tokens per second at the limit.

    accepted: the tokens accepted in each round of a fixed length, at least one round. length: that length.
    target: C, seconds by rows. drafter: d, seconds. longest: no draft is longer.
    """
    odds = chances(accepted, length, max(longest, length))
    costs = [target(j + 1) + j * drafter for j in range(len(odds))]
    rate = 0.0
    while True:  # Dinkelbach: what a token is worth follows from the rate, and the rate from the best choices
        tokens = seconds = 0.0
        for r, chance in enumerate(odds):
            j = max(range(r + 1), key=lambda j: j + 1 - rate * costs[j])
            tokens += chance * (j + 1)
            seconds += chance * costs[j]
        if tokens / seconds <= rate * (1.0 + 1e-12):
            return tokens / seconds
        rate = tokens / seconds


def chances(accepted: Sequence[int], length: int, longest: int) -> list[float]:
    """How likely R is 0, 1, … longest, where longest stands for all that is more; see ``perfect_rate``."""
    n = len(accepted)
    odds = [accepted.count(i) / n for i in range(length)] + [0.0] * (longest + 1 - length)
    whole = sum(a >= length for a in accepted)
    rate = sum(accepted) / (sum(accepted) + n - whole) if whole < n else 1.0
    alive = whole / n
    for r in range(length, longest):
        odds[r] = alive * (1.0 - rate)
        alive *= rate
    odds[longest] += alive
    return odds


class Curve:
    """Cost by rows, from measured passes: linear between the sizes that occurred, and after the last.

    A larger pass is never cheaper than a smaller one: where the figures fall, they are averaged.
    points: the cost of each size that occurred, which must include 1, and how many passes it was measured on.
    """

    def __init__(self, points: Mapping[int, tuple[float, int]]) -> None:
        self.rows = sorted(points)
        self.costs = _rising([points[n] for n in self.rows])

    def __call__(self, n: int) -> float:
        """The cost of n ≥ 1 rows."""
        rows, costs = self.rows, self.costs
        if len(rows) == 1:
            return costs[0] * n
        right = min(max(bisect.bisect_left(rows, n), 1), len(rows) - 1)
        a, b = rows[right - 1], rows[right]
        return costs[right - 1] + (costs[right] - costs[right - 1]) * (n - a) / (b - a)

    def times(self, factor: float) -> Callable[[int], float]:
        """The same, multiplied."""
        return lambda n: factor * self(n)


def _rising(points: Sequence[tuple[float, int]]) -> list[float]:
    """The nearest costs that never fall (pool adjacent violators)."""
    levels: list[tuple[float, int, int]] = []  # cost, passes, sizes
    for cost, passes in points:
        level = (cost, passes, 1)
        while levels and levels[-1][0] > level[0]:
            other = levels.pop()
            both = other[1] + level[1]
            mean = (other[0] * other[1] + level[0] * level[1]) / both
            level = (mean, both, other[2] + level[2])
        levels.append(level)
    return [cost for cost, _, sizes in levels for _ in range(sizes)]
