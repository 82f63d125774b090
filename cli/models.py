"""``specdec models``: what the names mean, and where the files are."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from specdec.errors import UsageError

from .completion import complete_model

PIPE_WIDTH = 400  # no line is broken for a program that reads it

app = typer.Typer(
    help="Models by name: list them, find them, get them.\n\n"
    "Your own models.toml adds names and overrides them; 'specdec models list' says where it goes.",
    invoke_without_command=True,
)


@app.callback()
def help_without_command(ctx: typer.Context) -> None:
    """Without a command there is nothing to do but to say which there are."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(UsageError.exit_code)


Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A name from the list, a path, or hf:owner/repo/file.gguf.",
        autocompletion=complete_model,
    ),
]


@app.command("list")
def list_models(
    plain: Annotated[bool, typer.Option("--names", help="Only the names, one a line, for scripts.")] = False,
) -> None:
    """Show every model: its size, its licence, its recommended drafter, and whether it is here.

    Example: specdec models list
    """
    from rich.console import Console
    from rich.filesize import decimal
    from rich.table import Table

    from specdec.registry import Registry, config_file

    registry = Registry.load()
    if plain:
        sys.stdout.writelines(f"{name}\n" for name in registry.entries)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("name", "here", "size", "drafter", "licence", "what it is"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "here"))
    for entry in registry.entries.values():
        here = registry.located(entry.name) is not None
        name = f"{entry.name} (default)" if entry.name == registry.default else entry.name
        size = decimal(entry.size) if entry.size else ""
        table.add_row(
            name, "yes" if here else "no", size, entry.draft or "", entry.licence, entry.description
        )
    console = Console()
    if not console.is_terminal:
        console.width = PIPE_WIDTH
    console.print(table)
    console.print(f"\nYour own models: {config_file()}", soft_wrap=True, highlight=False, markup=False)


@app.command("path")
def path(name: Name) -> None:
    """Print where a model's file is. Fetches nothing; exits 2 when it is not here.

    Example: llama-bench -m $(specdec models path smollm2-135m)
    """
    from specdec.registry import Registry

    found = Registry.load().located(name)
    if found is None:
        raise UsageError(f"{name} is not on this machine; get it with: specdec models pull {name}")
    print(found)


@app.command("pull")
def pull(
    name: Name,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Download or build a model, and print where its file is.

    Example: specdec models pull llama-3.1-8b
    """
    from specdec.registry import Registry

    from .locate import fetch

    print(fetch(Registry.load(), name, quiet=quiet))
