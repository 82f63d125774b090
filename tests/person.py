"""Somebody at a terminal, who types and looks at the screen."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pexpect
import pyte
from screen import Screen

PATIENCE = 60  # seconds; the machine may be busy
SETTLED = 0.2  # seconds after which nothing more comes from a process that is stopped
ROWS = 20

UP, ALT_ENTER, BACKSPACE = "\x1b[A", "\x1b\r", "\x7f"
CTRL_C, CTRL_D, CTRL_J = "\x03", "\x04", "\n"
BRACKETED_PASTE = 2004 << 5  # as pyte counts the modes of a terminal


class Person:
    """Runs a program in a terminal of its own."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: dict[str, str],
        cwd: Path,
        columns: int = 60,
    ) -> None:
        self.raw = ""  # what the terminal was sent
        self.terminal = Screen(columns, ROWS)
        self._parser = pyte.Stream(self.terminal)
        self.process = pexpect.spawn(
            command[0],
            list(command[1:]),
            dimensions=(ROWS, columns),
            env=env,
            cwd=str(cwd),
            timeout=PATIENCE,
            encoding="utf-8",
        )
        self.process.logfile_read = self
        self.process.delaybeforesend = None

    def write(self, text: str) -> None:
        self.raw += text
        self._parser.feed(text)

    def flush(self) -> None:
        pass

    def sees(self, pattern: object) -> str:
        """Waits until the terminal is sent it; returns what came before."""
        self.process.expect(pattern)
        return str(self.process.before)

    def types(self, text: str) -> None:
        self.process.send(text)

    def pastes(self, text: str) -> None:
        self.process.send(f"\x1b[200~{text}\x1b[201~")

    def screen(self) -> list[str]:
        """All rows so far, those that have left the screen too, without the blank ones at the end."""
        return self.terminal.transcript()

    def screen_at(self, text: str) -> Screen:
        """The screen as it was when the terminal had been sent a text for the first time."""
        screen = Screen(self.terminal.columns, ROWS)
        pyte.Stream(screen).feed(self.raw[: self.raw.index(text) + len(text)])
        return screen

    def shows(self, row: str) -> None:
        """Waits until there is such a row."""
        while row not in self.screen():
            self.sees(".")

    def resizes(self, columns: int) -> None:
        """Makes the terminal wider or narrower; what was written before is on the screen by then."""
        self.process.kill(signal.SIGSTOP)
        self.process.expect(pexpect.TIMEOUT, timeout=SETTLED)
        self.sees(r"[\s\S]*")  # what comes next is drawn for the new size
        self.terminal.resize(ROWS, columns)
        self.process.setwinsize(ROWS, columns)
        self.process.kill(signal.SIGCONT)

    def waits(self) -> int:
        """Until the program has ended; its exit code, negative for a signal that killed it."""
        self.sees(pexpect.EOF)
        self.process.wait()
        return self._code()

    def hangs_up(self) -> int:
        """Closes the terminal's window, and returns what :meth:`waits` does."""
        self.process.ptyproc.fileobj.close()
        end = time.monotonic() + PATIENCE
        while self.process.isalive():
            assert time.monotonic() < end, "the program lives on without its terminal"
            time.sleep(0.02)
        return self._code()

    def goes(self) -> None:
        """Ends the program, whatever it does."""
        if self.process.ptyproc.fileobj.closed:
            self.process.ptyproc.closed = True
            if self.process.isalive():
                os.kill(self.process.pid, signal.SIGKILL)
        self.process.close(force=True)

    def _code(self) -> int:
        killed = self.process.signalstatus
        return int(self.process.exitstatus) if killed is None else -int(killed)
