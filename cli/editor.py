"""The line a person writes a turn in: editing, history, completion of commands."""

from __future__ import annotations

import logging
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO

from prompt_toolkit import PromptSession
from prompt_toolkit.application import Application
from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, has_focus
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.layout.processors import TabsProcessor
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from .line import CONTINUATION, PROMPT, find_terminal

LOG = logging.getLogger("specdec")


class LineEditor:
    """Turns typed at a terminal. Enter sends; Alt-Enter or Ctrl-J begins a line; a paste may have many."""

    interactive = True

    def __init__(
        self,
        commands: Mapping[str, str],
        complete: Callable[[str, str], Iterable[str]] | None,
        history: Path,
        terminal: TextIO | None = None,
    ) -> None:
        """The arguments are those of ``line.lines``. A history that cannot be kept is a warning."""
        self._history = History(history)
        self._session: PromptSession[str] = PromptSession(
            PROMPT,
            multiline=True,
            prompt_continuation=CONTINUATION,
            history=self._history,
            completer=Commands(commands, complete),
            complete_while_typing=Condition(lambda: _is_command(self._session.default_buffer.document)),
            key_bindings=_keys(),
            input_processors=[TabsProcessor(tabstop=8, char1=" ", char2=" ", style="")],
            enable_suspend=True,
            output=_output(terminal or find_terminal()),
        )
        self._complain()

    def read(self, default: str = "") -> str:
        """The next turn. Raises EOFError for Ctrl-D on an empty line and KeyboardInterrupt for Ctrl-C."""
        with Farewell(self._session.app) as farewell:
            turn = self._session.prompt(default=default, pre_run=farewell.stop, handle_sigint=False)
        self._complain()
        return _sound(turn)

    def busy(self) -> AbstractContextManager[None]:
        """While this is open, what is typed ahead does not show; the next line begins with it."""
        return _unechoed()

    def _complain(self) -> None:
        complaint, self._history.complaint = self._history.complaint, None
        if complaint:  # said now, since a line on the screen would be torn by it
            LOG.warning(complaint)


class History(FileHistory):
    """Past turns in a file that is the user's alone; in memory where that cannot be."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.complaint: str | None = None  # why turns are no longer kept, until it is said
        self._kept = False
        self._past: list[str] = []
        self._path = path
        try:
            self._kept = _private(path)
            if self._kept:
                self._past = list(super().load_history_strings())
        except OSError as error:
            self._give_up(error)

    def load_history_strings(self) -> Iterable[str]:
        return self._past

    def store_string(self, string: str) -> None:
        try:
            if self._kept:
                super().store_string(_sound(string))
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self._kept = False
        self.complaint = f"{self._path}: what you type is not kept for the next session: {error.strerror}"


class Commands(Completer):
    """Completes commands, and their arguments by what ``complete`` knows."""

    def __init__(
        self, commands: Mapping[str, str], complete: Callable[[str, str], Iterable[str]] | None
    ) -> None:
        self._commands = commands
        self._complete = complete

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        if not _is_command(document):
            return
        command, space, argument = document.text_before_cursor.partition(" ")
        if not space:
            for name, meaning in self._commands.items():
                if name.startswith(command):
                    yield Completion(name, -len(command), display_meta=meaning)
        elif self._complete:
            argument = argument.lstrip()
            for value in self._complete(command, argument):
                yield Completion(value, -len(argument))


def _is_command(document: Document) -> bool:
    """Whether a command or its argument is being typed."""
    return document.text.startswith("/") and document.line_count == 1


def _keys() -> KeyBindings:
    keys = KeyBindings()
    typing = has_focus(DEFAULT_BUFFER)

    @keys.add("enter", filter=typing)
    def send(event: KeyPressEvent) -> None:
        event.current_buffer.validate_and_handle()

    @keys.add("escape", "enter", filter=typing)
    @keys.add("c-j", filter=typing)
    def begin_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("tab", filter=typing)
    def complete(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        found = list(
            buffer.completer.get_completions(buffer.document, CompleteEvent(completion_requested=True))
        )
        chosen = buffer.complete_state and buffer.complete_state.current_completion
        if len(found) == 1 and not chosen:  # at once, so that an Enter right behind it sends the whole
            buffer.apply_completion(found[0])
        elif buffer.complete_state:
            buffer.complete_next()
        else:
            buffer.start_completion(insert_common_part=True)

    return keys


def _output(terminal: TextIO) -> Output:
    output = create_output(terminal)
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False  # a late answer would show up as text, and a missing one is waited for
    return output


def _private(path: Path) -> bool:
    """Makes the file if need be, its owner's alone. False for what is no file, as a link to /dev/null."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        regular = stat.S_ISREG(os.fstat(file).st_mode)
    finally:
        os.close(file)
    if regular:
        path.chmod(0o600)
    return regular


def _sound(text: str) -> str:
    # Bytes that are not in the terminal's encoding arrive as lone surrogates.
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


class Farewell:
    """While the editor runs, a signal that would end the process or interrupt it ends the editor first.

    So the terminal is as it was when the signal takes effect, at the end of the `with`. (Raised in the midst
    of the editor's event loop, it would not be.) That loop's wakeup descriptor is taken back, too.
    """

    def __init__(self, app: Application[str]) -> None:
        self._app = app
        self._received: int | None = None
        self._wakeup = -1
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Farewell:
        self._wakeup = signal.set_wakeup_fd(-1)
        for name in ("SIGINT", "SIGTERM", "SIGHUP"):
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) not in (signal.SIG_IGN, None):
                self._handlers[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *failure: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup, warn_on_full_buffer=False)
        if self._received == signal.SIGINT:
            raise KeyboardInterrupt
        if self._received is not None:
            if self._handlers[self._received] == signal.SIG_DFL:
                sys.exit(128 + self._received)  # as the signal would, but through every `finally`
            signal.raise_signal(self._received)

    def stop(self) -> None:
        """Ends the editor if a signal has come. It runs in the event loop."""
        if self._received is not None and self._app.future and not self._app.future.done():
            self._app.exit(exception=EOFError)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self._received in (None, signal.SIGINT):
            self._received = number
        if self._app.loop:
            self._app.loop.call_soon_threadsafe(self.stop)


@contextmanager
def _unechoed() -> Iterator[None]:
    """Keys wait as they are. Ctrl-C interrupts, and discards neither them nor what is yet to be shown."""
    try:
        import termios
    except ImportError:  # the console of Windows shows nothing before it is read
        yield
        return
    file = sys.stdin.fileno()
    try:
        before = termios.tcgetattr(file)
    except termios.error:  # the terminal is gone
        yield
        return
    local = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    quiet = [*before[:3], local, *before[4:]]
    termios.tcsetattr(file, termios.TCSANOW, quiet)
    try:
        yield
    finally:
        with suppress(termios.error):
            termios.tcsetattr(file, termios.TCSANOW, before)
