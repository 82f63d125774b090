"""Ratios that must be reached, as in --check model:adaptive>=1.2."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import NamedTuple

from specdec.errors import SpecdecError, UsageError

from .bench_result import BEST_FIXED, FORECAST, LIMIT, Result

FORM = re.compile(r"(?P<name>[^/>]+?)(?:/(?P<other>[^/>]+?))?\s*>=\s*(?P<least>\d+(?:\.\d*)?|\.\d+)")


class Check(NamedTuple):
    """The median ratio of a configuration to another, or to plain decoding, is to be at least so much."""

    text: str
    name: str
    other: str
    least: float

    def complaint(self, result: Result) -> str | None:
        """What is wrong; None when it holds."""
        found = result.spread(self.name, self.other)
        if found is None:
            return f"{self.text}: it was not measured"
        return None if found.median >= self.least else f"{self.text}: it is {found.median:.3f}"


def checks(texts: Sequence[str], bases: dict[str, str]) -> list[Check]:
    """The checks of --check. bases: of every name, the plain decoding that it is compared with.

    Raises UsageError for a text of another form, and for a name that nothing has.
    """
    found = []
    for text in texts:
        match = FORM.fullmatch(text.strip())
        if match is None:
            raise UsageError(
                f"--check {text!r}: write it as NAME>=RATIO or NAME/OTHER>=RATIO, as in model:adaptive>=1.2"
            )
        name, other = match["name"], match["other"]
        _known(text, name, bases)
        if other:
            _known(text, other, (*bases, BEST_FIXED, FORECAST, LIMIT))
        found.append(Check(text.strip(), name, other or bases[name], float(match["least"])))
    return found


def _known(text: str, name: str, names: Collection[str]) -> None:
    if name not in names:
        raise UsageError(f"--check {text!r}: there is no {name!r} in this run; there are {', '.join(names)}")


def judge(asked: Sequence[Check], result: Result) -> None:
    """Raises SpecdecError with all that fell short."""
    complaints = [complaint for check in asked if (complaint := check.complaint(result))]
    if complaints:
        raise SpecdecError(f"{len(complaints)} of {len(asked)} checks failed: {'; '.join(complaints)}")
