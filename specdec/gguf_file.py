"""What a .gguf says without loading it, in milliseconds: metadata, tensors, validity, split parts.

Besides what ``gguf_header`` refuses, a UsageError here are split parts that do not belong together (as
llama.cpp's ``llama_model_loader`` refuses them) and damage to layer count and tokens, on which llama.cpp
would abort the process.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .gguf_header import GGUFArray, Header, Tensor, Value, read_header
from .hyperparameters import damage

PART_NAME = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf")  # of a split model (llama_split_path)
_SOUND: set[str] = set()  # hashes of token arrays in which no two texts are the same

MAX_LAYERS = 512  # LLAMA_MAX_LAYERS; llama.cpp aborts the process on more


@dataclass(frozen=True, eq=False)
class GGUFFile:
    """A whole model file: its header read and checked, its weights not touched."""

    path: Path
    parts: tuple[Path, ...]  # every file of the model, ``path`` first; more than one when it is split
    metadata: Mapping[str, Value] = field(repr=False)  # of the first part; the others have split.* alone
    tensors: tuple[Tensor, ...] = field(repr=False)  # of all parts
    size: int  # bytes of all parts

    @classmethod
    def read(cls, path: Path) -> GGUFFile:
        """Reads and checks the header of ``path`` and of all its split parts.

        Raises UsageError when there is no such file, it cannot be read, or it is no sound model file.
        """
        first = read_header(Path(path), 0)
        parts = [first]
        for i, part in enumerate(_other_parts(first), start=1):
            parts.append(read_header(part, i))
        tensors = tuple(t for part in parts for t in part.tensors)
        file = cls(
            first.path, tuple(p.path for p in parts), first.metadata, tensors, sum(p.size for p in parts)
        )
        _check_parts(file, parts)
        _check_values(file)
        return file

    @property
    def architecture(self) -> str:
        """``general.architecture``: llama, qwen3, gemma3, ..."""
        return self.text("general.architecture") or ""

    @property
    def weights_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(t.nbytes for t in self.tensors)

    @property
    def context_length(self) -> int | None:
        """Tokens of context the model was trained for; None when the file does not say."""
        return self.integer(f"{self.architecture}.context_length")

    @property
    def chat_template(self) -> str | None:
        """The default chat template, Jinja source."""
        return self.text("tokenizer.chat_template")

    @property
    def tokenizer_model(self) -> str | None:
        """The kind of tokenizer: llama (SentencePiece), gpt2 (byte-level BPE), ...; None without one."""
        return self.text("tokenizer.ggml.model")

    @property
    def tokens(self) -> GGUFArray | None:
        """The text of every token, by id; None when the file has no vocabulary."""
        return self.array("tokenizer.ggml.tokens", "string")

    @property
    def token_types(self) -> NDArray[np.int32] | None:
        """int32 [tokens], llama.cpp's ``llama_token_type``; None when the file does not say."""
        types = self.array("tokenizer.ggml.token_type", "i32")
        return None if types is None else types.numpy()

    def integer(self, key: str) -> int | None:
        """A whole number of the metadata. Raises UsageError when the key holds something else."""
        value: int | None = self._typed(key, int, "a whole number")
        return value

    def flag(self, key: str) -> bool | None:
        """A boolean of the metadata. Raises UsageError when the key holds something else."""
        value: bool | None = self._typed(key, bool, "true or false")
        return value

    def text(self, key: str) -> str | None:
        """A string of the metadata. Raises UsageError when the key holds something else."""
        value: str | None = self._typed(key, str, "a string")
        return value

    def array(self, key: str, element: str) -> GGUFArray | None:
        """An array of the metadata. Raises UsageError when the key holds something else."""
        value: GGUFArray | None = self._typed(key, GGUFArray, f"an array of {element}")
        if value is not None and value.type != element:
            raise UsageError(
                f"{self.path}: {key} is {value!r}, not an array of {element}: the file is damaged"
            )
        return value

    def _typed(self, key: str, kind: type, words: str) -> Any:
        value = self.metadata.get(key)
        if value is not None and type(value) is not kind:
            raise UsageError(f"{self.path}: {key} is {value!r:.60}, not {words}: the file is damaged")
        return value

    def require_text_generation(self) -> None:
        """Raises UsageError unless this is a model that, on its own, writes text from left to right, and one
        that llama.cpp can be given without ending the process.
        """
        what = _what_else(self)
        if what:
            raise UsageError(f"{self.path}: this is {what}; give a text-generation GGUF instead")
        wrong = damage(self.metadata, self.tensors)
        if wrong:
            raise UsageError(f"{self.path}: {wrong}: the file is damaged, fetch it again")


def _other_parts(first: Header) -> list[Path]:
    """The second and further files of a split model (names as ``llama_split_path`` makes them)."""
    count, no = first.number("split.count"), first.number("split.no")
    if count <= 1:
        return []
    name = PART_NAME.fullmatch(first.path.name)
    if not name or int(name[2]) != no + 1 or int(name[3]) != count:
        raise UsageError(
            f"{first.path}: this is part {no + 1} of {count} of a split model, so its name has to end in "
            f"-{no + 1:05}-of-{count:05}.gguf; give all parts their names back"
        )
    paths = [first.path.with_name(f"{name[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if no:
        raise UsageError(
            f"{first.path}: this is part {no + 1} of {count} of a split model; name the first, {paths[0]}"
        )
    missing = [p.name for p in paths if not p.exists()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UsageError(
            f"{first.path}: {missing[0]}{more} of this split model missing; fetch it into the same folder"
        )
    return paths[1:]


def _check_parts(file: GGUFFile, parts: list[Header]) -> None:
    for i, part in enumerate(parts):
        if len(parts) > 1 and part.number("split.no") != i:
            raise UsageError(
                f"{part.path}: holds part {part.number('split.no') + 1}, not {i + 1}; check the file names"
            )
    expected, found = parts[0].number("split.tensors.count"), len({t.name for t in file.tensors})
    if len(parts) > 1 and not expected == found == len(file.tensors):
        raise UsageError(
            f"{file.path}: its {len(parts)} parts have {len(file.tensors)} tensors ({found} names), "
            f"not the {expected} expected: they are not parts of the same model"
        )


def _check_values(file: GGUFFile) -> None:
    """What the rest of the program relies on, and what llama.cpp would abort the process for."""
    arch = file.architecture
    if not arch:
        what = _FILE_KINDS.get(
            file.text("general.type") or "", "no model, for general.architecture is missing"
        )
        raise UsageError(f"{file.path}: this is {what}; give a text-generation GGUF instead")
    if not re.fullmatch(r"[\w.-]{1,64}", arch):
        raise UsageError(
            f"{file.path}: general.architecture is {arch!r:.60}, which is no name: the file is damaged"
        )
    layers = file.integer(f"{arch}.block_count")
    if layers is not None and not 0 < layers <= MAX_LAYERS:
        raise UsageError(f"{file.path}: claims {layers:,} layers, of 1 to {MAX_LAYERS}: the file is damaged")
    for key in ("general.type", "tokenizer.chat_template", "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        file.text(key)
    file.integer(f"{arch}.context_length")
    if file.tokens is not None:
        _check_tokens(file, file.tokens)


def _check_tokens(file: GGUFFile, tokens: GGUFArray) -> None:
    types = file.token_types
    if types is not None and len(types) < len(tokens):
        raise UsageError(
            f"{file.path}: {len(tokens):,} tokens but {len(types):,} token types: the file is damaged"
        )
    twice = None if tokens.digest in _SOUND else _repeated(tokens)
    if twice:
        raise UsageError(
            f"{file.path}: tokens {twice[0]} and {twice[1]} have the same text: the file is damaged"
        )
    _SOUND.add(tokens.digest)  # a folder full of models has few vocabularies
    if file.tokenizer_model == "llama":  # falls back to bytes for any character it has no token for
        raw = tokens.raw.tobytes()
        by_byte = [b"\x06" + bytes(7) + b"<0x%02X>" % byte for byte in range(256)]  # with length prefix
        if b"".join(by_byte) in raw:
            return
        for byte, token in enumerate(by_byte):
            if token not in raw and b"\x01" + bytes(7) + bytes([byte]) not in raw:
                raise UsageError(
                    f"{file.path}: there is no token for byte <0x{byte:02X}>: the file is damaged"
                )


def _repeated(tokens: GGUFArray) -> tuple[int, int] | None:
    """Two ids with the same text, if any, up to a zero byte, where llama.cpp ends it, and unless it is empty.

    Compares hashes first: 20 ms for 262,144 tokens.
    """
    assert tokens.starts is not None
    begin, n = tokens.starts[:-1] + 8, np.diff(tokens.starts) - 8
    suspects: Any = range(len(tokens))
    zeros_of_lengths = np.count_nonzero(n.astype("<u8").view(np.uint8) == 0)
    if len(tokens.raw) - np.count_nonzero(tokens.raw) == zeros_of_lengths:  # so no text has any
        hashes = _hashes(tokens.raw, begin, n)
        ordered = np.sort(hashes)
        repeated = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
        suspects = np.flatnonzero(np.isin(hashes, repeated)).tolist() if len(repeated) else []
    seen: dict[bytes, int] = {}
    for i in suspects:
        text = tokens.bytes(i).split(b"\0")[0]
        if text and seen.setdefault(text, i) != i:
            return seen[text], i
    return None


def _hashes(raw: NDArray[np.uint8], begin: NDArray[np.int64], n: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 [texts], of length and first 64 bytes of each text; they lie in raw at begin, n bytes each."""
    padded = np.append(raw, np.zeros(8, np.uint8))
    words: NDArray[np.uint64] = np.ndarray(len(raw) + 1, "<u8", padded, strides=(1,))  # the one at every byte
    hashes = n.astype(np.uint64)
    for i in range(0, min(int(n.max(initial=0)), 64), 8):
        (longer,) = np.nonzero(n > i)
        rest = np.minimum(n[longer] - i, 8).astype(np.uint64)
        mixed = hashes[longer] ^ (words[begin[longer] + i] << (np.uint64(64) - np.uint64(8) * rest))
        mixed *= np.uint64(0x9E3779B97F4A7C15)  # 2^64 / golden ratio
        hashes[longer] = mixed ^ (mixed >> np.uint64(32))
    return hashes


def _what_else(file: GGUFFile) -> str | None:
    """What a file is, other than a text-generation model; None when it is one."""
    arch = file.architecture
    kind = _FILE_KINDS.get(file.text("general.type") or "")
    for architectures, what in _ARCHITECTURES.items():
        if arch in architectures.split():
            kind = kind or f"{what} ({arch})"
    if kind:
        return kind
    if file.integer(f"{arch}.pooling_type") or file.flag(f"{arch}.attention.causal") is False:
        return f"an embedding or reranking model (a {arch} that does not write text)"
    if not file.tokens or file.tokenizer_model in (None, "none", "no_vocab"):
        return f"a {arch} model without a tokenizer"
    if not file.tensors:
        return "a vocabulary without weights"
    return None


_FILE_KINDS = {  # general.type
    "adapter": "an adapter (LoRA) for a model, not a model",
    "mmproj": "the vision or audio part (mmproj) of a model, not a language model",
    "imatrix": "an importance matrix, not a model",
}
_ARCHITECTURES = {  # general.architecture, names as LLM_ARCH_NAMES in llama-arch.cpp
    "clip mmproj": "the vision or audio part of a model",
    "bert modern-bert nomic-bert nomic-bert-moe neo-bert jina-bert-v2 jina-bert-v3 eurobert gemma-embedding "
    "llama-embed t5encoder": "an embedding model",
    "t5": "an encoder-decoder model, which reads and writes in two separate passes",
    "dream llada llada-moe rnd1": "a diffusion model, which does not write from left to right",
    "wavtokenizer-dec": "a vocoder, which turns tokens into sound",
    "eagle3 dflash gemma4-assistant": "a draft head that only works on the hidden states of its target",
    "controlvector": "a control vector, not a model",
    "imatrix": "an importance matrix, not a model",
}
