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

import pexpect
import pyte
import tiny
from chat import Chat
from person import ALT_ENTER, BRACKETED_PASTE, CTRL_C, CTRL_D, ROWS, UP, Person
from screen import Screen
from specdec.cli.plain import neutral

PROMPT = r"\x1b\[\?2004h[\s\S]*?\x1b\[\?25h"  # the editor takes over, and shows the cursor behind its prompt
GREETING = ["target.gguf, drafter draft.gguf. /help lists the commands, C", "trl-D leaves."]
STATISTICS = r"\d+ tok · [\d.]+ tok/s · \d+ % accepted( · [\d.]+ tok/round)? · [\d.]+× plain"
LONG = ("-n", 20000, "-c", 32768, "--ignore-eos")


class Talker(Person):
    """Somebody who talks with a model."""

    def says(self, text: str) -> None:
        """Types a turn, and waits for the next prompt."""
        self.types(text + "\r")
        self.sees(PROMPT)

    def settles(self) -> None:
        """Waits until the editor has the terminal and nothing more comes."""
        anything = [pexpect.TIMEOUT, r"[\s\S]+"]
        while self.process.expect(anything, timeout=0.5) or BRACKETED_PASTE not in self.terminal.mode:
            pass

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
        prefix: str = "",
        first: str = PROMPT,
        **env: str,
    ) -> Talker:
        command = ["sh", "-c", f'{prefix} exec "$@" {redirect}', "sh", *chat.command(*args, model=model)]
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


def test_a_narrow_terminal_keeps_every_line_in_one_row(sit: Sit) -> None:
    person = sit("-n", 100, columns=40)
    person.says("the and of")
    assert re.fullmatch(r" [\d.]+ tok/s │ .*", person.screen_at("plain").row(ROWS - 1))
    person.says("/stats")
    shown = person.screen()
    figures = next(row for row in shown if row.startswith("100 tok"))
    assert figures.endswith(" plain")
    chart = shown[shown.index("accepted, by position in the draft") + 1 :]
    assert [row[:5] for row in chart[:2]] == ["  1 █", "  2 █"]
    assert person.leaves() == 0


# --- the line


def test_a_paste_is_one_turn_and_alt_enter_begins_a_line(sit: Sit, chat: Chat) -> None:
    person = sit()
    person.pastes("the\rand\r\n\tof")
    person.shows("          of")
    person.says("")
    person.says("a" + ALT_ENTER + "b")
    person.says("/save a.json")
    assert person.leaves() == 0
    asked = [message["content"] for message in chat.saved("a.json") if message["role"] == "user"]
    assert asked == ["the\nand\n\tof", "a\nb"]


def test_what_was_typed_comes_back_in_the_next_session(sit: Sit, chat: Chat) -> None:
    person = sit()
    person.says("the and of")
    assert person.leaves() == 0
    person = sit()
    person.says(UP + " this")
    person.says(UP + UP)
    person.says("/save a.json")
    assert person.leaves() == 0
    asked = [message["content"] for message in chat.saved("a.json") if message["role"] == "user"]
    assert asked == ["the and of this", "the and of"]


def test_a_history_that_cannot_be_kept_is_said_once(sit: Sit, chat: Chat) -> None:
    person = sit(prefix="ulimit -f 0;")
    person.says("the and of")
    person.says("and then")
    assert person.leaves() == 0
    said = "".join(person.screen())
    complaint = f"specdec: {chat.cwd}/state/specdec/history: what you type is not kept for the next session"
    assert said.count(complaint) == said.count("specdec: ") == 1


def test_commands_are_completed(sit: Sit) -> None:
    person = sit()
    person.says("the and of")
    person.types("/re\t")
    person.sees("answer the last message again")
    person.sees("begin anew; the system prompt stays")
    person.types("s\t\r")
    person.sees("the conversation begins anew")
    person.sees(PROMPT)
    assert "> /reset" in person.screen()
    assert person.leaves() == 0


def test_edit_begins_with_the_last_message(sit: Sit, chat: Chat) -> None:
    person = sit()
    person.says("the and of")
    person.types("/edit\r")
    person.shows("> the and of")
    person.sees(PROMPT)
    assert person.screen()[-1] == "> the and of"
    person.types(" this\r")
    person.sees(PROMPT)
    person.says("/save a.json")
    person.types("/edit\r")
    person.sees(PROMPT)
    person.types(CTRL_C)
    person.sees("nothing is changed")
    person.sees(PROMPT)
    person.says("/save b.json")
    assert person.leaves() == 0
    assert [message["content"] for message in chat.saved("a.json")][::2] == ["the and of this"]
    assert chat.saved("b.json") == chat.saved("a.json")


def test_what_is_typed_during_an_answer_is_in_the_next_prompt_once(sit: Sit, chat: Chat) -> None:
    person = sit("-n", 1000)
    person.types("the and of\r")
    person.sees("tok/s")
    person.types("and then")
    person.sees(PROMPT)
    person.shows("> and then")
    person.says("")
    person.says("/save a.json")
    assert person.leaves() == 0
    assert [message["content"] for message in chat.saved("a.json")][::2] == ["the and of", "and then"]
    assert [row for row in person.screen() if "and then" in row] == ["> and then"]


def test_ctrl_c_leaves_what_is_typed_ahead(sit: Sit) -> None:
    person = sit(*LONG)
    person.types("the and of\r")
    person.sees("tok/s")
    person.types("and then")
    person.types(CTRL_C)
    person.sees(PROMPT)
    person.shows("> and then")
    person.types(CTRL_C)
    person.sees(PROMPT)
    assert person.leaves() == 0
    assert [row for row in person.screen() if "and then" in row] == ["> and then"]


# --- interruptions


def test_ctrl_c_stops_an_answer_and_keeps_what_there_is(sit: Sit, chat: Chat) -> None:
    person = sit(*LONG)
    person.types("the and of\r")
    person.sees("tok/s")
    person.types(CTRL_C)
    person.sees(PROMPT)
    person.says("/save a.json")
    answer = chat.saved("a.json")[1]["content"]
    shown = person.screen()
    figures = [row for row in shown if re.fullmatch(STATISTICS, row)]
    assert 0 < int(figures[0].split()[0]) < 20000
    assert shown == [
        *GREETING,
        "> the and of",
        *rows(answer),
        *figures,
        "> /save a.json",
        "saved: a.json",
        ">",
    ]
    person.says("/set max_tokens 16")
    person.says("and then")
    person.says("/save b.json")
    assert person.leaves() == 0
    assert_restored(person)
    assert chat.saved("b.json")[:2] == chat.saved("a.json")
    assert chat("and then").stdout != chat.saved("b.json")[3]["content"] + "\n"


def test_ctrl_c_shows_what_was_held_back(sit: Sit, chat: Chat) -> None:
    """What may be the beginning of a tag waits for more, and an interrupted answer has no more."""
    person = sit(
        *LONG, "--logit-bias", f"{tiny.vocab('bpe', 768).texts.index('<')}+1000", model="thinks.gguf"
    )
    person.types("the and of\r")
    person.sees("tok/s")
    person.types(CTRL_C)
    person.sees(PROMPT)
    person.says("/save a.json")
    assert person.leaves() == 0
    answer = chat.saved("a.json")[1]["content"].removeprefix("<think>\n")
    assert set(answer) == {"<"}
    assert person.screen()[3 : 3 + len(rows(answer))] == rows(answer)


def test_ctrl_c_does_not_stop_what_comes_after_it(sit: Sit, chat: Chat) -> None:
    person = sit(*LONG, "--drafter", "lookup")
    person.types("the and of\r")
    person.sees("tok/s")
    person.types(CTRL_C)
    person.sees(PROMPT)
    person.says(f"/draft {chat.models / 'draft.gguf'}")
    person.says("/set max_tokens 16")
    person.says("/retry")
    assert person.leaves() == 0
    said = "".join(person.screen())
    assert "drafter: model " in said
    assert "stopped" not in said
    assert re.fullmatch(STATISTICS, person.screen()[-2])


def test_ctrl_c_before_the_answer_takes_the_message_back(sit: Sit, chat: Chat) -> None:
    tiny.llama(
        chat.cwd / "slow.gguf", chat_template=tiny.CHATML, tokenizer="bpe", n_vocab=768, add_bos=False,
        dtype="q8_0", n_layer=8, n_embd=512, n_ff=1024,
    )  # fmt: skip
    person = sit(
        "-m", chat.cwd / "slow.gguf", "--drafter", "none", "-c", 8192, "--system", "the and of " * 1500
    )
    person.types("the and of\r")
    person.sees("reading the conversation")
    person.types(CTRL_C)
    person.sees("stopped before the answer began; the conversation is as it was")
    person.sees(PROMPT)
    assert not any("reading" in row for row in person.screen())
    person.says("/save a.json")
    person.says("/system off")
    person.says("the and of")
    person.says("/save b.json")
    assert person.leaves() == 0
    assert_restored(person)
    assert [message["role"] for message in chat.saved("a.json")] == ["system"]
    assert [message["role"] for message in chat.saved("b.json")] == ["user", "assistant"]


def test_ctrl_c_at_the_prompt_says_how_to_leave(sit: Sit) -> None:
    person = sit()
    for typed in (CTRL_C, "half a turn" + CTRL_C):
        person.types(typed)
        person.sees("Ctrl-D or /quit leaves")
        person.sees(PROMPT)
    person.says("the and of")
    assert person.leaves() == 0
    shown = person.screen()
    assert shown[2:7] == [
        ">",
        "Ctrl-D or /quit leaves",
        "> half a turn",
        "Ctrl-D or /quit leaves",
        "> the and of",
    ]


@pytest.mark.parametrize("moment", [0.001, 0.02])
def test_ctrl_c_again_and_again(sit: Sit, moment: float) -> None:
    """In an answer, at its end, on the way to the prompt, at the prompt and behind it."""
    person = sit(*LONG)
    person.types("the and of\r")
    person.sees("tok/s")
    for _ in range(30):
        person.process.kill(signal.SIGINT)
        person.process.expect(pexpect.TIMEOUT, timeout=moment)
    person.settles()
    person.says("/set max_tokens 16")
    person.says("and then")
    assert person.leaves() == 0
    assert not re.search("Traceback|Error|Exception|specdec:", person.raw)
    assert_restored(person)


@pytest.mark.parametrize("answering", [False, True])
def test_sigterm_leaves_the_terminal_as_it_was(sit: Sit, answering: bool) -> None:
    person = sit(*LONG)
    if answering:
        person.types("the and of\r")
        person.sees("tok/s")
    person.process.kill(signal.SIGTERM)
    assert person.waits() == 143
    assert_restored(person)
    assert sum("tok/s" in row for row in person.screen()) == answering
    assert "Traceback" not in person.raw


@pytest.mark.parametrize("answering", [False, True])
def test_a_closed_terminal_is_the_end(sit: Sit, chat: Chat, answering: bool) -> None:
    person = sit(*LONG, redirect="2> errors")
    if answering:
        person.types("the and of\r")
        person.sees("tok/s")
    assert person.hangs_up() in (0, 129)
    assert "Traceback" not in (chat.cwd / "errors").read_text()


# --- other terminals


def test_resizes_while_the_model_answers(sit: Sit, chat: Chat) -> None:
    person = sit(*LONG)
    person.types("the and of\r")
    for columns in (40, 100):
        person.sees("tok/s")
        person.sees("tok/s")
        person.resizes(columns)
        person.sees("tok/s")
        person.sees("tok/s")
        assert person.terminal.margins == (0, ROWS - 2)
        assert [y for y, row in enumerate(person.terminal.rows()) if "tok/s" in row] == [ROWS - 1]
    person.types(CTRL_C)
    person.sees(PROMPT)
    assert sum("tok/s" in row for row in person.screen()) == 1
    person.says("/save a.json")
    assert person.leaves() == 0
    assert_restored(person)
    answer = unwrapped(neutral(chat.saved("a.json")[1]["content"]))
    assert answer in unwrapped(person.raw)


def test_resizes_while_a_person_types(sit: Sit, chat: Chat) -> None:
    person = sit()
    text = "a turn that is longer than a narrow terminal "
    person.types(text)
    person.shows(f"> {text}".rstrip())
    for columns in (40, 100):
        person.resizes(columns)
        person.sees(PROMPT)  # drawn anew
    person.says("is wide")
    person.says("/save a.json")
    assert person.leaves() == 0
    assert_restored(person)
    assert chat.saved("a.json")[0]["content"] == text + "is wide"


def test_a_dumb_terminal_gets_no_escapes(sit: Sit, chat: Chat) -> None:
    person = sit(first="> $", TERM="dumb")
    person.types("the and of\r")
    person.sees(STATISTICS + r"\r\n> ")
    person.types(CTRL_C)
    person.sees("Ctrl-D or /quit leaves\r\n> ")
    person.types("/save a.json\r")
    person.sees("saved: a.json\r\n> ")
    assert person.leaves() == 0
    assert "\x1b" not in person.raw
    answer = chat.saved("a.json")[1]["content"]
    assert person.screen()[2 : 3 + len(rows(answer))] == ["> the and of", *rows(answer)]


def test_no_color_is_plain(sit: Sit) -> None:
    for env, coloured in ({}, True), ({"NO_COLOR": "1"}, False):
        person = sit("--color", **env)
        person.says("the and of")
        person.types("/h")
        person.sees("show the commands")
        person.types(CTRL_C)
        person.sees(PROMPT)
        assert person.leaves() == 0
        assert bool(re.search(r"\x1b\[(?:[\d;]*;)?[34][\d;]+m", person.raw)) == coloured
        assert ("\x1b[2m" in person.raw) == coloured


def test_answers_go_to_a_file_and_the_rest_to_the_terminal(sit: Sit, chat: Chat) -> None:
    person = sit("-n", 100, redirect="> log", columns=50)
    person.says("the and of")
    person.says("/stats")
    person.says("/save a.json")
    assert person.leaves() == 0
    answer = chat.saved("a.json")[1]["content"]
    assert (chat.cwd / "log").read_text("utf-8") == answer + "\n"
    shown = person.screen()
    assert shown[2] == "> the and of"
    assert shown[3].startswith("100 tok · ")
    assert shown[3].endswith(" plain")
    assert shown[4] == "> /stats"
    assert_restored(person)


def test_thoughts_are_dim(sit: Sit) -> None:
    person = sit("-n", 40, model="thinks.gguf")
    person.says("the and of")
    assert person.leaves() == 0
    answer = person.raw[person.raw.index("\x1b[?2004l") :]
    assert re.match(r"\x1b\[\?2004l(?:\x1b7.*?\x1b8|\x1b\[A|\x1bD|\r|\n)*\x1b\[2m", answer), answer[:80]


@pytest.mark.parametrize("answer", ["", "y"])
def test_a_model_without_a_template_is_offered_one(sit: Sit, answer: str) -> None:
    person = sit(model="draft.gguf", first=re.escape("draft.gguf has no chat template. Use ChatML? [Y/n]: "))
    person.says(answer)
    person.says("the and of")
    assert person.leaves() == 0
    assert sum(bool(re.fullmatch(STATISTICS, row)) for row in person.screen()) == 1


@pytest.mark.parametrize(("answer", "code"), [("n\r", 2), (CTRL_C, 130), (CTRL_D, 130)])
def test_the_offer_can_be_declined(sit: Sit, answer: str, code: int) -> None:
    person = sit(model="draft.gguf", first=re.escape("Use ChatML? [Y/n]: "))
    person.types(answer)
    while person.process.expect([pexpect.EOF, pexpect.TIMEOUT], timeout=5):
        person.types(answer)  # Python's input() overlooks a signal that comes right before it waits
    assert person.waits() == code
    assert "Traceback" not in person.raw
    if answer == "n\r":
        assert "specdec: draft.gguf has no chat template; --chat-template" in person.raw


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have a clipboard of their own")
def test_copy_reaches_the_clipboard_of_the_terminal(sit: Sit, chat: Chat) -> None:
    person = sit()
    person.says("the and of")
    person.types("/copy\r")
    person.sees(r"\x1b\]52;c;([A-Za-z0-9+/=]+)\x07")
    copied = b64decode(person.process.match[1]).decode()
    person.sees(re.escape("copied to the terminal's clipboard (OSC 52)"))
    person.sees(PROMPT)
    person.says("/save a.json")
    assert person.leaves() == 0
    assert copied == chat.saved("a.json")[1]["content"]


# --- a full context


def test_a_full_context_forgets_the_oldest_turn_and_says_so(sit: Sit, chat: Chat) -> None:
    person = sit("-c", 200)
    for i in range(8):
        person.says(f"the {i} and of this that was")
    assert person.leaves() == 0
    said = "".join(person.screen())
    assert "specdec: the context is full: the oldest turn, “the 0 and of this that was…”, is no" in said
    assert said.count("“the 0 and of") == 1
    assert_restored(person)


def test_a_full_context_may_refuse_to_go_on(sit: Sit, chat: Chat) -> None:
    person = sit("-c", 200, "--context-full", "stop")
    for i in range(8):
        person.says(f"the {i} and of this that was")
    person.says("/save a.json")
    person.says("/undo")
    assert person.leaves() == 0
    said = "".join(person.screen())
    assert "specdec: the conversation has " in said
    assert "the context holds 200: take turns back, begin anew" in said
    assert chat.saved("a.json")[-1]["role"] == "assistant"
