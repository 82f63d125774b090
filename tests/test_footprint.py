"""Memory needed, by llama.cpp's own figures; memory there is; and what is said when one exceeds the other."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
import tiny
import tiny_architectures

from specdec import Engine, rollback
from specdec.architectures import KEEPS_STATES, has_state
from specdec.backend import Context, Model, llama
from specdec.backend.memory import PARTIAL, SEQUENCE
from specdec.errors import UsageError
from specdec.fit import fit, need
from specdec.footprint import Footprint, Shape, footprint
from specdec.gguf_file import GGUFFile
from specdec.pair import strategy
from specdec.room import Device, Room, _limits, amount, room
from specdec.settings import Drafting, Loading

ARCHITECTURES = [*tiny_architectures.ARCHITECTURES, "mamba"]
MIB = 1 << 20


@contextmanager
def said() -> Iterator[list[str]]:
    """What llama.cpp logs meanwhile."""
    lines: list[str] = []
    handler = logging.Handler(logging.DEBUG)
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    level = llama.LOG.level
    llama.LOG.addHandler(handler)
    llama.LOG.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        llama.LOG.removeHandler(handler)
        llama.LOG.setLevel(level)


def mebibytes(lines: list[str], what: str) -> float:
    return sum(float(n) for line in lines for n in re.findall(rf"{what} buffer size = *([\d.]+) MiB", line))


def cell_records(context: Context, n: int) -> int:
    """Bytes of the state of n tokens."""
    context.clear()
    context.feed(np.arange(3, 3 + n, dtype=np.int32))
    return int(llama_cpp.llama_state_seq_get_size(context.pointer, SEQUENCE))


@pytest.mark.parametrize("n_outputs", [2, 25])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_context_takes_what_its_header_says(architecture: str, n_outputs: int, tmp_path: Path) -> None:
    path = tiny_architectures.write(architecture, tmp_path / "model.gguf")
    shape = Shape.of(GGUFFile.read(path))
    with said() as lines, Model(path) as model:
        with Context(model, n_ctx=4000, n_outputs=n_outputs, threads=1) as context:
            assert context.memory.recurrent == has_state(architecture)
            assert (context.memory.n_snapshots > 0) == (architecture in KEEPS_STATES)
            # To the byte: what 16 more tokens add, besides 12 bytes for each in each of at most two caches;
            # within the sliding window, for of what lies before it no copy is made.
            added = cell_records(context, 28) - cell_records(context, 12)
            assert 0 <= added - 16 * 2 * (shape.keys + shape.values) <= 16 * 2 * 12
            if shape.state:
                size = llama_cpp.llama_state_seq_get_size_ext(context.pointer, SEQUENCE, PARTIAL)
                assert 0 <= size - 4 * shape.state <= 24 * shape.layers + 64
            n_batch, strategy_name = context.n_batch, context.rollback_strategy.name
        assert model.size == shape.weights
    copies = min(n_outputs - 1, rollback.MOST_SNAPSHOTS)
    found = footprint(shape, 4000, n_outputs=n_outputs, n_batch=n_batch, copies=copies)
    assert found.cells / MIB == pytest.approx(mebibytes(lines, "KV"), abs=0.011)
    assert found.state / MIB == pytest.approx(mebibytes(lines, "RS"), abs=0.006)
    assert 0.5 < found.buffers / MIB / mebibytes(lines, "compute") < 2.5
    assert not found.at_least
    assert strategy(architecture, n_outputs - 1) == strategy_name


def test_a_real_model_takes_what_its_header_says(smollm_path: Path) -> None:
    file = GGUFFile.read(smollm_path)
    shape = Shape.of(file)
    with said() as lines, Model(smollm_path) as model, Context(model, n_ctx=1000, n_outputs=25) as context:
        found = footprint(shape, 1000, n_outputs=25, n_batch=context.n_batch)
        assert model.size == found.weights
    assert found.cells == 30 * 1024 * (3 * 64 + 3 * 64) * 2  # layers, padded tokens, keys and values, F16
    assert found.cells / MIB == mebibytes(lines, "KV")
    assert 0.5 < found.buffers / MIB / mebibytes(lines, "compute") < 2.5


def header(arch: str, **values: Any) -> GGUFFile:
    metadata = {f"{arch}.{key.replace('__', '.')}": value for key, value in values.items()}
    path = Path("model.gguf")
    return GGUFFile(path, (path,), {"general.architecture": arch, **metadata}, (), 0)


def test_mla_keeps_one_compressed_row_and_no_values() -> None:
    common = dict(block_count=3, embedding_length=64, attention__head_count=4, attention__head_count_kv=1)
    lengths = dict(attention__key_length=576, attention__value_length=512)
    compressed = dict(attention__key_length_mla=192, attention__value_length_mla=128)
    found = Shape.of(header("deepseek2", **common, **lengths, **compressed))
    assert (found.keys, found.values) == (3 * 576, 0)
    whole = Shape.of(header("deepseek2", **common, **lengths))
    assert (whole.keys, whole.values) == (3 * 576, 3 * 512)


def array(values: list[int], tmp_path: Path, key: str) -> Any:
    tiny.llama(tmp_path / "array.gguf", extra={key: values})
    return GGUFFile.read(tmp_path / "array.gguf").metadata[key]


def test_shared_layers_have_no_cells_and_windows_their_own_length(tmp_path: Path) -> None:
    common = dict(block_count=6, embedding_length=64, attention__head_count=4, attention__head_count_kv=2)
    windows = array([1, 1, 0, 1, 1, 0], tmp_path, "x.windows")
    found = Shape.of(
        header(
            "gemma4", **common, attention__key_length=512, attention__value_length=512,
            attention__key_length_swa=256, attention__value_length_swa=256,
            attention__sliding_window=1024, attention__sliding_window_pattern=windows,
            attention__shared_kv_layers=2,
        )
    )  # fmt: skip
    assert found.keys == found.values == 2 * (3 * 256 + 512)
    assert found.masks == 2


def test_layers_that_only_predict_ahead_have_no_cells() -> None:
    common = dict(block_count=5, embedding_length=64, attention__head_count=4, nextn_predict_layers=1)
    assert Shape.of(header("glm4moe", **common)).keys == 4 * 64
    assert (
        Shape.of(header("llama", block_count=5, embedding_length=64, attention__head_count=4)).keys == 5 * 64
    )


def test_a_memory_of_its_own_kind_is_a_lower_bound() -> None:
    found = Shape.of(header("deepseek32", block_count=2, embedding_length=64, attention__head_count=4))
    assert footprint(found, 256).at_least


def test_a_damaged_layer_list_is_said(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "a.gguf", extra={"llama.attention.head_count_kv": ["two", "two"]})
    with pytest.raises(UsageError, match=r"head_count_kv is an array of 2 string: the file is damaged"):
        Shape.of(GGUFFile.read(path))


def test_quantised_caches_are_smaller() -> None:
    shape = Shape.of(header("llama", block_count=2, embedding_length=64, attention__head_count=4))
    whole, packed = footprint(shape, 512), footprint(shape, 512, types=("Q8_0", "Q4_0"))
    assert whole.cells == 512 * 2 * (64 + 64) * 2
    assert packed.cells == 512 * 2 * (64 * 34 + 64 * 18) // 32


# Whether it fits.

# 1,000 bytes a token, 1 MB of weights.
SHAPE = Shape(
    weights=1_000_000, trained=100_000, layers=4, keys=250, values=250, state=0, copies=False, masks=0,
    embedding=0, feed_forward=0, vocab=0, complete=True,
)  # fmt: skip
GB = 10**9


def asked(n_ctx: int, room_: Room, *, draft: Shape | None = None, devices: tuple[Device, ...] = ()) -> Any:
    return fit(SHAPE, draft, Loading(n_ctx=n_ctx), Drafting(), room_, devices)


def test_what_fits_is_not_spoken_of() -> None:
    found = asked(1024, Room(available=2_100_000, total=3_000_000))
    assert (found.refusal, found.warning) == (None, None)


def test_more_than_all_memory_is_refused_with_the_numbers_and_a_context_that_fits() -> None:
    found = asked(4096, Room(available=2_000_000, total=4_000_000))
    assert found.refusal == (
        "a context of 4,096 tokens needs 4.1 MB of memory (target 4.1 MB), and this machine has 4.0 MB in "
        "all; lower it: -c 1792 fits"
    )
    assert asked(1792, Room(available=2_000_000, total=4_000_000)).refusal is None


def test_the_drafter_counts_as_far_as_it_was_trained() -> None:
    small = Room(available=4_000_000, total=4_000_000, limited=True)
    long, short = (Shape(**{**vars(SHAPE), "trained": n}) for n in (100_000, 512))
    refusal = asked(3072, small, draft=long).refusal
    assert refusal == (
        "a context of 3,072 tokens needs 6.1 MB of memory (target 3.1 MB, drafter 3.1 MB), and this "
        "container has 4.0 MB in all; lower it: -c 1792 fits"
    )
    assert asked(3072, small, draft=short).refusal is None


def test_no_context_at_all_may_fit() -> None:
    found = asked(4096, Room(available=100_000, total=200_000))
    assert found.refusal is not None
    assert found.refusal.endswith("even the shortest context is too large: a smaller model")


def test_a_context_beyond_what_is_free_is_a_warning() -> None:
    found = asked(4096, Room(available=3_000_000, total=8_000_000))
    assert found.refusal is None
    assert found.warning == (
        "a context of 4,096 tokens needs 4.1 MB of memory (target 4.1 MB), and 3.0 MB is available now: the "
        "system may have to swap; lower it: -c 2816 fits"
    )


def test_weights_beyond_what_is_free_are_a_warning() -> None:
    found = asked(1024, Room(available=1_500_000, total=8_000_000))
    assert found.refusal is None
    assert found.warning is not None
    assert found.warning.startswith(
        "weights of 1.0 MB and a context of 1.0 MB are more than the 1.5 MB of memory available"
    )


def test_what_is_on_a_device_needs_no_main_memory() -> None:
    little = Room(available=100_000, total=200_000)
    roomy, full = Device("CUDA0", 9_000_000, 9_000_000), Device("CUDA0", 2_000_000, 9_000_000)
    assert asked(4096, little, devices=(roomy,)) == fit(
        SHAPE, None, Loading(n_ctx=4096, gpu_layers=99), Drafting(), little, (roomy,)
    )
    assert asked(4096, little, devices=(roomy,)).refusal is None
    assert asked(4096, little, devices=(full,)).warning == (
        "the layers on CUDA0 need 5.1 MB, and 2.0 MB is free there; lower -ngl or -c"
    )


def test_layers_are_shared_out() -> None:
    half = need(SHAPE, None, Loading(n_ctx=1024, gpu_layers=1), gpu=True)  # of 4 layers and the output
    assert half.target.on_device == pytest.approx(0.2)
    assert half.on_devices == round(0.2 * half.target.footprint.total)
    assert half.working + half.weights + half.on_devices == pytest.approx(half.target.footprint.total, abs=2)


def test_an_engine_refuses_before_loading(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.engine.room", lambda: Room(available=2_500_000, total=2_700_000))
    monkeypatch.setattr("specdec.engine.Model", lambda *_, **__: pytest.fail("it was loaded"))
    with pytest.raises(UsageError, match=r"a context of 4,096 tokens needs .*; lower it: -c \d+ fits"):
        Engine(models / "target.gguf", models / "cousin.gguf")


def test_an_engine_warns_and_loads(
    models: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("specdec.engine.room", lambda: Room(available=500_000, total=GB))
    with (
        caplog.at_level(logging.WARNING, "specdec"),
        Engine(models / "target.gguf", loading=Loading(n_ctx=2048, threads=1)) as engine,
    ):
        assert engine.target.n_ctx == 2048
    assert "500 kB is available now: the system may have to swap; lower it: -c" in caplog.text


# What there is.


def test_the_room_is_within_the_machine() -> None:
    found = room()
    assert 0 < found.available <= found.total


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_room_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own, meminfo = tmp_path / "own", tmp_path / "meminfo"
    meminfo.write_text(
        "MemTotal: 16000000 kB\nMemFree: 1 kB\nMemAvailable: 9000000 kB\nSwapTotal: 1000000 kB\n"
    )
    own.write_text("0::/\n")
    for name, path in {"MEMINFO": meminfo, "CGROUPS": tmp_path / "cgroup", "OWN_CGROUPS": own}.items():
        monkeypatch.setattr(f"specdec.room.{name}", path)
    unit = 1024
    assert room() == Room(9_000_000 * unit, 17_000_000 * unit)
    write(tmp_path / "cgroup", memory__max=4 * GB, memory__current=GB)
    assert room() == Room(3 * GB, 4 * GB + 1_000_000 * unit, limited=True)


@pytest.mark.parametrize(
    ("n", "text"),
    [(512_000, "512 kB"), (90_210_000, "90.2 MB"), (201_000_000, "201 MB"), (999_800_000, "1.0 GB"),
     (1_384_000_000, "1.4 GB"), (123_456_000_000, "123 GB"), (1_234_567_000_000, "1,235 GB")],
)  # fmt: skip
def test_amounts_are_for_people(n: int, text: str) -> None:
    assert amount(n) == text


def write(group: Path, **files: object) -> None:
    group.mkdir(parents=True, exist_ok=True)
    for name, value in files.items():
        (group / name.replace("__", ".")).write_text(f"{value}\n")


def test_cgroups_of_version_2_limit_from_the_inside_out(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    write(root / "outer/inner", memory__max="max", memory__current=5)
    write(
        root / "outer", memory__max=4 * GB, memory__current=3 * GB, memory__stat=f"anon 7\ninactive_file {GB}"
    )
    assert list(_limits(root, own)) == [(4 * GB, 2 * GB)]


def test_in_a_namespace_the_root_group_counts(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/../elsewhere\n")
    write(root, memory__max=GB, memory__current=GB // 2)
    assert (GB, GB // 2) in list(_limits(root, own))


def test_cgroups_of_version_1(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("9:name=systemd:/\n4:memory:/docker/abc\n0::/\n")
    write(
        root / "memory/docker/abc", memory__limit_in_bytes=2 * GB, memory__usage_in_bytes=GB,
        memory__stat=f"inactive_file 1\ntotal_inactive_file {GB // 4}",
    )  # fmt: skip
    assert list(_limits(root, own)) == [(2 * GB, GB - GB // 4)]


class Function:
    """A function of a C library: ctypes lets its types be set."""

    restype: object = None

    def __init__(self, answer: Callable[..., Any]) -> None:
        self._answer = answer

    def __call__(self, *args: Any) -> Any:
        return self._answer(*args)


class Ggml:
    """Two devices: the CPU, and a GPU with 6 of 8 GB free."""

    def __init__(self, total: int = 8 * GB) -> None:
        self.ggml_backend_dev_count = Function(lambda: 2)
        self.ggml_backend_dev_get = Function(lambda i: 100 + i.value)
        self.ggml_backend_dev_type = Function(lambda device: device.value - 100)
        self.ggml_backend_dev_name = Function(lambda device: b"CUDA0")

        def memory(device: Any, free: Any, all_: Any) -> None:
            free._obj.value, all_._obj.value = 6 * GB, total

        self.ggml_backend_dev_memory = Function(memory)


def test_devices_are_those_that_say_what_memory_they_have() -> None:
    assert list(llama._gpus(Ggml())) == [Device("CUDA0", 6 * GB, 8 * GB)]
    assert list(llama._gpus(Ggml(total=0))) == []
    assert list(llama._gpus(object())) == []
    assert list(llama._gpus(None)) == []


def test_the_real_library_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    llama.start()
    monkeypatch.setattr(llama, "GPU_TYPES", (0, 1, 2))  # with the CPU, which every build has
    found = list(llama._gpus(llama._ggml.libggml))
    assert found[-1].name == "CPU"
    assert all(0 < d.free <= d.total for d in found)


def test_this_build_has_the_devices_it_has() -> None:
    assert bool(llama.devices()) <= llama.supports_gpu()


def test_parts_add_up() -> None:
    found = Footprint(weights=10, cells=5, state=2, buffers=1, at_least=False)
    assert (found.working, found.total) == (8, 18)
