"""What a drafter proposes, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ..distribution import Distribution
from ..tokens import Tokens


@dataclass(frozen=True, eq=False)
class DraftBlock:
    """A block of proposed tokens and, for each, the distribution it was drawn from.

    q: one Distribution per token, the very one the token was sampled from after truncation,
    temperature and penalties: the acceptance rule divides by it. Left out, each token is a point mass
    (looked up, or chosen greedily).
    source: the drafter's name.
    """

    tokens: tuple[int, ...] = ()
    q: Sequence[Distribution] = field(default=())
    source: str = "none"

    def __post_init__(self) -> None:
        if not self.q and self.tokens:
            object.__setattr__(self, "q", tuple(Distribution.point(x) for x in self.tokens))
        if len(self.q) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} draft tokens with {len(self.q)} distributions")

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, n: int) -> DraftBlock:
        """The block cut to its first n tokens."""
        return self if n == len(self) else DraftBlock(self.tokens[:n], self.q[:n], self.source)


class Drafter(Protocol):
    """Guesses how the history goes on."""

    name: str

    def propose(self, history: Tokens, limit: int) -> DraftBlock:
        """At most ``limit`` tokens to follow ``history`` (int32 [n], all that is committed so far).

        The history is the authority: it may be shorter than last time, or changed in the middle.
        An empty history or a limit below 1 proposes nothing.
        """
        ...

    def reset(self) -> None:
        """Forgets everything."""
        ...


class NoDrafter:
    """Plain decoding: never proposes anything."""

    name = "none"

    def propose(self, history: Tokens, limit: int) -> DraftBlock:
        return DraftBlock()

    def reset(self) -> None:
        pass
