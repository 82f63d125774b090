"""The near-tie bound, as an assertion."""

from __future__ import annotations

from collections.abc import Sequence

from specdec.backend import Context
from specdec.neartie import parting


def assert_same_run(
    context: Context, prompt: Sequence[int], plain: Sequence[int], speculative: Sequence[int], bound: float
) -> None:
    """Fails unless the runs are equal, or first part at a near tie within ``bound``."""
    context.clear()
    parted = parting(context, prompt, plain, speculative)
    context.clear()
    assert parted is None or parted.gap <= bound, f"{parted}: more than {bound:g} apart"
