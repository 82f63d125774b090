"""A models.toml: which models it names, where the file of each comes from, and what is wrong with it."""

from __future__ import annotations

import difflib
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]

_NAME = re.compile(r"(?!hf:)[A-Za-z0-9][\w.+-]*(?<!\.gguf)", re.ASCII)
_SOURCE_KEYS = {  # the key that names the kind of source, and the keys it takes with it
    "path": (),
    "package": ("file", "extra"),
    "hf": ("file",),
    "widen": ("factor",),
}
_COMMON_KEYS = ("description", "licence", "sha256", "size", "draft")


@dataclass(frozen=True)
class PathSource:
    """A file on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


@dataclass(frozen=True)
class PackageSource:
    """A file inside an installed Python package; ``extra`` is the extra of specdec that installs it."""

    package: str
    file: str
    extra: str | None = None

    def __str__(self) -> str:
        return f"package {self.package}"


@dataclass(frozen=True)
class HubSource:
    """A file in a model repository on Hugging Face."""

    repo: str
    file: str

    def __str__(self) -> str:
        return f"hf:{self.repo}/{self.file}"


@dataclass(frozen=True)
class WidenSource:
    """Made here from another entry, with a feed-forward part ``factor`` times as wide (see widen.py)."""

    base: str
    factor: int

    def __str__(self) -> str:
        return f"{self.base} widened x{self.factor}"


Source = PathSource | PackageSource | HubSource | WidenSource


@dataclass(frozen=True)
class Entry:
    """A model: where its file comes from and what is known of it."""

    name: str
    source: Source
    description: str = ""
    licence: str = ""
    sha256: str | None = None
    size: int | None = None  # bytes, for listings
    draft: str | None = None  # the name of the drafter to use with it


@dataclass(frozen=True)
class ModelsFile:
    """What one models.toml says; ``name`` is what messages call it."""

    name: str
    default: str | None
    entries: dict[str, Entry]

    @classmethod
    def read(cls, path: Path) -> ModelsFile:
        """Raises UsageError that says what is wrong with the file."""
        try:
            text = path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise UsageError(f"{path}: cannot be read: {reason}") from error
        return cls.parse(str(path), text, path.parent)

    @classmethod
    def parse(cls, name: str, text: str, directory: Path) -> ModelsFile:
        """The file with this text; relative paths in it start from ``directory``. Raises UsageError."""
        try:
            document: dict[str, Any] = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:  # says the line and the column
            raise UsageError(f"{name}: not valid TOML: {error}") from error
        for key in document:
            if key not in ("default", "models") or not isinstance(document[key], dict):
                raise UsageError(
                    f"{name}: unknown {key!r}: only the tables [default] and [models.NAME] are known"
                )
        default = _Table(name, "default", document.get("default", {}))
        default.forbid_all_but(("model",))
        models = document.get("models", {})
        entries = {key: _entry(name, key, models[key], directory) for key in models}
        return cls(name, default.text("model"), entries)

    def check_names(self, entries: Mapping[str, Entry]) -> None:
        """Raise UsageError unless ``entries`` has all names in this file and no model is made of itself."""
        if self.default and self.default not in entries:
            raise UsageError(f"{self.name}: [default] model: no model named {self.default!r}")
        for name, entry in self.entries.items():
            if entry.draft and entry.draft not in entries:
                raise UsageError(f"{self.name}: [models.{name}] draft: no model named {entry.draft!r}")
            chain = [name]
            while isinstance(source := entries[chain[-1]].source, WidenSource):
                chain.append(source.base)
                if source.base not in entries:
                    raise UsageError(f"{self.name}: [models.{name}] widen: no model named {source.base!r}")
                if source.base in chain[:-1]:
                    raise UsageError(
                        f"{self.name}: [models.{name}] widen: made of itself: {' > '.join(chain)}"
                    )


def is_name(text: str) -> bool:
    """Whether a model can be called this in a models.toml."""
    return bool(_NAME.fullmatch(text))


def expanded(path: str) -> Path:
    """The path with ~ replaced; as it is when there is no such user (where Path.expanduser raises)."""
    return Path(os.path.expanduser(path))


def _entry(file: str, name: str, values: object, directory: Path) -> Entry:
    if not is_name(name):
        raise UsageError(
            f"{file}: {name!r} cannot be a name: use letters, digits and . _ + -, not ending in .gguf"
        )
    if not isinstance(values, dict):
        raise UsageError(f"{file}: models.{name} must be a table: [models.{name}]")
    for key in values:
        if isinstance(values[key], dict):  # TOML reads [models.a.b] as b inside a
            quoted = f'[models."{name}.{key}"]'
            raise UsageError(f"{file}: [models.{name}.{key}]: write a name with a dot in quotes: {quoted}")
    table = _Table(file, f"models.{name}", values)
    source = _source(table, directory)
    sha256 = table.text("sha256")
    if sha256 and not re.fullmatch("[0-9a-f]{64}", sha256):
        raise table.error("sha256", "must be 64 digits 0-9 a-f")
    description, licence = table.text("description") or "", table.text("licence") or ""
    return Entry(name, source, description, licence, sha256, table.number("size"), table.text("draft"))


def _source(table: _Table, directory: Path) -> Source:
    kinds = [key for key in _SOURCE_KEYS if key in table.values]
    if len(kinds) != 1:
        found = " and ".join(kinds) or "none"
        raise table.error("source", f"one of path, package, hf and widen is needed, found {found}")
    kind = kinds[0]
    table.forbid_all_but((kind, *_SOURCE_KEYS[kind], *_COMMON_KEYS))
    what = table.required(kind)
    if kind == "path":
        return PathSource(directory / expanded(what))
    if kind == "package":
        if not what.isidentifier():
            raise table.error(kind, "must be the import name of a package, without dots")
        return PackageSource(what, table.required("file"), table.text("extra"))
    if kind == "hf":
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", what, re.ASCII):
            raise table.error(kind, "must be owner/repo")
        return HubSource(what, table.required("file"))
    factor = table.number("factor") or 0
    if not 2 <= factor <= 1024:
        raise table.error("factor", "must be a whole number from 2 to 1024")
    return WidenSource(what, factor)


@dataclass(frozen=True)
class _Table:
    """A table of models.toml, and its errors: they name the file, the table and the key."""

    file: str
    label: str
    values: dict[str, object]

    def error(self, key: str, reason: str) -> UsageError:
        return UsageError(f"{self.file}: [{self.label}] {key}: {reason}")

    def text(self, key: str) -> str | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, str) or not value.strip() or len(value.splitlines()) > 1:
            raise self.error(key, "must be one line of text in quotes")
        return value

    def required(self, key: str) -> str:
        value = self.text(key)
        if value is None:
            raise self.error(key, "is missing")
        return value

    def number(self, key: str) -> int | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.error(key, "must be a whole number above 0")
        return value

    def forbid_all_but(self, known: tuple[str, ...]) -> None:
        for key in self.values:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
                raise self.error(key, f"unknown key; {hint}")
