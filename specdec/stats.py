"""Counters and timings of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

Counts = dict[str, int]

PARTS = ("load", "prefill", "draft", "verify", "sample", "other")


@dataclass
class Stats:
    """What happened, in rounds (a draft and its verification, or a plain step).

    Counts are of what was kept: a token that a stop cut off was drafted but not accepted.
    cached_prompt_tokens: of the prompts, what the target still had in its cache.
    plain_rounds, plain_seconds: rounds without a draft, and their wall time.
    by_drafter: for each drafter that proposed something: rounds, drafted, accepted.
    seconds: wall time by part; "other" is what a round spends outside draft, verify and sample.
    """

    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    cached_prompt_tokens: int = 0
    plain_rounds: int = 0
    plain_seconds: float = 0.0
    accepted_by_position: list[int] = field(default_factory=list)
    drafted_by_position: list[int] = field(default_factory=list)
    by_drafter: dict[str, Counts] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))

    def count(self, *, drafted: int, accepted: int, emitted: int, source: str) -> None:
        """Adds one round. source: the drafter's name."""
        self.rounds += 1
        self.drafted += drafted
        self.accepted += accepted
        self.emitted += emitted
        longer = drafted - len(self.drafted_by_position)
        self.drafted_by_position += [0] * longer
        self.accepted_by_position += [0] * longer
        if drafted:
            own = self.by_drafter.setdefault(source, {"rounds": 0, "drafted": 0, "accepted": 0})
            own["rounds"] += 1
            own["drafted"] += drafted
            own["accepted"] += accepted
        for i in range(drafted):
            self.drafted_by_position[i] += 1
            self.accepted_by_position[i] += i < accepted

    def time(self, clock: Sequence[float], *, drafted: int) -> None:
        """Adds a round's timings. clock: when it began, had drafted, verified, sampled, and ended."""
        if not drafted:
            self.plain_rounds += 1
            self.plain_seconds += clock[-1] - clock[0]
        for part, start, end in zip(("draft", "verify", "sample", "other"), clock, clock[1:], strict=False):
            self.seconds[part] += end - start

    def add(self, other: Stats) -> None:
        """Adds what another has counted."""
        for name in ("rounds", "drafted", "accepted", "emitted", "cached_prompt_tokens", "plain_rounds"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.plain_seconds += other.plain_seconds
        for name in ("accepted_by_position", "drafted_by_position"):
            sums = zip_longest(getattr(self, name), getattr(other, name), fillvalue=0)
            setattr(self, name, [a + b for a, b in sums])
        for drafter, counts in other.by_drafter.items():
            own = self.by_drafter.setdefault(drafter, dict.fromkeys(counts, 0))
            for key, value in counts.items():
                own[key] += value
        for part, seconds in other.seconds.items():
            self.seconds[part] += seconds

    def reset(self) -> None:
        """Back to zero."""
        self.__init__()  # type: ignore[misc]  # the dataclass's own defaults are the zero

    @property
    def rejected(self) -> int:
        """Drafted tokens that did not stay."""
        return self.drafted - self.accepted

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted, 0 when nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_length(self) -> float:
        """Emitted tokens per round (the papers' τ), 0 before the first."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def decoding_seconds(self) -> float:
        """Wall time of the rounds, without loading and reading the prompt."""
        return sum(self.seconds[part] for part in ("draft", "verify", "sample", "other"))

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens over the decoding time, 0 before the first."""
        return self.emitted / self.decoding_seconds if self.decoding_seconds else 0.0

    def as_dict(self) -> dict[str, object]:
        """The ``stats`` object of the JSON result."""
        return {
            "rounds": self.rounds,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "acceptance_rate": round(self.acceptance_rate, 4),
            "mean_accepted_length": round(self.mean_accepted_length, 3),
            "accepted_by_position": self.accepted_by_position,
            "drafted_by_position": self.drafted_by_position,
            "by_drafter": self.by_drafter,
            "tokens_per_second": round(self.tokens_per_second, 2),
            "seconds": {part: round(value, 4) for part, value in self.seconds.items()},
        }
