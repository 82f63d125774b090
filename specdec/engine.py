"""A target and a drafter, loaded and checked against each other, ready to make Decoders."""

from __future__ import annotations

import functools
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from specdec.settings import Drafting, Loading, SamplingParams

from . import vocab
from .acceptance import BlockVerification, Rule, TokenRejection, Typical
from .adaptive import AdaptiveSchedule
from .backend import Abort, ChatTemplate, Context, Message, Model, llama
from .corpus import index
from .decoder import Decoder
from .distribution import Rng
from .drafters import (
    CascadeDrafter,
    Drafter,
    LookupDrafter,
    ModelDrafter,
    NoDrafter,
    SuffixDrafter,
    TranslatedDrafter,
)
from .errors import UsageError
from .experience import Experience, place
from .fit import fit
from .footprint import Shape
from .gguf_file import GGUFFile
from .grammar import Grammar
from .kernels import SuffixAutomaton
from .registry import cache_dir
from .room import room
from .sampling import Sampler
from .schedule import FixedSchedule, Schedule
from .tokens import Tokens

LOG = logging.getLogger("specdec")
REPEATABLE_DRAFT = 4  # tokens: of a seeded run, where the clock may not decide
STREAMS = ("sampler", "drafter", "rule")

LoadProgress = Callable[[float], None]


class Engine:
    """Owns the loaded models and their contexts; a context manager that frees them.

    target, draft: paths of GGUF files; draft may be None. longest_draft: how long drafts may become with
    :meth:`redraft`, at least what ``drafting`` asks for. progress: called with the share of all bytes
    that is loaded, 0 to 1. abort: stops loading and generating, which raise AbortedError. Raises UsageError,
    before anything is loaded, for a file that is missing, broken or generates no text, for a drafter
    whose vocabulary means something else, unless ``drafting`` lets it be translated, and for a context that
    is larger than all memory; of one that will be slow the log warns.
    """

    def __init__(
        self,
        target: Path | str,
        draft: Path | str | None = None,
        *,
        loading: Loading = Loading(),
        drafting: Drafting = Drafting(),
        longest_draft: int = 0,
        progress: LoadProgress | None = None,
        abort: Abort | None = None,
    ) -> None:
        began = time.perf_counter()
        target, draft = Path(target), _drafts(drafting, None if draft is None else Path(draft))
        headers = _headers(target, draft)
        comparison = _compared(*headers)
        _permit(comparison, drafting)
        _check_memory(*headers, loading, drafting, longest_draft)
        for path, _ in loading.lora:
            if not path.is_file():
                raise UsageError(f"{path}: there is no such LoRA adapter")
        report = progress or (lambda _share: None)
        weight = _share_of(target, draft)
        self.abort = abort or Abort()
        self.loading = loading
        self.drafting = drafting
        self._loaded: Context | None = None
        self._comparison: vocab.Comparison | None = None  # of the drafter that is loaded
        self.experience: Experience | None = None
        model = Model(
            target, gpu_layers=loading.gpu_layers, progress=lambda s: report(s * weight), abort=self.abort
        )
        try:
            n_outputs = 1 + max(longest_draft, 0 if drafting.drafter == "none" else drafting.longest)
            self.target = Context(
                model,
                n_ctx=loading.n_ctx,
                n_outputs=n_outputs,
                threads=loading.threads,
                abort=self.abort,
                lora=loading.lora,
            )
            self._adopt(drafting, draft, comparison, progress=lambda s: report(weight + s * (1 - weight)))
        except BaseException:
            model.close()
            raise
        self.load_seconds = time.perf_counter() - began

    @property
    def draft(self) -> Context | None:
        """The drafter's context, None where no model drafts."""
        return self._loaded if self.drafting.wants_model else None

    @property
    def shared_vocab(self) -> int | None:
        """How many ids, from 0 on, target and drafter have in common; None where no drafter is loaded, or one
        whose ids mean other tokens."""
        if self._comparison is None or self._comparison.refusal is not None:
            return None
        return self._comparison.shared

    @property
    def kind(self) -> str:
        """Who drafts: the drafter that was asked for, else the model when there is one, else suffix."""
        return self.drafting.drafter or ("suffix" if self.draft is None else "model")

    def redraft(
        self, drafting: Drafting, draft: Path | str | None = None, *, progress: LoadProgress | None = None
    ) -> None:
        """Changes who drafts, and how; the target and what it has read stay as they are.

        draft: the drafter's GGUF; the one that is loaded stays, also while it does not draft, and any other
        takes its place.
        Decoders made before must not be used afterwards. Raises as the constructor does; then nothing
        has changed.
        """
        named = None if draft is None else Path(draft)
        wanted = _drafts(drafting, named)
        longest = self.target.n_outputs - 1
        if drafting.drafter != "none" and (drafting.draft_max or 0) > longest:
            raise UsageError(
                f"drafts of {drafting.draft_max} tokens are longer than the {longest} that this run was "
                "started for; start it with that --draft-max"
            )
        if self._loaded is not None and self._loaded.model.path == (wanted or named):
            comparison, wanted = self._comparison, self._loaded.model.path
        else:
            comparison = None if wanted is None else _compared(*_headers(self.target.model.path, wanted))
        if drafting.wants_model:
            _permit(comparison, drafting)
        self._adopt(drafting, wanted, comparison, progress)

    def _adopt(
        self,
        drafting: Drafting,
        draft: Path | None,
        comparison: vocab.Comparison | None,
        progress: LoadProgress | None,
    ) -> None:
        """Goes over to a drafter that was found to fit, loaded already or not, and frees the one before."""
        corpus = self._indexed(drafting)
        loaded = self._loaded
        stays = loaded is not None and loaded.model.path == draft
        if not stays:
            self._loaded = None if draft is None else self._load_draft(draft, progress)
            self._comparison = comparison
        if not stays or (drafting.translate and not self.drafting.translate):
            _warn(comparison, drafting)
        self.drafting, self._corpus = drafting, corpus
        if self.experience is not None:
            self.experience.keep()
        self.experience = self._recalled()
        if loaded is not None and not stays:
            loaded.model.close()

    def _load_draft(self, draft: Path, progress: LoadProgress | None) -> Context:
        loading = self.loading
        layers = loading.gpu_layers if loading.gpu_layers_draft is None else loading.gpu_layers_draft
        model = Model(draft, gpu_layers=layers, progress=progress, abort=self.abort)
        try:
            n_ctx = loading.n_ctx_draft
            if n_ctx is None:
                n_ctx = min(self.target.n_ctx, model.n_ctx_train or self.target.n_ctx)
            threads = loading.threads_draft or loading.threads
            context = Context(model, n_ctx=n_ctx, threads=threads, abort=self.abort)
            if loading.threads_draft is None:
                context.tune_threads()
            return context
        except BaseException:
            model.close()
            raise

    def decoder(self, sampling: SamplingParams = SamplingParams(), seed: int | None = None) -> Decoder:
        """A Decoder over this engine's contexts; they serve one Decoder at a time.

        seed: makes sampling repeatable; None draws one (``Decoder.seed`` tells it). The target's sampler, the
        drafter and the acceptance rule get independent streams of random numbers from it. Which of them are
        used, and how often, depends on the draft lengths; so where a seed is given and tokens are sampled,
        drafts are of a fixed length in place of one that follows the clock. Raises UsageError for sampling
        that this vocabulary cannot do, or a grammar that is none.
        """
        repeatable = seed is not None and sampling.temperature > 0.0
        seed = random.getrandbits(32) if seed is None else seed
        # Python's own generator: numpy's brings 7 MB of libraries for the few numbers a round needs.
        for_sampler, for_drafter, for_rule = (random.Random(f"{name} {seed}") for name in STREAMS)
        vocab, n_ctx = self.target.model.vocab, self.target.n_ctx
        grammar = Grammar(vocab, sampling.grammar) if sampling.grammar else None
        sampler = Sampler(vocab, sampling, for_sampler, n_ctx, grammar)
        drafter = self._drafter(sampling, for_drafter, grammar)
        schedule = self._schedule(repeatable=repeatable)
        return Decoder(self.target, drafter, sampler, schedule, self.rule, for_rule, seed=seed)

    def _schedule(self, *, repeatable: bool) -> Schedule:
        d = self.drafting
        if d.draft_max is not None or repeatable:
            return FixedSchedule(d.draft_max or max(REPEATABLE_DRAFT, d.draft_min), d.draft_min)
        longest = min(d.longest, self.target.n_outputs - 1)
        assert self.experience is not None
        return AdaptiveSchedule(self.experience, longest=longest, draft_min=d.draft_min)

    @property
    def rule(self) -> Rule:
        """The acceptance rule that was chosen."""
        rules: dict[str, Rule] = {
            "block": BlockVerification(),
            "token": TokenRejection(),
            "typical": Typical(self.drafting.typical_threshold),
        }
        return rules[self.drafting.accept]

    def _drafter(self, sampling: SamplingParams, rng: Rng, grammar: Grammar | None) -> Drafter:
        d = self.drafting
        drafters: list[Drafter] = []
        for kind in self.kind.split(","):
            if kind == "suffix":
                drafters.append(SuffixDrafter(self._corpus))
            elif kind == "lookup":
                drafters.append(LookupDrafter(ngram_max=d.ngram_max, ngram_min=d.ngram_min))
            elif self.draft is not None:
                drafters.append(self._model_drafter(self.draft, sampling, rng, grammar))
        if not drafters:
            return NoDrafter()
        return drafters[0] if len(drafters) == 1 else CascadeDrafter(drafters)

    def _model_drafter(
        self, context: Context, sampling: SamplingParams, rng: Rng, grammar: Grammar | None
    ) -> Drafter:
        d = self.drafting
        if self.shared_vocab is None:
            return TranslatedDrafter(
                context,
                self.target.model.vocab,
                draft_max=d.longest,
                p_min=d.p_min,
                ignore_eos=sampling.ignore_eos,
            )
        return ModelDrafter(
            context,
            sampling,
            rng,
            draft_max=d.longest,
            p_min=d.p_min,
            draft_min=d.draft_min,
            vocab_size=self.shared_vocab,
            grammar=grammar,
        )

    def _indexed(self, drafting: Drafting) -> SuffixAutomaton | None:
        """The texts beside the conversation, in which suffix looks for repetitions."""
        if not drafting.lookup_corpus:
            return None
        model = self.target.model
        name = vocab.fingerprint(GGUFFile.read(model.path))
        return index(drafting.lookup_corpus, model.vocab, name, cache_dir() / "corpus")

    def _recalled(self) -> Experience:
        """What earlier runs of this pair, run like this, have learnt."""
        contexts = [self.target] if self.draft is None else [self.target, self.draft]
        pair = [(c.model.path.name, c.model.size, c.threads) for c in contexts]
        layers = (self.loading.gpu_layers, self.loading.gpu_layers_draft)
        path = place(cache_dir(), pair, layers, self.loading.lora)
        name = TranslatedDrafter.name if self.shared_vocab is None else ModelDrafter.name
        drafters = {} if self.draft is None else {name: self.draft.pass_seconds}
        return Experience(self.target.pass_seconds, drafters, path)

    def tokenize(self, text: str) -> Tokens:
        """Token ids of a text to be continued as it stands; control tokens may be spelled out."""
        return self.target.model.vocab.tokenize(text, special=True)

    @property
    def has_template(self) -> bool:
        """Whether there is a chat template: one that was asked for, or the model's."""
        return self.loading.chat_template is not None or self.target.model.chat_template is not None

    @functools.cached_property
    def template(self) -> ChatTemplate:
        """The chat template: the one that was asked for, else the model's. Raises UsageError without one."""
        source = self.loading.chat_template
        return ChatTemplate(self.target.model, source, origin=None if source is None else "--chat-template")

    def question(self, text: str) -> str:
        """What a user asks, as the model reads it: in the chat template, where there is one."""
        return self.template.render([{"role": "user", "content": text}]) if self.has_template else text

    def tokenize_chat(self, messages: list[Message]) -> Tokens:
        """Token ids of a conversation in the chat template, ending where its answer begins."""
        return self.tokenize(self.template.render(messages))

    def close(self) -> None:
        """Frees contexts and models, and writes down what was learnt of them."""
        if self.experience is not None:
            self.experience.keep()
        if self._loaded is not None:
            self._loaded.model.close()
        self.target.model.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _drafts(drafting: Drafting, draft: Path | None) -> Path | None:
    """The drafter's file where a model is to draft."""
    if "model" in drafting.kinds and draft is None:
        raise UsageError(f"--drafter {drafting.drafter} needs a drafter GGUF: name one with --draft")
    return draft if drafting.wants_model else None


def _headers(target: Path, draft: Path | None) -> tuple[GGUFFile, GGUFFile | None]:
    """What the files say of themselves. Raises UsageError for those that generate no text."""
    files = GGUFFile.read(target), None if draft is None else GGUFFile.read(draft)
    for file in files:
        if file is not None:
            file.require_text_generation()
    return files


def _compared(target: GGUFFile, draft: GGUFFile | None) -> vocab.Comparison | None:
    """How the vocabularies of a pair compare."""
    return None if draft is None else vocab.judge(target, draft)


def _permit(comparison: vocab.Comparison | None, drafting: Drafting) -> None:
    """Raises VocabMismatchError for a drafter that would have to be translated, and may not be."""
    if comparison is not None and comparison.refusal is not None and not drafting.translate:
        raise comparison.refusal


def _warn(comparison: vocab.Comparison | None, drafting: Drafting) -> None:
    if comparison is None:
        return
    if drafting.translate and comparison.refusal is None:
        LOG.warning("--draft-translate: target and drafter have one vocabulary, so nothing is translated")
    for found in comparison.warnings:
        LOG.warning("the drafter's vocabulary: %s; %s", found.what, found.means)


def _check_memory(
    target: GGUFFile, draft: GGUFFile | None, loading: Loading, drafting: Drafting, longest_draft: int
) -> None:
    """Refuses a context that can never be held, and warns of one that will be slow."""
    shapes = Shape.of(target), None if draft is None else Shape.of(draft)
    devices = () if loading.gpu_layers == 0 else llama.devices()
    found = fit(*shapes, loading, drafting, room(), devices, longest_draft=longest_draft)
    if found.refusal is not None:
        raise UsageError(f"{target.path}: {found.refusal}")
    if found.warning is not None:
        LOG.warning(found.warning)


def _share_of(target: Path, draft: Path | None) -> float:
    size = target.stat().st_size
    return size / (size + (draft.stat().st_size if draft else 0))
