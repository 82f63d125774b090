"""What a drafter proposes, and what it is asked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from ..distribution import Distribution
from ..tokens import Tokens

if TYPE_CHECKING:
    from ..schedule import Horizon


@dataclass(frozen=True, eq=False)
class DraftBlock:
    """A block of proposed tokens and, for each, the distribution it was drawn from.

    q: one Distribution per token, the very one the token was sampled from after truncation,
    temperature and penalties: the acceptance rule divides by it. Left out, each token is a point mass
    (looked up, or chosen greedily).
    source: the drafter's name.
    sure: what the drafter knows of each guess, in [0, 1]: its probability, or whatever goes up with the
    chance of being right. The schedule learns what it is worth; left out, all guesses are alike.
    """

    tokens: tuple[int, ...] = ()
    q: Sequence[Distribution] = field(default=())
    source: str = "none"
    sure: Sequence[float] = ()

    def __post_init__(self) -> None:
        if not self.q and self.tokens:
            object.__setattr__(self, "q", tuple(Distribution.point(x) for x in self.tokens))
        if len(self.q) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} draft tokens with {len(self.q)} distributions")
        if not self.sure:
            object.__setattr__(self, "sure", (0.5,) * len(self.tokens))
        if len(self.sure) != len(self.tokens):
            raise ValueError(f"{len(self.tokens)} draft tokens, and {len(self.sure)} of them known how sure")

    def __len__(self) -> int:
        return len(self.tokens)

    def first(self, n: int) -> DraftBlock:
        """The block cut to its first n tokens."""
        return self if n == len(self) else DraftBlock(self.tokens[:n], self.q[:n], self.source, self.sure[:n])

    @cached_property
    def drawn(self) -> int:
        """How many tokens, from the first, end in one that was drawn from several; what follows is certain
        once they are known."""
        return max((i + 1 for i, q in enumerate(self.q) if len(q.ids) > 1), default=0)


class Drafter(Protocol):
    """Guesses how the history goes on."""

    name: str

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        """At most ``horizon.limit`` tokens to follow ``history`` (int32 [n], all that is committed so far).

        The history is the authority: it may be shorter than last time, or changed in the middle.
        An empty history or a limit below 1 proposes nothing.
        """
        ...

    def reset(self) -> None:
        """Forgets everything."""
        ...


@runtime_checkable
class Reader(Protocol):
    """A drafter that has a text to read before it can draft.

    prompt_threads: how many CPU threads that takes.
    """

    @property
    def prompt_threads(self) -> int: ...

    def read(self, text: Tokens, horizon: Horizon) -> None:
        """Reads a prompt (int32 [n]) before the first round, where drafting could pay."""
        ...


class NoDrafter:
    """Plain decoding: never proposes anything."""

    name = "none"

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        return DraftBlock()

    def reset(self) -> None:
        pass


def match_sureness(length: int, n: int, tried: int = 0, kept: int = 0) -> tuple[float, ...]:
    """How sure n tokens are that followed a match of ``length``: each that is right makes it longer.

    tried, kept: how often this match came before, and how often it went on as the last time; they bear on
    the first token.
    """
    odds = [(length + i) / 4.0 for i in range(n)]
    if odds:
        odds[0] *= (kept + 0.5) / (tried - kept + 0.5)
    return tuple(odd / (1.0 + odd) for odd in odds)
