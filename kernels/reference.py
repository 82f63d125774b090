"""The inner loops in numpy: what every other implementation is measured and tested against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]
IntArray = npt.NDArray[np.int32]

BLOCK = 256


def argmax(rows: FloatArray) -> IntArray:
    """The id of the largest logit of each row; ties go to the lowest id.

    rows: float32 [n, vocab]. Returns int32 [n]. Raises ValueError for another shape or dtype.
    """
    if rows.ndim != 2 or rows.dtype != np.float32 or rows.shape[1] == 0:
        raise ValueError(f"argmax needs float32 [n, vocab], got {rows.dtype} {list(rows.shape)}")
    ids: IntArray = rows.argmax(axis=1).astype(np.int32)
    return ids


def argmax_prob(row: FloatArray) -> tuple[int, float]:
    """The id of the largest logit and its softmax probability over the whole row.

    row: float32 [vocab]. Raises ValueError for another shape or dtype.
    """
    _check_row("argmax_prob", row)
    best = int(row.argmax())
    return best, float(1.0 / np.exp(row - row[best]).sum(dtype=np.float64))


def top(row: FloatArray, k: int, extra_ids: IntArray) -> tuple[IntArray, FloatArray]:
    """The ids and logits of the k largest entries and of ``extra_ids``, each id once, in no order.

    row: float32 [vocab]; extra_ids: int32 [m], within the row. Returns int32 [n] and float32 [n],
    k ≤ n ≤ k + m, or the whole row when k reaches its length. Among entries equal to the k-th
    largest any may be chosen. Raises ValueError for another shape or dtype, or k < 1.
    """
    _check_row("top", row)
    if k < 1:
        raise ValueError(f"top needs k >= 1, got {k}")
    ids = np.arange(row.size, dtype=np.int32) if k >= row.size else _largest(row, k)
    if extra_ids.size:
        ids = np.union1d(ids, extra_ids).astype(np.int32, copy=False)
    return ids, row[ids]


def _largest(row: FloatArray, k: int) -> IntArray:
    blocks = row.size // BLOCK
    if blocks > k:
        # k blocks whose maxima reach the bound hold k entries that reach it: no smaller entry is needed.
        maxima = row[: blocks * BLOCK].reshape(blocks, BLOCK).max(axis=1)
        bound = np.partition(maxima, blocks - k)[blocks - k]
        candidates = np.flatnonzero(row >= bound)
    else:
        candidates = np.arange(row.size)
    if candidates.size > k:
        keep = np.argpartition(row[candidates], candidates.size - k)[candidates.size - k :]
        candidates = candidates[keep]
    return candidates.astype(np.int32)


def _check_row(name: str, row: FloatArray) -> None:
    if row.ndim != 1 or row.dtype != np.float32 or row.size == 0:
        raise ValueError(f"{name} needs float32 [vocab], got {row.dtype} {list(row.shape)}")
