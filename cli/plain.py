"""Text as a terminal may have it: no control characters, nothing its encoding lacks, no wider than asked."""

from __future__ import annotations

from typing import TextIO

from rich.cells import cell_len, set_cell_size

CONTROLS = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), "\ufffd")
NEUTRAL = {code: mark for code, mark in CONTROLS.items() if chr(code) not in "\n\t"}


def neutral(text: str) -> str:
    """`text` without the control characters that a terminal would obey."""
    return text.replace("\r\n", "\n").translate(NEUTRAL)


def encodable(text: str, stream: TextIO) -> str:
    """`text` with what the stream's encoding lacks replaced by question marks."""
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def cut(text: str, width: int) -> str:
    """`text` in at most `width` cells."""
    return text if cell_len(text) <= width else set_cell_size(text, width)
