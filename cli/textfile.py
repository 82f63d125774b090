"""A text that the user names by its file: read whole, UTF-8, of a size that makes sense."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import BinaryIO

from specdec.errors import UsageError

LARGEST = 64 << 20  # bytes; the largest context that can be asked for holds 16 million tokens


def read_text(path: Path, what: str) -> str:
    """The text of a file, '-' for stdin. what: what messages call it, as in 'the prompt'.

    Raises UsageError for a file that cannot be read, is no UTF-8, or is larger than any context.
    """
    source = "stdin" if str(path) == "-" else str(path)
    with opened(path, what) as file:
        try:
            raw = file.read(LARGEST + 1)
        except OSError as error:
            raise UsageError(f"{source}: cannot read {what}: {error.strerror}") from error
    if len(raw) > LARGEST:
        kind = what.removeprefix("the ")
        raise UsageError(f"{source}: a {kind} of more than {LARGEST >> 20} MiB fits no context")
    return decoded(raw, f"{source}: {what}")


def opened(path: Path, what: str) -> AbstractContextManager[BinaryIO]:
    """The file to read bytes from, '-' for stdin. Raises UsageError when it cannot be opened."""
    if str(path) == "-":
        if sys.stdin is None:
            raise UsageError(f"stdin: cannot read {what}: standard input is closed")
        return nullcontext(sys.stdin.buffer)
    try:
        return path.expanduser().open("rb")
    except OSError as error:
        raise UsageError(f"{path}: cannot read {what}: {error.strerror}") from error


def decoded(raw: bytes, source: str) -> str:
    """The bytes as text, without a byte order mark. Raises UsageError where they are no UTF-8."""
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source} is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x}); "
            "convert it first, as with iconv -t UTF-8"
        ) from error


def sound(text: str, source: str) -> str:
    """`text`, once it is known to be text. Raises UsageError for one with half of a surrogate pair."""
    # Arguments that are no UTF-8 arrive with lone surrogates in place of their bytes.
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"{source} is not UTF-8; convert it first")
    return text
