"""What is to be written on: a text or a conversation, from an argument, a file or a pipe."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import UsageError

from .messages import read_messages
from .options import PromptOptions
from .textfile import read_text, sound

if TYPE_CHECKING:
    from specdec import Engine
    from specdec.backend import Message
    from specdec.tokens import Tokens


@dataclass(frozen=True)
class Prompt:
    """A text to be answered, or continued as it stands (``raw``); or a conversation to be answered.

    system: an instruction before it; '' for none. source: what messages call it.
    Raises UsageError for what cannot be answered.
    """

    text: str | None = None
    messages: list[Message] | None = None
    system: str = ""
    raw: bool = False
    source: str = "the prompt"

    def __post_init__(self) -> None:
        if self.messages is None and not self.text:
            raise UsageError(f"{self.source} is empty: there is nothing to answer")
        if self.raw and (self.system or self.messages is not None):
            what = "a conversation" if self.messages is not None else "a system message"
            raise UsageError(
                f"{what} needs the model's chat template, and --raw continues a text without one: "
                "leave one of them out"
            )
        if not self.messages:
            return
        if self.system and self.messages[0]["role"] == "system":
            raise UsageError(f"{self.source} has a system message of its own: leave out --system or that one")
        if self.messages[-1]["role"] == "assistant":
            raise UsageError(f"{self.source} ends with the assistant's message: there is nothing to answer")

    def tokens(self, engine: Engine) -> Tokens:
        """Its token ids. Raises UsageError where it needs a chat template and there is none."""
        if self.text is not None and (self.raw or not (engine.has_template or self.system)):
            return engine.tokenize(self.text)
        conversation = self.messages or [{"role": "user", "content": self.text or ""}]
        if self.system:
            conversation = [{"role": "system", "content": self.system}, *conversation]
        return engine.tokenize_chat(conversation)


def read_prompt(options: PromptOptions) -> Prompt:
    """The prompt of the command line. Raises UsageError for none, for more than one, and for a bad one."""
    named = {
        "the argument": options.text,
        "-p": options.prompt,
        "-f": options.file,
        "--messages": options.messages,
    }
    given = {name: value for name, value in named.items() if value is not None}
    if len(given) > 1:
        raise UsageError(f"the prompt is given twice, by {' and by '.join(given)}; give it once")
    system = sound(options.system or "", "the text of --system")
    if options.messages is not None:
        source = "stdin" if str(options.messages) == "-" else str(options.messages)
        messages = read_messages(options.messages)
        return Prompt(messages=messages, system=system, raw=options.raw, source=source)
    name, text = _text(options)
    return Prompt(text, system=system, raw=options.raw, source=f"the prompt from {name}")


def _text(options: PromptOptions) -> tuple[str, str]:
    """Where the prompt's text comes from, and the text."""
    for name, text in (("the argument", options.text), ("-p", options.prompt)):
        if text is not None:
            return name, sound(text, f"the prompt from {name}")
    if options.file is not None:
        return "-f", read_text(options.file, "the prompt")
    if sys.stdin is None or sys.stdin.isatty():
        raise UsageError(
            'no prompt: give one as in specdec generate "Why is the sky blue?", with -f FILE, or in a pipe'
        )
    return "stdin", read_text(Path("-"), "the prompt")
