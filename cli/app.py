"""The ``specdec`` command: dispatch, exit codes, errors as one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from specdec import __version__
from specdec.errors import SpecdecError

from . import generate, models

INTERRUPTED = 130


class ReaderGoneError(Exception):
    """Whoever read our output has closed the pipe. (A plain OSError, Typer would turn into exit code 1.)"""


class Group(TyperGroup):
    """The root command: its help comes at once, since plain text needs no rich; pipes may close."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "rich_markup_mode": None})

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise ReaderGoneError from error


app = typer.Typer(
    name="specdec",
    cls=Group,
    help="Speculative decoding for GGUF models: a small drafter guesses ahead, the target checks the guesses "
    "in one pass, and the text comes out faster without changing.\n\n"
    'Try: specdec generate "Explain why the sky is blue."',
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.add_typer(models.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        from specdec import kernels

        typer.echo(f"specdec {__version__} ({kernels.name} kernels)")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """The console script. Exits 0, 1 (failed while running), 2 (unusable input) or 130 (interrupted)."""
    try:
        code = app(standalone_mode=False)
    except TyperException as error:
        code = _complain(error.format_message(), error.exit_code)
    except SpecdecError as error:
        code = _complain(str(error), error.exit_code)
    except ReaderGoneError:
        # The reader has gone; so that the interpreter's own flush at exit does not complain either:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except KeyboardInterrupt:
        code = INTERRUPTED
    except ImportError as error:
        if error.name != "specdec.kernels":
            raise
        code = _complain(str(error), SpecdecError.exit_code)
    except MemoryError:
        code = _complain("out of memory; a smaller model or a smaller -c needs less", 1)
    sys.exit(code or 0)


def _complain(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(f"specdec: {line}", file=sys.stderr)
    return code
