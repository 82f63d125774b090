"""The kernels against each other, numpy and llama.cpp's chain, on the same rows. Run it by hand:

pytest tests/bench_kernels.py --benchmark-group-by=group --benchmark-columns=median,min,rounds
"""

from __future__ import annotations

import ctypes
from types import ModuleType
from typing import Any

import llama_cpp
import numpy as np
import pytest
from specdec.kernels import native, reference

SIZES = [49_152, 151_936, 262_144]
KINDS = ["gaussian", "peaked"]
K = 40
NO_IDS = np.empty(0, np.int32)


rows = pytest.mark.parametrize("row", [(n, kind) for n in SIZES for kind in KINDS], indirect=True)
kernels = pytest.mark.parametrize("kernels", [native, reference], ids=["native", "reference"])


@pytest.fixture
def row(request: pytest.FixtureRequest) -> np.ndarray:
    n, kind = request.param
    logits = (np.random.default_rng(0).standard_normal(n) * 2.0).astype(np.float32)
    if kind == "peaked":
        logits[n // 3] = 40.0
    return logits


def grouped(benchmark: Any, what: str, row: np.ndarray) -> Any:
    benchmark.group = f"{what}, {len(row):,}, {'peaked' if row.max() == 40.0 else 'gaussian'}"
    return benchmark


@rows
def test_numpy_argmax(benchmark: Any, row: np.ndarray) -> None:
    grouped(benchmark, "argmax", row)(row.argmax)


@rows
@kernels
def test_argmax(benchmark: Any, row: np.ndarray, kernels: ModuleType) -> None:
    block = row[None, :]
    assert grouped(benchmark, "argmax", row)(kernels.argmax, block)[0] == row.argmax()


@rows
@kernels
def test_argmax_prob(benchmark: Any, row: np.ndarray, kernels: ModuleType) -> None:
    assert grouped(benchmark, "argmax", row)(kernels.argmax_prob, row)[0] == row.argmax()


@rows
@kernels
def test_top_40(benchmark: Any, row: np.ndarray, kernels: ModuleType) -> None:
    ids, _ = grouped(benchmark, "top 40", row)(kernels.top, row, K, NO_IDS)
    assert len(ids) == K


@rows
def test_llama_cpp_top_40(benchmark: Any, row: np.ndarray) -> None:
    """llama.cpp's top-k sampler on the full row, its array filled from numpy as it must be."""
    chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
    llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_top_k(K))
    data = np.empty(len(row), np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)]))
    ids = np.arange(len(row), dtype=np.int32)
    array = llama_cpp.llama_token_data_array()

    def fill_and_apply() -> int:
        data["id"], data["logit"] = ids, row
        array.data = ctypes.cast(data.ctypes.data, llama_cpp.llama_token_data_p)
        array.size, array.selected, array.sorted = len(row), -1, False
        llama_cpp.llama_sampler_apply(chain, ctypes.byref(array))
        return array.size

    assert grouped(benchmark, "top 40", row)(fill_and_apply) == K
    llama_cpp.llama_sampler_free(chain)


@pytest.mark.parametrize("n", [10**4, 10**5, 10**6])
@pytest.mark.parametrize("kind", ["random", "zipf", "repeating"])
def test_suffix_automaton(benchmark: Any, n: int, kind: str) -> None:
    rng = np.random.default_rng(0)
    text = {
        "random": lambda: rng.integers(0, 50_000, n),
        "zipf": lambda: rng.zipf(1.2, n).clip(0, 50_000),
        "repeating": lambda: np.tile(rng.integers(0, 50_000, n // 4), 4),
    }[kind]().astype(np.int32)
    benchmark.group = f"suffix automaton, {kind}"

    def grow() -> int:
        automaton = native.SuffixAutomaton(2 * n)
        automaton.extend(text)
        return len(automaton)

    assert benchmark.pedantic(grow, rounds=3, warmup_rounds=1) == n
    benchmark.extra_info["million tokens a second"] = round(n / benchmark.stats.stats.median / 1e6, 2)
