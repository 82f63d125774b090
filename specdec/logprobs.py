"""How likely the target itself found what was emitted."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .kernels import argmax_prob, top


@dataclass(frozen=True)
class TokenLogprobs:
    """The natural logarithms of the target's own probabilities at one position.

    They come from the softmax of its raw logits, before any sampler, bias or grammar. token: the one that
    was emitted. top: the likeliest ids with theirs, likeliest first.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...]


def token_logprobs(row: npt.NDArray[np.float32], token: int, n: int) -> TokenLogprobs:
    """row: the logits before the token, float32 [vocab]. n: how many of the likeliest to tell, at least 1."""
    best, prob = argmax_prob(row)
    log_total = float(row[best]) - math.log(prob)
    ids, logits = top(row, n, np.empty(0, np.int32))
    order = np.argsort(-logits, kind="stable")
    logs = logits[order].astype(np.float64) - log_total
    likeliest = zip(ids[order].tolist(), logs.tolist(), strict=True)
    return TokenLogprobs(token, float(row[token]) - log_total, tuple(likeliest))
