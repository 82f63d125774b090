"""The adaptive schedule, on scripted costs and acceptances: what it reaches, what it never loses."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from simulated import Clock, Costs, Guesser, Run, run

from specdec.adaptive import AdaptiveSchedule
from specdec.distribution import Distribution
from specdec.drafters import DraftBlock
from specdec.experience import Experience
from specdec.schedule import FixedSchedule, Schedule

ONE = 0.1  # seconds of the target's pass of one token


def table(*points: tuple[int, float]) -> Costs:
    """Seconds by tokens, straight between the points, given in passes of one."""
    n, cost = zip(*points, strict=True)
    return lambda k: ONE * float(np.interp(k, n, cost))


WIDE = table((1, 1), (2, 1.3), (4, 1.6), (8, 2.0), (16, 2.7), (32, 4.2))  # a 16-bit target on a CPU
FLAT = table((1, 1), (2, 1.05), (32, 1.05))
LINEAR = table((1, 1), (32, 16.5))
COMPUTE = table((1, 1), (2, 1.8), (4, 2.8), (8, 4.7), (16, 8.4), (32, 16))  # a small 4-bit target
CURVES = {"wide": WIDE, "flat": FLAT, "linear": LINEAR, "compute-bound": COMPUTE}
DRAFTER = table((1, 0.08), (2, 0.14), (4, 0.22), (8, 0.38), (16, 0.67), (64, 2.4))


def simulate(
    right: Callable[[int], float],
    target: Costs,
    n: int,
    *,
    seed: int,
    drafter: Costs = DRAFTER,
    experience: Experience | None = None,
    fixed: int = 0,
) -> tuple[Run, Guesser]:
    """n tokens with the adaptive schedule, or a fixed one."""
    clock = Clock()
    guesser = Guesser(clock, drafter, right, seed)
    if experience is None:
        experience = Experience(target(1), {"model": drafter(1)})
    schedule: Schedule = FixedSchedule(fixed) if fixed else AdaptiveSchedule(experience, clock=clock)
    return run(schedule, guesser, target, clock, n), guesser


def best_fixed(p: float, target: Costs, n: int, seed: int) -> float:
    """Tokens a second of the best of the usual fixed lengths, and of plain decoding."""
    runs = [simulate(lambda _: p, target, n, seed=seed, fixed=k)[0] for k in (1, 2, 3, 4, 6, 8, 12, 16)]
    return max(1 / target(1), *(r.speed for r in runs))


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("n", [100, 300, 1000])
def test_where_nothing_is_accepted_it_is_never_two_percent_slower_than_plain(curve: str, n: int) -> None:
    """A new pair has a credit of three tokens, and a hundredth of the run: four tokens in 100."""
    target = CURVES[curve]
    for seed in range(5):
        got, _ = simulate(lambda _: 0.0, target, n, seed=seed)
        loss = got.seconds / (n * target(1)) - 1
        assert loss <= max(0.02, 4.0 / n), f"seed {seed}"


@pytest.mark.parametrize("p", [0.3, 0.6, 0.9, 0.97])
@pytest.mark.parametrize("curve", ["wide", "flat", "linear"])
def test_stationary_acceptance_is_met_as_by_the_best_fixed_length(curve: str, p: float) -> None:
    ratios = []
    for seed in range(8):
        got, _ = simulate(lambda _: p, CURVES[curve], 400, seed=seed)
        ratios.append(got.speed / best_fixed(p, CURVES[curve], 400, seed))
    assert np.mean(ratios) >= 0.95, f"seeds 0 to 7: {np.round(ratios, 3)}"


def test_a_first_run_finds_out_cheaply_that_this_target_is_bound_by_arithmetic() -> None:
    """A free drafter that is sure of itself, and mostly wrong; nothing is known of the target's costs."""
    for seed in range(6):
        got, _ = simulate(lambda _: 0.2, COMPUTE, 40, seed=seed, drafter=table((1, 1e-6), (64, 1e-6)))
        assert got.seconds / ONE <= 40 + 4.5, f"seed {seed}"


def test_a_drafter_that_costs_what_the_target_does_is_not_even_tried() -> None:
    got, guesser = simulate(lambda _: 1.0, COMPUTE, 300, seed=0, drafter=table((1, 1), (64, 30)))
    assert guesser.passes == 0
    assert got.speed == pytest.approx(1 / ONE)


@pytest.mark.parametrize(("hard", "easy"), [(0.0, 0.9), (0.1, 0.97)])
def test_it_follows_a_text_that_changes_its_character(hard: float, easy: float) -> None:
    for seed in range(5):
        got, _ = simulate(lambda at: hard if 150 <= at < 300 else easy, WIDE, 450, seed=seed)
        verified = [k for at, k, _ in got.rounds if 170 <= at < 300]
        assert sum(verified) <= 20, f"seed {seed}: 20 tokens later it has stopped"
        again = next(at for at, k, _ in got.rounds if at >= 300 and k >= 3)
        assert again <= 340, f"seed {seed}: 40 tokens later it drafts again"


def test_what_was_learnt_makes_the_next_run_start_right() -> None:
    gains = []
    for seed in range(6):
        experience = Experience(WIDE(1), {"model": DRAFTER(1)})
        first, _ = simulate(lambda _: 0.95, WIDE, 100, seed=seed, experience=experience)
        simulate(lambda _: 0.95, WIDE, 300, seed=seed + 50, experience=experience)
        second, _ = simulate(lambda _: 0.95, WIDE, 100, seed=seed, experience=experience)
        gains.append(second.speed / first.speed)
    assert np.mean(gains) >= 1.03, f"seeds 0 to 5: {np.round(gains, 3)}"


def test_one_slow_round_changes_nothing() -> None:
    """A pass that takes fifty times as long, on a machine that had something else to do."""
    for seed in range(4):
        calls = [0]

        def target(n: int, calls: list[int] = calls) -> float:
            calls[0] += 1
            return WIDE(n) * (50 if calls[0] == 12 else 1)

        clock = Clock()
        guesser = Guesser(clock, DRAFTER, lambda _: 0.9, seed)
        schedule = AdaptiveSchedule(Experience(WIDE(1), {"model": DRAFTER(1)}), clock=clock)
        got = run(schedule, guesser, target, clock, 300)
        undisturbed, _ = simulate(lambda _: 0.9, WIDE, 300, seed=seed)
        slow = max(WIDE(k + 1) for _, k, _ in got.rounds) * 49
        assert got.seconds - slow <= 1.1 * undisturbed.seconds, f"seed {seed}"


def test_a_machine_that_is_slow_for_a_while_is_followed() -> None:
    for seed in range(4):
        clock = Clock()

        def slowed(costs: Costs, clock: Clock = clock) -> Costs:
            return lambda n: costs(n) * (3 if 3.0 < clock.now < 12.0 else 1)

        guesser = Guesser(clock, slowed(DRAFTER), lambda _: 0.9, seed)
        schedule = AdaptiveSchedule(Experience(WIDE(1), {"model": DRAFTER(1)}), clock=clock)
        got = run(schedule, guesser, slowed(WIDE), clock, 600)
        late = [k for at, k, _ in got.rounds if at >= 400]
        assert np.mean(late) >= 4, f"seed {seed}: long drafts once it is over"
        assert schedule.plain_seconds(400) == pytest.approx(ONE, rel=0.6), f"seed {seed}"


# One round.


def schedule_of(acceptance: Sequence[tuple[float, bool, int]], target: Costs = WIDE) -> AdaptiveSchedule:
    """A schedule that has seen (how sure, kept, how often) of the drafter "seer", and knows the costs."""
    experience = Experience(target(1), {"model": DRAFTER(1)})
    for n in (1, 2, 4, 8, 16, 24):
        for _ in range(5):
            experience.target.note(n, 0, target(n))
    for sure, kept, times in acceptance:
        for _ in range(times):
            experience.acceptance("seer").learn(sure, kept)
    return AdaptiveSchedule(experience)


def test_a_finished_draft_is_cut_where_its_value_peaks() -> None:
    schedule = schedule_of([(0.95, True, 80), (0.05, False, 80)] * 2)
    draft = DraftBlock(tuple(range(10)), source="seer", sure=[0.95] * 6 + [0.05] * 4)
    horizon = schedule.round(100, 50)
    assert len(horizon.cut(draft)) == 6
    assert horizon.worth(draft) > 0.0
    nothing = DraftBlock((1, 2), source="seer", sure=[0.05, 0.05])
    assert len(schedule.round(100, 50).cut(nothing)) == 0


def test_tokens_that_were_drawn_are_never_cut() -> None:
    schedule = schedule_of([(0.05, False, 80)])
    q = [Distribution(np.array([5, 6], np.int32), np.array([0.5, 0.5])), Distribution.point(7)]
    draft = DraftBlock((5, 7), q, "seer", [0.05, 0.05])
    assert draft.drawn == 1
    assert schedule.round(100, 50).cut(draft).tokens == (5,)


def test_a_draft_is_no_longer_than_the_room_and_the_ceiling() -> None:
    schedule = schedule_of([(0.95, True, 200)])
    draft = DraftBlock((1,) * 60, source="seer", sure=[0.99] * 60)
    assert schedule.round(100, 1).limit == 0
    assert schedule.round(100, 5).limit == 4
    assert schedule.round(100, 500).limit == schedule.longest == 24
    assert AdaptiveSchedule(Experience(0.1)).round(100, 500).limit == 3  # before anything was timed
    assert len(schedule.round(100, 500).cut(draft.first(24))) <= 24


def test_below_draft_min_all_or_nothing() -> None:
    experience = schedule_of([(0.95, True, 80), (0.05, False, 80)] * 2).experience
    schedule = AdaptiveSchedule(experience, draft_min=4)
    draft = DraftBlock(tuple(range(6)), source="seer", sure=[0.95] * 2 + [0.05] * 4)
    assert len(schedule.round(100, 50).cut(draft)) in (0, 4)
    assert len(AdaptiveSchedule(experience).round(100, 50).cut(draft)) == 2


def test_what_is_not_verified_is_compared_all_the_same() -> None:
    """A free drafter that was silenced is heard again once it would have been right."""
    schedule = schedule_of([(0.5, False, 60)])
    before = schedule.experience.acceptance("seer").chance(0.5)
    for _ in range(30):
        horizon = schedule.round(100, 50)
        draft = horizon.cut(DraftBlock((9, 9, 9), source="seer", sure=[0.5] * 3))
        horizon.learn([9], 0, WIDE(len(draft) + 1))
    assert before < 0.15
    assert schedule.experience.acceptance("seer").chance(0.5) > 0.5


def test_the_ceiling_of_a_bet_is_what_was_won() -> None:
    schedule = schedule_of([(0.9, True, 60)])
    draft = DraftBlock((1,) * 16, source="seer", sure=[0.9] * 16)
    lengths = []
    for balance in (0.0, 0.65, 1.1, 50.0):
        schedule.experience.balance = balance
        lengths.append(len(schedule.round(100, 50).cut(draft)))
    # WIDE: 4 rows cost 0.6 of a plain step more, 8 rows 1.0.
    assert lengths[0] == 0
    assert 3 <= lengths[1] <= 4
    assert 7 <= lengths[2] <= 8
    assert lengths[3] == 16
