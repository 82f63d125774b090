"""A target and a drafter, loaded and checked against each other, ready to make Decoders."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from specdec.settings import Drafting, Loading, SamplingParams

from . import vocab
from .acceptance import BlockVerification, Rule, TokenRejection, Typical
from .backend import Abort, Context, Message, Model, render_chat
from .decoder import Decoder
from .distribution import Rng
from .drafters import Drafter, LookupDrafter, ModelDrafter, NoDrafter
from .errors import UsageError
from .gguf_file import GGUFFile
from .sampling import Sampler
from .schedule import FixedSchedule
from .tokens import Tokens

STREAMS = ("sampler", "drafter", "rule")

LoadProgress = Callable[[float], None]


class Engine:
    """Owns the loaded models and their contexts; a context manager that frees them.

    target, draft: paths of GGUF files; draft may be None. progress: called with the share of all bytes
    that is loaded, 0 to 1. abort: stops loading and generating, which raise AbortedError. Raises UsageError,
    before anything is loaded, for a file that is missing, broken or generates no text, and for a drafter
    whose vocabulary means something else.
    """

    def __init__(
        self,
        target: Path | str,
        draft: Path | str | None = None,
        *,
        loading: Loading = Loading(),
        drafting: Drafting = Drafting(),
        progress: LoadProgress | None = None,
        abort: Abort | None = None,
    ) -> None:
        began = time.perf_counter()
        target, draft = Path(target), None if draft is None else Path(draft)
        self.drafting = drafting
        self.kind = drafting.drafter or ("model" if draft else "lookup")
        if self.kind == "model" and draft is None:
            raise UsageError("--drafter model needs a drafter GGUF: name one with --draft")
        self.shared_vocab = _checked(target, draft if self.kind == "model" else None)
        report = progress or (lambda _share: None)
        weight = _share_of(target, draft) if self.kind == "model" else 1.0
        self.abort = abort or Abort()
        self.draft: Context | None = None
        model = Model(
            target, gpu_layers=loading.gpu_layers, progress=lambda s: report(s * weight), abort=self.abort
        )
        self._models = [model]
        try:
            n_outputs = 1 if self.kind == "none" else drafting.draft_max + 1
            self.target = Context(
                model, n_ctx=loading.n_ctx, n_outputs=n_outputs, threads=loading.threads, abort=self.abort
            )
            if self.kind == "model" and draft is not None:
                self.draft = self._load_draft(draft, loading, lambda s: report(weight + s * (1 - weight)))
        except BaseException:
            self.close()
            raise
        self.load_seconds = time.perf_counter() - began

    def _load_draft(self, draft: Path, loading: Loading, report: LoadProgress) -> Context:
        layers = loading.gpu_layers if loading.gpu_layers_draft is None else loading.gpu_layers_draft
        model = Model(draft, gpu_layers=layers, progress=report, abort=self.abort)
        self._models.append(model)
        n_ctx = loading.n_ctx_draft
        if n_ctx is None:
            n_ctx = min(self.target.n_ctx, model.n_ctx_train or self.target.n_ctx)
        threads = loading.threads_draft or loading.threads
        return Context(model, n_ctx=n_ctx, threads=threads, abort=self.abort)

    def decoder(self, sampling: SamplingParams = SamplingParams(), seed: int | None = None) -> Decoder:
        """A Decoder over this engine's contexts; they serve one Decoder at a time.

        seed: makes sampling repeatable; None draws one. The target's sampler, the drafter and the
        acceptance rule get independent streams of random numbers from it.
        """
        seed = random.getrandbits(32) if seed is None else seed
        # Python's own generator: numpy's brings 7 MB of libraries for the few numbers a round needs.
        for_sampler, for_drafter, for_rule = (random.Random(f"{name} {seed}") for name in STREAMS)
        sampler = Sampler(self.target.model.vocab, sampling, for_sampler, self.target.n_ctx)
        drafter = self._drafter(sampling, for_drafter)
        schedule = FixedSchedule(self.drafting.draft_max, self.drafting.draft_min)
        return Decoder(self.target, drafter, sampler, schedule, self.rule, for_rule)

    @property
    def rule(self) -> Rule:
        """The acceptance rule that was chosen."""
        rules: dict[str, Rule] = {
            "block": BlockVerification(),
            "token": TokenRejection(),
            "typical": Typical(self.drafting.typical_threshold),
        }
        return rules[self.drafting.accept]

    def _drafter(self, sampling: SamplingParams, rng: Rng) -> Drafter:
        d = self.drafting
        if self.kind == "none":
            return NoDrafter()
        if self.kind == "lookup":
            return LookupDrafter(ngram_max=d.ngram_max, ngram_min=d.ngram_min)
        assert self.draft is not None
        return ModelDrafter(
            self.draft, sampling, rng, draft_max=d.draft_max, p_min=d.p_min, vocab_size=self.shared_vocab
        )

    def tokenize(self, text: str) -> Tokens:
        """Token ids of a text to be continued as it stands; control tokens may be spelled out."""
        return self.target.model.vocab.tokenize(text, special=True)

    def tokenize_chat(self, messages: list[Message]) -> Tokens:
        """Token ids of a conversation in the model's chat template, ending where its answer begins."""
        return self.tokenize(render_chat(self.target.model, messages))

    def close(self) -> None:
        """Frees contexts and models."""
        for model in reversed(self._models):
            model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _checked(target: Path, draft: Path | None) -> int | None:
    """Reads the headers, refuses what cannot work; the number of ids both vocabularies share."""
    target_file = GGUFFile.read(target)
    target_file.require_text_generation()
    if draft is None:
        return None
    draft_file = GGUFFile.read(draft)
    draft_file.require_text_generation()
    return vocab.compare(target_file, draft_file)


def _share_of(target: Path, draft: Path | None) -> float:
    size = target.stat().st_size
    return size / (size + (draft.stat().st_size if draft else 0))
