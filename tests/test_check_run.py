"""``specdec check --run``, the real command: what it measures, what it prints, when it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from specdec.checkup import PROBED
from specdec.forecast import LENGTHS
from specdec.passes import ROWS

SPECDEC = Path(sys.executable).with_name("specdec")

Check = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def check(models: Path, tmp_path: Path) -> Check:
    def run(*flags: object, draft: str | None = "cousin.gguf") -> subprocess.CompletedProcess[str]:
        files = ["-m", models / "target.gguf", *(["-md", models / draft] if draft else [])]
        return subprocess.run(
            [SPECDEC, "check", *map(str, files), "--run", "-c", "1024", "-t", "1", *map(str, flags)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**os.environ, "XDG_CACHE_HOME": str(tmp_path / "cache"), "COLUMNS": "60"},
            timeout=300,
            check=False,
        )

    return run


def test_a_lossless_pair_passes_and_the_figures_hang_together(check: Check) -> None:
    done = check("--json", "-n", 24)
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout)
    run = found["run"]
    assert found["target"]["path"].endswith("target.gguf")
    assert run["threads"] == 1
    assert [int(rows) for rows in run["pass_seconds_by_rows"]] == list(ROWS)
    assert [prompt["kind"] for prompt in run["prompts"]] == [
        "chat", "code", "summary", "translation", "editing",
    ]  # fmt: skip
    for prompt in run["prompts"]:
        assert 0.0 < prompt["acceptance_rate"] < 1.0
        ratio = prompt["tokens_per_second"] / prompt["plain_tokens_per_second"]
        assert prompt["speedup"] == pytest.approx(ratio, abs=0.01, rel=0.01)
    assert run["speedup"] == sorted(prompt["speedup"] for prompt in run["prompts"])[2]
    predicted = {int(k): speed for k, speed in run["predicted_speedup_by_length"].items()}
    assert list(predicted) == list(LENGTHS)
    best = max(predicted, key=lambda k: predicted[k])
    assert run["recommended_length"] == (best if predicted[best] >= 1.02 else 0)
    audit = run["audit"]
    assert audit["passed"] is audit["greedy"]["passed"] is audit["sampled"]["passed"] is True
    assert audit["greedy"]["runs"] == 10
    assert audit["greedy"]["bound"] == 2 * audit["greedy"]["rounding"]
    assert audit["sampled"]["tokens"] > 50


def test_the_table_fits_a_narrow_terminal_and_says_what_was_found(check: Check) -> None:
    done = check("-n", 16)
    assert done.returncode == 0
    assert max(map(len, done.stdout.splitlines())) <= 60
    for text in (
        "Measured with 1 thread\n",
        f"accepted: of drafts of {PROBED} tokens",
        "fixed length     1     2     3     4     6     8    12    16\n",
        "recommended: ",
        "lossless: yes, as far as this can tell\n",
        "greedy: 10 runs against plain decoding",
        "are distributed as the target would",
    ):
        assert text in done.stdout


def test_a_lossy_rule_fails_the_audit(check: Check) -> None:
    done = check("-n", 200, "--accept", "typical", "--typical-threshold", "0.02")
    assert done.returncode == 1
    assert "lossless: NO\n" in done.stdout
    assert "tokens are not distributed as the target" in done.stdout


def test_the_free_drafters_are_checked_without_a_second_model(check: Check) -> None:
    done = check("--json", "-n", 16, draft=None)
    assert done.returncode == 0
    found = json.loads(done.stdout)
    assert found["draft"] is None
    assert found["run"]["audit"]["passed"] is True


def test_plain_decoding_has_nothing_to_check(check: Check) -> None:
    done = check("--drafter", "none")
    assert done.returncode == 2
    assert "there is nothing to --run a check of" in done.stderr
