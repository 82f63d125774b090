"""From what the user named to files on this machine, fetched or built where needed, with progress."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import UsageError
from specdec.models_file import HubSource
from specdec.registry import Registry
from specdec.settings import Drafting, Loading

from .options import ModelOptions

if TYPE_CHECKING:
    from rich.progress import Progress

    from specdec import Engine
    from specdec.backend import Abort

    from .view import View

A_WHILE = 500_000_000  # bytes; less than that is written or checked in a second or two


class Announced:
    """Says what is being made, how large and where, then shows a bar. (``specdec.registry.Progress``)"""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._bar: Progress | None = None

    def start(self, what: str, total_bytes: int, where: Path) -> None:
        if self._quiet:
            return
        # Bars take a while to load, and mostly the files are here.
        from rich.console import Console
        from rich.filesize import decimal
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

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


def fetch(registry: Registry, spec: str, *, quiet: bool) -> Path:
    """The file of a model, with its progress on stderr. Raises as ``Registry.fetch``."""
    if not spec:
        raise UsageError("a model's name is empty; 'specdec models list' shows the names")
    source = registry.resolve(spec).source
    if isinstance(source, HubSource) and registry.located(spec) is None and not quiet:
        print(f"specdec: fetching {source}", file=sys.stderr)
    return registry.fetch(spec, Announced(quiet=quiet))


def locate_pair(options: ModelOptions, drafting: Drafting, *, quiet: bool) -> tuple[Path, Path | None]:
    """The target's file and the drafter's, None when no model drafts.

    Without --model it is the default pair's target. The drafter is --draft; without it, the recommended
    one, for the default target and when --drafter model asks for it.
    """
    registry = Registry.load()
    named = registry.default if options.model is None else options.model
    if named is None:
        raise UsageError("no --model given, and models.toml names no default")
    target = fetch(registry, named, quiet=quiet)
    if not drafting.wants_model:
        return target, None
    recommended = registry.resolve(named).draft
    if options.draft is not None:
        return target, fetch(registry, options.draft, quiet=quiet)
    if recommended and (options.model is None or "model" in drafting.kinds):
        return target, fetch(registry, recommended, quiet=quiet)
    if recommended and not quiet:
        print(
            f"specdec: no --draft, so only repetitions are drafted; for {named} try --draft {recommended}",
            file=sys.stderr,
        )
    return target, None


def loaded(
    files: tuple[Path, Path | None],
    loading: Loading,
    drafting: Drafting,
    view: View,
    abort: Abort,
    *,
    longest_draft: int = 0,
) -> Engine:
    """The pair that ``locate_pair`` found, loaded with a bar. Raises as ``Engine``."""
    from specdec import Engine

    target, draft = files
    with view.loading("loading the models") as share:
        return Engine(
            target,
            draft,
            loading=loading,
            drafting=drafting,
            longest_draft=longest_draft,
            progress=share,
            abort=abort,
        )
