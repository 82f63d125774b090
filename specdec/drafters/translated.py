"""A model with another vocabulary as the drafter: its text is tokenised anew for the target."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING

from ..backend import Context, Vocabulary
from ..settings import SamplingParams
from ..tokens import Tokens
from .draft import DraftBlock
from .model import ModelDrafter
from .translation import Translation

if TYPE_CHECKING:
    from ..schedule import Horizon


class TranslatedDrafter:
    """Drafts in the drafter's own tokens and proposes the text in the target's, as point masses.

    Its cache is compared with the history in the drafter's tokens, as any model drafter's is. It drafts
    greedily: the chances of its own tokens are not those of the target's. How far it drafts is asked of its
    own tokens, of which a text has about as many; what is more than wanted in the target's is left out.

    context: the drafter's. target: the vocabulary of the one it drafts for. draft_max, p_min: as
    ModelDrafter takes them, of the drafter's tokens. ignore_eos: no end of a text is drafted.
    Raises as ModelDrafter does.
    """

    name = "translated"

    def __init__(
        self,
        context: Context,
        target: Vocabulary,
        *,
        draft_max: int,
        p_min: float = 0.0,
        ignore_eos: bool = False,
    ) -> None:
        greedy = SamplingParams(temperature=0.0, ignore_eos=ignore_eos)
        self._model = ModelDrafter(
            context,
            greedy,
            random.Random(0),  # greedy drafting draws nothing
            draft_max=draft_max,
            p_min=p_min,
            name=self.name,
        )
        self._translation = Translation(target, context.model.vocab)

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        if horizon.limit < 1 or not len(history):
            return DraftBlock(source=self.name)
        passage = self._translation.read(history)
        draft = self._model.propose(passage.tokens, horizon)
        tokens: list[int] = []
        sure: list[float] = []
        before = 0
        for token, begun in self._translation.write(passage, draft.tokens)[: horizon.limit]:
            tokens.append(token)
            sure.append(
                math.prod(draft.sure[before:begun])
            )  # each chance counts once, where its token begins
            before = begun
        return DraftBlock(tuple(tokens), source=self.name, sure=sure)

    @property
    def prompt_threads(self) -> int:
        """Those of its context."""
        return self._model.prompt_threads

    def read(self, text: Tokens, horizon: Horizon) -> None:
        """Reads a prompt before the first round, its last token excepted; not where no draft could pay."""
        self._model.read(self._translation.read(text).tokens, horizon)

    def reset(self) -> None:
        self._model.reset()
