"""What ``/stats`` prints of a conversation, and the one line after each answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size

from specdec.stats import Stats

from .plain import cut

MOST_ROWS = 16  # of a chart; what comes after them is summed up in the last one
WIDEST_BAR = 40  # cells
NARROWEST_BAR = 8  # cells; below that the counts make room
EIGHTHS = " ▏▎▍▌▋▊▉█"
INDENT = "  "


class Bar(NamedTuple):
    """One row of a chart."""

    label: str
    share: float
    detail: str  # what stands after the share where there is room


def conversation(stats: Stats, *, speedup: float | None, turns: int, width: int, unicode: bool) -> list[str]:
    """Totals, acceptance by position and by drafter, and where the time went, at most `width` cells wide.

    speedup: over plain decoding, None when unknown. unicode: whether blocks and signs may be used.
    """
    if not stats.emitted:
        return [cut("nothing has been generated yet", width).rstrip()]
    fields = [_count(turns, "turn"), *_figures(stats, speedup, unicode).values()]
    lines = _wrapped(fields, width, unicode)
    if stats.drafted:
        lines += ["", cut("accepted, by position in the draft", width)]
        lines += _chart(_positions(stats, unicode), width, unicode)
        lines += ["", *_drafters(stats, width)]
    times = _times(stats)
    if times:
        lines += ["", cut("time", width), *_chart(times, width, unicode)]
    return [line.rstrip() for line in lines]


def answer_line(stats_of_answer: Stats, *, speedup: float | None, width: int, unicode: bool) -> str:
    """The figures of one answer in at most `width` cells; the least important ones go first."""
    figures = _figures(stats_of_answer, speedup, unicode)
    for least in ("length", "accepted", "tokens", "speedup", ""):
        line = _separator(unicode).join(figures.values())
        if cell_len(line) <= width or len(figures) == 1:
            break
        figures.pop(least, None)
    return cut(line, width).rstrip()


def _figures(stats: Stats, speedup: float | None, unicode: bool) -> dict[str, str]:
    """The known figures, in the order they are shown."""
    rate = stats.tokens_per_second
    figures = {"tokens": f"{stats.emitted} tok"}
    if rate:
        figures["rate"] = f"{rate:.{0 if rate >= 100 else 1}f} tok/s"
    if stats.drafted:
        figures["accepted"] = f"{_percent(stats.acceptance_rate)} accepted"
        figures["length"] = f"{stats.mean_accepted_length:.1f} tok/round"
        if speedup is not None:
            figures["speedup"] = f"{speedup:.1f}{'×' if unicode else 'x'} plain"
    return figures


def _positions(stats: Stats, unicode: bool) -> list[Bar]:
    """How often a drafted token stayed, for each position; the far ones are one row."""
    drafted, accepted = stats.drafted_by_position, stats.accepted_by_position
    single = len(drafted) if len(drafted) <= MOST_ROWS else MOST_ROWS - 1
    bars = [_kept(str(i + 1), accepted[i], drafted[i]) for i in range(single)]
    if single < len(drafted):
        label = f"{single + 1}{'–' if unicode else '-'}{len(drafted)}"
        bars.append(_kept(label, sum(accepted[single:]), sum(drafted[single:])))
    return bars


def _kept(label: str, accepted: int, drafted: int) -> Bar:
    return Bar(label, accepted / drafted if drafted else 0.0, f"({accepted} of {drafted})")


def _times(stats: Stats) -> list[Bar]:
    """The parts' shares of the time, loading apart."""
    parts = {part: stats.seconds[part] for part in ("prefill", "draft", "verify", "sample", "other")}
    total = sum(parts.values())
    return [Bar(part, value / total, _seconds(value)) for part, value in parts.items() if value > 0.0]


def _chart(bars: Sequence[Bar], width: int, unicode: bool) -> list[str]:
    """The rows: label, bar, share, detail; the detail goes first where there is too little room."""
    labels = max(len(bar.label) for bar in bars)
    details = 2 + max(len(bar.detail) for bar in bars)
    room = width - len(INDENT) - labels - len("  100 %")
    if room - details < NARROWEST_BAR:
        details = 0
    size = max(0, min(WIDEST_BAR, room - details))
    align = str.rjust if bars[0].label[0].isdigit() else str.ljust
    rows = []
    for bar in bars:
        row = (
            f"{INDENT}{align(bar.label, labels)} {_blocks(bar.share, size, unicode)} {_percent(bar.share):>5}"
        )
        rows.append(cut(f"{row}  {bar.detail}" if details else row, width))
    return rows


def _blocks(share: float, size: int, unicode: bool) -> str:
    """A bar of `size` cells, of which `share` is filled."""
    if not unicode:
        return ("#" * round(share * size)).ljust(size)
    full, rest = divmod(round(share * size * 8), 8)
    return ("█" * full + EIGHTHS[rest].strip()).ljust(size)


def _drafters(stats: Stats, width: int) -> list[str]:
    """A table with one row for each drafter; columns that have no room are left out."""
    header = ["by drafter", "rounds", "drafted", "accepted", ""]
    rows = [header] + [
        [
            INDENT + name, str(own["rounds"]), str(own["drafted"]), str(own["accepted"]),
            _percent(own["accepted"] / own["drafted"]),
        ]
        for name, own in stats.by_drafter.items()
    ]  # fmt: skip
    columns = [list(column) for column in zip(*rows, strict=True)]
    sizes = [max(map(cell_len, column)) for column in columns]
    while sum(sizes[1:]) + 2 * len(sizes[1:]) + len(header[0]) > width and len(columns) > 2:
        del columns[1], sizes[1]
    sizes[0] = max(0, min(sizes[0], width - sum(sizes[1:]) - 2 * len(sizes[1:])))
    table = []
    for name, *cells in zip(*columns, strict=True):
        figures = "".join("  " + cell.rjust(size) for cell, size in zip(cells, sizes[1:], strict=True))
        table.append(cut(set_cell_size(name, sizes[0]) + figures, width))
    return table


def _wrapped(fields: Sequence[str], width: int, unicode: bool) -> list[str]:
    """The fields on as few lines as they need."""
    lines = [fields[0]]
    for field in fields[1:]:
        longer = lines[-1] + _separator(unicode) + field
        if cell_len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(field)
    return [cut(line, width) for line in lines]


def _separator(unicode: bool) -> str:
    return " · " if unicode else " | "


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _seconds(value: float) -> str:
    if value < 0.1:
        return f"{1000 * value:.0f} ms"
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} s"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
