"""A pair measured: costs, acceptance, a forecast, and the audits, on tiny models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from specdec import Drafting, Engine, Loading, UsageError
from specdec.backend import Context
from specdec.checkup import PROBED, checkup
from specdec.passes import ROWS, measured_passes
from specdec.prompts import BenchPrompt

SMALL = Loading(n_ctx=512, threads=1)
PROMPTS = (BenchPrompt("chat", "the and of with"), BenchPrompt("code", "his they be this have"))


def test_a_pair_is_measured_and_found_lossless(models: Path) -> None:
    said: list[tuple[str, float]] = []
    files = (models / "target.gguf", models / "cousin.gguf")
    with Engine(*files, loading=SMALL) as engine:
        own = engine.drafting
        found = checkup(engine, PROMPTS, 40, 1, lambda what, share: said.append((what, share)))
        assert engine.drafting is own
        assert engine.draft is not None
    assert found.passed
    assert found.curve.rows == [n for n in ROWS if n <= 25]
    assert found.curve.costs == sorted(found.curve.costs)
    assert [visit.kind for visit in found.visits] == ["chat", "code"]
    for visit in found.visits:
        assert visit.plain.stats.drafted == 0
        assert visit.probed.stats.drafted > 0
        assert 0.05 < visit.probed.stats.acceptance_rate < 0.95
        assert max(visit.probed.accepted) <= PROBED
        assert sum(visit.probed.accepted) == visit.probed.stats.accepted
        assert visit.speedup > 0.0
        assert 0 < len(visit.plain.tokens) <= 40
    assert found.greedy.runs == 2 * len(PROMPTS)
    assert found.sampled.tokens > 60
    assert found.drafter_seconds > 0.0
    assert {what.split(",")[0] for what, _ in said} >= {"timing passes", "prompt 1 of 2 (chat)"}
    assert all(0.0 <= share <= 1.0 for _, share in said)


def test_a_lossy_rule_is_found_out(models: Path) -> None:
    lossy = Drafting(accept="typical", typical_threshold=0.02)
    with Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL, drafting=lossy) as engine:
        found = checkup(engine, PROMPTS, 480, 1, lambda *_: None)
    assert found.greedy.passed  # at temperature 0 typical acceptance is exact
    assert not found.sampled.passed
    assert not found.passed


def test_without_a_second_model_the_free_drafter_is_measured(models: Path) -> None:
    with Engine(models / "target.gguf", loading=SMALL, longest_draft=PROBED) as engine:
        found = checkup(engine, PROMPTS, 60, 1, lambda *_: None)
    assert found.passed
    assert found.visits[0].own.stats.by_drafter.keys() <= {"suffix"}


def test_a_prompt_that_does_not_fit_is_refused(models: Path) -> None:
    long = [BenchPrompt("chat", "the and of " * 400)]
    with (
        Engine(models / "target.gguf", loading=SMALL, longest_draft=PROBED) as engine,
        pytest.raises(UsageError, match="raise -c"),
    ):
        checkup(engine, long, 10, 1, lambda *_: None)


def test_passes_are_timed_by_what_they_read(target: Context) -> None:
    read: list[int] = []
    score = target.score
    target.score = lambda tokens, sure=0: (read.append(len(tokens)), score(tokens, sure=sure))[1]  # type: ignore[method-assign, func-returns-value]
    shares: list[float] = []
    curve = measured_passes(target, np.arange(300, 350, dtype=np.int32), shares.append)
    assert read == [*ROWS, *ROWS, *ROWS]
    assert curve.rows == list(ROWS)
    assert shares[-1] == 1.0
    assert len(target) == 0
