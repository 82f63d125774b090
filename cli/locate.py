"""From what the user named to files on this machine, fetched or built where needed, with progress."""

from __future__ import annotations

import sys
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from specdec.errors import UsageError
from specdec.registry import Registry
from specdec.settings import Drafting

from .options import ModelOptions

A_WHILE = 500_000_000  # bytes; less than that is written or checked in a second or two


class Announced:
    """Says what is being made, how large and where, then shows a bar. (``specdec.registry.Progress``)"""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None

    def start(self, what: str, total_bytes: int, where: Path) -> None:
        if self._quiet:
            return
        if total_bytes >= A_WHILE:
            print(f"specdec: {what} ({decimal(total_bytes)}) in {where}", file=sys.stderr)
        columns = (
            TextColumn("{task.percentage:>3.0f}%"),
            BarColumn(),
            DownloadColumn(),
            TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._bar.add_task(what, total=total_bytes)
        self._bar.start()

    def update(self, done: int) -> None:
        if self._bar:
            self._bar.update(self._bar.task_ids[0], completed=done)

    def finish(self) -> None:
        if self._bar:
            self._bar.stop()
            self._bar = None


def locate_pair(options: ModelOptions, drafting: Drafting, *, quiet: bool) -> tuple[Path, Path | None]:
    """The target's file and the drafter's, None when no model drafts.

    Without --model it is the default pair's target. The drafter is --draft; without it, the recommended
    one, for the default target and when --drafter model asks for it.
    """
    registry = Registry.load()
    progress = Announced(quiet=quiet)
    named = options.model or registry.default
    if named is None:
        raise UsageError("no --model given, and models.toml names no default")
    target = registry.fetch(named, progress)
    if drafting.drafter in ("lookup", "none"):
        return target, None
    recommended = registry.resolve(named).draft
    if options.draft:
        return target, registry.fetch(options.draft, progress)
    if recommended and (options.model is None or drafting.drafter == "model"):
        return target, registry.fetch(recommended, progress)
    if recommended and not quiet:
        print(
            f"specdec: no --draft, so only lookup drafts; for {named} try --draft {recommended}",
            file=sys.stderr,
        )
    return target, None
