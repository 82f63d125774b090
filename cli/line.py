"""Where the turns of a conversation come from: a person at a terminal, or a script in a pipe."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO, Protocol, TextIO

from specdec.errors import UsageError

from .interrupts import interruptible
from .plain import encodable
from .statusbar import takes_escapes
from .textfile import LARGEST, decoded

PROMPT, CONTINUATION = "> ", "  "


class Lines(Protocol):
    """Gives one turn after another."""

    interactive: bool  # whether somebody is asked

    def read(self, default: str = "") -> str:
        """The next turn, without the newline at its end.

        default: what a person finds in the line, to edit it. Raises EOFError at the end (Ctrl-D) and
        KeyboardInterrupt for Ctrl-C.
        """

    def busy(self) -> AbstractContextManager[None]:
        """While this is open, what is typed ahead does not show; the next line begins with it."""


class Script:
    """A stream of UTF-8 lines, each a turn, read as they come. A backslash at a line's end joins the next."""

    interactive = False

    def __init__(self, stream: BinaryIO) -> None:
        self.line_number = 0  # of the line read last
        self._stream = stream

    def read(self, default: str = "") -> str:
        """The next turn. Raises EOFError after the last, UsageError for a line that cannot be read."""
        turn = self._line()
        while turn.endswith("\\"):
            try:
                turn = f"{turn[:-1]}\n{self._line()}"
            except EOFError:
                return turn[:-1]
        return turn

    def busy(self) -> AbstractContextManager[None]:
        return nullcontext()

    def _line(self) -> str:
        try:
            raw = self._stream.readline(LARGEST + 1)
        except OSError as error:
            raise UsageError(f"stdin: cannot read it: {error.strerror}") from error
        if not raw:
            raise EOFError
        self.line_number += 1
        source = f"stdin: line {self.line_number}"
        if len(raw) > LARGEST:
            raise UsageError(f"{source} has more than {LARGEST >> 20} MiB, which fits no context")
        line = decoded(raw, source)
        return line.removesuffix("\n").removesuffix("\r")


class DumbTerminal(Script):
    """A terminal without escape sequences: it lets a person edit a line by its own means."""

    interactive = True

    def __init__(self, stream: BinaryIO, terminal: TextIO) -> None:
        super().__init__(stream)
        self._terminal = terminal
        self._prompt = PROMPT

    def read(self, default: str = "") -> str:
        """The next turn; an empty line stands for the default, which is shown."""
        self._prompt = PROMPT
        if default:
            self._write(f"{default}\n(Enter keeps this) ")
        try:
            with interruptible():
                return super().read() or default
        except (EOFError, KeyboardInterrupt):
            self._write("\n")
            raise

    def _line(self) -> str:
        self._write(self._prompt)
        self._prompt = CONTINUATION
        return super()._line()

    def _write(self, text: str) -> None:
        self._terminal.write(encodable(text, self._terminal))
        self._terminal.flush()


def lines(
    commands: Mapping[str, str],
    complete: Callable[[str, str], Iterable[str]] | None = None,
    history: Path | None = None,
) -> Lines:
    """The turns from stdin: with an editor where it is a terminal, else as a script.

    commands: what a turn may begin with, as ``/help``, and a line that says what it does. complete: what the
    argument of a command, so far as typed, may become. history: the file that keeps the turns for the next
    session, by default in the user's state directory.
    """
    if sys.stdin is None:
        return Script(io.BytesIO())
    if not sys.stdin.isatty():
        return Script(sys.stdin.buffer)
    terminal = find_terminal()
    if not takes_escapes(terminal):
        return DumbTerminal(sys.stdin.buffer, terminal)

    from platformdirs import user_state_path

    from .editor import LineEditor

    return LineEditor(commands, complete, history or user_state_path("specdec") / "history", terminal)


def find_terminal() -> TextIO:
    """The terminal a person looks at, whatever of stdout and stderr goes elsewhere."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and stream.isatty():
            return stream
    try:
        return open("/dev/tty", "w")  # it stays open as long as the conversation
    except OSError:
        return sys.stderr
