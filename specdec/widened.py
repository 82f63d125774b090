"""What a widened file says of how it was made. Cheap to import: every run of the default pair asks it."""

from __future__ import annotations

from pathlib import Path

from .errors import UsageError
from .gguf_file import GGUFFile

RECIPE_KEY = "specdec.widened.recipe"
SOURCE_KEY = "specdec.widened.source"


def is_widened(path: Path, source: Path | None, factor: int) -> bool:
    """Whether ``path`` is a whole file that ``widen`` would make again (of any source if None)."""
    try:
        metadata = GGUFFile.read(path).metadata
    except UsageError:
        return False
    same_source = source is None or metadata.get(SOURCE_KEY) == identity(source)
    return same_source and metadata.get(RECIPE_KEY) == recipe(factor)


def identity(source: Path) -> str:
    """By what a source is recognised."""
    return f"{source.name}, {source.stat().st_size} bytes"


def recipe(factor: int) -> str:
    """How it was made. The number goes up when the same source gives other bytes."""
    return f"x{factor}, recipe 1"
