"""Builds and downloads that are killed: nothing half-done passes for the file, and nothing stays behind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import http.server
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tiny

from specdec import partial
from specdec.widen import widen
from specdec.widened import is_widened

if sys.platform == "win32":
    pytest.skip("kills as POSIX does", allow_module_level=True)

FACTOR = 9
ENDS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
ENVIRONMENT = {**os.environ, "PYTHONSAFEPATH": "1"}


def child(program: str, *words: object, **environment: str) -> subprocess.Popen[str]:
    """A process that says a line when it is about to begin."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, *map(str, words)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**ENVIRONMENT, **environment},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "begins\n", process.communicate()
    return process


def left_in(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# --- the files --------------------------------------------------------------------------------------------


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    destination = tmp_path / "file"
    with partial.writing(destination) as path:
        path.write_text("whole")
        assert left_in(tmp_path) == [path.name]
        path.rename(destination)
    assert destination.read_text() == "whole"
    with contextlib.suppress(KeyboardInterrupt), partial.writing(destination) as path:
        path.write_text("half")
        raise KeyboardInterrupt
    assert left_in(tmp_path) == ["file"]
    assert destination.read_text() == "whole"


def test_what_has_a_writer_is_not_swept(tmp_path: Path) -> None:
    program = (
        "import pathlib, sys, time\n"
        "from specdec import partial\n"
        "with partial.writing(pathlib.Path(sys.argv[1])):\n"
        "    print('begins', flush=True)\n"
        "    time.sleep(60)\n"
    )
    for name in ("file.x", "other.1-a.partial"):
        (tmp_path / name).touch()
    writer = child(program, tmp_path / "file")
    (written,) = (name for name in left_in(tmp_path) if name.startswith("file.") and name != "file.x")
    (tmp_path / "file.1-b.partial").touch()
    partial.sweep(tmp_path / "file")
    assert left_in(tmp_path) == sorted([written, "file.x", "other.1-a.partial"])
    writer.kill()
    writer.communicate()
    partial.sweep(tmp_path / "file")
    assert left_in(tmp_path) == ["file.x", "other.1-a.partial"]


def test_without_locks_only_age_tells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("specdec.partial.fcntl.flock", no_locks)
    for name, hours in {"file.1-a.partial": 2.0, "file.2-b.partial": 0.5}.items():
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (time.time() - hours * 3600,) * 2)
    partial.sweep(tmp_path / "file")
    assert left_in(tmp_path) == ["file.2-b.partial"]
    with partial.writing(tmp_path / "file") as path:
        assert path.exists()


# --- builds -----------------------------------------------------------------------------------------------

# Pauses after each tensor; told to wait, it stops at the first until its input ends.
BUILD = (
    "import pathlib, signal, sys, time\n"
    "from specdec.widen import widen\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a shell's background jobs ignore it
    "source, destination, factor, pause = sys.argv[1:]\n"
    "wait = sys.stdin.read if pause == 'wait' else lambda: time.sleep(float(pause))\n"
    "print('begins', flush=True)\n"
    "widen(pathlib.Path(source), pathlib.Path(destination), int(factor), lambda done, total: wait())\n"
)


def test_a_killed_build_leaves_nothing_that_passes_for_the_file(tmp_path: Path) -> None:
    source, cache = tiny.llama(tmp_path / "source.gguf", dtype="q4_1"), tmp_path / "cache"
    widen(source, tmp_path / "whole.gguf", FACTOR, lambda *_: None)
    whole = (tmp_path / "whole.gguf").read_bytes()
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    seen = set()
    for n in range(9):
        builder = child(BUILD, source, cache / "wide.gguf", FACTOR, 0.02)
        time.sleep(rng.uniform(0, 0.6))
        builder.send_signal(ENDS[n % 3])
        builder.communicate(timeout=30)
        names = left_in(cache) if cache.exists() else []
        assert len(names) <= 1, (n, names)  # at most what this one was writing: those before were swept
        seen.update(name.rpartition(".")[2] for name in names)
        if "wide.gguf" in names:
            assert (cache / "wide.gguf").read_bytes() == whole
            (cache / "wide.gguf").unlink()
        assert not is_widened(cache / "wide.gguf", source, FACTOR)
    assert "partial" in seen  # or nothing was tried
    widen(source, cache / "wide.gguf", FACTOR, lambda *_: None)
    assert left_in(cache) == ["wide.gguf"]
    assert (cache / "wide.gguf").read_bytes() == whole


def test_a_build_goes_on_beside_a_killed_one(tmp_path: Path) -> None:
    source, cache = tiny.llama(tmp_path / "source.gguf"), tmp_path / "cache"
    lives = child(BUILD, source, cache / "wide.gguf", FACTOR, "wait")
    killed = child(BUILD, source, cache / "wide.gguf", FACTOR, "wait")
    while len(left_in(cache) if cache.exists() else []) < 2:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    widen(source, cache / "wide.gguf", 2, lambda *_: None)
    assert sorted(name.rpartition(".")[2] for name in left_in(cache)) == ["gguf", "partial"]
    assert lives.communicate(timeout=60)[1] == ""
    assert left_in(cache) == ["wide.gguf"]
    assert is_widened(cache / "wide.gguf", source, FACTOR)


# --- downloads --------------------------------------------------------------------------------------------

CONTENT = random.Random(0).randbytes(3_000_000)


class Hub(http.server.BaseHTTPRequestHandler):
    """The little of Hugging Face that a download needs, in no hurry."""

    protocol_version = "HTTP/1.1"
    pace = 0.2  # seconds between thirty pieces: longer than six downloads live together

    def do_HEAD(self) -> None:
        self._head(0)

    def do_GET(self) -> None:
        start = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
        self._head(start)
        with contextlib.suppress(OSError):  # the other end was killed
            for at in range(start, len(CONTENT), 100_000):
                self.wfile.write(CONTENT[at : at + 100_000])
                time.sleep(self.pace)

    def _head(self, start: int) -> None:
        self.send_response(206 if start else 200)
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("ETag", f'"{hashlib.sha256(CONTENT).hexdigest()}"')
        self.send_header("Content-Length", str(len(CONTENT) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def hub() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


FETCH = (
    "import json, signal, sys\n"
    "from specdec.registry import Registry\n"
    "import huggingface_hub\n"
    "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    "registry = Registry()\n"
    "print('begins', flush=True)\n"
    "where = registry.located('hf:owner/repo/model.gguf')\n"
    "print(json.dumps([where and str(where), str(registry.fetch('hf:owner/repo/model.gguf'))]))\n"
)


def test_a_killed_download_is_never_taken_for_the_file(
    hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    rng = random.Random(seed)
    environment = {
        "HF_ENDPOINT": hub,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_CACHE": str(tmp_path / "hf" / "hub"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_HUB_OFFLINE": "0",
        "NO_PROXY": "127.0.0.1",
        "no_proxy": "127.0.0.1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    for n in range(6):
        download = child(FETCH, **environment)
        time.sleep(rng.uniform(0.1, 0.5))
        download.send_signal(ENDS[n % 3])
        out, _ = download.communicate(timeout=30)
        assert out == "", "it should have been slower"
    monkeypatch.setattr(Hub, "pace", 0.0)
    out, errors = child(FETCH, **environment).communicate(timeout=60)
    assert out, errors
    before, after = json.loads(out)
    assert before is None  # what was left was not taken for the file
    assert Path(after).read_bytes() == CONTENT
    out, _ = child(FETCH, **environment).communicate(timeout=60)
    assert json.loads(out) == [after, after]
    assert not list(tmp_path.rglob("*.incomplete"))
