"""Speculative decoding for GGUF models: faster text, the same text."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .acceptance import BlockVerification, TokenRejection, Typical, Verdict, accept
    from .adaptive import AdaptiveSchedule
    from .backend import Context, Model
    from .decoder import Decoder, Step
    from .distribution import Distribution
    from .drafters import (
        CascadeDrafter,
        DraftBlock,
        Drafter,
        LookupDrafter,
        ModelDrafter,
        NoDrafter,
        SuffixDrafter,
        TranslatedDrafter,
    )
    from .engine import Engine
    from .errors import SpecdecError, UsageError
    from .experience import Experience
    from .registry import Registry
    from .sampling import Sampler
    from .schedule import FixedSchedule, Horizon
    from .session import Session
    from .settings import Drafting, Loading, SamplingParams
    from .stats import Stats

# Looked up on first use: llama.cpp takes a while to load, and `specdec --help` has no need of it.
_HOMES = {
    "acceptance": ("BlockVerification", "TokenRejection", "Typical", "Verdict", "accept"),
    "adaptive": ("AdaptiveSchedule",),
    "backend": ("Context", "Model"),
    "decoder": ("Decoder", "Step"),
    "distribution": ("Distribution",),
    "drafters": (
        "CascadeDrafter",
        "DraftBlock",
        "Drafter",
        "LookupDrafter",
        "ModelDrafter",
        "NoDrafter",
        "SuffixDrafter",
        "TranslatedDrafter",
    ),
    "engine": ("Engine",),
    "errors": ("SpecdecError", "UsageError"),
    "experience": ("Experience",),
    "registry": ("Registry",),
    "sampling": ("Sampler",),
    "schedule": ("FixedSchedule", "Horizon"),
    "session": ("Session",),
    "settings": ("Drafting", "Loading", "SamplingParams"),
    "stats": ("Stats",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__version__ = "0.1.0"

__all__ = [
    "AdaptiveSchedule",
    "BlockVerification",
    "CascadeDrafter",
    "Context",
    "Decoder",
    "Distribution",
    "DraftBlock",
    "Drafter",
    "Drafting",
    "Engine",
    "Experience",
    "FixedSchedule",
    "Horizon",
    "Loading",
    "LookupDrafter",
    "Model",
    "ModelDrafter",
    "NoDrafter",
    "Registry",
    "Sampler",
    "SamplingParams",
    "Session",
    "SpecdecError",
    "Stats",
    "Step",
    "SuffixDrafter",
    "TokenRejection",
    "TranslatedDrafter",
    "Typical",
    "UsageError",
    "Verdict",
    "__version__",
    "accept",
]


def __getattr__(name: str) -> Any:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{home}", __name__), name)
