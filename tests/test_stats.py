"""Counters: totals, rates, positions, reset."""

from __future__ import annotations

import pytest

from specdec.stats import Stats


def test_nothing_yet() -> None:
    stats = Stats()
    assert (stats.rounds, stats.drafted, stats.accepted, stats.rejected, stats.emitted) == (0, 0, 0, 0, 0)
    assert stats.acceptance_rate == 0.0
    assert stats.mean_accepted_length == 0.0
    assert stats.tokens_per_second == 0.0
    assert stats.decoding_seconds == 0.0


def test_rounds_add_up_by_position() -> None:
    stats = Stats()
    stats.count(drafted=4, accepted=2, emitted=3, source="model")
    stats.count(drafted=2, accepted=2, emitted=3, source="model")
    stats.count(drafted=3, accepted=0, emitted=1, source="lookup")
    stats.count(drafted=0, accepted=0, emitted=1, source="none")
    assert (stats.rounds, stats.drafted, stats.accepted, stats.rejected, stats.emitted) == (4, 9, 4, 5, 8)
    assert stats.acceptance_rate == pytest.approx(4 / 9)
    assert stats.mean_accepted_length == pytest.approx(8 / 4)
    assert stats.drafted_by_position == [3, 3, 2, 1]
    assert stats.accepted_by_position == [2, 2, 0, 0]
    assert stats.by_drafter == {
        "model": {"rounds": 2, "drafted": 6, "accepted": 4},
        "lookup": {"rounds": 1, "drafted": 3, "accepted": 0},
    }


def test_the_time_of_a_round_goes_to_its_parts() -> None:
    stats = Stats()
    stats.time([10.0, 10.5, 12.0, 12.25, 12.5], drafted=3)
    stats.time([20.0, 20.0, 21.0, 21.0, 21.0], drafted=0)
    stats.seconds["prefill"] = 7.0
    stats.count(drafted=3, accepted=3, emitted=4, source="model")
    assert stats.seconds == {
        "load": 0.0, "prefill": 7.0, "draft": 0.5, "verify": 2.5, "sample": 0.25, "other": 0.25,
    }  # fmt: skip
    assert stats.decoding_seconds == 3.5
    assert stats.tokens_per_second == pytest.approx(4 / 3.5)
    assert (stats.plain_rounds, stats.plain_seconds) == (1, 1.0)


def test_reset_forgets_all_of_it() -> None:
    stats = Stats()
    stats.count(drafted=4, accepted=2, emitted=3, source="model")
    stats.time([0.0, 1.0, 2.0, 3.0, 4.0], drafted=4)
    stats.reset()
    assert stats == Stats()


def test_as_dict_is_the_documented_object() -> None:
    stats = Stats()
    stats.count(drafted=3, accepted=1, emitted=2, source="model")
    assert list(stats.as_dict()) == [
        "rounds", "drafted", "accepted", "rejected", "acceptance_rate", "mean_accepted_length",
        "accepted_by_position", "drafted_by_position", "by_drafter", "tokens_per_second", "seconds",
    ]  # fmt: skip
    assert stats.as_dict()["acceptance_rate"] == 0.3333
    assert list(stats.as_dict()["seconds"]) == ["load", "prefill", "draft", "verify", "sample", "other"]  # type: ignore[call-overload]


def test_two_add_up_to_what_one_would_have_counted() -> None:
    rounds = [(4, 2, 3, "model"), (2, 2, 3, "lookup"), (6, 1, 2, "model"), (0, 0, 1, "none")]
    whole, parts = Stats(), [Stats(), Stats()]
    for i, (drafted, accepted, emitted, source) in enumerate(rounds):
        for stats in (whole, parts[i % 2]):
            stats.count(drafted=drafted, accepted=accepted, emitted=emitted, source=source)
            stats.time([0.0, 1.0, 2.5, 3.0, 3.25], drafted=drafted)
            stats.cached_prompt_tokens += i
    parts[0].add(parts[1])
    parts[0].add(Stats())
    assert parts[0] == whole
