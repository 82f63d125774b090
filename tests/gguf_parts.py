"""A GGUF taken apart, to be changed at will and put together again.

file = gguf_parts.parts(path.read_bytes())
file.entries[3].value = 7
path.write_bytes(file.written())
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

from specdec.gguf_header import ARRAY, STRING, TENSOR_TYPES, VALUE_TYPES

U32, I32, F32, BOOL = 4, 5, 6, 7
ALIGNMENT = 32


@dataclass
class Entry:
    """One metadata entry: ``value`` is a number, bytes, or for an array (element type, list)."""

    key: bytes
    type: int
    value: Any


@dataclass
class Tensor:
    """One row of the tensor table, and its weights."""

    name: bytes
    shape: list[int]
    type: int
    offset: int
    data: bytes


@dataclass
class Parts:
    """A whole file. ``numbers``: where :meth:`written` put counts and lengths, and their formats."""

    entries: list[Entry]
    tensors: list[Tensor]
    numbers: list[tuple[int, str]] = field(default_factory=list)
    header: int = 0  # bytes before the weights

    def written(self) -> bytes:
        """The file, with the offsets that the tensors say."""
        out = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.entries)))
        self.numbers = [(4, "<I"), (8, "<Q"), (16, "<Q")]

        def number(form: str, n: int) -> None:
            self.numbers.append((len(out), form))
            out.extend(struct.pack(form, n % (1 << 8 * struct.calcsize(form))))

        def text(raw: bytes) -> None:
            number("<Q", len(raw))
            out.extend(raw)

        for entry in self.entries:
            text(entry.key)
            number("<I", entry.type)
            if entry.type == STRING:
                text(entry.value)
            elif entry.type == ARRAY:
                code, values = entry.value
                number("<I", code)
                number("<Q", len(values))
                strings = [struct.pack("<Q", len(v)) + v for v in values] if code == STRING else None
                out.extend(b"".join(strings or [] if code == STRING else [packed(code, v) for v in values]))
            else:
                out.extend(packed(entry.type, entry.value))
        for tensor in self.tensors:
            text(tensor.name)
            number("<I", len(tensor.shape))
            for n in tensor.shape:
                number("<Q", n)
            number("<I", tensor.type)
            number("<Q", tensor.offset)
        out.extend(bytes(-len(out) % ALIGNMENT))
        self.header = len(out)
        for tensor in self.tensors:
            out.extend(tensor.data + bytes(-len(tensor.data) % ALIGNMENT))
        return bytes(out)

    def lay_out(self) -> None:
        """Gives every tensor as many bytes as it claims (up to a megabyte), one behind the other."""
        at = 0
        for tensor in self.tensors:
            _, block, size = TENSOR_TYPES.get(tensor.type, ("", 1, 4))
            n = min(math.prod(tensor.shape) // block * size, 1 << 20)
            whole = tensor.data or b"\0"
            tensor.data = (whole * (n // len(whole) + 1))[:n]
            tensor.offset = at
            at += -(-n // ALIGNMENT) * ALIGNMENT


def packed(code: int, value: Any) -> bytes:
    """A scalar as the file holds it; whole numbers wrap, as C's do."""
    form = VALUE_TYPES[code][1]
    if code in (6, 12):
        return struct.pack(form, max(min(value, 3e38), -3e38) if math.isfinite(value) else value)
    if code == BOOL:
        return struct.pack("<B", int(value) % 256 if math.isfinite(value) else 1)
    n = int(value) if math.isfinite(value) else 0
    return (n % (1 << 8 * struct.calcsize(form))).to_bytes(struct.calcsize(form), "little")


def parts(whole: bytes) -> Parts:
    """Takes a sound file apart."""
    at = 24
    n_tensors, n_entries = struct.unpack_from("<QQ", whole, 8)

    def number(form: str) -> Any:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, whole, at - struct.calcsize(form))[0]

    def text() -> bytes:
        nonlocal at
        n = number("<Q")
        at += n
        return whole[at - n : at]

    def value(code: int) -> Any:
        if code == STRING:
            return text()
        if code == ARRAY:
            element = number("<I")
            return element, [value(element) for _ in range(number("<Q"))]
        return number(VALUE_TYPES[code][1])

    entries = []
    for _ in range(n_entries):
        key, code = text(), number("<I")
        entries.append(Entry(key, code, value(code)))
    table = []
    for _ in range(n_tensors):
        name = text()
        shape = [number("<Q") for _ in range(number("<I"))]
        table.append(Tensor(name, shape, number("<I"), number("<Q"), b""))
    start = -(-at // ALIGNMENT) * ALIGNMENT
    for tensor in table:
        _, block, size = TENSOR_TYPES[tensor.type]
        n = math.prod(tensor.shape) // block * size
        tensor.data = whole[start + tensor.offset : start + tensor.offset + n]
    return Parts(entries, table)
