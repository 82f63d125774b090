"""The inner loops, against plain numpy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specdec.kernels import argmax, argmax_prob, top

LOGITS = st.floats(-1e6, 1e6, width=32)
ROWS = hnp.arrays(np.float32, st.integers(1, 600), elements=LOGITS)
NO_IDS = np.empty(0, np.int32)


@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 40)), elements=LOGITS))
def test_argmax_takes_the_lowest_id_of_the_largest(rows: np.ndarray) -> None:
    got = argmax(rows)
    assert got.dtype == np.int32
    assert got.tolist() == [int(np.flatnonzero(row == row.max())[0]) for row in rows]


@given(ROWS)
def test_argmax_prob_is_the_softmax_at_the_argmax(row: np.ndarray) -> None:
    best, p = argmax_prob(row)
    exact = np.exp(row.astype(np.float64) - float(row.max()))
    assert best == row.argmax()
    assert p == pytest.approx(exact[best] / exact.sum(), rel=1e-5)


@settings(max_examples=300)
@given(ROWS, st.integers(1, 700), st.lists(st.integers(0, 599), max_size=5))
def test_top_has_the_k_largest_and_the_extras_once_each(row: np.ndarray, k: int, extras: list[int]) -> None:
    extra = np.array([e for e in extras if e < row.size], np.int32)
    ids, logits = top(row, k, extra)
    assert ids.dtype == np.int32
    assert logits.dtype == np.float32
    assert len(set(ids.tolist())) == len(ids)
    assert (logits == row[ids]).all()
    assert set(extra.tolist()) <= set(ids.tolist())
    largest = np.sort(row)[::-1][:k]
    assert np.sort(logits)[::-1][: len(largest)].tolist() == largest.tolist()
    assert len(ids) <= min(k, row.size) + len(extra)


@pytest.mark.parametrize("n", [255, 256, 257, 49_152, 151_936])
@pytest.mark.parametrize("k", [1, 40, 104])
@pytest.mark.parametrize("kind", ["gaussian", "peaked", "constant", "ascending"])
def test_top_at_the_sizes_of_real_vocabularies(n: int, k: int, kind: str) -> None:
    rng = np.random.default_rng(1)
    row = rng.standard_normal(n).astype(np.float32)
    if kind == "peaked":
        row[rng.integers(n)] = 40.0
    if kind == "constant":
        row[:] = 2.5
    if kind == "ascending":
        row.sort()
    ids, logits = top(row, k, NO_IDS)
    assert len(ids) == k
    assert np.sort(logits).tolist() == np.sort(row)[n - k :].tolist()


def test_minus_infinity_is_smaller_than_everything() -> None:
    row = np.full(1000, -np.inf, np.float32)
    row[[7, 300]] = [1.0, 2.0]
    ids, _ = top(row, 2, NO_IDS)
    assert sorted(ids.tolist()) == [7, 300]
    assert argmax(row[None, :]).tolist() == [300]
    assert argmax_prob(row) == (300, pytest.approx(1 / (1 + np.exp(-1.0))))


@pytest.mark.parametrize("bad", [np.zeros((2, 3)), np.zeros(3, np.float32), np.zeros((2, 0), np.float32)])
def test_argmax_refuses_what_is_no_block_of_rows(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"argmax needs float32 \[n, vocab\]"):
        argmax(bad)


@pytest.mark.parametrize("bad", [np.zeros(3), np.zeros((2, 3), np.float32), np.zeros(0, np.float32)])
def test_a_row_is_one_row_of_float32(bad: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"top needs float32 \[vocab\]"):
        top(bad, 1, NO_IDS)
    with pytest.raises(ValueError, match=r"argmax_prob needs float32 \[vocab\]"):
        argmax_prob(bad)


def test_top_of_none_is_refused() -> None:
    with pytest.raises(ValueError, match="k >= 1, got 0"):
        top(np.zeros(3, np.float32), 0, NO_IDS)
