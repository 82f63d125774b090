"""How large a value is, and how large what a filter or a method makes of its arguments can be at most."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

from jinja2.utils import Namespace

LARGEST = 1 << 22  # characters of one value: a million tokens
ELEMENT = 16  # characters that an element of a list counts as

Bound = Callable[..., int]


def weight(value: Any) -> int:
    """Characters of a value and of all it holds, ELEMENT more for each; counting stops soon after LARGEST."""
    if isinstance(value, (str, bytes)):
        return len(value)
    total = 0
    left: list[Any] = [value]
    while left and total <= LARGEST:
        value = left.pop()
        total += ELEMENT
        if isinstance(value, (str, bytes)):
            total += len(value)
        elif isinstance(value, dict):
            left.extend(value)
            left.extend(value.values())
        elif isinstance(value, _HOLDERS):
            left.extend(value)
        elif isinstance(value, Namespace):
            left.append(object.__getattribute__(value, "_Namespace__attrs"))
        elif isinstance(value, int):
            total += value.bit_length() >> 3
        if len(left) * ELEMENT > LARGEST:
            return LARGEST + len(left)
    return total


_HOLDERS: tuple[type[Iterable[Any]], ...] = (
    list,
    tuple,
    set,
    frozenset,
    type({}.keys()),
    type({}.values()),
    type({}.items()),
)


def nothing(*_values: Any, **_named: Any) -> int:
    return 0


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _padded(value: Any, width: Any = 80, *_rest: Any, **_named: Any) -> int:
    return weight(value) + _number(width)


def _tabbed(value: Any, tabsize: Any = 8) -> int:
    return (1 + len(value)) * max(1, _number(tabsize))


def _replaced(value: Any, old: Any, new: Any, *_rest: Any, **_named: Any) -> int:
    text, old = str(value), str(old)
    return len(text) + text.count(old) * len(str(new))


def _indented(s: Any, width: Any = 4, *_rest: Any, **_named: Any) -> int:
    text = str(s)
    return len(text) + (2 + text.count("\n")) * (len(width) if isinstance(width, str) else _number(width))


def _listed(value: Any, d: Any = "", *_rest: Any, **_named: Any) -> int:
    return weight(value) + len(str(d)) * (len(value) if isinstance(value, Sized) else 1)


def _stripped(value: Any, chars: Any = None) -> int:
    return len(str(value)) * len(chars or "") // 64  # each is looked for in the other, 64 at a time


def _encoded(value: Any, encoding: Any = "utf-8", *_rest: Any) -> int:
    known = ("utf-8", "utf8", "ascii", "latin-1")  # the time of others, such as punycode, is quadratic
    return len(value) if str(encoding).lower() in known else LARGEST + 1


def _translated(value: Any, table: Any, *_rest: Any) -> int:
    longest = max(map(weight, table.values()), default=1) if isinstance(table, dict) else 1
    return (1 + len(value)) * longest


def _rounded(_value: Any, precision: Any = 0, *_rest: Any, **_named: Any) -> int:
    return LARGEST + 1 if abs(_number(precision)) > 100 else 0


def _summed(_value: Any, attribute: Any = None, start: Any = 0) -> int:
    return (
        0 if isinstance(start, (int, float)) else LARGEST + 1
    )  # adding lists takes the square of their size


def _widest(form: str | bytes, values: Sequence[Any]) -> int:
    """The most that one field of a format can be: a width in it, or in the values, or all of these."""
    numbers = re.findall(r"\d+", form if isinstance(form, str) else form.decode("latin-1"))
    widths = [LARGEST if len(n) > 7 else int(n) for n in numbers] + [_number(v) for v in values]
    return max(widths, default=0) + weight(list(values))


def percent(form: Any, right: Any, *more: Any, **named: Any) -> int:
    values = [*(right if isinstance(right, tuple) else (right,)), *more, *named.values()]
    if isinstance(form, bytes):
        return len(form) + form.count(b"%") * _widest(form, values)
    return len(form) + str(form).count("%") * _widest(form, values)


def _formatted(form: Any, *values: Any, **named: Any) -> int:
    return percent(str(form), (), *values, **named)


def braces(form: str, *values: Any, **named: Any) -> int:
    given = [*values, *named.values()]
    if len(values) == 1 and isinstance(values[0], dict):  # format_map
        given += list(values[0].values())
    return len(form) + form.count("{") * _widest(form, given)


BOUNDS: dict[str, Bound] = {  # of filters
    "batch": _padded,
    "center": _padded,
    "format": _formatted,
    "indent": _indented,
    "join": _listed,
    "replace": _replaced,
    "round": _rounded,
    "slice": _padded,
    "sum": _summed,
    "trim": _stripped,
}
METHOD_BOUNDS: dict[str, Bound] = {  # of strings, bytes and whole numbers
    "center": _padded,
    "decode": _encoded,
    "encode": _encoded,
    "expandtabs": _tabbed,
    "ljust": _padded,
    "lstrip": _stripped,
    "replace": _replaced,
    "rjust": _padded,
    "rstrip": _stripped,
    "strip": _stripped,
    "to_bytes": _padded,
    "translate": _translated,
    "zfill": _padded,
}
