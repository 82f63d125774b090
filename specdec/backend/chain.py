"""llama.cpp's sampler chain (``llama_sampler_chain``), applied to candidates from numpy."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence

import llama_cpp
import numpy as np
import numpy.typing as npt

from ..errors import UsageError
from ..tokens import Tokens
from . import llama
from .vocabulary import Vocabulary

CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])

Logits = npt.NDArray[np.float32]


class Chain:
    """Samplers in order. It transforms a set of candidates; it draws nothing.

    Not thread-safe. Owns its samplers and frees them when it goes.
    """

    def __init__(self, pointer: llama_cpp.llama_sampler_p | None = None) -> None:
        if pointer is None:
            params = llama_cpp.llama_sampler_chain_default_params()
            params.no_perf = True
            pointer = llama_cpp.llama_sampler_chain_init(params)
        if not pointer:
            raise MemoryError("llama_sampler_chain_init returned nothing")
        self._pointer = pointer
        self._free = weakref.finalize(self, llama_cpp.llama_sampler_free, pointer)

    def add(self, make: Callable[..., llama_cpp.llama_sampler_p], *args: object) -> None:
        """Appends ``make(*args)``, one of ``llama_sampler_init_*``. Raises ValueError if it refuses."""
        sampler = make(*args)
        if not sampler:
            raise ValueError(f"{make.__name__}{args} was refused by llama.cpp")
        llama_cpp.llama_sampler_chain_add(self._pointer, sampler)

    def accept(self, token: int) -> None:
        """Tells samplers with a memory (penalties, DRY) that the token was emitted."""
        llama_cpp.llama_sampler_accept(self._pointer, token)

    def reset(self) -> None:
        """Empties the memory of samplers that have one."""
        llama_cpp.llama_sampler_reset(self._pointer)

    def clone(self) -> Chain:
        """An independent copy, memory included (``llama_sampler_clone``)."""
        return Chain(llama_cpp.llama_sampler_clone(self._pointer))

    def apply(self, ids: Tokens, logits: Logits, scratch: Candidates) -> tuple[Tokens, Logits]:
        """What the chain leaves of the candidates, and their logits (``llama_sampler_apply``).

        ids: int32 [n]; logits: float32 [n]; both are copied into ``scratch``. Returns int32 [m] and
        float32 [m], m ≤ n, in the chain's order: views into scratch, valid until its next use.
        """
        return scratch.through(self._pointer, ids, logits)


class _Array(ctypes.Structure):
    """``llama_token_data_array`` with its pointer as a number, which ctypes sets and reads at once."""

    _fields_ = (
        ("data", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("sorted", ctypes.c_bool),
    )


class Candidates:
    """The ``llama_token_data_array`` a chain works on, allocated once and grown when needed."""

    def __init__(self) -> None:
        self._array = _Array()
        self._pointer = ctypes.cast(ctypes.byref(self._array), llama_cpp.llama_token_data_array_p)
        self._allocate(64)

    def _allocate(self, n: int) -> None:
        self._data = np.empty(n, CANDIDATE)
        self._address = self._data.ctypes.data
        self._ids, self._logits = self._data["id"], self._data["logit"]

    def through(
        self, sampler: llama_cpp.llama_sampler_p, ids: Tokens, logits: Logits
    ) -> tuple[Tokens, Logits]:
        n = len(ids)
        if n > len(self._data):
            self._allocate(n)
        self._ids[:n] = ids
        self._logits[:n] = logits
        array = self._array
        array.data, array.size, array.selected, array.sorted = self._address, n, -1, False
        llama_cpp.llama_sampler_apply(sampler, self._pointer)
        # XTC drops candidates from the front by moving the pointer.
        first = (array.data - self._address) // CANDIDATE.itemsize
        return self._ids[first : first + array.size], self._logits[first : first + array.size]


def add_top_k(chain: Chain, k: int) -> None:
    chain.add(llama_cpp.llama_sampler_init_top_k, k)


def add_top_p(chain: Chain, p: float) -> None:
    chain.add(llama_cpp.llama_sampler_init_top_p, p, 0)


def add_min_p(chain: Chain, p: float) -> None:
    chain.add(llama_cpp.llama_sampler_init_min_p, p, 0)


def add_typical(chain: Chain, p: float) -> None:
    chain.add(llama_cpp.llama_sampler_init_typical, p, 0)


def add_top_n_sigma(chain: Chain, n: float) -> None:
    chain.add(llama_cpp.llama_sampler_init_top_n_sigma, n)


def add_temperature(chain: Chain, temperature: float) -> None:
    chain.add(llama_cpp.llama_sampler_init_temp, temperature)


def add_xtc(chain: Chain, threshold: float) -> None:
    """XTC that always acts; the caller tosses the coin of ``--xtc-probability``."""
    chain.add(llama_cpp.llama_sampler_init_xtc, 1.0, threshold, 0, 0)


def add_penalties(
    chain: Chain, vocab: Vocabulary, last_n: int, repeat: float, frequency: float, presence: float
) -> None:
    chain.add(llama_cpp.llama_sampler_init_penalties, vocab.size, last_n, repeat, frequency, presence)


def add_dry(
    chain: Chain,
    vocab: Vocabulary,
    multiplier: float,
    base: float,
    allowed_length: int,
    last_n: int,
    breakers: Sequence[str],
) -> None:
    texts = (ctypes.c_char_p * len(breakers))(*(b.encode() for b in breakers))
    chain.add(
        llama_cpp.llama_sampler_init_dry,
        vocab.pointer,
        multiplier,
        base,
        allowed_length,
        last_n,
        texts,
        len(breakers),
    )


def add_logit_bias(chain: Chain, vocab: Vocabulary, bias: dict[int, float]) -> None:
    entries = (llama_cpp.llama_logit_bias * len(bias))()
    for entry, (token, value) in zip(entries, bias.items(), strict=True):
        entry.token, entry.bias = token, value
    chain.add(llama_cpp.llama_sampler_init_logit_bias, vocab.size, len(bias), entries)


GRAMMAR_LARGEST = 1 << 20  # characters
GRAMMAR_DEEPEST = 2000  # llama.cpp parses groups recursively, and its stack has an end


def grammar_chain(vocab: Vocabulary, source: str) -> Chain:
    """A chain of llama.cpp's grammar sampler alone, at its start (``llama_sampler_init_grammar``).

    It leaves the ids that may come next and sets the logits of the others to minus infinity. Accepting one
    of those others ends the process. Raises UsageError, with llama.cpp's reason, for what is no GBNF.
    """
    if len(source) > GRAMMAR_LARGEST or "\0" in source:
        raise UsageError("the grammar is no GBNF: it is longer than 1 MiB or has a NUL in it")
    if _nesting(source) > GRAMMAR_DEEPEST:
        raise UsageError(
            f"the grammar cannot be used: its groups are nested more than {GRAMMAR_DEEPEST} deep"
        )
    chain = Chain()
    llama.forget_errors()
    with llama.stderr_captured() as said:
        try:
            chain.add(llama_cpp.llama_sampler_init_grammar, vocab.pointer, source.encode(), b"root")
        except ValueError as error:
            # The parser prints what is wrong, then the whole grammar; everything else is in the log.
            reason = said().partition("error parsing grammar: ")[2].partition("\n\n")[0]
            reason = " ".join(reason.split()) or llama.last_errors()
            raise UsageError(f"the grammar cannot be used: {reason}") from error
    return chain


def _nesting(source: str) -> int:
    depth = deepest = 0
    for c in source:
        depth += (c == "(") - (c == ")")
        deepest = max(deepest, depth)
    return deepest
