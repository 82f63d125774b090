"""What the library and llama.cpp log, as a person sees it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from .view import View


class Notes(logging.Handler):
    """Each record is a note of the view."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view

    def emit(self, record: logging.LogRecord) -> None:
        self._view.note(record.getMessage())


@contextmanager
def log_shown(view: View, verbose: bool) -> Iterator[None]:
    """The library's warnings become notes; verbose adds the schedule's decisions and llama.cpp's own log.

    Within another such block, this one's view shows them alone.
    """
    ours, llama = logging.getLogger("specdec"), logging.getLogger("specdec.llama")
    before = ours.handlers
    ours.handlers = [*(handler for handler in before if not isinstance(handler, Notes)), Notes(view)]
    ours.setLevel(logging.DEBUG if verbose else logging.WARNING)
    llama.propagate = verbose
    llama.setLevel(logging.DEBUG if verbose else logging.CRITICAL)
    try:
        yield
    finally:
        ours.handlers = before
