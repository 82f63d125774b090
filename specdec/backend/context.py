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
from ..errors import (
    AbortedError,
    ContextFullError,
    DecodeError,
    RollbackError,
    SpecdecError,
    UsageError,
)
from ..settings import BATCH_CPU, BATCH_GPU
from ..tokens import Tokens, common_prefix
from . import llama
from .llama import Abort
from .memory import SEQUENCE, Memory
from .model import Model

Rows = npt.NDArray[np.float32]
FeedProgress = Callable[[int, int], None]

SHORTEST = 8  # tokens: what finding out how the memory rolls back takes
LONGEST = (1 << 31) - 1  # tokens: positions are int32


class Context:
    """A model's working memory for one sequence (``llama_context``).

    n_ctx: tokens the sequence may hold; 0 for what the model was trained with.
    n_outputs: the most rows of logits one :meth:`score` is asked for (draft length + 1).
    threads: for decoding and prompts; None for the physical cores.
    abort: stops a decode from another thread or a signal. lora: adapters, each with its scale.

    threads, prompt_threads: CPU threads of a pass over one token, and of a larger one.
    decode_seconds, tokens_fed: what all passes took, and how many tokens they read, since it was made.
    rollback_strategy: how this memory takes tokens back; its ``name`` is for people. n_read: how many of the
    text's tokens the memory holds; those that a rollback left to be read again ride in the next pass.

    Making one runs a few small passes: they find out how this memory rolls back and what one token
    costs (``pass_seconds``), and bring the weights into memory.
    Raises UsageError when llama.cpp cannot make the context, mostly for want of memory, an adapter does not
    fit, or the weights compute nothing.
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
        if self.n_ctx < SHORTEST:
            raise UsageError(
                f"{model.path}: a context of {self.n_ctx} is too short; it needs {SHORTEST} tokens or more"
            )
        if self.n_ctx > LONGEST:
            raise UsageError(
                f"{model.path}: a context of {self.n_ctx:,} tokens is too long; "
                f"lower -c, to {LONGEST:,} at most"
            )
        self._longest_draft = max(0, n_outputs - 1)
        self.n_outputs = max(2, n_outputs)
        self.decode_seconds = 0.0
        self.tokens_fed = 0
        self._abort = abort or Abort()
        self._pointer: llama_cpp.llama_context_p | None = None
        self.threads = self.prompt_threads = threads or llama.default_threads()
        params = self._params(self.threads)
        llama.forget_errors()
        pointer = self._abort.call(llama_cpp.llama_init_from_model, model.pointer, params)
        if pointer is None:
            raise self._no_room(llama.last_errors())
        self._pointer = pointer
        self.memory = Memory(pointer, model)
        self.n_batch = int(llama_cpp.llama_n_batch(pointer))
        self._batch = llama_cpp.llama_batch_init(self.n_batch, 0, 1)
        self._free = weakref.finalize(self, _free, pointer, self._batch)
        model.contexts.add(self)
        self._token, self._position, self._output = self._batch_views()
        self._logits = np.empty((0, 0), np.float32)
        self._logits_address = 0
        self._n_held = 0  # tokens of the text
        self.n_read = 0
        self._n_settled = 0  # of these, the first that nobody said might be taken back
        try:
            self._all_positions = np.arange(self.n_ctx, dtype=np.int32)
            self._held = np.empty(self.n_ctx + 1, np.int32)
            self._apply(lora)
            self.rollback_strategy = rollback.Strategy(self.memory)
            rollback.probe(self, model.vocab.size)
            self.pass_seconds = self._time_one_pass()
        except MemoryError as error:
            self.close()
            raise self._no_room(str(error)) from error
        except BaseException:
            self.close()
            raise

    def _no_room(self, reason: str) -> UsageError:
        return UsageError(
            f"{self.model.path}: llama.cpp cannot make a context of {self.n_ctx} tokens: {reason}; "
            "a smaller -c needs less memory"
        )

    def _params(self, threads: int) -> llama_cpp.llama_context_params:
        params: llama_cpp.llama_context_params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.n_ctx
        # A CPU reads prompts as fast in small pieces, and the compute buffer shrinks with them.
        params.n_ubatch = BATCH_GPU if llama.supports_gpu() else BATCH_CPU
        # Twice the outputs: tokens that a rollback left to be read again ride in the next pass.
        params.n_batch = max(params.n_ubatch, 2 * self.n_outputs)
        params.n_ubatch = params.n_batch
        params.n_seq_max = 1
        # Honoured by some architectures only. llama.cpp aborts the process unless n_ubatch > n_rs_seq + 1.
        params.n_rs_seq = min(self._longest_draft, rollback.MOST_SNAPSHOTS, self.n_ctx - 2)
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
        while self.threads > 1:
            before, seconds = self.threads, self.pass_seconds
            self._use_threads(self.threads // 2)
            self.pass_seconds = self._time_one_pass()
            if self.pass_seconds > 0.9 * seconds:
                self._use_threads(before)
                self.pass_seconds = seconds
                break

    def _use_threads(self, single: int) -> None:
        llama_cpp.llama_set_n_threads(self.pointer, single, self.prompt_threads)
        self.threads = single

    @property
    def pointer(self) -> llama_cpp.llama_context_p:
        """The ``llama_context *``. Raises ValueError after :meth:`close`, which also frees the batch."""
        if self._pointer is None:
            raise ValueError(f"{self.model.path}: the context is closed")
        return self._pointer

    @property
    def held(self) -> Tokens:
        """The text, int32 [n]: a view, valid until the next call."""
        return self._held[: self._n_held]

    def __len__(self) -> int:
        return self._n_held

    def score(self, tokens: Tokens, *, sure: int = 0) -> Rows:
        """Feeds n tokens in one pass and returns the logits that follow each of them.

        tokens: int32 [n], 1 ≤ n ≤ n_outputs. sure: how many of them will stay in any case, which saves some
        memories a copy of their state. Returns float32 [n, vocab], a view into llama.cpp's
        buffer (``llama_get_logits``) that the next pass overwrites and :meth:`close` invalidates.
        Raises ContextFullError, DecodeError, ValueError; AbortedError when it was stopped. A failed pass
        leaves the text as it was.
        """
        n = len(tokens)
        if not 1 <= n <= self.n_outputs:
            raise ValueError(f"score takes 1 to {self.n_outputs} tokens, got {n}")
        return self._decode(tokens, n, sure)

    def feed(self, tokens: Tokens, progress: FeedProgress | None = None) -> Rows:
        """Feeds one or more tokens that will stay and returns the logits after the last, float32 [1, vocab].

        progress: called with (tokens fed, tokens in all) after each pass. Raises as :meth:`score` does;
        what earlier passes fed stays in the text.
        """
        rows: Rows | None = None
        for start in range(0, len(tokens), self.n_batch):
            piece = tokens[start : start + self.n_batch]
            rows = self._decode(piece, 1, len(piece))
            if progress is not None:
                progress(start + len(piece), len(tokens))
        if rows is None:
            raise ValueError("feed needs at least one token")
        return rows

    def align(self, history: Tokens) -> int:
        """Rolls back whatever is not a prefix of ``history``; returns how many of its tokens are held.

        What the memory would have to read again for that is not held then: it is the caller's to feed.
        """
        keep = common_prefix(self.held, history)
        if keep < self._n_held:
            self.rollback(keep)
            self._n_held = self.n_read
        self._n_settled = self._n_held
        return self._n_held

    def hold(self, text: Tokens, progress: FeedProgress | None = None) -> int:
        """Makes the text exactly ``text``, whoever used it before: aligns it and feeds the rest.

        Returns how many of its tokens were held already. progress and what is raised: as for :meth:`feed`.
        """
        held = self.align(text)
        if held < len(text):
            self.feed(text[held:], progress)
            self.rollback_strategy.pin(self.n_read)
        return held

    def rollback(self, keep: int) -> None:
        """Takes back every token past the first ``keep``.

        Where the memory cannot go back to just there, the next pass reads again what is missing.
        Raises RollbackError when it went elsewhere, ValueError when it holds fewer than ``keep``.
        """
        if not 0 <= keep <= self._n_held:
            raise ValueError(f"cannot keep {keep} of {self._n_held} tokens")
        self._n_held = self._n_settled = keep
        if keep < self.n_read:
            read, self.n_read = self.n_read, 0  # in case it fails: then all is read again
            try:
                self.n_read = self.rollback_strategy.rollback(read, keep)
            except RollbackError:
                self.memory.clear()
                self.rollback_strategy.forget()
                raise

    def clear(self) -> None:
        """Empties the cache (``llama_memory_clear``)."""
        self.memory.clear()
        self.rollback_strategy.forget()
        self._n_held = self.n_read = self._n_settled = 0

    @property
    def last_position(self) -> int:
        """The largest position in the memory (``llama_memory_seq_pos_max``), -1 when it is empty."""
        return self.memory.last_position

    def close(self) -> None:
        """Frees the context. Views of its logits become invalid."""
        self._pointer = None
        self.memory.close()
        self._free()

    def __enter__(self) -> Context:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _decode(self, tokens: Tokens, n_rows: int, sure: int) -> Rows:
        """Feeds tokens in one pass; the logits after the last ``n_rows`` of them."""
        n, start = len(tokens), self._n_held
        if start + n > self.n_ctx:
            raise ContextFullError(f"{start} + {n} tokens do not fit a context of {self.n_ctx}; raise -c")
        self._held[start : start + n] = tokens
        self._catch_up(n)
        settled = self._n_settled + (sure if self._n_settled == start else 0)
        self.rollback_strategy.before_pass(self.n_read, start + n, settled)
        rows = self._pass(start + n, n_rows)
        self._n_held, self._n_settled = start + n, settled
        return rows

    def _catch_up(self, n: int) -> None:
        """Reads again what a rollback left, as far as it does not fit a pass of n tokens or burdens many."""
        missing = self._n_held - self.n_read
        riders = 0 if missing and self.rollback_strategy.wants_pass(missing) else self.n_batch - n
        while self._n_held - self.n_read > riders:
            self._pass(min(self.n_read + self.n_batch, self._n_held), 1)

    def _pass(self, end: int, n_rows: int) -> Rows:
        """Reads the tokens up to ``end`` that the memory lacks; the logits after the last ``n_rows``."""
        pointer, start = self.pointer, self.n_read
        n = end - start
        self._token[:n] = self._held[start:end]
        self._position[:n] = self._all_positions[start:end]
        self._output[:n] = 0
        self._output[n - n_rows : n] = 1
        self._batch.n_tokens = n
        began = time.perf_counter()
        code = self._abort.call(llama_cpp.llama_decode, pointer, self._batch)
        if code != 0 or self._abort.is_set:
            raise self._failed(code)
        logits = llama_cpp.llama_get_logits(pointer)  # waits for the device
        self.decode_seconds += time.perf_counter() - began
        if not logits:
            raise self._failed(code)
        self.n_read = end
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

    def _failed(self, code: int) -> SpecdecError:
        """After a failed pass: takes back what it left in the memory; what happened, to be raised."""
        self.n_read = self.rollback_strategy.recover(self.n_read)
        if self._abort.is_set:
            return AbortedError(f"{self.model.path}: the pass was stopped")
        if code == 1:
            return ContextFullError(
                f"llama.cpp found no room for the batch in a context of {self.n_ctx}; raise -c"
            )
        return DecodeError(f"{self.model.path}: llama_decode failed with {code}: {llama.last_errors()}")

    def _time_one_pass(self) -> float:
        """Seconds of a single-token pass on the warm model: the median of three, or one that takes long."""
        token = np.array([max(self.model.vocab.bos, 0)], np.int32)
        seconds: list[float] = []
        while len(seconds) < 3 and sum(seconds) < 0.1:
            self.clear()
            before = self.decode_seconds
            rows = self.score(token)
            seconds.append(self.decode_seconds - before)
        if np.isnan(rows).any():
            raise UsageError(
                f"{self.model.path}: its first pass gives no numbers: the weights are damaged, fetch it again"
            )
        self.clear()
        self.decode_seconds, self.tokens_fed = 0.0, 0
        return statistics.median(seconds)


def _free(context: llama_cpp.llama_context_p, batch: llama_cpp.llama_batch) -> None:
    llama_cpp.llama_free(context)
    llama_cpp.llama_batch_free(batch)
