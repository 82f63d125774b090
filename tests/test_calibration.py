"""What a drafter's sureness is worth, learnt from what was accepted."""

from __future__ import annotations

import random

import pytest

from specdec.calibration import Calibration


def taught(truth: dict[float, float], times: int, seed: int = 1) -> Calibration:
    rng = random.Random(seed)
    c = Calibration()
    for _ in range(times):
        sure = rng.choice(list(truth))
        c.learn(sure, rng.random() < truth[sure])
    return c


def test_a_modest_drafter_is_believed_more_than_it_says() -> None:
    """0.3 may well be accepted 9 times in 10 (a drafter much like its target), or hardly ever."""
    seed = 1
    modest, boastful = taught({0.3: 0.9, 0.95: 0.99}, 400, seed), taught({0.3: 0.1, 0.95: 0.4}, 400, seed)
    assert modest.chance(0.3) == pytest.approx(0.9, abs=0.07), f"seed {seed}"
    assert modest.chance(0.95) == pytest.approx(0.99, abs=0.03), f"seed {seed}"
    assert boastful.chance(0.3) == pytest.approx(0.1, abs=0.1), f"seed {seed}"
    assert boastful.chance(0.95) == pytest.approx(0.4, abs=0.15), f"seed {seed}"
    assert modest.usual > 0.85 > 0.45 > boastful.usual


def test_chances_are_chances_for_anything_a_drafter_may_say() -> None:
    c = taught({0.0: 0.0, 1.0: 1.0}, 300)
    assert 0.0 < c.chance(0.0) < 0.1
    assert 0.9 < c.chance(1.0) < 1.0
    assert all(0.0 < c.chance(i / 100) < 1.0 for i in range(101))
    assert c.chance(0.2) < c.chance(0.8)


def test_a_surprising_stretch_shifts_all_chances_for_a_while() -> None:
    c = taught({0.5: 0.8, 0.99: 0.99}, 300)
    calm = c.chance(0.99)
    for _ in range(6):
        c.learn(0.5, False)
    assert 1.0 - c.chance(0.99) > 2 * (1.0 - calm)
    for _ in range(60):
        c.learn(0.99, True)
    assert c.chance(0.99) >= 0.98


def test_what_was_learnt_is_written_down_and_read_again() -> None:
    c = taught({0.3: 0.6, 0.9: 0.95}, 200)
    again = Calibration()
    again.recall(c.remember())
    assert again.chance(0.3) == pytest.approx(c.chance(0.3), abs=0.1)
    assert again.remember() == c.remember()
    for broken in ([], [[0.5, 10.0]] * 3, [[1.5, 10.0]] * 14, [[0.5, 0.0]] * 14):
        with pytest.raises(ValueError, match=r".*"):
            Calibration().recall(broken)
