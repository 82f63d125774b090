"""What a line that begins with a slash does in a chat."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from specdec.errors import UsageError
from specdec.reasoning import without_reasoning
from specdec.registry import Registry
from specdec.settings import DRAFTERS

from .clipboard import copy
from .completion import complete_model
from .conversation import Conversation
from .line import find_terminal
from .locate import fetch
from .messages import read_messages, write_messages
from .setting import PER_REQUEST, Setting, settings

ADJUSTABLE = ("sampling", "drafts")  # the groups of settings that /set changes, and of the others:
LIMITS = ("max_tokens", "stop")
SWITCHES = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False}


class Command(NamedTuple):
    """argument: how it is shown in the help, '' for none."""

    argument: str
    help: str
    run: Callable[[Conversation, str], None]


def obey(talk: Conversation, line: str) -> None:
    """Runs a command. Raises UsageError for one that is none or cannot be done, and EOFError to leave."""
    name, _, argument = line.partition(" ")
    command = COMMANDS.get(name)
    if command is None:
        raise UsageError(f"{name} is no command; /help lists them (a message may begin with // for a /)")
    argument = argument.strip()
    if argument and not command.argument:
        raise UsageError(f"{name} takes nothing after it")
    command.run(talk, argument)


def complete(command: str, typed: str) -> Iterable[str]:
    """What the argument of a command, so far as typed, may become."""
    if command == "/draft":
        names = ["off", *(kind for kind in DRAFTERS if kind != "none")]
        models = [name for name, _ in complete_model(typed)]
        return [name for name in [*names, *models] if name.startswith(typed)]
    if command == "/set":
        return [f"{name} " for name in _adjustable() if name.startswith(typed)]
    if command in ("/save", "/load"):
        where = Path(typed).expanduser()
        folder = where if typed.endswith("/") else where.parent
        prefix = typed[: len(typed) - len(where.name)] if not typed.endswith("/") else typed
        paths = sorted(folder.glob("*")) if folder.is_dir() else []
        return [
            f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
            for path in paths
            if f"{prefix}{path.name}".startswith(typed) and (path.is_dir() or path.suffix == ".json")
        ]
    return []


def _help(talk: Conversation, _argument: str) -> None:
    rows = [(f"{name} {command.argument}".rstrip(), command.help) for name, command in COMMANDS.items()]
    wide = max(len(usage) for usage, _ in rows)
    talk.tell(*(f"  {usage:<{wide}}  {meaning}" for usage, meaning in rows))
    talk.tell("  Alt-Enter begins a new line, Ctrl-C stops an answer, Ctrl-D leaves.")


def _system(talk: Conversation, text: str) -> None:
    if text:
        talk.session.system = "" if text == "off" else text
    talk.tell(f"system prompt: {talk.session.system}" if talk.session.system else "no system prompt")


def _undo(talk: Conversation, _argument: str) -> None:
    text = talk.session.undo()
    talk.tell("there is nothing to take back" if text is None else f"taken back: {text}")


def _retry(talk: Conversation, _argument: str) -> None:
    messages = talk.session.messages
    if messages and messages[-1]["role"] == "user":
        talk.answer()
        return
    last = talk.session.last_question
    if last is None:
        raise UsageError("there is no message to answer again")
    _ask_anew(talk, last)


def _edit(talk: Conversation, text: str) -> None:
    last = talk.session.last_question
    if last is None:
        raise UsageError("there is no message to edit")
    if not text:
        if not talk.lines.interactive:
            raise UsageError("/edit needs the new text after it where nobody can type it")
        try:
            text = talk.lines.read(default=last)
        except (EOFError, KeyboardInterrupt):
            text = ""
    if not text.strip():
        talk.tell("nothing is changed")
        return
    _ask_anew(talk, text)


def _ask_anew(talk: Conversation, text: str) -> None:
    """Puts a message in the place of the last one; what stood there stays if no answer comes."""
    messages = talk.session.messages
    before = list(messages)
    talk.session.undo()
    n_kept = len(messages)
    try:
        talk.ask(text)
    finally:
        if len(messages) == n_kept:
            messages[:] = before


def _reset(talk: Conversation, _argument: str) -> None:
    talk.session.reset()
    talk.tell("the conversation begins anew" + ("; the system prompt stays" if talk.session.system else ""))


def _stats(talk: Conversation, _argument: str) -> None:
    talk.tell(*talk.report())


def _set(talk: Conversation, argument: str) -> None:
    name, _, text = argument.partition(" ")
    if not name:
        talk.tell(*(f"{key} {_shown(talk, one)}" for key, one in _adjustable().items()))
        return
    key = name.lstrip("-").replace("-", "_")
    one = settings().get(key)
    if one is None or not _is_adjustable(one):
        names = ", ".join(_adjustable())
        raise UsageError(f"{name} is no setting of a chat; there are {names}")
    if text.strip():
        talk.change(
            talk.settings.changed({one.group: {one.field: _value(one, key, text.strip())}}), talk.draft
        )
    talk.tell(f"{key} {_shown(talk, one)}")


def _draft(talk: Conversation, argument: str) -> None:
    draft = talk.draft
    if argument:
        kinds = "none" if argument == "off" else argument
        if not set(kinds.split(",")) <= set(DRAFTERS):
            draft, kinds = fetch(Registry.load(), argument, quiet=False), "model"
        drafts = replace(talk.settings.drafts, drafter=kinds)
        talk.change(replace(talk.settings, drafts=drafts), draft)
    kind_now = talk.engine.kind
    path = f" {talk.engine.draft.model.path}" if talk.engine.draft is not None else ""
    talk.tell("no drafter: plain decoding" if kind_now == "none" else f"drafter: {kind_now}{path}")


def _save(talk: Conversation, argument: str) -> None:
    if not argument:
        raise UsageError("/save needs a file's name")
    write_messages(Path(argument), talk.session.messages, str(talk.engine.target.model.path))
    talk.tell(f"saved: {argument}")


def _load(talk: Conversation, argument: str) -> None:
    if not argument:
        raise UsageError("/load needs a file's name")
    messages = read_messages(Path(argument))
    talk.engine.template.render(messages)  # what the template refuses is not taken
    talk.session.reset()
    talk.session.messages[:] = messages
    awaits = "; the last one awaits an answer: /retry" if messages[-1]["role"] == "user" else ""
    plural = "s" if len(messages) > 1 else ""
    talk.tell(f"{len(messages)} message{plural} from {argument}{awaits}")


def _copy(talk: Conversation, _argument: str) -> None:
    answer = talk.session.last_answer
    if answer is None:
        raise UsageError("there is no answer to copy yet")
    talk.tell(f"copied to {copy(without_reasoning(answer), find_terminal())}")


def _quit(_talk: Conversation, _argument: str) -> None:
    raise EOFError


COMMANDS = {
    "/help": Command("", "show the commands", _help),
    "/system": Command("[TEXT|off]", "show or change the system prompt", _system),
    "/undo": Command("", "take back the last message and its answer", _undo),
    "/retry": Command("", "answer the last message again", _retry),
    "/edit": Command("[TEXT]", "change the last message and answer it", _edit),
    "/reset": Command("", "begin anew; the system prompt stays", _reset),
    "/stats": Command("", "what drafting has brought so far", _stats),
    "/set": Command("[NAME [VALUE]]", "show or change a setting; default resets it", _set),
    "/draft": Command("[off|suffix|NAME]", "show or change the drafter", _draft),
    "/save": Command("FILE", "write the conversation as JSON", _save),
    "/load": Command("FILE", "go on from a saved conversation", _load),
    "/copy": Command("", "copy the last answer to the clipboard", _copy),
    "/quit": Command("", "leave (Ctrl-D does too)", _quit),
}


def _is_adjustable(one: Setting) -> bool:
    return (one.group in ADJUSTABLE and not one.info.hidden) or one.field in LIMITS


def _adjustable() -> dict[str, Setting]:
    """The settings that /set changes, each by its first name."""
    found: dict[tuple[str, str], str] = {}
    for key, one in settings().items():
        if _is_adjustable(one):
            found.setdefault((one.group, one.field), key)
    return {key: settings()[key] for key in found.values()}


def _shown(talk: Conversation, one: Setting) -> str:
    value = getattr(getattr(talk.settings, one.group), one.field)
    if value is None:
        return "(default)"
    text = json.dumps(value) if isinstance(value, list) else str(getattr(value, "value", value))
    first, *more = text.split("\n")
    return f"{first} …" if more else first


def _value(one: Setting, key: str, text: str) -> object:
    """The field's value for what was typed: as the flag takes it, as JSON, or "default"."""
    if text == "default":
        return getattr(PER_REQUEST[one.group](), one.field)
    if one.field == "logit_bias" and not text.startswith(("{", "[")):
        return text.split()
    if one.kind is bool:
        return one.converted(key, SWITCHES.get(text.lower(), text))
    if one.field == "logit_bias" or one.kind in (int, float, list[str]):
        with suppress(json.JSONDecodeError):
            return one.converted(key, json.loads(text))
    return one.converted(key, text)
