"""A second, smaller model as the drafter."""

from __future__ import annotations

import logging

import numpy as np

from ..backend import Context
from ..distribution import Distribution, Rng
from ..errors import UsageError
from ..grammar import Grammar
from ..kernels import argmax_prob
from ..sampling import Sampler
from ..settings import SamplingParams
from ..tokens import Tokens
from .draft import DraftBlock

LOG = logging.getLogger("specdec")


class ModelDrafter:
    """Drafts with a model of its own, in a cache of its own (Leviathan et al. 2023, algorithm 1).

    What the cache holds is compared with the history on every call: whatever the history does not
    contain is rolled back, and at least the last token is fed again for the logits that follow it.

    context: the drafter's context; its vocabulary must mean the same as the target's.
    params: how tokens are drawn; the target's own make drafts most alike.
    draft_max: a ceiling no caller can raise. p_min: drafting stops before a token whose q is below it.
    vocab_size: ids the target has too; padding past it is never proposed. grammar: the target's.
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
        vocab_size: int | None = None,
        grammar: Grammar | None = None,
    ) -> None:
        if draft_max < 1:
            raise ValueError(f"the draft length must be at least 1, got {draft_max}")
        if not context.rollback_strategy.can_roll_back:
            raise UsageError(irreversible(context, "drafter"))
        self.context = context
        self._sampler = Sampler(context.model.vocab, params, rng, context.n_ctx, grammar)
        self._rng = rng
        self._draft_max = draft_max
        self._p_min = p_min
        self._vocab_size = min(vocab_size or context.model.vocab.size, context.model.vocab.size)
        self._outgrown = False

    def propose(self, history: Tokens, limit: int) -> DraftBlock:
        budget = min(limit, self._draft_max)
        if budget < 1 or not len(history) or not self._fits(len(history)):
            return DraftBlock(source=self.name)
        budget = min(budget, self.context.n_ctx - len(history) + 1)
        self.context.align(history[:-1])
        row = self.context.feed(history[len(self.context) :])[:, : self._vocab_size]
        tokens: list[int] = []
        dists: list[Distribution] = []
        while True:
            q = self._sampler.distributions(row, history, tokens)[0]
            token = q.sample(self._rng)
            if self._p_min > 0.0 and self._confidence(row, q, token) < self._p_min:
                break
            tokens.append(token)
            dists.append(q)
            if len(tokens) == budget:
                break  # the last token is not fed: nothing is drafted after it
            row = self.context.score(np.array([token], np.int32))[:, : self._vocab_size]
        return DraftBlock(tuple(tokens), dists, self.name)

    def reset(self) -> None:
        self.context.clear()
        self._outgrown = False

    def _confidence(self, row: np.typing.NDArray[np.float32], q: Distribution, token: int) -> float:
        # Drawn greedily q is 1 by definition; how sure the model is shows in its own softmax.
        return argmax_prob(row[0])[1] if self._sampler.greedy else q.prob(token)

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
