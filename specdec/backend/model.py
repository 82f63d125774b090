"""The weights of one GGUF, loaded by llama.cpp."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import llama_cpp

from ..errors import AbortedError, UsageError
from . import llama
from .llama import Abort
from .vocabulary import Vocabulary

if TYPE_CHECKING:
    from .context import Context

Progress = Callable[[float], None]


class Model:
    """A loaded GGUF (``llama_model_load_from_file``): weights, vocabulary, metadata.

    gpu_layers: layers to keep on the GPU, negative for all; None leaves it to llama.cpp.
    progress: called with the loaded share, 0 to 1. An exception it raises stops the loading.
    abort: stops the loading from another thread or a signal; AbortedError is raised.
    Raises UsageError with llama.cpp's own reason when the file cannot be loaded.
    """

    def __init__(
        self,
        path: Path,
        *,
        gpu_layers: int | None = None,
        progress: Progress | None = None,
        abort: Abort | None = None,
    ) -> None:
        llama.start()
        abort = abort or Abort()
        self.path = path
        self.contexts: weakref.WeakSet[Context] = weakref.WeakSet()
        self._adapters: dict[Path, llama_cpp.llama_adapter_lora_p] = {}
        params = llama_cpp.llama_model_default_params()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        raised: list[BaseException] = []

        @llama_cpp.llama_progress_callback  # type: ignore[untyped-decorator]  # a ctypes function type
        def report(share: float, _data: object) -> bool:
            try:
                if progress is not None:
                    progress(share)
            except BaseException as error:
                raised.append(error)
            return not (raised or abort.is_set)

        params.progress_callback = report
        llama.forget_errors()
        pointer = abort.call(llama_cpp.llama_model_load_from_file, str(path).encode(), params)
        if raised or abort.is_set:
            if pointer is not None:
                llama_cpp.llama_model_free(pointer)
            raise raised[0] if raised else AbortedError(f"{path}: loading was stopped")
        if pointer is None:
            raise UsageError(f"{path}: llama.cpp cannot load this model: {_advised(llama.last_errors())}")
        self._pointer: llama_cpp.llama_model_p | None = pointer
        self._free = weakref.finalize(self, llama_cpp.llama_model_free, pointer)
        self.vocab = Vocabulary(self)

    @property
    def pointer(self) -> llama_cpp.llama_model_p:
        """The ``llama_model *``. Raises ValueError after :meth:`close`."""
        if self._pointer is None:
            raise ValueError(f"{self.path}: the model is closed")
        return self._pointer

    def adapter(self, path: Path) -> llama_cpp.llama_adapter_lora_p:
        """A LoRA adapter for this model (``llama_adapter_lora_init``); the model frees it with itself.

        Raises UsageError, with llama.cpp's reason, for a file that is none or fits another model.
        """
        pointer = self._adapters.get(path)
        if pointer is None:
            llama.forget_errors()
            pointer = llama_cpp.llama_adapter_lora_init(self.pointer, str(path).encode())
            if not pointer:
                raise UsageError(f"{path}: not a LoRA adapter for {self.path}: {llama.last_errors()}")
            self._adapters[path] = pointer
        return pointer

    def close(self) -> None:
        """Frees the weights, and every context made from them first."""
        for context in list(self.contexts):
            context.close()
        self._pointer = None
        self._free()

    def __enter__(self) -> Model:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def architecture(self) -> str:
        """``general.architecture`` of the file, e.g. ``llama``."""
        return self.metadata("general.architecture") or "unknown"

    @property
    def n_ctx_train(self) -> int:
        """The context length the model was trained for, in tokens."""
        return int(llama_cpp.llama_model_n_ctx_train(self.pointer))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(llama_cpp.llama_model_size(self.pointer))

    @property
    def chat_template(self) -> str | None:
        """The Jinja source of the model's chat template, None for a model without one."""
        text = llama_cpp.llama_model_chat_template(self.pointer, None)
        return text.decode("utf-8", "replace") if text is not None else None

    def metadata(self, key: str) -> str | None:
        """A scalar metadata value as text (``llama_model_meta_val_str``), None for no such key."""
        size = 256
        for _ in range(2):
            buffer = ctypes.create_string_buffer(size)
            n = llama_cpp.llama_model_meta_val_str(self.pointer, key.encode(), buffer, size)
            if n < size:
                return buffer.value.decode("utf-8", "replace") if n >= 0 else None
            size = n + 1
        return None


def _advised(reason: str) -> str:
    """A reason for a failed load, with what to do where that is for want of memory."""
    short = any(sign in reason for sign in ("allocate", "bad_alloc", "insufficient memory"))
    return f"{reason}; close other programs, or take a smaller or more quantised model" if short else reason
