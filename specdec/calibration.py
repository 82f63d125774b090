"""How often a drafter's guesses are accepted, learnt from what it knew of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

LOWEST, HIGHEST = -4, 8  # of the log-odds that are told apart, a bin for each step of 1
BINS = HIGHEST - LOWEST + 1
PRIOR = 4.0  # how many guesses a first opinion counts for
BIN_PRIOR = 1.0  # and that of a bin
FIRST_USUAL = 0.75
BIN_MEMORY = 100.0  # how many guesses of a bin are remembered
LATELY, LONG = 20.0, 200.0  # how many guesses the usual acceptance looks back on
MOOD_GAIN, MOOD_MEMORY = (
    0.3,
    30.0,
)  # log-odds that a surprise changes the mood by, and guesses until it is over


class Average:
    """A mean over about the last ``memory`` values, from a first opinion on."""

    def __init__(self, first: float, memory: float, weight: float = PRIOR) -> None:
        self.value = first
        self.memory = memory
        self.seen = weight

    def add(self, value: float, weight: float = 1.0) -> None:
        self.seen = min(self.seen + weight, self.memory)
        self.value += weight / self.seen * (value - self.value)


class Calibration:
    """The chance that a guess is accepted, given how sure its drafter was.

    A drafter's own probability is not that chance (0.3 may well be accepted 9 times in 10), and the length
    of a match is not a probability at all. Both are read as log-odds, and for each step of them acceptance
    is averaged; between the steps it is interpolated. On top comes a mood: a text that is easier or harder
    than most shifts all chances for as long as it lasts.
    """

    def __init__(self) -> None:
        self._bins = [Average(_first_opinion(LOWEST + i), BIN_MEMORY, BIN_PRIOR) for i in range(BINS)]
        self._lately, self._long = Average(FIRST_USUAL, LATELY), Average(FIRST_USUAL, LONG)
        self._mood = 0.0

    def chance(self, sure: float) -> float:
        """The chance of acceptance, given that all before is accepted. sure: in [0, 1]."""
        i, share = _place(sure)
        low, high = self._bins[i].value, self._bins[i + 1].value
        return _odds_shifted(low + share * (high - low), self._mood)

    @property
    def usual(self) -> float:
        """The chance of a guess of which nothing is known yet."""
        return (self._lately.value + self._long.value) / 2

    def learn(self, sure: float, kept: bool) -> None:
        """A guess was verified, everything before it being accepted; was it kept?"""
        self._mood += MOOD_GAIN * (kept - self.chance(sure)) - self._mood / MOOD_MEMORY
        i, share = _place(sure)
        self._bins[i].add(kept, 1.0 - share)
        self._bins[i + 1].add(kept, share)
        self._lately.add(kept)
        self._long.add(kept)

    def remember(self) -> list[list[float]]:
        """What was learnt of the drafter, as plain data for :meth:`recall`: [acceptance, guesses] for each
        bin and for the long run. The mood was the text's."""
        return [[round(a.value, 5), round(a.seen, 2)] for a in (*self._bins, self._long)]

    def recall(self, remembered: Sequence[Sequence[float]]) -> None:
        """Takes up what :meth:`remember` gave. Raises ValueError for anything else."""
        for average, (value, seen) in zip((*self._bins, self._long), remembered, strict=True):
            if not (0.0 <= value <= 1.0 and seen >= BIN_PRIOR):
                raise ValueError(f"no acceptance: {value} of {seen} guesses")
            average.value, average.seen = float(value), min(float(seen), average.memory)
        self._lately.value = self._long.value


def _place(sure: float) -> tuple[int, float]:
    """The bin below, and how far towards the next one."""
    sure = min(max(sure, 1e-9), 1.0 - 1e-9)
    at = min(max(math.log(sure / (1.0 - sure)), LOWEST), HIGHEST) - LOWEST
    i = min(int(at), BINS - 2)
    return i, at - i


def _odds_shifted(chance: float, shift: float) -> float:
    chance = min(max(chance, 1e-6), 1.0 - 1e-6)
    return 1.0 / (1.0 + (1.0 - chance) / chance * math.exp(-shift))


def _first_opinion(log_odds: float) -> float:
    # A drafter is mostly right more often than it thinks.
    return math.sqrt(1.0 / (1.0 + math.exp(-log_odds)))
