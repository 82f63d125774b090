"""Where the prompt comes from: the argument, -p, a file, or a pipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import BinaryIO

from specdec.errors import UsageError

from .options import PromptOptions

LARGEST = 64 << 20  # bytes; the largest context that can be asked for holds 16 million tokens


def read_prompt(options: PromptOptions) -> str:
    """The prompt's text. Raises UsageError when there is none, more than one, or one that cannot be read."""
    given = {
        "the argument": options.text,
        "-p": options.prompt,
        "-f": None if options.file is None else _read_file(options.file),
    }
    found = {name: text for name, text in given.items() if text is not None}
    if len(found) > 1:
        raise UsageError(f"the prompt is given twice, by {' and by '.join(found)}; give it once")
    if found:
        (source, text), *_ = found.items()
        text = _sound(text, source)
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            'no prompt: give one as in specdec generate "Why is the sky blue?", with -f FILE, or in a pipe'
        )
    else:
        source, text = "stdin", _read(sys.stdin.buffer, "stdin")
    if not text:
        raise UsageError(f"the prompt from {source} is empty: there is nothing to answer")
    return text


def _read_file(path: Path) -> str:
    if str(path) == "-":
        return _read(sys.stdin.buffer, "stdin")
    try:
        with path.expanduser().open("rb") as file:
            return _read(file, str(path))
    except OSError as error:
        raise UsageError(f"{path}: cannot read the prompt: {error.strerror}") from error


def _read(file: BinaryIO, source: str) -> str:
    raw = file.read(LARGEST + 1)
    if len(raw) > LARGEST:
        raise UsageError(f"{source}: a prompt of more than {LARGEST >> 20} MiB fits no context")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{source}: the prompt is not UTF-8 (byte {error.start} is 0x{raw[error.start]:02x}); "
            "convert it first, as with iconv -t UTF-8"
        ) from error


def _sound(text: str, source: str) -> str:
    # Arguments that are no UTF-8 arrive with lone surrogates in place of their bytes.
    if any("\ud800" <= c <= "\udfff" for c in text):
        raise UsageError(f"the prompt from {source} is not UTF-8; convert it first")
    return text
