"""Where two greedy runs part, and how far apart that may be.

A batch and single steps are summed in different orders, so two logits within rounding of each other can
swap places. How far rounding goes is a property of model, quantisation and machine, and measured: where a
speculative run and a plain one first part, the gap between their tokens' logits must be within twice the
largest difference; where no difference is measured, the runs must be equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .backend import Context
from .tokens import Tokens, common_prefix

BATCHES = (2, 3, 5, 9, 17)  # tokens a pass, compared with single ones


@dataclass(frozen=True)
class Parting:
    """The first place at which two runs differ.

    position: how many tokens they share. plain, other: the ids there; that of a run which ended is the
    likeliest one to end it. gap: between the two logits, after the shared tokens in single steps.
    """

    position: int
    plain: int
    other: int
    gap: float


def measured_difference(context: Context, tokens: Tokens) -> float:
    """The largest |Δ| between logits of single passes and of batches, over tokens × vocabulary.

    tokens: int32 [n], more than the largest batch to be worth anything. The largest is the context's
    ``n_outputs``: llama.cpp attends in another order from 64 tokens on. The context is empty afterwards.
    """
    singles = _rows(context, tokens, 1)
    batches = {min(n, context.n_outputs) for n in (*BATCHES, context.n_outputs)}
    return max(float(np.abs(_rows(context, tokens, n) - singles).max()) for n in batches)


def parting(
    context: Context, prompt: Tokens | Sequence[int], plain: Sequence[int], other: Sequence[int]
) -> Parting | None:
    """Where two greedy runs from a prompt part, None where they are equal. The context holds what it read."""
    position = common_prefix(np.asarray(plain, np.int32), np.asarray(other, np.int32))
    if position == len(plain) == len(other):
        return None
    history = np.array([*prompt, *plain[:position]], np.int32)
    context.hold(history[:-1])
    row = context.feed(history[-1:])[0]
    a, b = (run[position] if position < len(run) else _likeliest_end(context, row) for run in (plain, other))
    return Parting(position, a, b, abs(float(row[a]) - float(row[b])))


def _likeliest_end(context: Context, row: np.ndarray) -> int:
    ends = context.model.vocab.eog_tokens
    return ends[int(row[ends].argmax())]


def _rows(context: Context, tokens: Tokens, n: int) -> np.ndarray:
    context.clear()
    rows = [context.score(tokens[i : i + n]).copy() for i in range(0, len(tokens), n)]
    context.clear()
    return np.concatenate(rows)
