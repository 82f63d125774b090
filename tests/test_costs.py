"""Cost curves: robust, monotone, by length of text, and written down."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from specdec.costs import KNOTS, USUAL, CostCurve, Pace


def curve(single: float = 0.1) -> CostCurve:
    return CostCurve(single, Pace())


def test_before_any_timing_the_usual_shape_is_believed() -> None:
    c = curve(0.1)
    assert [c(n) for n in KNOTS] == pytest.approx([0.1 * u for u in USUAL])
    assert c(3) == pytest.approx(0.145)
    assert c(128) == pytest.approx(2 * c(64))


def test_timings_are_believed_once_there_are_two() -> None:
    c = curve(0.1)
    c.note(8, 0, 5.0)
    assert c(8) == pytest.approx(0.2)  # one long timing proves nothing
    c.note(8, 0, 0.47)
    c.note(8, 0, 0.47)
    assert c(8) == pytest.approx(0.47)


def test_a_slow_pass_changes_nothing() -> None:
    c = curve(0.1)
    for _ in range(6):
        for n in (1, 4, 8):
            c.note(n, 0, 0.05 * (1 + n))
    before = c(8)
    c.note(8, 0, 30.0)
    assert c(8) <= 1.2 * before
    assert c(8) / c(1) == pytest.approx(before / 0.1, rel=0.01)


def test_between_the_knots_the_true_curve_is_found_and_it_never_falls() -> None:
    seed = 5
    rng = np.random.default_rng(seed)

    def truth(n: float) -> float:
        return 0.02 + 0.01 * n

    c = curve(truth(1))
    for _ in range(200):
        n = int(rng.integers(1, 25))
        c.note(n, 0, truth(n) * float(rng.lognormal(0.0, 0.1)))
    for n in range(1, 25):
        assert c(n) == pytest.approx(truth(n), rel=0.25), f"seed {seed}"
    assert all(c(n) <= c(n + 1) for n in range(1, 100)), f"seed {seed}"


def test_a_bend_in_the_middle_bends_what_lies_between() -> None:
    c = curve(0.1)
    for _ in range(4):
        c.note(4, 0, 0.32)  # twice the usual 0.16
    assert c(1) == pytest.approx(0.1)
    assert 0.15 < c(2) < 0.25
    assert c(16) == pytest.approx(2 * 0.27)


def test_long_texts_have_a_curve_of_their_own() -> None:
    c = curve(0.1)
    for _ in range(5):
        c.note(1, 100, 0.1)
        c.note(1, 5000, 0.2)
    # (Meanwhile the pace has taken part of the change for its own.)
    assert c(1, 5000) / c(1, 100) == pytest.approx(2.0, rel=0.3)
    assert c(1, 100_000) == c(1, 5000)


def test_when_all_is_slower_sizes_that_nobody_tries_are_slower_too() -> None:
    c = curve(0.1)
    for _ in range(6):
        c.note(1, 0, 0.1)
        c.note(16, 0, 0.27)
    for _ in range(30):
        c.note(16, 0, 0.81)
    assert c(16) == pytest.approx(0.81, rel=0.15)
    assert c(1) == pytest.approx(0.3, rel=0.2)


def test_it_reaches_as_far_as_twice_what_was_timed_twice() -> None:
    c = curve()
    reaches = [c.reach]
    for n in (1, 4, 4, 8, 1, 8, 7, 24, 24):
        c.note(n, 0, 0.1)
        reaches.append(c.reach)
    assert reaches == [4, 4, 4, 8, 8, 8, 16, 16, 16, 64]


def test_it_is_written_down_and_read_again() -> None:
    c = curve(0.1)
    for n, seconds in ((1, 0.11), (8, 0.3), (8, 0.31)):
        c.note(n, 3000, seconds)
    written = json.loads(json.dumps(c.remember()))
    again = curve(0.2)
    again.recall(written)
    for n in (1, 2, 8, 16):
        assert again(n, 3000) == pytest.approx(c(n, 3000), rel=0.25)
    for broken in ({"0:3": 0.1}, {"x": 0.1}, {"0:1": -1.0}, {"0:1": float("nan")}):
        with pytest.raises(ValueError, match=r".*"):
            curve().recall(broken)


def test_what_was_asked_before_changes_no_answer() -> None:
    """Tables that are kept between timings are those that would be made anew."""
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    kept, fresh = CostCurve(0.1, Pace()), CostCurve(0.1, Pace())
    for _ in range(300):
        n, length, seconds = (
            rng.choice([1, 1, 1, 3, 9, 30]),
            rng.choice([10, 300, 5000]),
            rng.uniform(0.1, 0.3),
        )
        kept.note(n, length, seconds)
        fresh.note(n, length, seconds)
        fresh._tables.clear()
        for scale in (10, 300, 5000, 40000):
            expected = [fresh(rows, scale) for rows in (1, 2, 5, 17)]
            assert [kept(rows, scale) for rows in (1, 2, 5, 17)] == expected, f"seed {seed}"
