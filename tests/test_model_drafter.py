"""The model drafter: its cache follows the history, its q is honest, its limits hold."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from specdec.backend import Context, Model
from specdec.drafters import ModelDrafter
from specdec.sampling import Sampler
from specdec.schedule import FixedRound
from specdec.settings import SamplingParams
from specdec.tokens import Tokens

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=1.0)
HISTORY = np.array([1, 40, 300, 41, 77], np.int32)


def drafter(
    context: Context, params: SamplingParams = GREEDY, *, k: int = 4, p_min: float = 0.0
) -> ModelDrafter:
    return ModelDrafter(context, params, np.random.default_rng(3), draft_max=k, p_min=p_min)


def array(*parts: object) -> Tokens:
    return np.concatenate([np.atleast_1d(np.asarray(p, np.int32)) for p in parts])


def test_the_cache_holds_the_history_and_the_draft_but_its_last_token(stranger: Context) -> None:
    block = drafter(stranger).propose(HISTORY, FixedRound(4))
    assert len(block) == 4
    assert block.source == "model"
    assert stranger.held.tolist() == [*HISTORY, *block.tokens[:3]]


@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_what_was_not_accepted_is_rolled_back(stranger: Context, accepted: int) -> None:
    d = drafter(stranger)
    block = d.propose(HISTORY, FixedRound(4))
    history = array(HISTORY, block.tokens[:accepted], 99)
    fed = _fed(stranger)
    again = d.propose(history, FixedRound(4))
    assert stranger.held.tolist() == [*history, *again.tokens[:3]]
    # Only what is new is fed: the correction, and after a whole draft its last token with it.
    assert fed[0] == ([block.tokens[3], 99] if accepted == 4 else [99])
    assert [len(tokens) for tokens in fed[1:]] == [1, 1, 1]
    stranger.clear()
    assert drafter(stranger).propose(history, FixedRound(4)).tokens == again.tokens


def _fed(context: Context) -> list[list[int]]:
    fed: list[list[int]] = []
    decode = context._decode

    def noted(tokens: Tokens, *rest: int) -> np.ndarray:
        fed.append(tokens.tolist())
        return decode(tokens, *rest)

    context._decode = noted  # type: ignore[method-assign]
    return fed


def test_an_unchanged_history_still_feeds_its_last_token(stranger: Context) -> None:
    d = drafter(stranger)
    first = d.propose(HISTORY, FixedRound(3))
    fed = _fed(stranger)
    assert d.propose(HISTORY, FixedRound(3)).tokens == first.tokens
    assert fed[0] == [int(HISTORY[-1])]


@pytest.mark.parametrize(
    "history",
    [
        HISTORY[:2],
        HISTORY[:1],
        array(HISTORY[:2], 9, HISTORY[3:]),
        array(7, HISTORY),
        array(HISTORY, HISTORY),
    ],
    ids=["shorter", "one token", "changed in the middle", "changed at the start", "longer"],
)
def test_any_history_gives_what_a_fresh_drafter_gives(stranger: Context, history: Tokens) -> None:
    d = drafter(stranger)
    d.propose(HISTORY, FixedRound(4))
    got = d.propose(history, FixedRound(4))
    assert stranger.held.tolist() == [*history, *got.tokens[:3]]
    stranger.clear()
    assert drafter(stranger).propose(history, FixedRound(4)).tokens == got.tokens


def test_an_empty_history_or_no_budget_proposes_nothing(stranger: Context) -> None:
    d = drafter(stranger)
    assert d.propose(np.empty(0, np.int32), FixedRound(4)).tokens == ()
    assert d.propose(HISTORY, FixedRound(0)).tokens == ()
    assert d.propose(HISTORY, FixedRound(-1)).tokens == ()
    assert len(stranger) == 0


def test_the_ceiling_bounds_the_callers_budget(stranger: Context) -> None:
    assert len(drafter(stranger, k=2).propose(HISTORY, FixedRound(8))) == 2
    assert len(drafter(stranger, k=8).propose(HISTORY, FixedRound(3))) == 3
    with pytest.raises(ValueError, match="at least 1"):
        drafter(stranger, k=0)


@pytest.mark.parametrize("params", [GREEDY, WARM], ids=["greedy", "sampled"])
def test_below_the_floor_nothing_is_fed(stranger: Context, params: SamplingParams) -> None:
    assert drafter(stranger, params, p_min=1.01).propose(HISTORY, FixedRound(4)).tokens == ()
    assert stranger.held.tolist() == HISTORY.tolist()


def test_greedy_drafting_stops_where_the_models_own_probability_falls_below_the_floor(
    stranger: Context,
) -> None:
    whole = drafter(stranger, k=12).propose(HISTORY, FixedRound(12))
    sure = []
    for i in range(12):
        stranger.clear()
        row = stranger.feed(array(HISTORY, whole.tokens[:i]))[0].astype(np.float64)
        sure.append(1.0 / np.exp(row - row.max()).sum())
    floor = sorted(sure)[6]
    expected = next(i for i, p in enumerate(sure) if p < floor * 0.999)
    stranger.clear()
    got = drafter(stranger, k=12, p_min=floor * 0.999).propose(HISTORY, FixedRound(12))
    assert got.tokens == whole.tokens[:expected]
    assert stranger.held.tolist() == [*HISTORY, *got.tokens]


def test_q_is_what_was_sampled_from(stranger: Context) -> None:
    params = SamplingParams(temperature=1.3, top_k=20, repeat_penalty=1.5)
    block = drafter(stranger, params, k=5).propose(HISTORY, FixedRound(5))
    assert any(len(q.ids) > 1 for q in block.q)
    for i, (token, q) in enumerate(zip(block.tokens, block.q, strict=True)):
        assert 0.0 < q.prob(token) <= 1.0
        assert q.probs.sum() == pytest.approx(1.0, abs=1e-12)
        stranger.clear()
        row = stranger.feed(array(HISTORY, block.tokens[:i]))
        sampler = Sampler(stranger.model.vocab, params, np.random.default_rng(0), stranger.n_ctx)
        (expected,) = sampler.distributions(row, HISTORY, block.tokens[:i])
        assert sorted(q.ids.tolist()) == sorted(expected.ids.tolist())
        probs = [q.prob(int(token)) for token in expected.ids]
        np.testing.assert_allclose(probs, expected.probs, atol=1e-4)


def test_the_tokens_are_drawn_from_q(stranger: Context) -> None:
    seed = 9
    d = ModelDrafter(stranger, WARM, np.random.default_rng(seed), draft_max=1)
    blocks = [d.propose(HISTORY, FixedRound(1)) for _ in range(1500)]
    q = blocks[0].q[0]
    drawn = np.array([b.tokens[0] for b in blocks])
    for token, chance in zip(q.ids, q.probs, strict=True):
        error = 5 * (chance * (1 - chance) / len(blocks)) ** 0.5
        assert abs((drawn == token).mean() - chance) <= error, f"seed {seed}"


def test_ids_the_target_lacks_are_never_proposed(stranger: Context) -> None:
    d = ModelDrafter(stranger, WARM, np.random.default_rng(0), draft_max=8, vocab_size=60)
    for _ in range(20):
        block = d.propose(np.array([1, 40, 30], np.int32), FixedRound(8))
        assert max(block.tokens) < 60
        assert max(int(q.ids.max()) for q in block.q) < 60


def test_a_history_that_outgrows_the_context_proposes_nothing_and_says_so_once(
    stranger_model: Model, caplog: pytest.LogCaptureFixture
) -> None:
    with Context(stranger_model, n_ctx=16, threads=1) as context:
        d = drafter(context, k=4)
        with caplog.at_level(logging.WARNING, "specdec"):
            assert len(d.propose(np.arange(3, 16, dtype=np.int32), FixedRound(4))) == 4
            assert len(d.propose(np.arange(3, 18, dtype=np.int32), FixedRound(4))) == 2  # what still fits
            assert len(d.propose(np.arange(3, 19, dtype=np.int32), FixedRound(4))) == 1
            for n in (20, 21, 30):
                assert len(d.propose(np.arange(3, n, dtype=np.int32), FixedRound(4))) == 0
        assert len(caplog.records) == 1
        assert "outgrown the drafter's context of 16 tokens" in caplog.text
        assert len(d.propose(HISTORY, FixedRound(4))) == 4  # a shorter history is welcome again


def test_reset_empties_the_cache(stranger: Context) -> None:
    d = drafter(stranger)
    d.propose(HISTORY, FixedRound(4))
    d.reset()
    assert len(stranger) == 0
    assert stranger.last_position == -1
