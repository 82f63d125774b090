"""What one sequence of a context remembers: its cells, its recurrent state, and copies of that."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np

from ..errors import RollbackError
from ..rollback import State
from .model import Model

SEQUENCE = 0
PARTIAL = (
    llama_cpp.LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY
)  # without the cells that llama_memory_seq_rm can remove


class Memory:
    """The memory of a ``llama_context`` (``llama_memory_t``), as far as rolling back needs it.

    n_snapshots: how many of the last tokens its recurrent state can be taken back by (``llama_n_rs_seq``).
    recurrent: whether it has a recurrent state. window: tokens its sliding window reaches back, or 0.
    """

    def __init__(self, pointer: llama_cpp.llama_context_p, model: Model) -> None:
        self._context: llama_cpp.llama_context_p | None = pointer
        self._path = model.path
        self.n_snapshots = int(llama_cpp.llama_n_rs_seq(pointer))
        self.recurrent = bool(
            llama_cpp.llama_model_is_recurrent(model.pointer)
            or llama_cpp.llama_model_is_hybrid(model.pointer)
        )
        self.window = int(llama_cpp.llama_model_n_swa(model.pointer))

    @property
    def context(self) -> llama_cpp.llama_context_p:
        """The ``llama_context *``. Raises ValueError after :meth:`close`."""
        if self._context is None:
            raise ValueError(f"{self._path}: the context is closed")
        return self._context

    def close(self) -> None:
        """Ends its use; the context frees it."""
        self._context = None

    def clear(self) -> None:
        """Empties it (``llama_memory_clear``)."""
        llama_cpp.llama_memory_clear(self._memory(), True)

    def remove_cells(self, keep: int) -> bool:
        """Removes what is at positions ≥ keep; whether it worked (``llama_memory_seq_rm``)."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory(), SEQUENCE, keep, -1))

    @property
    def first_position(self) -> int:
        """The smallest position from which on all are held (``llama_memory_seq_pos_min``), -1 when empty."""
        return int(llama_cpp.llama_memory_seq_pos_min(self._memory(), SEQUENCE))

    @property
    def last_position(self) -> int:
        """The largest position it holds (``llama_memory_seq_pos_max``), -1 when it is empty."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory(), SEQUENCE))

    def save(self, into: State) -> State:
        """A copy of the recurrent state, uint8 [bytes] (``llama_state_seq_get_data_ext``, partial only).

        into: an array to reuse where it has the size. Raises RollbackError when llama.cpp copies none of it.
        """
        size = int(llama_cpp.llama_state_seq_get_size_ext(self.context, SEQUENCE, PARTIAL))
        if len(into) != size:
            into = np.empty(size, np.uint8)
        copied = llama_cpp.llama_state_seq_get_data_ext(self.context, _bytes(into), size, SEQUENCE, PARTIAL)
        if not size or copied != size:
            raise RollbackError(
                f"{self._path}: {copied} of {size} bytes of the model's state could be copied"
            )
        return into

    def restore(self, state: State) -> bool:
        """Puts such a copy back (``llama_state_seq_set_data_ext``); whether it worked. Cells stay."""
        read = llama_cpp.llama_state_seq_set_data_ext(
            self.context, _bytes(state), len(state), SEQUENCE, PARTIAL
        )
        return int(read) == len(state)

    def _memory(self) -> llama_cpp.llama_memory_t:
        memory: llama_cpp.llama_memory_t = llama_cpp.llama_get_memory(self.context)
        return memory


def _bytes(state: State) -> ctypes._Pointer[ctypes.c_uint8]:
    return state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
