"""Reading a text before the first round, by the target and by a drafter that has to read it too."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from .backend import Context, FeedProgress, default_threads
from .drafters import Drafter, Reader
from .schedule import Horizon
from .tokens import Tokens


def prefill(
    target: Context, drafter: Drafter, text: Tokens, horizon: Horizon, progress: FeedProgress | None = None
) -> int:
    """Both read the text, its last token excepted: side by side where the cores suffice for the threads of
    both, else one after the other, for two that share a core are slower than two in turn.

    text: int32 [n]. progress: the target's. Returns how many tokens the target held already. Raises what
    either raises (:meth:`Context.hold`), once neither is at work any more.
    """
    if not isinstance(drafter, Reader):
        return target.hold(text[:-1], progress)
    if target.prompt_threads + drafter.prompt_threads > default_threads():
        held = target.hold(text[:-1], progress)
        drafter.read(text, horizon)
        return held
    with ThreadPoolExecutor(1, "drafter") as beside:
        reading = beside.submit(drafter.read, text, horizon)
        held = target.hold(text[:-1], progress)
        reading.result()
    return held
