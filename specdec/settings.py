"""What a user may choose, with llama.cpp's names and defaults. Cheap to import: the command line reads it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from .errors import UsageError

ORDER = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
DrafterKind = Literal["model", "suffix", "lookup", "none"]
DRAFTERS: tuple[DrafterKind, ...] = ("model", "suffix", "lookup", "none")
LONGEST_DRAFT = 24  # of the adaptive schedule: the rows of logits of a target context are made for it
BATCH_CPU, BATCH_GPU = 64, 512  # tokens that a pass over a prompt reads at once (n_ubatch)
DRY_BREAKERS = ("\n", ":", '"', "*")


@dataclass(frozen=True)
class SamplingParams:
    """llama-cli's samplers, names and defaults (``common_params_sampling``).

    A sampler at its neutral value is left out of the chain. temperature ≤ 0 is greedy decoding.
    samplers: their order; those not named are off. grammar: GBNF that the text must follow, '' for none.
    Raises UsageError for values no chain can be made of.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    repeat_last_n: int = 64
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64
    dry_sequence_breakers: tuple[str, ...] = DRY_BREAKERS
    samplers: tuple[str, ...] = ORDER
    ignore_eos: bool = False
    logit_bias: dict[int, float] = field(default_factory=dict)
    grammar: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.samplers if name not in ORDER]
        if unknown:
            hint = (
                "it has no distribution per position to verify a draft against"
                if "mirostat" in unknown[0]
                else f"known are {';'.join(ORDER)}"
            )
            raise UsageError(f"sampler {unknown[0]!r} cannot be used: {hint}")
        if len(set(self.samplers)) != len(self.samplers):
            raise UsageError(f"--samplers names a sampler twice: {';'.join(self.samplers)}")
        if not all(math.isfinite(v) for v in vars(self).values() if isinstance(v, float)):
            raise UsageError("sampling parameters must be finite numbers")
        if self.repeat_penalty <= 0.0:
            raise UsageError(f"--repeat-penalty must be above 0, got {self.repeat_penalty:g}")

    @property
    def active(self) -> tuple[str, ...]:
        """The samplers that do something, in order."""
        on = {
            "penalties": self.repeat_last_n != 0
            and (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1.0, 0.0, 0.0),
            "dry": self.dry_multiplier != 0.0 and self.dry_base >= 1.0 and self.dry_penalty_last_n != 0,
            "top_n_sigma": self.top_n_sigma > 0.0,
            "top_k": self.top_k > 0,
            "typ_p": self.typical_p < 1.0,
            "top_p": self.top_p < 1.0,
            "min_p": self.min_p > 0.0,
            "xtc": self.xtc_probability > 0.0 and self.xtc_threshold <= 0.5,
            "temperature": self.temperature != 1.0,
        }
        return tuple(name for name in self.samplers if on[name])

    @property
    def remembers(self) -> bool:
        """Whether the chain's answer depends on the tokens before (penalties, DRY)."""
        return not {"penalties", "dry"}.isdisjoint(self.active)

    @property
    def window(self) -> int:
        """How many of the last tokens penalties may touch; a negative value means all of them."""
        active = self.active
        lengths = [self.repeat_last_n] if "penalties" in active else []
        lengths += [self.dry_penalty_last_n] if "dry" in active else []
        return -1 if any(n < 0 for n in lengths) else max(lengths, default=0)


@dataclass(frozen=True)
class Loading:
    """How the models are loaded; llama.cpp's ``-c -cd -t -td -ngl -ngld``.

    n_ctx: the target's context in tokens, 0 for what the model was trained with; n_ctx_draft: the
    drafter's, None for as much as the target's and the drafter's training allow. threads: None for the
    physical cores. gpu_layers: None for llama.cpp's default, negative for all. chat_template: a name of
    llama.cpp's templates, or Jinja; None for the model's own. lora: adapters for the target, each with
    its scale.
    """

    n_ctx: int = 4096
    n_ctx_draft: int | None = None
    threads: int | None = None
    threads_draft: int | None = None
    gpu_layers: int | None = None
    gpu_layers_draft: int | None = None
    chat_template: str | None = None
    lora: tuple[tuple[Path, float], ...] = ()


@dataclass(frozen=True)
class Drafting:
    """Who drafts, how far, and which rule judges the draft.

    drafter: who drafts, or several in the order in which they are asked ("suffix,model"); None for the
    model when there is one, else suffix. draft_max: a fixed draft length; None adapts it to measured costs
    and acceptance. p_min: drafting stops where the drafter's likeliest token is less likely. lookup_corpus:
    texts beside the conversation in which suffix looks for repetitions. translate: a model with another
    vocabulary than the target's may draft, too; its text is tokenised anew. typical_threshold is used by
    ``accept="typical"`` alone, which is lossy.
    """

    drafter: str | None = None
    draft_max: int | None = None
    draft_min: int = 0
    p_min: float = 0.0
    translate: bool = False
    ngram_max: int = 3
    ngram_min: int = 1
    lookup_corpus: tuple[Path, ...] = ()
    accept: Literal["block", "token", "typical"] = "block"
    typical_threshold: float = 0.3

    def __post_init__(self) -> None:
        self._check_drafters()
        if self.longest < 1:
            raise UsageError(
                f"--draft-max must be at least 1, got {self.draft_max}; --drafter none never drafts"
            )
        if not 0 <= self.draft_min <= self.longest:
            raise UsageError(f"--draft-min must be 0 to --draft-max ({self.longest}), got {self.draft_min}")
        if not 0.0 <= self.p_min <= 1.0:
            raise UsageError(f"--draft-p-min is a probability, got {self.p_min:g}")
        if not 1 <= self.ngram_min <= self.ngram_max:
            raise UsageError(
                f"n-gram lengths must satisfy 1 <= min <= max, got {self.ngram_min} and {self.ngram_max}"
            )
        if not 0.0 < self.typical_threshold <= 1.0:
            raise UsageError(
                f"the typical threshold must be above 0 and at most 1, got {self.typical_threshold:g}"
            )

    def _check_drafters(self) -> None:
        kinds = self.kinds
        unknown = [kind for kind in kinds if kind not in DRAFTERS]
        if unknown:
            raise UsageError(f"--drafter {unknown[0]!r} is not known: use {', '.join(DRAFTERS)}")
        if len(set(kinds)) < len(kinds) or ("none" in kinds and len(kinds) > 1):
            raise UsageError(f"--drafter {self.drafter}: name each drafter once, and none alone")
        if "model" in kinds[:-1]:
            raise UsageError(
                f"--drafter {self.drafter}: the model comes last, after those that cost nothing to ask"
            )
        if self.lookup_corpus and kinds and "suffix" not in kinds:
            raise UsageError(f"--lookup-corpus is for the suffix drafter, not for --drafter {self.drafter}")

    @property
    def kinds(self) -> tuple[str, ...]:
        """The drafters that were asked for, in order; empty for the default."""
        return tuple(self.drafter.split(",")) if self.drafter is not None else ()

    @property
    def wants_model(self) -> bool:
        """Whether a model drafts when there is one."""
        return not self.kinds or "model" in self.kinds

    @property
    def longest(self) -> int:
        """The longest draft there may be."""
        return LONGEST_DRAFT if self.draft_max is None else self.draft_max
