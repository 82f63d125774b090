"""Is this pair right? What two headers tell of it, each finding with what it means and what to do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from . import rollback, vocab
from .architectures import KEEPS_STATES, has_state
from .fit import Fit, Need, fit, need
from .gguf_file import GGUFFile
from .model_facts import ModelFacts
from .prediction import Prediction, predict
from .rollback import MOST_SNAPSHOTS
from .room import Device, Room
from .settings import Drafting, Loading

Verdict = Literal["right", "right, but", "cannot"]


@dataclass(frozen=True)
class Vocabularies:
    """Whether ids mean the same to both. shared: how many do; None where they do not, and reason says why,
    means what would come of it. warnings: what else differs, and what comes of that."""

    shared: int | None
    reason: str | None = None
    means: str | None = None
    warnings: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_dict(cls, known: Mapping[str, Any]) -> Vocabularies:
        """Raises TypeError, ValueError or KeyError for what ``asdict`` did not make."""
        warnings = tuple((str(what), str(means)) for what, means in known["warnings"])
        return cls(known["shared"], known["reason"], known["means"], warnings)


def compared(target: GGUFFile, draft: GGUFFile) -> Vocabularies:
    """What ``vocab.judge`` found, in short. Raises UsageError where there is no vocabulary."""
    judged = vocab.judge(target, draft)
    warnings = tuple((found.what, found.means) for found in judged.warnings)
    for found in judged.findings:
        if found.effect == "refused":
            return Vocabularies(None, found.what, found.means, warnings)
    return Vocabularies(judged.shared, warnings=warnings)


@dataclass(frozen=True)
class Finding:
    """Something to know of a pair. refusal: whether the pair cannot work because of it."""

    what: str
    means: str
    do: str
    refusal: bool = False


@dataclass(frozen=True)
class Pair:
    """What is known of a target, and of a drafter for it, before they are loaded.

    vocabularies, prediction: None without a drafter; prediction also where it cannot draft.
    """

    target: ModelFacts
    draft: ModelFacts | None
    vocabularies: Vocabularies | None
    prediction: Prediction | None
    need: Need
    room: Room
    devices: tuple[Device, ...]
    longest_draft: int
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> Verdict:
        if any(f.refusal for f in self.findings):
            return "cannot"
        return "right, but" if self.findings else "right"

    @property
    def rollback(self) -> tuple[str, ...]:
        """The names of the strategies that the target and the drafter will take tokens back with."""
        ours = strategy(self.target.architecture, self.longest_draft)
        return (ours,) if self.draft is None else (ours, strategy(self.draft.architecture, 0))

    def as_dict(self, target: Path, draft: Path | None) -> dict[str, object]:
        """Plain values, for JSON, with the files they are from; bytes and tokens are whole numbers."""
        models = [("target", self.target, self.need.target), ("draft", self.draft, self.need.draft)]
        files = {"target": target, "draft": draft}
        described: dict[str, object] = {}
        for (role, facts, part), how in zip(models, (*self.rollback, None), strict=False):
            described[role] = (
                None if facts is None or part is None else {
                    "path": str(files[role]),
                    **facts.as_dict(),
                    "n_ctx": part.n_ctx,
                    "memory": {**asdict(part.footprint), "on_device": round(part.on_device, 3)},
                    "rollback": how,
                }
            )  # fmt: skip
        return {
            "verdict": self.verdict,
            **described,
            "vocabulary": None if self.vocabularies is None else asdict(self.vocabularies),
            "prediction": None if self.prediction is None else asdict(self.prediction),
            "memory": {
                "working": self.need.working,
                "weights": self.need.weights,
                "on_devices": self.need.on_devices,
                "available": self.room.available,
                "total": self.room.total,
                "limited": self.room.limited,
                "devices": [asdict(d) for d in self.devices],
            },
            "findings": [asdict(f) for f in self.findings],
        }


def judge(
    target: GGUFFile,
    draft: GGUFFile | None,
    room: Room,
    devices: tuple[Device, ...] = (),
    *,
    loading: Loading = Loading(),
    drafting: Drafting = Drafting(),
) -> Pair:
    """Raises UsageError for a file that is no text-generation model."""
    for file in (target, draft):
        if file is not None:
            file.require_text_generation()
    facts = ModelFacts.of(target)
    drafts = None if draft is None else ModelFacts.of(draft)
    words = None if draft is None else compared(target, draft)
    foreign = words is not None and words.shared is None
    shapes = facts.shape, None if drafts is None else drafts.shape
    asked = need(*shapes, loading, drafting, gpu=bool(devices))
    found = fit(*shapes, loading, drafting, room, devices)
    prediction = None
    if drafts is not None and (drafting.translate or not foreign):
        prediction = predict(facts, drafts, translated=foreign)
    return Pair(
        target=facts,
        draft=drafts,
        vocabularies=words,
        prediction=prediction,
        need=asked,
        room=room,
        devices=devices,
        longest_draft=drafting.longest,
        findings=(
            *_of_vocabularies(words, translated=drafting.translate),
            *_findings(facts, drafts, prediction, asked, found),
        ),
    )


def strategy(architecture: str, longest_draft: int) -> str:
    """How a context of that architecture should take tokens back: the name of the strategy tried first.

    longest_draft: what a target's context is made for; 0 for a drafter's.
    """
    kept = min(longest_draft, MOST_SNAPSHOTS) if architecture in KEEPS_STATES else 0
    return rollback.expected(recurrent=has_state(architecture), n_snapshots=kept).name


def _of_vocabularies(words: Vocabularies | None, *, translated: bool) -> Iterator[Finding]:
    if words is None:
        return
    if words.reason is not None and translated:
        means = (
            "its text is translated: it drafts greedily, and fewer drafts are accepted; the output is exact"
        )
        yield Finding(
            f"vocabulary: {words.reason}", means, "use a drafter of the target's family if there is one"
        )
    elif words.reason is not None:
        yield Finding(f"vocabulary: {words.reason}", words.means or "", vocab.WAY_OUT, refusal=True)
    for what, means in words.warnings:
        yield Finding(f"vocabulary: {what}", means, "nothing, unless few drafts are accepted")


def _findings(
    target: ModelFacts, draft: ModelFacts | None, prediction: Prediction | None, asked: Need, fits: Fit
) -> list[Finding]:
    found = []
    if fits.refusal is not None:
        what, _, do = fits.refusal.rpartition("; ")
        found.append(Finding(what, "loading would end the process", do, refusal=True))
    if fits.warning is not None:
        what, _, do = fits.warning.rpartition("; ")
        found.append(Finding(what, "it will run, but slowly", do))
    if prediction is not None and not prediction.pays:
        found.append(
            Finding(
                f"a drafted token costs {prediction.cost:.2f} of a target pass",
                "by their sizes no draft pays, and decoding is as fast without",
                "use a smaller drafter, or a smaller quantisation of it",
            )
        )
    if draft is not None and asked.draft is not None and asked.draft.n_ctx < asked.target.n_ctx:
        found.append(
            Finding(
                f"the drafter's context is {asked.draft.n_ctx:,} tokens, the target's {asked.target.n_ctx:,}",
                "from there on nothing is drafted, and decoding is plain",
                f"nothing for shorter texts; else a drafter for longer ones, or -c {asked.draft.n_ctx}",
            )
        )
    if 0 < target.context < asked.target.n_ctx:
        found.append(
            Finding(
                f"the target was trained for {target.context:,} tokens, and -c is {asked.target.n_ctx:,}",
                "past what it was trained for its text may fall apart",
                f"-c {target.context}, or -c 0 for what it was trained for",
            )
        )
    if target.template is None:
        found.append(
            Finding(
                "the target has no chat template",
                "prompts are continued as they stand, and chat has none to use",
                "--raw for prompts, or --chat-template for one by name",
            )
        )
    return found
