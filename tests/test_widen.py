"""Widening: what is in the widened file, what it writes, and that nothing unfinished is ever left behind."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import gguf
import numpy as np
import pytest
import tiny
from llama_cpp import Llama
from numpy.typing import NDArray

from specdec.errors import SpecdecError, UsageError
from specdec.registry import Registry
from specdec.widen import plan, widen
from specdec.widened import is_widened

FACTOR = 3
HEADER_DRIFT = 4096  # bytes; the size announced takes the header to be as long as the source's
WIDENED = ("ffn_gate", "ffn_up", "ffn_down")


def ignore(done: int, total: int) -> None:
    """A progress nobody looks at."""


def tensors(path: Path) -> dict[str, gguf.ReaderTensor]:
    return {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}


def values(tensor: gguf.ReaderTensor) -> NDArray[np.float32]:
    unpacked: NDArray[np.float32] = gguf.dequantize(tensor.data, tensor.tensor_type)
    return unpacked


def metadata(path: Path) -> dict[str, Any]:
    fields = gguf.GGUFReader(path).fields
    return {key: field.contents() for key, field in fields.items() if not key.startswith("GGUF.")}


def as_bf16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    bits = gguf.quantize(x, gguf.GGMLQuantizationType.BF16)
    rounded: NDArray[np.float32] = gguf.dequantize(bits, gguf.GGMLQuantizationType.BF16)
    return rounded


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tiny.llama(tmp_path / "source.gguf", dtype="q4_1")


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A directory for widened files, not there yet."""
    return tmp_path / "cache"


# --- what is in it ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"])
def test_tensors(tmp_path: Path, dtype: tiny.Dtype) -> None:
    source = tiny.llama(tmp_path / "source.gguf", dtype=dtype)
    widen(source, tmp_path / "wide.gguf", FACTOR, ignore)
    old, new = tensors(source), tensors(tmp_path / "wide.gguf")
    assert list(new) == list(old)
    for name, tensor in new.items():
        before, after = values(old[name]), values(tensor)
        if before.ndim == 1:
            assert tensor.tensor_type == gguf.GGMLQuantizationType.F32
            assert np.array_equal(after, before)
            continue
        assert tensor.tensor_type == gguf.GGMLQuantizationType.BF16
        rows, columns = before.shape
        assert np.array_equal(after[:rows, :columns], as_bf16(before))
        if "ffn_down" in name:
            assert after.shape == (rows, columns * FACTOR)
            assert not after[:, columns:].any()
        elif "ffn_" in name:
            assert after.shape == (rows * FACTOR, columns)
            noise = after[rows:]
            assert np.isfinite(noise).all()
            assert 0.5 < np.sqrt((noise**2).mean() / (before**2).mean()) < 2
        else:
            assert after.shape == before.shape


def test_noise_is_the_same_on_every_machine(source: Path, cache: Path) -> None:
    widen(source, cache / "wide.gguf", FACTOR, ignore)
    rows = values(tensors(cache / "wide.gguf")["blk.1.ffn_up.weight"])[128:]
    levels = rows / np.abs(rows)[rows != 0].min()
    draws = np.random.RandomState(crc32(b"blk.1.ffn_up.weight")).randint(
        0, 1 << 32, rows.size // 4, np.uint32
    )
    assert np.array_equal(levels.ravel(), draws.astype("<u4").view(np.uint8).astype(int) - 128)
    assert levels.ravel()[:8].tolist() == [63, -85, -1, -105, -56, 83, 110, -114]


def test_metadata(source: Path, cache: Path) -> None:
    widen(source, cache / "wide.gguf", FACTOR, ignore)
    old, new = metadata(source), metadata(cache / "wide.gguf")
    parameters = sum(int(tensor.n_elements) for tensor in tensors(cache / "wide.gguf").values())
    note = "tiny llama with a feed-forward part 3 times as wide; the added weights do nothing."
    changed = {key: value for key, value in new.items() if old.get(key) != value}
    assert changed == {
        "llama.feed_forward_length": 128 * FACTOR,
        "general.name": "tiny llama widened x3",
        "general.description": note,
        "general.size_label": f"{parameters / 1e3:.0f}K",
        "general.file_type": int(gguf.LlamaFileType.MOSTLY_BF16),
        "specdec.widened.source": f"source.gguf, {source.stat().st_size} bytes",
        "specdec.widened.recipe": "x3, recipe 1",
    }
    assert old.keys() <= new.keys()


def test_a_width_for_each_layer(tmp_path: Path) -> None:
    source = tiny.llama(tmp_path / "source.gguf", extra={"llama.feed_forward_length": [128, 128]})
    widen(source, tmp_path / "wide.gguf", FACTOR, ignore)
    assert metadata(tmp_path / "wide.gguf")["llama.feed_forward_length"] == [384, 384]


def test_source_of_another_alignment(tmp_path: Path) -> None:
    source = write_gguf(tmp_path / "plain.gguf", PLAIN | {"output_norm.weight": (33,)}, alignment=64)
    widen(source, tmp_path / "wide.gguf", 2, ignore)
    assert "general.alignment" in metadata(source)
    assert "general.alignment" not in metadata(tmp_path / "wide.gguf")
    size = (tmp_path / "wide.gguf").stat().st_size
    assert plan(source, 2).total_bytes == pytest.approx(size, abs=HEADER_DRIFT)


def test_same_bytes_each_time(source: Path, cache: Path) -> None:
    widen(source, cache / "one.gguf", FACTOR, ignore)
    widen(source, cache / "two.gguf", FACTOR, ignore)
    assert (cache / "one.gguf").read_bytes() == (cache / "two.gguf").read_bytes()


def test_size_and_progress(source: Path, cache: Path) -> None:
    calls: list[tuple[int, int]] = []
    widen(source, cache / "wide.gguf", FACTOR, lambda done, total: calls.append((done, total)))
    size = plan(source, FACTOR).total_bytes
    assert size == pytest.approx((cache / "wide.gguf").stat().st_size, abs=HEADER_DRIFT)
    assert {total for _, total in calls} == {size}
    done = [done for done, _ in calls]
    assert done == sorted(done)
    assert (done[0], done[-1]) == (0, size)
    assert len(calls) == 1 + len(tensors(source))


# --- what it writes ---------------------------------------------------------------------------------------


def logits(path: Path, tokens: list[int]) -> NDArray[np.float32]:
    model = Llama(str(path), n_ctx=64, n_threads=1, logits_all=True, verbose=False)
    model.eval(tokens)
    return np.array(model.scores[: len(tokens)])


def test_same_logits(tmp_path: Path) -> None:
    source = tiny.llama(tmp_path / "source.gguf", dtype="bf16")
    widen(source, tmp_path / "wide.gguf", 4, ignore)
    tokens = list(range(300, 332))
    assert np.abs(logits(source, tokens) - logits(tmp_path / "wide.gguf", tokens)).max() < 1e-3


def greedy(path: Path, prompt: str, n: int) -> list[int]:
    model = Llama(str(path), n_ctx=256, verbose=False)
    tokens = model.tokenize(prompt.encode(), special=True)
    stream: Iterator[int] = model.generate(tokens, temp=0.0, top_k=1, repeat_penalty=1.0)
    return [token for token, _ in zip(stream, range(n), strict=False)]


def test_smollm2_writes_the_same(smollm_path: Path, tmp_path: Path) -> None:
    listed = Registry.load().entries["smollm2-135m-wide"].size
    assert plan(smollm_path, 8).total_bytes == pytest.approx(listed, abs=HEADER_DRIFT)
    for factor in (1, 2):  # x1 is the model as it is, in BF16: rounding is the same on both sides
        widen(smollm_path, tmp_path / f"x{factor}.gguf", factor, ignore)
    prompt = "<|im_start|>user\nExplain why the sky is blue.<|im_end|>\n<|im_start|>assistant\n"
    assert greedy(tmp_path / "x2.gguf", prompt, 24) == greedy(tmp_path / "x1.gguf", prompt, 24)


# --- what cannot be widened -------------------------------------------------------------------------------


def write_gguf(path: Path, shapes: dict[str, tuple[int, ...]], alignment: int | None = None) -> Path:
    """A one-layer file with these tensors (rows first), zeros all of them."""
    writer = gguf.GGUFWriter(path, "llama")
    if alignment:
        writer.add_custom_alignment(alignment)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_embedding_length(32)
    for name, shape in shapes.items():
        kind = np.int32 if name == "blk.0.ids" else np.float32
        writer.add_tensor(name, np.zeros(shape, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


PLAIN: dict[str, tuple[int, ...]] = {
    "blk.0.ffn_gate.weight": (64, 32),
    "blk.0.ffn_up.weight": (64, 32),
    "blk.0.ffn_down.weight": (32, 64),
    "blk.0.ffn_norm.weight": (32,),
}


@pytest.mark.parametrize(
    ("shapes", "reason"),
    [
        ({k: v for k, v in PLAIN.items() if "gate" not in k}, "layer 0 has no ffn_gate"),
        (PLAIN | {"blk.0.ffn_up.weight": (64,)}, "it has a tensor blk.0.ffn_up.weight"),
        (PLAIN | {"blk.0.ffn_up.bias": (64,)}, "it has a tensor blk.0.ffn_up.bias"),
        (PLAIN | {"blk.0.ffn_sub_norm.weight": (64,)}, "it has a tensor blk.0.ffn_sub_norm.weight"),
        (PLAIN | {"blk.0.ffn_up_exps.weight": (4, 64, 32)}, "it has a tensor blk.0.ffn_up_exps.weight"),
        (PLAIN | {"blk.0.conv.weight": (4, 2, 32)}, "it has a tensor blk.0.conv.weight"),
        (PLAIN | {"blk.0.ids": (4, 2)}, "blk.0.ids is of type I32"),
    ],
)
def test_refuses_other_feed_forwards(tmp_path: Path, shapes: dict[str, tuple[int, ...]], reason: str) -> None:
    source = write_gguf(tmp_path / "odd.gguf", shapes)
    with pytest.raises(UsageError) as raised:
        widen(source, tmp_path / "wide.gguf", 2, ignore)
    assert str(raised.value) == (
        f"{source}: cannot be widened: {reason} (architecture llama); "
        "widening needs plain ffn_gate, ffn_up and ffn_down tensors, as llama and qwen2 have"
    )
    assert os.listdir(tmp_path) == ["odd.gguf"]


def test_the_plain_one_is_accepted(tmp_path: Path) -> None:
    widen(write_gguf(tmp_path / "plain.gguf", PLAIN), tmp_path / "wide.gguf", 2, ignore)
    assert (tmp_path / "wide.gguf").is_file()


def test_refuses_another_architecture(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"cannot be widened: layer 0 has no ffn_down \(architecture mamba\)"
    ):
        plan(tiny.mamba(tmp_path / "mamba.gguf"), 2)


def test_refuses_what_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be widened: it does not say its block_count"):
        plan(tiny.clip(tmp_path / "clip.gguf"), 2)


def test_refuses_texts_that_are_not_utf8(tmp_path: Path) -> None:
    source = tiny.llama(tmp_path / "source.gguf")
    source.write_bytes(source.read_bytes().replace(b"tiny llama", b"tiny \xff\xff\xff\xff\xff"))
    with pytest.raises(UsageError, match=r"cannot be widened: its header cannot be read: 'utf-8' codec"):
        plan(source, 2)


def test_refuses_broken_files(source: Path, tmp_path: Path) -> None:
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(source.read_bytes()[:-100])
    for name in ("text.gguf", "cut.gguf", "missing.gguf"):
        with pytest.raises(UsageError) as raised:
            widen(tmp_path / name, tmp_path / "wide.gguf", 2, ignore)
        assert name in str(raised.value)
        assert "\n" not in str(raised.value)
    assert not (tmp_path / "wide.gguf").exists()


def test_refuses_a_part(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.widen.GGUFFile.read", lambda path: SimpleNamespace(parts=(path, path)))
    with pytest.raises(UsageError, match="it is one part of a split model; merge the parts first"):
        plan(source, 2)


# --- nothing unfinished is left ---------------------------------------------------------------------------


def test_no_room(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100_000))
    needed = plan(source, FACTOR).total_bytes
    with pytest.raises(UsageError) as raised:
        widen(source, cache / "wide.gguf", FACTOR, ignore)
    assert str(raised.value) == (
        f"no room to build wide.gguf: {needed / 1e6:.1f} MB needed, 0.1 MB free in {cache}; "
        "free some space and run it again"
    )
    assert os.listdir(cache) == []


def test_exactly_enough_room(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = plan(source, FACTOR).total_bytes
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=needed))
    widen(source, cache / "wide.gguf", FACTOR, ignore)
    assert os.listdir(cache) == ["wide.gguf"]


@pytest.mark.parametrize("calls", [0, 1, 9])
def test_interrupted(source: Path, cache: Path, calls: int) -> None:
    seen: list[list[str]] = []

    def interrupt(done: int, total: int) -> None:
        if len(seen) == calls:
            raise KeyboardInterrupt
        seen.append(os.listdir(cache))

    with pytest.raises(KeyboardInterrupt):
        widen(source, cache / "wide.gguf", FACTOR, interrupt)
    assert os.listdir(cache) == []
    if calls > 1:  # it was under way, under a name that says so
        assert [name.endswith(".partial") for name in seen[-1]] == [True]


def test_disk_fills_up(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache.mkdir()
    (cache / "wide.gguf").write_text("an older one")
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", full)
    with pytest.raises(SpecdecError) as raised:
        widen(source, cache / "wide.gguf", FACTOR, ignore)
    assert str(raised.value) == f"could not write {cache / 'wide.gguf'}: No space left on device"
    assert raised.value.exit_code == 1
    assert os.listdir(cache) == ["wide.gguf"]
    assert (cache / "wide.gguf").read_text() == "an older one"


def test_no_directory_to_write_in(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=rf"^cannot write in {tmp_path}/file/cache: Not a directory$"):
        widen(source, tmp_path / "file" / "cache" / "wide.gguf", FACTOR, ignore)


def test_other_tensors_are_not_kept(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = gguf.GGUFWriter.add_tensor_info

    def renamed(writer: gguf.GGUFWriter, name: str, *others: Any) -> None:
        add(writer, name.replace("ffn_up", "ffn_down_too"), *others)

    monkeypatch.setattr(gguf.GGUFWriter, "add_tensor_info", renamed)
    with pytest.raises(SpecdecError, match=r"^wide\.gguf came out with other tensors than planned"):
        widen(source, cache / "wide.gguf", FACTOR, ignore)
    assert os.listdir(cache) == []


def test_cut_off_file_is_not_kept(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf.GGUFWriter, "write_tensor_data", lambda writer, values: None)
    with pytest.raises(SpecdecError, match=r"^wide\.gguf came out damaged and is not kept: ") as raised:
        widen(source, cache / "wide.gguf", FACTOR, ignore)
    assert raised.value.exit_code == 1
    assert os.listdir(cache) == []


def test_two_builds_at_once(source: Path, cache: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        builds = [pool.submit(widen, source, cache / "wide.gguf", FACTOR, ignore) for _ in range(2)]
    assert [build.result() for build in builds] == [None, None]
    assert os.listdir(cache) == ["wide.gguf"]
    assert is_widened(cache / "wide.gguf", source, FACTOR)


def test_finished_file_in_use(source: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    widen(source, cache / "wide.gguf", FACTOR, ignore)

    def in_use(old: Path, new: Path) -> None:
        raise PermissionError(errno.EACCES, "Access is denied")

    monkeypatch.setattr(os, "replace", in_use)
    widen(source, cache / "wide.gguf", FACTOR, ignore)  # the other build's file will do
    assert os.listdir(cache) == ["wide.gguf"]
    with pytest.raises(SpecdecError, match=r"could not write .*new\.gguf: Access is denied"):
        widen(source, cache / "new.gguf", FACTOR, ignore)


def test_is_widened(source: Path, tmp_path: Path) -> None:
    wide = tmp_path / "wide.gguf"
    widen(source, wide, FACTOR, ignore)
    other = tiny.llama(tmp_path / "other.gguf", dtype="q8_0")
    assert is_widened(wide, source, FACTOR)
    assert is_widened(wide, None, FACTOR)
    assert not is_widened(wide, source, FACTOR + 1)
    assert not is_widened(wide, other, FACTOR)
    assert not is_widened(source, None, FACTOR)
    assert not is_widened(tmp_path / "missing.gguf", None, FACTOR)
    wide.write_bytes(wide.read_bytes()[:-1])
    assert not is_widened(wide, source, FACTOR)
