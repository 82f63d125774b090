"""Widening: a big target made of a small real model, which writes what the small one writes.

Every layer's feed-forward part gets ``factor`` times as many neurons. The new rows of ``ffn_gate`` and
``ffn_up`` are noise and the new columns of ``ffn_down`` are zeros, so whatever a new neuron computes is
multiplied by zero: the file costs what a model of its size costs, and says what its source says.

Everything is written as BF16 (norms and other vectors as F32), tensor by tensor; the same source and factor
give the same bytes on every machine.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import gguf
import numpy as np
from numpy.typing import NDArray

from . import partial
from .errors import SpecdecError, UsageError
from .gguf_file import GGUFFile
from .widened import RECIPE_KEY, SOURCE_KEY, identity, recipe

_FFN = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.weight")
_ROLES = ("gate", "up", "down")
_BLOCK_VALUES = 1 << 22  # values unpacked at once: 16 MB of float32

Metadata: TypeAlias = dict[str, gguf.GGUFValue]


class WideTensor(NamedTuple):
    """A tensor of the source, and what becomes of it."""

    source: gguf.ReaderTensor
    shape: tuple[int, ...]  # rows first
    kind: gguf.GGMLQuantizationType  # F32 for a vector, BF16 for a matrix
    nbytes: int


@dataclass(frozen=True)
class Plan:
    """A widened file before it is written: all that is in it but the weights."""

    arch: str
    metadata: Metadata
    tensors: list[WideTensor]
    total_bytes: int  # to within some kB: the header is taken to be as long as the source's


def widen(source: Path, destination: Path, factor: int, progress: Callable[[int, int], None]) -> None:
    """Write ``destination``: the model ``source`` with a feed-forward part ``factor`` times as wide.

    ``progress(bytes_done, bytes_total)`` is called with 0 when the file is about to be written (everything
    is checked by then) and after each tensor. ``destination`` appears complete or not at all.

    Raises UsageError, with nothing written, for a source that cannot be widened and for a disk without room;
    SpecdecError when writing fails.
    """
    write(plan(source, factor), destination, progress)


def plan(source: Path, factor: int) -> Plan:
    """Read what the widened file needs to know of ``source``.

    Raises UsageError when the source is broken or is not a model with plain gate/up/down tensors.
    """
    file = GGUFFile.read(source)
    if len(file.parts) > 1:
        raise UsageError(
            f"{source}: cannot be widened: it is one part of a split model; merge the parts first"
        )
    try:
        reader = gguf.GGUFReader(source)
        metadata = _metadata(reader)
    except (ValueError, KeyError) as error:  # such as texts that are not UTF-8, which GGUFFile lets pass
        raise UsageError(f"{source}: cannot be widened: its header cannot be read: {error}") from error
    _require_plain(file, metadata, reader.tensors)
    tensors = [_wide(tensor, factor) for tensor in reader.tensors]
    metadata.update(_changed(file, metadata, tensors, factor))
    header = file.size - file.weights_bytes
    return Plan(file.architecture, metadata, tensors, header + sum(wide.nbytes for wide in tensors))


def _metadata(reader: gguf.GGUFReader) -> Metadata:
    """The metadata without what is about the file's own layout, and without what GGUFWriter refuses."""
    metadata = {}
    for key, entry in reader.fields.items():
        value = entry.contents()
        if key != "general.alignment" and not key.startswith("GGUF.") and value != []:
            metadata[key] = gguf.GGUFValue(value, *entry.types)
    return metadata


def _wide(tensor: gguf.ReaderTensor, factor: int) -> WideTensor:
    shape, role = [int(n) for n in reversed(tensor.shape)], _role(tensor)
    if role:
        shape[1 if role == "down" else 0] *= factor
    kind = gguf.GGMLQuantizationType.F32 if len(shape) == 1 else gguf.GGMLQuantizationType.BF16
    return WideTensor(tensor, tuple(shape), kind, math.prod(shape) * gguf.GGML_QUANT_SIZES[kind][1])


def _changed(file: GGUFFile, metadata: Metadata, tensors: list[WideTensor], factor: int) -> Metadata:
    """The metadata that tells the widened file from its source."""
    key = f"{file.architecture}.feed_forward_length"
    width = metadata[key].value
    wider = [n * factor for n in width] if isinstance(width, list) else width * factor
    name = file.text("general.name") or file.path.stem
    parameters = sum(math.prod(wide.shape) for wide in tensors)
    note = f"{name} with a feed-forward part {factor} times as wide; the added weights do nothing."
    return {
        key: replace(metadata[key], value=wider),
        "general.name": _string(f"{name} widened x{factor}"),
        "general.description": _string(note),
        "general.size_label": _string(gguf.model_weight_count_rounded_notation(parameters)),
        "general.file_type": gguf.GGUFValue(int(gguf.LlamaFileType.MOSTLY_BF16), gguf.GGUFValueType.UINT32),
        SOURCE_KEY: _string(identity(file.path)),
        RECIPE_KEY: _string(recipe(factor)),
    }


def _string(text: str) -> gguf.GGUFValue:
    return gguf.GGUFValue(text, gguf.GGUFValueType.STRING)


def _require_plain(file: GGUFFile, metadata: Metadata, tensors: list[gguf.ReaderTensor]) -> None:
    """Raise UsageError unless each layer is gate, up and down and nothing else depends on their width."""

    def refuse(reason: str) -> UsageError:
        needs = "widening needs plain ffn_gate, ffn_up and ffn_down tensors, as llama and qwen2 have"
        return UsageError(
            f"{file.path}: cannot be widened: {reason} (architecture {file.architecture}); {needs}"
        )

    for key in ("block_count", "feed_forward_length"):
        if f"{file.architecture}.{key}" not in metadata:
            raise refuse(f"it does not say its {key}")
    layers = file.integer(f"{file.architecture}.block_count") or 0
    found = {(int(match[1]), match[2]) for t in tensors if (match := _FFN.fullmatch(t.name))}
    for layer, role in sorted({(layer, role) for layer in range(layers) for role in _ROLES} - found):
        raise refuse(f"layer {layer} has no ffn_{role}")
    for tensor in tensors:
        ffn = ".ffn_" in tensor.name and ".ffn_norm." not in tensor.name
        dims = (2,) if _role(tensor) else () if ffn else (1, 2)  # how many of them are plain
        if len(tensor.shape) not in dims or 0 in tensor.shape:
            raise refuse(f"it has a tensor {tensor.name}")
        try:
            gguf.dequantize(np.atleast_2d(tensor.data)[:1], tensor.tensor_type)
        except NotImplementedError as error:
            raise refuse(f"{tensor.name} is of type {tensor.tensor_type.name}") from error


def _role(tensor: gguf.ReaderTensor) -> str:
    """'gate', 'up', 'down', or '' for a tensor that is not widened."""
    match = _FFN.fullmatch(tensor.name)
    return match[2] if match else ""


def write(plan: Plan, destination: Path, progress: Callable[[int, int], None]) -> None:
    """Write what ``plan`` describes to a temporary file, check it, and give it the name ``destination``.

    Whatever stops it (an error, Ctrl-C), the temporary file is removed; after a kill, the next build does it.
    Builds that run at once do not meet: each has its own and the last one to finish keeps the name.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        partial.sweep(destination)
        free = shutil.disk_usage(destination.parent).free
    except OSError as error:
        raise UsageError(f"cannot write in {destination.parent}: {error.strerror or error}") from error
    if free < plan.total_bytes:
        room = f"{_size(plan.total_bytes)} needed, {_size(free)} free in {destination.parent}"
        raise UsageError(f"no room to build {destination.name}: {room}; free some space and run it again")
    try:
        with partial.writing(destination) as path:
            _write_file(plan, path, progress)
            _settle(plan, path, destination)
    except OSError as error:
        raise SpecdecError(f"could not write {destination}: {error.strerror or error}") from error


def _write_file(plan: Plan, path: Path, progress: Callable[[int, int], None]) -> None:
    writer = gguf.GGUFWriter(None, plan.arch)
    for key, value in plan.metadata.items():
        if key != "general.architecture":  # the writer has put it first
            writer.add_key_value(key, value.value, value.type, value.sub_type)
    unused = np.dtype(np.uint16)  # the memory's type has no say beside the file's
    for wide in plan.tensors:
        writer.add_tensor_info(wide.source.name, wide.shape, unused, wide.nbytes, wide.kind)
    progress(0, plan.total_bytes)
    try:
        writer.write_header_to_file(path)
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        left = sum(wide.nbytes for wide in plan.tensors)
        for wide in plan.tensors:
            writer.write_tensor_data(_values(wide))
            left -= wide.nbytes
            progress(plan.total_bytes - left, plan.total_bytes)
    finally:
        writer.close()


def _settle(plan: Plan, path: Path, destination: Path) -> None:
    """Check the written file, make sure the disk has it, and rename it."""
    planned = [(wide.source.name, wide.shape) for wide in plan.tensors]
    try:
        written = [(tensor.name, tensor.shape[::-1]) for tensor in GGUFFile.read(path).tensors]
    except UsageError as error:
        raise SpecdecError(f"{destination.name} came out damaged and is not kept: {error}") from error
    if written != planned:
        raise SpecdecError(f"{destination.name} came out with other tensors than planned; it is not kept")
    with path.open("rb+") as file:
        os.fsync(file.fileno())
    try:
        os.replace(path, destination)
    except PermissionError:  # Windows, when another build has finished and its file is in use
        if not destination.is_file() or destination.stat().st_size != path.stat().st_size:
            raise


def _values(wide: WideTensor) -> NDArray[Any]:
    """What to write: float32 of a vector, BF16 bits (uint16) of a matrix."""
    source = wide.source
    if len(wide.shape) == 1:
        return gguf.dequantize(source.data, source.tensor_type)
    columns, rows = (int(n) for n in source.shape)
    bits = np.zeros(wide.shape, np.uint16)
    step = max(1, _BLOCK_VALUES // columns)  # the whole matrix as float32 would be hundreds of MB
    for start in range(0, rows, step):
        block = gguf.dequantize(source.data[start : start + step], source.tensor_type)
        bf16 = gguf.quantize(block, gguf.GGMLQuantizationType.BF16)
        bits[start : start + len(block), :columns] = bf16.view(np.uint16)
    if wide.shape[0] > rows:
        bits[rows:] = _noise(source.name, bits[:rows], wide.shape[0] - rows)
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
