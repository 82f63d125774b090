"""Prompts of the user's own to measure with: Spec-Bench's JSON lines, or a prompt a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from specdec.errors import UsageError
from specdec.prompts import BenchPrompt

from .jsontext import parsed
from .textfile import read_text

KIND = "prompts"  # of those that have none


def read_prompts(path: Path) -> list[BenchPrompt]:
    """The prompts in a file, '-' for stdin; blank lines are none.

    A file whose first line is a JSON object has one on every line, with "turns" (a list of texts, of which
    the first is asked) or "prompt", and perhaps "category". Raises UsageError for anything else.
    """
    source = "stdin" if str(path) == "-" else str(path)
    every = read_text(path, "the prompts").split("\n")  # a text in JSON may hold the other ends of lines
    lines = [(n, line) for n, line in enumerate(every, 1) if line.strip()]
    if not lines:
        raise UsageError(f"{source}: there are no prompts in it")
    if lines[0][1].lstrip().startswith("{"):
        return [_question(line, f"{source}: line {n}") for n, line in lines]
    return [BenchPrompt(KIND, line.strip()) for _, line in lines]


def _question(line: str, where: str) -> BenchPrompt:
    value = parsed(line, where)
    if not isinstance(value, dict):
        raise UsageError(f'{where} is no JSON object with "turns" or "prompt"')
    turns = value.get("turns", [value["prompt"]] if "prompt" in value else None)
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise UsageError(f'{where}: "turns" must be a list of texts, of which the first is asked')
    kind = value.get("category", KIND)
    if not isinstance(kind, str):
        raise UsageError(f'{where}: "category" must be a text')
    return BenchPrompt(kind or KIND, turns[0])


def first(prompts: Sequence[BenchPrompt], n: int) -> list[BenchPrompt]:
    """n of the prompts, of each kind about as many: one of each, then the next of each."""
    places: dict[str, int] = {}
    ranked = []
    for prompt in prompts:
        ranked.append((places.get(prompt.kind, 0), prompt))
        places[prompt.kind] = places.get(prompt.kind, 0) + 1
    return [prompt for _, prompt in sorted(ranked, key=lambda pair: pair[0])[:n]]
