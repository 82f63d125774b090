"""The header of one .gguf file: counts, metadata, where each tensor lies. The weights are not touched.

Sources: the GGUF specification (ggml/docs/gguf.md) and llama.cpp's reader (``gguf_init_from_reader``). What
these refuse is a UsageError here that says what is wrong and where.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import mmap
import re
import stat
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError

# fmt: off
VALUE_TYPES = {  # enum gguf_type: code -> (name, format), the format for struct and numpy alike
    0: ("u8", "<B"), 1: ("i8", "<b"), 2: ("u16", "<H"), 3: ("i16", "<h"), 4: ("u32", "<I"), 5: ("i32", "<i"),
    6: ("f32", "<f"), 7: ("bool", "<?"), 10: ("u64", "<Q"), 11: ("i64", "<q"), 12: ("f64", "<d"),
}
TENSOR_TYPES = {  # enum ggml_type: code -> (name, elements a block, bytes a block), as type_traits in ggml.c
    0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22),
    7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 36), 10: ("Q2_K", 256, 84),
    11: ("Q3_K", 256, 110), 12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210),
    15: ("Q8_K", 256, 292), 16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98),
    19: ("IQ1_S", 256, 50), 20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82),
    23: ("IQ4_XS", 256, 136), 24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8),
    28: ("F64", 1, 8), 29: ("IQ1_M", 256, 56), 30: ("BF16", 1, 2), 34: ("TQ1_0", 256, 54),
    35: ("TQ2_0", 256, 66), 39: ("MXFP4", 32, 17), 40: ("NVFP4", 64, 36), 41: ("Q1_0", 128, 18),
    42: ("Q2_0", 64, 18),
}
# fmt: on
STRING, ARRAY = 8, 9  # the two value types without a fixed size
REMOVED_TENSOR_TYPES = (4, 5, 31, 32, 33, 36, 37, 38)

# Generous against any real model, small against what a forged length could cost in time and memory.
MAX_ELEMENTS = 1 << 22  # of an array; the largest known (merges) have half a million
MAX_ARRAY = 1 << 28  # bytes of an array
MAX_TEXT = 1 << 24  # bytes of a string value; the longest known are chat templates
MAX_KEY = (1 << 16) - 1  # bytes, by the specification
MAX_TENSOR_NAME = 63  # bytes, GGML_MAX_NAME - 1
MAX_DIMS = 4  # GGML_MAX_DIMS


class GGUFArray(Sequence[Any]):
    """An array value, the bytes as they lie in the file: nothing is decoded until it is asked for.

    Elements are int, float, bool or str. ``raw``: uint8 [bytes], the elements without the array's type and
    count. ``starts``: for strings, int64 [count + 1], where in raw each length prefix lies, then the end.
    """

    def __init__(
        self, code: int, count: int, raw: NDArray[np.uint8], starts: NDArray[np.int64] | None
    ) -> None:
        self.type, self._format = VALUE_TYPES.get(code, ("string", ""))
        self._count = count
        self.raw = raw
        self.starts = starts

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self._count))]
        return _text(self.bytes(index)) if self.type == "string" else self.numpy()[index].item()

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(self._count)) if self.type == "string" else iter(self.numpy().tolist())

    def __repr__(self) -> str:
        return f"an array of {self._count} {self.type}"

    def bytes(self, index: int) -> bytes:
        """The bytes of one string. Raises IndexError, and TypeError when the elements are no strings."""
        if self.starts is None:
            raise TypeError(f"elements are {self.type}, not strings")
        i = range(self._count)[index]
        return self.raw[self.starts[i] + 8 : self.starts[i + 1]].tobytes()

    @functools.cached_property
    def digest(self) -> str:
        """A hash of the elements' bytes (SHA-256)."""
        return hashlib.sha256(self.raw.data).hexdigest()

    def numpy(self) -> NDArray[Any]:
        """A view [count] of a scalar array, without a copy. Raises TypeError for strings."""
        if self.starts is not None:
            raise TypeError("elements are strings, of which there is no numpy view")
        return self.raw.view(self._format)


Value: TypeAlias = int | float | bool | str | GGUFArray


@dataclass(frozen=True)
class Tensor:
    """Where a tensor lies. ``shape`` has the fastest dimension first (ggml's ``ne``)."""

    name: str
    shape: tuple[int, ...]
    type: str  # ggml's name: F32, Q4_K, ...
    offset: int  # bytes from the start of its file
    nbytes: int
    part: int  # index into GGUFFile.parts


@dataclass(frozen=True)
class Header:
    """What one file says before its weights begin."""

    path: Path
    metadata: dict[str, Value]
    tensors: list[Tensor]
    size: int  # bytes of the whole file

    def number(self, key: str) -> int:
        """The whole number under a key; 0 when there is none."""
        value = self.metadata.get(key, 0)
        return value if type(value) is int else 0


class _Walk:
    """A position in a mapped file, moved forward by what is read, every step checked against the end."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.bytes = np.frombuffer(data, np.uint8)
        self.size = len(data)
        self.at = 0

    def fail(self, what: str) -> NoReturn:
        raise UsageError(f"{self.path}: {what}: the file is damaged, fetch it again")

    def need(self, n: int, what: str) -> None:
        if n > self.size - self.at:
            raise UsageError(
                f"{self.path}: {what} at byte {self.at:,} needs {n:,} bytes, but the file ends at byte "
                f"{self.size:,}; the download is probably incomplete or the file damaged, fetch it again"
            )

    def number(self, form: str, what: str) -> Any:
        n = struct.calcsize(form)
        self.need(n, what)
        self.at += n
        return struct.unpack_from(form, self.data, self.at - n)[0]

    def string(self, limit: int, what: str) -> bytes:
        start, n = self.at, self.number("<Q", what)
        if n > limit:
            self.fail(f"{what} at byte {start:,} claims a length of {n:,} bytes, of at most {limit:,}")
        self.need(n, what)
        self.at += n
        return self.data[self.at - n : self.at]

    def value(self, what: str) -> Value:
        code = self.number("<I", what)
        if code == STRING:
            return _text(self.string(MAX_TEXT, what))
        if code == ARRAY:
            return self.array(what)
        if code not in VALUE_TYPES:
            self.fail(f"{what} at byte {self.at - 4:,} is of unknown type {code}")
        value: Value = self.number(VALUE_TYPES[code][1], what)
        return value

    def array(self, what: str) -> GGUFArray:
        code, count = self.number("<I", what), self.number("<Q", what)
        start, starts = self.at, None
        if count > MAX_ELEMENTS:
            self.fail(f"{what} claims {count:,} elements, of at most {MAX_ELEMENTS:,}")
        if code == STRING:
            starts = self.strings(count, what) - start
        elif code in VALUE_TYPES:
            n = count * struct.calcsize(VALUE_TYPES[code][1])
            self.need(n, f"{what} ({count:,} elements)")
            self.at += n
        else:
            kind = "arrays" if code == ARRAY else f"unknown type {code}"
            self.fail(f"{what} at byte {start - 12:,} is an array of {kind}, which llama.cpp does not read")
        if self.at - start > MAX_ARRAY:
            self.fail(f"{what} takes {self.at - start:,} bytes, of at most {MAX_ARRAY:,}")
        return GGUFArray(code, count, self.bytes[start : self.at].copy(), starts)  # the file may change or go

    def strings(self, count: int, what: str) -> NDArray[np.int64]:
        """Steps over ``count`` strings: int64 [count + 1], where each begins and where the last one ends.

        Nearly all strings have 1 to 255 bytes, none of them zero: then a length prefix is wherever seven zero
        bytes follow a non-zero one. Those places are found for a whole block at once, and those that each lie
        where the one before ends are right by induction; what is left over is stepped through one by one.
        """
        self.need(8 * count, f"{what} ({count:,} strings)")
        pieces: list[Any] = [np.zeros(0, np.int64)]
        left, run = count, 32
        while left:
            found: Any = self._strings_of_block()[:left]
            if len(found):
                self.at = int(found[-1]) + 8 + self.data[found[-1]]
            else:
                found = self._strings_one_by_one(min(left, run), what)
                run *= 2  # where there are many odd strings, looking for the others does not pay
            pieces.append(found)
            left -= len(found)
        return np.concatenate([*pieces, [self.at]])

    def _strings_of_block(self) -> NDArray[np.int64]:
        block = self.bytes[self.at : self.at + (1 << 16)]
        if len(block) < 8:
            return np.zeros(0, np.int64)
        zero = block == 0
        two = zero[:-1] & zero[1:]  # two zeros from here on, and so forth
        four = two[:-2] & two[2:]
        seven = four[:-3] & four[3:]
        marks = np.flatnonzero(seven[1:] & ~zero[:-7])
        if not len(marks) or marks[0] != 0:
            return marks[:0]
        ends = marks + 8 + block[marks]
        broken = np.flatnonzero(ends[:-1] != marks[1:])
        n = int(broken[0]) + 1 if len(broken) else len(marks)
        return marks[: n - int(self.at + ends[n - 1] > self.size)] + self.at

    def _strings_one_by_one(self, count: int, what: str) -> list[int]:
        found, at, word = [], self.at, struct.Struct("<Q")
        for _ in range(count):
            found.append(at)
            end = at + 8 if at + 8 > self.size else at + 8 + word.unpack_from(self.data, at)[0]
            if end > self.size:
                self.at = at
                self.need(end - at, f"a string of {what}")
            at = end
        self.at = at
        return found


def read_header(path: Path, part: int) -> Header:
    """Reads and checks the header of ``path``, which is the model's file number ``part``.

    Raises UsageError when there is no such file, it cannot be read, or its header is not sound.
    """
    walk = _Walk(path, _map(path))
    n_tensors, n_values = _read_counts(walk)
    metadata = _read_metadata(walk, n_values)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        walk.fail(f"general.alignment is {alignment!r:.60}, not a power of two")
    return Header(path, metadata, _read_tensors(walk, n_tensors, alignment, part), walk.size)


def _map(path: Path) -> mmap.mmap:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise UsageError(f"{path}: this is a folder; name a .gguf file in it")
        if not stat.S_ISREG(mode):  # opening a pipe would wait for its other end
            raise UsageError(f"{path}: this is no regular file; name a .gguf file")
        with path.open("rb") as file:
            head = file.read(64)
            if head[:4] == b"GGUF":
                return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file; check the spelling and the folder") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        full = getattr(error, "errno", None) == errno.ENOMEM
        way = "free some memory" if full else "check the path and its permissions"
        raise UsageError(f"{path}: cannot be read ({reason}); {way}") from None
    if not head:
        raise UsageError(f"{path}: the file is empty; the download probably failed, fetch it again")
    raise UsageError(f"{path}: not a GGUF file: {_looks_like(head)}; a .gguf begins with the letters GGUF")


def _looks_like(head: bytes) -> str:
    """What a file is that begins with these bytes."""
    for magic, what in _MAGICS.items():
        if re.match(magic, head, re.DOTALL | re.IGNORECASE):
            return f"it is {what}"
    if all(b >= 32 or b in b"\t\n\r" for b in head):
        return f"it begins with the text {_text(head[:24])!r}"
    return f"it begins with the bytes {head[:8].hex(' ')}"


_MAGICS = {
    rb"version https://git-lfs": "a Git LFS pointer, not the file itself (git lfs pull fetches it)",
    rb"\s*<(!doctype|html|\?xml)": "a web page, so the address it was fetched from was probably wrong",
    rb".{8}\{\"": "a safetensors file, which has to be converted (llama.cpp's convert_hf_to_gguf.py)",
    rb"PK\x03\x04": "a zip archive, perhaps a PyTorch checkpoint, which has to be converted",
    rb"\x80[\x02-\x05]": "a Python pickle, perhaps a PyTorch checkpoint, which has to be converted",
    rb"lmgg|fmgg|tjgg|algg": "a GGML file of the time before GGUF, which llama.cpp no longer reads",
    rb"\x1f\x8b|\xfd7zXZ|\x28\xb5\x2f\xfd|BZh": "compressed; unpack it first",
}


def _read_counts(walk: _Walk) -> tuple[int, int]:
    """The file's first 24 bytes: GGUF, the version, the number of tensors and of metadata entries."""
    walk.at = 4
    version = walk.number("<I", "the version")
    if version and not version & 0xFFFF:
        raise UsageError(
            f"{walk.path}: a big-endian GGUF, which this machine cannot run; fetch a little-endian one"
        )
    if version not in (2, 3):
        raise UsageError(
            f"{walk.path}: GGUF version {version} is not supported (2 and 3 are); convert the model anew"
        )
    n_tensors, n_values = walk.number("<Q", "the tensor count"), walk.number("<Q", "the metadata count")
    shortest = 13  # bytes of a metadata entry; a tensor takes more
    if max(n_tensors, n_values) * shortest > walk.size:
        claim = f"{n_tensors:,} tensors and {n_values:,} metadata entries"
        walk.fail(f"the header claims {claim}, more than fit into {walk.size:,} bytes")
    return n_tensors, n_values


def _read_metadata(walk: _Walk, count: int) -> dict[str, Value]:
    metadata: dict[str, Value] = {}
    for i in range(count):
        start = walk.at
        key = _text(walk.string(MAX_KEY, f"the key of metadata entry {i}"))
        if not key or key in metadata:
            walk.fail(f"the key {key!r:.80} at byte {start:,} is {'there twice' if key else 'empty'}")
        metadata[key] = walk.value(f"the value of {key!r:.80}")
    return metadata


def _read_tensors(walk: _Walk, count: int, alignment: int, part: int) -> list[Tensor]:
    table = {}
    for i in range(count):
        start = walk.at
        name = _text(walk.string(MAX_TENSOR_NAME, f"the name of tensor {i}"))
        if name in table:
            walk.fail(f"the tensor {name!r:.80} at byte {start:,} is there twice")
        table[name] = _read_shape(walk, name)
    data = -(-walk.at // alignment) * alignment
    tensors, expected = [], 0
    for name, (shape, kind, offset, nbytes) in table.items():
        if offset % alignment:
            walk.fail(f"tensor {name!r} lies at offset {offset:,}, which is no multiple of {alignment}")
        if offset != expected:
            wrong = "overlaps the one before" if offset < expected else "leaves a gap after the one before"
            walk.fail(f"tensor {name!r} lies at offset {offset:,}, not at {expected:,}: it {wrong}")
        tensors.append(Tensor(name, shape, kind, data + offset, nbytes, part))
        expected += -(-nbytes // alignment) * alignment
    end = max((t.offset + t.nbytes for t in tensors), default=0)
    if end > walk.size:
        raise UsageError(
            f"{walk.path}: truncated, {end:,} bytes expected and {walk.size:,} present; "
            "the download is probably incomplete, fetch it again"
        )
    return tensors


def _read_shape(walk: _Walk, name: str) -> tuple[tuple[int, ...], str, int, int]:
    """Shape, type, offset (bytes from the start of the data) and size (bytes) of one tensor."""
    what = f"tensor {name!r}"
    n_dims = walk.number("<I", what)
    if n_dims > MAX_DIMS:
        walk.fail(f"{what} has {n_dims:,} dimensions, of at most {MAX_DIMS}")
    shape = tuple(walk.number("<Q", what) for _ in range(n_dims))
    code, offset = walk.number("<I", what), walk.number("<Q", what)
    if code in REMOVED_TENSOR_TYPES:
        raise UsageError(
            f"{walk.path}: {what} is of type {code}, which llama.cpp no longer reads; fetch a newer file"
        )
    if code not in TENSOR_TYPES:
        raise UsageError(
            f"{walk.path}: {what} is of unknown type {code}: "
            "the file is damaged, or made for a newer llama.cpp than this one"
        )
    kind, block, block_bytes = TENSOR_TYPES[code]
    n = 1
    for length in shape:
        n *= length
    if n * block_bytes >= 1 << 63 or any(length >= 1 << 63 for length in shape):
        walk.fail(f"{what} has the impossible shape {shape}")
    if (shape[0] if shape else 1) % block:
        walk.fail(f"{what} has rows of {shape[:1]} elements, but {kind} packs them in blocks of {block}")
    return shape, kind, offset, n // block * block_bytes


def _text(raw: bytes) -> str:
    """UTF-8; bytes that are none become escapes."""
    return raw.decode("utf-8", "backslashreplace")
