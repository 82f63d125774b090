"""``specdec chat`` as the tests start it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SPECDEC = Path(sys.executable).with_name("specdec")


class Chat:
    """Runs scripts of turns. The models are in ``models``, the working directory is empty at first."""

    def __init__(self, models: Path, cwd: Path) -> None:
        self.cwd = cwd
        self.models = models
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "LANG", "LD_LIBRARY_PATH")}
        self.env = {
            **kept,
            "HOME": str(cwd),
            "XDG_CONFIG_HOME": str(cwd / "config"),
            "XDG_STATE_HOME": str(cwd / "state"),
            "XDG_CACHE_HOME": str(cwd / "cache"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONFAULTHANDLER": "1",
            "COLUMNS": "60",
        }

    def command(self, *args: object, model: str = "target.gguf") -> list[str]:
        pair = ["-m", self.models / model, "-md", self.models / "draft.gguf"]
        # A fixed draft length: whether drafting pays with such small models depends on the moment.
        common = ["-t", 1, "-c", 1024, "-n", 16, "--temp", 0, "--draft-max", 8]
        return [str(a) for a in (SPECDEC, "chat", *pair, *common, *args)]

    def __call__(
        self, *turns: str, args: tuple[object, ...] = (), model: str = "target.gguf"
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*args, model=model),
            input="".join(f"{turn}\n" for turn in turns),
            capture_output=True,
            text=True,
            encoding="utf-8",
            env=self.env,
            cwd=self.cwd,
            timeout=120,
            check=False,
        )

    def saved(self, name: str) -> list[dict[str, str]]:
        return json.loads((self.cwd / name).read_text("utf-8"))["messages"]  # type: ignore[no-any-return]
