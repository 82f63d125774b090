"""The longest repetition as the drafter: in the text itself, and in a corpus beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..kernels import SuffixAutomaton
from ..tokens import Tokens, common_prefix
from .draft import DraftBlock, match_sureness

if TYPE_CHECKING:
    from ..schedule import Horizon

REACH = 2  # tokens drafted for each token of the match
WINDOW = 64  # how much of the text's end is looked for in the corpus


class SuffixDrafter:
    """Finds the longest end of the text that occurred before, and proposes what followed it there.

    A suffix automaton finds it in constant amortised time for each token, however long the text is. The
    longer the match, the longer the draft: a match of n tokens proposes at most 2·n ("SuffixDecoding",
    Oliaro et al. 2024, which also drafts in proportion to the match). How sure it is of the first one depends
    on how often the match came before and went on as it had.

    corpus: other texts, indexed once and never changed here, in which the end of the text is looked for
    as well; the longer match wins.
    """

    name = "suffix"

    def __init__(self, corpus: SuffixAutomaton | None = None) -> None:
        self._corpus = corpus
        self._automaton = SuffixAutomaton(1 << 20)
        self._text = np.empty(0, np.int32)

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        if horizon.limit < 1 or not len(history):
            return DraftBlock(source=self.name)
        self._follow(history)
        length, limit = self._automaton.match_length, horizon.limit
        tried, kept = self._automaton.match_tried, self._automaton.match_kept
        tokens = self._automaton.continuation(limit)
        if self._corpus is not None:
            found, following = self._corpus.find(np.ascontiguousarray(history[-WINDOW:]), limit)
            if found > length and len(following):
                length, tokens, tried, kept = found, following, 0, 0
        n = min(len(tokens), REACH * length)
        sure = match_sureness(length, n, tried, kept)
        if not (n and horizon.considers(sure[0])):
            return DraftBlock(source=self.name)
        return DraftBlock(tuple(tokens[:n].tolist()), source=self.name, sure=sure)

    def reset(self) -> None:
        self._automaton.reset()
        self._text = np.empty(0, np.int32)

    def _follow(self, history: Tokens) -> None:
        """Brings the automaton to the history; it only grows, so another text starts it anew."""
        known = common_prefix(self._text, history)
        if known < len(self._text):
            self._automaton.reset()
            known = 0
        self._automaton.extend(np.ascontiguousarray(history[known:]))
        self._text = history.copy()
