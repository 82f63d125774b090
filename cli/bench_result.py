"""What a benchmark found: ratios over prompts, what passes cost, and how far from the limit it all is."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import NamedTuple

from specdec.forecast import forecast
from specdec.limit import Curve, perfect_rate
from specdec.settings import LONGEST_DRAFT

from .bench_peer import Rival
from .bench_plan import ADAPTIVE, Configuration
from .bench_timed import Details, Timed, Trial

BEST_FIXED, FORECAST, LIMIT = "best-fixed", "forecast", "limit"  # what a ratio may be to, besides a name
RESAMPLED = 2000


@dataclass(frozen=True)
class Spread:
    """A figure over the prompts."""

    median: float
    least: float
    most: float
    n: int


class Row(NamedTuple):
    """A configuration or rival, over all trials; None for what is not known of it.

    rate: the median of its tokens per second. ratio: to plain decoding, and by_kind its median for each kind
    of prompt. accepted: of the drafted tokens. length: tokens a round. inside: the share of the decoding time
    in llama_decode. same: on how many prompts of how many it wrote plain decoding's tokens (greedy only).
    of_limit: its speed, as a share of the limit's.
    """

    name: str
    rate: float
    ratio: Spread | None
    by_kind: dict[str, float]
    accepted: float | None
    length: float | None
    inside: float | None
    same: tuple[int, int] | None
    of_limit: float | None


class Observed(NamedTuple):
    """What ``specdec.limit`` and ``specdec.forecast`` compute from: of the rounds of a fixed length, how many
    tokens each accepted, and that length; seconds of the target's pass by rows, and of a drafted token."""

    accepted: list[int]
    length: int
    target: Callable[[int], float]
    drafter: float


class Interval(NamedTuple):
    """Tokens a round under block verification over those under token rejection, with its 95 % interval."""

    name: str
    ratio: float
    low: float
    high: float


class Result:
    """The trials so far, read. entrants: configurations and rivals, in the order of the tables."""

    def __init__(self, trials: Sequence[Trial], entrants: Sequence[Configuration | Rival]) -> None:
        self.trials = [trial for trial in trials if trial.runs]
        self.entrants = entrants
        self.configurations = [one for one in entrants if isinstance(one, Configuration)]
        self.rivals = [one for one in entrants if isinstance(one, Rival)]
        self.kinds = list(dict.fromkeys(trial.kind for trial in self.trials))
        self._limits: dict[tuple[int, tuple[str, str, float]], float | None] = {}

    def spread(self, name: str, other: str) -> Spread | None:
        """How many times as fast as the other it was, over the trials that have both; None where none has."""
        ratios = self._ratios(name, other, self.trials)
        return Spread(statistics.median(ratios), min(ratios), max(ratios), len(ratios)) if ratios else None

    @cached_property
    def rows(self) -> list[Row]:
        """One for each entrant that ran."""
        return [self._row(one) for one in self.entrants if self._runs(one.name)]

    def runs(self, name: str) -> list[Details]:
        """What is known of a configuration's runs."""
        return [timed.details for timed in self._runs(name) if timed.details]

    def best_fixed(self, one: Configuration) -> Configuration | None:
        """Of the fixed lengths of the same drafter and rule, the one with the best median ratio to plain."""
        found = [(spread.median, c) for c in self._fixed(one) if (spread := self.spread(c.name, c.base))]
        return max(found, key=lambda pair: pair[0])[1] if found else None

    def adaptive(self) -> list[Configuration]:
        """The configurations that choose their own lengths."""
        return [one for one in self.configurations if not one.plain and one.length is None]

    @cached_property
    def shape(self) -> Curve | None:
        """The target's pass by rows, one row being 1: the median over the trials; None before the first."""
        seen: dict[int, list[float]] = {}
        passes: dict[int, int] = {}
        for trial in self.trials:
            single = self._single(trial)
            for rows, seconds in _by_rows(trial).items() if single else ():
                seen.setdefault(rows, []).append(statistics.median(seconds) / single)
                passes[rows] = passes.get(rows, 0) + len(seconds)
        if 1 not in seen:
            return None
        return Curve({rows: (statistics.median(costs), passes[rows]) for rows, costs in seen.items()})

    @cached_property
    def single(self) -> float:
        """Seconds of the target's pass over one row, the median over the trials; 0 when unknown."""
        return _median([self._single(trial) for trial in self.trials]) or 0.0

    def drafter_seconds(self, one: Configuration) -> float:
        """Seconds of the drafter's passes for each drafted token; 0 where it has none."""
        runs = self.runs(one.name)
        drafted = sum(run.stats.drafted for run in runs)
        return sum(run.drafter_seconds for run in runs) / drafted if drafted else 0.0

    def limit(self, one: Configuration) -> float | None:
        """Tokens per second at the limit (``specdec.limit``): the median over the trials."""
        return _median([self._limit(trial, one) for trial in self.trials])

    def forecast(self, one: Configuration) -> float | None:
        """Tokens per second at the best single length for each prompt, as ``specdec.forecast`` computes it
        from what was measured on that prompt: the median over the trials."""
        return _median([self._forecast(trial, one) for trial in self.trials])

    def intervals(self) -> list[Interval]:
        """Block verification against token rejection, where both were run."""
        found = []
        for block in self.configurations:
            for token in self.configurations:
                alike = (block.drafter, block.length, block.temperature)
                pair = (block.rule, token.rule) == ("block", "token")
                if pair and alike == (token.drafter, token.length, token.temperature):
                    interval = self._interval(block.name, token.name)
                    found += [interval] if interval else []
        return found

    def _row(self, one: Configuration | Rival) -> Row:
        runs, known, compared = self._runs(one.name), self.runs(one.name), one.name != one.base
        drafted = sum(run.drafted for run in runs)
        by_kind = {kind: self._ratios(one.name, one.base, self._of(kind)) for kind in self.kinds}
        inside = sum(sum(run.passes) + run.drafter_seconds for run in known)
        rounds, seconds = (
            sum(run.stats.rounds for run in known),
            sum(run.stats.decoding_seconds for run in known),
        )
        of_limit = self.spread(one.name, LIMIT) if isinstance(one, Configuration) and not one.plain else None
        return Row(
            one.name,
            statistics.median(run.rate for run in runs),
            self.spread(one.name, one.base) if compared else None,
            {kind: statistics.median(ratios) for kind, ratios in by_kind.items() if compared and ratios},
            sum(run.accepted for run in runs) / drafted if drafted else None,
            sum(run.stats.emitted for run in known) / rounds if rounds and drafted else None,
            inside / seconds if seconds else None,
            self._same(one),
            of_limit.median if of_limit else None,
        )

    def _same(self, one: Configuration | Rival) -> tuple[int, int] | None:
        if one.temperature > 0.0 or one.name == one.base:
            return None
        pairs = [(a.tokens, b.tokens) for _, a, b in self._both(one.name, one.base) if a.tokens and b.tokens]
        more = 1 if isinstance(one, Rival) else 0  # llama.cpp's may have the token that ends the text, too
        same = sum(a[: len(b)] == b and len(a) <= len(b) + more for a, b in pairs)
        return (same, len(pairs)) if pairs else None

    def _runs(self, name: str) -> list[Timed]:
        return [trial.runs[name] for trial in self.trials if name in trial.runs]

    def _of(self, kind: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.kind == kind]

    def _both(self, name: str, other: str) -> list[tuple[Trial, Timed, Timed]]:
        return [(t, t.runs[name], t.runs[other]) for t in self.trials if name in t.runs and other in t.runs]

    def _ratios(self, name: str, other: str, trials: Sequence[Trial]) -> list[float]:
        rate = self._rate_of(name, other)
        pairs = [(t.runs[name].rate, rate(t)) for t in trials if name in t.runs]
        return [one / of for one, of in pairs if one and of]

    def _rate_of(self, name: str, other: str) -> Callable[[Trial], float | None]:
        """The other's tokens per second on a trial."""
        one = next((c for c in self.configurations if c.name == name), None)
        if other == LIMIT and one:
            return lambda trial: self._limit(trial, one)
        if other == FORECAST and one:
            return lambda trial: self._forecast(trial, one)
        if other == BEST_FIXED and one:
            best = self.best_fixed(one)
            other = best.name if best else other
        return lambda trial: trial.runs[other].rate if other in trial.runs else None

    def _fixed(self, one: Configuration) -> list[Configuration]:
        return [c for c in self.configurations if c.group == one.group and c.length and not c.plain]

    def _limit(self, trial: Trial, one: Configuration) -> float | None:
        key = trial.number, one.group
        if key not in self._limits:
            observed = self._observed(trial, one)
            self._limits[key] = perfect_rate(*observed) if observed else None
        return self._limits[key]

    def _forecast(self, trial: Trial, one: Configuration) -> float | None:
        observed = self._observed(trial, one)
        if observed is None:
            return None
        gains = forecast(*observed, range(1, LONGEST_DRAFT + 1)).by_length
        return max(1.0, *gains.values()) / observed.target(1)

    def _observed(self, trial: Trial, one: Configuration) -> Observed | None:
        """Of the longest fixed length that ran on the trial."""
        fixed = [c for c in self._fixed(one) if c.name in trial.runs]
        single = self._single(trial)
        shape = self.shape
        if not fixed or not single or shape is None:
            return None
        longest = max(fixed, key=lambda c: c.length or 0)
        timed, length = trial.runs[longest.name], longest.length or 0
        assert timed.details is not None
        rounds = timed.details.rounds
        if len(rounds) > 1 and rounds[-1][0] < length:  # cut short by the end of the budget
            rounds = rounds[:-1]
        drafter = timed.details.drafter_seconds / timed.drafted if timed.drafted else 0.0
        accepted = [kept for _, kept in rounds]
        return Observed(accepted, length, shape.times(single), drafter) if accepted else None

    def _single(self, trial: Trial) -> float:
        """Seconds of the target's pass over one row in plain decoding."""
        plain = [trial.runs[c.name].details for c in self.configurations if c.plain and c.name in trial.runs]
        passes = [seconds for details in plain if details for seconds in details.passes]
        return statistics.median(passes) if passes else 0.0

    def _interval(self, block: str, token: str) -> Interval | None:
        both = [
            (a.details.stats, b.details.stats)
            for _, a, b in self._both(block, token)
            if a.details and b.details
        ]
        pairs = [(a.emitted, a.rounds, b.emitted, b.rounds) for a, b in both if a.emitted and b.emitted]
        if not pairs:
            return None
        rng = random.Random(0)
        drawn = sorted(_tokens_a_round(rng.choices(pairs, k=len(pairs))) for _ in range(RESAMPLED))
        low, high = (drawn[int(share * (RESAMPLED - 1))] for share in (0.025, 0.975))
        return Interval(block, _tokens_a_round(pairs), low, high)

    def as_dict(self) -> dict[str, object]:
        """Everything, as plain data: the rows, what follows from them, and each run."""
        shape = self.shape
        sizes = shape.rows if shape else []
        return {
            "results": [self._described(row) for row in self.rows],
            "adaptive": [self._against(one) for one in self.adaptive() if self._runs(one.name)],
            "block_over_token": [one._asdict() for one in self.intervals()],
            "target_ms": {str(n): round(1e3 * self.single * shape(n), 3) for n in sizes if shape},
            "trials": [_trial(trial) for trial in self.trials],
        }

    def _described(self, row: Row) -> dict[str, object]:
        stats = [run.stats for run in self.runs(row.name)]
        names = ("accepted_by_position", "drafted_by_position")
        positions = {name: _summed([getattr(one, name) for one in stats]) for name in names}
        one = next(one for one in self.entrants if one.name == row.name)
        if isinstance(one, Configuration):
            length = 0 if one.plain else one.length or ADAPTIVE
            what: dict[str, object] = {"drafter": one.drafter, "draft_length": length, "accept": one.rule}
        else:
            what = {"command": one.peer.command}
        figures = {
            "temperature": one.temperature,
            "tokens_per_second": row.rate,
            "ratio": asdict(row.ratio) if row.ratio else None,
            "ratio_by_kind": row.by_kind,
            "acceptance_rate": row.accepted,
            "mean_accepted_length": row.length,
            "share_in_llama_decode": row.inside,
            "of_limit": row.of_limit,
            "same_tokens": row.same,
        }
        return {"name": row.name, **what, **figures, **(positions if stats else {})}

    def _against(self, one: Configuration) -> dict[str, object]:
        best, to_best = self.best_fixed(one), self.spread(one.name, BEST_FIXED)
        to_forecast, to_limit = self.spread(one.name, FORECAST), self.spread(one.name, LIMIT)
        peers = {}
        for rival in self.rivals:
            spread = self.spread(one.name, rival.name) if rival.base == one.base else None
            if spread:
                peers[rival.name] = asdict(spread)
        return {
            "name": one.name,
            "best_fixed": best.name if best else None,
            "over_best_fixed": asdict(to_best) if to_best and best else None,
            "forecast_tokens_per_second": self.forecast(one),
            "over_forecast": asdict(to_forecast) if to_forecast else None,
            "limit_tokens_per_second": self.limit(one),
            "over_limit": asdict(to_limit) if to_limit else None,
            "over_peers": peers,
        }


def _median(figures: Sequence[float | None]) -> float | None:
    """Of those that are known, which are neither None nor 0."""
    known = [figure for figure in figures if figure]
    return statistics.median(known) if known else None


def _by_rows(trial: Trial) -> dict[int, list[float]]:
    """Seconds of all passes of the target, by their rows."""
    found: dict[int, list[float]] = {}
    for details in (timed.details for timed in trial.runs.values()):
        for (drafted, _), seconds in zip(details.rounds, details.passes, strict=True) if details else ():
            found.setdefault(drafted + 1, []).append(seconds)
    return found


def _tokens_a_round(pairs: Sequence[tuple[int, int, int, int]]) -> float:
    """Tokens a round of the one over those of the other."""
    tokens, rounds, others, other_rounds = (sum(pair[i] for pair in pairs) for i in range(4))
    return float(tokens * other_rounds / (rounds * others))


def _summed(lists: Sequence[Sequence[int]]) -> list[int]:
    """Place by place."""
    longest = max(map(len, lists), default=0)
    return [sum(one[i] for one in lists if i < len(one)) for i in range(longest)]


def _trial(trial: Trial) -> dict[str, object]:
    runs = {
        name: {
            "tokens": timed.emitted, "seconds": round(timed.seconds, 5), "drafted": timed.drafted,
            "accepted": timed.accepted,
            **({"rounds": timed.details.stats.rounds} if timed.details else {}),
        }
        for name, timed in trial.runs.items()
    }  # fmt: skip
    return {"prompt": trial.prompt, "kind": trial.kind, "prompt_tokens": trial.prompt_tokens, "runs": runs}
