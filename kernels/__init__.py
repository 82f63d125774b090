"""The numeric inner loops of a round, over rows of logits as they lie in llama.cpp's buffer.

The native ones (C++) are used where they were built, their numpy reference elsewhere; both have the same
signatures, which :mod:`.reference` documents. ``SPECDEC_KERNELS=reference`` or ``native`` chooses.
``name`` says which are in use.
"""

from __future__ import annotations

import importlib.util
import os
from typing import TYPE_CHECKING


def _choose() -> str:
    wanted = os.environ.get("SPECDEC_KERNELS", "")
    if wanted not in ("", "native", "reference"):
        raise ImportError(f"SPECDEC_KERNELS is {wanted!r}; use native or reference", name=__name__)
    built = importlib.util.find_spec(f"{__name__}.native") is not None
    if wanted == "native" and not built:
        raise ImportError(
            "SPECDEC_KERNELS=native, but no C++ compiler worked when specdec was installed; install it again",
            name=__name__,
        )
    return wanted or ("native" if built else "reference")


name = _choose()

if TYPE_CHECKING or name == "reference":
    from .reference import SuffixAutomaton, argmax, argmax_prob, excess, residual, top
else:
    from .native import SuffixAutomaton, argmax, argmax_prob, excess, residual, top

__all__ = ["SuffixAutomaton", "argmax", "argmax_prob", "excess", "name", "residual", "top"]
