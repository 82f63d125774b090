"""``specdec check --run``: the pair is loaded, measured on prompts, and audited."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.audit import GreedyAudit, SampledAudit
from specdec.checkup import PROBED, Checkup, Visit, checkup
from specdec.prompts import PROMPTS
from specdec.settings import LONGEST_DRAFT, Drafting, Loading

from .check_table import finished, wrapped

if TYPE_CHECKING:
    from .check import CheckOptions
    from .view import View

CLEARLY = 1.05  # a fixed length that promises less more than adapting its lengths is not worth a flag
KINDS = 5  # prompts: one of each kind


@dataclass(frozen=True)
class Measured:
    """A checkup, and what it means for the user. threads: the target's."""

    found: Checkup
    threads: int

    @property
    def speedup(self) -> float:
        """As the pair is set up, over plain decoding: the median over the prompts."""
        return statistics.median(visit.speedup for visit in self.found.visits)

    @property
    def _borne_out(self) -> float:
        """How much of its forecast the length that was tried has reached: short texts, a slower machine."""
        rates = [
            v.probed.stats.tokens_per_second / v.plain.stats.tokens_per_second for v in self.found.visits
        ]
        return statistics.median(rates) / self.found.forecast.by_length[PROBED]

    @property
    def recommended(self) -> str:
        """What to do about the draft length."""
        forecast, own = self.found.forecast, self.speedup
        best = forecast.best
        promised = forecast.by_length[best] * self._borne_out if best else 1.0
        if best == 0 and own < 1.0:
            return "decode plainly (--drafter none), or try another drafter: no draft length pays here"
        if promised > CLEARLY * own:
            return f"--draft-max {best}, which promises {promised:.2f}×; adapted lengths measured {own:.2f}×"
        return f"leave the draft length to the schedule, which measured {own:.2f}×"

    def as_dict(self) -> dict[str, object]:
        """For ``--json``."""
        found = self.found
        return {
            "threads": self.threads,
            "pass_seconds_by_rows": dict(zip(found.curve.rows, map(_short, found.curve.costs), strict=True)),
            "drafter_seconds": _short(found.drafter_seconds),
            "prompts": [_visit_as_dict(visit) for visit in found.visits],
            "speedup": round(self.speedup, 3),
            "predicted_speedup_by_length": {k: round(s, 3) for k, s in found.forecast.by_length.items()},
            "recommended_length": found.forecast.best,
            "recommended": self.recommended,
            "audit": {
                "passed": found.passed,
                "greedy": _greedy_as_dict(found.greedy),
                "sampled": _sampled_as_dict(found.sampled),
            },
        }


def measure(
    files: tuple[Path, Path | None], loading: Loading, drafting: Drafting, asked: CheckOptions
) -> Measured:
    """Loads the pair and examines it, with a bar on stderr. Raises what loading and decoding raise."""
    from .interrupts import interruptible
    from .locate import loaded
    from .log import log_shown
    from .view import View

    with (
        interruptible() as signals,
        View(color=False, quiet=asked.quiet) as view,
        log_shown(view, asked.verbose),
        loaded(files, loading, drafting, view, signals.abort, longest_draft=LONGEST_DRAFT) as engine,
    ):
        with Steps(view) as steps:
            found = checkup(engine, PROMPTS[:KINDS], asked.tokens, asked.seed, steps.show)
        return Measured(found, engine.target.threads)


class Steps(ExitStack):
    """One bar after another, each for what is being done."""

    def __init__(self, view: View) -> None:
        super().__init__()
        self._view = view
        self._what = ""
        self._report: Callable[[float], None] = lambda _share: None

    def show(self, what: str, share: float) -> None:
        if what != self._what:
            self.close()
            self._report = self.enter_context(self._view.loading(what))
            self._what = what
        self._report(share)


def as_text(measured: Measured) -> str:
    """Costs, acceptance by kind of prompt, the forecast, and the audit's verdict."""
    found = measured.found
    lines = ["", f"Measured with {measured.threads} thread{'' if measured.threads == 1 else 's'}", ""]
    lines += [*_costs(found), "", *_kinds(found), "", *_forecast(found)]
    lines += ["", *wrapped(f"recommended: {measured.recommended}"), ""]
    lines += [f"lossless: {'yes, as far as this can tell' if found.passed else 'NO'}"]
    lines += [*wrapped(_greedy(found.greedy), "  "), *wrapped(_sampled(found.sampled), "  ")]
    return finished(lines)


def _costs(found: Checkup) -> Iterator[str]:
    curve = found.curve
    rows = [n for n in curve.rows if n > 1]
    yield f"target pass over 1 token: {curve(1) * 1000:.1f} ms"
    yield f"  over {', '.join(map(str, rows))}: {', '.join(f'{curve(n) / curve(1):.1f}×' for n in rows)}"
    if found.drafter_seconds:
        yield f"drafter: {found.drafter_seconds * 1000:.1f} ms a drafted token"


def _kinds(found: Checkup) -> Iterator[str]:
    yield f"{'':14}{'accepted':>10}{'tok/round':>11}{'speed-up':>10}"
    for visit in found.visits:
        probed, own = visit.probed.stats, visit.own.stats
        accepted = f"{probed.acceptance_rate:.0%}" if probed.drafted else ""
        yield f"{visit.kind:14}{accepted:>10}{own.mean_accepted_length:>11.2f}{visit.speedup:>9.2f}×"
    yield from wrapped(f"accepted: of drafts of {PROBED} tokens; the others: as set up, greedy")


def _forecast(found: Checkup) -> Iterator[str]:
    by_length = found.forecast.by_length
    yield "fixed length" + "".join(f"{k:>6}" for k in by_length)
    yield "predicted   " + "".join(f"{s:>6.2f}" for s in by_length.values())


def _greedy(audit: GreedyAudit) -> str:
    compared = f"greedy: {audit.runs} runs against plain decoding, {audit.tokens} tokens equal"
    if not audit.partings:
        return f"{compared}, no difference"
    widest = max(parted.gap for parted in audit.partings)
    where = f"{compared}; {len(audit.partings)} part, with logits up to {widest:.3g} apart"
    limit = f"batches and single passes differ by up to {audit.difference:.3g} on this machine"
    if audit.passed:
        return f"{where}: near ties ({limit}, and twice that is allowed)"
    return f"{where}: more than rounding explains ({limit})"


def _sampled(audit: SampledAudit) -> str:
    distance, deviation = audit.p_values
    tests = f"p = {distance:.2g} (Kolmogorov-Smirnov), {deviation:.2g} (log-probability)"
    if audit.passed:
        return f"sampled: {audit.tokens} tokens are distributed as the target would draw them; {tests}"
    return f"sampled: {audit.tokens} tokens are not distributed as the target would draw them; {tests}"


def _visit_as_dict(visit: Visit) -> Mapping[str, object]:
    probed = visit.probed.stats
    return {
        "kind": visit.kind,
        "acceptance_rate": round(probed.acceptance_rate, 4) if probed.drafted else None,
        "mean_accepted_length": round(visit.own.stats.mean_accepted_length, 3),
        "plain_tokens_per_second": round(visit.plain.stats.tokens_per_second, 2),
        "tokens_per_second": round(visit.own.stats.tokens_per_second, 2),
        "speedup": round(visit.speedup, 3),
    }


def _greedy_as_dict(audit: GreedyAudit) -> Mapping[str, object]:
    return {
        "passed": audit.passed, "runs": audit.runs, "tokens": audit.tokens,
        "rounding": audit.difference, "bound": audit.bound,
        "partings": [
            {"position": p.position, "plain": p.plain, "drafted": p.other, "gap": p.gap}
            for p in audit.partings
        ],
    }  # fmt: skip


def _sampled_as_dict(audit: SampledAudit) -> Mapping[str, object]:
    distance, deviation = audit.p_values
    return {
        "passed": audit.passed, "tokens": audit.tokens, "distance": round(audit.distance, 5),
        "distance_p": distance, "deviation": round(audit.deviation, 4), "deviation_p": deviation,
    }  # fmt: skip


def _short(seconds: float) -> float:
    return float(f"{seconds:.4g}")
