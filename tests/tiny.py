"""Tiny random GGUFs that really load in llama.cpp, written in milliseconds.

    tiny.llama(tmp_path / "target.gguf", seed=0)
    tiny.llama(tmp_path / "draft.gguf", seed=0, noise=0.1)    # agrees with the target about half of the time
    tiny.llama(tmp_path / "stranger.gguf", seed=1)            # hardly ever agrees

The vocabulary is a function of (tokenizer, n_vocab) alone, so any two models of the same size can be
a pair. Weights are a function of seed, tensor name and shape.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from itertools import count, islice, product
from pathlib import Path
from typing import Any, Literal
from zlib import crc32

import gguf
import numpy as np
from numpy.typing import NDArray

Tokenizer = Literal["spm", "bpe"]
Dtype = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1"]

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LETTERS = "etaoinshrdlcumwfgypbvkjxqzETAOINSHRDLCUMWFGYPBVKJXQZ0123456789.,;:!?'\"-()[]{}<>/\\|@#$%^&*_+=~`"
MULTIBYTE = "éüñßçλжあ語한😀→"
WORDS = "the and to of in is it you that he was for on are with as they at be this have from or had by"

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (
    int(t)
    for t in (
        gguf.TokenType.NORMAL,
        gguf.TokenType.UNKNOWN,
        gguf.TokenType.CONTROL,
        gguf.TokenType.USER_DEFINED,
        gguf.TokenType.UNUSED,
        gguf.TokenType.BYTE,
    )
)


@dataclasses.dataclass
class Vocab:
    """A tokenizer as a GGUF holds it: one text, type and score per id."""

    model: str  # tokenizer.ggml.model
    texts: list[str]
    types: list[int]
    merges: list[str] | None
    bos: int
    eos: int

    def changed(self, texts: Mapping[int, str]) -> Vocab:
        """The same with other texts for some ids."""
        return dataclasses.replace(self, texts=[texts.get(i, t) for i, t in enumerate(self.texts)])

    def padded(self, n: int) -> Vocab:
        """The same with ``n`` unused ids at the end, as convert_hf_to_gguf writes them."""
        pads = [f"[PAD{i}]" for i in range(len(self.texts), len(self.texts) + n)]
        return dataclasses.replace(self, texts=self.texts + pads, types=self.types + [UNUSED] * n)

    def write(self, w: gguf.GGUFWriter) -> None:
        w.add_tokenizer_model(self.model)
        w.add_token_list(self.texts)
        w.add_token_types(self.types)
        w.add_bos_token_id(self.bos)
        w.add_eos_token_id(self.eos)
        if self.merges is None:
            w.add_token_scores([0.0 if t != NORMAL else -float(i) for i, t in enumerate(self.types)])
            w.add_unk_token_id(0)
        else:
            w.add_tokenizer_pre("gpt-2")
            w.add_token_merges(self.merges)


def vocab(tokenizer: Tokenizer = "spm", n_vocab: int = 512) -> Vocab:
    """A hand-written vocabulary of ``n_vocab`` ids that round-trips any text (spm: with a space before it).

    Both kinds hold <s>, </s>, <|im_start|>, <|im_end|>, all 256 bytes, and words with their prefixes;
    the rest is filled up with made-up words.
    """
    made = _spm(n_vocab) if tokenizer == "spm" else _bpe(n_vocab)
    if len(made.texts) != n_vocab:
        raise ValueError(f"a {tokenizer} vocabulary needs at least {len(made.texts)} ids, not {n_vocab}")
    return made


def _spm(n_vocab: int) -> Vocab:
    """SentencePiece ("llama"): bytes as <0x00>, spaces as ▁."""
    special = [("<unk>", UNKNOWN), ("<s>", CONTROL), ("</s>", CONTROL)]
    special += [(f"<0x{b:02X}>", BYTE) for b in range(256)]
    special += [("<|im_start|>", CONTROL), ("<|im_end|>", CONTROL)]
    pieces = _fill(["▁", *LETTERS, *MULTIBYTE], "▁", n_vocab - len(special))
    return Vocab(
        model="llama",
        texts=[t for t, _ in special] + pieces,
        types=[t for _, t in special] + [NORMAL] * len(pieces),
        merges=None,
        bos=1,
        eos=2,
    )


def _bpe(n_vocab: int) -> Vocab:
    """Byte-level BPE ("gpt2"): every byte is a printable character, a space is Ġ."""
    special = ["<s>", "</s>", "<|im_start|>", "<|im_end|>"]
    pieces = _fill(list(_byte_characters()), "Ġ", n_vocab - len(special))
    return Vocab(
        model="gpt2",
        texts=special + pieces,
        types=[CONTROL] * len(special) + [NORMAL] * len(pieces),
        merges=[f"{piece[:-1]} {piece[-1]}" for piece in pieces[256:]],
        bos=0,
        eos=1,
    )


def _byte_characters() -> Iterator[str]:
    """GPT-2's bytes_to_unicode: printable Latin-1 stays, the rest moves up to U+0100 and on."""
    spare = count(256)
    for b in range(256):
        stays = 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b <= 255
        yield chr(b if stays else next(spare))


def _fill(start: list[str], space: str, n: int) -> list[str]:
    """``start``, then words and made-up words with every prefix before the whole, ``n`` in all."""
    made_up = ("".join(letters) for size in count(2) for letters in product("aeioustn", repeat=size))
    words = (space + word for source in (WORDS.split(), made_up) for word in source)
    prefixes = (word[:end] for word in words for end in range(2, len(word) + 1))
    pieces = dict.fromkeys(start)  # an ordered set
    while len(pieces) < n:
        pieces.update(dict.fromkeys(islice(prefixes, n - len(pieces))))
    return list(pieces)


def llama(
    path: Path,
    *,
    n_vocab: int = 512,
    n_embd: int = 64,
    n_layer: int = 2,
    n_head: int = 4,
    n_head_kv: int = 2,
    n_ff: int = 128,
    n_ctx_train: int = 2048,
    seed: int = 0,
    noise: float = 0.0,
    scale: float = 4.0,
    ends: bool = False,
    dtype: Dtype = "f32",
    tokenizer: Tokenizer = "spm",
    add_bos: bool | None = None,
    chat_template: str | None = None,
    changed: Mapping[int, str] | None = None,
    padding: int = 0,
    extra: Mapping[str, Any] | None = None,
    split: int = 0,
) -> Path:
    """A random transformer of architecture "llama".

    scale: standard deviation of the logits; 4 makes the likeliest of 512 tokens about 0.3 likely.
    noise: 0 is the model of this seed, 1 an unrelated one. A drafter with 0.05, 0.1, 0.2 or 0.3 agrees with
        the model without noise, token by token, about 0.8, 0.6, 0.4 or 0.2 of the time.
    ends: whether end-of-generation tokens are as likely as any other; by default they practically never come.
    dtype: of the matrices. llama.cpp's batched and single-token logits are bit-equal for q8_0, q4_0 and q4_1.
    changed: other texts for some ids. padding: that many [PAD…] ids on top of n_vocab.
    extra: metadata to add, or (with a key that is written anyway) to replace.
    split: tensors a file; above 0 writes name-00001-of-0000N.gguf and so on, and returns the first's path.
    """
    words = vocab(tokenizer, n_vocab).padded(padding).changed(changed or {})
    rng = Weights(seed, noise, dtype)
    w = writer(path, "llama", words, n_ctx_train, n_embd, n_layer, chat_template, add_bos, split)
    w.add_feed_forward_length(n_ff)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_head_kv)
    w.add_rope_dimension_count(n_embd // n_head)
    w.add_layer_norm_rms_eps(1e-5)
    n_kv = n_embd // n_head * n_head_kv

    rng.matrix(w, "token_embd.weight", len(words.texts), n_embd, gain=n_embd**0.5)  # elements of std 1
    for i in range(n_layer):
        block = f"blk.{i}."
        rng.ones(w, block + "attn_norm.weight", n_embd)
        rng.matrix(
            w, block + "attn_q.weight", n_embd, n_embd, gain=1.5
        )  # sharp attention: the context matters
        rng.matrix(w, block + "attn_k.weight", n_kv, n_embd, gain=1.5)
        rng.matrix(w, block + "attn_v.weight", n_kv, n_embd, gain=1)
        rng.matrix(w, block + "attn_output.weight", n_embd, n_embd, gain=1)
        rng.ones(w, block + "ffn_norm.weight", n_embd)
        rng.matrix(w, block + "ffn_gate.weight", n_ff, n_embd, gain=1)
        rng.matrix(w, block + "ffn_up.weight", n_ff, n_embd, gain=1)
        rng.matrix(w, block + "ffn_down.weight", n_embd, n_ff, gain=1)
    finish(w, rng, words, n_embd, scale, ends, extra)
    return path if not split else min(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))


def mamba(
    path: Path,
    *,
    n_vocab: int = 512,
    n_embd: int = 64,
    n_layer: int = 2,
    n_state: int = 8,
    n_ctx_train: int = 2048,
    seed: int = 0,
    noise: float = 0.0,
    scale: float = 4.0,
    ends: bool = False,
    tokenizer: Tokenizer = "spm",
) -> Path:
    """A random state-space model of architecture "mamba": recurrent, no attention, no cells to remove."""
    words = vocab(tokenizer, n_vocab)
    rng = Weights(seed, noise, "f32")
    n_inner, n_rank, n_conv = 2 * n_embd, max(1, n_embd // 16), 4
    w = writer(path, "mamba", words, n_ctx_train, n_embd, n_layer, None, None)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_ssm_conv_kernel(n_conv)
    w.add_ssm_inner_size(n_inner)
    w.add_ssm_state_size(n_state)
    w.add_ssm_time_step_rank(n_rank)
    w.add_layer_norm_rms_eps(1e-5)

    rng.matrix(w, "token_embd.weight", n_vocab, n_embd, gain=n_embd**0.5)
    decay = -np.tile(np.arange(1, n_state + 1, dtype=np.float32), (n_inner, 1))  # A, as Mamba initialises it
    for i in range(n_layer):
        block = f"blk.{i}."
        rng.ones(w, block + "attn_norm.weight", n_embd)
        rng.matrix(w, block + "ssm_in.weight", 2 * n_inner, n_embd, gain=2)
        rng.matrix(w, block + "ssm_conv1d.weight", n_inner, n_conv, gain=1)
        w.add_tensor(block + "ssm_conv1d.bias", np.zeros(n_inner, np.float32))
        rng.matrix(w, block + "ssm_x.weight", n_rank + 2 * n_state, n_inner, gain=2)
        rng.matrix(w, block + "ssm_dt.weight", n_inner, n_rank, gain=1)
        w.add_tensor(block + "ssm_dt.bias", np.full(n_inner, -1.0, np.float32))
        w.add_tensor(block + "ssm_a", decay)
        rng.ones(w, block + "ssm_d", n_inner)
        rng.matrix(w, block + "ssm_out.weight", n_embd, n_inner, gain=2)
    finish(w, rng, words, n_embd, scale, ends, None)
    return path


def bert(path: Path, *, architecture: str = "bert", extra: Mapping[str, Any] | None = None) -> Path:
    """The header of an embedding model with one tensor: enough to be recognised, not to be loaded."""
    words = vocab("spm", 512)
    words.model = "bert"
    w = writer(path, architecture, words, 512, 64, 2, None, None)
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.CLS)
    w.add_tensor("token_embd.weight", np.zeros((len(words.texts), 64), np.float32))
    _close(w, extra)
    return path


def clip(path: Path, *, extra: Mapping[str, Any] | None = None) -> Path:
    """The header of a vision projector (mmproj): no tokenizer, no language model."""
    w = gguf.GGUFWriter(path, "clip")
    w.add_type("mmproj")
    w.add_bool("clip.has_vision_encoder", True)
    w.add_tensor("v.patch_embd.weight", np.zeros((16, 3, 8, 8), np.float32))
    _close(w, extra)
    return path


def writer(
    path: Path,
    arch: str,
    words: Vocab,
    n_ctx_train: int,
    n_embd: int,
    n_layer: int,
    chat_template: str | None,
    add_bos: bool | None,
    split: int = 0,
) -> gguf.GGUFWriter:
    """A writer with the keys every language model has."""
    w = gguf.GGUFWriter(path, arch, split_max_tensors=split)
    w.add_name(f"tiny {arch}")
    w.add_vocab_size(len(words.texts))
    w.add_context_length(n_ctx_train)
    w.add_embedding_length(n_embd)
    w.add_block_count(n_layer)
    words.write(w)
    if add_bos is not None:
        w.add_add_bos_token(add_bos)
    if chat_template is not None:
        w.add_chat_template(chat_template)
    return w


def finish(
    w: gguf.GGUFWriter,
    rng: Weights,
    words: Vocab,
    n_embd: int,
    scale: float,
    ends: bool,
    extra: Mapping[str, Any] | None,
    norm: str = "output_norm",
) -> None:
    """The output matrix, whose rows set the spread of the logits; then the file."""
    rng.ones(w, norm + ".weight", n_embd)
    rows = np.full((len(words.texts), 1), scale, np.float32)
    silent = (UNUSED,) if ends else (UNUSED, CONTROL, UNKNOWN)
    rows[np.isin(words.types, silent)] = 0  # a zero row is a logit of 0, far below the largest
    rng.matrix(w, "output.weight", len(words.texts), n_embd, gain=rows)
    _close(w, extra)


def _close(w: gguf.GGUFWriter, extra: Mapping[str, Any] | None) -> None:
    for key, value in (extra or {}).items():
        w.kv_data[0].pop(key, None)
        kind = gguf.GGUFValueType.UINT32 if type(value) is int else gguf.GGUFValueType.get_type(value)
        w.add_key_value(key, value, kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Weights:
    """Normal random matrices; with noise, blended with another stream.

    Seeded by tensor name, so that a model with padded ids computes what the one without them computes.
    """

    def __init__(self, seed: int, noise: float, dtype: Dtype) -> None:
        self.seed = seed
        self.noise = noise
        self.type = gguf.GGMLQuantizationType[dtype.upper()]

    def matrix(
        self,
        w: gguf.GGUFWriter,
        name: str,
        rows: int,
        columns: int,
        gain: Any,
        *,
        stack: tuple[int, ...] = (),
    ) -> None:
        """[*stack, rows, columns] with elements of standard deviation gain / sqrt(columns)."""
        own, other = (np.random.default_rng([self.seed, stream, crc32(name.encode())]) for stream in (0, 1))
        x = own.standard_normal((*stack, rows, columns), np.float32)
        if self.noise:
            x = (1 - self.noise**2) ** 0.5 * x + self.noise * other.standard_normal(x.shape, np.float32)
        x = np.asarray(x * (gain / columns**0.5), np.float32)
        quantised: NDArray[Any] = gguf.quants.quantize(x, self.type)
        w.add_tensor(name, quantised, raw_dtype=self.type)

    def ones(self, w: gguf.GGUFWriter, name: str, n: int) -> None:
        w.add_tensor(name, np.ones(n, np.float32))
