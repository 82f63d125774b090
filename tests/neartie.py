"""The near-tie bound: how far batched and single-token logits differ on this machine, and what that excuses.

A batch and single steps are summed in different orders, so two logits within rounding of each other can
swap places. Where two greedy runs first part, the gap between their tokens' logits must be within twice the
largest difference measured on that very model; where no difference is measured they must be equal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from specdec.backend import Context
from specdec.tokens import Tokens


def measured_difference(context: Context, tokens: Tokens) -> float:
    """The largest |Δ| between the logits of single passes and of batches of 2 to 17, over the tokens."""
    singles = _rows(context, tokens, 1)
    return max(float(np.abs(_rows(context, tokens, n) - singles).max()) for n in (2, 3, 5, 9, 17))


def _rows(context: Context, tokens: Tokens, n: int) -> np.ndarray:
    context.clear()
    rows = [context.score(tokens[i : i + n]).copy() for i in range(0, len(tokens), n)]
    context.clear()
    return np.concatenate(rows)


def assert_same_run(
    context: Context, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int], bound: float
) -> None:
    """Fails unless the runs are equal, or first part at a near tie within ``bound``."""
    parted = next((i for i, (a, b) in enumerate(_pairs(plain, speculative)) if a != b), None)
    if parted is None:
        return
    a, b = plain[parted], speculative[parted]
    context.clear()
    row = context.feed(np.array([*prompt, *plain[:parted]], np.int32))[0]
    gap = abs(float(row[a]) - float(row[b]))
    context.clear()
    assert gap <= bound, (
        f"at token {parted} plain wrote {a}, speculative {b}: logits {gap:g} apart, not {bound:g}"
    )


def _pairs(a: Sequence[int], b: Sequence[int]) -> Iterator[tuple[int, int]]:
    assert len(a) == len(b), f"{len(a)} tokens against {len(b)}"
    return zip(a, b, strict=True)
