"""The ``specdec`` command: dispatch, exit codes, errors as one line."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, TextIO

import typer
from typer.core import TyperGroup
from typer.exceptions import TyperException

from specdec import __version__
from specdec.errors import SpecdecError

from . import bench, chat, check, completion, generate, models

INTERRUPTED = 130


class OutputError(Exception):
    """Our output cannot be written. (A plain OSError, Typer would turn into exit code 1 or a traceback.)"""


class Group(TyperGroup):
    """The root command: its help comes at once, since plain text needs no rich; pipes may close."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{**settings, "rich_markup_mode": None})

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except OSError as error:
            raise OutputError from error
        return result


app = typer.Typer(
    name="specdec",
    cls=Group,
    help="Speculative decoding for GGUF models: a small drafter guesses ahead, the target checks the guesses "
    "in one pass, and the text comes out faster without changing.\n\n"
    'Try: specdec generate "Explain why the sky is blue."\n\n'
    "Environment variables and a config.toml can set flags too: see specdec generate --help.",
    invoke_without_command=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate.generate)
app.command("chat")(chat.chat)
app.command("bench")(bench.bench)
app.command("check")(check.check)
app.add_typer(models.app, name="models")


def _version(wanted: bool) -> None:
    if wanted:
        from specdec import kernels

        typer.echo(f"specdec {__version__} ({kernels.name} kernels)")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    models.help_without_command(ctx)


def main() -> None:
    """Runs the command line. Exits 0, 1 (failed while running), 2 (unusable input) or 130 (interrupted)."""
    try:
        completion.prepare()
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except TyperException as error:
        code = _complain(error.format_message(), error.exit_code)
    except SpecdecError as error:
        code = _complain(str(error), error.exit_code)
    except (OutputError, OSError) as error:
        code = _unwritable(error.__cause__ or error)
    except KeyboardInterrupt:
        code = INTERRUPTED
    except SystemExit as ended:  # a signal's
        code = ended.code
        try:
            sys.stdout.flush()
        except OSError:  # SIGHUP: the terminal is gone
            _discard(sys.stdout)
    except ImportError as error:
        if error.name != "specdec.kernels":
            raise
        code = _complain(str(error), SpecdecError.exit_code)
    except MemoryError:
        code = _complain("out of memory; a smaller model or a smaller -c needs less", SpecdecError.exit_code)
    sys.exit(code or 0)


def _unwritable(error: BaseException) -> int:
    """A reader that has closed the pipe has had enough; anything else is a failure."""
    _discard(sys.stdout)
    if isinstance(error, BrokenPipeError):
        return 0
    reason = error.strerror if isinstance(error, OSError) else str(error)
    return _complain(f"cannot write the output: {reason}", SpecdecError.exit_code)


def _complain(message: str, code: int) -> int:
    try:
        print(f"specdec: {' '.join(message.split())}", file=sys.stderr, flush=True)
    except OSError:  # the exit code still says it
        _discard(sys.stderr)
    return code


def _discard(stream: TextIO) -> None:
    """What is still buffered goes nowhere, so that the interpreter does not fail on it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
