"""JSON as text: parsed without surprises, written so that every stream can hold it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from itertools import chain
from typing import TextIO

from specdec.errors import UsageError

DEEPEST = 100  # levels of nesting; Python's own limit depends on who calls
BREAKS = {0x85: "\\u0085", 0x2028: "\\u2028", 0x2029: "\\u2029"}  # ends of lines to some readers


def parsed(text: str, source: str) -> object:
    """The value of a JSON text. Raises UsageError for one that is none, or that is nested without end."""
    try:
        value: object = json.loads(
            text, parse_constant=_refuse, parse_float=_finite, object_pairs_hook=_unique
        )
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise UsageError(
            f"{source} is not JSON: {error.msg.removesuffix(' at')} at {line}column {error.colno}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{source} is not JSON: {error}") from error
    except RecursionError:
        raise UsageError(f"{source} is nested deeper than {DEEPEST} levels") from None
    if _deep(value):
        raise UsageError(f"{source} is nested deeper than {DEEPEST} levels")
    return value


def line(value: dict[str, object], stream: TextIO) -> str:
    """One line of JSON in characters that the stream can hold."""
    text = json.dumps(value, ensure_ascii=False).translate(BREAKS)
    try:
        # JSON is UTF-8 by its standard; in any other encoding it stays within ASCII, which is both.
        text.encode("utf-8" if _is_utf8(stream) else "ascii")
    except UnicodeEncodeError:
        text = json.dumps(value)
    return text + "\n"


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "utf-8").lower().replace("_", "-") in ("utf-8", "utf8")


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:40]!r} stands twice in one object")
    return value


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no number in JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is larger than any number here")
    return number


def _deep(value: object) -> bool:
    level: list[object] = [value]
    for _ in range(DEEPEST + 1):
        level = list(chain.from_iterable(_inside(one) for one in level))
    return bool(level)


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
