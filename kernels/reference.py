"""The inner loops in numpy: what the native ones are tested and measured against, and their documentation.

NaN never wins: it is left out wherever a largest entry is looked for.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.float32]
Ids = npt.NDArray[np.int32]
Probs = npt.NDArray[np.float64]

BLOCK = 256


def argmax(rows: Logits) -> Ids:
    """The id of the largest logit of each row; ties go to the lowest id, rows of nothing but NaN or −∞ to 0.

    rows: float32 [n, vocab], contiguous. Returns int32 [n]. Raises ValueError for anything else.
    """
    _check("argmax needs float32 [n, vocab]", rows, np.float32, 2)
    if rows.shape[1] == 0:
        raise ValueError(f"argmax needs float32 [n, vocab], got {_described(rows)}")
    ids = rows.argmax(axis=1)
    for i in np.flatnonzero(np.isnan(rows[np.arange(len(rows)), ids])):  # numpy's argmax prefers NaN
        ids[i] = np.where(np.isnan(rows[i]), -np.inf, rows[i]).argmax()
    found: Ids = ids.astype(np.int32)
    return found


def argmax_prob(row: Logits) -> tuple[int, float]:
    """The id of the largest logit and its softmax probability over the whole row, to about 1e-5 of its value.

    row: float32 [vocab], contiguous. NaN counts as −∞. Of several +∞ each gets an equal share; where
    nothing is above −∞ the probability is NaN. Raises ValueError for anything else.
    """
    _check_row("argmax_prob needs float32 [vocab]", row)
    best = int(argmax(row[None, :])[0])
    if not row[best] > -np.inf:
        return best, float("nan")
    if np.isinf(row[best]):
        return best, 1.0 / int((row == row[best]).sum())
    with np.errstate(over="ignore", under="ignore"):  # −∞ is what such a difference is meant to be
        weights = np.exp(row - row[best])
    return best, float(1.0 / np.nansum(weights, dtype=np.float64))


def top(row: Logits, k: int, extra_ids: Ids) -> tuple[Ids, Logits]:
    """The ids, ascending, and logits of the k largest entries and of ``extra_ids``, each id once.

    row: float32 [vocab], contiguous; k: at least 1; extra_ids: int32 [m], within the row. Returns int32 [n]
    and float32 [n] with n ≤ k + m; NaN is left out. Of several entries equal to the k-th largest the lowest
    ids are taken. Raises ValueError for anything else.
    """
    _check_row("top needs float32 [vocab]", row)
    _check("top needs int32 [m] extra ids", extra_ids, np.int32, 1)
    if k < 1:
        raise ValueError(f"top needs k >= 1, got {k}")
    outside = extra_ids[(extra_ids < 0) | (extra_ids >= row.size)]
    if outside.size:
        raise ValueError(f"top needs extra ids within the row of {row.size}, got {outside[0]}")
    largest = _largest(row, k)
    if extra_ids.size:
        largest = np.union1d(largest, extra_ids[~np.isnan(row[extra_ids])])
    ids: Ids = largest.astype(np.int32)
    return ids, row[ids]


def _largest(row: Logits, k: int) -> npt.NDArray[np.intp]:
    """Ids of the k largest, ascending."""
    blocks = row.size // BLOCK
    bound = -np.inf
    if blocks > k:
        # k blocks whose maxima reach the bound hold k entries that reach it: no smaller entry is needed.
        maxima = np.fmax.reduce(row[: blocks * BLOCK].reshape(blocks, BLOCK), axis=1)
        maxima[np.isnan(maxima)] = -np.inf
        bound = np.partition(maxima, blocks - k)[blocks - k]
    ids = np.flatnonzero(row >= bound)
    if ids.size > k:
        border = np.partition(row[ids], ids.size - k)[ids.size - k]
        above = ids[row[ids] > border]
        ids = np.sort(np.concatenate([above, ids[row[ids] == border][: k - above.size]]))
    return ids


def excess(p_ids: Ids, p: Probs, q_ids: Ids, q: Probs, scale: float) -> tuple[Probs, float]:
    """max(0, scale · p(x) − q(x)) for each x of p's support, and their sum (S in block verification).

    A support is int32 [n] ids, each once, in any order, and float64 [n] probabilities, contiguous; a full
    row is the support of all ids. Returns float64 [n] and a float. Raises ValueError for anything else.
    """
    wanted = "a support needs int32 [n] ids and float64 [n] probabilities"
    for ids, probs in ((p_ids, p), (q_ids, q)):
        _check(wanted, ids, np.int32, 1)
        _check(wanted, probs, np.float64, 1)
        if len(ids) != len(probs):
            raise ValueError(f"{wanted}, of one length")
    left = np.maximum(scale * p - _on(p_ids, q_ids, q), 0.0)
    return left, float(left.sum())


def residual(p_ids: Ids, p: Probs, q_ids: Ids, q: Probs, scale: float) -> tuple[Ids, Probs]:
    """norm(max(0, scale · p − q)) on its support, in p's order; empty where nothing is left.

    Takes and raises what :func:`excess` does. Returns int32 [m] and float64 [m], all positive.
    """
    left, total = excess(p_ids, p, q_ids, q, scale)
    keep = left > 0.0
    return p_ids[keep], left[keep] / total if total > 0.0 else left[keep]


def _on(ids: Ids, support: Ids, probs: Probs) -> Probs:
    """The probabilities of ``ids``, 0 outside the support."""
    if not len(support):
        return np.zeros(len(ids))
    order = support.argsort()
    at = support.searchsorted(ids, sorter=order)
    at[at == len(order)] = 0
    found = order[at]
    return np.where(support[found] == ids, probs[found], 0.0)


class SuffixAutomaton:
    """The longest end of a text that occurred before, and what followed (Blumer et al. 1985, grown online).

    capacity: the most tokens remembered, 2 to 2²⁸; past it the older half is forgotten. A token costs
    constant amortised time. Raises ValueError for another capacity.
    """

    def __init__(self, capacity: int = 1 << 18) -> None:
        if not 2 <= capacity <= 1 << 28:
            raise ValueError("a suffix automaton needs a capacity of 2 to 2**28 tokens")
        self._capacity = capacity
        self.reset()

    def reset(self) -> None:
        """Forgets the text."""
        self._text: list[int] = []
        self._start()

    def _start(self) -> None:
        self._next: list[dict[int, int]] = [{}]
        self._link = [-1]
        self._length = [0]
        self._end = [0]  # one past where a state's strings last were seen to end
        self._tried = [0]  # how often a state was the match,
        self._kept = [0]  # and how often its continuation came again
        self._last = 0
        self._match = (0, 0)
        self._matched = 0  # the match's state

    def extend(self, tokens: Ids) -> None:
        """Appends tokens, int32 [n], contiguous. Raises ValueError for anything else."""
        _check("extend needs int32 [n] tokens", tokens, np.int32, 1)
        for token in tokens.tolist():
            if len(self._text) == self._capacity:
                kept = self._text[(len(self._text) + 1) // 2 :]
                self.reset()
                for old in kept:
                    self._append(old)
            self._append(token)

    def __len__(self) -> int:
        return len(self._text)

    @property
    def match_length(self) -> int:
        """The length of the longest end of the text that also occurs earlier in it."""
        return self._match[0]

    @property
    def match_tried(self) -> int:
        """How often this very match was the longest one before; 0 without a match."""
        return self._tried[self._matched]

    @property
    def match_kept(self) -> int:
        """How often of these what followed was what had followed the last time."""
        return self._kept[self._matched]

    def continuation(self, limit: int) -> Ids:
        """What followed that earlier occurrence: int32 [n], n ≤ limit; empty without one.

        Of several occurrences it is the last one that was itself the longest match at the time, or else the
        first. Raises ValueError for a limit below 0.
        """
        if limit < 0:
            raise ValueError("continuation needs a limit of at least 0")
        length, end = self._match
        return np.array(self._text[end : end + limit] if length else [], np.int32)

    def find(self, tokens: Ids, limit: int) -> tuple[int, Ids]:
        """The longest end of another text that occurs in this one: its length, and what followed there.

        tokens: int32 [n], contiguous. Returns the length and int32 [m], m ≤ limit; 0 and nothing where not
        even the last token occurs. Raises ValueError for anything else, and for a limit below 0.
        """
        if limit < 0:
            raise ValueError("find needs a limit of at least 0")
        _check("find needs int32 [n] tokens", tokens, np.int32, 1)
        state = length = 0
        for token in tokens.tolist():
            while state and token not in self._next[state]:
                state = self._link[state]
                length = self._length[state]
            if token in self._next[state]:
                state = self._next[state][token]
                length += 1
        end = self._end[state]
        return length, np.array(self._text[end : end + limit] if length else [], np.int32)

    def _append(self, token: int) -> None:
        if self._matched:
            self._tried[self._matched] += 1
            self._kept[self._matched] += self._text[self._match[1]] == token
        self._text.append(token)
        fresh = self._state(self._length[self._last] + 1, 0, len(self._text))
        p = self._last
        while p != -1 and token not in self._next[p]:
            self._next[p][token] = fresh
            p = self._link[p]
        if p != -1:
            q = self._next[p][token]
            fits = self._length[q] == self._length[p] + 1
            self._link[fresh] = q if fits else self._split(p, q, token)
        self._last = fresh
        match = self._link[fresh]
        self._match = (self._length[match], self._end[match])
        self._matched = match
        if match > 0:
            self._end[match] = len(self._text)

    def _split(self, p: int, q: int, token: int) -> int:
        """Makes a state of its own for the shorter strings that end in q and are reached from p."""
        clone = self._state(self._length[p] + 1, self._link[q], self._end[q])
        self._next[clone] = dict(self._next[q])
        while p != -1 and self._next[p].get(token) == q:
            self._next[p][token] = clone
            p = self._link[p]
        self._link[q] = clone
        self._tried[clone], self._kept[clone] = self._tried[q], self._kept[q]
        return clone

    def _state(self, length: int, link: int, end: int) -> int:
        self._next.append({})
        self._link.append(link)
        self._length.append(length)
        self._end.append(end)
        self._tried.append(0)
        self._kept.append(0)
        return len(self._next) - 1


def _check(wanted: str, array: npt.NDArray[np.generic], dtype: type[np.generic], ndim: int) -> None:
    if array.dtype != dtype or array.ndim != ndim:
        raise ValueError(f"{wanted}, got {_described(array)}")
    if not array.flags.c_contiguous:
        raise ValueError(f"{wanted}, contiguous")


def _check_row(wanted: str, row: Logits) -> None:
    _check(wanted, row, np.float32, 1)
    if row.size == 0:
        raise ValueError(f"{wanted}, got an empty row")


def _described(array: npt.NDArray[np.generic]) -> str:
    return f"{array.dtype} {list(array.shape)}"
