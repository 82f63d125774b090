"""What holds where no flag is given: the environment, then config.toml; and which of them said what."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from enum import Enum
from typing import Annotated, Any

import typer
from typer.core import TyperGroup, TyperOption
from typer.exceptions import TyperException

from specdec.errors import UsageError

from .config_file import ConfigFile, Key, long_names, settable

PREFIX = "SPECDEC_"
NOT_SET = "not set"


def fill(ctx: typer.Context, wanted: bool) -> bool:
    """Gives the command the values that no flag sets; as an eager callback, before any flag is looked at.

    Raises UsageError for a value that the flag would not take either, and for a config.toml with mistakes.
    """
    if not ctx.resilient_parsing:  # completion must not fail
        ctx.default_map = {option.name: value for option, value, _ in _found(ctx)}
    return wanted


ShowSettings = Annotated[
    bool,
    typer.Option(
        "--show-settings", callback=fill, is_eager=True, allow_from_autoenv=False, rich_help_panel="Output",
        help="Print every setting and where it comes from, and do nothing else. What no flag says is taken "
        "from the environment (SPECDEC_TEMP for --temp), then from config.toml, then from the defaults.",
    ),
]  # fmt: skip


def show(ctx: typer.Context) -> None:
    """Print flag, value and origin of all settings: a table in a terminal, tab-separated in a pipe."""
    origins = {option.name: origin for option, _, origin in _found(ctx)}
    rows = []
    for option in filter(settable, _options(ctx.command)):
        source = ctx.get_parameter_source(option.name)
        origin = "flag" if source and source.name == "COMMANDLINE" else origins.get(option.name, "default")
        if not option.hidden or origin != "default":
            rows.append((f"--{long_names(option)[0]}", _text(ctx.params[option.name]), origin))
    if not sys.stdout.isatty():
        sys.stdout.writelines("\t".join(row) + "\n" for row in rows)
        return
    _print_table(rows)


def _print_table(rows: list[tuple[str, str, str]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from specdec.registry import config_file

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("flag", no_wrap=True)
    table.add_column("value", overflow="fold")
    table.add_column("where from", overflow="fold")
    path = config_file().with_name("config.toml")
    for flag, value, origin in rows:
        short = origin.replace(str(path), path.name)  # its whole path is below
        table.add_row(Text(flag), Text(value), Text(short), style="dim" if origin == "default" else None)
    console = Console()
    console.print(table)
    there = "" if path.exists() else " (there is none yet)"
    console.print(f"\nconfig.toml: {path}{there}", soft_wrap=True, highlight=False, markup=False)


def _found(ctx: typer.Context) -> Iterator[tuple[TyperOption, Any, str]]:
    """The options of the command that environment or config.toml set, with the value and where it is from."""
    from specdec.registry import config_file

    config = ConfigFile.read(config_file().with_name("config.toml"), _commands(ctx))
    for option in filter(settable, _options(ctx.command)):
        key = config.key(ctx.info_name or "", option)
        if key:
            _check(ctx, option, key.value, key)
        if variable := _variable(option):
            text = os.environ[variable]
            value = [line for line in text.split("\n") if line] if option.multiple else text
            _check(ctx, option, value, variable)
            yield option, value, variable
        elif key:
            yield option, key.value, key.origin


def _check(ctx: typer.Context, option: TyperOption, value: object, place: str | Key) -> None:
    """Raises UsageError that names the place when the option does not take the value."""
    try:
        option.process_value(ctx, value)
    except TyperException as error:
        reason = _reason(error, value)
        if isinstance(place, str):
            raise UsageError(f"{place}: {reason}") from error
        raise place.error(reason) from error


def _reason(error: TyperException, value: object) -> str:
    """The complaint of the option's own check, about this value."""
    text = error.message.removeprefix("Value error, ").removesuffix(".").partition(", unable")[0]
    text = text.replace("Input should", f"{value!r} should")
    return text.replace("a valid boolean", "true or false, yes or no, on or off, 1 or 0")


def _variable(option: TyperOption) -> str | None:
    """The environment variable that sets the option; an empty one sets nothing."""
    variables = (PREFIX + name.upper().replace("-", "_") for name in long_names(option))
    return next((variable for variable in variables if os.environ.get(variable)), None)


def _commands(ctx: typer.Context) -> dict[str, list[TyperOption]]:
    """The options of every command that takes settings from elsewhere, by the command's name."""
    root = ctx.find_root().command
    commands = root.commands if isinstance(root, TyperGroup) else {}
    takers = {n: c for n, c in commands.items() if any(p.name == "show_settings" for p in c.params)}
    return {name: _options(command) for name, command in takers.items()}


def _options(command: Any) -> list[TyperOption]:
    return [p for p in command.params if isinstance(p, TyperOption) and long_names(p)]


def _text(value: object) -> str:
    """The value on one line."""
    if value in (None, (), []):
        return NOT_SET
    if isinstance(value, Enum):
        return str(value.value)
    text = str(value)
    plain = not isinstance(value, (bool, list)) and text.isprintable()
    return text if plain else json.dumps(value, ensure_ascii=False, default=str)
