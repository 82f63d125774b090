"""Which architectures remember more than attention cells; names as LLM_ARCH_NAMES in llama-arch.cpp."""

from __future__ import annotations

# llm_arch_is_recurrent: a state alone, whatever the length of the text.
RECURRENT = frozenset(["mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"])

# llm_arch_is_hybrid: a state beside the cells of attention layers.
HYBRID = frozenset(
    [
        "jamba",
        "falcon-h1",
        "plamo2",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3next",
        "kimi-linear",
        "bailingmoe3",
        "kimi-k3",
        "glm5-next",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "deepseek4",
        "minimax-01",
    ]
)

# llm_arch_supports_rs_rollback: the state's last values are kept (n_rs_seq), to go back to.
KEEPS_STATES = frozenset(
    [
        "kimi-k3",
        "qwen35",
        "qwen35moe",
        "qwen4exp",
        "deepseek4",
        "glm5-next",
        "nemotron_h",
        "nemotron_h_moe",
        "lfm2",
        "lfm2moe",
        "bailingmoe3",
    ]
)


def has_state(architecture: str) -> bool:
    """Whether there is a recurrent state (``llama_model_is_recurrent``, ``llama_model_is_hybrid``)."""
    return architecture in RECURRENT or architecture in HYBRID
