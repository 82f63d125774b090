"""What can go wrong, in the words a user reads."""

from __future__ import annotations


class SpecdecError(Exception):
    """A failure while running. The message is one line: what, why, what to do."""

    exit_code = 1


class UsageError(SpecdecError):
    """Unusable input: a bad flag or name, a missing, broken or unsuitable file. Nothing was done."""

    exit_code = 2


class DecodeError(SpecdecError):
    """llama.cpp could not run a batch (``llama_decode`` returned something other than 0)."""


class AbortedError(SpecdecError):
    """A load or a pass was stopped by :class:`specdec.backend.Abort`."""


class RollbackError(SpecdecError):
    """A context's memory did not forget what it was told to forget."""


class ContextFullError(SpecdecError):
    """More tokens than the context has cells for."""
