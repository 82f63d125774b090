"""Every GGUF of a folder as a drafter for one target, from headers that are read once and then remembered."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from . import __version__
from .errors import UsageError
from .gguf_file import PART_NAME, GGUFFile
from .model_facts import ModelFacts
from .pair import Vocabularies, compared
from .prediction import Prediction, predict
from .whole_file import keep

FORMAT = 2
MOST_VERDICTS = 2000

Stamp = list[list[Any]]  # name, size in bytes and time of change (ns) of each file of a model


@dataclass(frozen=True)
class Candidate:
    """A file that could be looked at. prediction: of a foreign one, with its text translated."""

    path: Path
    facts: ModelFacts
    vocabularies: Vocabularies
    prediction: Prediction

    @property
    def foreign(self) -> bool:
        """Whether its vocabulary is another one, so that it drafts with ``--draft-translate`` alone."""
        return self.vocabularies.shared is None


@dataclass(frozen=True)
class Unsuitable:
    """A file that is no drafter for anything, and why."""

    path: Path
    reason: str


@dataclass(frozen=True)
class Ranking:
    """candidates: those that can draft, the most promising first, then those with another vocabulary."""

    candidates: tuple[Candidate, ...]
    unsuitable: tuple[Unsuitable, ...]

    def as_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return {
            "candidates": [
                {
                    "path": str(c.path),
                    **c.facts.as_dict(),
                    "vocabularies": asdict(c.vocabularies),
                    "translated": c.foreign,
                    "prediction": asdict(c.prediction),
                }
                for c in self.candidates
            ],
            "unsuitable": [{"path": str(u.path), "reason": u.reason} for u in self.unsuitable],
        }


def rank(target: Path, folder: Path, cache: Path) -> Ranking:
    """Ranks every model in ``folder``, and in the folders below it, as a drafter for the target.

    What headers said is kept in ``cache``, a directory, and holds as long as the files' sizes and times of
    change do. Split models count once. Raises UsageError for a folder that cannot be read, and for a target
    that is no text-generation model.
    """
    memory = _Remembered(cache / "catalogue" / f"{_name(folder)}.json")
    ours = memory.facts(target, _stamp(target, sorted(path.name for path in _siblings(target))))
    if isinstance(ours, str):
        raise UsageError(f"{target}: {ours}")
    candidates, unsuitable = [], []
    for path, stamp in _models(folder):
        if _identity(path) == _identity(target):
            unsuitable.append(Unsuitable(path, "this is the target itself"))
            continue
        found = memory.facts(path, stamp)
        if isinstance(found, str):
            unsuitable.append(Unsuitable(path, found))
            continue
        words = memory.vocabularies(target, ours, path, found)
        guess = predict(ours, found, translated=words.shared is None)
        candidates.append(Candidate(path, found, words, guess))
    memory.keep()
    return Ranking(tuple(sorted(candidates, key=_order)), tuple(unsuitable))


def _order(candidate: Candidate) -> tuple[bool, float, int, Path]:
    """The fastest first; at equal promise, and where nothing is promised, the smallest."""
    return candidate.foreign, -round(candidate.prediction.speedup, 2), candidate.facts.dense, candidate.path


def _models(folder: Path) -> Iterator[tuple[Path, Stamp]]:
    """Every .gguf below the folder, once, with its stamp; of split models the first part."""
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "no such folder"
        raise UsageError(f"--drafts {folder}: {what}; name the one your .gguf files are in")
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, onerror=_unreadable(folder)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        wanted = sorted(name for name in names if name.lower().endswith(".gguf") and not name.startswith("."))
        for name in wanted:
            part = PART_NAME.fullmatch(name)
            if part and int(part[2]) > 1 and f"{part[1]}-00001-of-{part[3]}.gguf" in names:
                continue
            path = Path(place, name)
            identity = _identity(path)
            if identity not in seen:  # else a link to a file that was there already
                seen.add(identity)
                yield path, _stamp(path, wanted)


def _stamp(path: Path, names: Iterable[str]) -> Stamp:
    """Of the file and, where it is the first part of a split model, of those of ``names`` that go with it."""
    part = PART_NAME.fullmatch(path.name)
    if not part or int(part[2]) != 1:
        return [_stat(path)]
    parts = ((name, PART_NAME.fullmatch(name)) for name in names)
    return [_stat(path.with_name(n)) for n, p in parts if p and (p[1], p[3]) == (part[1], part[3])]


def _siblings(path: Path) -> Iterable[Path]:
    return path.parent.glob("*.gguf") if PART_NAME.fullmatch(path.name) else ()


def _unreadable(folder: Path) -> Any:
    def fail(error: OSError) -> None:
        if Path(error.filename) == folder:  # one below it is skipped
            raise UsageError(f"--drafts {folder}: cannot be read: {error.strerror}") from error

    return fail


def _identity(path: Path) -> tuple[int, int]:
    try:
        status = path.stat()
        return status.st_dev, status.st_ino
    except OSError:  # a link that leads nowhere; reading it will say so
        return -1, hash(path)


def _stat(path: Path) -> list[Any]:
    try:
        status = path.stat()
        return [path.name, status.st_size, status.st_mtime_ns]
    except OSError:
        return [path.name, -1, -1]


def _name(folder: Path) -> str:
    return hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:24]


class _Remembered:
    """What earlier runs have read of one folder; a file that is missing, broken or outdated says nothing."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = self._load()
        self._files: dict[str, dict[str, Any]] = {}  # of this run alone: what has vanished is forgotten
        self._verdicts: dict[str, dict[str, Any]] = dict(self._known["verdicts"])
        self._changed = False

    def facts(self, path: Path, stamp: Stamp) -> ModelFacts | str:
        """What the header says; or why there is nothing to be said."""
        known = self._known["files"].get(str(path), {})
        found = _recalled(known, stamp)
        if found is None:
            found = _read(path)
            known = {"stamp": stamp, "facts": found if isinstance(found, str) else found.remember()}
            self._changed = True
        self._files[str(path)] = known
        return found

    def vocabularies(self, target: Path, ours: ModelFacts, draft: Path, theirs: ModelFacts) -> Vocabularies:
        """The verdict on two vocabularies; files are read for it where none before had the same."""
        key = f"{ours.vocabulary} {theirs.vocabulary}"
        try:
            return Vocabularies.from_dict(self._verdicts[key])
        except (KeyError, TypeError, ValueError):
            found = compared(GGUFFile.read(target), GGUFFile.read(draft))
        self._verdicts[key] = asdict(found)
        self._changed = True
        return found

    def keep(self) -> None:
        """Writes it down, where there is anything new."""
        if not self._changed and len(self._files) == len(self._known["files"]):
            return
        verdicts = dict(list(self._verdicts.items())[-MOST_VERDICTS:])
        known = {"format": FORMAT, "version": __version__, "files": self._files, "verdicts": verdicts}
        text = json.dumps(known).encode()  # in ASCII, whatever bytes are in names
        keep(self._path, _checksum(text) + b"\n" + text)

    def _load(self) -> dict[str, dict[str, Any]]:
        try:
            checksum, _, text = self._path.read_bytes().partition(b"\n")
            known = json.loads(text) if checksum == _checksum(text) else {}
            if (known["format"], known["version"]) == (FORMAT, __version__):
                return {"files": known["files"], "verdicts": known["verdicts"]}
        except (OSError, ValueError, TypeError, KeyError):
            pass
        return {"files": {}, "verdicts": {}}


def _checksum(text: bytes) -> bytes:
    return hashlib.sha256(text).hexdigest().encode()


def _recalled(known: Mapping[str, Any], stamp: Stamp) -> ModelFacts | str | None:
    try:
        if known["stamp"] != stamp:
            return None
        facts = known["facts"]
        return facts if isinstance(facts, str) else ModelFacts.recall(facts)
    except (KeyError, TypeError, AttributeError):
        return None


def _read(path: Path) -> ModelFacts | str:
    try:
        file = GGUFFile.read(path)
        file.require_text_generation()
        return ModelFacts.of(file)
    except UsageError as error:
        return str(error).removeprefix(f"{path}: ").removesuffix("; give a text-generation GGUF instead")
