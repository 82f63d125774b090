"""``specdec bench``: ways of decoding against each other, on the same prompts, in one run."""

from __future__ import annotations

import json
import math
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

from specdec import __version__
from specdec.errors import AbortedError, UsageError
from specdec.settings import LONGEST_DRAFT, Drafting

from . import bench_plan as plans
from .options import OUTPUT, ModelOptions, option, takes

if TYPE_CHECKING:
    from specdec import Engine
    from specdec.prompts import BenchPrompt

    from .bench_peer import Pair, Peer, Rival
    from .bench_plan import Configuration, Plan
    from .bench_race import Race
    from .bench_result import Result
    from .interrupts import Signals
    from .view import View

LARGEST_SEED = (1 << 31) - 1
TRIED, WORK = "What is compared", "Prompts"
WITH_MODEL, WITHOUT_MODEL = ("model", "suffix", "lookup", "suffix,model"), ("suffix", "lookup")


@dataclass(frozen=True)
class BenchOptions:
    """What is compared, and on what."""

    drafters: Annotated[
        str | None,
        option("--drafters", panel=TRIED, metavar="NAMES",
               help="Drafters to try, separated by commas; several that take turns are joined by +, as in "
               "model,suffix,suffix+model. By default all there are."),
    ] = None  # fmt: skip
    draft_lengths: Annotated[
        str,
        option("--draft-lengths", panel=TRIED, metavar="LENGTHS",
               help="Fixed draft lengths to try, besides the adaptive one."),
    ] = "2,4,8"  # fmt: skip
    draft_translate: Annotated[
        bool,
        option("--draft-translate", panel=TRIED,
               help="The drafter may have another vocabulary: its text is tokenised anew for the target."),
    ] = False  # fmt: skip
    temps: Annotated[
        str,
        option("--temps", panel=TRIED, metavar="TEMPERATURES",
               help="Temperatures to try; above 0 with llama-cli's other samplers."),
    ] = "0"  # fmt: skip
    accept: Annotated[
        str,
        option("--accept", panel=TRIED, metavar="RULES",
               help="Acceptance rules to try above temperature 0: block, token, or block,token."),
    ] = "block"  # fmt: skip
    peer: Annotated[
        list[str] | None,
        option("--peer", panel=TRIED, once=True, metavar="COMMAND",
               help="llama.cpp's llama-speculative-simple or llama-server, with flags of its own, run on the "
               "same prompts, files and threads; repeatable."),
    ] = None  # fmt: skip
    prompts: Annotated[
        Path | None,
        option("--prompts", panel=WORK, once=True, metavar="FILE",
               help="Prompts of your own: Spec-Bench's JSON lines (turns, category), or a prompt a line; "
               "-: stdin. By default fifteen of five kinds that are built in."),
    ] = None  # fmt: skip
    limit: Annotated[
        int | None,
        option("--limit", panel=WORK, once=True, min=1, metavar="N",
               help="Only N of the prompts, of all kinds."),
    ] = None  # fmt: skip
    tokens: Annotated[
        int,
        option("-n", "--tokens", panel=WORK, min=1, max=1 << 20, metavar="N",
               help="Tokens for each prompt, unless the model ends before."),
    ] = 96  # fmt: skip
    repeat: Annotated[
        int,
        option("--repeat", panel=WORK, min=1, max=1000, metavar="N", help="How often every prompt is run."),
    ] = 1  # fmt: skip
    seed: Annotated[
        int,
        option("--seed", "-s", panel=WORK, min=-1, max=LARGEST_SEED, metavar="N",
               help="Of the first prompt's run above temperature 0; the next has the next. -1: a new one."),
    ] = 1  # fmt: skip
    json_: Annotated[
        bool, option("--json", panel=OUTPUT, help="Print one JSON object, with every run in it.")
    ] = False
    markdown: Annotated[bool, option("--markdown", panel=OUTPUT, help="Print the tables as Markdown.")] = (
        False
    )
    csv: Annotated[
        bool, option("--csv", panel=OUTPUT, help="Print a line of figures for each way of decoding.")
    ] = False
    plot: Annotated[
        Path | None,
        option("--plot", panel=OUTPUT, once=True, metavar="FILE",
               help="Draw speed by kind, acceptance by position and the cost of passes; .svg, .png or .pdf."),
    ] = None  # fmt: skip
    check: Annotated[
        list[str] | None,
        option("--check", panel=OUTPUT, once=True, metavar="NAME>=RATIO",
               help="Fail when a median ratio falls short: model:adaptive>=1.2 of plain decoding, "
               "model:adaptive/best-fixed>=0.95 of another, or of forecast or limit; repeatable."),
    ] = None  # fmt: skip
    quiet: Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="No progress bar.")] = False
    verbose: Annotated[
        bool, option("--verbose", "-v", panel=OUTPUT, help="Show llama.cpp's log on stderr.")
    ] = False

    def __post_init__(self) -> None:
        if sum((self.json_, self.markdown, self.csv)) > 1:
            raise UsageError("--json, --markdown and --csv exclude each other: give one of them")

    def plan(self) -> Plan:
        """What is tried; without --drafters, of those that there may be. Raises UsageError."""
        return plans.Plan(
            WITH_MODEL if self.drafters is None else plans.drafters(self.drafters),
            plans.lengths(self.draft_lengths),
            plans.temperatures(self.temps),
            plans.rules(self.accept),
            self.draft_translate,
        )


@takes(BenchOptions, ModelOptions)
def bench(asked: BenchOptions, models: ModelOptions) -> None:
    """Measure what drafting gains: plain decoding, drafters, draft lengths, and llama.cpp's own programs.

    All take turns on each prompt, so that a machine whose speed changes changes it for all; the figures are
    ratios to plain decoding of the same prompt. Loading and reading the prompt are not counted.

    [bold]Examples[/bold]

    specdec bench --limit 5

    specdec bench -m big.gguf -md small.gguf --drafters model,suffix+model --draft-lengths 4,8

    specdec bench --prompts spec_bench.jsonl --markdown --plot bench.svg

    specdec bench --peer "llama-server --spec-draft-n-max 8" --check "model:adaptive/llama-server>=1"
    """
    from specdec.prompts import PROMPTS

    from .bench_prompts import first, read_prompts

    plan = asked.plan()
    if asked.seed == -1:
        asked = replace(asked, seed=secrets.randbelow(LARGEST_SEED))
    prompts = list(PROMPTS if asked.prompts is None else read_prompts(asked.prompts))
    prompts = first(prompts, asked.limit or len(prompts))
    if asked.plot is not None:
        from .bench_plot import check_plot

        check_plot(asked.plot)
    _measure(asked, models, plan, prompts)


def _measure(asked: BenchOptions, models: ModelOptions, plan: Plan, prompts: list[BenchPrompt]) -> None:
    """From the models' files to the results."""
    from .bench_check import checks, judge
    from .bench_race import Race
    from .bench_result import Result
    from .interrupts import interruptible
    from .log import log_shown
    from .view import View

    with (
        interruptible() as signals,
        View(color=False, quiet=asked.quiet) as view,
        log_shown(view, asked.verbose),
    ):
        pair = _pair(asked, models, plan)
        if asked.drafters is None and pair.draft is None:
            plan = plan.with_drafters(WITHOUT_MODEL)
        with _peers(asked.peer or [], pair) as peers:
            configurations = plan.configurations()
            entrants: list[Configuration | Rival] = [*configurations, *_rivals(configurations, peers)]
            wanted = checks(asked.check or [], {one.name: one.base for one in entrants})
            with _loaded(pair, plan, view, signals) as engine:
                race = Race(engine, pair.draft, entrants, prompts, asked.tokens, asked.seed, view.note)
                finished = _run(race, len(prompts) * asked.repeat, view)
        result = Result(race.trials, entrants)
        if result.trials:
            _show(asked, result, Setup(pair, len(prompts), asked, finished))
        if not finished:
            raise KeyboardInterrupt
        judge(wanted, result)


def _pair(asked: BenchOptions, models: ModelOptions, plan: Plan) -> Pair:
    """The files, and how everybody runs them."""
    from specdec.backend.llama import default_threads

    from .bench_peer import Pair
    from .locate import locate_pair

    drafting = Drafting()  # with the recommended drafter, if there is one
    if asked.drafters is not None:
        drafting = Drafting(drafter="model" if plan.wants_model else "suffix")
    loading = models.loading()
    files = locate_pair(models, drafting, quiet=asked.quiet)
    return Pair(*files, loading.threads or default_threads(), loading)


def _loaded(pair: Pair, plan: Plan, view: View, signals: Signals) -> Engine:
    """The models, with room for the longest draft that is tried."""
    from .locate import loaded

    drafter = "model" if plan.wants_model else "none"
    drafting = Drafting(drafter=drafter, draft_max=1, translate=plan.translate)
    longest = max((LONGEST_DRAFT, *plan.lengths))
    files = (pair.target, pair.draft)
    return loaded(files, pair.loading, drafting, view, signals.abort, longest_draft=longest)


@contextmanager
def _peers(commands: list[str], pair: Pair) -> Iterator[list[Peer]]:
    from .bench_peer import make_peers

    peers = make_peers(commands, pair)
    try:
        yield peers
    finally:
        for peer in peers:
            peer.close()


def _rivals(configurations: list[Configuration], peers: list[Peer]) -> list[Rival]:
    """Each peer at each temperature."""
    from .bench_peer import Rival

    found = []
    for plain in (one for one in configurations if one.plain):
        at = plain.name.removeprefix("plain")
        found += [Rival(f"{peer.name}{at}", plain.name, peer, plain.temperature) for peer in peers]
    return found


def _run(race: Race, n: int, view: View) -> bool:
    """All trials, with a bar; whether they were finished."""
    try:
        with view.loading("warming up") as share:
            race.warm_up(share)
        began = time.monotonic()
        label = f"prompt 1 of {n}"
        for number in range(n):
            with view.loading(label) as share:
                race.run(number, share)
            left = (time.monotonic() - began) / (number + 1) * (n - number - 1)
            label = f"prompt {number + 2} of {n}, about {math.ceil(left / 60)} min left"
    except (AbortedError, KeyboardInterrupt):
        return False
    return True


class Setup(NamedTuple):
    """What was run, and how."""

    pair: Pair
    prompts: int
    asked: BenchOptions
    finished: bool

    def heading(self, result: Result) -> str:
        """A line for people, and one for each peer."""
        draft = f", drafter {self.pair.draft.name}" if self.pair.draft else ""
        some = "" if self.finished else f"interrupted in run {len(result.trials)} of "
        times = f" × {self.asked.repeat}" if self.asked.repeat > 1 else ""
        lines = [
            f"{self.pair.target.name}{draft}, {_count(self.pair.threads, 'thread')}; {some}"
            f"{_count(self.prompts, 'prompt')}{times}, up to {self.asked.tokens} tokens each, "
            f"temperature {self.asked.temps}"
        ]
        lines += [f"{rival.name}: {shlex.join(rival.peer.command)}" for rival in result.rivals]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, object]:
        import llama_cpp

        asked, pair = self.asked, self.pair
        return {
            "specdec": __version__, "llama_cpp_python": llama_cpp.__version__, "model": str(pair.target),
            "draft": str(pair.draft) if pair.draft else None, "threads": pair.threads,
            "prompts": self.prompts, "repeat": asked.repeat,
            "max_tokens": asked.tokens, "seed": asked.seed, "peers": asked.peer or [],
            "finished": self.finished,
        }  # fmt: skip


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}{'' if n == 1 else 's'}"


def _show(asked: BenchOptions, result: Result, setup: Setup) -> None:
    """Prints the results, and draws them."""
    from .bench_table import as_csv, as_markdown, as_text, tables
    from .plain import encodable

    if asked.json_:
        text = json.dumps({**setup.as_dict(), **result.as_dict()}, ensure_ascii=False) + "\n"
    elif asked.csv:
        text = as_csv(result)
    else:
        text = (as_markdown if asked.markdown else as_text)(setup.heading(result), list(tables(result)))
    sys.stdout.write(encodable(text, sys.stdout))
    sys.stdout.flush()
    if asked.plot is not None:
        from .bench_plot import draw

        draw(result, setup.heading(result), asked.plot)
