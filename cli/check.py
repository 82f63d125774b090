"""``specdec check``: is this pair right, and what will it bring? Told from headers, before anything is loaded."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.errors import UsageError

from . import jsontext
from .options import OUTPUT, ModelOptions, option, takes

if TYPE_CHECKING:
    from specdec.gguf_file import GGUFFile
    from specdec.room import Device


@dataclass(frozen=True)
class CheckOptions:
    """What is asked of a pair."""

    drafts: Annotated[
        Path | None,
        option("--drafts", once=True, metavar="DIR",
               help="Rank every GGUF in a folder, and in those below it, as a drafter for the target."),
    ] = None  # fmt: skip
    json_: Annotated[bool, option("--json", panel=OUTPUT, help="Print one JSON object.")] = False
    quiet: Annotated[bool, option("--quiet", "-q", panel=OUTPUT, help="No progress of downloads.")] = False


@takes(CheckOptions, ModelOptions)
def check(asked: CheckOptions, models: ModelOptions) -> None:
    """Say whether a pair is right, what memory it needs, and what it may bring.

    Reads headers alone: architectures, sizes, vocabularies, context lengths, chat templates, memory needed
    and memory there is. Exits 2 when the pair cannot work.

    [bold]Examples[/bold]

    specdec check -m big.gguf -md small.gguf

    specdec check -m big.gguf -c 32768

    specdec check -m big.gguf --drafts ~/models

    specdec check -m big.gguf -md small.gguf --json | jq .verdict
    """
    if asked.drafts is not None:
        if models.draft is not None:
            raise UsageError("--drafts looks for a drafter and --draft names one: give one of them")
        _rank(asked, models, asked.drafts)
        return
    _judge(asked, models)


def _rank(asked: CheckOptions, models: ModelOptions, folder: Path) -> None:
    from specdec.catalogue import rank
    from specdec.registry import cache_dir

    from .check_table import ranking_as_text

    target, _ = _pair(asked, models)
    ranking = rank(target, folder.expanduser(), cache_dir())
    if asked.json_:
        sys.stdout.write(jsontext.line({"target": str(target.path), **ranking.as_dict()}, sys.stdout))
        return
    sys.stdout.write(ranking_as_text(target.path, folder, ranking))


def _judge(asked: CheckOptions, models: ModelOptions) -> None:
    from specdec.pair import judge
    from specdec.room import room

    from .check_table import pair_as_text

    target, draft = _pair(asked, models)
    loading = models.loading()
    pair = judge(target, draft, room(), _devices(loading.gpu_layers), loading=loading)
    if asked.json_:
        files = {"model": str(target.path), "draft_model": None if draft is None else str(draft.path)}
        sys.stdout.write(jsontext.line({**files, **pair.as_dict()}, sys.stdout))
    else:
        sys.stdout.write(pair_as_text(pair, target.path, None if draft is None else draft.path))
    if pair.verdict == "cannot":
        raise typer.Exit(UsageError.exit_code)


def _pair(asked: CheckOptions, models: ModelOptions) -> tuple[GGUFFile, GGUFFile | None]:
    """The headers of the models named; without any, of the demonstration pair."""
    from specdec.gguf_file import GGUFFile
    from specdec.registry import Registry

    from .locate import fetch

    registry = Registry.load()
    named = registry.default if models.model is None else models.model
    if named is None:
        raise UsageError("no --model given, and models.toml names no default")
    draft = models.draft
    if draft is None and models.model is None and asked.drafts is None:
        draft = registry.resolve(named).draft
    target = GGUFFile.read(fetch(registry, named, quiet=asked.quiet))
    return target, None if draft is None else GGUFFile.read(fetch(registry, draft, quiet=asked.quiet))


def _devices(gpu_layers: int | None) -> tuple[Device, ...]:
    if gpu_layers == 0:
        return ()
    from specdec.backend.llama import devices

    return devices()
