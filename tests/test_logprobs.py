"""The target's own log-probabilities of what was emitted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tiny

from specdec import Drafting, Engine, Loading, SamplingParams
from specdec.logprobs import token_logprobs

SMALL = Loading(n_ctx=256, threads=1)


def log_softmax(row: np.ndarray) -> np.ndarray:
    shifted = row.astype(np.float64) - row.max()
    return shifted - np.log(np.exp(shifted).sum())  # type: ignore[no-any-return]


def test_one_row_by_the_definition() -> None:
    rng = np.random.default_rng(5)
    row = rng.normal(scale=5, size=1000).astype(np.float32)
    got = token_logprobs(row, 17, 4)
    expected = log_softmax(row)
    order = np.argsort(-row)[:4]
    assert got.token == 17
    assert got.logprob == pytest.approx(expected[17], abs=1e-4)
    assert [token for token, _ in got.top] == order.tolist()
    assert [logprob for _, logprob in got.top] == pytest.approx(expected[order].tolist(), abs=1e-4)


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(temperature=1.5)])
def test_every_emitted_token_has_that_of_its_own_position(tmp_path: Path, params: SamplingParams) -> None:
    """Whatever was drafted, accepted, sampled: the same as feeding the text once."""
    target = tiny.llama(tmp_path / "target.gguf", dtype="q8_0")
    cousin = tiny.llama(tmp_path / "cousin.gguf", dtype="q8_0", noise=0.1)
    with Engine(target, cousin, loading=SMALL, drafting=Drafting(draft_max=5)) as engine:
        prompt = engine.tokenize("the and of")
        steps = list(engine.decoder(params, 3).generate(prompt, 40, logprobs=3))
        tokens = [token for step in steps for token in step.tokens]
        told = [logprobs for step in steps for logprobs in step.logprobs]
        assert [t.token for t in told] == tokens
        assert sum(step.accepted for step in steps) > 5
        context = engine.target
        context.clear()
        history = [*prompt.tolist(), *tokens]
        rows = [context.feed(np.array([t], np.int32))[0].copy() for t in history[:-1]]
        for position, one in enumerate(told, start=len(prompt) - 1):
            expected = log_softmax(rows[position])
            assert one.logprob == pytest.approx(expected[one.token], abs=1e-4)
            assert [t for t, _ in one.top] == np.argsort(-rows[position], kind="stable")[:3].tolist()
            assert [p for _, p in one.top] == pytest.approx(np.sort(expected)[::-1][:3].tolist(), abs=1e-4)
        assert all(step.logprobs == () for step in engine.decoder(params, 3).generate(prompt, 5))
