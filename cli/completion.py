"""What the shell's Tab key offers, and the script that teaches it to the shell: Typer's own, made quick."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from typing import Any

from typer.core import TyperArgument, TyperOption

from specdec.errors import SpecdecError

_PLAIN = re.compile(r"[\w.,/+@%~-]+")  # what no shell wants quoted


def prepare() -> None:
    """Sets Typer up before it runs: for a shell that asks what fits, or for a script of a named shell."""
    if "_SPECDEC_COMPLETE" in os.environ:
        # Typer converts all values with pydantic, which takes longer than the rest; completing needs none.
        TyperOption.process_value = _unconverted  # type: ignore[method-assign]
        TyperArgument.process_value = _unconverted  # type: ignore[method-assign]
        os.environ["COLUMNS"] = (
            "10000"  # rich must not break what a candidate is into lines: fish reads lines
        )
    elif len(sys.argv) == 3 and sys.argv[1] in ("--show-completion", "--install-completion"):
        # Unless told so, Typer would not read the name but look for the shell it runs in.
        os.environ["_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION"] = "1"


def _unconverted(self: Any, ctx: Any, value: Any) -> Any:
    return value


def complete_model(incomplete: str) -> list[tuple[str, str]]:
    """Names of models and .gguf files that begin so, each with what it is.

    Empty when only directories fit: then the shell completes the path itself, which it does better.
    """
    found = [*_names(incomplete), *_files(incomplete)]
    return [*found, *_directories(incomplete)] if found and incomplete else found


def _names(incomplete: str) -> Iterator[tuple[str, str]]:
    from specdec.registry import Registry

    try:
        entries = Registry.load().entries
    except SpecdecError:  # a broken models.toml: running a command says so, completing one must not
        return
    for entry in entries.values():
        if entry.name.startswith(incomplete):
            yield entry.name, entry.description.partition(";")[0]


def _files(incomplete: str) -> Iterator[tuple[str, str]]:
    for name, entry in _listed(incomplete):
        if name.endswith(".gguf") and entry.is_file():
            yield name, "GGUF file"


def _directories(incomplete: str) -> Iterator[tuple[str, str]]:
    for name, entry in _listed(incomplete):
        if entry.is_dir():
            yield f"{name}/", "directory"


def _listed(incomplete: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """What the typed directory has that begins so, spelled as it was typed. A name with a space the shell
    completes itself, with the quotes it needs."""
    directory, prefix = os.path.split(incomplete)
    typed = incomplete[: len(incomplete) - len(prefix)]
    try:
        entries = sorted(os.scandir(os.path.expanduser(directory) or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        hidden = entry.name.startswith(".") and not prefix
        if entry.name.startswith(prefix) and not hidden and _PLAIN.fullmatch(entry.name):
            yield typed + entry.name, entry
