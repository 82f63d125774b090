"""Where the output goes: stdout, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from specdec.errors import AbortedError, SpecdecError, UsageError
from specdec.whole_file import replacing


@contextmanager
def destination(path: Path | None) -> Iterator[TextIO]:
    """The stream for the output: stdout without a path.

    A file gets its new contents when the block ends, and keeps the old ones when it fails; a device or a
    pipe is written directly. Raises UsageError at once for a path that cannot be written, SpecdecError
    when that fails later.
    """
    if path is None or str(path) == "-":
        yield sys.stdout
        return
    path = path.expanduser()
    with writing(path):
        if _is_direct(path):
            with open(_opened(path), "w", encoding="utf-8", newline="") as stream:
                yield stream
            return
        with replaced(path) as stream:
            yield stream


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Failures of writing to `path` become errors that name it, and say what became of it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise SpecdecError(f"{path}: cannot write: {error.strerror}{_fate(path)}") from error
    except (KeyboardInterrupt, SystemExit, AbortedError):
        if fate := _fate(path):
            with suppress(OSError):
                print(f"specdec: interrupted{fate}", file=sys.stderr, flush=True)
        raise
    except UsageError:
        raise
    except SpecdecError as error:
        raise SpecdecError(f"{error}{_fate(path)}") from error


@contextmanager
def replaced(path: Path) -> Iterator[TextIO]:
    """A stream whose text becomes the file's contents when the block ends without an exception."""
    mode = _mode(path)
    real = Path(os.path.realpath(path))  # a link stays a link
    with ExitStack() as stack:
        try:
            raw = stack.enter_context(replacing(real, mode))
        except OSError as error:
            raise UsageError(f"{path}: cannot write in its directory: {error.strerror}") from error
        stream = TextIOWrapper(raw, encoding="utf-8", newline="")
        try:
            yield stream
            stream.flush()
            os.fsync(raw.fileno())
        finally:
            with suppress(OSError):  # what could not be written has been said
                stream.detach()


def _opened(path: Path) -> int:
    try:
        return os.open(path, os.O_WRONLY | os.O_APPEND)  # /dev/stdout may be the end of a log
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror}") from error


def _is_direct(path: Path) -> bool:
    """Whether there is nothing to replace: a device, a pipe, a descriptor such as /dev/stdout."""
    if path.parts[1:3] == ("dev", "fd") or str(path) in ("/dev/stdout", "/dev/stderr"):
        return True
    with suppress(OSError):
        kind = path.stat().st_mode
        return not stat.S_ISREG(kind) and not stat.S_ISDIR(kind)
    return False


def _mode(path: Path) -> int:
    """The permissions the file has, or gets as a new one. Raises UsageError where it cannot be written."""
    try:
        found = path.stat()
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
    except OSError as error:
        raise UsageError(f"{path}: cannot write: {error.strerror}") from error
    if stat.S_ISDIR(found.st_mode):
        raise UsageError(f"{path}: cannot write: it is a directory; name a file in it")
    if not os.access(path, os.W_OK):
        raise UsageError(f"{path}: cannot write: no permission")
    return stat.S_IMODE(found.st_mode)


def _fate(path: Path) -> str:
    if _is_direct(path):
        return ""
    return f"; {path} is as it was" if path.exists() else f"; {path} was not written"
