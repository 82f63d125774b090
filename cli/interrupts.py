"""Signals while llama.cpp is busy: a decode in progress is stopped, not waited for."""

from __future__ import annotations

import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol


class Stoppable(Protocol):
    """What a signal sets: ``specdec.backend.Abort``."""

    def set(self) -> None: ...

    def clear(self) -> None: ...


TERMINATORS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def interruptible(abort: Stoppable) -> Iterator[None]:
    """Ctrl-C raises KeyboardInterrupt, SIGTERM and SIGHUP SystemExit, also in the middle of a decode.

    Python runs its handlers only between bytecodes, so not while C computes; but it notes each signal
    on the wakeup descriptor at once, and a thread that reads it sets ``abort``.
    """
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    handlers = {number: signal.signal(number, _leave) for number in TERMINATORS}
    watcher = threading.Thread(target=_watch, args=(reader, abort), daemon=True)
    watcher.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        writer.close()
        watcher.join()
        reader.close()
        abort.clear()


def _watch(reader: socket.socket, abort: Stoppable) -> None:
    ending = {signal.SIGINT, *TERMINATORS}
    while numbers := reader.recv(64):
        if not ending.isdisjoint(numbers):
            abort.set()


def _leave(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
