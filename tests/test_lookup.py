"""Prompt lookup: the most recent earlier match, an index that follows the history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.drafters import LookupDrafter
from specdec.schedule import FixedRound


def propose(tokens: list[int], k: int, *, ngram: int) -> list[int]:
    drafter = LookupDrafter(ngram_max=ngram, ngram_min=ngram)
    return list(drafter.propose(np.array(tokens, np.int32), FixedRound(k)).tokens)


def scanned(tokens: list[int], k: int, longest: int, shortest: int) -> list[int]:
    """The definition, by scanning: the longest n first, the latest earlier occurrence."""
    n = len(tokens)
    for length in range(longest, shortest - 1, -1):
        pattern = tokens[n - length :]
        for start in range(n - length - 1, -1, -1) if n > length else ():
            if tokens[start : start + length] == pattern:
                return tokens[start + length : start + length + k]
    return []


@pytest.mark.parametrize(
    ("tokens", "ngram", "k", "expected"),
    [
        ([10, 20, 30, 10, 20], 2, 3, [30, 10, 20]),
        ([10, 20, 30, 10, 20], 2, 1, [30]),
        ([7, 8, 9, 7, 8, 7, 8], 2, 2, [7, 8]),  # the most recent earlier match, not the first
        ([1, 2, 9, 5, 1, 2], 2, 5, [9, 5, 1, 2]),  # bounded by the end of the text
        ([4, 4, 4], 2, 3, [4]),  # matches may overlap
        ([1, 2, 3, 4, 5], 2, 3, []),
        ([1, 2], 2, 3, []),  # no longer than the n-gram itself
        ([1, 2, 1], 1, 0, []),
        ([], 2, 3, []),
    ],
)
def test_what_is_proposed(tokens: list[int], ngram: int, k: int, expected: list[int]) -> None:
    assert propose(tokens, k, ngram=ngram) == expected


def test_longer_matches_come_first() -> None:
    history = np.array([1, 2, 3, 50, 9, 3, 60, 2, 3, 70, 1, 2, 3], np.int32)
    for longest, expected in ((3, 50), (2, 70), (1, 70)):
        assert LookupDrafter(ngram_max=longest).propose(history, FixedRound(1)).tokens == (expected,)


def test_proposals_are_point_masses_named_lookup() -> None:
    block = LookupDrafter().propose(np.array([5, 6, 5], np.int32), FixedRound(4))
    assert block.source == "lookup"
    assert block.tokens == (6, 5)
    assert [(q.ids.tolist(), q.probs.tolist()) for q in block.q] == [([6], [1.0]), ([5], [1.0])]


@given(
    st.lists(
        st.tuples(st.integers(0, 40), st.lists(st.integers(0, 3), max_size=15)), min_size=1, max_size=12
    ),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 6),
)
def test_the_index_follows_a_history_that_grows_shrinks_and_changes(
    edits: list[tuple[int, list[int]]], a: int, b: int, k: int
) -> None:
    shortest, longest = min(a, b), max(a, b)
    drafter = LookupDrafter(ngram_max=longest, ngram_min=shortest)
    text: list[int] = []
    for keep, more in edits:
        text = text[:keep] + more
        got = list(drafter.propose(np.array(text, np.int32), FixedRound(k)).tokens)
        assert got == scanned(text, k, longest, shortest)


def test_reset_forgets_the_text() -> None:
    drafter = LookupDrafter()
    drafter.propose(np.array([1, 2, 3, 1, 2], np.int32), FixedRound(2))
    drafter.reset()
    assert drafter.propose(np.array([1, 2], np.int32), FixedRound(2)).tokens == ()


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (2, 0)])
def test_lengths_that_make_no_sense_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(ValueError, match="1 <= min <= max"):
        LookupDrafter(ngram_max=longest, ngram_min=shortest)
