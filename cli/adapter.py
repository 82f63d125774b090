"""A LoRA adapter as the command line names it."""

from __future__ import annotations

import math
from pathlib import Path

from specdec.errors import UsageError


def scaled_adapter(text: str) -> tuple[Path, float]:
    """The file and the scale of FILE:SCALE. Raises UsageError for any other text."""
    name, _, scale = text.rpartition(":")
    try:
        number = float(scale)
    except ValueError:
        number = math.nan
    if not name or not math.isfinite(number):
        raise UsageError(f"--lora-scaled takes FILE:SCALE, as in style.gguf:0.5, not {text!r}")
    return Path(name), number
