"""How a context takes tokens back: found out once, when the context is made, and checked each time.

A strategy answers with how many tokens the memory still holds. What lies between that and what was to be
kept is read again by the context's next pass, together with whatever that pass is for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import DecodeError, RollbackError
from .tokens import Tokens

State = npt.NDArray[np.uint8]

# What a pass of its own costs, in tokens of a longer one, where drafting pays (BF16 on a CPU: about 10).
PASS_WORTH = 16

# Of a recurrent state. Each adds 3 nodes a layer to llama.cpp's graph, of bounded size (graph_max_nodes);
# past it the process is aborted: measured between 16 and 20 for Nemotron-H, 24 and 28 for LFM2. Longer drafts
# use checkpoints.
MOST_SNAPSHOTS = 8


class Memory(Protocol):
    """What a strategy needs of a context's memory (:class:`specdec.backend.memory.Memory`)."""

    n_snapshots: int
    recurrent: bool
    window: int

    def remove_cells(self, keep: int) -> bool: ...

    def save(self, into: State) -> State: ...

    def restore(self, state: State) -> bool: ...

    def clear(self) -> None: ...

    @property
    def first_position(self) -> int: ...

    @property
    def last_position(self) -> int: ...


class Strategy:
    """A way to take tokens back; this one is no way: it empties the memory, and all is read again."""

    name = "none"
    can_roll_back = False

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def before_pass(self, read: int, end: int, settled: int) -> None:
        """Called before a pass over tokens read..end; all of the text but the first ``settled`` may go."""

    def wants_pass(self, n: int) -> bool:
        """Whether n tokens that must be read again had better get a pass of their own."""
        return False

    def pin(self, read: int) -> None:
        """Called where a text that was asked for ends: a later one may well begin with it."""

    def rollback(self, read: int, keep: int) -> int:
        """Leaves at most the first ``keep`` of ``read`` tokens, keep < read, and returns how many.

        Raises RollbackError when the memory did not do as it was told.
        """
        return self._emptied()

    def recover(self, read: int) -> int:
        """After a pass from ``read`` on failed: how many tokens the memory holds unharmed, ≤ ``read``."""
        return self._emptied()

    def forget(self) -> None:
        """Called when the memory has been emptied."""

    def _emptied(self) -> int:
        self._memory.clear()
        self.forget()
        return 0

    def _cut(self, keep: int) -> None:
        """Removes the cells from position ``keep`` on."""
        if not self._memory.remove_cells(keep) or self._memory.last_position != keep - 1:
            raise RollbackError(
                f"the cache should end at position {keep - 1} after a rollback, it ends at "
                f"{self._memory.last_position}; please report this model"
            )


class CellRemoval(Strategy):
    """Attention memory: the cells of the tail are removed, exactly (``llama_memory_seq_rm``)."""

    name = "cell removal"
    can_roll_back = True

    def rollback(self, read: int, keep: int) -> int:
        if not self._window_is_whole(keep):
            return self._emptied()
        self._cut(keep)
        return keep

    def recover(self, read: int) -> int:
        memory = self._memory
        if memory.last_position >= read and not memory.remove_cells(read):
            return self._emptied()
        return read if self._window_is_whole(read) else self._emptied()

    def _window_is_whole(self, keep: int) -> bool:
        """Whether a sliding window still holds all that the token at ``keep`` looks back to."""
        memory = self._memory
        return not memory.window or memory.first_position <= max(0, keep - memory.window)


@dataclass
class _Checkpoint:
    """The memory after ``position`` tokens; at 0 it is empty, and there is nothing to copy."""

    position: int = 0
    state: State = field(default_factory=lambda: np.empty(0, np.uint8))


class Checkpoints(Strategy):
    """Any memory: its recurrent part is copied before a pass that may be undone, and put back after it.

    Two copies are kept: the newest, and one where the last prompt ended. A memory that is rolled back behind
    both is read again from the start.
    """

    name = "checkpoint and replay"
    can_roll_back = True

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._newest, self._pinned = _Checkpoint(), _Checkpoint()
        self._replayed = 0

    def before_pass(self, read: int, end: int, settled: int) -> None:
        if read <= settled < end:
            self._save(self._newest, read)

    def wants_pass(self, n: int) -> bool:
        # Renting or buying: once as much was spent on reading again as a pass costs, the pass is made.
        self._replayed += n
        return self._replayed > PASS_WORTH

    def pin(self, read: int) -> None:
        self._save(self._pinned, read)

    def rollback(self, read: int, keep: int) -> int:
        return self._back_to_checkpoint(keep)

    def recover(self, read: int) -> int:
        try:
            return self._back_to_checkpoint(read)
        except RollbackError:  # what is to be reported is the failed pass
            return self._emptied()

    def forget(self) -> None:
        self._newest.position = self._pinned.position = 0
        self._replayed = 0

    def _back_to_checkpoint(self, keep: int) -> int:
        for checkpoint in (self._newest, self._pinned):
            if checkpoint.position > keep:  # what it remembers is not the text any more
                checkpoint.position = 0
        last = max(self._newest, self._pinned, key=lambda c: c.position)
        if last.position == 0 or not self._memory.restore(last.state):
            return self._emptied()
        self._cut(last.position)
        return last.position

    def _save(self, checkpoint: _Checkpoint, read: int) -> None:
        if read not in (self._newest.position, self._pinned.position):
            checkpoint.position = 0  # while it is being overwritten
            checkpoint.state = self._memory.save(checkpoint.state)
            checkpoint.position = read
            self._replayed = 0


class Snapshots(Checkpoints):
    """Recurrent memory that keeps its last states itself (``n_rs_seq``): back by one of them, within a pass.

    They are of use once, and for tokens of the last pass but its first: undoing a whole pass succeeds and
    leaves a wrong state, so that where a whole pass may go, there is a checkpoint.
    """

    name = "state snapshots"

    def __init__(self, memory: Memory) -> None:
        super().__init__(memory)
        self._begun = 0  # where the last pass began, or the end of the text once its snapshots are used up

    def before_pass(self, read: int, end: int, settled: int) -> None:
        if not (read < settled and end - settled <= self._memory.n_snapshots):
            super().before_pass(read, end, settled)
        self._begun = read

    def rollback(self, read: int, keep: int) -> int:
        if keep > self._begun and read - keep <= self._memory.n_snapshots:
            self._cut(keep)
            self._begun = keep
            return keep
        return self._back_to_checkpoint(keep)


class Text(Protocol):
    """What trying a strategy needs of a context."""

    rollback_strategy: Strategy

    @property
    def memory(self) -> Memory: ...

    @property
    def n_read(self) -> int: ...

    def feed(self, tokens: Tokens) -> npt.NDArray[np.float32]: ...

    def score(self, tokens: Tokens, *, sure: int = 0) -> npt.NDArray[np.float32]: ...

    def rollback(self, keep: int) -> None: ...

    def clear(self) -> None: ...


def probe(text: Text, n_vocab: int) -> None:
    """Gives an empty context the first strategy that restores its state; leaves it empty."""
    for strategy in _candidates(text.memory):
        text.rollback_strategy = strategy
        if not strategy.can_roll_back or _restores(text, n_vocab):
            break


def expected(*, recurrent: bool, n_snapshots: int) -> type[Strategy]:
    """The strategy that is tried first, and that should do."""
    if n_snapshots:
        return Snapshots
    return Checkpoints if recurrent else CellRemoval


def _candidates(memory: Memory) -> Iterator[Strategy]:
    first = expected(recurrent=memory.recurrent, n_snapshots=memory.n_snapshots)
    yield first(memory)
    if first is not Checkpoints:
        yield Checkpoints(memory)
    yield Strategy(memory)


def _restores(text: Text, n_vocab: int) -> bool:
    """Whether a token taken back leaves no trace in the logits that follow, without reading all of it again.

    Whether tokens are read one by one or in one pass makes some difference; twice that is allowed.
    """
    a, b, c, d = (np.array([n_vocab * i // 5], np.int32) for i in (1, 2, 3, 4))
    try:
        text.feed(np.concatenate([a, b]))
        after_c, after_d = text.score(c)[0].copy(), text.score(d)[0].copy()
        text.clear()
        text.feed(np.concatenate([a, b]))
        in_one = text.score(np.concatenate([c, d]), sure=1).copy()
        text.rollback(3)
        reread = text.n_read == 0
        again = text.score(d)[0].copy()
    except (RollbackError, DecodeError):
        return False
    finally:
        text.clear()
    rounding = max(_apart(in_one[0], after_c), _apart(in_one[1], after_d))
    allowed = max(2 * rounding, 1e-4 * float(np.ptp(after_d)))
    return not reread and min(_apart(again, after_d), _apart(again, in_one[1])) <= allowed


def _apart(x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> float:
    return float(np.abs(x - y).max())
