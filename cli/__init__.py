"""The command line. Its start is here, where an interruption is already a quiet one."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """The console script ``specdec``."""
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    if sys.stdout is None:
        print("specdec: standard output is closed: there is nowhere to write to", file=sys.stderr)
        sys.exit(1)
    try:
        from .app import main as run
    except KeyboardInterrupt:
        sys.exit(130)
    run()
