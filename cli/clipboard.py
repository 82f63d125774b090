"""Text into the clipboard: the system's, or the one of the terminal that a person sits at."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from base64 import b64encode
from contextlib import suppress
from tempfile import TemporaryFile
from typing import TextIO

from specdec.errors import SpecdecError

from .statusbar import takes_escapes

PATIENCE = 5.0  # seconds; a clipboard behind a network display may never answer
LARGEST = 74_994  # bytes; terminals take 100,000 of an escape sequence, and base64 makes 4 of 3
SCREEN_CHUNK = 250  # bytes of a string that screen passes on at once; it drops more than 768

# In a process of its own, since xclip and its like write to our terminal, hold our pipes, and may hang.
# Neither the working directory nor Qt, whose clipboard ends with the process, is to be found there.
COPY = """
import sys
sys.path[:] = [entry for entry in sys.path if entry]
sys.modules.update(dict.fromkeys(("qtpy", "PyQt5")))
import pyperclip
try:
    pyperclip.copy(sys.stdin.buffer.read().decode())
except pyperclip.PyperclipException as error:
    sys.exit(str(error).split(". ")[0])
"""


def copy(text: str, terminal: TextIO | None) -> str:
    """Puts `text` into the system's clipboard, or else the terminal's, and says in words which it was.

    Raises SpecdecError when there is neither, or when the text is too long for the terminal's.
    """
    data = text.encode(errors="replace")
    failure = _to_system(data)
    if failure is None:
        return "the clipboard"
    if terminal is None or not takes_escapes(terminal):
        raise SpecdecError(
            f"cannot copy: {failure}; on Linux, xclip, xsel or wl-clipboard makes the system's clipboard "
            "available"
        )
    if len(data) > LARGEST:
        raise SpecdecError(
            f"cannot copy {len(data):,} bytes: the clipboard of a terminal takes at most {LARGEST:,} "
            f"(the system's cannot be used: {failure})"
        )
    terminal.write(_osc52(data))
    terminal.flush()
    return "the terminal's clipboard (OSC 52)"


def _to_system(data: bytes) -> str | None:
    """Copies with pyperclip. Returns what failed, None when nothing did."""
    with TemporaryFile() as said:  # not a pipe: xclip stays behind and would keep it open
        try:
            process = subprocess.Popen(
                [sys.executable, "-c", COPY],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=said,
                start_new_session=True,  # Ctrl-C must not empty the clipboard
            )
        except OSError as error:
            return str(error)
        try:
            process.communicate(data, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return f"the system's clipboard does not answer within {PATIENCE:g} s"
        finally:
            _end(process)
        said.seek(0)
        complaint = said.read().decode(errors="replace").split("\n")
    lines = [line.strip() for line in complaint if line.strip()]
    if process.returncode or lines:  # xclip's own failure shows in what it says alone
        return lines[-1].rstrip(".") if lines else f"exit code {process.returncode}"
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that is still running, with those it has started."""
    if process.poll() is None:
        with suppress(OSError):
            if sys.platform == "win32":
                process.kill()
            else:
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _osc52(data: bytes) -> str:
    """The sequence that sets the clipboard, also through tmux and screen."""
    sequence = f"\x1b]52;c;{b64encode(data).decode()}\x07"
    if os.environ.get("TMUX"):  # one of both gets through: set-clipboard on, or allow-passthrough on
        doubled = sequence.replace("\x1b", "\x1b\x1b")
        return f"{sequence}\x1bPtmux;{doubled}\x1b\\"
    if os.environ.get("STY"):
        chunks = [sequence[i : i + SCREEN_CHUNK] for i in range(0, len(sequence), SCREEN_CHUNK)]
        return "".join(f"\x1bP{chunk}\x1b\\" for chunk in chunks)
    return sequence
