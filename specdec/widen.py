"""Widening: a big target made of a small real model, which writes what the small one writes.

Every layer's feed-forward part gets ``factor`` times as many neurons. The new rows of ``ffn_gate`` and
``ffn_up`` are noise and the new columns of ``ffn_down`` are zeros, so whatever a new neuron computes is
multiplied by zero: the file costs what a model of its size costs, and says what its source says.

Everything is written as BF16 (norms and other vectors as F32), tensor by tensor; the same source and factor
give the same bytes on every machine.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import struct
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from gguf import (
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    dequantize,
    model_weight_count_rounded_notation,
    quantize,
)
from numpy.typing import NDArray

from .errors import SpecdecError, UsageError
from .gguf_file import GGUFFile, Tensor

RECIPE_KEY = "specdec.widened.recipe"
SOURCE_KEY = "specdec.widened.source"
ABANDONED_AFTER = 3600  # seconds without a write after which another build's temporary file is litter

_FFN = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
_ROLES = ("gate", "up", "down")
_BLOCK_VALUES = 1 << 22  # values unpacked at once: 16 MB of float32
_SCALARS = {  # struct's codes of the metadata types of fixed size
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.FLOAT64: "d",
    GGUFValueType.BOOL: "?",
}


class Value(NamedTuple):
    """A metadata value, its GGUF type and, for an array, the type of its elements. Strings are bytes."""

    value: Any
    kind: GGUFValueType
    element: GGUFValueType | None = None


@dataclass(frozen=True)
class Plan:
    """A widened file before it is written: all that is in it but the weights, and its exact size in bytes."""

    source: Path
    factor: int
    arch: str
    metadata: dict[str, Value]
    tensors: tuple[Tensor, ...]  # of the source, in its order
    header_bytes: int
    total_bytes: int


def widen(source: Path, destination: Path, factor: int, progress: Callable[[int, int], None]) -> None:
    """Write ``destination``: the model ``source`` with a feed-forward part ``factor`` times as wide.

    ``progress(bytes_done, bytes_total)`` is called with 0 when the file is about to be written (everything
    is checked by then) and after each tensor. ``destination`` appears complete or not at all.

    Raises UsageError, with nothing written, for a source that cannot be widened and for a disk without room;
    SpecdecError when writing fails.
    """
    write(plan(source, factor), destination, progress)


def is_widened(path: Path, source: Path | None, factor: int) -> bool:
    """Whether ``path`` is a whole file that ``widen`` would make again (of any source if None)."""
    try:
        metadata = GGUFFile.read(path).metadata
    except UsageError:
        return False
    same_source = source is None or metadata.get(SOURCE_KEY) == _identity(source)
    return same_source and metadata.get(RECIPE_KEY) == _recipe(factor)


# --- what will be written ---------------------------------------------------------------------------------


def plan(source: Path, factor: int) -> Plan:
    """Read what the widened file needs to know of ``source``.

    Raises UsageError when the source is broken or is not a model with plain gate/up/down tensors.
    """
    file = GGUFFile.read(source)
    if len(file.parts) > 1:
        raise UsageError(
            f"{source}: cannot be widened: it is one part of a split model; merge the parts first"
        )
    _require_plain(file)
    metadata = _read_metadata(source)
    metadata.update(_changed(file, metadata, factor))
    header = _header_bytes(metadata, file.tensors)
    weights = sum(_padded(_bytes(tensor, factor)) for tensor in file.tensors)
    return Plan(source, factor, file.architecture, metadata, file.tensors, header, header + weights)


def _read_metadata(source: Path) -> dict[str, Value]:
    """The metadata with its types, of a file known to be sound, without what is about its own layout."""
    metadata = {}
    with source.open("rb") as file:
        _, _, _, count = _unpack(file, "4sIQQ")
        for _ in range(count):
            key = _read_value(file, GGUFValueType.STRING).value.decode()
            metadata[key] = _read_value(file, GGUFValueType(_unpack(file, "I")[0]))
    metadata.pop("general.alignment", None)
    return {key: value for key, value in metadata.items() if value.value != []}  # GGUFWriter refuses those


def _read_value(file: BinaryIO, kind: GGUFValueType) -> Value:
    if kind == GGUFValueType.STRING:
        return Value(file.read(_unpack(file, "Q")[0]), kind)
    if kind != GGUFValueType.ARRAY:
        return Value(_unpack(file, _SCALARS[kind])[0], kind)
    code, count = _unpack(file, "IQ")
    element = GGUFValueType(code)
    if element == GGUFValueType.STRING:
        return Value([file.read(_unpack(file, "Q")[0]) for _ in range(count)], kind, element)
    return Value(list(_unpack(file, f"{count}{_SCALARS[element]}")), kind, element)


def _unpack(file: BinaryIO, codes: str) -> tuple[Any, ...]:
    return struct.unpack(f"<{codes}", file.read(struct.calcsize(f"<{codes}")))


def _changed(file: GGUFFile, metadata: dict[str, Value], factor: int) -> dict[str, Value]:
    """The metadata that tells the widened file from its source."""
    key = f"{file.architecture}.feed_forward_length"
    width = metadata[key].value
    wider = [n * factor for n in width] if isinstance(width, list) else width * factor
    name = file.text("general.name") or file.path.stem
    parameters = sum(int(np.prod(_shape(tensor, factor))) for tensor in file.tensors)
    note = f"{name} with a feed-forward part {factor} times as wide; the added weights do nothing."
    return {
        key: metadata[key]._replace(value=wider),
        "general.name": _string(f"{name} widened x{factor}"),
        "general.description": _string(note),
        "general.size_label": _string(model_weight_count_rounded_notation(parameters)),
        "general.file_type": Value(int(LlamaFileType.MOSTLY_BF16), GGUFValueType.UINT32),
        SOURCE_KEY: _string(_identity(file.path)),
        RECIPE_KEY: _string(_recipe(factor)),
    }


def _string(text: str) -> Value:
    return Value(text.encode(), GGUFValueType.STRING)


def _identity(source: Path) -> str:
    return f"{source.name}, {source.stat().st_size} bytes"


def _recipe(factor: int) -> str:
    return f"x{factor}, recipe 1"  # the number goes up when the same source gives other bytes


def _require_plain(file: GGUFFile) -> None:
    """Raise UsageError unless each layer is gate, up and down and nothing else depends on their width."""

    def refuse(reason: str) -> UsageError:
        needs = "widening needs plain ffn_gate, ffn_up and ffn_down tensors, as llama and qwen2 have"
        return UsageError(
            f"{file.path}: cannot be widened: {reason} (architecture {file.architecture}); {needs}"
        )

    for key in ("block_count", "feed_forward_length"):
        if f"{file.architecture}.{key}" not in file.metadata:
            raise refuse(f"it does not say its {key}")
    layers = file.integer(f"{file.architecture}.block_count") or 0
    found = {(int(match[1]), match[2]) for t in file.tensors if (match := _FFN.fullmatch(t.name))}
    for layer, role in sorted({(layer, role) for layer in range(layers) for role in _ROLES} - found):
        raise refuse(f"layer {layer} has no ffn_{role}")
    for tensor in file.tensors:
        ffn = ".ffn_" in tensor.name and ".ffn_norm." not in tensor.name
        matrix_or_vector = len(tensor.shape) in (1, 2) and 0 not in tensor.shape
        if not matrix_or_vector or (ffn and not _FFN.fullmatch(tensor.name)):
            raise refuse(f"it has a tensor {tensor.name}")
        try:
            dequantize(_packed_rows(file.path, tensor)[:1], GGMLQuantizationType[tensor.type])
        except (KeyError, NotImplementedError) as error:
            raise refuse(f"{tensor.name} is of type {tensor.type}") from error


def _role(tensor: Tensor) -> str:
    """'gate', 'up', 'down', or '' for a tensor that is not widened."""
    match = _FFN.fullmatch(tensor.name)
    return match[2] if match else ""


def _shape(tensor: Tensor, factor: int) -> tuple[int, ...]:
    """The widened tensor's shape, rows first."""
    if len(tensor.shape) == 1:
        return tensor.shape
    columns, rows = tensor.shape
    role = _role(tensor)
    if role == "down":
        return rows, columns * factor
    return (rows * factor, columns) if role else (rows, columns)


def _bytes(tensor: Tensor, factor: int) -> int:
    shape = _shape(tensor, factor)
    return int(np.prod(shape)) * (4 if len(shape) == 1 else 2)


def _padded(n_bytes: int) -> int:
    return GGUFWriter.ggml_pad(n_bytes, GGUF_DEFAULT_ALIGNMENT)


def _header_bytes(metadata: dict[str, Value], tensors: tuple[Tensor, ...]) -> int:
    """Bytes before the first tensor: magic, version, counts, metadata, tensor directory, padding."""
    pairs = sum(8 + len(key.encode()) + 4 + _value_bytes(value) for key, value in metadata.items())
    directory = sum(8 + len(tensor.name.encode()) + 16 + 8 * len(tensor.shape) for tensor in tensors)
    return _padded(24 + pairs + directory)


def _value_bytes(value: Value) -> int:
    if value.kind == GGUFValueType.STRING:
        return 8 + len(value.value)
    if value.element is None:
        return struct.calcsize(_SCALARS[value.kind])
    if value.element == GGUFValueType.STRING:
        return 12 + sum(8 + len(text) for text in value.value)
    return 12 + len(value.value) * struct.calcsize(_SCALARS[value.element])


# --- writing it -------------------------------------------------------------------------------------------


def write(plan: Plan, destination: Path, progress: Callable[[int, int], None]) -> None:
    """Write what ``plan`` describes to a temporary file, check it, and give it the name ``destination``.

    Whatever stops it (an error, Ctrl-C), the temporary file is removed. Builds that run at once do not meet:
    each has its own temporary file and the last one to finish keeps the name.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(destination)
        free = shutil.disk_usage(destination.parent).free
    except OSError as error:
        raise UsageError(f"cannot write in {destination.parent}: {error.strerror or error}") from error
    if free < plan.total_bytes:
        room = f"{_size(plan.total_bytes)} needed, {_size(free)} free in {destination.parent}"
        raise UsageError(f"no room to build {destination.name}: {room}; free some space and run it again")
    partial = destination.with_name(f"{destination.name}.{os.getpid()}-{secrets.token_hex(4)}.partial")
    try:
        _write_file(plan, partial, progress)
        _settle(plan, partial, destination)
    except OSError as error:
        raise SpecdecError(f"could not write {destination}: {error.strerror or error}") from error
    finally:
        partial.unlink(missing_ok=True)


def _remove_abandoned(destination: Path) -> None:
    """Remove the temporary files of builds that were killed before they could do it themselves."""
    for path in destination.parent.iterdir():
        ours = path.name.startswith(f"{destination.name}.") and path.name.endswith(".partial")
        try:
            if ours and time.time() - path.stat().st_mtime > ABANDONED_AFTER:
                path.unlink()
        except OSError:  # another build was faster, or the file is not ours to remove
            continue


def _write_file(plan: Plan, path: Path, progress: Callable[[int, int], None]) -> None:
    writer = GGUFWriter(None, plan.arch)
    for key, value in plan.metadata.items():
        if key != "general.architecture":  # the writer has put it first
            writer.add_key_value(key, *value)
    for tensor in plan.tensors:
        shape = _shape(tensor, plan.factor)
        kind = GGMLQuantizationType.F32 if len(shape) == 1 else GGMLQuantizationType.BF16
        memory = np.dtype(np.float32 if len(shape) == 1 else np.uint16)
        writer.add_tensor_info(tensor.name, shape, memory, _bytes(tensor, plan.factor), kind)
    progress(0, plan.total_bytes)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        done = plan.header_bytes
        for tensor in plan.tensors:
            writer.write_tensor_data(_widened(plan.source, tensor, plan.factor))
            done += _padded(_bytes(tensor, plan.factor))
            progress(done, plan.total_bytes)
    finally:
        writer.close()


def _settle(plan: Plan, partial: Path, destination: Path) -> None:
    """Check the written file, make sure the disk has it, and rename it."""
    size = partial.stat().st_size
    if size != plan.total_bytes:
        raise SpecdecError(f"{destination.name} came out as {size} bytes, not {plan.total_bytes}; not kept")
    GGUFFile.read(partial)
    with partial.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        os.replace(partial, destination)
    except PermissionError:  # Windows, when another build has finished and its file is in use
        if not destination.is_file() or destination.stat().st_size != size:
            raise


def _widened(source: Path, tensor: Tensor, factor: int) -> NDArray[Any]:
    """The tensor to write: float32 for a vector, BF16 bits (uint16) for a matrix."""
    packed = _packed_rows(source, tensor)
    if len(tensor.shape) == 1:
        return dequantize(packed[0], GGMLQuantizationType[tensor.type])
    original = _bf16(packed, tensor)
    role = _role(tensor)
    if not role:
        return original
    wide = np.zeros(_shape(tensor, factor), np.uint16)
    rows, columns = original.shape
    wide[:rows, :columns] = original
    if role != "down":
        wide[rows:] = _noise(tensor.name, original, rows * (factor - 1))
    return wide


def _packed_rows(source: Path, tensor: Tensor) -> NDArray[np.uint8]:
    """A view of the tensor as it lies in the file: uint8 [rows, bytes]; a vector is one row."""
    flat = np.memmap(source, np.uint8, "r", tensor.offset, tensor.nbytes)
    rows = tensor.shape[1] if len(tensor.shape) == 2 else 1
    return flat.reshape(rows, -1)


def _bf16(packed: NDArray[np.uint8], tensor: Tensor) -> NDArray[np.uint16]:
    """The matrix as BF16 bits, unpacked a few rows at a time: a whole one as float32 is hundreds of MB."""
    columns, rows = tensor.shape
    step = max(1, _BLOCK_VALUES // columns)
    bits = np.empty((rows, columns), np.uint16)
    for start in range(0, rows, step):
        values = dequantize(packed[start : start + step], GGMLQuantizationType[tensor.type])
        bits[start : start + step] = quantize(values, GGMLQuantizationType.BF16).view(np.uint16)
    return bits


def _noise(name: str, like: NDArray[np.uint16], rows: int) -> NDArray[np.uint16]:
    """Rows of uniform noise as large as the values of ``like``, as BF16 bits.

    Only integers are drawn and the scale is a power of two, so every step is exact: no rounding, no sum and
    no function whose last digit depends on the machine.
    """
    exponents = np.cumsum(np.bincount(((like >> 7) & 0xFF).ravel(), minlength=256))
    median = int(np.searchsorted(exponents, like.size // 2, side="right"))
    # 128 steps of 2^(median - 5): of the same root mean square as a bell curve with that median, within 1.6x
    scale = min(median, 127) - 127 - 5
    levels = np.ldexp(np.arange(-128, 128, dtype=np.float32), scale).view(np.uint32) >> 16
    draws = np.random.RandomState(zlib.crc32(name.encode())).bytes(rows * like.shape[1])
    noise: NDArray[np.uint16] = levels.astype(np.uint16)[np.frombuffer(draws, np.uint8)]
    return noise.reshape(rows, like.shape[1])


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 1e9:.1f} GB" if n_bytes >= 1e9 else f"{n_bytes / 1e6:.1f} MB"
