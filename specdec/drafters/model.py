"""A second, smaller model as the drafter."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import numpy as np

from ..backend import Context, Rows
from ..distribution import Distribution, Rng
from ..errors import UsageError
from ..grammar import Grammar
from ..kernels import argmax_prob
from ..sampling import Sampler
from ..settings import SamplingParams
from ..tokens import Tokens
from .draft import DraftBlock

if TYPE_CHECKING:
    from ..schedule import Horizon

LOG = logging.getLogger("specdec")


class ModelDrafter:
    """Drafts with a model of its own, in a cache of its own (Leviathan et al. 2023, algorithm 1).

    What the cache holds is compared with the history on every call: whatever the history does not
    contain is rolled back, and at least the last token is fed again for the logits that follow it.

    context: the drafter's context; its vocabulary must mean the same as the target's.
    params: how tokens are drawn; the target's own make drafts most alike.
    draft_max: a ceiling no caller can raise. p_min: drafting stops where the model's likeliest token is less
    likely; the token that was drawn has no say in that, or the output would not be the target's. draft_min:
    the least of a draft that was drawn, once it has begun.
    vocab_size: ids the target has too; padding past it is never proposed. grammar: the target's. name: what
    statistics and schedule know it by.
    Raises UsageError for a memory that cannot be rolled back, ValueError for a draft_max below 1.
    """

    name = "model"

    def __init__(
        self,
        context: Context,
        params: SamplingParams,
        rng: Rng,
        *,
        draft_max: int,
        p_min: float = 0.0,
        draft_min: int = 0,
        vocab_size: int | None = None,
        grammar: Grammar | None = None,
        name: str = name,
    ) -> None:
        if draft_max < 1:
            raise ValueError(f"the draft length must be at least 1, got {draft_max}")
        if not context.rollback_strategy.can_roll_back:
            raise UsageError(irreversible(context, "drafter"))
        self.name = name
        self.context = context
        self._sampler = Sampler(context.model.vocab, params, rng, context.n_ctx, grammar)
        self._rng = rng
        self._draft_max = draft_max
        self._p_min = p_min
        self._draft_min = draft_min
        self._vocab_size = min(vocab_size or context.model.vocab.size, context.model.vocab.size)
        self._outgrown = False

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        if horizon.limit < 1 or not len(history) or not self._fits(len(history)):
            return DraftBlock(source=self.name)
        budget = min(self._draft_max, self.context.n_ctx - len(history) + 1)
        self.context.align(history[:-1])
        unread = history[len(self.context) :]
        tokens: list[int] = []
        dists: list[Distribution] = []
        sure: list[float] = []
        while len(tokens) < budget and horizon.goes_on(self.name, sure, len(unread)):
            read = self.context.score if tokens else self.context.feed  # what was drafted may be taken back
            row = read(unread)[:, : self._vocab_size]
            q = self._sampler.distributions(row, history, tokens)[0]
            peak = self._peak(row, q)
            if peak < self._p_min and not self._is_bound(len(tokens)):
                break
            token = q.sample(self._rng)
            tokens.append(token)
            dists.append(q)
            sure.append(peak if self._sampler.greedy else q.prob(token))
            unread = np.array([token], np.int32)  # the last one is never fed: nothing is drafted after it
        return DraftBlock(tuple(tokens), dists, self.name, sure)

    @property
    def prompt_threads(self) -> int:
        """Those of its context."""
        return self.context.prompt_threads

    def read(self, text: Tokens, horizon: Horizon) -> None:
        """Reads a prompt before the first round, its last token excepted; not where no draft could pay."""
        if self._fits(len(text)) and horizon.could_pay(self.name):
            self.context.hold(text[:-1])

    def reset(self) -> None:
        self.context.clear()
        self._outgrown = False

    def _peak(self, row: Rows, q: Distribution) -> float:
        """The probability of the likeliest token: known before one is drawn, so it may decide on drawing it.

        Drawn greedily q is 1 by definition; how sure the model is shows in its own softmax.
        """
        return argmax_prob(row[0])[1] if self._sampler.greedy else float(q.probs.max())

    def _is_bound(self, k: int) -> bool:
        """Whether a draft of k has to go on: what was drawn cannot be thrown away for being too short."""
        return not self._sampler.greedy and 0 < k < self._draft_min

    def _fits(self, n: int) -> bool:
        if n <= self.context.n_ctx:
            self._outgrown = False
            return True
        if not self._outgrown:
            self._outgrown = True
            LOG.warning(
                "the text has outgrown the drafter's context of %d tokens: no more drafts; -cd raises it",
                self.context.n_ctx,
            )
        return False


def irreversible(context: Context, role: str) -> str:
    """The refusal of a model whose memory cannot be rolled back."""
    model = context.model
    return (
        f"{model.path}: a {model.architecture} model cannot be the {role}: its memory cannot be rolled back "
        "after a rejected draft, neither by removing cells nor by restoring its state; use another model"
        + (", or --drafter none to decode plainly" if role == "target" else "")
    )
