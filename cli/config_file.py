"""A config.toml: flags set for good, for all commands that have them or for one."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperOption

from specdec.errors import UsageError


@dataclass(frozen=True)
class Key:
    """One line of the file: a value, and the name and table it stands under ("" is the top level)."""

    path: Path
    table: str
    name: str
    value: object

    @property
    def origin(self) -> str:
        """Where it stands, for a listing: the file and the table."""
        return f"{self.path} [{self.table}]" if self.table else str(self.path)

    def error(self, reason: str) -> UsageError:
        table = f"[{self.table}] " if self.table else ""
        return UsageError(f"{self.path}: {table}{self.name}: {reason}")


@dataclass(frozen=True)
class ConfigFile:
    """What a config.toml sets: for each table, the keys by the long name of their flag."""

    path: Path
    tables: Mapping[str, Mapping[str, Key]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, commands: Mapping[str, Iterable[TyperOption]]) -> ConfigFile:
        """The file, or an empty one when there is none; ``commands`` have the options that it may set.

        Raises UsageError for a file that cannot be read, is not TOML, or has a table or a key nobody knows.
        """
        if not path.exists():
            return cls(path)
        document = _document(path)
        top = {name: value for name, value in document.items() if not isinstance(value, dict)}
        tables = {name: value for name, value in document.items() if isinstance(value, dict)}
        for name in tables:
            if name not in commands:
                known = " and ".join(f"[{command}]" for command in commands)
                raise UsageError(
                    f"{path}: unknown table [{name}]; {_close(name, commands) or f'known: {known}'}"
                )
        for name in top:
            if name in commands:
                raise Key(path, "", name, top[name]).error(f"is a command: give it a table, [{name}]")
        every = [option for options in commands.values() for option in options]
        keys = {name: _keys(path, name, table, commands[name]) for name, table in tables.items()}
        return cls(path, {"": _keys(path, "", top, every), **keys})

    def key(self, command: str, option: TyperOption) -> Key | None:
        """What sets the option of that command: its table before the top level. Raises UsageError."""
        for table in (command, ""):
            for name in long_names(option):
                if found := self.tables.get(table, {}).get(name):
                    _check_kind(found, option)
                    return found
        return None


def long_names(option: TyperOption) -> list[str]:
    """The flag's long spellings without their dashes; the first is its main name."""
    return [name[2:] for name in option.opts if name.startswith("--")]


def settable(option: TyperOption) -> bool:
    """Whether the option may be set elsewhere than on the command line (see ``options.option``)."""
    return option.allow_from_autoenv


def _document(path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib  # only where there is a file: it takes a while
    else:
        import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
    try:
        document: dict[str, Any] = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path}: cannot be read: {reason}") from error
    except tomllib.TOMLDecodeError as error:  # says the line and the column
        raise UsageError(f"{path}: not valid TOML: {error}") from error
    return document


def _keys(
    path: Path, table: str, values: Mapping[str, object], options: Iterable[TyperOption]
) -> dict[str, Key]:
    """The keys by long name. Raises UsageError for one that is no flag, or the same flag twice."""
    by_name = {name: option for option in options for name in long_names(option)}
    keys: dict[str, Key] = {}
    seen: dict[str, str] = {}
    for written, value in values.items():
        key = Key(path, table, written, value)
        name = written.replace("_", "-")
        if name not in by_name:
            allowed = "keys are the long names of flags, as --show-settings lists them"
            raise key.error(f"unknown key; {_close(name, by_name) or allowed}")
        if not settable(by_name[name]):
            raise key.error("can only be given on the command line")
        main = long_names(by_name[name])[0]
        if main in seen:
            raise key.error(f"is the same setting as {seen[main]}; keep one of them")
        seen[main] = written
        keys[name] = key
    return keys


def _close(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean {close[0]}?" if close else ""


_KINDS: dict[object, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float), "a number"),
}
_TEXT: tuple[tuple[type, ...], str] = ((str,), "a text in quotes")


def _check_kind(key: Key, option: TyperOption) -> None:
    """Raises UsageError unless the value is of the option's type; the option itself checks its range."""
    annotation = option.type_descriptor.annotation
    if option.multiple:
        types, kind = _KINDS.get(get_args(annotation)[0], _TEXT)
        if not isinstance(key.value, list) or not all(_is(item, types) for item in key.value):
            raise key.error(f"must be a list in [ ], each item {kind}")
        return
    types, kind = _KINDS.get(annotation, _TEXT)
    if not _is(key.value, types):
        raise key.error(f"must be {kind}")


def _is(value: object, types: tuple[type, ...]) -> bool:
    """Whether the value is of one of the types; true and false are no numbers."""
    return isinstance(value, types) and (bool in types or not isinstance(value, bool))
