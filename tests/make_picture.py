"""Makes tests/picture.svg: the real command in an emulated terminal, caught in the middle of its run.

python tests/make_picture.py
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from itertools import groupby
from pathlib import Path

import pyte
from rich.console import Console
from rich.text import Text

WIDTH, HEIGHT = 82, 17
COMMAND = ["specdec", "generate", "--color", "--temp", "0", "Explain why the sky is blue."]
ENOUGH = 150  # tokens on the bar, at which the picture is taken


def main() -> None:
    screen = run_until(ENOUGH)
    console = Console(record=True, width=WIDTH, file=open(os.devnull, "w"))  # noqa: SIM115 - ends with the process
    prompt = (
        Text("$ ", style="bold green") + Text("specdec generate --color --temp 0 ") + Text(f'"{COMMAND[-1]}"')
    )
    console.print(prompt)
    for row in range(HEIGHT):
        console.print(styled(screen, row))
    svg = console.export_svg(title="specdec")
    Path(__file__).with_name("picture.svg").write_text(svg, "utf-8")


def run_until(tokens: int) -> pyte.Screen:
    """The screen at the moment when the bar counts that many tokens, or the run has ended."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", HEIGHT, WIDTH, 0, 0))
    program = str(Path(sys.executable).with_name(COMMAND[0]))
    env = {**os.environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "LINES": str(HEIGHT)}
    process = subprocess.Popen([program, *COMMAND[1:]], stdin=slave, stdout=slave, stderr=slave, env=env)
    os.close(slave)
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.ByteStream(screen)
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        if select.select([master], [], [], 0.1)[0]:
            try:
                stream.feed(os.read(master, 65536))
            except OSError:  # the program has closed its terminal
                break
        count = screen.display[-1].split("tok")[0].strip()
        if count.isdigit() and int(count) >= tokens:
            break
    process.terminate()
    process.wait()
    return screen


def styled(screen: pyte.Screen, row: int) -> Text:
    """A row of the screen with its colours."""
    line = Text()
    cells = [screen.buffer[row][column] for column in range(WIDTH)]
    for (color, bold), run in groupby(cells, key=lambda cell: (cell.fg, cell.bold)):
        style = f"{'bold ' if bold else ''}{'' if color == 'default' else color}"
        line.append("".join(cell.data for cell in run), style)
    return line


if __name__ == "__main__":
    main()
