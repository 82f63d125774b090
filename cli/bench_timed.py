"""What a benchmark's runs came to: one way of decoding on one prompt, and all of them on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from specdec.stats import Stats


@dataclass(frozen=True)
class Details:
    """What is known of a run of our own.

    rounds: drafted and accepted in each. passes: seconds of the target's pass in each, over one row more
    than was drafted. drafter_seconds: of the drafter's passes.
    """

    stats: Stats
    rounds: list[tuple[int, int]]
    passes: list[float]
    drafter_seconds: float


@dataclass(frozen=True)
class Timed:
    """What one way of decoding made of one prompt.

    seconds: of decoding, without loading and reading the prompt. tokens: None where they are not told.
    """

    emitted: int
    seconds: float
    drafted: int
    accepted: int
    tokens: tuple[int, ...] | None = None
    details: Details | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.emitted / self.seconds if self.seconds else 0.0


@dataclass
class Trial:
    """One prompt, and its runs by the name of the configuration or rival, in the order they were made."""

    number: int
    prompt: int
    kind: str
    prompt_tokens: int
    runs: dict[str, Timed] = field(default_factory=dict)
