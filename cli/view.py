"""What a person sees of a generation: the text as it streams, and a status bar below it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import NamedTuple, TextIO

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn
from rich.style import Style

from .plain import cut, encodable, neutral
from .statusbar import StatusBar, takes_escapes

DRAW_INTERVAL = 1 / 12  # seconds between two drawings of the bar
LOADING_DELAY = 0.5  # a progress bar that would be gone at once is not shown
NOTE_SECONDS = 4.0  # how long the bar shows a note in place of the statistics

PLAIN, DIM, BOLD = Style(), Style(dim=True), Style(bold=True)
GREEN, CYAN, YELLOW = Style(color="green"), Style(color="cyan"), Style(color="yellow")


class Field(NamedTuple):
    """One figure of the bar, in full and in brief."""

    importance: int  # 0 stays longest when the terminal is narrow
    before: str
    value: str
    after: str
    brief: str
    style: Style = BOLD

    def parts(self, brief: bool) -> list[tuple[str, Style]]:
        """The field's texts and how each looks."""
        if brief:
            return [(self.brief, self.style)]
        return [(self.before, DIM), (self.value, self.style), (self.after, DIM)]


@dataclass(frozen=True)
class Status:
    """The figures the bar shows; None where there is nothing to say yet."""

    tokens: int
    tokens_per_second: float
    acceptance_rate: float | None
    mean_accepted_length: float | None
    draft_length: int
    speedup: float | None  # over plain decoding, estimated

    def fields(self, times: str = "×") -> list[Field]:
        """The known figures, in the order of the bar."""
        rate = f"{self.tokens_per_second:.{0 if self.tokens_per_second >= 100 else 1}f}"
        fields = [Field(3, "", str(self.tokens), " tok", f"{self.tokens} tok")]
        fields.append(Field(0, "", rate, " tok/s", f"{rate}/s"))
        if self.acceptance_rate is not None:
            share = f"{self.acceptance_rate:.0%}"
            fields.append(Field(1, "accepted ", share, "", f"acc {share}", BOLD + GREEN))
        if self.mean_accepted_length is not None:
            mean = f"{self.mean_accepted_length:.1f}"
            fields.append(Field(4, "", mean, " tok/round", f"{mean}/round"))
            fields.append(Field(5, "draft ", str(self.draft_length), "", f"k {self.draft_length}"))
        if self.speedup is not None:
            gain = f"{self.speedup:.1f}{times}"
            fields.append(Field(2, "", gain, " plain", gain, BOLD + CYAN))
        return fields

    def line(self, width: int, *, unicode: bool = True) -> list[tuple[str, Style]]:
        """At most `width` cells: what fits in full, or in brief when that is too little."""
        fields = self.fields("×" if unicode else "x")
        separator = (" │ " if unicode else " | ", DIM)
        for brief in (False, True):
            kept = _kept(fields, width - 1, brief)
            if len(kept) >= min(3, len(fields)):
                break
        if not kept:
            return [(cut(min(fields).brief, width), PLAIN)]
        line = [(" ", PLAIN)]
        for field in kept:
            line += ([separator] if len(line) > 1 else []) + field.parts(brief)
        return line


def _kept(fields: list[Field], room: int, brief: bool) -> list[Field]:
    """The fields that have room, taken by importance, in their own order."""
    kept: list[Field] = []
    room += 3  # a separator stands before each field but the first
    for field in sorted(fields, key=lambda field: field.importance):
        cells = 3 + sum(cell_len(text) for text, _ in field.parts(brief))
        if cells <= room:
            kept.append(field)
            room -= cells
        elif not kept:
            break
    return [field for field in fields if field in kept]


class View:
    """Text to stdout, everything else to the terminal's last row or to stderr. Use it in a `with`.

    Nothing but the text ever goes to a stdout that is not a terminal.
    """

    def __init__(
        self,
        *,
        color: bool,
        quiet: bool,
        stdout: TextIO | None = None,
        stderr: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`color` marks the tokens that were drafted; `quiet` shows the text and notes alone."""
        self._stdout = stdout or sys.stdout
        self._stderr = stderr or sys.stderr
        self._clock = clock
        self._quiet = quiet
        self._to_terminal = self._stdout.isatty()
        self._styled = not os.environ.get("NO_COLOR")
        self._color = color and self._styled and takes_escapes(self._stdout)
        self._home = self._stdout if self._to_terminal else self._stderr  # of the bar
        self._bar = StatusBar(self._home) if not quiet and takes_escapes(self._home) else None
        self._unicode = encodable("│×", self._home) == "│×"
        self._status: Status | None = None
        self._stale = False  # whether the bar shows something else than it should
        self._drawn = float("-inf")
        self._notes: list[str] = []
        self._note_until = float("-inf")
        self._within_line = False
        self._progress: Progress | None = None  # while something loads visibly

    def __enter__(self) -> View:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of a terminal that is gone; it would hide the error that came first
            self.close()
            if kind:
                self.end_line()  # what is said of the error starts on a line of its own

    @contextmanager
    def loading(self, label: str) -> Iterator[Callable[[float], None]]:
        """A progress bar on stderr, fed with fractions from 0 to 1, when it takes longer than a moment."""
        if self._quiet or not takes_escapes(self._stderr) or (self._bar and self._bar.is_open):
            yield lambda fraction: None
            return
        progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            console=Console(file=self._stderr),
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        task = progress.add_task(encodable(neutral(label), self._stderr), total=1.0)
        began = self._clock()

        def report(fraction: float) -> None:
            progress.update(task, completed=fraction)
            if not self._progress and self._clock() - began >= LOADING_DELAY:
                progress.start()
                self._progress = progress

        try:
            yield report
        finally:
            if self._progress:
                self._progress = None
                progress.stop()

    def write(self, text: str, *, from_draft: bool, reasoning: bool = False) -> None:
        """The next piece of the model's text."""
        if not text:
            return
        if self._to_terminal:
            text = neutral(text)
        self._redraw(upcoming=text)
        if self._bar:
            self._bar.column.advance(text)
        self._within_line = not text.endswith("\n")
        style = DIM if reasoning and self._styled and takes_escapes(self._stdout) else PLAIN
        self._emit(self._stdout, text, style + GREEN if from_draft and self._color else style)

    def status(self, status: Status) -> None:
        """The latest figures; they are drawn now or soon."""
        self._status = status
        self._stale = True
        self._redraw()

    def refresh(self) -> None:
        """Draw the latest state without waiting for the next turn."""
        self._redraw(now=True)

    def note(self, line: str) -> None:
        """A message on stderr; on the text's own terminal it waits for the end, and the bar shows it now."""
        self._notes.append(f"specdec: {line}")
        if self._stderr.isatty() and (self._within_line or (self._bar and self._bar.is_open)):
            self._note_until = self._clock() + NOTE_SECONDS
            self._stale = True
            self._redraw()
        else:
            self._tell_notes()

    def end_line(self) -> None:
        """Start a new line on the terminal if the text has left one unfinished."""
        if self._to_terminal and self._within_line:
            self.write("\n", from_draft=False)

    def close(self) -> None:
        """Take the bar away, with the cursor right after the text, and say what had to wait."""
        if self._bar:
            self._bar.close()
            self._bar = None
        if self._notes:
            self._tell_notes()

    def summary(self, lines: Iterable[str]) -> None:
        """The closing lines, on stderr, after the bar is gone."""
        self.close()
        self.end_line()
        if self._quiet:
            return
        style = DIM if self._styled and takes_escapes(self._stderr) else PLAIN
        for line in lines:
            self._emit(self._stderr, line, style, "\n")

    def _redraw(self, *, upcoming: str = "", now: bool = False) -> None:
        """Draw the bar if it is time to and the text, of which `upcoming` is next, stays intact."""
        if not self._bar:
            return
        if self._bar.fit(upcoming if self._to_terminal else ""):
            self._stale = now = True
        due = now or self._clock() - self._drawn >= DRAW_INTERVAL
        if due and self._stale and self._bar.is_open and self._bar.may_draw(upcoming):
            self._bar.draw(self._line(self._bar.column.width))
            self._drawn, self._stale = self._clock(), False

    def _line(self, width: int) -> str:
        """What the bar shows, with its styles as escape sequences."""
        line: list[tuple[str, Style]] = []
        if self._notes and self._clock() < self._note_until:
            line = [(cut(neutral(" ".join(self._notes[-1].split())), width), YELLOW)]
        elif self._status:
            line = self._status.line(width, unicode=self._unicode)
        return "".join(style.render(text) if self._styled else text for text, style in line)

    def _tell_notes(self) -> None:
        notes, self._notes = self._notes, []
        if self._stderr.isatty():
            self.end_line()
            notes = [neutral(note) for note in notes]
        for note in notes:
            if self._progress:  # its lines are moved down
                line = encodable(note, self._stderr)
                self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
            else:
                self._emit(self._stderr, note, end="\n")

    @staticmethod
    def _emit(stream: TextIO, text: str, style: Style = PLAIN, end: str = "") -> None:
        stream.write(encodable(style.render(text), stream) + end)
        stream.flush()
