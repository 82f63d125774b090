"""The live view, on a pseudo-terminal whose screen is drawn by pyte."""

from __future__ import annotations

import io
import os
import random
import select
import signal
import struct
import subprocess
import sys
import textwrap
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TextIO

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

import fcntl
import termios

import pyte
from rich.cells import cell_len
from screen import Screen
from specdec.cli.statusbar import Column
from specdec.cli.view import LOADING_DELAY, NOTE_SECONDS, Status, View

FULL = Status(128, 37.4, 0.86, 4.4, 8, 2.3)
LETTERS = "abcdefghijklmnopqrstuvwxyz .,"
WIDE = "ab 日本語の文章🙂🚀"
MARKED = ["a", "b", " ", "e\u0301", "n\u0303", "日", "🙂", "\t"]


class Terminal:
    """A pseudo-terminal, what was written to it, and the screen it shows."""

    def __init__(
        self, columns: int = 60, lines: int = 12, *, keeps_wrap: bool = True, encoding: str = "utf-8"
    ):
        self.master, self.slave = os.openpty()
        self.screen = Screen(columns, lines, keeps_wrap=keeps_wrap)
        self._parser = pyte.Stream(self.screen)
        self.resize(columns, lines)
        self.raw = ""
        self.out = open(self.slave, "w", encoding=encoding, closefd=False)  # noqa: SIM115

    def resize(self, columns: int, lines: int) -> None:
        if (columns, lines) != (self.screen.columns, self.screen.lines):
            self.settle()
            self.screen.resize(lines, columns)
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def settle(self) -> str:
        """Take in what was written; returns it."""
        os.write(self.slave, b"\0")  # marks the end: the kernel hands over in order, but not at once
        data = b""
        while b"\0" not in data:
            data += os.read(self.master, 65536)
        return self._take(data.replace(b"\0", b""))

    def wait_for(self, text: str, seconds: float = 5.0) -> None:
        """Take in what another process writes until `text` is there."""
        end, data = time.monotonic() + seconds, b""
        while text not in self.raw + data.decode("utf-8", "ignore"):
            assert time.monotonic() < end, f"{text!r} not in {self.raw + data.decode('utf-8', 'ignore')!r}"
            if select.select([self.master], [], [], 0.05)[0]:
                data += os.read(self.master, 65536)
        self._take(data)

    def _take(self, data: bytes) -> str:
        text = data.decode(self.out.encoding)
        self.raw += text
        self._parser.feed(text)
        return text

    @property
    def bar(self) -> str:
        """What the last row shows."""
        return self.screen.row(self.screen.lines - 1)

    def close(self) -> None:
        self.out.close()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def make(*args: Any, **kwargs: Any) -> Terminal:
        made.append(Terminal(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


class Clock:
    def __init__(self, step: float = 0.0) -> None:
        self.now, self.step = 0.0, step

    def __call__(self) -> float:
        self.now += self.step
        return self.now


def view_on(
    terminal: Terminal,
    *,
    clock: Callable[[], float] | None = None,
    stdout: TextIO | None = None,
    color: bool = False,
    quiet: bool = False,
) -> View:
    """A view on the terminal that may draw at every turn, unless a clock is given."""
    clock = clock or Clock(step=1.0)
    return View(color=color, quiet=quiet, stdout=stdout or terminal.out, stderr=terminal.out, clock=clock)


def shown_without_bar(text: str, columns: int, lines: int) -> Screen:
    screen = Screen(columns, lines)
    pyte.Stream(screen).feed(text.replace("\n", "\r\n"))
    return screen


def pieces(alphabet: Any, count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    made = ["".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(count)]
    return [piece + "\n" * (rng.random() < 0.06) for piece in made]


def occurrences(screen: Screen, what: str) -> list[int]:
    return [y for y, row in enumerate(screen.rows()) if what in row]


# --- the text stays as it would be without a bar


@pytest.mark.parametrize("keeps_wrap", [True, False], ids=["xterm", "tmux"])
@pytest.mark.parametrize("alphabet", [LETTERS, WIDE, MARKED], ids=["letters", "wide", "marks"])
@pytest.mark.parametrize("columns", [10, 23, 60, 200])
def test_text_scrolls_undisturbed(
    terminal: Callable[..., Terminal], columns: int, alphabet: Any, keeps_wrap: bool
) -> None:
    tty = terminal(columns, 6, keeps_wrap=keeps_wrap)
    text = pieces(alphabet, 100 + columns // 4, seed=columns)
    with view_on(tty) as view:
        for number, piece in enumerate(text):
            view.write(piece, from_draft=False)
            view.status(FULL)
            if number % 10 == 0:
                tty.settle()
                assert tty.screen.margins == (0, 4)
                assert occurrences(tty.screen, "37.4") == ([5] if tty.bar else [])
        assert "37.4" in tty.bar
        tty.settle()
        reference = shown_without_bar("".join(text), columns, 5)
        assert tty.screen.transcript(5) == reference.transcript()
        assert (tty.screen.cursor.x, tty.screen.cursor.y) == (reference.cursor.x, reference.cursor.y)
        view.refresh()
    tty.settle()
    assert tty.screen.transcript() == reference.transcript()
    assert tty.screen.margins is None
    assert tty.bar == ""


@pytest.mark.parametrize("keeps_wrap", [True, False], ids=["xterm", "tmux"])
@pytest.mark.parametrize("line", ["x" * 60, "日" * 30, "x" * 59 + "日", "e\u0301" * 60, "x" * 120])
def test_lines_that_fill_the_row(terminal: Callable[..., Terminal], line: str, keeps_wrap: bool) -> None:
    """The wrap that is pending after the last column survives, whatever follows."""
    tty = terminal(60, 8, keeps_wrap=keeps_wrap)
    text = [line, "then", "\n", line, "\n", line, "\t", "\n", line, "日", "\n", line]
    with view_on(tty) as view:
        for piece in text:
            view.write(piece, from_draft=False)
            view.status(FULL)
            view.refresh()
    tty.settle()
    assert tty.screen.transcript() == shown_without_bar("".join(text), 60, 7).transcript()


def test_first_line_below_a_full_screen(terminal: Callable[..., Terminal]) -> None:
    """On the last row the screen moves up by one, and the column stays."""
    tty = terminal(40, 5)
    tty.out.write("one\ntwo\nthree\nfour\n$ go: ")
    tty.out.flush()
    with view_on(tty) as view:
        view.write("text", from_draft=False)
        view.status(FULL)
        tty.settle()
        assert tty.screen.rows()[:4] == ["two", "three", "four", "$ go: text"]
        assert tty.bar == " 37.4 tok/s │ accepted 86% │ 2.3× plain"
    tty.settle()
    assert tty.screen.rows() == ["two", "three", "four", "$ go: text", ""]
    assert (tty.screen.cursor.x, tty.screen.cursor.y) == (10, 3)


def test_marks_stay_with_their_character(terminal: Callable[..., Terminal]) -> None:
    """Nothing is drawn between a character and what may join it in the next piece."""
    tty = terminal(60, 6)
    with view_on(tty) as view:
        view.write("start ", from_draft=False)
        for start, rest in [
            ("é", "\u0301"), ("👩", "\u200d"), ("\u200d", "👧"), ("❤", "\ufe0f"),
            ("👍", "\U0001f3fd"), ("\U0001f1eb", "\U0001f1f7"), ("न", "\u093e"),
        ]:  # fmt: skip
            view.write(start, from_draft=False)
            tty.settle()
            view.status(FULL)
            view.write(rest, from_draft=False)
            assert tty.settle() == rest
            view.write(" ", from_draft=False)
            view.write(" ", from_draft=False)
            assert "37.4" in tty.settle()


# --- a resize


@pytest.mark.parametrize("keeps_wrap", [True, False], ids=["xterm", "tmux"])
@pytest.mark.parametrize("alphabet", [LETTERS, WIDE], ids=["letters", "wide"])
def test_height_changes_under_way(terminal: Callable[..., Terminal], alphabet: str, keeps_wrap: bool) -> None:
    tty = terminal(60, 10, keeps_wrap=keeps_wrap)
    rng = random.Random(len(alphabet))
    text = pieces(alphabet, 210, seed=5)
    with view_on(tty) as view:
        for number, piece in enumerate(text):
            if number % 7 == 3:
                tty.resize(60, rng.choice([4, 5, 9, 10, 11, 17, 30, 40]))
            view.write(piece, from_draft=False)
            view.status(FULL)
            if number % 7 == 6:
                view.refresh()
                tty.settle()
                assert tty.screen.margins == (0, tty.screen.lines - 2)
                assert occurrences(tty.screen, "37.4") in ([], [tty.screen.lines - 1])
                assert not any("37.4" in row for row in tty.screen.transcript(tty.screen.lines - 1))
    tty.settle()
    rows = "".join(row for row in tty.screen.transcript()).replace(" ", "")
    assert rows == "".join(text).replace("\n", "").replace(" ", "")
    assert tty.screen.margins is None


def test_width_changes_under_way(terminal: Callable[..., Terminal]) -> None:
    """What is cut off is the terminal's doing; the rest is as without a bar, which is drawn once and fits."""
    tty = terminal(60, 10)
    rng = random.Random(3)
    with view_on(tty) as view:
        for number in range(100):
            if number % 10 == 5:
                tty.resize(rng.randint(20, 200), rng.choice([6, 10, 20]))
            view.write(f"line {number}\n", from_draft=False)
            view.status(FULL)
            tty.settle()
            assert "37.4" in tty.bar
            assert cell_len(tty.bar) <= tty.screen.columns
            assert occurrences(tty.screen, "37.4") == [tty.screen.lines - 1]
    tty.settle()
    assert tty.screen.transcript() == [f"line {number}" for number in range(100)]


def test_resize_that_keeps_the_region(terminal: Callable[..., Terminal]) -> None:
    tty = terminal(60, 8)
    tty.screen.keeps_region = True
    with view_on(tty) as view:
        for number in range(60):
            tty.resize(60, 12 if 20 <= number < 40 else 8)
            view.write(f"line {number}\n", from_draft=False)
            view.status(FULL)
            tty.settle()
            assert tty.screen.margins == (0, tty.screen.lines - 2)
            assert occurrences(tty.screen, "37.4") == [tty.screen.lines - 1]
    tty.settle()
    assert tty.screen.transcript() == [f"line {number}" for number in range(60)]


@pytest.mark.parametrize("lines", [6, 14])
def test_resize_while_a_wrap_is_pending(terminal: Callable[..., Terminal], lines: int) -> None:
    tty = terminal(60, 10, keeps_wrap=False)
    with view_on(tty) as view:
        view.write("first\n" * 20, from_draft=False)
        view.status(FULL)
        view.write("x" * 60, from_draft=False)
        tty.resize(60, lines)
        view.status(FULL)
        view.write("next", from_draft=False)
        view.status(FULL)
    tty.settle()
    assert tty.screen.transcript()[20:] == ["x" * 60, "next"]


def test_bar_waits_where_the_new_width_may_be_full(terminal: Callable[..., Terminal]) -> None:
    """After a resize a terminal may have wrapped the line anew or not; the bar allows for both."""
    tty = terminal(60, 10)
    with view_on(tty) as view:
        view.write("x" * 50, from_draft=False)
        view.status(FULL)
        tty.resize(40, 10)
        view.status(FULL)
        view.write("x" * 30, from_draft=False)
        tty.settle()
        view.status(FULL)
        assert tty.settle() == ""
        view.write("x", from_draft=False)
        view.status(FULL)
        assert "37.4" in tty.settle()


def test_terminal_grows_and_shrinks_past_the_bar(terminal: Callable[..., Terminal]) -> None:
    tty = terminal(60, 3)
    with view_on(tty) as view:
        view.write("one\n", from_draft=False)
        view.status(FULL)
        assert "\x1b" not in tty.settle()
        tty.resize(60, 8)
        view.write("two\n", from_draft=False)
        view.status(FULL)
        tty.settle()
        assert occurrences(tty.screen, "37.4") == [7]
        tty.resize(60, 3)
        view.write("three\n", from_draft=False)
        tty.settle()
        assert tty.screen.margins is None
        view.status(FULL)
        view.write("four\n", from_draft=False)
        assert "\x1b" not in tty.settle()
        assert occurrences(tty.screen, "37.4") == []
    assert "\x1b" not in tty.settle()
    assert tty.screen.transcript() == ["one", "two", "three", "four"]


def test_resize_just_before_the_end(terminal: Callable[..., Terminal]) -> None:
    for lines in (5, 30, 3):
        tty = terminal(60, 10)
        with view_on(tty) as view:
            view.write("\n".join(f"line {n}" for n in range(20)), from_draft=False)
            view.status(FULL)
            tty.resize(60, lines)
        tty.settle()
        assert tty.screen.transcript() == [f"line {n}" for n in range(20)]
        assert tty.screen.margins is None
        tty.out.write("!")
        tty.out.flush()
        tty.settle()
        assert tty.screen.transcript()[-1] == "line 19!"


# --- what the bar says


@pytest.mark.parametrize(
    ("width", "line"),
    [
        (200, " 128 tok │ 37.4 tok/s │ accepted 86% │ 4.4 tok/round │ draft 8 │ 2.3× plain"),
        (75, " 128 tok │ 37.4 tok/s │ accepted 86% │ 4.4 tok/round │ draft 8 │ 2.3× plain"),
        (74, " 128 tok │ 37.4 tok/s │ accepted 86% │ 4.4 tok/round │ 2.3× plain"),
        (60, " 128 tok │ 37.4 tok/s │ accepted 86% │ draft 8 │ 2.3× plain"),
        (50, " 128 tok │ 37.4 tok/s │ accepted 86% │ 2.3× plain"),
        (40, " 37.4 tok/s │ accepted 86% │ 2.3× plain"),
        (30, " 37.4/s │ acc 86% │ k 8 │ 2.3×"),
        (20, " 37.4/s │ acc 86%"),
        (10, " 37.4/s"),
        (5, "37.4/"),
    ],
)
def test_bar_adapts_to_the_width(width: int, line: str) -> None:
    assert "".join(text for text, _ in FULL.line(width)) == line


@pytest.mark.parametrize("unicode", [True, False])
def test_bar_never_wraps(unicode: bool) -> None:
    long = Status(123456, 98765.4, 1.0, 17.0, 16, 12.3)
    for status in (FULL, long, Status(0, 0.0, None, None, 0, None), Status(7, 99.96, 0.0, None, 4, 0.97)):
        for width in range(1, 201):
            line = "".join(text for text, _ in status.line(width, unicode=unicode))
            assert 0 < cell_len(line) <= width
            assert unicode or line.isascii()


def test_bar_without_a_drafter() -> None:
    assert (
        "".join(text for text, _ in Status(12, 123.4, None, None, 0, None).line(60)) == " 12 tok │ 123 tok/s"
    )


def test_redraws_are_limited_and_the_last_state_comes(terminal: Callable[..., Terminal]) -> None:
    tty, clock = terminal(), Clock()
    with view_on(tty, clock=clock) as view:
        for tokens in range(100):
            clock.now += 0.01
            view.write("a ", from_draft=False)
            view.status(Status(tokens, 37.4, 0.86, 4.4, 8, 2.3))
            tty.settle()
        assert 10 <= tty.raw.count("tok/s") <= 13
        view.refresh()
        tty.settle()
        assert tty.bar.startswith(" 99 tok ")
        view.refresh()
        assert tty.settle() == ""


def test_no_color_is_plain(terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    tty = terminal()
    with view_on(tty, color=True) as view:
        view.write("drafted", from_draft=True)
        view.status(FULL)
        tty.settle()
        assert "accepted 86%" in tty.bar
        view.summary(["done"])
    assert "m" not in tty.settle().replace("done", "").replace("drafted", "")
    assert "\x1b[3" not in tty.raw
    assert "\x1b[0m" not in tty.raw


def test_bar_in_an_ascii_terminal(terminal: Callable[..., Terminal]) -> None:
    tty = terminal(encoding="ascii")
    with view_on(tty) as view:
        view.write("naïve 日本 ok ", from_draft=False)
        view.status(FULL)
        tty.settle()
        assert tty.screen.row(0).startswith("na?ve ?? ok")
        assert tty.bar == " 128 tok | 37.4 tok/s | accepted 86% | draft 8 | 2.3x plain"
        view.note("a naïve note")
        view.refresh()
        tty.settle()
        assert tty.bar == "specdec: a na?ve note"


# --- the text


def test_color_marks_drafted_pieces(terminal: Callable[..., Terminal]) -> None:
    tty = terminal()
    with view_on(tty, color=True, quiet=True) as view:
        for piece, from_draft in [("one", False), ("two", True), ("three\n", True), ("four", False)]:
            view.write(piece, from_draft=from_draft)
    assert tty.settle() == "one\x1b[32mtwo\x1b[0m\x1b[32mthree\r\n\x1b[0mfour"
    cells = tty.screen.buffer[0]
    assert [cells[x].fg for x in (2, 3, 10)] == ["default", "green", "green"]


def test_control_characters_are_neutralised(terminal: Callable[..., Terminal]) -> None:
    tty = terminal()
    controls = "".join(chr(code) for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t")
    with view_on(tty, quiet=True) as view:
        view.write(f"a{controls}b\x1b[2J\x9b2J\x1b]0;title\x07\r\nc\td\u200d", from_draft=False)
        view.note("evil \x1b[2J file")
    written = tty.settle().replace("\r\n", "\n")
    assert written.count("\ufffd") == len(controls) + 5
    assert {char for char in written if unicodedata.category(char) == "Cc"} == {"\n", "\t"}


def test_pipe_gets_the_text_untouched(tmp_path: Path) -> None:
    text = "tab\there\r\n\x1b[31mred\x07 日本語 🙂\u200d e\u0301 \x85 end"
    path = tmp_path / "out"
    with path.open("w", encoding="utf-8", newline="") as out, io.StringIO() as err:
        with View(color=True, quiet=False, stdout=out, stderr=err) as view:
            with view.loading("loading") as report:
                report(0.5)
            for char in text:
                view.write(char, from_draft=True)
                view.status(FULL)
            view.note("a note")
        view.summary(["one", "two"])
        assert err.getvalue() == "specdec: a note\none\ntwo\n"
    assert path.read_bytes() == text.encode()


def test_pipe_without_the_characters(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with path.open("w", encoding="ascii", newline="") as out:
        View(color=False, quiet=False, stdout=out, stderr=out).write("naïve\r\n", from_draft=False)
    assert path.read_bytes() == b"na?ve\r\n"


def test_bar_on_stderr_when_stdout_is_a_pipe(terminal: Callable[..., Terminal], tmp_path: Path) -> None:
    tty, path = terminal(60, 8), tmp_path / "out"
    with path.open("w", encoding="utf-8", newline="") as out, view_on(tty, stdout=out, color=True) as view:
        for _ in range(50):
            view.write("some text\n", from_draft=True)
            view.status(FULL)
            tty.settle()
            assert occurrences(tty.screen, "37.4") == [7]
        view.summary(["done"])
    assert path.read_text(encoding="utf-8") == "some text\n" * 50
    tty.settle()
    assert tty.screen.transcript() == ["done"]
    assert tty.screen.margins is None


@pytest.mark.parametrize("term", ["dumb", "unknown", ""])
def test_no_escapes_on_a_dumb_terminal(
    terminal: Callable[..., Terminal], monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    monkeypatch.setenv("TERM", term)
    tty, clock = terminal(), Clock()
    with view_on(tty, color=True, clock=clock) as view:
        with view.loading("loading") as report:
            clock.now += 60
            report(0.5)
        view.write("text", from_draft=True)
        view.status(FULL)
        view.note("a note")
    view.summary(["done"])
    assert tty.settle() == "text\r\nspecdec: a note\r\ndone\r\n"


def test_quiet_leaves_the_text_alone(terminal: Callable[..., Terminal]) -> None:
    tty, clock = terminal(), Clock()
    with view_on(tty, quiet=True, clock=clock) as view:
        with view.loading("loading") as report:
            clock.now += 60
            report(0.5)
        view.write("text", from_draft=True)
        view.status(FULL)
        assert tty.settle() == "text"
        view.summary(["done"])
    assert tty.settle() == "\r\n"


# --- notes, loading, summary


def test_note_shows_in_the_bar_and_waits_for_the_end(terminal: Callable[..., Terminal]) -> None:
    tty, clock = terminal(60, 8), Clock()
    with view_on(tty, clock=clock) as view:
        view.note("before the text")
        view.write("A sentence that ", from_draft=False)
        view.status(FULL)
        clock.now += 1
        view.note("the drafter's context is full,\nso that this is decoded plainly from here on")
        tty.settle()
        assert tty.bar == "specdec: the drafter's context is full, so that this is deco"
        clock.now += NOTE_SECONDS
        view.write("goes on.", from_draft=False)
        view.status(FULL)
        tty.settle()
        assert "37.4" in tty.bar
    view.summary(["done"])
    tty.settle()
    assert tty.screen.transcript()[:3] == [
        "specdec: before the text",
        "A sentence that goes on.",
        "specdec: the drafter's context is full,",
    ]
    assert tty.screen.transcript()[-1] == "done"


def test_summary_starts_on_its_own_line(terminal: Callable[..., Terminal]) -> None:
    for text in ("text", "text\n", "x" * 60):
        tty = terminal()
        with view_on(tty) as view:
            view.write(text, from_draft=False)
            view.status(FULL)
            view.summary(["done", "and dusted"])
        view.close()
        tty.settle()
        assert tty.screen.transcript() == [text.rstrip(), "done", "and dusted"]


def test_loading_appears_only_when_it_takes_long(terminal: Callable[..., Terminal]) -> None:
    tty, clock = terminal(), Clock()
    with view_on(tty, clock=clock) as view:
        with view.loading("a quick one") as report:
            for step in range(10):
                clock.now += LOADING_DELAY / 11
                report(step / 10)
        assert tty.settle() == ""
        with view.loading("the models") as report:
            clock.now += 2 * LOADING_DELAY
            report(0.25)
            view.note("meanwhile")
        shown = tty.settle()
        assert "the models" in shown
        assert "25%" in shown
        view.write("text", from_draft=False)
        view.status(FULL)
    tty.settle()
    assert tty.screen.transcript() == ["specdec: meanwhile", "text"]
    assert not tty.screen.cursor.hidden


# --- the end, whatever it is


def test_close_is_idempotent(terminal: Callable[..., Terminal]) -> None:
    tty = terminal()
    with view_on(tty) as view:
        view.write("text", from_draft=False)
        view.status(FULL)
        view.close()
        tty.settle()
        view.close()
    assert tty.settle() == ""


def test_nothing_written_nothing_drawn(terminal: Callable[..., Terminal]) -> None:
    tty = terminal()
    with view_on(tty) as view:
        view.write("", from_draft=False)
    assert tty.settle() == ""


def test_broken_pipe_reaches_the_caller(terminal: Callable[..., Terminal]) -> None:
    tty = terminal(60, 8)
    reader, writer = os.pipe()
    out = open(writer, "w")  # noqa: SIM115

    def generate() -> None:
        with view_on(tty, stdout=out) as view:
            view.write("one", from_draft=False)
            view.status(FULL)
            os.close(reader)
            view.write("two", from_draft=False)

    with pytest.raises(BrokenPipeError):
        generate()
    tty.settle()
    assert tty.screen.margins is None
    assert tty.bar == ""
    with pytest.raises(BrokenPipeError):
        out.close()


def test_error_starts_on_its_own_line(terminal: Callable[..., Terminal]) -> None:
    tty = terminal()

    def generate() -> None:
        with view_on(tty) as view:
            view.write("text", from_draft=False)
            view.status(FULL)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        generate()
    tty.out.write("specdec: an error")
    tty.out.flush()
    tty.settle()
    assert tty.screen.transcript() == ["text", "specdec: an error"]
    assert tty.screen.margins is None


CHILD = """
import sys, time
from specdec.cli.view import Status, View
with View(color=False, quiet=False) as view:
    for number in range(400):
        view.write(f"word{number} ", from_draft=False)
        view.status(Status(number, 37.4, 0.86, 4.4, 8, 2.3))
        time.sleep(0.02)
"""


ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def _own_signals() -> None:
    os.setpgrp()  # a stop reaches only a process in a group with a parent outside
    for number in (*ENDINGS, signal.SIGTSTP):
        signal.signal(number, signal.SIG_DFL)  # nohup and background jobs ignore some


@pytest.fixture
def child(
    terminal: Callable[..., Terminal], tmp_path: Path
) -> Iterator[tuple[Terminal, subprocess.Popen[bytes]]]:
    """A generation in a process of its own, whose bar is up."""
    tty = terminal(60, 8)
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(CHILD)],
        stdout=tty.slave,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,  # not a checkout, whose specdec/ would be found first
        preexec_fn=_own_signals,
    )
    tty.wait_for("tok/s")
    yield tty, process
    process.kill()
    process.wait()


@pytest.mark.parametrize("number", ENDINGS)
def test_signals_leave_a_clean_terminal(
    child: tuple[Terminal, subprocess.Popen[bytes]], number: signal.Signals
) -> None:
    tty, process = child
    assert tty.screen.margins == (0, 6)
    process.send_signal(number)
    code = process.wait(timeout=5)
    assert code == (-2 if number == signal.SIGINT else 128 + number)
    tty.settle()
    assert tty.screen.margins is None
    assert tty.bar == ""
    assert occurrences(tty.screen, "37.4") == []


def test_stop_and_continue(child: tuple[Terminal, subprocess.Popen[bytes]]) -> None:
    """Ctrl-Z hands the shell a whole screen; the bar is back with the process."""
    tty, process = child
    process.send_signal(signal.SIGTSTP)
    end, status = time.monotonic() + 5, 0
    while not os.WIFSTOPPED(status):
        assert time.monotonic() < end
        tty.settle()
        _, status = os.waitpid(process.pid, os.WUNTRACED | os.WNOHANG)
    tty.settle()
    assert tty.screen.margins is None
    assert tty.bar == ""
    before = len(tty.raw)
    process.send_signal(signal.SIGCONT)
    tty.raw = tty.raw[before:]
    tty.wait_for("tok/s")
    assert tty.screen.margins == (0, 6)


# --- the column


@pytest.mark.parametrize(
    ("text", "width", "full"),
    [
        ("x" * 10, 10, True),
        ("x" * 11, 10, False),
        ("x" * 20, 10, True),
        ("日" * 5, 10, True),
        ("x" * 9 + "日" * 5, 10, True),  # the first one wraps and leaves a cell
        ("x" * 10 + "\u0301", 10, True),
        ("x" * 10 + "\n", 10, False),
        ("\n" + "x" * 10, 10, True),
        ("\t" + "xx", 10, True),
        ("\t\t", 10, False),
    ],
)
def test_column_knows_a_full_row(text: str, width: int, full: bool) -> None:
    for parts in ([text], list(text), [text[:4], text[4:]]):
        column = Column(width)
        for part in parts:
            column.advance(part)
        assert column.is_full() == column.may_be_full() == full


@pytest.mark.parametrize(
    "text", ["xxxxxx👩\u200d👧", "xxxxxxxx👩\u200d👧", "xxxxxxxx❤\ufe0f", "xxxxxxxxx❤\ufe0f"]
)
def test_column_allows_for_both_widths(text: str) -> None:
    column = Column(10)
    column.advance(text)
    assert column.may_be_full()
    assert not column.is_full()


@pytest.mark.parametrize(
    ("count", "width", "more"),
    [
        (15, 12, 9),  # wrapped anew: 3 cells in the second row
        (15, 12, 7),  # cut: the cursor stays in column 5
        (25, 30, 5),  # wrapped anew: a single row
        (15, 3, 0),
        (15, 15, 0),
    ],
)
def test_column_allows_for_both_ways_to_resize(count: int, width: int, more: int) -> None:
    column = Column(10)
    column.advance("x" * count)
    column.resize(width)
    column.advance("x" * more)
    assert column.may_be_full()


def test_column_stays_narrow_in_long_lines() -> None:
    column = Column(60)
    column.advance("❤\ufe0f 👩\u200d👧 ना 👍\U0001f3fd " * 200)
    full = 0
    for _ in range(60):
        column.advance("x")
        full += column.may_be_full()
    assert full <= 8
