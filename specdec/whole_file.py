"""Files that are written whole or not at all: nobody ever reads half of one, whoever else writes it."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from . import partial


@contextmanager
def replacing(path: Path, permissions: int | None = None) -> Iterator[IO[bytes]]:
    """A stream whose bytes become the file's contents when the block ends without an exception.

    permissions: of the file; None for its owner alone. Raises OSError, from the block's beginning when the
    directory cannot be written to.
    """
    descriptor, name = tempfile.mkstemp(prefix=".specdec-", dir=path.parent)
    try:
        with open(descriptor, "wb") as stream:
            if permissions is not None:
                os.chmod(name, permissions)
            yield stream
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def keep(path: Path, contents: bytes) -> None:
    """Writes what can be made again, into a directory that is made for it; failing is no reason to fail.

    What a run that was killed left of the same file goes.
    """
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.sweep(path)
        with partial.writing(path) as draft:
            draft.write_bytes(contents)
            draft.replace(path)
