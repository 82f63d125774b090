"""Signals while llama.cpp is busy: the work is stopped at once, and nothing is lost on the way out."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specdec.backend import Abort
from specdec.errors import AbortedError

PATIENCE = 1.0  # seconds after which another Ctrl-C need not wait for a pass
ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Signals:
    """What a signal does: it sets ``abort``, and raises KeyboardInterrupt where no C code is at work.

    at_passes: Ctrl-C sets ``abort`` alone, and only another one, a moment later, raises. raising: not while
    the handlers are put in place or taken away.
    """

    def __init__(self, abort: Abort, *, at_passes: bool = False) -> None:
        self.abort = abort
        self.raising = False
        self._at_passes = at_passes
        self._received: int | None = None
        self._since = 0.0  # when the first signal was received

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The handler."""
        now = time.monotonic()
        self._since = now if self._received is None else self._since
        if self._received in (None, signal.SIGINT):  # no Ctrl-C takes an end back
            self._received = number
        self.abort.set()
        waits = self._at_passes and number == signal.SIGINT and now - self._since < PATIENCE
        if self.raising and not self.abort.busy and not waits:
            raise KeyboardInterrupt

    def leave(self) -> None:
        """Raises what the signal that was received stands for; nothing when there was none."""
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            raise SystemExit(128 + self._received)

    def watch(self, wakeups: socket.socket) -> None:
        """Sets ``abort`` as soon as a signal comes, until the socket is closed."""
        while numbers := wakeups.recv(64):
            if not set(ENDING).isdisjoint(numbers):
                self.abort.set()


@contextmanager
def interruptible(abort: Abort | None = None, *, at_passes: bool = False) -> Iterator[Signals]:
    """Ctrl-C, SIGTERM and SIGHUP end the block promptly, also while llama.cpp computes.

    Python runs its handlers only between bytecodes, so not while C computes; but it notes each signal on
    the wakeup descriptor at once, and a thread that reads it sets the abort. Inside the block that shows as
    KeyboardInterrupt or AbortedError; it may catch them and finish its output. At its end the signal takes
    effect: KeyboardInterrupt, or SystemExit for SIGTERM and SIGHUP.

    abort: the flag to set, cleared first; by default one of its own. at_passes: Ctrl-C shows where the next
    pass begins and nowhere else, so that what is done between two passes is done whole.
    """
    signals = Signals(abort or Abort(), at_passes=at_passes)
    signals.abort.clear()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    heeded = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]  # nohup ignores one
    handlers = {number: signal.signal(number, signals.receive) for number in heeded}
    watcher = threading.Thread(target=signals.watch, args=(reader,), daemon=True)
    watcher.start()
    try:
        signals.raising = True
        signals.leave()
        yield signals
    except (AbortedError, KeyboardInterrupt, OSError):  # a terminal that hangs up cannot be written to
        signals.leave()
        raise
    finally:
        signals.raising = False
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        writer.close()
        watcher.join()
        reader.close()
    signals.leave()


@contextmanager
def unbroken() -> Iterator[None]:
    """Ctrl-C does nothing, but in the blocks within that make something of it."""
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
