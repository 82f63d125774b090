"""Runs of a schedule without any model: scripted costs and acceptances, on a clock that only they advance."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from specdec.drafters import DraftBlock
from specdec.schedule import Horizon, Schedule

Costs = Callable[[int], float]


class Clock:
    """Seconds that pass when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Guesser:
    """A model-like drafter: each guess costs a pass, and is right with a chance that may change on the way.

    right: the chance at a position of the text. How sure it says it is has a little to do with it.
    pass_seconds: what a pass of n tokens takes it.
    """

    name = "model"

    def __init__(self, clock: Clock, pass_seconds: Costs, right: Callable[[int], float], seed: int) -> None:
        self.clock = clock
        self.pass_seconds = pass_seconds
        self.right = right
        self.read = 0
        self.passes = 0
        self._seed = seed

    def guesses_right(self, at: int) -> bool:
        return random.Random(f"{self._seed} {at}").random() < self.right(at)

    def propose(self, at: int, horizon: Horizon) -> DraftBlock:
        sure: list[float] = []
        tokens: list[int] = []
        unread = max(1, at - self.read)
        while horizon.goes_on(self.name, sure, unread):
            self.clock.now += self.pass_seconds(unread)
            self.passes += 1
            self.read = at + len(tokens)
            unread = 1
            right = self.guesses_right(at + len(tokens))
            noise = random.Random(f"{self._seed} {at} {len(tokens)}").random()
            sure.append(0.4 * noise + (0.6 if right else 0.3) * (0.2 + self.right(at)) / 1.2)
            tokens.append(1 if right else 0)
        return DraftBlock(tuple(tokens), source=self.name, sure=sure)


@dataclass
class Run:
    seconds: float
    tokens: int
    rounds: list[tuple[int, int, int]]  # position, drafted, accepted

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def run(
    schedule: Schedule, drafter: Guesser, target: Costs, clock: Clock, n: int, *, length: int = 50
) -> Run:
    """n tokens; the text is all ones, so a guess of 1 is right."""
    began, at = clock.now, 0
    rounds: list[tuple[int, int, int]] = []
    while at < n:
        horizon = schedule.round(length + at, n - at)
        draft = horizon.cut(drafter.propose(at, horizon))
        seconds = target(len(draft) + 1)
        clock.now += seconds
        accepted = accepted_of(draft.tokens)
        horizon.learn([1] * (accepted + 1), accepted, seconds)
        rounds.append((at, len(draft), accepted))
        at += accepted + 1
        drafter.read = min(drafter.read, at)
    return Run(clock.now - began, at, rounds)


def accepted_of(tokens: Sequence[int]) -> int:
    return next((i for i, token in enumerate(tokens) if token != 1), len(tokens))
