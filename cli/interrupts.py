"""Signals while llama.cpp is busy: the work is stopped at once, and nothing is lost on the way out."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from specdec.backend import Abort
from specdec.errors import AbortedError

ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


class Signals:
    """What a signal does: it sets ``abort``, and raises KeyboardInterrupt where no C code is at work."""

    def __init__(self, abort: Abort) -> None:
        self.abort = abort
        self._received: int | None = None

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """The handler."""
        self._received = number
        self.abort.set()
        if not self.abort.busy:
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
def interruptible(abort: Abort | None = None) -> Iterator[Signals]:
    """Ctrl-C, SIGTERM and SIGHUP end the block promptly, also while llama.cpp computes.

    Python runs its handlers only between bytecodes, so not while C computes; but it notes each signal on
    the wakeup descriptor at once, and a thread that reads it sets the abort. Inside the block that shows as
    KeyboardInterrupt or AbortedError; it may catch them and finish its output. At its end the signal takes
    effect: KeyboardInterrupt, or SystemExit for SIGTERM and SIGHUP.

    abort: the flag to set, cleared first; by default one of its own.
    """
    signals = Signals(abort or Abort())
    signals.abort.clear()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, signals.receive) for number in ENDING}
    watcher = threading.Thread(target=signals.watch, args=(reader,), daemon=True)
    watcher.start()
    try:
        yield signals
    except (AbortedError, KeyboardInterrupt):
        signals.leave()
        raise
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        writer.close()
        watcher.join()
        reader.close()
    signals.leave()
