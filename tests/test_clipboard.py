"""The system's clipboard, played by a program in place of xclip, and the terminal's."""

from __future__ import annotations

import io
import os
import sys
import time
from base64 import b64decode
from collections.abc import Callable
from pathlib import Path

import pytest
from specdec.cli import clipboard
from specdec.cli.clipboard import LARGEST, copy

from specdec.errors import SpecdecError

if sys.platform != "linux":
    pytest.skip("other systems have a clipboard of their own", allow_module_level=True)

TERMINALS = "the terminal's clipboard (OSC 52)"


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _no_clipboard(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "TMUX", "STY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


@pytest.fixture
def xclip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Installs an xclip that runs a script."""

    def install(script: str) -> None:
        program = tmp_path / "xclip"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        monkeypatch.setenv("DISPLAY", ":99")
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def osc52(written: str) -> str:
    """The text that the terminal is told to keep."""
    assert written.startswith("\x1b]52;c;")
    assert written.endswith("\x07")
    return b64decode(written[7:-1]).decode()


def test_the_system_comes_first(xclip: Callable[[str], None], tmp_path: Path) -> None:
    xclip(f"cat > {tmp_path}/copied; sleep 60 &")  # as xclip does, it stays behind to be asked
    terminal, began = Tty(), time.monotonic()
    assert copy("日本語\r\nand more\n", terminal) == "the clipboard"
    assert (tmp_path / "copied").read_bytes() == "日本語\r\nand more\n".encode()
    assert terminal.getvalue() == ""
    assert time.monotonic() - began < 30


def test_what_is_in_the_working_directory_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyperclip.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    assert copy("text", Tty()) == TERMINALS
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("code", [0, 1])
def test_a_failing_program_leaves_it_to_the_terminal(
    xclip: Callable[[str], None], code: int, capfd: pytest.CaptureFixture[str]
) -> None:
    xclip(f'cat > /dev/null; echo shown; echo "Error: Can\'t open display: :99" >&2; exit {code}')
    terminal = Tty()
    assert copy("text", terminal) == TERMINALS
    assert osc52(terminal.getvalue()) == "text"
    assert capfd.readouterr() == ("", "")
    with pytest.raises(SpecdecError, match=r"^cannot copy: Error: Can't open display: :99; on Linux, xclip"):
        copy("text", None)


def test_a_program_that_hangs_is_ended(
    xclip: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clipboard, "PATIENCE", 2.0)
    xclip(f"echo $$ > {tmp_path}/pid; exec sleep 600")
    assert copy("text", Tty()) == TERMINALS
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 30
    while _runs(pid):
        assert time.monotonic() < end


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def test_tmux_and_screen_pass_it_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    terminal = Tty()
    assert copy("text", terminal) == TERMINALS
    plain, wrapped = terminal.getvalue().split("\x1bPtmux;")
    assert osc52(plain) == "text"
    assert wrapped == f"\x1b{plain}\x1b\\"
    monkeypatch.delenv("TMUX")
    monkeypatch.setenv("STY", "1.tty")
    terminal = Tty()
    assert copy("x" * 1000, terminal) == TERMINALS
    *chunks, rest = terminal.getvalue().split("\x1b\\")
    assert rest == ""
    assert len(chunks) == 6
    assert all(chunk.startswith("\x1bP") and len(chunk) < 768 for chunk in chunks)
    assert osc52("".join(chunk[2:] for chunk in chunks)) == "x" * 1000


def test_the_terminals_clipboard_is_small() -> None:
    terminal = Tty()
    assert copy("é" * (LARGEST // 2), terminal) == TERMINALS
    assert osc52(terminal.getvalue()) == "é" * (LARGEST // 2)
    assert len(terminal.getvalue()) <= 100_000
    with pytest.raises(SpecdecError, match=r"cannot copy 80,000 bytes: .* at most 74,9") as caught:
        copy("é" * 40_000, terminal)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("terminal", "term"), [(None, "xterm"), (io.StringIO(), "xterm"), (Tty(), "dumb")])
def test_neither_is_an_error(
    terminal: io.StringIO | None, term: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", term)
    with pytest.raises(SpecdecError, match=r"^cannot copy: Pyperclip could not find a [^.]+; on L"):
        copy("text", terminal)
    assert terminal is None or terminal.getvalue() == ""
