"""A conversation as a JSON file: a list of messages, or an object that holds one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import UsageError

from .jsontext import parsed
from .output import destination
from .textfile import read_text, sound

if TYPE_CHECKING:
    from specdec.backend import Message

ROLES = ("system", "user", "assistant", "tool")


def read_messages(path: Path) -> list[Message]:
    """The messages in a file, '-' for stdin. Raises UsageError for what is no conversation."""
    source = "stdin" if str(path) == "-" else str(path)
    return parse_messages(parsed(read_text(path, "the conversation"), source), source)


def parse_messages(value: object, source: str) -> list[Message]:
    """The messages of a JSON value: a list of them, or an object with "messages".

    source: what error messages call it. Raises UsageError that names the first message that is wrong.
    """
    if isinstance(value, dict):
        value = value.get("messages")
    if not isinstance(value, list):
        raise UsageError(
            f'{source}: a conversation is a list of messages, or an object with "messages": '
            '[{"role": "user", "content": "Hello"}]'
        )
    if not value:
        raise UsageError(f"{source}: the conversation has no messages")
    return [_message(one, f"{source}: message {i}") for i, one in enumerate(value)]


def _message(value: object, where: str) -> Message:
    if not isinstance(value, dict):
        raise UsageError(f'{where} is not an object with "role" and "content"')
    for key in ("role", "content"):
        if key not in value:
            raise UsageError(f'{where} has no "{key}"')
        if not isinstance(value[key], str):
            raise UsageError(f'{where}: its "{key}" must be a string, not {json.dumps(value[key])[:40]}')
    if value["role"] not in ROLES:
        raise UsageError(f"{where}: its role must be one of {', '.join(ROLES)}, not {value['role'][:40]!r}")
    return {"role": value["role"], "content": sound(value["content"], f"{where}: its content")}


def write_messages(path: Path, messages: Sequence[Message], model: str) -> None:
    """Writes a conversation so that :func:`read_messages` reads it; a file is replaced whole or not at all.

    Raises UsageError when there cannot be such a file, SpecdecError when it cannot be written.
    """
    with destination(path) as file:
        json.dump({"model": model, "messages": list(messages)}, file, ensure_ascii=False, indent=1)
        file.write("\n")
