"""Does a pair fit into the memory there is? Asked before anything is loaded, answered with the numbers.

Weights are mapped from their file: what does not fit is read again and again, which is slow and works. The
cache, the state and the buffers are written to: where there is no memory for them the process is killed.
So only what can never work is refused: a context that needs more than all memory and swap together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from .footprint import CELL_STEP, Footprint, Shape, footprint
from .rollback import MOST_SNAPSHOTS
from .room import Device, Room, amount
from .settings import BATCH_CPU, BATCH_GPU, Drafting, Loading


@dataclass(frozen=True)
class Part:
    """One model of the pair: what it needs for a context of ``n_ctx`` tokens, and the share on devices."""

    n_ctx: int
    footprint: Footprint
    on_device: float


@dataclass(frozen=True)
class Need:
    """What a pair needs; bytes. draft: None where no model drafts."""

    target: Part
    draft: Part | None

    @property
    def parts(self) -> list[Part]:
        return [self.target] if self.draft is None else [self.target, self.draft]

    @property
    def working(self) -> int:
        """What has to be in main memory: caches, states, buffers."""
        return round(sum(p.footprint.working * (1 - p.on_device) for p in self.parts))

    @property
    def weights(self) -> int:
        """What had better be in main memory."""
        return round(sum(p.footprint.weights * (1 - p.on_device) for p in self.parts))

    @property
    def on_devices(self) -> int:
        """What has to be in the devices' memory."""
        return round(sum(p.footprint.total * p.on_device for p in self.parts))


def need(
    target: Shape,
    draft: Shape | None,
    loading: Loading,
    drafting: Drafting = Drafting(),
    *,
    longest_draft: int = 0,
    gpu: bool = False,
) -> Need:
    """What ``Engine`` would take with these settings. gpu: whether llama.cpp has a device to load onto."""
    longest = max(longest_draft, 0 if drafting.drafter == "none" else drafting.longest)
    n_ctx = loading.n_ctx or target.trained
    base = BATCH_GPU if gpu else BATCH_CPU
    n_outputs = max(2, 1 + longest)
    ours = footprint(
        target,
        n_ctx,
        n_outputs=n_outputs,
        n_batch=max(base, 2 * n_outputs),
        copies=max(0, min(longest, MOST_SNAPSHOTS, n_ctx - 2)),
    )
    part = Part(n_ctx, ours, _share(target, loading.gpu_layers) if gpu else 0.0)
    if draft is None:
        return Need(part, None)
    n_draft = min(n_ctx, draft.trained or n_ctx) if loading.n_ctx_draft is None else loading.n_ctx_draft
    layers = loading.gpu_layers if loading.gpu_layers_draft is None else loading.gpu_layers_draft
    theirs = footprint(draft, n_draft, n_batch=base)
    return Need(part, Part(n_draft, theirs, _share(draft, layers) if gpu else 0.0))


def _share(shape: Shape, gpu_layers: int | None) -> float:
    """How much of a model is on a device; the output layer counts as one (``n_gpu_layers``)."""
    if gpu_layers is None or gpu_layers < 0:
        return 1.0
    return min(1.0, gpu_layers / (shape.layers + 1))


@dataclass(frozen=True)
class Fit:
    """The answer. refusal: why it can never work; warning: why it will be slow. Either is one line."""

    refusal: str | None = None
    warning: str | None = None


def fit(
    target: Shape,
    draft: Shape | None,
    loading: Loading,
    drafting: Drafting,
    room: Room,
    devices: Sequence[Device] = (),
    *,
    longest_draft: int = 0,
) -> Fit:
    """Whether what ``Engine`` would take with these settings fits."""

    def needed(n_ctx: int) -> Need:
        tried = replace(loading, n_ctx=n_ctx)
        return need(target, draft, tried, drafting, longest_draft=longest_draft, gpu=bool(devices))

    n_ctx = loading.n_ctx or target.trained
    asked = needed(n_ctx)
    tokens = f"a context of {n_ctx:,} tokens needs {amount(asked.working)} of memory ({_in_parts(asked)})"
    whose = "this container" if room.limited else "this machine"
    if asked.working > room.total:
        smaller = _longest(needed, n_ctx, room.available)
        return Fit(refusal=f"{tokens}, and {whose} has {amount(room.total)} in all; {_lower(smaller)}")
    if asked.working > room.available:
        smaller = _longest(needed, n_ctx, room.available)
        free = f"{amount(room.available)} is available now"
        return Fit(warning=f"{tokens}, and {free}: the system may have to swap; {_lower(smaller)}")
    if asked.working + asked.weights > room.available:
        both = f"weights of {amount(asked.weights)} and a context of {amount(asked.working)}"
        return Fit(
            warning=f"{both} are more than the {amount(room.available)} of memory available: parts of the "
            "weights will be read from the disk for every token, slowly; a smaller model or quantisation"
        )
    free_on_devices = sum(d.free for d in devices)
    if devices and asked.on_devices > free_on_devices:
        names = ", ".join(d.name for d in devices)
        wanted = f"the layers on {names} need {amount(asked.on_devices)}"
        return Fit(warning=f"{wanted}, and {amount(free_on_devices)} is free there; lower -ngl or -c")
    return Fit()


def _in_parts(asked: Need) -> str:
    names = ("target", "drafter")
    return ", ".join(
        f"{name} {amount(p.footprint.working)}" for name, p in zip(names, asked.parts, strict=False)
    )


def _longest(needed: Callable[[int], Need], n_ctx: int, limit: int) -> int:
    """The longest context whose working memory is within the limit; 0 when there is none."""
    low, high = 0, n_ctx // CELL_STEP
    while low < high:
        middle = (low + high + 1) // 2
        if needed(middle * CELL_STEP).working <= limit:
            low = middle
        else:
            high = middle - 1
    return low * CELL_STEP


def _lower(n_ctx: int) -> str:
    return (
        f"lower it: -c {n_ctx} fits" if n_ctx else "even the shortest context is too large: a smaller model"
    )
