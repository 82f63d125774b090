"""The last row of a terminal, kept for a status line while text scrolls above it.

The terminal does the work: its scroll region (DECSTBM) ends one row above the bar, so it wraps and
scrolls the text by itself, and the bar is drawn between a saved and a restored cursor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import unicodedata
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from types import FrameType
from typing import Any, NamedTuple, TextIO

from rich.cells import cell_len
from rich.console import Console

from .plain import encodable

FEWEST_ROWS = 4  # below that the bar would take too much of the screen

SAVE, RESTORE = "\x1b7", "\x1b8"
WHOLE_SCREEN = "\x1b[r"
ROOM_BELOW = "\x1bD\x1b[A"  # IND scrolls if the cursor is on the last row, and both keep its column
CLEAR_BELOW = "\x1b[B\r\x1b[J"
CLEAR_LAST_ROW = "\x1b[999;1H\x1b[2K"  # the real last row, even where a resize has not been reported yet

ZERO_WIDTH_JOINER, EMOJI_STYLE = "\u200d", "\ufe0f"
SKIN_TONES = range(0x1F3FB, 0x1F400)
FLAG_LETTERS = range(0x1F1E6, 0x1F200)


def takes_escapes(stream: TextIO) -> bool:
    """Whether `stream` is a terminal that understands escape sequences."""
    if not stream.isatty():
        return False
    if os.name == "nt":
        return not Console(file=stream).legacy_windows
    return os.environ.get("TERM", "").lower() not in ("", "dumb", "unknown")


class Habits(NamedTuple):
    """What terminals disagree about."""

    marks_take_room: bool  # spacing combining marks, as in Devanagari
    style_widens: bool  # the selector that turns a text symbol into an emoji
    emoji_join: bool  # with a joiner or a skin tone

    def cells(self, char: str, last: str) -> int:
        """The width of `char` after `last`."""
        if char == EMOJI_STYLE:
            return int(self.style_widens and cell_len(last) == 1)
        if ord(char) in SKIN_TONES:
            return 0 if self.emoji_join else 2
        if last == ZERO_WIDTH_JOINER and self.emoji_join:
            return 0
        return int(self.marks_take_room) if unicodedata.category(char) == "Mc" else cell_len(char)


class Caret(NamedTuple):
    """Where the cursor is on a terminal of certain habits."""

    habits: Habits
    column: int  # the terminal's width when the row is full and the wrap still pending
    cells: int  # since the last newline

    def after(self, char: str, last: str, width: int) -> Caret:
        """Where it is once `char` is written."""
        if char == "\t":
            stop = min(self.column // 8 * 8 + 8, width - 1)
            return self._replace(column=stop, cells=self.cells + max(0, stop - self.column))
        cells = self.habits.cells(char, last)
        column = self.column + cells
        if cells and column > width:
            column = min(cells, width)
        return Caret(self.habits, column, self.cells + cells)

    def along(self, count: int, width: int) -> Caret:
        """Where it is after `count` plain characters, in one step."""
        return Caret(self.habits, (self.column + count - 1) % width + 1, self.cells + count)


class Column:
    """The column the text's cursor stands in, as far as that can be known from here."""

    def __init__(self, width: int = 80) -> None:
        self.width = width
        self.last = "\n"
        self._carets = self._home()

    def advance(self, text: str) -> None:
        """Follow `text`, as the terminal writes it."""
        if "\n" in text:
            self.last, self._carets = "\n", self._home()
        line = text[text.rfind("\n") + 1 :]
        if len(line) > 1 and line.isascii() and "\t" not in line:
            self.advance(line[0])  # which a joiner before it may take in
            self._carets = {caret.along(len(line) - 1, self.width) for caret in self._carets}
            self.last = line[-1]
            return
        for char in line:
            self._carets = {caret.after(char, self.last, self.width) for caret in self._carets}
            self.last = char

    def resize(self, width: int) -> None:
        """Take over a new width: some terminals cut the lines, others wrap them anew."""
        if width == self.width:
            return
        self.width = width
        cut = {caret._replace(column=min(caret.column, width - 1)) for caret in self._carets}
        rewrapped = {
            caret._replace(column=(caret.cells - 1) % width + 1 if caret.cells else 0)
            for caret in self._carets
        }
        self._carets = cut | rewrapped

    def is_full(self) -> bool:
        """Whether the row is surely full: the next character wraps first."""
        return all(caret.column == self.width for caret in self._carets)

    def may_be_full(self) -> bool:
        """Whether the row is full on some terminals."""
        return any(caret.column == self.width for caret in self._carets)

    def joins(self, char: str) -> bool:
        """Whether `char` may become one with the character before it."""
        if ord(char) in FLAG_LETTERS and ord(self.last) in FLAG_LETTERS:
            return True
        return char not in "\n\t" and any(caret.habits.cells(char, self.last) == 0 for caret in self._carets)

    @staticmethod
    def _home() -> set[Caret]:
        return {Caret(Habits(*habits), 0, 0) for habits in product((False, True), repeat=3)}


class StatusBar:
    """One row at the bottom of the terminal behind `stream`; nothing where there is no room for it."""

    def __init__(self, stream: TextIO) -> None:
        self.column = Column()
        self._stream = stream
        self._size: os.terminal_size | None = None  # what the scroll region was set for; None when unset
        self._handlers: dict[int, Any] = {}
        self._stop_asked = False

    @property
    def is_open(self) -> bool:
        """Whether the scroll region is set."""
        return self._size is not None

    def fit(self, upcoming: str = "") -> bool:
        """Open the bar, or follow a change of the terminal's size. True when the bar must be drawn anew.

        `upcoming` is the text that follows on this terminal, if known.
        """
        if self._stop_asked:
            self.close()
        size, full = self._room(), self.column.is_full()
        if size == self._size or (full and not upcoming):
            return False
        self._follow(size)
        if full and self.column.is_full() and upcoming[0] != "\n":
            self._send("\r\n")  # moving the cursor has dropped the pending wrap
            self.column.advance("\n")
        return size is not None

    def may_draw(self, upcoming: str = "") -> bool:
        """Whether drawing now, with `upcoming` the text that follows if known, leaves that text intact."""
        if self.column.may_be_full():  # tmux, Linux and others forget a pending wrap on DECRC
            return False
        if upcoming:  # xterm adds a combining mark to the character drawn last, which would be the bar's
            return not self.column.joins(upcoming[0])
        return self.column.last.isascii()  # what follows is seldom a combining mark then

    def draw(self, line: str) -> None:
        """Show `line`, which must not be wider than the terminal."""
        if self._size:
            self._send(SAVE + CLEAR_LAST_ROW + line + RESTORE)

    def close(self) -> None:
        """Give the row back, with the cursor right after the text. Closing twice does no harm."""
        with suppress(OSError):  # the terminal may be gone
            if self._size and self._room() != self._size:
                self._follow(self._room())
            if self._size:
                self._send(SAVE + WHOLE_SCREEN + CLEAR_LAST_ROW + RESTORE)
        self._size = None
        self._release_signals()
        if self._stop_asked:
            self._stop_asked = False
            signal.raise_signal(signal.SIGTSTP)
            self.column = Column(self.column.width)  # the shell has left the cursor on a row of its own

    def _follow(self, size: os.terminal_size | None) -> None:
        """Move the scroll region, and with it the bar, to a terminal of `size`; None takes them away."""
        sequence = ""
        if self._size:  # the resize may have left the old bar anywhere below the cursor, where no text is
            sequence = SAVE + WHOLE_SCREEN + RESTORE + ROOM_BELOW + SAVE + CLEAR_BELOW + RESTORE
        else:
            self._watch_signals()
        if size:  # setting the region moves the cursor home
            self.column.resize(size.columns)
            sequence += ROOM_BELOW + SAVE + f"\x1b[1;{size.lines - 1}r" + RESTORE
        self._size = size or self._size  # before the write: close() undoes it even if that is interrupted
        self._send(sequence)
        if not size:
            self._size = None
            self._release_signals()

    def _room(self) -> os.terminal_size | None:
        """The terminal's size, if it has room for a bar."""
        try:
            size = os.get_terminal_size(self._stream.fileno())
        except (OSError, ValueError):
            return None
        return size if size.lines >= FEWEST_ROWS and size.columns > 0 else None

    def _send(self, sequence: str) -> None:
        self._stream.write(encodable(sequence, self._stream))
        self._stream.flush()

    def _watch_signals(self) -> None:
        """While the region is set, the signals that end or stop the process must not leave it behind."""
        if threading.current_thread() is not threading.main_thread():
            return
        answers: dict[str, Callable[[int, FrameType | None], None]]
        answers = {"SIGTSTP": self._ask_stop, "SIGTERM": _leave, "SIGHUP": _leave}
        for name, answer in answers.items():
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) == signal.SIG_DFL:
                self._handlers[number] = signal.signal(number, answer)

    def _release_signals(self) -> None:
        while self._handlers:
            signal.signal(*self._handlers.popitem())

    def _ask_stop(self, number: int, frame: FrameType | None) -> None:
        self._stop_asked = True  # the next fit() does it: a handler must not write into a half-done write


def _leave(number: int, frame: FrameType | None) -> None:
    """End as the signal would, but through every `finally` on the way."""
    sys.exit(128 + number)
