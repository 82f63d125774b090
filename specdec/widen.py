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
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gguf import (
    GGUF_DEFAULT_ALIGNMENT,
    GGMLQuantizationType,
    GGUFReader,
    GGUFValueType,
    GGUFWriter,
    LlamaFileType,
    ReaderTensor,
    dequantize,
    model_weight_count_rounded_notation,
    quantize,
)
from numpy.typing import NDArray

from .errors import SpecdecError, UsageError
from .gguf_file import GGUFFile

RECIPE_KEY = "specdec.widened.recipe"
SOURCE_KEY = "specdec.widened.source"
ABANDONED_AFTER = 3600  # seconds without a write after which another build's temporary file is litter

_FFN = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
_ROLES = ("gate", "up", "down")
_BLOCK_VALUES = 1 << 22  # values unpacked at once: 16 MB of float32
_SCALARS = {  # bytes of a metadata value
    **dict.fromkeys((GGUFValueType.UINT8, GGUFValueType.INT8, GGUFValueType.BOOL), 1),
    **dict.fromkeys((GGUFValueType.UINT16, GGUFValueType.INT16), 2),
    **dict.fromkeys((GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.FLOAT32), 4),
    **dict.fromkeys((GGUFValueType.UINT64, GGUFValueType.INT64, GGUFValueType.FLOAT64), 8),
}


class Value(NamedTuple):
    """A metadata value, its GGUF type and, for an array, the type of its elements."""

    value: Any
    kind: GGUFValueType
    element: GGUFValueType | None = None


@dataclass(frozen=True)
class Plan:
    """A widened file before it is written: all that is in it but the weights, and its exact size in bytes."""

    factor: int
    arch: str
    metadata: dict[str, Value]
    tensors: list[ReaderTensor]  # of the source, in its order
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
    """Read what the widened file needs to know of ``source`` (about 2 s for 50,000 tokens).

    Raises UsageError when the source is broken or is not a model with plain gate/up/down tensors.
    """
    if len(GGUFFile.read(source).parts) > 1:  # read for its errors, which are better than GGUFReader's
        raise UsageError(
            f"{source}: cannot be widened: it is one part of a split model; merge the parts first"
        )
    try:
        reader = GGUFReader(source)
        metadata = _metadata(reader)
        arch = str(metadata["general.architecture"].value)
        blocks = int(metadata[f"{arch}.block_count"].value)
        ffn = metadata[f"{arch}.feed_forward_length"]
    except (ValueError, KeyError, IndexError, OSError) as error:
        raise UsageError(f"{source}: cannot be widened: not a readable language model ({error})") from error
    _require_plain(source, arch, blocks, reader.tensors)
    metadata.update(_changed(source, factor, arch, ffn, metadata, reader.tensors))
    header = _header_bytes(metadata, reader.tensors)
    weights = sum(_padded(_bytes(tensor, factor)) for tensor in reader.tensors)
    return Plan(factor, arch, metadata, reader.tensors, header, header + weights)


def _metadata(reader: GGUFReader) -> dict[str, Value]:
    """The source's metadata, without what is about its own layout."""
    kept = {}
    for key, field in reader.fields.items():
        empty = field.types[:1] == [GGUFValueType.ARRAY] and not field.data  # GGUFWriter cannot write one
        if not empty and not key.startswith("GGUF.") and key != "general.alignment":
            element = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            kept[key] = Value(field.contents(), field.types[0], element)
    return kept


def _changed(
    source: Path, factor: int, arch: str, ffn: Value, metadata: dict[str, Value], tensors: list[ReaderTensor]
) -> dict[str, Value]:
    """The metadata that tells the widened file from its source."""
    name = metadata["general.name"].value if "general.name" in metadata else source.stem
    width = [n * factor for n in ffn.value] if isinstance(ffn.value, list) else ffn.value * factor
    parameters = sum(int(np.prod(_shape(tensor, factor))) for tensor in tensors)
    note = f"{name} with a feed-forward part {factor} times as wide; the added weights do nothing."
    return {
        f"{arch}.feed_forward_length": ffn._replace(value=width),
        "general.name": Value(f"{name} widened x{factor}", GGUFValueType.STRING),
        "general.description": Value(note, GGUFValueType.STRING),
        "general.size_label": Value(model_weight_count_rounded_notation(parameters), GGUFValueType.STRING),
        "general.file_type": Value(int(LlamaFileType.MOSTLY_BF16), GGUFValueType.UINT32),
        SOURCE_KEY: Value(_identity(source), GGUFValueType.STRING),
        RECIPE_KEY: Value(_recipe(factor), GGUFValueType.STRING),
    }


def _identity(source: Path) -> str:
    return f"{source.name}, {source.stat().st_size} bytes"


def _recipe(factor: int) -> str:
    return f"x{factor}, recipe 1"  # the number goes up when the same source gives other bytes


def _require_plain(source: Path, arch: str, blocks: int, tensors: list[ReaderTensor]) -> None:
    """Raise UsageError unless each layer is gate, up and down and nothing else depends on their width."""

    def refuse(reason: str) -> UsageError:
        needs = "widening needs plain ffn_gate, ffn_up and ffn_down tensors, as llama and qwen2 have"
        return UsageError(f"{source}: cannot be widened: {reason} (architecture {arch}); {needs}")

    found = {(int(match[1]), match[2]) for t in tensors if (match := _FFN.fullmatch(t.name))}
    for missing in sorted({(block, role) for block in range(blocks) for role in _ROLES} - found):
        raise refuse(f"layer {missing[0]} has no ffn_{missing[1]}")
    for tensor in tensors:
        ffn = ".ffn_" in tensor.name and ".ffn_norm." not in tensor.name
        if len(tensor.shape) > 2 or (ffn and not _FFN.fullmatch(tensor.name)):
            raise refuse(f"it has a tensor {tensor.name}")
        try:
            dequantize(tensor.data if len(tensor.shape) == 1 else tensor.data[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise refuse(f"{tensor.name} is of type {tensor.tensor_type.name}") from error


def _role(tensor: ReaderTensor) -> str:
    """'gate', 'up', 'down', or '' for a tensor that is not widened."""
    match = _FFN.fullmatch(tensor.name)
    return match[2] if match else ""


def _shape(tensor: ReaderTensor, factor: int) -> tuple[int, ...]:
    """The widened tensor's shape, rows first."""
    shape = tuple(int(n) for n in reversed(tensor.shape))
    role = _role(tensor)
    if role == "down":
        return shape[0], shape[1] * factor
    return (shape[0] * factor, shape[1]) if role else shape


def _bytes(tensor: ReaderTensor, factor: int) -> int:
    shape = _shape(tensor, factor)
    return int(np.prod(shape)) * (4 if len(shape) == 1 else 2)


def _padded(n_bytes: int) -> int:
    return GGUFWriter.ggml_pad(n_bytes, GGUF_DEFAULT_ALIGNMENT)


def _header_bytes(metadata: dict[str, Value], tensors: list[ReaderTensor]) -> int:
    """Bytes before the first tensor: magic, version, counts, metadata, tensor directory, padding."""
    pairs = sum(_text_bytes(key) + 4 + _value_bytes(*value) for key, value in metadata.items())
    directory = sum(_text_bytes(tensor.name) + 16 + 8 * len(tensor.shape) for tensor in tensors)
    return _padded(24 + pairs + directory)


def _value_bytes(value: Any, kind: GGUFValueType, element: GGUFValueType | None) -> int:
    if kind == GGUFValueType.STRING:
        return _text_bytes(value)
    if element is not None:
        return 12 + sum(_value_bytes(item, element, None) for item in value)
    return _SCALARS[kind]


def _text_bytes(text: str) -> int:
    return 8 + len(text.encode())


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
            writer.add_key_value(key, value.value, value.kind, value.element)
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
            writer.write_tensor_data(_widened(tensor, plan.factor))
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


def _widened(tensor: ReaderTensor, factor: int) -> NDArray[Any]:
    """The tensor to write: float32 for a vector, BF16 bits (uint16) for a matrix."""
    if len(tensor.shape) == 1:
        return dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False)
    original = _bf16(tensor)
    role = _role(tensor)
    if not role:
        return original
    wide = np.zeros(_shape(tensor, factor), np.uint16)
    rows, columns = original.shape
    wide[:rows, :columns] = original
    if role != "down":
        wide[rows:] = _noise(tensor.name, original, rows * (factor - 1))
    return wide


def _bf16(tensor: ReaderTensor) -> NDArray[np.uint16]:
    """The matrix as BF16 bits, unpacked a few rows at a time: a whole one as float32 is hundreds of MB."""
    columns, rows = (int(n) for n in tensor.shape)
    step = max(1, _BLOCK_VALUES // columns)
    bits = np.empty((rows, columns), np.uint16)
    for start in range(0, rows, step):
        values = dequantize(tensor.data[start : start + step], tensor.tensor_type)
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
