"""What drafts of each length will bring, from measured costs and acceptance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .limit import chances

LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
WORTH = 1.02  # less than that is no gain that anybody notices


@dataclass(frozen=True)
class Forecast:
    """by_length: draft length → predicted tokens per second over plain decoding's."""

    by_length: dict[int, float]

    @property
    def best(self) -> int:
        """The recommended fixed length; 0 where no draft pays, and plain decoding is best."""
        length = max(self.by_length, key=lambda k: self.by_length[k])
        return length if self.by_length[length] >= WORTH else 0


def forecast(
    accepted: Sequence[int],
    length: int,
    target: Callable[[int], float],
    drafter: float,
    lengths: Sequence[int] = LENGTHS,
) -> Forecast:
    """The speed-up of fixed draft lengths, everything outside the two models being free.

    With R the tokens that would be accepted if drafting went on, k drafts bring E[min(R, k) + 1] tokens in
    C(k + 1) + k·d seconds, and plain decoding one in C(1): theorem 3.8 of Leviathan et al. 2023, with R and C
    as measured in place of a constant rate and a flat cost.

    accepted: the tokens accepted in each round of a fixed length, at least one round. length: that length.
    target: C, seconds by rows. drafter: d, seconds a token.
    """
    odds = chances(accepted, length, max(*lengths, length))
    by_length = {}
    for k in lengths:
        tokens = sum(chance * (min(r, k) + 1) for r, chance in enumerate(odds))
        by_length[k] = tokens * target(1) / (target(k + 1) + k * drafter)
    return Forecast(by_length)
