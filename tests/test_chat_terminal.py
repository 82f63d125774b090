"""``specdec chat`` as a person uses it, at a pseudo-terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

import signal
import termios
from base64 import b64decode

import pyte
import tiny
from chat import Chat
from person import ALT_ENTER, BRACKETED_PASTE, CTRL_C, CTRL_D, ROWS, UP, Person
from screen import Screen
from specdec.cli.view import neutral

PROMPT = r"\x1b\[\?2004h[\s\S]*?\x1b\[\?25h"  # the editor takes over, and shows the cursor behind its prompt
GREETING = ["target.gguf, drafter draft.gguf. /help lists the commands, C", "trl-D leaves."]
STATISTICS = r"\d+ tok · [\d.]+ tok/s · \d+ % accepted( · [\d.]+ tok/round)? · [\d.]+× plain"
LONG = ("-n", 2000, "-c", 4096, "--ignore-eos")


class Talker(Person):
    """Somebody who talks with a model."""

    def says(self, text: str) -> None:
        """Types a turn, and waits for the next prompt."""
        self.types(text + "\r")
        self.sees(PROMPT)

    def leaves(self) -> int:
        self.types(CTRL_D)
        return self.waits()

    @property
    def settings(self) -> list[Any]:
        """How the terminal treats what is typed."""
        return termios.tcgetattr(self.process.child_fd)


Sit = Callable[..., Talker]


@pytest.fixture
def sit(chat: Chat) -> Iterator[Sit]:
    """Starts a chat in a terminal, and waits for its prompt."""
    people: list[Talker] = []

    def sit(
        *args: object,
        model: str = "target.gguf",
        columns: int = 60,
        redirect: str = "",
        first: str = PROMPT,
        **env: str,
    ) -> Talker:
        command = ["sh", "-c", f'exec "$@" {redirect}', "sh", *chat.command(*args, model=model)]
        env = {**chat.env, "TERM": "xterm-256color", "PYTHONUTF8": "1", **env}
        del env["COLUMNS"]
        people.append(Talker(command, env=env, cwd=chat.cwd, columns=columns))
        people[-1].sees(first)
        return people[-1]

    yield sit
    for person in people:
        person.goes()


def rows(text: str, columns: int = 60) -> list[str]:
    """What a terminal shows of an answer."""
    screen = Screen(columns, ROWS)
    pyte.Stream(screen).feed(neutral(text).replace("\n", "\r\n"))
    return screen.transcript()


def unwrapped(raw: str) -> str:
    """The characters of what a terminal was sent, without the bar, the styles and the white space."""
    raw = re.sub(r"\x1b7.*?\x1b8", "", raw)
    return "".join(re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\x1bD", "", raw).split())


def assert_restored(person: Talker) -> None:
    """The terminal is as it was before the program."""
    assert person.terminal.margins is None
    assert not person.terminal.cursor.hidden
    assert BRACKETED_PASTE not in person.terminal.mode
    assert person.settings[3] & termios.ECHO
    assert person.settings[3] & termios.ICANON


# --- a conversation


def test_a_conversation_on_the_screen(sit: Sit, chat: Chat) -> None:
    person = sit("-n", 100)
    assert person.screen() == [*GREETING, ">"]
    person.says("the and of")
    person.says("and then")
    person.says("/save a.json")
    assert person.leaves() == 0
    _, first, _, second = (message["content"] for message in chat.saved("a.json"))
    shown = person.screen()
    figures = [row for row in shown if re.fullmatch(STATISTICS, row)]
    assert len(figures) == 2
    assert shown == [
        *GREETING, "> the and of", *rows(first), figures[0], "> and then", *rows(second), figures[1],
        "> /save a.json", "saved: a.json", ">",
    ]  # fmt: skip
    assert f"\x1b[2m{figures[0]}\x1b[0m" in person.raw
    assert_restored(person)


def test_the_bar_is_there_while_the_model_answers(sit: Sit) -> None:
    person = sit("-n", 100)
    person.says("the and of")
    answering = person.screen_at("tok/s")
    assert answering.margins == (0, ROWS - 2)
    assert "tok/s" in answering.row(ROWS - 1)
    assert person.terminal.margins is None
    assert sum("tok/s" in row for row in person.screen()) == 1  # the line of statistics
    person.types("/quit\r")
    assert person.waits() == 0
    assert_restored(person)
