"""Predicted speed-ups, against simulation and by hand."""

from __future__ import annotations

import random

import pytest

from specdec.forecast import LENGTHS, forecast
from specdec.limit import Curve


def test_by_hand() -> None:
    """Half of the rounds accept nothing, half all of two; passes of 1, 2, 3 rows take 1, 1.5 and 2 s."""
    made = forecast([0, 2], 2, Curve({1: (1.0, 1), 3: (2.0, 1)}), 0.25, lengths=(1, 2))
    assert made.by_length == {1: 1.5 / (1.5 + 0.25), 2: pytest.approx(2.0 / (2.0 + 0.5))}
    assert made.best == 0


def test_a_free_draft_that_is_always_right() -> None:
    made = forecast([4] * 5, 4, lambda _: 1.0, 0.0)
    assert made.by_length == {k: k + 1.0 for k in LENGTHS}
    assert made.best == LENGTHS[-1]


def test_a_draft_that_is_never_right_is_never_recommended() -> None:
    made = forecast([0] * 9, 4, lambda n: 1.0 + 0.01 * n, 0.1)
    assert made.best == 0
    assert all(speed < 1.0 for speed in made.by_length.values())


@pytest.mark.parametrize(("rate", "drafter"), [(0.9, 0.05), (0.7, 0.1), (0.4, 0.1)])
def test_it_foretells_what_a_simulation_finds(rate: float, drafter: float) -> None:
    """Every token is accepted with the same chance; acceptance is known from drafts of 8 alone."""
    rng = random.Random(int(rate * 100))
    cost = Curve({1: (1.0, 1), 2: (1.3, 1), 9: (2.1, 1), 17: (2.8, 1)})

    def rounds(k: int, n: int) -> list[int]:
        found = []
        for _ in range(n):
            a = 0
            while a < k and rng.random() < rate:
                a += 1
            found.append(a)
        return found

    made = forecast(rounds(8, 4000), 8, cost, drafter)
    speeds = {0: 1.0}
    for k in LENGTHS:
        accepted = rounds(k, 4000)
        speeds[k] = (sum(accepted) + len(accepted)) / (len(accepted) * (cost(k + 1) + k * drafter))
        assert made.by_length[k] == pytest.approx(speeds[k], rel=0.05), k
    assert speeds[made.best] > 0.97 * max(speeds.values())
