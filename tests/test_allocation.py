"""Too little memory: an error that says what to lower, where llama.cpp lets a failed allocation be one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import tiny
import tiny_architectures

if sys.platform != "linux":
    pytest.skip("limits the address space as Linux does", allow_module_level=True)

# Each case in a fork of its own, with so much address space beyond what the process begins with.
PROGRAM = """
import json, os, resource, sys
from pathlib import Path
from specdec import Engine, Loading, SpecdecError
import specdec.engine

specdec.engine._check_memory = lambda *_: None  # the estimate, which would come first

def run(path, n_ctx, room):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + room, used + room))
    try:
        with Engine(Path(path), loading=Loading(n_ctx=n_ctx, threads=1)) as engine:
            return f"a context of {engine.target.n_ctx}"
    except SpecdecError as error:
        return f"{type(error).__name__}: {error}"
    except MemoryError:  # Python's own, which the command line reports in one line
        return "MemoryError"

for case in json.load(sys.stdin):
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, run(*case).encode())
        os._exit(0)
    os.close(writing)
    said = os.fdopen(reading).read()
    print(json.dumps([os.waitpid(child, 0)[1], said]), flush=True)
"""
ROOM = 300 << 20


def outcomes(cases: list[tuple[Path, int, int]], cache: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        input=json.dumps([(str(path), n_ctx, room) for path, n_ctx, room in cases]),
        capture_output=True,
        text=True,
        env={"PYTHONSAFEPATH": "1", "XDG_CACHE_HOME": str(cache), "OMP_NUM_THREADS": "1"},
        timeout=120,
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [status for status, _ in found] == [0] * len(cases), done.stderr[-3000:]
    return [said for _, said in found]


def test_a_context_there_is_no_memory_for(tmp_path: Path) -> None:
    llama = tiny.llama(tmp_path / "llama.gguf")
    mamba = tiny_architectures.write("mamba", tmp_path / "mamba.gguf")
    lengths = [4096, 10**7, 10**9, (1 << 31) - 1]
    fits, *refused = outcomes(
        [(llama, n, ROOM) for n in lengths] + [(mamba, n, ROOM) for n in lengths[2:]], tmp_path
    )
    assert fits == "a context of 4096"
    for said in refused:
        assert said.startswith(f"UsageError: {tmp_path}/"), said
        assert said.endswith("; a smaller -c needs less memory"), said
        assert "\n" not in said


@pytest.mark.parametrize("n_ctx", [1 << 31, (1 << 32) - 1, 1 << 32, (1 << 32) + 512, 10**12])
def test_a_context_longer_than_positions_count(tmp_path: Path, n_ctx: int) -> None:
    """llama.cpp's number would wrap round, and a context of another length be made."""
    path = tiny.llama(tmp_path / "llama.gguf")
    assert outcomes([(path, n_ctx, ROOM)], tmp_path) == [
        f"UsageError: {path}: a context of {n_ctx:,} tokens is too long; lower -c, to 2,147,483,647 at most"
    ]


def test_a_model_there_is_no_memory_for(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "llama.gguf", n_embd=256, n_ff=16384, n_layer=4)
    size = path.stat().st_size
    assert size > 50 << 20
    rooms = [size // 2, *range(size, size + (1 << 20), 128 << 10)]
    header, *weights = outcomes([(path, 512, room) for room in rooms], tmp_path)
    assert header == f"UsageError: {path}: cannot be read (Cannot allocate memory); free some memory"
    # How much more than the file itself is just too little depends on what else is loaded.
    failed = [said for said in weights if "llama.cpp cannot load this model: " in said]
    assert failed, weights
    for said in failed:
        assert said.startswith(f"UsageError: {path}: "), said
        assert said.endswith("; close other programs, or take a smaller or more quantised model"), said
