"""The figure of a benchmark: speed by kind of prompt, acceptance by position, and what passes cost."""

from __future__ import annotations

import importlib.util
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import SpecdecError, UsageError

from .bench_plan import Configuration
from .bench_result import Result, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMATS = (".svg", ".png", ".pdf")


def check_plot(path: Path) -> None:
    """Raises UsageError, before anything is measured, where no figure could be drawn or written."""
    if path.suffix.lower() not in FORMATS:
        raise UsageError(f"--plot {path}: name a file that ends in {', '.join(FORMATS)}")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError('--plot draws with matplotlib, which is not installed: pip install "specdec[plot]"')
    folder = path.expanduser().parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(f"--plot {path}: {folder} is no directory that can be written to")


def draw(result: Result, heading: str, path: Path) -> None:
    """Draws three charts side by side. Raises SpecdecError when the file cannot be written."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 5), layout="constrained")
    figure.suptitle(heading, fontsize=10)
    speeds, positions, costs = figure.subplots(1, 3)
    _speeds(speeds, result)
    _positions(positions, result)
    _costs(costs, result)
    path = path.expanduser()
    try:
        figure.savefig(path, format=path.suffix[1:].lower())
    except OSError as error:
        raise SpecdecError(f"--plot {path}: {error.strerror or error}") from error


def _speeds(axes: Axes, result: Result) -> None:
    """Bars: the ratio to plain, for each kind of prompt."""
    rows = [row for row in result.rows if row.by_kind and _shown(row, result)]
    width = 0.8 / max(1, len(rows))
    for i, row in enumerate(rows):
        places = [k + (i - (len(rows) - 1) / 2) * width for k in range(len(result.kinds))]
        axes.bar(places, [row.by_kind.get(kind, 0.0) for kind in result.kinds], width, label=row.name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(result.kinds)), result.kinds, rotation=20, ha="right")
    _labelled(axes, "speed ÷ plain decoding, by kind of prompt", "", "÷ plain")


def _shown(row: Row, result: Result) -> bool:
    """Whether a row is in the bars: adaptive ones, the best of the fixed lengths, and peers."""
    one = next((c for c in result.configurations if c.name == row.name), None)
    return one is None or one.length is None or result.best_fixed(one) is one


def _positions(axes: Axes, result: Result) -> None:
    """Lines: how often a drafted token stayed, for each place in the draft, at the longest fixed length."""
    from matplotlib.ticker import MaxNLocator

    longest: dict[tuple[str, str, float], Configuration] = {}
    for one in result.configurations:
        if one.length and one.length > (longest[one.group].length or 0 if one.group in longest else 0):
            longest[one.group] = one
    for one in longest.values():
        drafted: Counter[int] = Counter()
        accepted: Counter[int] = Counter()
        for run in result.runs(one.name):
            drafted.update(dict(enumerate(run.stats.drafted_by_position, 1)))
            accepted.update(dict(enumerate(run.stats.accepted_by_position, 1)))
        places = sorted(drafted)
        axes.plot(places, [accepted[i] / drafted[i] for i in places], marker="o", label=one.name)
    axes.set_ylim(0.0, 1.05)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _labelled(axes, "accepted, by position in the draft", "position", "share of the drafts that reach it")


def _costs(axes: Axes, result: Result) -> None:
    """A line: the target's pass by rows; on it, what the adaptive schedule chose, larger where more often."""
    shape = result.shape
    if shape is None:
        return
    chosen = {one.name: _choices(result, one) for one in result.adaptive()}
    most = max([*shape.rows, *(max(counts, default=1) for counts in chosen.values())])
    sizes = range(1, most + 1)
    axes.plot(sizes, [1e3 * result.single * shape(n) for n in sizes], color="black", label="target's pass")
    for i, (name, counts) in enumerate(chosen.items()):
        rounds = sum(counts.values())
        heights = [1e3 * result.single * shape(n) * (1.0 + 0.04 * i) for n in counts]
        areas = [600 * count / rounds for count in counts.values()]
        axes.scatter(list(counts), heights, areas, alpha=0.5, label=f"{name}, larger where more often")
    axes.set_ylim(bottom=0.0)
    _labelled(axes, "cost of a pass, and the lengths the schedule chose", "rows (draft length + 1)", "ms")


def _choices(result: Result, one: Configuration) -> Counter[int]:
    """How often it verified so many rows."""
    return Counter(drafted + 1 for run in result.runs(one.name) for drafted, _ in run.rounds)


def _labelled(axes: Axes, title: str, x: str, y: str) -> None:
    from matplotlib.collections import PathCollection

    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if axes.get_legend_handles_labels()[0]:
        legend = axes.legend(fontsize=7)
        for handle in legend.legend_handles:
            if isinstance(handle, PathCollection):
                handle.set_sizes([40.0])
