"""Tiny random GGUFs of many architectures: every kind of memory that llama.cpp has, in milliseconds.

    tiny_architectures.write("lfm2", tmp_path / "target.gguf", seed=0)
    tiny_architectures.write("lfm2", tmp_path / "draft.gguf", seed=0, noise=0.1)

Metadata and tensors are those that llama.cpp's src/models/<architecture>.cpp asks for. seed, noise and scale
mean what they mean in :mod:`tiny`; all models have its vocabulary, so that any two can be a pair.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import gguf
import numpy as np
import tiny
from numpy.typing import NDArray

N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD = 64, 128, 4, 2, 16
N_EXPERT, N_USED, N_FF_EXPERT = 4, 2, 48
WINDOW = 32  # tokens gemma3's sliding window reaches back


class Parts:
    """A file that is being written, and the parts that architectures are made of."""

    def __init__(self, w: gguf.GGUFWriter, rng: tiny.Weights) -> None:
        self.w = w
        self.rng = rng

    def matrix(
        self, name: str, rows: int, columns: int, gain: float = 1.0, stack: tuple[int, ...] = ()
    ) -> None:
        self.rng.matrix(self.w, name + ".weight", rows, columns, gain, stack=stack)

    def ones(self, name: str, n: int = N_EMBD, value: float = 1.0) -> None:
        self.w.add_tensor(name + ".weight", np.full(n, value, np.float32))

    def bias(self, name: str, n: int, value: float = 0.0) -> None:
        self.w.add_tensor(name + ".bias", np.full(n, value, np.float32))

    def tensor(self, name: str, values: NDArray[np.float32]) -> None:
        self.w.add_tensor(name, np.ascontiguousarray(values, np.float32))

    def heads(self, n_head_kv: int | Sequence[int] = N_HEAD_KV) -> None:
        """Metadata of attention."""
        self.w.add_head_count(N_HEAD)
        self.w.add_head_count_kv(n_head_kv)
        self.w.add_rope_dimension_count(HEAD)
        self.w.add_key_length(HEAD)
        self.w.add_value_length(HEAD)

    def attention(
        self, block: str, *, norms: bool = False, gated: bool = False, biases: bool = False
    ) -> None:
        """norms: of queries and keys; gated: a gate beside each query; biases: of the projections."""
        sizes = {"q": N_HEAD * HEAD * (2 if gated else 1), "k": N_HEAD_KV * HEAD, "v": N_HEAD_KV * HEAD}
        for name, n in sizes.items():
            gain = 1.0 if name == "v" else 1.5  # sharp attention: the context matters
            self.matrix(f"{block}attn_{name}", n, N_EMBD, gain)
            if biases:
                self.bias(f"{block}attn_{name}", n, 0.1)
        self.matrix(block + "attn_output", N_EMBD, N_HEAD * HEAD)
        if norms:
            self.ones(block + "attn_q_norm", HEAD, 1.5)
            self.ones(block + "attn_k_norm", HEAD, 1.5)

    def ffn(self, block: str) -> None:
        self.matrix(block + "ffn_gate", N_FF, N_EMBD)
        self.matrix(block + "ffn_up", N_FF, N_EMBD)
        self.matrix(block + "ffn_down", N_EMBD, N_FF)

    def experts(self, block: str, *, shared: bool = False) -> None:
        self.matrix(block + "ffn_gate_inp", N_EXPERT, N_EMBD, 2.0)
        for name, rows, columns in (
            ("gate", N_FF_EXPERT, N_EMBD),
            ("up", N_FF_EXPERT, N_EMBD),
            ("down", N_EMBD, N_FF_EXPERT),
        ):
            self.matrix(f"{block}ffn_{name}_exps", rows, columns, stack=(N_EXPERT,))
            if shared:
                self.matrix(f"{block}ffn_{name}_shexp", rows, columns)
        if shared:
            self.ones(block + "ffn_gate_inp_shexp", N_EMBD, 0.1)

    def expert_counts(self) -> None:
        self.w.add_expert_count(N_EXPERT)
        self.w.add_expert_used_count(N_USED)
        self.w.add_expert_feed_forward_length(N_FF_EXPERT)

    def state_space(self, inner: int, state: int, heads: int, groups: int) -> None:
        """Metadata of a state-space or linear-attention mixer."""
        self.w.add_ssm_conv_kernel(4)
        self.w.add_ssm_inner_size(inner)
        self.w.add_ssm_state_size(state)
        self.w.add_ssm_time_step_rank(heads)
        self.w.add_ssm_group_count(groups)

    def mamba2(self, block: str, inner: int = 128, state: int = 16, heads: int = 4, groups: int = 1) -> None:
        channels = inner + 2 * groups * state
        self.matrix(block + "ssm_in", inner + channels + heads, N_EMBD, 2.0)
        self.matrix(block + "ssm_conv1d", channels, 4)
        self.bias(block + "ssm_conv1d", channels)
        self.bias(block + "ssm_dt", heads, -1.0)
        self.tensor(block + "ssm_a", -np.arange(1, heads + 1, dtype=np.float32)[:, None] / heads)
        self.tensor(block + "ssm_d", np.ones((heads, 1), np.float32))
        self.tensor(block + "ssm_norm.weight", np.ones((groups, inner // groups), np.float32))
        self.matrix(block + "ssm_out", N_EMBD, inner)

    def delta_net(self, block: str, *, apart: bool, state: int = 16, keys: int = 2, values: int = 4) -> None:
        """A gated delta net; apart: whether beta and alpha are two matrices."""
        n_value, channels = values * state, (2 * keys + values) * state
        self.matrix(block + "attn_qkv", channels, N_EMBD)
        self.matrix(block + "attn_gate", n_value, N_EMBD)
        self.matrix(block + "ssm_conv1d", channels, 4, 2.0)
        self.bias(block + "ssm_dt", values, -1.0)
        self.tensor(block + "ssm_a", -np.arange(1, values + 1, dtype=np.float32) / values)
        if apart:
            self.matrix(block + "ssm_beta", values, N_EMBD)
            self.matrix(block + "ssm_alpha", values, N_EMBD)
        else:
            self.matrix(block + "ssm_ba", 2 * values, N_EMBD)
        self.ones(block + "ssm_norm", state)
        self.matrix(block + "ssm_out", N_EMBD, n_value)


def _llama_like(p: Parts, n_layer: int, ffn: Callable[[str], None], **attention: bool) -> None:
    p.heads()
    for i in range(n_layer):
        block = f"blk.{i}."
        p.ones(block + "attn_norm")
        p.attention(block, **attention)
        p.ones(block + "ffn_norm")
        ffn(block)


def _llama(p: Parts, n_layer: int) -> None:
    _llama_like(p, n_layer, p.ffn)


def _qwen2(p: Parts, n_layer: int) -> None:
    _llama_like(p, n_layer, p.ffn, biases=True)


def _qwen3(p: Parts, n_layer: int) -> None:
    _llama_like(p, n_layer, p.ffn, norms=True)


def _qwen3moe(p: Parts, n_layer: int) -> None:
    p.expert_counts()
    _llama_like(p, n_layer, p.experts, norms=True)


def _gemma3(p: Parts, n_layer: int) -> None:
    p.w.add_sliding_window(WINDOW)
    p.w.add_sliding_window_pattern([i % 2 == 0 for i in range(n_layer)])
    _llama_like(p, n_layer, p.ffn, norms=True)
    for i in range(n_layer):
        p.ones(f"blk.{i}.post_attention_norm")
        p.ones(f"blk.{i}.post_ffw_norm")


def _lfm2(p: Parts, n_layer: int) -> None:
    convolution = [i % 2 == 0 for i in range(n_layer)]
    p.heads([0 if c else N_HEAD_KV for c in convolution])
    p.w.add_shortconv_l_cache(3)
    for i in range(n_layer):
        block = f"blk.{i}."
        p.ones(block + "attn_norm")
        if convolution[i]:
            p.matrix(block + "shortconv.conv", N_EMBD, 3, 1.5)
            p.matrix(block + "shortconv.in_proj", 3 * N_EMBD, N_EMBD)
            p.matrix(block + "shortconv.out_proj", N_EMBD, N_EMBD)
        else:
            p.attention(block, norms=True)
        p.ones(block + "ffn_norm")
        p.ffn(block)


def _mamba2(p: Parts, n_layer: int) -> None:
    p.w.add_head_count(0)
    p.state_space(128, 16, 4, 1)
    for i in range(n_layer):
        p.ones(f"blk.{i}.attn_norm")
        p.mamba2(f"blk.{i}.")


def _falcon_h1(p: Parts, n_layer: int) -> None:
    p.heads()
    p.state_space(128, 16, 4, 1)
    for i in range(n_layer):
        block = f"blk.{i}."
        p.ones(block + "attn_norm")
        p.attention(block)
        p.mamba2(block)
        p.tensor(block + "ffn_norm", np.ones(N_EMBD, np.float32))  # llama.cpp asks for it without ".weight"
        p.ffn(block)


def _nemotron_h(p: Parts, n_layer: int) -> None:
    kinds = ["state", "attention", "ffn"]
    p.heads([N_HEAD_KV if kinds[i % 3] == "attention" else 0 for i in range(n_layer)])
    p.w.add_feed_forward_length([N_FF if kinds[i % 3] == "ffn" else 0 for i in range(n_layer)])
    p.w.add_layer_norm_eps(1e-5)
    p.state_space(128, 16, 4, 1)
    for i in range(n_layer):
        block = f"blk.{i}."
        p.ones(block + "attn_norm")
        if kinds[i % 3] == "state":
            p.mamba2(block)
        elif kinds[i % 3] == "attention":
            p.attention(block)
        else:
            p.matrix(block + "ffn_up", N_FF, N_EMBD)
            p.matrix(block + "ffn_down", N_EMBD, N_FF)


def _delta_nets(p: Parts, n_layer: int, ffn: Callable[[str], None], *, apart: bool) -> None:
    p.heads()
    p.w.add_full_attention_interval(2)
    p.state_space(64, 16, 4, 2)
    for i in range(n_layer):
        block = f"blk.{i}."
        p.ones(block + "attn_norm")
        if i % 2:
            p.attention(block, norms=True, gated=True)
        else:
            p.delta_net(block, apart=apart)
        p.ones(block + "post_attention_norm")
        ffn(block)


def _qwen35(p: Parts, n_layer: int) -> None:
    p.w.add_rope_dimension_sections([4, 2, 2, 0])
    _delta_nets(p, n_layer, p.ffn, apart=True)


def _qwen3next(p: Parts, n_layer: int) -> None:
    p.expert_counts()
    p.w.add_expert_shared_feed_forward_length(N_FF_EXPERT)
    _delta_nets(p, n_layer, lambda block: p.experts(block, shared=True), apart=False)


def _rwkv7(p: Parts, n_layer: int) -> None:
    rank = 8
    p.w.add_head_count(0)
    p.w.add_layer_norm_eps(1e-5)
    p.w.add_wkv_head_size(64)  # ggml's kernel reads 64 elements at a time, and past the end of a smaller head
    p.w.add_decay_lora_rank(rank)
    p.w.add_iclr_lora_rank(rank)
    p.w.add_value_residual_mix_lora_rank(rank)
    p.w.add_gate_lora_rank(rank)
    p.w.add_token_shift_count(2)
    for name in (
        "token_embd_norm",
        *(f"blk.{i}.{n}" for i in range(n_layer) for n in ("attn_norm", "attn_norm_2")),
    ):
        p.ones(name)
        p.bias(name, N_EMBD)
    p.bias("output_norm", N_EMBD)
    for i in range(n_layer):
        block = f"blk.{i}.time_mix_"
        for letter, middle in (("w", -1.0), ("a", 0.0), ("v", 0.0)):
            p.ones(f"{block}{letter}0", N_EMBD, middle)
        for letter in "wavg":
            p.matrix(f"{block}{letter}1", rank, N_EMBD)
            p.matrix(f"{block}{letter}2", N_EMBD, rank)
        p.tensor(block + "lerp_fused.weight", np.full((6, 1, 1, N_EMBD), 0.3, np.float32))
        p.ones(block + "k_k")
        p.ones(block + "k_a", N_EMBD, 0.5)
        p.ones(block + "r_k", N_EMBD, 0.1)
        for name in ("key", "value", "receptance"):
            p.matrix(block + name, N_EMBD, N_EMBD)
        p.matrix(block + "output", N_EMBD, N_EMBD, 2.0)
        p.ones(block + "ln")
        p.bias(block + "ln", N_EMBD)
        p.tensor(f"blk.{i}.channel_mix_lerp_k.weight", np.full((1, 1, N_EMBD), 0.3, np.float32))
        p.matrix(f"blk.{i}.channel_mix_key", N_FF, N_EMBD)
        p.matrix(f"blk.{i}.channel_mix_value", N_EMBD, N_FF)


ARCHITECTURES: dict[str, tuple[Callable[[Parts, int], None], int]] = {
    "llama": (_llama, 2),
    "gemma3": (_gemma3, 4),
    "qwen2": (_qwen2, 2),
    "qwen3": (_qwen3, 2),
    "qwen3moe": (_qwen3moe, 2),
    "lfm2": (_lfm2, 4),
    "mamba2": (_mamba2, 2),
    "falcon-h1": (_falcon_h1, 2),
    "nemotron_h": (_nemotron_h, 4),
    "qwen35": (_qwen35, 2),
    "qwen3next": (_qwen3next, 2),
    "rwkv7": (_rwkv7, 2),
}


def write(
    architecture: str,
    path: Path,
    *,
    seed: int = 0,
    noise: float = 0.0,
    scale: float = 4.0,
    n_vocab: int = 512,
) -> Path:
    """A random model of that architecture; of those in ARCHITECTURES, or "mamba"."""
    if architecture == "mamba":
        return tiny.mamba(path, seed=seed, noise=noise, scale=scale, n_vocab=n_vocab)
    build, n_layer = ARCHITECTURES[architecture]
    words = tiny.vocab("spm", n_vocab)
    rng = tiny.Weights(seed, noise, "f32")
    w = tiny.writer(path, architecture, words, 2048, N_EMBD, n_layer, None, None)
    if architecture != "nemotron_h":
        w.add_feed_forward_length(N_FF)
    if architecture != "rwkv7":
        w.add_layer_norm_rms_eps(1e-5)
    # gemma3 multiplies its embeddings by sqrt(n_embd) itself: elements of std 1 either way
    gain = 1.0 if architecture == "gemma3" else N_EMBD**0.5
    rng.matrix(w, "token_embd.weight", n_vocab, N_EMBD, gain=gain)
    build(Parts(w, rng), n_layer)
    norm = "token_embd_norm" if architecture == "lfm2" else "output_norm"
    tiny.finish(w, rng, words, N_EMBD, scale, False, None, norm)
    return path
