"""Several drafters: the free ones first, the model when they have nothing worth offering."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..tokens import Tokens
from .draft import DraftBlock, Drafter, Reader

if TYPE_CHECKING:
    from ..schedule import Horizon


class CascadeDrafter:
    """Asks its drafters in turn; each is told what it has to beat, and the best draft is proposed.

    A drafter that draws its tokens must come last and decide before it draws (:meth:`Horizon.goes_on`):
    to prefer another draft to what was drawn would change the output.
    """

    def __init__(self, drafters: Sequence[Drafter]) -> None:
        self.drafters = tuple(drafters)
        self.name = ",".join(drafter.name for drafter in self.drafters)

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        best = DraftBlock(source=self.name)
        for drafter in self.drafters:
            draft = drafter.propose(history, horizon)
            if draft.drawn:
                return draft
            if draft.tokens and horizon.worth(draft) > horizon.worth(best):
                best = draft
                horizon = horizon.beyond(best)
        return best

    @property
    def prompt_threads(self) -> int:
        """Those of the drafter with the most: they read one after the other."""
        return max((d.prompt_threads for d in self.drafters if isinstance(d, Reader)), default=0)

    def read(self, text: Tokens, horizon: Horizon) -> None:
        """Lets those read that have to."""
        for drafter in self.drafters:
            if isinstance(drafter, Reader):
                drafter.read(text, horizon)

    def reset(self) -> None:
        for drafter in self.drafters:
            drafter.reset()
