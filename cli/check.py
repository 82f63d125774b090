"""``specdec check``: is this pair right, and what will it bring? Told from headers, or measured."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.errors import SpecdecError, UsageError
from specdec.settings import Drafting

from . import jsontext
from .options import OUTPUT, DraftOptions, ModelOptions, option, takes

if TYPE_CHECKING:
    from specdec.room import Device

RUN = "Measuring"
LARGEST_SEED = (1 << 32) - 1


@dataclass(frozen=True)
class CheckOptions:
    """What is asked of a pair."""

    drafts: Annotated[
        Path | None,
        option("--drafts", once=True, metavar="DIR",
               help="Rank every GGUF in a folder, and in those below it, as a drafter for the target."),
    ] = None  # fmt: skip
    run: Annotated[
        bool,
        option("--run", panel=RUN,
               help="Load the pair and measure it: what passes cost, acceptance on prompts of five kinds, "
               "the speed-up; and audit that drafting changes nothing, greedy and sampled. Takes minutes; "
               "exits 1 when the audit fails."),
    ] = False  # fmt: skip
    tokens: Annotated[
        int,
        option("-n", "--tokens", panel=RUN, min=8, max=1 << 16, metavar="N",
               help="Tokens for each prompt, four times."),
    ] = 64  # fmt: skip
    seed: Annotated[
        int, option("--seed", "-s", panel=RUN, min=0, max=LARGEST_SEED, metavar="N", help="Of sampled runs.")
    ] = 1  # fmt: skip
    json_: Annotated[bool, option("--json", panel=OUTPUT, help="Print one JSON object.")] = False
    quiet: Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="No progress bars.")] = False
    verbose: Annotated[
        bool, option("--verbose", "-v", panel=OUTPUT, help="Show llama.cpp's log on stderr.")
    ] = False

    def __post_init__(self) -> None:
        if self.run and self.drafts is not None:
            raise UsageError("--drafts reads headers alone: name one of them with --draft to --run it")


@takes(CheckOptions, ModelOptions, DraftOptions)
def check(asked: CheckOptions, models: ModelOptions, drafts: DraftOptions) -> None:
    """Say whether a pair is right, what memory it needs, and what it may bring.

    Reads headers alone, unless asked to --run: architectures, sizes, vocabularies, context lengths, chat
    templates, memory needed and memory there is. Exits 2 when the pair cannot work.

    [bold]Examples[/bold]

    specdec check -m big.gguf -md small.gguf

    specdec check -m big.gguf -md small.gguf --run

    specdec check -m big.gguf --drafts ~/models

    specdec check -m big.gguf -md small.gguf --json | jq .verdict
    """
    if asked.drafts is not None:
        if models.draft is not None:
            raise UsageError("--drafts looks for a drafter and --draft names one: give one of them")
        _rank(asked, models, asked.drafts)
        return
    _judge(asked, models, drafts.drafting())


def _rank(asked: CheckOptions, models: ModelOptions, folder: Path) -> None:
    from specdec.catalogue import rank
    from specdec.registry import cache_dir

    from .check_table import ranking_as_text
    from .locate import locate_pair

    path, _ = locate_pair(models, Drafting(drafter="none"), quiet=asked.quiet)
    ranking = rank(path, folder.expanduser(), cache_dir())
    if asked.json_:
        _write(jsontext.line({"model": str(path), **ranking.as_dict()}, sys.stdout))
        return
    _write(ranking_as_text(path, folder, ranking))


def _judge(asked: CheckOptions, models: ModelOptions, drafting: Drafting) -> None:
    from specdec.gguf_file import GGUFFile
    from specdec.pair import judge
    from specdec.room import room

    from .check_table import pair_as_text
    from .locate import locate_pair

    if asked.run and drafting.drafter == "none":
        raise UsageError("--drafter none decodes plainly: there is nothing to --run a check of")
    files = locate_pair(models, drafting, quiet=asked.quiet)
    target, draft = (None if path is None else GGUFFile.read(path) for path in files)
    assert target is not None
    loading = models.loading()
    pair = judge(target, draft, room(), _devices(loading.gpu_layers), loading=loading, drafting=drafting)
    found = pair.as_dict(*files)
    if not asked.json_:
        _write(pair_as_text(pair, *files))
    measured = None
    if asked.run and pair.verdict != "cannot":
        from . import check_run

        measured = check_run.measure(files, loading, drafting, asked)
        found["run"] = measured.as_dict()
        if not asked.json_:
            _write(check_run.as_text(measured))
    if asked.json_:
        _write(jsontext.line(found, sys.stdout))
    if pair.verdict == "cannot":
        raise typer.Exit(UsageError.exit_code)
    if measured is not None and not measured.found.passed:
        raise typer.Exit(SpecdecError.exit_code)


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _devices(gpu_layers: int | None) -> tuple[Device, ...]:
    if gpu_layers == 0:
        return ()
    from specdec.backend.llama import devices

    return devices()
