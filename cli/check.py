"""``specdec check``: is this pair right, and what will it bring? Told before anything is loaded."""

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
    from specdec.registry import Registry
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

    target, _ = _files(asked, models)
    ranking = rank(target, folder.expanduser(), cache_dir())
    if asked.json_:
        sys.stdout.write(jsontext.line({"model": str(target), **ranking.as_dict()}, sys.stdout))
        return
    sys.stdout.write(ranking_as_text(target, folder, ranking))


def _judge(asked: CheckOptions, models: ModelOptions) -> None:
    from specdec.gguf_file import GGUFFile
    from specdec.pair import judge
    from specdec.room import room

    from .check_table import pair_as_text

    files = _files(asked, models)
    target, draft = GGUFFile.read(files[0]), None if files[1] is None else GGUFFile.read(files[1])
    loading = models.loading()
    pair = judge(target, draft, room(), _devices(loading.gpu_layers), loading=loading)
    if asked.json_:
        sys.stdout.write(jsontext.line(pair.as_dict(*files), sys.stdout))
    else:
        sys.stdout.write(pair_as_text(pair, *files))
    if pair.verdict == "cannot":
        raise typer.Exit(UsageError.exit_code)


def _files(asked: CheckOptions, models: ModelOptions) -> tuple[Path, Path | None]:
    """Where the models named are; without any, those of the demonstration pair."""
    from specdec.registry import Registry

    registry = Registry.load()
    named = registry.default if models.model is None else models.model
    if named is None:
        raise UsageError("no --model given, and models.toml names no default")
    draft = models.draft
    if draft is None and models.model is None and asked.drafts is None:
        draft = registry.resolve(named).draft
    target = _file(registry, named, quiet=asked.quiet)
    return target, None if draft is None else _file(registry, draft, quiet=asked.quiet)


def _file(registry: Registry, spec: str, *, quiet: bool) -> Path:
    """The file, where it is here already; else fetched, with progress bars that take a while to load."""
    found = registry.located(spec) if spec else None
    if found is None:
        from .locate import fetch

        found = fetch(registry, spec, quiet=quiet)
    return found


def _devices(gpu_layers: int | None) -> tuple[Device, ...]:
    if gpu_layers == 0:
        return ()
    from specdec.backend.llama import devices

    return devices()
