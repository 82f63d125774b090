"""What a model's numbers must be where llama.cpp does not refuse a file but ends the process.

llama.cpp answers most damage with an error message; but some conditions it asserts (``GGML_ASSERT``), and
some it trusts (a division by zero, a type without a kernel). Each check here is one of these, with the place
in llama.cpp that it follows. What is absent, or of another type than llama.cpp wants, is left to
llama.cpp, which says so.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .gguf_header import GGUFArray, Tensor, Value

MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS
LONGEST_WINDOW = 1 << 24  # tokens; llama_kv_cache::set_input_kq_mask sets aside 4 bytes for each
WKV_STEP = 64  # elements ggml_compute_forward_rwkv_wkv7 reads at a time, past the end of a shorter head
ROPE_SCALINGS = ("none", "linear", "yarn", "longrope")  # LLAMA_ROPE_SCALING_TYPES

# Architectures without rotary embeddings (llama_model_rope_type).
NO_ROPE = (
    "clip gpt2 gptj mpt refact bloom mamba mamba2 jamba jina-bert-v2 t5 t5encoder jais rwkv6 rwkv6qwen2 "
    "rwkv7 arwkv7 wavtokenizer-dec nemotron_h nemotron_h_moe kimi-linear kimi-k3 glm5-next"
)
# Graphs that begin with GGML_ASSERT(n_embd_head == hparams.n_embd_head_k()): keys as long as values.
EQUAL_HEADS = (
    "llama llama4 maincoder deci baichuan falcon grok starcoder refact bloom mpt stablelm mellum nanbeige "
    "qwen qwen2 qwen2vl qwen2moe qwen3 qwen3moe qwen3vl qwen3vlmoe pockettts phi2 phi3 phimoe plamo gpt2 "
    "codeshell orion internlm2 starcoder2 xverse command-r cohere2 cohere2moe dbrx olmo olmo2 olmoe "
    "muse-glimmer openelm gptneox arctic deepseek chatglm glm4 glm4moe bitnet jais jais2 nemotron nemotron_h "
    "nemotron_h_moe exaone granite granitemoe graniteswitch minicpm granitehybrid granite_swa chameleon "
    "bailingmoe2 seed_oss dots1 arcee afmoe laguna ernie4_5 ernie4_5-moe paddleocr hunyuan-moe hunyuan_vl "
    "hunyuan-dense hy_v3 smollm3 smallthinker grovemoe apertus minimax-01 minimax-m2 minimax-m3 cogvlm "
    "pangu-embedded qwen3next qwen35 qwen35moe mistral3 spark2_5"
)
# Graphs that begin with GGML_ASSERT(n_embd_head == n_rot): the whole head is rotated.
WHOLE_ROPE = (
    "llama llama4 maincoder talkie deci baichuan falcon grok mellum qwen2 qwen2vl qwen2moe qwen3 qwen3moe "
    "qwen3vl qwen3vlmoe pockettts plamo codeshell orion internlm2 starcoder2 xverse cohere2moe dbrx olmo "
    "olmo2 olmoe arctic deepseek jais2 exaone exaone4 exaone-moe granite granitemoe graniteswitch minicpm "
    "granite_swa chameleon seed_oss dots1 arcee ernie4_5 ernie4_5-moe paddleocr hunyuan-moe hunyuan_vl "
    "hunyuan-dense hy_v3 smollm3 smallthinker grovemoe apertus cogvlm pangu-embedded mistral3"
)
# Loaders that want as many rows of attn_q as the model is wide; only the graph cuts them into heads.
SQUARE_QUERIES = (
    "arctic baichuan bitnet chameleon codeshell cohere2 command-r deepseek grok internlm2 jamba lfm2 lfm2moe "
    "nemotron olmo olmo2 olmoe orion phi2 phi3 phimoe plamo pockettts qwen2 qwen2moe qwen2vl stablelm "
    "starcoder2 xverse"
)
# With experts in every case (GGML_ASSERT(n_expert > 0) in load_arch_tensors).
EXPERTS_ONLY = ("bailingmoe2", "glm4moe", "grovemoe", "llada-moe", "smallthinker")
# Loaders that divide by the experts used where the file does not say how wide an expert is.
DIVIDED = ("qwen3next", "qwen35moe", "qwen4exp")
# By which graphs and loaders divide.
DIVISORS = {
    "ernie4_5-moe": "interleave_moe_layer_step",
    "grovemoe": "experts_per_group",
    "minimax-01": "full_attention_interval",
    "qwen3next": "full_attention_interval",
    "qwen35": "full_attention_interval",
    "qwen35moe": "full_attention_interval",
}
# Rotated in sections (LLAMA_ROPE_TYPE_MROPE, _IMROPE), whatever the file says of them.
SECTIONS = ("paddleocr", "qwen2vl", "qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe")
# Types that no matrix multiplication of ggml's reads (type_traits_cpu without vec_dot).
NOT_FOR_WEIGHTS = ("Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64")
# Of the tensors that llama.cpp's converter never packs (prepare_tensors), those that a kernel takes for F32.
ALWAYS_F32 = (
    "ssm_conv1d.weight",
    "shortconv.conv.weight",
    "ssm_conv1d_q.weight",
    "ssm_conv1d_k.weight",
    "ssm_conv1d_v.weight",
    "time_mix_first.weight",
)
TABLES = ("d2t", "tid2eid", "tid2eid.weight")  # ends of the names of tensors that hold whole numbers
BYTE, SHORTEST_BYTE = 6, 3  # LLAMA_TOKEN_TYPE_BYTE; llama.cpp reads the digits of <0x0A> from there on


# Tensors that a loader lets be absent and the graph reads all the same, in layers with an ssm_conv1d.weight.
CONVOLUTION = ("ssm_conv1d.bias",)  # build_mamba2_layer
PROJECTIONS = ("attn_qkv.weight", "attn_gate.weight")  # build_qkvz
NEEDED = {
    **dict.fromkeys(("falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"), CONVOLUTION),
    **dict.fromkeys(("qwen3next", "qwen35", "qwen35moe"), PROJECTIONS),
}


def damage(metadata: Mapping[str, Value], tensors: Sequence[Tensor]) -> str | None:
    """What is wrong with a text-generation model, in words; None when llama.cpp can be trusted with it."""
    arch = metadata.get("general.architecture")
    model = _Numbers(str(arch), metadata, tensors)
    if not model.layers:
        return None
    for check in (_experts, _layers, _heads, _rope, _norms, _states, _needed, _tokenizer, _types):
        for what in check(model):
            return what
    return None


@dataclass(frozen=True)
class _Numbers:
    """Metadata as llama.cpp's loader reads it (``llama_model_loader::get_key``, ``get_key_or_arr``)."""

    arch: str
    metadata: Mapping[str, Value]
    tensors: Sequence[Tensor]

    def whole(self, key: str, default: int = 0) -> int:
        """The number under arch.key, uint32; the default when there is none."""
        value = self.metadata.get(f"{self.arch}.{key}")
        return value % (1 << 32) if type(value) is int else default

    def lists(self, key: str) -> bool:
        """Whether there is an array under arch.key."""
        return isinstance(self.metadata.get(f"{self.arch}.{key}"), GGUFArray)

    def has(self, key: str) -> bool:
        """Whether there is a number under arch.key."""
        return type(self.metadata.get(f"{self.arch}.{key}")) is int

    def each(self, key: str) -> list[int] | None:
        """One number a layer: the same for all, or an array of them; None when llama.cpp will refuse it."""
        value = self.metadata.get(f"{self.arch}.{key}")
        if type(value) is int:
            return [value % (1 << 32)] * self.layers
        if isinstance(value, GGUFArray) and value.type in ("u32", "i32") and len(value) == self.layers:
            return [int(n) % (1 << 32) for n in value]
        return None

    @property
    def layers(self) -> int:
        return self.whole("block_count")

    def is_(self, key: str, value: object, wanted: str) -> str:
        """The sentence about a number that is not what it has to be."""
        return f"{self.arch}.{key} is {value}, which {wanted}"


def _experts(m: _Numbers) -> Iterator[str]:
    """``llama_model_base::load_hparams``"""
    count, used = m.whole("expert_count"), max(m.each("expert_used_count") or [0])
    groups, group_used = m.whole("expert_group_count"), m.whole("expert_group_used_count")
    if m.arch in ("hunyuan_vl", "hunyuan-dense") and count <= 1:
        count = used = 0
    if count > MAX_EXPERTS:
        yield m.is_("expert_count", count, f"is more than the {MAX_EXPERTS} there may be")
    if used > count:
        yield m.is_("expert_used_count", used, f"is more than the {count} experts")
    if m.arch in EXPERTS_ONLY and not count:
        yield m.is_("expert_count", count, f"a {m.arch} model cannot have")
    if m.arch in DIVIDED and not used and not any(m.each("expert_feed_forward_length") or [0]):
        yield m.is_("expert_used_count", used, f"a {m.arch} model cannot have")
    if count and not used:
        yield m.is_("expert_used_count", used, f"leaves the {count} experts without use")
    if groups and groups >= count:
        yield m.is_("expert_group_count", groups, f"is not less than the {count} experts")
    if groups > 1 and count % groups:
        yield m.is_("expert_group_count", groups, f"does not divide the {count} experts")
    if groups > 1 and not 0 < group_used < groups:
        yield m.is_("expert_group_used_count", group_used, f"is not between 0 and the {groups} groups")


def _layers(m: _Numbers) -> Iterator[str]:
    """``load_hparams``; ``set_swa_pattern`` and ``create_memory``; the graphs of rwkv6, rwkv7 and Qwen3.5"""
    ahead = m.whole("nextn_predict_layers")
    if ahead > m.layers:
        yield m.is_("nextn_predict_layers", ahead, f"is more than the {m.layers} layers")
    divisor = DIVISORS.get(m.arch, "")
    if m.has(divisor) and not m.whole(divisor):
        yield m.is_(divisor, 0, "is no distance")
    if m.arch in ("rwkv6", "rwkv7") and m.whole("token_shift_count", 2) != 2:
        yield m.is_("token_shift_count", m.whole("token_shift_count"), "is not 2")
    if m.whole("attention.sliding_window") > LONGEST_WINDOW:
        yield m.is_("attention.sliding_window", m.whole("attention.sliding_window"), "is no length of a text")
    pattern = m.metadata.get(f"{m.arch}.attention.sliding_window_pattern")
    if m.whole("attention.sliding_window") and (
        pattern == 1 or (isinstance(pattern, GGUFArray) and not any(list(pattern)[: m.layers]))
    ):
        yield m.is_("attention.sliding_window_pattern", pattern, "gives no layer the window that there is")


def _heads(m: _Numbers) -> Iterator[str]:
    """Queries are shared out evenly (``ggml_mul_mat``), and cut into heads (``ggml_reshape_3d``)."""
    attention_only = {*WHOLE_ROPE.split(), *SQUARE_QUERIES.split()} - {"deci", "jamba", "lfm2", "lfm2moe"}
    if m.arch in attention_only and not m.whole("attention.head_count", int(m.lists("attention.head_count"))):
        yield "it has no attention heads"  # by whose number the width is divided
    heads = m.each("attention.head_count")
    groups = m.each("attention.head_count_kv") or heads
    if not heads or not groups:
        return
    for layer, (n, n_kv) in enumerate(zip(heads, groups, strict=True)):
        if n_kv and n % n_kv:
            yield f"layer {layer} has {n} attention heads for {n_kv} of keys, which does not come out even"
    if not heads[0]:
        return
    size = m.whole("attention.key_length", m.whole("embedding_length") // heads[0])
    value = m.whole("attention.value_length", m.whole("embedding_length") // heads[0])
    if not size or not value:
        yield f"its {heads[0]} attention heads have no room in {m.whole('embedding_length')} dimensions"
    if m.arch in EQUAL_HEADS.split() and not m.has("attention.key_length_swa") and size != value:
        yield f"its attention keys have {size} dimensions and its values {value}, which have to be as many"
    if m.arch in SQUARE_QUERIES.split():
        for tensor in m.tensors:
            match = re.fullmatch(r"blk\.(\d+)\.attn_q\.weight", tensor.name)
            n = heads[int(match[1])] if match and int(match[1]) < m.layers else 0
            if n and tensor.shape[-1:] != (n * size,):
                yield f"{tensor.name} has {tensor.shape[-1:]} rows, not {n} heads of {size}"


def _rope(m: _Numbers) -> Iterator[str]:
    """``load_hparams``, the graphs' first assertions, and ``ggml_compute_forward_rope``"""
    scaling = m.metadata.get(f"{m.arch}.rope.scaling.type", "linear")
    if isinstance(scaling, str) and scaling not in ROPE_SCALINGS:
        yield m.is_("rope.scaling.type", repr(scaling), f"is none of {', '.join(ROPE_SCALINGS)}")
    heads = m.each("attention.head_count")
    if m.arch in NO_ROPE.split() or not heads or not heads[0]:
        return
    size = m.whole("attention.key_length", m.whole("embedding_length") // heads[0])
    sections = m.metadata.get(f"{m.arch}.rope.dimension_sections", 0)
    parts = list(sections)[:4] if isinstance(sections, GGUFArray) else [sections] * 4
    whole = [n for n in parts if type(n) is int]
    fits = min(whole, default=0) >= 0 and any(whole[:3]) and sum(whole) <= size
    if (m.arch in SECTIONS or any(whole)) and not fits:
        yield m.is_("rope.dimension_sections", parts, "does not divide the dimensions of a head")
    rotated = m.whole("rope.dimension_count", size)
    swa = m.whole("rope.dimension_count_swa", rotated), m.whole("attention.key_length_swa", size)
    for key, n, of in (("rope.dimension_count", rotated, size), ("rope.dimension_count_swa", *swa)):
        if not 0 < n <= of or n % 2:
            yield m.is_(key, n, f"is no even number from 2 to the {of} dimensions of a head")
    if m.arch in WHOLE_ROPE.split() and not m.has("attention.key_length_swa") and rotated != size:
        yield m.is_("rope.dimension_count", rotated, f"is not the {size} dimensions of a head")


def _norms(m: _Numbers) -> Iterator[str]:
    """``ggml_norm`` and ``ggml_rms_norm``: GGML_ASSERT(eps >= 0.0f)"""
    for key in ("layer_norm_epsilon", "layer_norm_rms_epsilon", "group_norm_epsilon"):
        value = m.metadata.get(f"{m.arch}.attention.{key}")
        if type(value) is float and not (math.isfinite(value) and value >= 0):
            yield m.is_(f"attention.{key}", value, "is no small positive number")


def _states(m: _Numbers) -> Iterator[str]:
    """``llm_build_mamba_base``, ``llm_build_rwkv*_base``, ``build_delta_net_*``"""
    inner, heads = m.whole("ssm.inner_size"), m.whole("ssm.time_step_rank")
    groups, state = m.whole("ssm.group_count"), m.whole("ssm.state_size")
    if m.arch in ("mamba2", "falcon-h1", "granitehybrid", "nemotron_h", "nemotron_h_moe"):
        for key, n in (("time_step_rank", heads), ("group_count", groups)):
            if not n or inner % n:
                yield m.is_(f"ssm.{key}", n, f"does not divide ssm.inner_size, {inner}")
    if m.arch in ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"):
        size, width = m.whole("wkv.head_size"), m.whole("embedding_length")
        if not size or size % WKV_STEP or width % size:
            yield m.is_("wkv.head_size", size, f"is no multiple of {WKV_STEP} that divides {width}")
    if m.arch in ("qwen3next", "qwen35", "qwen35moe"):
        if not groups or not heads or heads % groups:
            yield m.is_("ssm.group_count", groups, f"does not divide ssm.time_step_rank, {heads}")
        elif inner != heads * state:
            yield m.is_("ssm.inner_size", inner, f"is not {heads} heads of ssm.state_size, {state}")


def _needed(m: _Numbers) -> Iterator[str]:
    """The graphs that :data:`NEEDED` names."""
    names = {tensor.name for tensor in m.tensors}
    for layer in range(m.layers if m.arch in NEEDED else 0):
        block = f"blk.{layer}."
        present = {n for n in ("ssm_conv1d.weight", "ssm_in.weight", *NEEDED[m.arch]) if block + n in names}
        if m.arch == "qwen3next" and "ssm_in.weight" in present and "attn_qkv.weight" not in present:
            continue  # older files have both projections in one tensor
        for needed in NEEDED[m.arch] if "ssm_conv1d.weight" in present else ():
            if needed not in present:
                yield f"it has no tensor {block}{needed}"


def _tokenizer(m: _Numbers) -> Iterator[str]:
    """``llama_vocab::impl::token_to_byte``"""
    kind = m.metadata.get("tokenizer.ggml.model")
    tokens, types = m.metadata.get("tokenizer.ggml.tokens"), m.metadata.get("tokenizer.ggml.token_type")
    if not isinstance(tokens, GGUFArray) or tokens.starts is None:
        return
    if not isinstance(types, GGUFArray) or types.type != "i32":
        return
    bytes_ = np.flatnonzero(types.numpy()[: len(tokens)] == BYTE)
    if len(bytes_) and kind == "bert":
        yield f"token {bytes_[0]} stands for a byte, of which a bert tokenizer has none"
    short = bytes_[np.diff(tokens.starts)[bytes_] - 8 < SHORTEST_BYTE]
    if len(short) and kind not in ("plamo2", "rwkv"):
        yield f"token {short[0]} stands for a byte, but its text is {tokens[int(short[0])]!r}"


def _types(m: _Numbers) -> Iterator[str]:
    """``ggml_mul_mat``; ``ggml_mul``, ``_add``, ``_ssm_conv``, ``_ssm_scan``,, of F32 alone"""
    for tensor in m.tensors:
        if tensor.name.endswith(TABLES):
            continue
        vector = len(tensor.shape) <= 1 or not tensor.name.endswith(".weight")
        plain = vector or tensor.name.endswith(("_norm.weight", *ALWAYS_F32)) or "_mix_lerp_" in tensor.name
        if tensor.type in NOT_FOR_WEIGHTS or (plain and tensor.type != "F32"):
            wanted = "F32" if plain else "a type for weights"
            yield f"tensor {tensor.name!r} is of type {tensor.type}, not {wanted}"
