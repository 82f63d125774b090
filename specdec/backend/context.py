"""One sequence of tokens in a model's cache: feed it, read its logits, take tokens back."""

from __future__ import annotations

import ctypes
import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType

import llama_cpp
import numpy as np
import numpy.typing as npt

from .. import rollback
from ..errors import AbortedError, ContextFullError, DecodeError, UsageError
from ..tokens import Tokens, common_prefix
from . import llama
from .llama import Abort
from .model import Model

Rows = npt.NDArray[np.float32]
FeedProgress = Callable[[int, int], None]

SEQUENCE = 0


class Context:
    """A model's working memory for one sequence (``llama_context``).

    n_ctx: tokens the sequence may hold; 0 for what the model was trained with.
    n_outputs: the most rows of logits one :meth:`score` is asked for (draft length + 1).
    threads: for decoding and prompts; None for the physical cores.
    abort: stops a decode from another thread or a signal. lora: adapters, each with its scale.

    decode_seconds, tokens_fed: what all passes took, and how many tokens they read, since it was made.

    Making one runs a few small passes: they find out how this memory rolls back and what one token
    costs (``pass_seconds``), and bring the weights into memory.
    Raises UsageError when llama.cpp cannot make the context, mostly for want of memory, or an adapter
    does not fit.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 4096,
        n_outputs: int = 1,
        threads: int | None = None,
        abort: Abort | None = None,
        lora: Sequence[tuple[Path, float]] = (),
    ) -> None:
        self.model = model
        self.n_ctx = n_ctx or model.n_ctx_train
        if self.n_ctx < 2:
            raise UsageError(
                f"{model.path}: a context of {self.n_ctx} holds no prompt; it needs 2 tokens or more"
            )
        self.n_outputs = max(2, n_outputs)
        self.decode_seconds = 0.0
        self.tokens_fed = 0
        self._abort = abort or Abort()
        self._pointer: llama_cpp.llama_context_p | None = None
        self.threads = threads or llama.default_threads()
        params = self._params(self.threads)
        llama.forget_errors()
        pointer = llama_cpp.llama_init_from_model(model.pointer, params)
        if pointer is None:
            raise UsageError(
                f"{model.path}: llama.cpp cannot make a context of {self.n_ctx} tokens: "
                f"{llama.last_errors()}; a smaller -c needs less memory"
            )
        self._pointer = pointer
        self.n_batch = int(llama_cpp.llama_n_batch(pointer))
        self._batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)
        self._free = weakref.finalize(self, _free, pointer, self._batch)
        model.contexts.add(self)
        self._token, self._position, self._output = self._batch_views()
        self._all_positions = np.arange(self.n_ctx, dtype=np.int32)
        self._held = np.empty(self.n_ctx + 1, np.int32)
        self._logits = np.empty((0, 0), np.float32)
        self._logits_address = 0
        self._n_held = 0
        try:
            self._apply(lora)
            self.rollback_strategy = rollback.probe(self)
            self.pass_seconds = self._time_one_pass()
        except BaseException:
            self.close()
            raise

    def _params(self, threads: int) -> llama_cpp.llama_context_params:
        params: llama_cpp.llama_context_params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        # A CPU reads prompts as fast in small pieces, and the compute buffer shrinks with them.
        params.n_ubatch = 512 if llama.supports_gpu() else 64
        params.n_batch = max(params.n_ubatch, self.n_outputs)
        params.n_ubatch = params.n_batch
        params.n_seq_max = 1
        params.n_outputs_max = self.n_outputs
        params.n_outputs_max_per_seq = self.n_outputs
        params.n_threads = params.n_threads_batch = threads
        params.swa_full = True  # a sliding window that forgot the past could not be rolled back into it
        params.no_perf = True
        params.abort_callback = self._abort.callback
        params.abort_callback_data = self._abort.data
        return params

    def _apply(self, lora: Sequence[tuple[Path, float]]) -> None:
        """Puts adapters on the weights, for this context alone (``llama_set_adapters_lora``)."""
        if not lora:
            return
        adapters = [self.model.adapter(path) for path, _ in lora]
        pointers = (llama_cpp.llama_adapter_lora_p_ctypes * len(lora))()
        for i, adapter in enumerate(adapters):
            pointers[i] = ctypes.cast(adapter, llama_cpp.llama_adapter_lora_p_ctypes)
        scales = (ctypes.c_float * len(lora))(*(scale for _, scale in lora))
        if llama_cpp.llama_set_adapters_lora(self.pointer, pointers, len(lora), scales) != 0:
            names = ", ".join(str(path) for path, _ in lora)
            raise UsageError(f"{self.model.path}: llama.cpp cannot apply the LoRA adapters {names}")

    def _batch_views(self) -> tuple[Tokens, Tokens, npt.NDArray[np.int8]]:
        batch, n = self._batch, self.n_batch
        for i in range(n):
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = SEQUENCE
        token = np.ctypeslib.as_array(ctypes.cast(batch.token, ctypes.POINTER(ctypes.c_int32)), (n,))
        position = np.ctypeslib.as_array(ctypes.cast(batch.pos, ctypes.POINTER(ctypes.c_int32)), (n,))
        output = np.ctypeslib.as_array(ctypes.cast(batch.logits, ctypes.POINTER(ctypes.c_int8)), (n,))
        return token, position, output

    def tune_threads(self) -> None:
        """Uses fewer threads for single tokens where that is faster: a small model is read faster than many
        threads can be told to. Halved as long as passes take a tenth less by it; prompts keep them all.
        """
        every = self.threads
        while self.threads > 1:
            before, seconds = self.threads, self.pass_seconds
            self._use_threads(self.threads // 2, every)
            self.pass_seconds = self._time_one_pass()
            if self.pass_seconds > 0.9 * seconds:
                self._use_threads(before, every)
                self.pass_seconds = seconds
                break

    def _use_threads(self, single: int, batch: int) -> None:
        llama_cpp.llama_set_n_threads(self.pointer, single, batch)
        self.threads = single

    @property
    def pointer(self) -> llama_cpp.llama_context_p:
        """The ``llama_context *``. Raises ValueError after :meth:`close`, which also frees the batch."""
        if self._pointer is None:
            raise ValueError(f"{self.model.path}: the context is closed")
        return self._pointer

    @property
    def held(self) -> Tokens:
        """The tokens in the cache, int32 [n]: a view, valid until the next call."""
        return self._held[: self._n_held]

    def __len__(self) -> int:
        return self._n_held

    def score(self, tokens: Tokens) -> Rows:
        """Feeds n tokens in one pass and returns the logits that follow each of them.

        tokens: int32 [n], 1 ≤ n ≤ n_outputs. Returns float32 [n, vocab], a view into llama.cpp's
        buffer (``llama_get_logits``) that the next pass overwrites and :meth:`close` invalidates.
        Raises ContextFullError, DecodeError, ValueError; AbortedError when it was stopped. A failed pass
        leaves the cache as it was.
        """
        n = len(tokens)
        if not 1 <= n <= self.n_outputs:
            raise ValueError(f"score takes 1 to {self.n_outputs} tokens, got {n}")
        return self._decode(tokens, n)

    def feed(self, tokens: Tokens, progress: FeedProgress | None = None) -> Rows:
        """Feeds one or more tokens and returns the logits after the last, float32 [1, vocab].

        progress: called with (tokens fed, tokens in all) after each pass. Raises as :meth:`score` does;
        what earlier passes fed stays in the cache.
        """
        rows: Rows | None = None
        for start in range(0, len(tokens), self.n_batch):
            piece = tokens[start : start + self.n_batch]
            rows = self._decode(piece, 1)
            if progress is not None:
                progress(start + len(piece), len(tokens))
        if rows is None:
            raise ValueError("feed needs at least one token")
        return rows

    def align(self, history: Tokens) -> int:
        """Rolls back whatever is not a prefix of ``history``; returns how many of its tokens are held.

        A memory that cannot give back a tail is emptied instead.
        """
        keep = common_prefix(self.held, history)
        if keep < self._n_held:
            if self.rollback_strategy.can_roll_back:
                self.rollback(keep)
            else:
                self.clear()
        return self._n_held

    def hold(self, text: Tokens, progress: FeedProgress | None = None) -> None:
        """Makes the cache hold exactly ``text``, whoever used it before: aligns it and feeds the rest.

        progress and what is raised: as for :meth:`feed`.
        """
        held = self.align(text)
        if held < len(text):
            self.feed(text[held:], progress)

    def rollback(self, keep: int) -> None:
        """Takes back every token past the first ``keep``.

        Raises RollbackError when this memory cannot, ValueError when it holds fewer than ``keep``.
        """
        if not 0 <= keep <= self._n_held:
            raise ValueError(f"cannot keep {keep} of {self._n_held} tokens")
        if keep < self._n_held:
            self.rollback_strategy.rollback(self, keep)
            self._n_held = keep

    def clear(self) -> None:
        """Empties the cache (``llama_memory_clear``)."""
        llama_cpp.llama_memory_clear(self._memory(), True)
        self._n_held = 0

    def remove_cells(self, keep: int) -> bool:
        """Removes the cells at positions ≥ keep; whether it worked (``llama_memory_seq_rm``)."""
        return bool(llama_cpp.llama_memory_seq_rm(self._memory(), SEQUENCE, keep, -1))

    @property
    def last_position(self) -> int:
        """The largest position in the cache (``llama_memory_seq_pos_max``), -1 when it is empty."""
        return int(llama_cpp.llama_memory_seq_pos_max(self._memory(), SEQUENCE))

    def close(self) -> None:
        """Frees the context. Views of its logits become invalid."""
        self._pointer = None
        self._free()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _memory(self) -> llama_cpp.llama_memory_t:
        memory: llama_cpp.llama_memory_t = llama_cpp.llama_get_memory(self.pointer)
        return memory

    def _decode(self, tokens: Tokens, n_rows: int) -> Rows:
        """Feeds tokens in one pass; the logits after the last ``n_rows`` of them."""
        pointer, n, start = self.pointer, len(tokens), self._n_held
        if start + n > self.n_ctx:
            raise ContextFullError(f"{start} + {n} tokens do not fit a context of {self.n_ctx}; raise -c")
        self._token[:n] = tokens
        self._position[:n] = self._all_positions[start : start + n]
        self._output[:n] = 0
        self._output[n - n_rows : n] = 1
        self._batch.n_tokens = n
        began = time.perf_counter()
        code = self._abort.call(llama_cpp.llama_decode, pointer, self._batch)
        if code != 0 or self._abort.is_set:
            self._restore(code)
        logits = llama_cpp.llama_get_logits(pointer)  # waits for the device
        self.decode_seconds += time.perf_counter() - began
        if not logits:
            raise DecodeError(f"{self.model.path}: llama_decode gave no logits")
        self._held[start : start + n] = tokens
        self._n_held = start + n
        self.tokens_fed += n
        return self._rows(ctypes.addressof(logits.contents), n_rows)

    def _rows(self, address: int, n_rows: int) -> Rows:
        """A view of llama.cpp's logits; made anew only when the buffer has moved or is read further."""
        if address != self._logits_address or n_rows > len(self._logits):
            n_vocab = self.model.vocab.size
            buffer = memoryview((ctypes.c_float * (n_rows * n_vocab)).from_address(address))
            self._logits = np.ndarray((n_rows, n_vocab), np.float32, buffer)
            self._logits_address = address
        return self._logits[:n_rows]

    def _restore(self, code: int) -> None:
        """After a failed pass: takes back what it left in the cache, and raises what happened."""
        if self.last_position >= self._n_held and not self.remove_cells(self._n_held):
            self.clear()
        if self._abort.is_set:
            raise AbortedError(f"{self.model.path}: the pass was stopped")
        if code == 1:
            raise ContextFullError(
                f"llama.cpp found no room for the batch in a context of {self.n_ctx}; raise -c"
            )
        raise DecodeError(f"{self.model.path}: llama_decode failed with {code}: {llama.last_errors()}")

    def _time_one_pass(self) -> float:
        """Seconds of a single-token pass on the warm model: the median of three, or one that takes long."""
        token = np.array([max(self.model.vocab.bos, 0)], np.int32)
        seconds: list[float] = []
        while len(seconds) < 3 and sum(seconds) < 0.1:
            self.clear()
            before = self.decode_seconds
            self.score(token)
            seconds.append(self.decode_seconds - before)
        self.clear()
        self.decode_seconds, self.tokens_fed = 0.0, 0
        return statistics.median(seconds)


def _free(context: llama_cpp.llama_context_p, batch: llama_cpp.llama_batch) -> None:
    llama_cpp.llama_free(context)
    llama_cpp.llama_batch_free(batch)
