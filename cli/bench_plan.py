"""What a benchmark compares: ways of decoding, each with a name for tables and for --check."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from specdec.errors import UsageError
from specdec.settings import DRAFTERS, Drafting, SamplingParams

Rule = Literal["block", "token"]
ADAPTIVE = "adaptive"
LONGEST = 256


@dataclass(frozen=True)
class Configuration:
    """One way of decoding. drafter: "none" for plain decoding. length: None for the adaptive schedule.

    rule: of acceptance. base: the name of the plain decoding that it is compared with, perhaps its own.
    translate: whether the drafter's vocabulary may be another one.
    """

    name: str
    base: str
    drafter: str
    length: int | None
    rule: Rule
    temperature: float
    translate: bool = False

    @property
    def plain(self) -> bool:
        return self.drafter == "none"

    @property
    def group(self) -> tuple[str, str, float]:
        """What configurations have in common that differ in their draft length alone."""
        return self.drafter, self.rule, self.temperature

    def drafting(self) -> Drafting:
        length = 1 if self.plain else self.length  # a fixed length, so that plain decoding learns nothing
        return Drafting(drafter=self.drafter, draft_max=length, accept=self.rule, translate=self.translate)

    def sampling(self) -> SamplingParams:
        return SamplingParams(temperature=self.temperature)


@dataclass(frozen=True)
class Plan:
    """What is tried. drafters: as Drafting takes them. lengths: the fixed ones; adaptive is always tried.

    Raises UsageError for values that no run can have.
    """

    drafters: tuple[str, ...]
    lengths: tuple[int, ...]
    temperatures: tuple[float, ...] = (0.0,)
    rules: tuple[Rule, ...] = ("block",)
    translate: bool = False

    def __post_init__(self) -> None:
        for drafter in self.drafters:
            Drafting(drafter=drafter)

    @property
    def wants_model(self) -> bool:
        return any("model" in drafter.split(",") for drafter in self.drafters)

    def with_drafters(self, drafters: Sequence[str]) -> Plan:
        """The same with other drafters."""
        return replace(self, drafters=tuple(drafters))

    def configurations(self) -> list[Configuration]:
        """All of them, each temperature's plain decoding first, those with the same drafter together."""
        found = []
        for temperature in self.temperatures:
            at = f"@{temperature:g}" if len(self.temperatures) > 1 else ""
            base = f"plain{at}"
            found.append(Configuration(base, base, "none", None, "block", temperature, self.translate))
            # Where nothing is drawn the rules are the same.
            rules = self.rules if temperature > 0.0 else self.rules[:1]
            for drafter in self.drafters:
                for rule in rules:
                    by = f":{rule}" if len(rules) > 1 else ""
                    for length in (*self.lengths, None):
                        name = f"{drafter.replace(',', '+')}:{length or ADAPTIVE}{by}{at}"
                        found.append(
                            Configuration(name, base, drafter, length, rule, temperature, self.translate)
                        )
        return found


def drafters(text: str) -> tuple[str, ...]:
    """The drafters of --drafters: separated by commas, a cascade's joined by +. Raises UsageError."""
    names = tuple(name.replace("+", ",") for name in _parts(text, "--drafters"))
    for name in names:
        unknown = [kind for kind in name.split(",") if kind not in DRAFTERS or kind == "none"]
        if unknown:
            known = ", ".join(kind for kind in DRAFTERS if kind != "none")
            raise UsageError(
                f"--drafters: {unknown[0]!r} is not known: use {known}, or several in turn as in suffix+model"
            )
    return names


def lengths(text: str) -> tuple[int, ...]:
    """The draft lengths of --draft-lengths, '' for none. Raises UsageError."""
    parts = _parts(text, "--draft-lengths") if text.strip() else ()
    for part in parts:
        if not (part.isascii() and part.isdigit() and 1 <= int(part) <= LONGEST):
            raise UsageError(f"--draft-lengths: {part!r} is no draft length: use 1 to {LONGEST}, as in 2,4,8")
    return tuple(int(part) for part in parts)


def temperatures(text: str) -> tuple[float, ...]:
    """The temperatures of --temps. Raises UsageError."""
    found = []
    for part in _parts(text, "--temps"):
        try:
            value = float(part)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 100.0:
            raise UsageError(f"--temps: {part!r} is no temperature: use numbers from 0, as in 0,0.8")
        found.append(value)
    return tuple(found)


def rules(text: str) -> tuple[Rule, ...]:
    """The acceptance rules of --accept. Raises UsageError."""
    known: tuple[Rule, ...] = get_args(Rule)
    parts = _parts(text, "--accept")
    for part in parts:
        if part not in known:
            raise UsageError(f"--accept: {part!r} is no lossless rule: use {' or '.join(known)}, or both")
    return tuple(rule for part in parts for rule in known if rule == part)


def _parts(text: str, flag: str) -> tuple[str, ...]:
    """What stands between the commas, each once. Raises UsageError for nothing, and for twice the same."""
    parts = tuple(part.strip() for part in text.split(","))
    if not all(parts):
        raise UsageError(f"{flag} is a list separated by commas, and {text!r} has an empty place")
    if len(set(parts)) < len(parts):
        raise UsageError(f"{flag}: {text!r} names one twice")
    return parts
