"""What a drafter may bring, guessed from sizes alone, before anything has run.

The model is Leviathan et al. 2023, Theorem 3.8: with acceptance a for each drafted token and a drafter that
costs c of a target pass, drafts of k tokens speed decoding up (1 - a^(k+1)) / ((1 - a) (1 + c k)) times.
Here c is bytes of weights read by the drafter's pass over the target's, and a verifying pass costs what it
reads, as on a GPU; a CPU that is short of arithmetic gains less. The acceptance is no measurement but a rule
of thumb, since it depends on the texts: 0.85 for a drafter of the target's size, 0.1 less for each factor of
ten that it is smaller, 0.1 less below 4 bits a weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .model_facts import ModelFacts

LONGEST = 16  # tokens of a draft that are tried
LEAST, MOST = 0.3, 0.9  # acceptance
WORTH = 1.1  # times plain decoding: a guess of less promises nothing
FEW_BITS = 4.0  # a weight; quantisations below it lose noticeably
TRANSLATED = 0.2  # less acceptance where the drafter's text is tokenised anew for the target


@dataclass(frozen=True)
class Prediction:
    """cost: of a drafted token, in target passes. acceptance: of a drafted token, assumed. length: the draft
    length that is best by it, 0 where none pays. speedup: over plain decoding with drafts of that length."""

    cost: float
    acceptance: float
    length: int
    speedup: float

    @property
    def pays(self) -> bool:
        return self.length > 0


def predict(target: ModelFacts, draft: ModelFacts, *, translated: bool = False) -> Prediction:
    """translated: whether the drafter has another vocabulary, and its text is tokenised anew."""
    single = max(1.0, target.bytes_read())
    cost = draft.bytes_read() / single
    accepted = _acceptance(target, draft) - (TRANSLATED if translated else 0.0)
    length, best = 0, 0.0
    for k in range(1, LONGEST + 1):
        emitted = (1.0 - accepted ** (k + 1)) / (1.0 - accepted)
        gain = emitted / (target.bytes_read(k + 1) / single + k * cost)
        if gain > best:
            length, best = k, gain
    return Prediction(cost, accepted, length, best) if best >= WORTH else Prediction(cost, accepted, 0, 1.0)


def _acceptance(target: ModelFacts, draft: ModelFacts) -> float:
    smaller = max(1.0, target.parameters / max(1, draft.parameters))
    assumed = 0.85 - 0.1 * math.log10(smaller)
    if draft.bits < FEW_BITS and draft.bits < target.bits:
        assumed -= 0.1
    return min(MOST, max(LEAST, assumed))
