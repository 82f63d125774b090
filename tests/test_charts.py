"""The charts of a conversation and the line after each answer, at the widths people have."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from specdec.cli.charts import MOST_ROWS, answer_line, conversation

from specdec.stats import PARTS, Stats


def a_conversation() -> Stats:
    """50 drafts of 3 tokens: 46 keep the first, 30 the second, 3 the third; then 20 plain rounds."""
    stats = Stats()
    for i in range(50):
        accepted = 3 if i < 3 else 2 if i < 30 else 1 if i < 46 else 0
        source = "model" if i % 5 else "lookup"
        stats.count(drafted=3, accepted=accepted, emitted=accepted + 1, source=source)
    for _ in range(20):
        stats.count(drafted=0, accepted=0, emitted=1, source="none")
    stats.seconds = {
        "load": 9.0,
        "prefill": 0.5,
        "draft": 1.0,
        "verify": 3.0,
        "sample": 0.004,
        "other": 0.496,
    }
    return stats


def plain() -> Stats:
    stats = Stats()
    for _ in range(12):
        stats.count(drafted=0, accepted=0, emitted=1, source="none")
    stats.seconds["verify"] = 0.1
    return stats


def test_a_conversation_at_60_columns() -> None:
    assert conversation(a_conversation(), speedup=1.93, turns=3, width=60, unicode=True) == [
        "3 turns · 149 tok · 33.1 tok/s · 53 % accepted",
        "2.1 tok/round · 1.9× plain",
        "",
        "accepted, by position in the draft",
        "  1 ███████████████████████████████████     92 %  (46 of 50)",
        "  2 ██████████████████████▊                 60 %  (30 of 50)",
        "  3 ██▎                                      6 %  (3 of 50)",
        "",
        "by drafter  rounds  drafted  accepted",
        "  lookup        10       30        17  57 %",
        "  model         40      120        62  52 %",
        "",
        "time",
        "  prefill ███▋                                  10 %  0.50 s",
        "  draft   ███████▎                              20 %  1.00 s",
        "  verify  █████████████████████▋                60 %  3.00 s",
        "  sample                                         0 %  4 ms",
        "  other   ███▋                                  10 %  0.50 s",
    ]


def test_a_conversation_at_40_columns_in_ascii() -> None:
    assert conversation(a_conversation(), speedup=None, turns=1, width=40, unicode=False) == [
        "1 turn | 149 tok | 33.1 tok/s",
        "53 % accepted | 2.1 tok/round",
        "",
        "accepted, by position in the draft",
        "  1 #################   92 %  (46 of 50)",
        "  2 ###########         60 %  (30 of 50)",
        "  3 #                    6 %  (3 of 50)",
        "",
        "by drafter  drafted  accepted",
        "  lookup         30        17  57 %",
        "  model         120        62  52 %",
        "",
        "time",
        "  prefill ##                10 %  0.50 s",
        "  draft   ###               20 %  1.00 s",
        "  verify  ##########        60 %  3.00 s",
        "  sample                     0 %  4 ms",
        "  other   ##                10 %  0.50 s",
    ]


def test_a_wide_terminal_does_not_stretch_the_bars() -> None:
    lines = conversation(a_conversation(), speedup=1.93, turns=3, width=100, unicode=True)
    assert lines[0] == "3 turns · 149 tok · 33.1 tok/s · 53 % accepted · 2.1 tok/round · 1.9× plain"
    assert lines[3] == "  1 ████████████████████████████████████▊     92 %  (46 of 50)"
    assert max(map(cell_len, lines[1:])) == 64


def test_a_narrow_terminal_keeps_bars_and_shares() -> None:
    lines = conversation(a_conversation(), speedup=1.93, turns=3, width=24, unicode=True)
    assert lines[-5:] == [
        "  prefill ▊         10 %",
        "  draft   █▋        20 %",
        "  verify  ████▊     60 %",
        "  sample             0 %",
        "  other   ▊         10 %",
    ]


def test_a_conversation_without_drafts_says_what_is_known() -> None:
    assert conversation(plain(), speedup=1.0, turns=2, width=60, unicode=True) == [
        "2 turns · 12 tok · 120 tok/s",
        "",
        "time",
        "  verify █████████████████████████████████████ 100 %  0.10 s",
    ]


@pytest.mark.parametrize(("width", "line"), [(60, "nothing has been generated yet"), (10, "nothing ha")])
def test_before_the_first_token(width: int, line: str) -> None:
    assert conversation(Stats(), speedup=None, turns=0, width=width, unicode=True) == [line]


@pytest.mark.parametrize(
    ("positions", "rows", "last"), [(16, 16, "16"), (17, 16, "16–17"), (256, 16, "16–256"), (2, 2, "2")]
)
def test_many_positions_are_summed_up(positions: int, rows: int, last: str) -> None:
    stats = Stats()
    stats.count(drafted=positions, accepted=positions, emitted=positions + 1, source="lookup")
    stats.count(drafted=positions, accepted=1, emitted=2, source="lookup")
    lines = conversation(stats, speedup=None, turns=1, width=60, unicode=True)
    chart = [line for line in lines if "of" in line and line.startswith("  ")]
    assert len(chart) == rows <= MOST_ROWS
    label, *_, accepted, _, drafted = chart[-1].split()
    assert label == last
    summed = positions - 15 if positions > MOST_ROWS else 1
    assert (accepted, drafted) == (f"({summed}", f"{2 * summed})")


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (80, "149 tok · 33.1 tok/s · 53 % accepted · 2.1 tok/round · 1.9× plain"),
        (65, "149 tok · 33.1 tok/s · 53 % accepted · 2.1 tok/round · 1.9× plain"),
        (64, "149 tok · 33.1 tok/s · 53 % accepted · 1.9× plain"),
        (48, "149 tok · 33.1 tok/s · 1.9× plain"),
        (32, "33.1 tok/s · 1.9× plain"),
        (22, "33.1 tok/s"),
        (6, "33.1 t"),
    ],
)
def test_the_line_of_an_answer_drops_the_least_important(width: int, line: str) -> None:
    assert answer_line(a_conversation(), speedup=1.93, width=width, unicode=True) == line


def test_the_line_of_an_answer_in_ascii_or_without_drafts() -> None:
    assert answer_line(a_conversation(), speedup=1.93, width=80, unicode=False) == (
        "149 tok | 33.1 tok/s | 53 % accepted | 2.1 tok/round | 1.9x plain"
    )
    assert answer_line(a_conversation(), speedup=None, width=80, unicode=True).endswith("2.1 tok/round")
    assert answer_line(plain(), speedup=1.0, width=80, unicode=True) == "12 tok · 120 tok/s"
    assert answer_line(Stats(), speedup=None, width=80, unicode=True) == "0 tok"


@settings(deadline=None)
@given(
    rounds=st.lists(
        st.tuples(
            st.integers(0, 256), st.integers(0, 256), st.sampled_from(["model", "a name of its own", "日本"])
        ),
        max_size=20,
    ),
    seconds=st.fixed_dictionaries(dict.fromkeys(PARTS, st.floats(0.0, 1e6))),
    speedup=st.none() | st.floats(0.0, 1e3),
    width=st.integers(1, 120),
    unicode=st.booleans(),
)
def test_nothing_is_ever_wider_than_the_terminal(
    rounds: list[tuple[int, int, str]],
    seconds: dict[str, float],
    speedup: float | None,
    width: int,
    unicode: bool,
) -> None:
    stats = Stats(seconds=seconds)
    for drafted, accepted, source in rounds:
        kept = min(drafted, accepted)
        stats.count(drafted=drafted, accepted=kept, emitted=kept + 1, source=source)
    lines = conversation(stats, speedup=speedup, turns=len(rounds), width=width, unicode=unicode)
    lines.append(answer_line(stats, speedup=speedup, width=width, unicode=unicode))
    assert all(cell_len(line) <= width and line == line.rstrip() for line in lines[:-1])
    assert 0 < cell_len(lines[-1]) <= width
    assert unicode or all(line.replace("日", "").replace("本", "").isascii() for line in lines)
