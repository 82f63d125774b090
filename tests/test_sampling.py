"""Parity with llama.cpp's own sampler chain over the full row, each sampler alone and in combination."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import llama_cpp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.backend import Model
from specdec.distribution import Distribution
from specdec.errors import DecodeError, UsageError
from specdec.sampling import Sampler
from specdec.settings import ORDER, SamplingParams

N_CTX = 64
OFF = SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)
ALONE: dict[str, dict[str, Any]] = {
    "defaults": dict(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05),
    "nothing": {},
    "temperature": dict(temperature=0.5),
    "greedy": dict(temperature=0.0),
    "greedy with the defaults": dict(temperature=0.0, top_k=40, top_p=0.95, min_p=0.05),
    "top_k": dict(top_k=7),
    "top_k 1": dict(top_k=1),
    "top_k beyond the vocabulary": dict(top_k=100_000),
    "top_p": dict(top_p=0.7),
    "min_p": dict(min_p=0.1),
    "typical": dict(typical_p=0.6),
    "top_n_sigma": dict(top_n_sigma=1.5),
    "xtc": dict(xtc_probability=1.0, xtc_threshold=0.05),
    "xtc at temperature 0": dict(xtc_probability=1.0, xtc_threshold=0.05, temperature=0.0),
    "repeat": dict(repeat_penalty=1.4),
    "repeat and top_k": dict(repeat_penalty=1.9, top_k=5, temperature=0.0),
    "boost": dict(repeat_penalty=0.6, top_k=5),
    "presence": dict(presence_penalty=0.8, top_k=20),
    "negative presence": dict(presence_penalty=-1.5, top_k=3),
    "frequency": dict(frequency_penalty=0.5, repeat_last_n=10),
    "all of the context": dict(repeat_penalty=1.3, repeat_last_n=-1, top_k=10),
    "dry": dict(dry_multiplier=0.8),
    "dry and top_k": dict(dry_multiplier=4.0, dry_allowed_length=1, top_k=4),
    "dry, other breakers": dict(dry_multiplier=2.0, dry_sequence_breakers=("e",), dry_penalty_last_n=-1),
    "bias": dict(logit_bias={5: 30.0, 9: -100.0}, top_k=3),
    "greedy with bias": dict(logit_bias={5: 1000.0}, temperature=0.0),
    "no end": dict(ignore_eos=True, temperature=0.0, top_k=2),
    "order": dict(samplers=("min_p", "top_k", "temperature"), top_k=6, min_p=0.02, temperature=1.3),
    "temperature first": dict(samplers=("temperature", "top_k", "top_p"), top_k=9, top_p=0.8, temperature=2),
    "only penalties": dict(samplers=("penalties",), repeat_penalty=1.2, temperature=0.0),
    "everything": dict(
        temperature=0.9, top_k=30, top_p=0.9, min_p=0.02, typical_p=0.9, top_n_sigma=3.0, xtc_probability=1.0,
        repeat_penalty=1.1, presence_penalty=0.2, frequency_penalty=0.1, dry_multiplier=0.5,
    ),
}  # fmt: skip


def oracle(model: Model, p: SamplingParams, row: np.ndarray, text: Sequence[int]) -> Distribution:
    """What llama.cpp's chain, built as common_sampler_init builds it, leaves of the full row."""
    lib, vocab = llama_cpp, model.vocab
    bias = dict(p.logit_bias)
    if p.ignore_eos:
        bias.update(dict.fromkeys(vocab.eog_tokens, -np.inf))
    chain = lib.llama_sampler_chain_init(lib.llama_sampler_chain_default_params())
    biases = (lib.llama_logit_bias * len(bias))(*((t, b) for t, b in bias.items()))
    breakers = (ctypes.c_char_p * len(p.dry_sequence_breakers))(
        *(b.encode() for b in p.dry_sequence_breakers)
    )
    last, dry_last = (N_CTX if n < 0 else n for n in (p.repeat_last_n, p.dry_penalty_last_n))
    make = {
        "penalties": lambda: lib.llama_sampler_init_penalties(
            vocab.size, last, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        ),
        "dry": lambda: lib.llama_sampler_init_dry(
            vocab.pointer,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            dry_last,
            breakers,
            len(breakers),
        ),
        "top_n_sigma": lambda: lib.llama_sampler_init_top_n_sigma(p.top_n_sigma),
        "top_k": lambda: lib.llama_sampler_init_top_k(p.top_k),
        "typ_p": lambda: lib.llama_sampler_init_typical(p.typical_p, 0),
        "top_p": lambda: lib.llama_sampler_init_top_p(p.top_p, 0),
        "min_p": lambda: lib.llama_sampler_init_min_p(p.min_p, 0),
        "xtc": lambda: lib.llama_sampler_init_xtc(p.xtc_probability, p.xtc_threshold, 0, 1),
        "temperature": lambda: lib.llama_sampler_init_temp_ext(p.temperature, 0.0, 1.0),
    }
    if bias:
        lib.llama_sampler_chain_add(chain, lib.llama_sampler_init_logit_bias(vocab.size, len(bias), biases))
    for name in p.samplers:
        lib.llama_sampler_chain_add(chain, make[name]())
    for token in text:
        lib.llama_sampler_accept(chain, token)
    data = (lib.llama_token_data * len(row))(*((i, float(x), 0.0) for i, x in enumerate(row)))
    array = lib.llama_token_data_array(data, len(row), -1, False)
    lib.llama_sampler_apply(chain, ctypes.byref(array))
    ids = np.array([array.data[i].id for i in range(array.size)], np.int32)
    logits = np.array([array.data[i].logit for i in range(array.size)], np.float32)
    lib.llama_sampler_free(chain)
    return Distribution.from_logits(ids, logits)


def assert_same(got: Distribution, expected: Distribution) -> None:
    assert sorted(got.ids.tolist()) == sorted(expected.ids.tolist())
    assert len(set(got.ids.tolist())) == len(got.ids)
    probs = [got.prob(int(token)) for token in expected.ids]
    np.testing.assert_allclose(probs, expected.probs, atol=1e-6)
    assert got.probs.sum() == pytest.approx(1.0, abs=1e-12)


def assert_all_same(
    got: Sequence[Distribution],
    model: Model,
    params: SamplingParams,
    rows: np.ndarray,
    history: Any,
    draft: Any,
) -> None:
    """Each position equals the oracle's, up to the first whose drafted token cannot be drawn."""
    for i, row in enumerate(rows):
        expected = oracle(model, params, row, [*history, *draft[:i]])
        assert_same(got[i], expected)
        if i < len(draft) and expected.prob(draft[i]) == 0.0:
            assert len(got) == i + 1
            return
    assert len(got) == len(rows)


def rows_of(seed: int, n: int, n_vocab: int, spread: float) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((n, n_vocab)) * spread).astype(np.float32)


def sampler(model: Model, params: SamplingParams, seed: int = 0) -> Sampler:
    return Sampler(model.vocab, params, np.random.default_rng(seed), N_CTX)


@pytest.mark.parametrize("name", ALONE)
def test_a_sampler_alone(target_model: Model, name: str) -> None:
    params = replace(OFF, **ALONE[name])
    for seed, spread in ((0, 1.0), (1, 4.0)):
        rng = np.random.default_rng(seed)
        history = rng.integers(3, 60, 30).astype(np.int32)
        draft = [*history[4:7].tolist(), 200, int(history[9])]
        rows = rows_of(seed, len(draft) + 1, 512, spread)
        rows[:, history[:5]] += 2 * spread  # what was said before is likely again: penalties must bite
        rows[range(len(draft)), draft] = rows.max(axis=1)[:-1] + 0.01  # and the draft stands a chance
        got = sampler(target_model, params).distributions(rows, history, draft)
        assert_all_same(got, target_model, params, rows, history.tolist(), draft)


def values(name: str, low: float, high: float, neutral: float) -> st.SearchStrategy[dict[str, Any]]:
    return st.just({name: neutral}) | st.floats(low, high).map(lambda x: {name: x})


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    spread=st.sampled_from([0.3, 1.0, 3.0, 10.0]),
    order=st.permutations(ORDER),
    top_k=st.sampled_from([0, 1, 3, 40, 511]),
    parts=st.tuples(
        values("temperature", 0.1, 3.0, 1.0),
        values("top_p", 0.1, 0.99, 1.0),
        values("min_p", 0.001, 0.5, 0.0),
        values("typical_p", 0.1, 0.99, 1.0),
        values("top_n_sigma", 0.5, 4.0, -1.0),
        values("repeat_penalty", 0.5, 2.0, 1.0),
        values("presence_penalty", -1.0, 1.0, 0.0),
        values("frequency_penalty", -1.0, 1.0, 0.0),
        values("dry_multiplier", 0.1, 3.0, 0.0),
        st.sampled_from([{"xtc_probability": 0.0}, {"xtc_probability": 1.0, "xtc_threshold": 0.03}]),
        st.sampled_from([{}, {"repeat_last_n": 5, "dry_penalty_last_n": 12}, {"repeat_last_n": -1}]),
    ),
)
def test_samplers_combined_in_any_order(
    target_model: Model,
    seed: int,
    spread: float,
    order: list[str],
    top_k: int,
    parts: tuple[dict[str, Any], ...],
) -> None:
    chosen = {name: value for part in parts for name, value in part.items()}
    params = replace(OFF, **chosen, top_k=top_k, samplers=tuple(order))
    rng = np.random.default_rng(seed)
    history = rng.integers(3, 40, 25).astype(np.int32)
    draft = rng.integers(3, 40, 2).tolist()
    rows = rows_of(seed, 3, 512, spread)
    rows[[0, 1], draft] = rows.max(axis=1)[:2] + 0.01  # the draft stands a chance
    got = sampler(target_model, params).distributions(rows, history, draft)
    assert_all_same(got, target_model, params, rows, history.tolist(), draft)


def test_one_row_extends_a_draft(target_model: Model) -> None:
    params = replace(OFF, repeat_penalty=1.5, top_k=8)
    history = np.array([5, 6, 7], np.int32)
    rows = rows_of(2, 3, 512, 2.0)
    rows[[0, 1], [8, 9]] = 20.0
    whole = sampler(target_model, params).distributions(rows, history, [8, 9])
    s = sampler(target_model, params)
    for i in range(3):
        (alone,) = s.distributions(rows[i : i + 1], history, [8, 9][:i])
        assert_same(alone, whole[i])


def test_the_memory_follows_a_history_that_grows_shrinks_and_changes(target_model: Model) -> None:
    params = replace(OFF, repeat_penalty=1.7, dry_multiplier=1.0, top_k=12)
    s = sampler(target_model, params)
    rng = np.random.default_rng(8)
    history = rng.integers(3, 30, 20).astype(np.int32)
    changed = history.copy()
    changed[7] = 31
    for n, text in enumerate((history[:10], history, history[:4], changed, history[:4], history)):
        row = rows_of(n, 1, 512, 2.0)
        (got,) = s.distributions(row, text, [])
        assert_same(got, oracle(target_model, params, row[0], text.tolist()))


def test_a_row_shorter_than_the_vocabulary_never_yields_the_missing_ids(target_model: Model) -> None:
    row = rows_of(0, 1, 512, 1.0)[:, :500]
    for params in (OFF, replace(OFF, top_k=5, logit_bias={505: 50.0}), replace(OFF, temperature=0.0)):
        (got,) = sampler(target_model, params).distributions(row, np.array([505], np.int32), [])
        assert got.ids.max() < 500


def test_xtc_tosses_its_coin_for_each_position(target_model: Model) -> None:
    seed = 6
    params = replace(OFF, xtc_probability=0.3, xtc_threshold=0.02, repeat_penalty=1.01)
    row = rows_of(0, 1, 512, 4.0)
    s = sampler(target_model, params, seed)
    history = np.array([5], np.int32)
    with_xtc = oracle(target_model, replace(params, xtc_probability=1.0), row[0], [5])
    without = oracle(target_model, replace(params, xtc_probability=0.0), row[0], [5])
    assert len(with_xtc.ids) < len(without.ids)
    n, times = 600, 0
    for _ in range(n):
        (got,) = s.distributions(row, history, [])
        acted = len(got.ids) == len(with_xtc.ids)
        assert_same(got, with_xtc if acted else without)
        times += acted
    assert abs(times / n - 0.3) < 5 * (0.3 * 0.7 / n) ** 0.5, f"seed {seed}"


def test_greedy_takes_the_lowest_of_equal_logits(target_model: Model) -> None:
    row = np.zeros((1, 512), np.float32)
    row[0, [9, 4, 77]] = 3.0
    (got,) = sampler(target_model, replace(OFF, temperature=0.0)).distributions(
        row, np.array([1], np.int32), []
    )
    assert got.ids.tolist() == [4]


def test_a_row_without_a_finite_logit_is_an_error(target_model: Model) -> None:
    row = np.full((1, 512), -np.inf, np.float32)
    with pytest.raises(DecodeError, match="no token can follow here"):
        sampler(target_model, OFF).distributions(row, np.array([1], np.int32), [])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(samplers=("mirostat",)), "no distribution per position"),
        (dict(samplers=("top_q",)), "'top_q' cannot be used: known are penalties;dry"),
        (dict(samplers=("top_k", "top_k")), "twice"),
        (dict(temperature=float("nan")), "finite"),
        (dict(min_p=float("inf")), "finite"),
        (dict(repeat_penalty=0.0), "--repeat-penalty must be above 0"),
    ],
)
def test_settings_no_chain_can_be_made_of(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        replace(OFF, **bad)


def test_a_bias_on_no_token_is_refused(target_model: Model) -> None:
    with pytest.raises(UsageError, match="names token 512, the vocabulary has 512"):
        sampler(target_model, replace(OFF, logit_bias={512: 1.0}))


def test_a_distribution_draws_what_it_says() -> None:
    seed = 17
    rng = np.random.default_rng(seed)
    d = Distribution(np.array([9, 2, 5], np.int32), np.array([0.5, 0.2, 0.3]))
    n = 20_000
    drawn = np.array([d.sample(rng) for _ in range(n)])
    for token, chance in ((9, 0.5), (2, 0.2), (5, 0.3)):
        assert abs((drawn == token).mean() - chance) < 5 * (chance * (1 - chance) / n) ** 0.5, f"seed {seed}"
    assert d.prob(5) == 0.3
    assert d.prob(4) == 0.0
