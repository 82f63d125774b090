"""What passes of a loaded model cost, by the tokens they read."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import numpy as np

from .backend import Context
from .limit import Curve
from .tokens import Tokens

ROWS = (1, 2, 3, 5, 9, 17)
REPEATS = 3


def measured_passes(context: Context, text: Tokens, progress: Callable[[float], None]) -> Curve:
    """Seconds of a pass by its rows, the median of three each, all sizes in turn.

    text: int32 [n], read over and over; nothing is taken back in between, so every memory does the same.
    Sizes that the context's ``n_outputs`` does not allow are left out. progress: told the share that is done,
    0 to 1. The context is empty afterwards.
    """
    seconds: dict[int, list[float]] = {}
    context.clear()
    sizes = [n for n in ROWS if n <= context.n_outputs] * REPEATS
    source = np.resize(text, context.n_ctx)
    for i, n in enumerate(sizes):
        if len(context) + n > context.n_ctx:
            context.clear()
        before = context.decode_seconds
        context.score(source[len(context) : len(context) + n], sure=n)
        seconds.setdefault(n, []).append(context.decode_seconds - before)
        progress((i + 1) / len(sizes))
    context.clear()
    return Curve({n: (statistics.median(times), len(times)) for n, times in seconds.items()})
