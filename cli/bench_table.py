"""The tables of a benchmark: for a terminal, as Markdown, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from .bench_result import BEST_FIXED, FORECAST, LIMIT, Result, Row, Spread

UNKNOWN = ""


class Table(NamedTuple):
    """Cells as they are shown; the first column is text, the others are figures."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(result: Result) -> Iterator[Table]:
    """What is shown, table by table."""
    yield _speeds(result)
    if len(result.kinds) > 1:
        yield _kinds(result)
    derived = _derived(result)
    if derived.rows:
        yield derived


def _speeds(result: Result) -> Table:
    header = (
        "", "tok/s", "÷ plain", "least", "most", "accepted", "tok/round", "in llama_decode", "÷ limit",
        "same tokens",
    )  # fmt: skip
    return Table("Speed, medians over the prompts", header, [_cells(row) for row in result.rows])


def _cells(row: Row) -> list[str]:
    return [
        row.name,
        f"{row.rate:.1f}",
        *_three(row.ratio),
        _percent(row.accepted),
        UNKNOWN if row.length is None else f"{row.length:.2f}",
        UNKNOWN if row.inside is None else f"{row.inside:.1%}",
        UNKNOWN if row.of_limit is None else f"{row.of_limit:.2f}",
        UNKNOWN if row.same is None else f"{row.same[0]} of {row.same[1]}",
    ]


def _kinds(result: Result) -> Table:
    rows = [
        [row.name, *(f"{row.by_kind[k]:.2f}" if k in row.by_kind else UNKNOWN for k in result.kinds)]
        for row in result.rows
        if row.by_kind
    ]
    return Table("÷ plain, by kind of prompt", ("", *result.kinds), rows)


def _derived(result: Result) -> Table:
    """What the adaptive schedule is measured by, and the rules against each other."""
    rows = []
    for one in result.adaptive():
        best, forecast, limit = result.best_fixed(one), result.forecast(one), result.limit(one)
        if best:
            spread = result.spread(one.name, BEST_FIXED)
            rows.append([f"{one.name} ÷ best fixed ({best.name})", *_three(spread)])
        if forecast:
            spread = result.spread(one.name, FORECAST)
            rows.append([f"{one.name} ÷ forecast ({forecast:.1f} tok/s)", *_three(spread)])
        if limit:
            rows.append([f"{one.name} ÷ limit ({limit:.1f} tok/s)", *_three(result.spread(one.name, LIMIT))])
        for rival in result.rivals:
            if rival.base == one.base:
                rows.append([f"{one.name} ÷ {rival.name}", *_three(result.spread(one.name, rival.name))])
    for name, ratio, low, high in result.intervals():
        title = f"{name} ÷ token rejection, tok/round (95 % interval)"
        rows.append([title, f"{ratio:.3f}", f"{low:.3f}", f"{high:.3f}"])
    return Table("Against each other", ("", "median", "least", "most"), rows)


def _three(spread: Spread | None) -> tuple[str, str, str]:
    if spread is None:
        return UNKNOWN, UNKNOWN, UNKNOWN
    return f"{spread.median:.2f}", f"{spread.least:.2f}", f"{spread.most:.2f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def as_text(heading: str, found: Sequence[Table]) -> str:
    """For a terminal; as wide as it has to be."""
    blocks = [heading]
    for table in found:
        sizes = [max(map(len, column)) for column in zip(table.header, *table.rows, strict=True)]
        lines = [table.title] + [
            "  ".join([row[0].ljust(sizes[0]), *map(str.rjust, row[1:], sizes[1:])]).rstrip()
            for row in (table.header, *table.rows)
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def as_markdown(heading: str, found: Sequence[Table]) -> str:
    """With the figures aligned to the right."""
    first, *more = heading.split("\n")
    blocks = [first, *(["\n".join(f"- {line}" for line in more)] if more else [])]
    for table in found:
        lines = [table.header, ("---", *("---:" for _ in table.header[1:])), *table.rows]
        blocks.append("\n".join([f"{table.title}:\n", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join(blocks) + "\n"


def as_csv(result: Result) -> str:
    """One line for each configuration and peer, in figures that a program reads."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(
        [
            "name", "tokens_per_second", "ratio", "ratio_least", "ratio_most", "prompts", "acceptance_rate",
            "mean_accepted_length", "share_in_llama_decode", "of_limit", "same_tokens",
            *(f"ratio_{kind}" for kind in result.kinds),
        ]
    )  # fmt: skip
    for row in result.rows:
        r = row.ratio
        figures = [
            row.rate, *((r.median, r.least, r.most, r.n) if r else (None,) * 4), row.accepted, row.length,
            row.inside, row.of_limit, row.same[0] if row.same else None, *map(row.by_kind.get, result.kinds),
        ]  # fmt: skip
        writer.writerow([row.name, *("" if f is None else f"{f:.6g}" for f in figures)])
    return out.getvalue()
