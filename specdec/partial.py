"""A file that is being written: under another name until it is whole, and locked while its writer lives.

A writer that is killed leaves such a file behind; the next one to write the same file removes it, and knows
by the lock (``flock``, which other machines see too on a shared disk) which ones still have a writer.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

try:
    import fcntl
except ImportError:  # Windows, which does not remove a file that somebody has open
    fcntl = None  # type: ignore[assignment]

ABANDONED_AFTER = 3600  # seconds without a write after which a file is litter, where there are no locks


@contextmanager
def writing(destination: Path) -> Iterator[Path]:
    """A new, empty file beside ``destination``, to be written and renamed to it; removed if it was not.

    Raises OSError.
    """
    path, file = _locked(destination)
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)
        if file is not None:
            file.close()


def sweep(destination: Path) -> None:
    """Removes what writers of ``destination`` left that were killed before they could do it themselves.

    Raises OSError when its directory cannot be read.
    """
    for path in destination.parent.iterdir():
        if path.name.startswith(f"{destination.name}.") and path.name.endswith(".partial"):
            try:
                _remove_if_abandoned(path)
            except OSError:  # another run was faster, or the file is not ours to remove
                continue


def _locked(destination: Path) -> tuple[Path, IO[bytes] | None]:
    while True:
        path = destination.with_name(f"{destination.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
        file = path.open("xb")
        if fcntl is None:
            file.close()  # a file that is open cannot be renamed there
            return path, None
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError:  # a disk without locks
            return path, file
        if path.exists():  # or a sweep came between
            return path, file
        file.close()


def _remove_if_abandoned(path: Path) -> None:
    rested = time.time() - path.stat().st_mtime > ABANDONED_AFTER
    if fcntl is None:
        if rested:
            path.unlink()
        return
    with path.open("rb+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # its writer lives
            return
        except OSError:
            if not rested:
                return
        path.unlink()
