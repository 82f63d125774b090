"""How a context forgets: found out once, when the context is made, and checked each time."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import RollbackError


class Cells(Protocol):
    """What a strategy needs of a context."""

    def feed(self, tokens: npt.NDArray[np.int32]) -> object: ...

    def remove_cells(self, keep: int) -> bool: ...

    @property
    def last_position(self) -> int: ...


class Strategy(Protocol):
    """A way to take tokens back."""

    name: str
    can_roll_back: bool

    def rollback(self, cells: Cells, keep: int) -> None:
        """Leaves exactly the first ``keep`` tokens. Raises RollbackError when that did not work."""


class CellRemoval:
    """Attention memory: the cells of the tail are removed, exactly (``llama_memory_seq_rm``)."""

    name = "cell removal"
    can_roll_back = True

    def rollback(self, cells: Cells, keep: int) -> None:
        if not cells.remove_cells(keep) or cells.last_position != keep - 1:
            raise RollbackError(
                f"the cache should end at position {keep - 1} after a rollback, it ends at "
                f"{cells.last_position}; please report this model"
            )


class Irreversible:
    """A memory that cannot give back its last tokens, such as a recurrent state."""

    name = "none"
    can_roll_back = False

    def rollback(self, cells: Cells, keep: int) -> None:
        raise RollbackError("this model's memory cannot be rolled back")


def probe(cells: Cells) -> Strategy:
    """Finds the strategy by trying: feeds two tokens into an empty context and takes one back."""
    cells.feed(np.zeros(2, np.int32))
    if cells.remove_cells(1) and cells.last_position == 0:
        return CellRemoval()
    return Irreversible()
