"""``specdec chat``: a conversation, typed or from a script."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from specdec.errors import SpecdecError, UsageError
from specdec.settings import LONGEST_DRAFT

from .options import (
    DraftOptions,
    ModelOptions,
    OutputOptions,
    PromptOptions,
    ResultOptions,
    SamplingOptions,
    option,
    takes,
)
from .requests import Defaults

if TYPE_CHECKING:
    from specdec import Engine

    from .conversation import Conversation
    from .line import Lines

CHAT = "Conversation"


class ContextFullName(str, Enum):
    drop = "drop"
    stop = "stop"


@dataclass(frozen=True)
class ChatOptions:
    """How the conversation begins, and how far an answer goes."""

    system: Annotated[
        str | None,
        option("--system", "-sys", "--system-prompt", panel=CHAT, metavar="TEXT",
               help="System prompt: how the model is to behave."),
    ] = None  # fmt: skip
    messages: Annotated[
        Path | None,
        option("--messages", panel=CHAT, once=True, metavar="FILE",
               help="Go on from a conversation that /save wrote."),
    ] = None  # fmt: skip
    max_tokens: Annotated[
        int,
        option("-n", "--max-tokens", "--predict", "--n-predict", panel=CHAT, metavar="N", min=-1, max=1 << 31,
               help="The most tokens of an answer; -1: until the model stops or the context is full."),
    ] = -1  # fmt: skip
    stop: Annotated[
        list[str] | None,
        option("--stop", "-r", "--reverse-prompt", panel=CHAT, metavar="TEXT",
               help="End an answer before this text; repeatable."),
    ] = None  # fmt: skip
    context_full: Annotated[
        ContextFullName,
        option("--context-full", panel=CHAT,
               help="drop: forget the oldest turns, the system prompt stays. stop: refuse to go on."),
    ] = ContextFullName.drop  # fmt: skip
    hide_reasoning: Annotated[
        bool,
        option("--hide-reasoning", panel=CHAT, help="Leave out <think>…</think> blocks; else they are dim."),
    ] = False  # fmt: skip


@takes(ChatOptions, ModelOptions, DraftOptions, SamplingOptions, OutputOptions)
def chat(
    begin: ChatOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """Talk with a model; a drafter makes its answers come faster.

    What you type is a message, or a command such as /help, /undo, /retry, /stats. Both models keep what they
    have read from turn to turn. In a pipe, each line of stdin is a message or a command.

    [bold]Examples[/bold]

    specdec chat

    specdec chat -m big.gguf -md small.gguf --system "Answer briefly."

    printf '%s\\n' "Name a colour." "And another." /stats | specdec chat --temp 0
    """
    from .interrupts import unbroken
    from .messages import read_messages

    asked = PromptOptions(max_tokens=begin.max_tokens, stop=begin.stop)
    settings = Defaults(asked, drafts, sampling, ResultOptions()).read()
    earlier = read_messages(begin.messages) if begin.messages else []
    with (
        _started(begin, models, settings, output) as talk,
        unbroken() if talk.lines.interactive else nullcontext(),
    ):
        talk.session.messages[:] = earlier
        if begin.system:
            talk.session.system = begin.system
        failed = _turns(talk, greet=not output.quiet)
    if failed:
        raise SpecdecError(f"{failed} of the script's lines failed; the messages above say why")


@contextmanager
def _started(
    begin: ChatOptions, models: ModelOptions, settings: Defaults, output: OutputOptions
) -> Iterator[Conversation]:
    """The models, loaded, and somebody to talk with."""
    from .commands import COMMANDS, complete
    from .conversation import Conversation
    from .interrupts import interruptible
    from .line import lines
    from .locate import loaded, locate_pair
    from .log import log_shown
    from .view import View

    drafting, loading = settings.drafts.drafting(), models.loading()
    settings.sampling.sampling()  # what cannot be sampled with is refused before anything is loaded
    with View(color=False, quiet=output.quiet) as view, log_shown(view, output.verbose):
        with interruptible() as signals:
            turns = lines({name: command.help for name, command in COMMANDS.items()}, complete)
            files = locate_pair(models, drafting, quiet=output.quiet)
            longest = max(drafting.longest, LONGEST_DRAFT)  # /draft and /set may ask for more later
            engine = loaded(files, loading, drafting, view, signals.abort, longest_draft=longest)
        with engine:
            _offer_template(engine, turns)
            yield Conversation(
                engine,
                files[1],
                settings,
                turns,
                output,
                context_full=begin.context_full.value,
                hide_reasoning=begin.hide_reasoning,
            )


def _offer_template(engine: Engine, turns: Lines) -> None:
    """A model without a chat template gets ChatML, if somebody is there to want it."""
    if engine.has_template:
        _ = engine.template  # one that is no Jinja is refused now
        return
    if not turns.interactive:
        _ = engine.template  # raises the error that names the flag
    name = engine.target.model.path.name
    try:
        wanted = typer.confirm(f"{name} has no chat template. Use ChatML?", default=True, err=True)
    except typer.Abort as ended:  # Ctrl-C or Ctrl-D
        raise KeyboardInterrupt from ended
    if not wanted:
        raise UsageError(f"{name} has no chat template; --chat-template names one or reads it from a file")
    engine.loading = replace(engine.loading, chat_template="chatml")


def _turns(talk: Conversation, *, greet: bool) -> int:
    """Every turn until the end; how many of a script's failed."""
    if greet and talk.lines.interactive:
        draft = f", drafter {talk.engine.draft.model.path.name}" if talk.engine.draft is not None else ""
        talk.tell(f"{talk.engine.target.model.path.name}{draft}. /help lists the commands, Ctrl-D leaves.")
    failed = 0
    while True:
        try:
            _turn(talk, talk.lines.read())
        except EOFError:
            return failed
        except KeyboardInterrupt:
            if not talk.lines.interactive:
                raise
            talk.tell("Ctrl-D or /quit leaves")
        except SpecdecError as error:
            failed += not talk.lines.interactive
            print(f"specdec: {' '.join(str(error).split())}", file=sys.stderr, flush=True)


def _turn(talk: Conversation, line: str) -> None:
    """One message, or one command."""
    from .commands import obey
    from .interrupts import interruptible

    if line.startswith("//"):
        talk.ask(line[1:])
    elif line.startswith("/"):
        with interruptible(talk.engine.abort):
            obey(talk, line)
    elif line.strip():
        talk.ask(line)
