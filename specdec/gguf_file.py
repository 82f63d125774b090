"""What a .gguf says without loading it, in milliseconds: metadata, tensors, validity, split parts.

Sources: the GGUF specification (ggml/docs/gguf.md) and llama.cpp's reader (``gguf_init_from_reader``,
``llama_model_loader``). What these refuse is a UsageError here that says what is wrong and where, and so is
damage to layer count and tokens, on which llama.cpp would abort the process.
"""

from __future__ import annotations

import mmap
import re
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
MAX_LAYERS = 512  # LLAMA_MAX_LAYERS; llama.cpp aborts the process on more


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
class _Part:
    """One file of a model."""

    path: Path
    metadata: dict[str, Value]
    tensors: list[Tensor]
    size: int

    def number(self, key: str) -> int:
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


def _read_part(path: Path, index: int) -> _Part:
    walk = _Walk(path, _map(path))
    n_tensors, n_values = _read_counts(walk)
    metadata = _read_metadata(walk, n_values)
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment <= 0 or alignment & (alignment - 1):
        walk.fail(f"general.alignment is {alignment!r:.60}, not a power of two")
    return _Part(path, metadata, _read_tensors(walk, n_tensors, alignment, index), walk.size)


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
        raise UsageError(f"{path}: cannot be read ({reason}); check the path and its permissions") from None
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


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """A whole model file: its header read and checked, its weights not touched."""

    path: Path
    parts: tuple[Path, ...]  # every file of the model, ``path`` first; more than one when it is split
    metadata: Mapping[str, Value] = field(repr=False)  # of the first part; the others have split.* alone
    tensors: tuple[Tensor, ...] = field(repr=False)  # of all parts
    size: int  # bytes of all parts

    @classmethod
    def read(cls, path: Path) -> GGUFFile:
        """Reads and checks the header of ``path`` and of all its split parts.

        Raises UsageError when there is no such file, it cannot be read, or it is no sound model file.
        """
        first = _read_part(Path(path), 0)
        parts = [first]
        for i, part in enumerate(_other_parts(first), start=1):
            parts.append(_read_part(part, i))
        tensors = tuple(t for part in parts for t in part.tensors)
        file = cls(
            first.path, tuple(p.path for p in parts), first.metadata, tensors, sum(p.size for p in parts)
        )
        _check_parts(file, parts)
        _check_values(file)
        return file

    @property
    def architecture(self) -> str:
        """``general.architecture``: llama, qwen3, gemma3, ..."""
        return self.text("general.architecture") or ""

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def context_length(self) -> int | None:
        """Tokens of context the model was trained for; None when the file does not say."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def chat_template(self) -> str | None:
        """The default chat template, Jinja source."""
        return self.text("tokenizer.chat_template")

    @property
    def tokenizer_model(self) -> str | None:
        """The kind of tokenizer: llama (SentencePiece), gpt2 (byte-level BPE), ...; None without one."""
        return self.text("tokenizer.ggml.model")

    @property
    def tokens(self) -> GGUFArray | None:
        """The text of every token, by id; None when the file has no vocabulary."""
        return self.array("tokenizer.ggml.tokens", "string")

    @property
    def token_types(self) -> NDArray[np.int32] | None:
        """int32 [tokens], llama.cpp's ``llama_token_type``; None when the file does not say."""
        types = self.array("tokenizer.ggml.token_type", "i32")
        return None if types is None else types.numpy()

    def integer(self, key: str) -> int | None:
        """A whole number of the metadata. Raises UsageError when the key holds something else."""
        value: int | None = self._typed(key, int, "a whole number")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean of the metadata. Raises UsageError when the key holds something else."""
        value: bool | None = self._typed(key, bool, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string of the metadata. Raises UsageError when the key holds something else."""
        value: str | None = self._typed(key, str, "a string")
        return value

    def array(self, key: str, element: str) -> GGUFArray | None:
        """An array of the metadata. Raises UsageError when the key holds something else."""
        value: GGUFArray | None = self._typed(key, GGUFArray, f"an array of {element}")
        if value is not None and value.type != element:
            raise UsageError(
                f"{self.path}: {key} is {value!r}, not an array of {element}: the file is damaged"
            )
        return value

    def _typed(self, key: str, kind: type, words: str) -> Any:
        value = self.metadata.get(key)
        if value is not None and type(value) is not kind:
            raise UsageError(f"{self.path}: {key} is {value!r:.60}, not {words}: the file is damaged")
        return value

    def require_text_generation(self) -> None:
        """Raises UsageError unless this is a model that, on its own, writes text from left to right."""
        what = _what_else(self)
        if what:
            raise UsageError(f"{self.path}: this is {what}; give a text-generation GGUF instead")


def _other_parts(first: _Part) -> list[Path]:
    """The second and further files of a split model (names as ``llama_split_path`` makes them)."""
    count, no = first.number("split.count"), first.number("split.no")
    if count <= 1:
        return []
    name = re.fullmatch(r"(.*)-(\d{5})-of-(\d{5})\.gguf", first.path.name)
    if not name or int(name[2]) != no + 1 or int(name[3]) != count:
        raise UsageError(
            f"{first.path}: this is part {no + 1} of {count} of a split model, so its name has to end in "
            f"-{no + 1:05}-of-{count:05}.gguf; give all parts their names back"
        )
    paths = [first.path.with_name(f"{name[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if no:
        raise UsageError(
            f"{first.path}: this is part {no + 1} of {count} of a split model; name the first, {paths[0]}"
        )
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(
            f"{first.path}: {missing[0]}{more} of this split model missing; fetch it into the same folder"
        )
    return paths[1:]


def _check_parts(file: GGUFFile, parts: list[_Part]) -> None:
    for i, part in enumerate(parts):
        if len(parts) > 1 and part.number("split.no") != i:
            raise UsageError(
                f"{part.path}: holds part {part.number('split.no') + 1}, not {i + 1}; check the file names"
            )
    expected, found = parts[0].number("split.tensors.count"), len({t.name for t in file.tensors})
    if len(parts) > 1 and not expected == found == len(file.tensors):
        raise UsageError(
            f"{file.path}: its {len(parts)} parts have {len(file.tensors)} tensors ({found} names), "
            f"not the {expected} expected: they are not parts of the same model"
        )


def _check_values(file: GGUFFile) -> None:
    """What the rest of the program relies on, and what llama.cpp would abort the process for."""
    arch = file.architecture
    if not arch:
        what = _FILE_KINDS.get(
            file.text("general.type") or "", "no model, for general.architecture is missing"
        )
        raise UsageError(f"{file.path}: this is {what}; give a text-generation GGUF instead")
    if not re.fullmatch(r"[\w.-]{1,64}", arch):
        raise UsageError(
            f"{file.path}: general.architecture is {arch!r:.60}, which is no name: the file is damaged"
        )
    layers = file.integer(f"{arch}.block_count")
    if layers is not None and not 0 < layers <= MAX_LAYERS:
        raise UsageError(f"{file.path}: claims {layers:,} layers, of 1 to {MAX_LAYERS}: the file is damaged")
    for key in ("general.type", "tokenizer.chat_template", "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        file.text(key)
    file.integer(f"{arch}.context_length")
    if file.tokens is not None:
        _check_tokens(file, file.tokens)


def _check_tokens(file: GGUFFile, tokens: GGUFArray) -> None:
    types = file.token_types
    if types is not None and len(types) < len(tokens):
        raise UsageError(
            f"{file.path}: {len(tokens):,} tokens but {len(types):,} token types: the file is damaged"
        )
    twice = _repeated(tokens)
    if twice:
        raise UsageError(
            f"{file.path}: tokens {twice[0]} and {twice[1]} have the same text: the file is damaged"
        )
    if file.tokenizer_model == "llama":  # falls back to bytes for any character it has no token for
        raw = tokens.raw.tobytes()
        by_byte = [b"\x06" + bytes(7) + b"<0x%02X>" % byte for byte in range(256)]  # with length prefix
        if b"".join(by_byte) in raw:
            return
        for byte, token in enumerate(by_byte):
            if token not in raw and b"\x01" + bytes(7) + bytes([byte]) not in raw:
                raise UsageError(
                    f"{file.path}: there is no token for byte <0x{byte:02X}>: the file is damaged"
                )


def _repeated(tokens: GGUFArray) -> tuple[int, int] | None:
    """Two ids with the same text, if any, up to a zero byte, where llama.cpp ends it, and unless it is empty.

    Compares hashes first: 20 ms for 262,144 tokens.
    """
    assert tokens.starts is not None
    begin, n = tokens.starts[:-1] + 8, np.diff(tokens.starts) - 8
    suspects: Any = range(len(tokens))
    zeros_of_lengths = np.count_nonzero(n.astype("<u8").view(np.uint8) == 0)
    if len(tokens.raw) - np.count_nonzero(tokens.raw) == zeros_of_lengths:  # so no text has any
        hashes = _hashes(tokens.raw, begin, n)
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        suspects = np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else []
    seen: dict[bytes, int] = {}
    for i in suspects:
        text = tokens.bytes(i).split(b"\0")[0]
        if text and seen.setdefault(text, i) != i:
            return seen[text], i
    return None


def _hashes(raw: NDArray[np.uint8], begin: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 [texts], of length and first 64 bytes of each text; they lie in raw at begin, n bytes each."""
    padded = np.append(raw, np.zeros(8, np.uint8))
    words: NDArray[np.uint64] = np.ndarray(len(raw) + 1, "<u8", padded, strides=(1,))  # the one at every byte
    hashes = n.astype(np.uint64)
    for i in range(0, min(int(n.max(initial=0)), 64), 8):
        (longer,) = np.nonzero(n > i)
        rest = np.minimum(n[longer] - i, 8).astype(np.uint64)
        mixed = hashes[longer] ^ (words[begin[longer] + i] << (np.uint64(64) - np.uint64(8) * rest))
        mixed *= np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
        hashes[longer] = mixed ^ (mixed >> np.uint64(32))
    return hashes


def _what_else(file: GGUFFile) -> str | None:
    """What a file is, other than a text-generation model; None when it is one."""
    arch = file.architecture
    kind = _FILE_KINDS.get(file.text("general.type") or "")
    for architectures, what in _ARCHITECTURES.items():
        if arch in architectures.split():
            kind = kind or f"{what} ({arch})"
    if kind:
        return kind
    if file.integer(f"{arch}.pooling_type") or file.flag(f"{arch}.attention.causal") is False:
        return f"an embedding or reranking model (a {arch} that does not write text)"
    if not file.tokens or file.tokenizer_model in (None, "none", "no_vocab"):
        return f"a {arch} model without a tokenizer"
    if not file.tensors:
        return "a vocabulary without weights"
    return None


_FILE_KINDS = {  # general.type
    "adapter": "an adapter (LoRA) for a model, not a model",
    "mmproj": "the vision or audio part (mmproj) of a model, not a language model",
    "imatrix": "an importance matrix, not a model",
}
_ARCHITECTURES = {  # general.architecture, names as LLM_ARCH_NAMES in llama-arch.cpp
    "clip mmproj": "the vision or audio part of a model",
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
    "llama-embed t5encoder": "an embedding model",
    "t5": "an encoder-decoder model, which reads and writes in two separate passes",
    "dream llada llada-moe rnd1": "a diffusion model, which does not write from left to right",
    "wavtokenizer-dec": "a vocoder, which turns tokens into sound",
    "eagle3 dflash gemma4-assistant": "a draft head that only works on the hidden states of its target",
    "controlvector": "a control vector, not a model",
    "imatrix": "an importance matrix, not a model",
}
