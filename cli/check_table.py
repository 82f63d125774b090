"""What a check has found, as text for 60 columns."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

from specdec.catalogue import Candidate, Ranking
from specdec.fit import Part
from specdec.model_facts import ModelFacts
from specdec.pair import Pair
from specdec.room import amount

from .plain import cut, encodable, neutral

WIDTH = 60
LABEL = 13  # columns of what a row is about
CELL = 22  # of the target's figure; the drafter's has the rest


def pair_as_text(pair: Pair, target: Path, draft: Path | None) -> str:
    """A row for each fact, the drafter's beside the target's; then what to know and do."""
    lines = [_row("", "target", "" if pair.draft is None else "drafter")]
    lines += [_row("file", target.name, "" if draft is None else draft.name)]
    facts = [pair.target] if pair.draft is None else [pair.target, pair.draft]
    lines += [_row(label, *cells) for label, *cells in _facts(facts)]
    parts = [part for part in (pair.need.target, pair.need.draft) if part is not None]
    lines += [_row(label, *cells) for label, *cells in _memory(parts)]
    lines += [_row("rollback", *pair.rollback), ""]
    lines += _together(pair)
    for finding in pair.findings:
        mark = "cannot: " if finding.refusal else "note: "
        lines += ["", *wrapped(f"{mark}{finding.what}"), *wrapped(finding.means, "  ")]
        lines += wrapped(f"do: {finding.do}", "  ")
    return finished(lines)


def _row(label: str, *cells: str) -> str:
    """Labels and figures; what is too long for its column is cut."""
    if len(cells) < 2 or not cells[1]:
        return label.ljust(LABEL) + cut(cells[0], WIDTH - LABEL)
    first, second = cut(cells[0], CELL), cut(cells[1], WIDTH - LABEL - CELL - 2)
    return label.ljust(LABEL) + first.ljust(CELL + 2) + second


def _facts(facts: list[ModelFacts]) -> Iterator[tuple[str, ...]]:
    yield "architecture", *(f.architecture for f in facts)
    yield "parameters", *(_parameters(f) for f in facts)
    yield "weights", *(f"{amount(f.shape.weights)} {f.quantisation}" for f in facts)
    yield "vocabulary", *(f"{f.vocab_size:,} {f.tokenizer}" for f in facts)
    yield "trained for", *(f"{f.context:,} tokens" if f.context else "not said" for f in facts)
    same = len(facts) == 2 and facts[0].template == facts[1].template
    templates = ["none" if f.template is None else "yes" for f in facts]
    if len(facts) == 2 and facts[1].template is not None:
        templates[1] = "the same" if same else "another"
    yield "template", *templates


def _parameters(facts: ModelFacts) -> str:
    text = _count(facts.parameters)
    return f"{text}, {_count(facts.active)} active" if facts.experts else text


def _count(n: float) -> str:
    return f"{n / 1e9:.1f} B" if n >= 1e9 else f"{n / 1e6:.0f} M" if n >= 1e6 else f"{n / 1e3:.0f} k"


def _memory(parts: list[Part]) -> Iterator[tuple[str, ...]]:
    yield "context", *(f"{p.n_ctx:,} tokens" for p in parts)
    least = ["≥ " if p.footprint.at_least else "" for p in parts]
    yield "cache", *(f"{a}{amount(p.footprint.cells)}" for a, p in zip(least, parts, strict=True))
    if any(p.footprint.state for p in parts):
        states = [amount(p.footprint.state) if p.footprint.state else "none" for p in parts]
        yield "state", *(f"{a}{state}" for a, state in zip(least, states, strict=True))
    yield "buffers", *(f"about {amount(p.footprint.buffers)}" for p in parts)


def _together(pair: Pair) -> Iterator[str]:
    need, room = pair.need, pair.room
    yield _row("memory", f"{amount(need.working + need.weights)} needed, {amount(room.available)} available")
    for device in pair.devices:
        yield _row("", f"{device.name}: {amount(device.free)} free")
    if pair.devices:
        yield _row("", f"{amount(need.on_devices)} needed on devices")
    if pair.vocabularies is not None:
        shared = pair.vocabularies.shared
        yield _row("vocabularies", "not the same" if shared is None else f"the same, {shared:,} tokens")
    guess = pair.prediction
    if guess is not None:
        yield _row("draft cost", f"{guess.cost:.2f} of a target pass, by bytes read")
        if guess.pays:
            yield _row("speed-up", f"about {guess.speedup:.1f}×, predicted from sizes alone")
            yield _row("", f"(as if {guess.acceptance:.0%} of drafted tokens were accepted)")
        else:
            yield _row("speed-up", "none, predicted from sizes alone")
    if pair.draft is not None or pair.verdict != "right":
        yield _row("verdict", pair.verdict)


def ranking_as_text(target: Path, folder: Path, ranking: Ranking) -> str:
    """The candidates from the best down, those with another vocabulary, and the files that are none."""
    fits = [c for c in ranking.candidates if not c.foreign]
    foreign = [c for c in ranking.candidates if c.foreign]
    lines = wrapped(f"Drafters for {target.name}")
    if fits:
        lines += ["", f"{'speed-up':>8}  {'cost':>5}  {'size':>8}  file", *map(_candidate, fits), ""]
        lines += wrapped(
            "Predicted from sizes alone: no model has run. cost: of a target pass, by bytes read."
        )
    else:
        lines += ["", *wrapped(f"No file in {folder} has the target's vocabulary.")]
    if foreign:
        title = "With another vocabulary, for --draft-translate alone:"
        lines += ["", title, *map(_candidate, foreign)]
    if ranking.unsuitable:
        lines += ["", "Not looked at:"]
        for file in ranking.unsuitable:
            lines += [f"  {cut(file.path.name, WIDTH - 2)}", *wrapped(file.reason, "    ")]
    return finished(lines)


def _candidate(candidate: Candidate) -> str:
    guess = candidate.prediction
    gain = f"{guess.speedup:.1f}×" if guess.pays else "none"
    size = amount(candidate.facts.size)
    return f"{gain:>8}  {guess.cost:>5.2f}  {size:>8}  {cut(candidate.path.name, WIDTH - 27)}"


def finished(lines: list[str]) -> str:
    """Names and keys come from files, which may hold anything."""
    return encodable(neutral("".join(f"{line.rstrip()}\n" for line in lines)), sys.stdout)


def wrapped(text: str, indent: str = "") -> list[str]:
    """The lines of a sentence."""
    return textwrap.wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent)
