"""How far to draft in a round: what is asked of a schedule, and the fixed one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .drafters.draft import DraftBlock

PROMISING = 0.3  # a fixed length does not weigh its drafts: it has to be spared those that mostly fail


class Horizon(Protocol):
    """How far the draft of one round may go. A drafter looks no further than ``limit``.

    A drafter that pays for each token it drafts asks ``goes_on`` before each; one that chooses among drafts
    asks what they are ``worth``. To keep the output exact, a token that was drawn from a distribution must
    be proposed: whether to stop may depend on the tokens drawn so far, but only before the next one is drawn.
    """

    @property
    def limit(self) -> int:
        """The most tokens a draft may have; below 1 nothing is to be drafted."""
        ...

    def goes_on(self, source: str, sure: Sequence[float], unread: int = 1) -> bool:
        """Whether one more token should be drafted.

        source: the drafter's name. sure: what it knows of each token drafted so far, as in DraftBlock.
        unread: how many tokens its next pass has to read.
        """
        ...

    def could_pay(self, source: str) -> bool:
        """Whether drafts of this drafter would pay, were all of them accepted."""
        ...

    def considers(self, sure: float) -> bool:
        """Whether a draft may be worth verifying that cost nothing and is so sure of its first token."""
        ...

    def worth(self, draft: DraftBlock) -> float:
        """What verifying the draft is expected to gain, in seconds or any other unit; 0 for nothing."""
        ...

    def beyond(self, draft: DraftBlock) -> Horizon:
        """The horizon of a drafter that is asked next, whose draft would have to be worth more than this."""
        ...


class Round(Horizon, Protocol):
    """A horizon, and what becomes of the draft."""

    def cut(self, draft: DraftBlock) -> DraftBlock:
        """What of a finished draft is to be verified.

        Tokens that were drawn stay: cutting one because of what it is, or of what was drawn after it, would
        change the output. Point masses, which follow from the text before them, may go.
        """
        ...

    def learn(self, tokens: Sequence[int], accepted: int, seconds: float) -> None:
        """The verdict: the tokens that follow, of which so many came from the draft, and the time it took."""
        ...


class Schedule(Protocol):
    """Decides the draft length, round by round."""

    name: str

    @property
    def longest(self) -> int:
        """The longest draft there will ever be."""
        ...

    def round(self, length: int, room: int) -> Round:
        """The next round. length: tokens of text so far; room: tokens it may still get, at least 1."""
        ...

    def plain_seconds(self, length: int) -> float | None:
        """What a round without a draft takes, where the schedule knows."""
        ...

    def as_dict(self) -> dict[str, object]:
        """The ``schedule`` object of the JSON result."""
        ...


@dataclass(frozen=True)
class FixedSchedule:
    """Always the same length (``--draft-max``); shorter drafts than draft_min are not worth a batch."""

    draft_max: int = 8
    draft_min: int = 0
    name = "fixed"

    @property
    def longest(self) -> int:
        return self.draft_max

    def round(self, length: int, room: int) -> FixedRound:
        # A round emits one token more than it accepts, so the last one needs no draft.
        return FixedRound(min(self.draft_max, room - 1), self.draft_min)

    def plain_seconds(self, length: int) -> float | None:
        return None

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "draft_max": self.draft_max, "draft_min": self.draft_min}


@dataclass(frozen=True)
class FixedRound:
    """As many tokens as there may be; of several drafters, the first that has any."""

    limit: int
    draft_min: int = 0

    def goes_on(self, source: str, sure: Sequence[float], unread: int = 1) -> bool:
        return len(sure) < self.limit

    def could_pay(self, source: str) -> bool:
        return True

    def considers(self, sure: float) -> bool:
        return sure >= PROMISING

    def worth(self, draft: DraftBlock) -> float:
        return float(len(draft)) if len(draft) >= self.draft_min else 0.0

    def beyond(self, draft: DraftBlock) -> FixedRound:
        return FixedRound(0) if self.worth(draft) else self

    def cut(self, draft: DraftBlock) -> DraftBlock:
        return draft if len(draft) >= self.draft_min else draft.first(draft.drawn)

    def learn(self, tokens: Sequence[int], accepted: int, seconds: float) -> None:
        pass
