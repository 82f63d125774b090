"""A loaded model's tokenizer (``llama_vocab``): text to ids and ids to bytes."""

from __future__ import annotations

import ctypes
import functools
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np

from ..tokens import Tokens

if TYPE_CHECKING:
    from .model import Model


class Vocabulary:
    """What a model calls its tokens. Lives as long as the model that owns it."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(256)
        pointer = llama_cpp.llama_model_get_vocab(model.pointer)
        if pointer is None:
            raise ValueError(f"{model.path}: llama.cpp gave the model no vocabulary")
        self.size: int = llama_cpp.llama_vocab_n_tokens(pointer)
        self.adds_bos: bool = llama_cpp.llama_vocab_get_add_bos(pointer)

    @property
    def pointer(self) -> llama_cpp.llama_vocab_p:
        """The ``llama_vocab *``; raises ValueError once the model is closed."""
        pointer: llama_cpp.llama_vocab_p | None = llama_cpp.llama_model_get_vocab(self._model.pointer)
        assert pointer is not None  # checked in __init__
        return pointer

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        """Ids of ``text``, int32 [n], with BOS and EOS where the model wants them (``llama_tokenize``).

        special: read ``<|im_start|>`` and its like as the control tokens they name, as in a rendered
        chat template; without it they are plain text. A BOS that the text already spells is not doubled.
        """
        raw = text.encode("utf-8", "surrogatepass")
        bos = self._bos_text()
        begins = not (special and self.adds_bos and bos and raw.startswith(bos))
        return self._tokenize(raw, begins=begins, special=special)

    def tokenize_more(self, text: str) -> Tokens:
        """Ids of a text that goes on from other tokens, control tokens spelled out, int32 [n].

        Where the tokenizer puts a space before a text, it does so here too, wanted or not: compare with
        :meth:`spelled`.
        """
        return self._tokenize(text.encode("utf-8", "surrogatepass"), begins=False, special=True)

    def tokenize_part(self, text: str, *, begins: bool) -> Tokens:
        """Ids of plain text after other tokens, int32 [n]; what looks like a control token is text, too.

        begins: whether the text stands at a beginning, where the tokenizer may put a space before it; else
        it goes on from text, and no space is put anywhere. Empty where the tokenizer cannot do that.
        """
        raw = text.encode("utf-8", "surrogatepass")
        if begins or not self.adds_space or not raw:
            return self._tokenize(raw, begins=False, special=False)
        if raw[:1] == b" " and len(raw) > 1:
            return self._tokenize(raw[1:], begins=False, special=False)  # it puts the space there
        for anchor in (b"\n", b"a", b"."):  # one that merges with what follows is of no use
            tokens = self._tokenize(anchor + raw, begins=False, special=False)
            passed = 0
            for i, token in enumerate(tokens.tolist()):
                if passed == len(b" " + anchor):
                    return tokens[i:]
                passed += len(self.piece(token))
        return np.empty(0, np.int32)

    def _tokenize(self, raw: bytes, *, begins: bool, special: bool) -> Tokens:
        capacity = len(raw) + 8
        tokens = np.empty(capacity, np.int32)
        for _ in range(2):
            array = tokens.ctypes.data_as(ctypes.POINTER(llama_cpp.llama_token))
            n = llama_cpp.llama_tokenize(self.pointer, raw, len(raw), array, tokens.size, begins, special)
            if n >= 0:
                return tokens[:n]
            tokens = np.empty(-n, np.int32)
        raise ValueError(f"llama_tokenize failed on a text of {len(raw)} bytes")

    def piece(self, token: int) -> bytes:
        """The bytes a token stands for, as they appear in text; control tokens stand for nothing.

        A character may be spread over several tokens (``llama_token_to_piece``). Raises ValueError
        for an id outside the vocabulary.
        """
        piece = self._pieces.get(token)
        if piece is None:
            if not 0 <= token < self.size:
                raise ValueError(f"token {token} is outside the vocabulary of {self.size}")
            piece = self._pieces[token] = self._read_piece(token, special=False)
        return piece

    def spelled(self, token: int) -> bytes:
        """The bytes of a token with control tokens spelled out, as a rendered chat template holds them."""
        return self._read_piece(token, special=True)

    def is_eog(self, token: int) -> bool:
        """Whether the token ends a generation (``llama_vocab_is_eog``)."""
        return bool(llama_cpp.llama_vocab_is_eog(self.pointer, token))

    def is_control(self, token: int) -> bool:
        """Whether the token stands for no text: it marks a beginning, an end, a role."""
        return not self.piece(token)

    def is_special(self, token: int) -> bool:
        """Whether the tokenizer splits a text at this token before anything else (control, user-defined)."""
        attributes = llama_cpp.llama_vocab_get_attr(self.pointer, token)
        return bool(
            attributes & (llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)
        )

    @functools.cached_property
    def adds_space(self) -> bool:
        """Whether the tokenizer puts a space before a text, as SentencePiece's do (``add_space_prefix``)."""
        return b"".join(map(self.piece, self.tokenize_part("a", begins=True).tolist())) == b" a"

    @functools.cached_property
    def byte_tokens(self) -> dict[int, int]:
        """The token of each byte that has one of its own."""
        pieces = ((token, self._read_piece(token, special=False)) for token in range(self.size))
        return {piece[0]: token for token, piece in pieces if len(piece) == 1}

    @functools.cached_property
    def eog_tokens(self) -> list[int]:
        """Every token that ends a generation, ascending."""
        pointer = self.pointer
        return [t for t in range(self.size) if llama_cpp.llama_vocab_is_eog(pointer, t)]

    def suppressed_tokens(self) -> list[int]:
        """Tokens the model's file says must never be sampled (``llama_vocab_get_suppress_tokens``)."""
        count = ctypes.c_int32(0)
        tokens = llama_cpp.llama_vocab_get_suppress_tokens(self.pointer, ctypes.byref(count))
        return [int(tokens[i]) for i in range(count.value)] if tokens else []

    def control_text(self, token: int) -> str:
        """A token's text with control tokens spelled out, e.g. ``<|im_end|>``; '' for no such token."""
        return self.spelled(token).decode("utf-8", "replace") if token >= 0 else ""

    @property
    def bos(self) -> int:
        """The id of the beginning-of-sequence token, -1 for none."""
        return int(llama_cpp.llama_vocab_bos(self.pointer))

    @property
    def eos(self) -> int:
        """The id of the end-of-sequence token, -1 for none."""
        return int(llama_cpp.llama_vocab_eos(self.pointer))

    @property
    def eot(self) -> int:
        """The id of the end-of-turn token, -1 for none."""
        return int(llama_cpp.llama_vocab_eot(self.pointer))

    def _bos_text(self) -> bytes:
        return self.spelled(self.bos) if self.bos >= 0 else b""

    def _read_piece(self, token: int, *, special: bool) -> bytes:
        for _ in range(2):
            n = llama_cpp.llama_token_to_piece(
                self.pointer, token, self._buffer, len(self._buffer), 0, special
            )
            if n >= 0:
                return self._buffer.raw[:n]
            self._buffer = ctypes.create_string_buffer(-n)
        raise ValueError(f"llama_token_to_piece failed on token {token}")
