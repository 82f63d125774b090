"""Prompt lookup: the text itself as the drafter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..tokens import Tokens, common_prefix
from .draft import DraftBlock, match_sureness

if TYPE_CHECKING:
    from ..schedule import Horizon


class LookupDrafter:
    """Finds the most recent earlier occurrence of the last n tokens and proposes what followed it.

    Needs no model (Saxena 2023, "Prompt lookup decoding"; llama.cpp's ``ngram-simple``). n goes from
    ngram_max down to ngram_min. The index grows with the history and shrinks when the history does.
    Raises ValueError unless 1 ≤ ngram_min ≤ ngram_max.
    """

    name = "lookup"

    def __init__(self, *, ngram_max: int = 3, ngram_min: int = 1) -> None:
        if not 1 <= ngram_min <= ngram_max:
            raise ValueError(f"n-gram lengths must satisfy 1 <= min <= max, got {ngram_min} and {ngram_max}")
        self._lengths = range(ngram_max, ngram_min - 1, -1)
        self.reset()

    def reset(self) -> None:
        self._text = np.empty(0, np.int32)
        # Where the token after the latest occurrence of an n-gram stands, and what that was before.
        self._follows: dict[bytes, int] = {}
        self._undo: list[tuple[bytes, int | None]] = []
        self._undo_at: list[int] = [0]

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        limit = horizon.limit
        if limit < 1 or not len(history):
            return DraftBlock(source=self.name)
        self._index(history)
        n = len(history)
        for length in self._lengths:
            if length >= n:
                continue
            at = self._follows.get(history[n - length :].tobytes())
            if at is not None:
                tokens = tuple(history[at : at + limit].tolist())
                return DraftBlock(tokens, source=self.name, sure=match_sureness(length, len(tokens)))
        return DraftBlock(source=self.name)

    def _index(self, history: Tokens) -> None:
        """Indexes every n-gram that something follows; _undo_at[i] entries belong to followers before i."""
        known = common_prefix(self._text, history)
        while len(self._undo_at) > max(known, 1):
            self._undo_at.pop()
            self._take_back(self._undo_at[-1])
        for at in range(len(self._undo_at), len(history)):
            for length in self._lengths:
                if length <= at:
                    gram = history[at - length : at].tobytes()
                    self._undo.append((gram, self._follows.get(gram)))
                    self._follows[gram] = at
            self._undo_at.append(len(self._undo))
        self._text = history.copy()

    def _take_back(self, n_entries: int) -> None:
        while len(self._undo) > n_entries:
            gram, before = self._undo.pop()
            if before is None:
                del self._follows[gram]
            else:
                self._follows[gram] = before
