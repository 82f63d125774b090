"""How far to draft this round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class Schedule(Protocol):
    """Decides the draft length."""

    def limit(self, room: int) -> int:
        """The most tokens to draft now. room: tokens that may still be emitted, at least 1."""
        ...

    def worth_verifying(self, drafted: int) -> bool:
        """Whether a draft of this length is verified, or thrown away for a plain step."""
        ...

    @property
    def longest(self) -> int:
        """The longest draft there will ever be."""
        ...


@dataclass(frozen=True)
class FixedSchedule:
    """Always the same length (``--draft-max``); shorter drafts than draft_min are not worth a batch."""

    draft_max: int = 8
    draft_min: int = 0

    @property
    def longest(self) -> int:
        return self.draft_max

    def limit(self, room: int) -> int:
        # A round emits one token more than it accepts, so the last one needs no draft.
        return min(self.draft_max, room - 1)

    def worth_verifying(self, drafted: int) -> bool:
        return drafted >= self.draft_min
