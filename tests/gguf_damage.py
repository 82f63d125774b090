"""Damage to a GGUF, of the kinds a fuzzer wants.

    broken, what = gguf_damage.damage(whole, random.Random(seed))

Damage is to single bytes or to the structure: counts, lengths, metadata, tokens, tensors, weights. Offsets
are mostly laid anew, so that a damaged tensor gets past the checks that only look at the layout.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any

import gguf
from gguf_parts import BOOL, F32, I32, U32, Entry, Parts, parts

from specdec.gguf_header import ARRAY, STRING, TENSOR_TYPES, VALUE_TYPES

SMALL = (0, 1, 2, 3, 5, 7, 8, 16, 64, 100, 1000)
LARGE = (65_536, 1_000_003, 2**31 - 1, 2**31, 2**32 - 1, 2**40, 2**63 - 1, 2**63, 2**64 - 1)
FLOATS = (0.0, -1.0, 1e-30, 1e30, math.inf, -math.inf, math.nan, 3.5)
TOKENIZERS = ("llama", "gpt2", "bert", "t5", "rwkv", "plamo2", "gemma4", "none", "no_vocab", "x")
PRE = (
    "default",
    "gpt-2",
    "llama-bpe",
    "qwen2",
    "deepseek-llm",
    "tekken",
    "gpt-4o",
    "falcon",
    "chameleon",
    "x",
)
ROPE = ("none", "linear", "yarn", "longrope", "x", "")
TEMPLATES = (
    "{{ messages[9].content }}",
    "{{ 'x' * 10**10 }}",
    "{{ ''.__class__ }}",
    "{% for m in %}",
    "{{ raise_exception('no') }}",
    "{{ 1 // 0 }}",
    "",
    "\0",
)


def damage(whole: bytes, rng: random.Random) -> tuple[bytes, str]:
    """The file with one to four things wrong, and what they are."""
    file = parts(whole)
    said = []
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        act = rng.choices(list(STRUCTURAL), list(STRUCTURAL.values()))[0]
        said.append(f"{act.__name__}: {act(file, rng)}")
    if rng.random() < 0.9:
        file.lay_out()
    raw = bytearray(file.written())
    if rng.random() < 0.25:
        act = rng.choice(RAW)
        said.append(f"{act.__name__}: {act(raw, file, rng)}")
    return bytes(raw), "; ".join(said)


def integer(rng: random.Random, near: int) -> int:
    """A whole number that may break something where ``near`` stood."""
    return rng.choice(
        (
            rng.choice(SMALL),
            rng.choice(LARGE),
            near + rng.choice((-2, -1, 1, 2)),
            near * 2,
            near // 2,
            -near,
            rng.randrange(1 << 32),
        )
    )


def scalar(code: int, rng: random.Random, near: Any) -> Any:
    """Another value of a scalar type."""
    if code in (6, 12):
        return rng.choice((*FLOATS, near * 2 if isinstance(near, float) else 1.0))
    return rng.choice((0, 1, 2, 255)) if code == BOOL else integer(rng, int(near))


def change_value(file: Parts, rng: random.Random) -> str:
    numbers = [e for e in file.entries if e.type not in (STRING, ARRAY)]
    if not numbers:
        return "nothing"
    entry = rng.choice(numbers)
    entry.value = scalar(entry.type, rng, entry.value)
    return f"{entry.key!r} = {entry.value}"


def change_text(file: Parts, rng: random.Random) -> str:
    entry = rng.choice([e for e in file.entries if e.type == STRING] or file.entries)
    fit = {
        b"general.architecture": architectures(),
        b"tokenizer.ggml.model": TOKENIZERS,
        b"tokenizer.ggml.pre": PRE,
        b"tokenizer.chat_template": TEMPLATES,
    }
    value = rng.choice(fit.get(entry.key, ("", "x", "\xff" * 9, "y" * 70_000)))
    old, entry.type, entry.value = entry.value, STRING, value.encode("latin-1", "replace")
    if entry.key == b"general.architecture" and isinstance(old, bytes) and rng.random() < 0.7:
        for other in file.entries:
            if other.key.startswith(old + b"."):
                other.key = entry.value + other.key[len(old) :]
    return f"{entry.key!r} = {entry.value[:40]!r}"


def change_type(file: Parts, rng: random.Random) -> str:
    entry = rng.choice(file.entries)
    number = entry.value if entry.type not in (STRING, ARRAY) else 3
    entry.type = rng.choice((*VALUE_TYPES, STRING, ARRAY))
    if entry.type == STRING:
        entry.value = str(number).encode()
    elif entry.type == ARRAY:
        entry.value = (rng.choice((U32, I32, F32, BOOL)), [number] * rng.choice((0, 1, 2, 4, 600)))
    else:
        entry.value = number
    return f"{entry.key!r} becomes type {entry.type}"


def change_array(file: Parts, rng: random.Random) -> str:
    arrays = [e for e in file.entries if e.type == ARRAY]
    if not arrays:
        return "nothing"
    entry = rng.choice(arrays)
    code, values = entry.value[0], list(entry.value[1])
    how = rng.choice(("elements", "elements", "shorter", "longer", "shuffled", "empty"))
    if how == "shorter" and values:
        del values[rng.randrange(len(values)) :]
    elif how == "longer":
        values += (values or [b"x" if code == STRING else 1]) * rng.choice((1, 3))
    elif how == "shuffled":
        rng.shuffle(values)
    elif how == "empty":
        values = []
    for _ in range(rng.choice((1, 1, 5, 300)) if how == "elements" and values else 0):
        i = rng.randrange(len(values))
        if code == STRING:
            old = values[i]
            values[i] = rng.choice(
                (
                    b"",
                    b"\0",
                    b"\xff\xfe",
                    b" ",
                    b"a b c",
                    old[:-1],
                    old + b"x",
                    old * 30,
                    rng.choice(values),
                    b"<0x0A>",
                )
            )
        else:
            values[i] = scalar(code, rng, values[i])
    entry.value = (code, values)
    return f"{entry.key!r}: {how}"


def remove_entry(file: Parts, rng: random.Random) -> str:
    entry = file.entries.pop(rng.randrange(len(file.entries)))
    return repr(entry.key)


def rename_entry(file: Parts, rng: random.Random) -> str:
    entry = rng.choice(file.entries)
    old, entry.key = entry.key, rng.choice((b"", b"x", entry.key + b"x", rng.choice(file.entries).key))
    return f"{old!r} to {entry.key!r}"


def add_entry(file: Parts, rng: random.Random) -> str:
    """A key that llama.cpp may know, with a value that may fit."""
    arch = next((e.value for e in file.entries if e.key == b"general.architecture"), b"llama")
    arch = arch.decode("latin-1") if isinstance(arch, bytes) else "llama"
    key = rng.choice(keys()).replace("{arch}", arch).encode()
    file.entries = [e for e in file.entries if e.key != key]
    layers = next((e.value for e in file.entries if e.key.endswith(b".block_count")), 2)
    kind = rng.choice((U32, U32, U32, F32, BOOL, STRING, ARRAY))
    value: Any = scalar(kind, rng, 4) if kind not in (STRING, ARRAY) else rng.choice(ROPE).encode()
    if kind == ARRAY:
        code = rng.choice((U32, I32, F32, BOOL))
        n = rng.choice((0, 1, 4, layers if isinstance(layers, int) and 0 < layers < 600 else 3, 600))
        value = (code, [scalar(code, rng, 4) for _ in range(n)])
    file.entries.append(Entry(key, kind, value))
    return f"{key!r} = {value!r:.60}"


def change_shape(file: Parts, rng: random.Random) -> str:
    tensor = rng.choice(file.tensors)
    how = rng.choice(("swapped", "length", "length", "fewer", "more"))
    if how == "swapped":
        tensor.shape = tensor.shape[::-1]
    elif how == "fewer":
        tensor.shape = tensor.shape[:-1]
    elif how == "more":
        tensor.shape = [*tensor.shape, rng.choice((1, 1, 2, 0))]
    elif tensor.shape:
        i = rng.randrange(len(tensor.shape))
        tensor.shape[i] = integer(rng, tensor.shape[i]) % (1 << 64)
    return f"{tensor.name!r} is {tensor.shape}"


def change_tensor_type(file: Parts, rng: random.Random) -> str:
    tensor = rng.choice(file.tensors)
    tensor.type = rng.choice((*TENSOR_TYPES, *TENSOR_TYPES, 4, 31, 43, 99, 2**32 - 1))
    return f"{tensor.name!r} is of type {tensor.type}"


def change_all_types(file: Parts, rng: random.Random) -> str:
    kind = rng.choice(list(TENSOR_TYPES))
    for tensor in file.tensors:
        if len(tensor.shape) > 1 and tensor.shape[0] % TENSOR_TYPES[kind][1] == 0:
            tensor.type = kind
    return f"type {kind}"


def rename_tensor(file: Parts, rng: random.Random) -> str:
    tensor, other = rng.choice(file.tensors), rng.choice(file.tensors)
    old = tensor.name
    if rng.random() < 0.5:
        tensor.name, other.name = other.name, tensor.name
    else:
        tensor.name = rng.choice(
            (b"", b"x", old + b"x", old.replace(b"blk.0", b"blk.9"), b"output.bias", b"rope_freqs.weight")
        )
    return f"{old!r} to {tensor.name!r}"


def remove_tensor(file: Parts, rng: random.Random) -> str:
    tensor = rng.choice(file.tensors)
    if len(file.tensors) > 1:
        file.tensors.remove(tensor)
    return repr(tensor.name)


def change_offset(file: Parts, rng: random.Random) -> str:
    tensor = rng.choice(file.tensors)
    tensor.offset = integer(rng, tensor.offset) % (1 << 64)
    return f"{tensor.name!r} at {tensor.offset}"


def change_weights(file: Parts, rng: random.Random) -> str:
    tensor = rng.choice(file.tensors)
    fill = rng.choice((b"\xff\xff\xff\xff", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", bytes(4), rng.randbytes(64)))
    start = rng.randrange(len(tensor.data) + 1) if rng.random() < 0.5 else 0
    tensor.data = (
        tensor.data[:start] + (fill * (len(tensor.data) // len(fill) + 1))[: len(tensor.data) - start]
    )
    return f"{tensor.name!r} from byte {start} on"


STRUCTURAL: dict[Callable[[Parts, random.Random], str], int] = {
    change_value: 8,
    change_text: 2,
    change_type: 3,
    change_array: 6,
    remove_entry: 2,
    rename_entry: 1,
    add_entry: 8,
    change_shape: 4,
    change_tensor_type: 3,
    change_all_types: 1,
    rename_tensor: 2,
    remove_tensor: 1,
    change_offset: 1,
    change_weights: 3,
}


def flip_bytes(raw: bytearray, file: Parts, rng: random.Random) -> str:
    places = [rng.randrange(file.header) for _ in range(rng.choice((1, 2, 8, 64)))]
    for place in places:
        raw[place] = rng.randrange(256)
    return f"bytes {places[:8]}"


def change_number(raw: bytearray, file: Parts, rng: random.Random) -> str:
    place, form = rng.choice(file.numbers)
    n = integer(rng, struct.unpack_from(form, raw, place)[0]) % (1 << 8 * struct.calcsize(form))
    struct.pack_into(form, raw, place, n)
    return f"{n} at byte {place}"


def cut(raw: bytearray, file: Parts, rng: random.Random) -> str:
    del raw[rng.choice((rng.randrange(file.header), rng.randrange(len(raw)), len(raw) - 1)) :]
    return f"after {len(raw)} bytes"


def append(raw: bytearray, file: Parts, rng: random.Random) -> str:
    raw.extend(rng.randbytes(rng.choice((1, 32, 5000))))
    return f"{len(raw)} bytes"


RAW: tuple[Callable[[bytearray, Parts, random.Random], str], ...] = (flip_bytes, change_number, cut, append)


def keys() -> list[str]:
    """Every key that the gguf package names, with {arch} where an architecture belongs."""

    def walk(space: type) -> Iterator[str]:
        for name, value in vars(space).items():
            if isinstance(value, type):
                yield from walk(value)
            elif isinstance(value, str) and "." in value and not name.startswith("_"):
                yield value

    return sorted(k for k in walk(gguf.Keys) if not k.startswith(("general", "imatrix", "clip", "split")))


def architectures() -> list[str]:
    """Every architecture that the gguf package names."""
    return sorted(gguf.MODEL_ARCH_NAMES.values())
