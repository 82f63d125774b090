"""Lines typed by a person at a pseudo-terminal, and lines that a script sends through a pipe."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

import pytest

if sys.platform == "win32":
    pytest.skip("needs a pseudo-terminal", allow_module_level=True)

import io
import termios

import pexpect
from person import ALT_ENTER, BACKSPACE, CTRL_C, CTRL_D, CTRL_J, PATIENCE, UP, Person
from specdec.cli.line import Script

from specdec.errors import UsageError

READY = r">(?: |[\s\S]*\x1b\[\?25h)$"  # a prompt, and the cursor shown behind it

# Reads turns until the end and prints each. Its arguments: the history, a default, what to do
# between turns, and how many bytes will be typed ahead then.
DRIVER = """
import logging, signal, sys, time
from array import array
from contextlib import ExitStack
from fcntl import ioctl
from pathlib import Path
from termios import FIONREAD
logging.basicConfig(format="warning: %(message)s")
from specdec.cli.interrupts import interruptible
from specdec.cli.line import lines
history, default, between, ahead = sys.argv[1:]
COMMANDS = {"/help": "show the commands", "/history": "show the turns", "/model": "change the model"}
turns = lines(COMMANDS, lambda command, typed: [
    name for name in ("tiny", "target", "wide") if command == "/model" and name.startswith(typed)
], Path(history))
print("interactive", turns.interactive, "prompt_toolkit" in sys.modules, flush=True)
with ExitStack() as stack:
    if between == "interruptible":
        stack.enter_context(interruptible())
        wakeup = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
    while True:
        try:
            print(ascii(turns.read(default)), flush=True)
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        except EOFError:
            print("ended", flush=True)
            break
        if int(ahead):
            with turns.busy():
                print("working", flush=True)
                while True:  # until what is typed ahead has come through the terminal
                    waiting = array("i", [0])
                    ioctl(0, FIONREAD, waiting)
                    if waiting[0] == int(ahead):
                        break
                    time.sleep(0.01)
                print("worked", flush=True)
        if between == "interruptible":
            kept = signal.set_wakeup_fd(-1)
            signal.set_wakeup_fd(kept, warn_on_full_buffer=False)
            print("kept", kept == wakeup, signal.getsignal(signal.SIGINT) is not signal.default_int_handler)
"""


class Typist(Person):
    """Somebody who types at the driver."""

    def turn(self, text: str, expected: str) -> None:
        """Types into a prompt, sends it, and waits for the next prompt."""
        self.types(text + "\r")
        self.sees(re.escape(ascii(expected)))
        self.sees(READY)

    def leaves(self) -> int:
        """Ctrl-D; the exit code."""
        self.types(CTRL_D)
        self.sees("ended")
        return self.waits()


Sit = Callable[..., Typist]


@pytest.fixture
def sit(tmp_path: Path) -> Iterator[Sit]:
    """Starts the driver in a terminal and waits for its prompt."""
    people: list[Typist] = []
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER)

    def sit(
        history: Path = tmp_path / "state" / "history",
        *,
        default: str = "",
        between: str = "",
        ahead: int = 0,
        columns: int = 60,
        redirect: str = "",
        prefix: str = "",
        **env: str,
    ) -> Typist:
        arguments = [sys.executable, str(driver), str(history), default, between, str(ahead)]
        command = ["sh", "-c", f'{prefix} exec "$@" {redirect}', "sh", *arguments]
        clean = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "LC_ALL")}
        env = {
            **clean,
            "TERM": "xterm-256color",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONUTF8": "1",
            **env,
        }
        person = Typist(command, columns=columns, env=env, cwd=tmp_path)
        people.append(person)
        person.sees(READY)
        return person

    yield sit
    for person in people:
        person.goes()


# --- the editor


def test_turns_are_read_and_shown_once(sit: Sit) -> None:
    person = sit()
    person.turn("hello", "hello")
    person.turn("wrog" + BACKSPACE + "ng", "wrong")
    person.turn("", "")
    person.turn("日本語 é 🙂", "日本語 é 🙂")
    assert person.leaves() == 0
    assert person.screen() == [
        "interactive True True", "> hello", "'hello'", "> wrong", "'wrong'", ">", "''",
        "> 日本語 é 🙂", ascii("日本語 é 🙂"), ">", "ended",
    ]  # fmt: skip


def test_history_lasts_over_sessions(sit: Sit, tmp_path: Path) -> None:
    person = sit()
    person.turn("first", "first")
    person.turn("second" + CTRL_J + "line", "second\nline")
    person.turn(UP + UP + UP, "first")  # the second row of the last turn, its first row, the turn before
    person.leaves()
    person = sit()
    person.turn(UP + "!", "first!")
    person.turn(UP + UP + UP, "second\nline")
    person.leaves()
    file = tmp_path / "state" / "history"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700
    said = [line for line in file.read_text().splitlines() if line.startswith("+")]
    assert said == ["+first", "+second", "+line", "+first", "+first!", "+second", "+line"]


def test_a_history_that_others_may_read_is_closed_to_them(sit: Sit, tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("\n# a time\n+a private matter\n")
    file.chmod(0o644)
    person = sit(file)
    assert file.stat().st_mode & 0o777 == 0o600
    person.turn(UP, "a private matter")
    person.leaves()


def test_a_paste_of_three_lines_is_one_turn_that_can_be_edited(sit: Sit) -> None:
    person = sit()
    person.pastes("one\r\n\ttwo\nthree")
    person.sees("three")
    person.turn(" and" + UP + BACKSPACE + "e", "one\n\ttwe\nthree and")
    person.leaves()
    assert person.screen() == [
        "interactive True True", "> one", "          twe", "  three and", ascii("one\n\ttwe\nthree and"),
        ">", "ended",
    ]  # fmt: skip


def test_alt_enter_and_ctrl_j_begin_a_new_line(sit: Sit) -> None:
    person = sit()
    person.turn("a" + ALT_ENTER + "b" + CTRL_J + "c", "a\nb\nc")
    person.turn(UP + "!", "a\nb\nc!")
    person.leaves()


def test_commands_and_arguments_are_completed(sit: Sit) -> None:
    person = sit()
    person.turn("/he\t", "/help")
    person.turn("/h\ti\t", "/history")
    person.turn("/model wi\t", "/model wide")
    person.turn("/model t\ti\t", "/model tiny")
    person.turn("he\t", "he")
    person.turn("/nothing\t", "/nothing")
    person.types("/h\t")
    person.sees("show the commands")
    person.types("\t")
    person.shows("> /help")
    person.types("\t")
    person.shows("> /history")
    person.turn("", "/history")
    person.leaves()


def test_ctrl_c_and_ctrl_d(sit: Sit) -> None:
    person = sit()
    person.types("half a turn" + CTRL_C)
    person.sees("interrupted")
    person.sees(READY)
    person.process.kill(signal.SIGINT)
    person.sees("interrupted")
    person.sees(READY)
    person.turn("abc\x01" + CTRL_D, "bc")  # on a line that is not empty it deletes
    assert person.leaves() == 0


@pytest.mark.parametrize("default", ["an earlier turn", "of two\nlines"])
def test_a_default_is_there_to_be_edited(sit: Sit, default: str) -> None:
    person = sit(default=default)
    person.turn("!", default + "!")
    person.types(CTRL_C)
    person.sees("interrupted")


@pytest.mark.parametrize("columns", [60, 30])
def test_a_resize_while_typing_loses_nothing(sit: Sit, columns: int) -> None:
    person = sit(columns=45)
    text = "a turn that is longer than a narrow terminal "
    person.types(text)
    person.shows("> a turn that is longer than a narrow termina")
    person.resizes(columns)
    person.sees(r"\x1b\[\?25h")  # drawn anew
    person.turn("is wide", text + "is wide")
    person.leaves()


def test_colours_are_off_where_they_are_not_wanted(sit: Sit) -> None:
    for env, coloured in ({}, True), ({"NO_COLOR": "1"}, False):
        person = sit(**env)
        person.types("/h")
        person.sees("show the turns")
        person.types(CTRL_C)
        person.sees("interrupted")
        person.sees(READY)
        person.leaves()
        assert bool(re.search(r"\x1b\[[\d;]*[34]8;5;", person.raw)) == coloured


def test_the_editor_is_not_in_the_output(sit: Sit, tmp_path: Path) -> None:
    for redirect in ("> log", "> log 2> errors"):
        person = sit(redirect=redirect)
        person.types("hello\r" + CTRL_D)
        person.sees(pexpect.EOF)
        assert person.screen() == ["> hello", ">"]
        assert (tmp_path / "log").read_text() == "interactive True True\n'hello'\nended\n"
    assert (tmp_path / "errors").read_text() == ""


def test_bytes_that_are_no_text_do_no_harm(sit: Sit, tmp_path: Path) -> None:
    person = sit()
    os.write(person.process.child_fd, b"caf\xe9 ok\r")
    person.sees(re.escape(ascii("caf\ufffd ok")))
    person.sees(READY)
    person.turn(UP, "caf\ufffd ok")
    person.leaves()
    assert "caf\ufffd ok" in (tmp_path / "state" / "history").read_text()


def test_a_history_that_cannot_be_kept_is_a_warning(sit: Sit, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    person = sit(tmp_path / "file" / "history")
    person.turn("first", "first")
    person.turn(UP, "first")
    person.leaves()
    assert person.raw.count("warning: ") == 1
    said = " ".join("".join(person.screen()[:3]).split())
    assert said.startswith(f"warning: {tmp_path / 'file' / 'history'}: ")
    assert "not kept for the next session" in person.raw.replace("\r\n", "")


def test_a_full_disk_is_a_warning_too(sit: Sit, tmp_path: Path) -> None:
    person = sit(prefix="ulimit -f 0;")
    person.types("first\r")
    assert "warning: " in person.sees("'first'")
    person.sees(READY)
    person.turn(UP, "first")
    person.leaves()
    assert person.raw.count("warning: ") == 1


def test_a_history_linked_to_nothing_is_none(sit: Sit, tmp_path: Path) -> None:
    (tmp_path / "history").symlink_to("/dev/null")
    mode = os.stat("/dev/null").st_mode
    person = sit(tmp_path / "history")
    person.turn("first", "first")
    person.leaves()
    assert os.stat("/dev/null").st_mode == mode
    assert "warning" not in person.raw


def test_a_signal_leaves_the_terminal_as_it_was(sit: Sit) -> None:
    for number, prompt in (signal.SIGTERM, ""), (signal.SIGHUP, "half a turn"):
        person = sit()
        mode = termios.tcgetattr(person.process.child_fd)[3]
        assert not mode & termios.ECHO
        person.types(prompt)
        person.shows(f"> {prompt}".rstrip())
        person.process.kill(number)
        assert (number, person.waits(), person.raw[-8:]) == (number, 128 + number, "\x1b[?2004l")


def test_the_editor_gives_the_signals_back(sit: Sit) -> None:
    person = sit(between="interruptible")
    person.types("hello\r")
    person.sees("kept True True")
    person.sees(READY)
    person.leaves()


def test_what_is_typed_ahead_waits_for_the_next_line(sit: Sit) -> None:
    ahead = "and then" + BACKSPACE + BACKSPACE + BACKSPACE + BACKSPACE + "what"
    person = sit(ahead=len(ahead))
    person.types("go\r")
    person.sees("working")
    person.types(ahead)
    assert "what" not in person.sees("worked")
    person.sees(READY)
    person.shows("> and what")
    person.types("?\r")
    person.sees(re.escape(ascii("and what?")))
    assert [row for row in person.screen() if "what" in row] == ["> and what?", "'and what?'"]


# --- a terminal without escapes


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_dumb_terminal_gets_no_escapes(sit: Sit, term: str, tmp_path: Path) -> None:
    person = sit(TERM=term)
    person.types("hallo" + BACKSPACE + BACKSPACE + BACKSPACE + BACKSPACE + "ello\r")
    person.sees("'hello'")
    person.sees(READY)
    person.types("one\\\r")
    person.sees("  $")
    person.types("two\r")
    person.sees(re.escape(ascii("one\ntwo")))
    person.sees(READY)
    person.types(CTRL_C)
    person.sees("interrupted")
    person.sees(READY)
    person.leaves()
    assert person.raw.startswith("interactive True False\r\n> ")
    assert not re.search(r"[\x1b\x07]", person.raw)
    assert not (tmp_path / "state").exists()


def test_a_dumb_terminal_offers_the_default(sit: Sit) -> None:
    person = sit(default="an earlier turn", TERM="dumb")
    assert person.raw.endswith("\r\nan earlier turn\r\n(Enter keeps this) > ")
    person.turn("", "an earlier turn")
    person.turn("another", "another")
    person.leaves()


# --- scripts


def turns(script: Script) -> list[str]:
    read = []
    while True:
        try:
            read.append(script.read())
        except EOFError:
            return read


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo", ["one", "two"]),
        (b"\xef\xbb\xbfone\n\n", ["one", ""]),
        ("日本語\n".encode(), ["日本語"]),
        (b"one\\\ntwo\\\r\nthree\nfour\n", ["one\ntwo\nthree", "four"]),
        (b"one\\", ["one"]),
        (b"one\\\n", ["one"]),
        (b"a \\ b\n", ["a \\ b"]),
        (b" spaces \t\n", [" spaces \t"]),
    ],
)
def test_a_script_is_one_turn_a_line(raw: bytes, expected: list[str]) -> None:
    assert turns(Script(io.BytesIO(raw))) == expected


def test_a_script_knows_its_line() -> None:
    script = Script(io.BytesIO(b"one\\\ntwo\nthree\n"))
    assert not script.interactive
    assert script.line_number == 0
    assert (script.read("ignored"), script.line_number) == ("one\ntwo", 2)
    assert (script.read(), script.line_number) == ("three", 3)
    with script.busy(), pytest.raises(EOFError):
        script.read()
    assert script.line_number == 3


def test_a_line_that_is_no_text_is_named() -> None:
    script = Script(io.BytesIO(b"one\ncaf\xe9\n"))
    assert script.read() == "one"
    with pytest.raises(UsageError, match=r"^stdin: line 2 is not UTF-8 \(byte 3 is 0xe9\)"):
        script.read()


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.cli.line.LARGEST", 1 << 20)
    assert turns(Script(io.BytesIO(b"x" * (1 << 20)))) == ["x" * (1 << 20)]
    with pytest.raises(UsageError, match="line 1 has more than 1 MiB"):
        Script(io.BytesIO(b"x" * (1 << 20) + b"\n")).read()


@pytest.fixture
def piped(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts the driver with a pipe, or what is given, as its stdin."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(stdin: int | IO[bytes] = subprocess.PIPE) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-c", DRIVER, str(tmp_path / "history"), "", "", "0"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            cwd=tmp_path,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_a_slow_writer_is_answered_line_by_line(piped: Callable[..., subprocess.Popen[bytes]]) -> None:
    process = piped()
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"interactive False False\n"
    for part in (b"fi", b"rst\nsec", b"ond\n"):
        process.stdin.write(part)
        process.stdin.flush()
        if b"\n" in part:  # the answer comes before more is written
            answer = process.stdout.readline()
            assert answer == (b"'first'\n" if b"sec" in part else b"'second'\n")
    out, err = process.communicate(b"last", timeout=PATIENCE)
    assert (out, err, process.returncode) == (b"'last'\nended\n", b"", 0)


def test_a_stream_that_cannot_be_read_is_named() -> None:
    class Gone(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            raise OSError(5, "Input/output error")

    with pytest.raises(UsageError, match=r"^stdin: cannot read it: Input/output error$"):
        Script(Gone()).read()


def test_a_closed_stdin_is_the_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", DRIVER, str(tmp_path / "history"), "", "", "0"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *command],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=tmp_path,
        timeout=PATIENCE,
    )
    assert done.stdout == b"interactive False False\nended\n"
