"""The kernels against their definitions, and the native ones against the numpy reference."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import specdec.kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from specdec.kernels import reference

COMPILER = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
try:
    from specdec.kernels import native
except ImportError:
    native = None

BOTH = [reference] if native is None else [reference, native]
LOGITS = st.floats(-1e6, 1e6, width=32)
AWKWARD = LOGITS | st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.0, 1.0])
ROWS = hnp.arrays(np.float32, st.integers(1, 900), elements=LOGITS)
AWKWARD_ROWS = hnp.arrays(np.float32, st.integers(1, 900), elements=AWKWARD)
NO_IDS = np.empty(0, np.int32)
both = pytest.mark.parametrize("kernels", BOTH, ids=lambda m: m.__name__.rpartition(".")[2])


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler here")
def test_where_there_is_a_compiler_the_native_kernels_were_built() -> None:
    assert native is not None
    if "SPECDEC_KERNELS" not in os.environ:
        assert specdec.kernels.name == "native"
        assert specdec.kernels.top is native.top


@pytest.mark.parametrize("choice", ["reference", "native"])
def test_the_environment_chooses(choice: str) -> None:
    if choice == "native" and native is None:
        pytest.skip("not built here")
    assert _named(choice).stdout.strip() == choice


def test_an_unknown_choice_is_refused() -> None:
    done = _named("fast")
    assert done.returncode != 0
    assert "SPECDEC_KERNELS is 'fast'; use native or reference" in done.stderr


def _named(choice: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "SPECDEC_KERNELS": choice, "PYTHONSAFEPATH": "1"}
    code = "import specdec.kernels as k; print(k.name)"
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd="/", capture_output=True, text=True, check=False
    )


@pytest.mark.skipif(
    COMPILER is None or sys.platform == "win32", reason="no C++ compiler with sanitizers here"
)
def test_the_native_sources_under_the_sanitizers(tmp_path: Path) -> None:
    """Compiles kernels/check.cpp with the address and undefined-behaviour sanitizers; runs it on 3 seeds."""
    sources = Path(__file__).resolve().parents[1] / "kernels"
    program = tmp_path / "check"
    flags = ["-std=c++17", "-O1", "-g", "-Wall", "-Wextra", "-Wconversion", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"]
    files = [str(sources / name) for name in ("check.cpp", "loops.cpp")]
    command = [str(COMPILER), *flags, *sanitizers, *files, "-o", str(program)]
    subprocess.run(command, check=True)
    for seed in ("1", "2", "3"):
        done = subprocess.run([program, seed], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "agree with their definitions" in done.stdout


# argmax


@both
@given(rows=hnp.arrays(np.float32, st.tuples(st.integers(0, 5), st.integers(1, 700)), elements=AWKWARD))
def test_argmax_takes_the_lowest_id_of_the_largest(kernels: ModuleType, rows: np.ndarray) -> None:
    got = kernels.argmax(rows)
    assert got.dtype == np.int32
    plain = np.where(np.isnan(rows), -np.inf, rows)
    assert got.tolist() == [int(np.flatnonzero(row == row.max())[0]) for row in plain]


@both
@given(row=ROWS)
def test_argmax_prob_is_the_softmax_at_the_argmax(kernels: ModuleType, row: np.ndarray) -> None:
    best, p = kernels.argmax_prob(row)
    exact = np.exp(row.astype(np.float64) - float(row.max()))
    assert best == row.argmax()
    assert p == pytest.approx(exact[best] / exact.sum(), rel=1e-5)


@both
@pytest.mark.parametrize(
    ("row", "best", "p"),
    [
        ([np.nan, 1.0, np.nan], 1, 1.0),
        ([np.nan, np.nan], 0, np.nan),
        ([-np.inf, -np.inf], 0, np.nan),
        ([-np.inf, 2.0, np.nan, 2.0], 1, 0.5),
        ([1.0, np.inf, 5.0, np.inf], 1, 0.5),
        ([1e-45, 0.0], 0, 0.5),
        ([-3e38, 3e38], 1, 1.0),
    ],
)
def test_argmax_prob_of_awkward_rows(kernels: ModuleType, row: list[float], best: int, p: float) -> None:
    got = kernels.argmax_prob(np.array(row, np.float32))
    assert got[0] == best
    assert got[1] == pytest.approx(p, rel=1e-6, nan_ok=True)


# top


@both
@settings(max_examples=300)
@given(row=AWKWARD_ROWS, k=st.integers(1, 1000), extras=st.lists(st.integers(0, 899), max_size=5))
def test_top_has_the_k_largest_and_the_extras_once_each(
    kernels: ModuleType, row: np.ndarray, k: int, extras: list[int]
) -> None:
    extra = np.array([e for e in extras if e < row.size], np.int32)
    ids, logits = kernels.top(row, k, extra)
    assert ids.dtype == np.int32
    assert logits.dtype == np.float32
    assert (np.diff(ids) > 0).all()
    assert (logits == row[ids]).all()
    numbers = np.flatnonzero(~np.isnan(row))
    order = numbers[np.lexsort((numbers, -row[numbers]))]  # the largest first, among equals the lowest id
    expected = set(order[:k].tolist()) | {int(e) for e in extra if not np.isnan(row[e])}
    assert set(ids.tolist()) == expected


@both
@pytest.mark.parametrize("n", [255, 256, 257, 49_152, 151_936])
@pytest.mark.parametrize("k", [1, 40, 104])
@pytest.mark.parametrize("kind", ["gaussian", "peaked", "constant", "ascending"])
def test_top_at_the_sizes_of_real_vocabularies(kernels: ModuleType, n: int, k: int, kind: str) -> None:
    rng = np.random.default_rng(1)
    row = rng.standard_normal(n).astype(np.float32)
    if kind == "peaked":
        row[rng.integers(n)] = 40.0
    if kind == "constant":
        row[:] = 2.5
    if kind == "ascending":
        row.sort()
    ids, logits = kernels.top(row, k, NO_IDS)
    assert len(ids) == k
    assert np.sort(logits).tolist() == np.sort(row)[n - k :].tolist()
    if kind == "constant":
        assert ids.tolist() == list(range(k))


# excess and residual

SUPPORTS = st.dictionaries(st.integers(0, 50), st.floats(1e-9, 1.0), max_size=40)


@both
@given(p=SUPPORTS, q=SUPPORTS, scale=st.floats(0.0, 1.0))
def test_excess_and_residual_are_their_definitions(
    kernels: ModuleType, p: dict[int, float], q: dict[int, float], scale: float
) -> None:
    arrays = [_support(p), _support(q)]
    got, total = kernels.excess(*arrays[0], *arrays[1], scale)
    expected = [max(0.0, scale * x - q.get(i, 0.0)) for i, x in p.items()]
    assert got.tolist() == pytest.approx(expected, abs=1e-15)
    assert total == pytest.approx(sum(expected), abs=1e-12)
    ids, probs = kernels.residual(*arrays[0], *arrays[1], scale)
    kept = [(i, e / total) for i, e in zip(p, got.tolist(), strict=True) if e > 0.0]
    assert ids.tolist() == [i for i, _ in kept]
    assert probs.tolist() == pytest.approx([x for _, x in kept], rel=1e-9)


@both
def test_residual_of_full_rows(kernels: ModuleType) -> None:
    rng = np.random.default_rng(4)
    ids = np.arange(151_936, dtype=np.int32)
    p, q = (w / w.sum() for w in rng.gamma(0.3, size=(2, len(ids))))
    got_ids, got = kernels.residual(ids, p, ids, q, 0.9)
    expected = np.maximum(0.9 * p - q, 0.0)
    assert got_ids.tolist() == np.flatnonzero(expected).tolist()
    np.testing.assert_allclose(got, expected[got_ids] / expected.sum(), rtol=1e-9)
    assert kernels.residual(ids, p, ids, p, 1.0)[0].size == 0


def _support(d: dict[int, float]) -> tuple[np.ndarray, np.ndarray]:
    return np.array(list(d), np.int32), np.array(list(d.values()), np.float64)


# the suffix automaton


def scanned(text: list[int]) -> tuple[int, set[int]]:
    """The longest end of the text that occurs earlier, and where its earlier occurrences end."""
    n = len(text)
    for length in range(n - 1, 0, -1):
        ends = {e for e in range(length, n) if text[e - length : e] == text[n - length :]}
        if ends:
            return length, ends
    return 0, set()


@both
@settings(max_examples=200)
@given(parts=st.lists(st.lists(st.integers(0, 3), max_size=12), max_size=8), limit=st.integers(0, 6))
def test_the_automaton_finds_the_longest_end_that_occurred_before(
    kernels: ModuleType, parts: list[list[int]], limit: int
) -> None:
    automaton = kernels.SuffixAutomaton()
    text: list[int] = []
    for part in parts:
        automaton.extend(np.array(part, np.int32))
        text += part
        length, ends = scanned(text)
        assert len(automaton) == len(text)
        assert automaton.match_length == length
        got = automaton.continuation(limit)
        assert got.dtype == np.int32
        assert got.tolist() in ([text[e : e + limit] for e in ends] or [[]])


@both
@settings(max_examples=200)
@given(
    text=st.lists(st.integers(0, 3), max_size=40),
    query=st.lists(st.integers(0, 4), max_size=12),
    limit=st.integers(0, 6),
)
def test_the_end_of_another_text_is_found(
    kernels: ModuleType, text: list[int], query: list[int], limit: int
) -> None:
    automaton = kernels.SuffixAutomaton()
    automaton.extend(np.array(text, np.int32))
    n, m = len(text), len(query)
    ends = {e for k in range(m + 1) for e in range(k, n + 1) if text[e - k : e] == query[m - k :]}
    longest = max(k for k in range(m + 1) if any(text[e - k : e] == query[m - k :] for e in range(k, n + 1)))
    length, tokens = automaton.find(np.array(query, np.int32), limit)
    assert length == longest
    assert tokens.dtype == np.int32
    ends = {e for e in ends if e >= longest and text[e - longest : e] == query[m - longest :]}
    assert tokens.tolist() in ([text[e : e + limit] for e in ends] if longest else [[]])
    assert automaton.match_length == scanned(text)[0]  # looking changes nothing


@both
def test_of_several_occurrences_the_latest_match_is_continued(kernels: ModuleType) -> None:
    automaton = kernels.SuffixAutomaton()
    automaton.extend(np.array([1, 2, 50, 1, 2, 60, 1, 2], np.int32))
    assert automaton.match_length == 2
    assert automaton.continuation(1).tolist() == [60]


@both
def test_a_match_knows_how_often_it_went_on_as_before(kernels: ModuleType) -> None:
    automaton = kernels.SuffixAutomaton()
    seen = []
    for token in (7, 1, 7, 2, 8, 7, 2, 9, 7):  # 7 is followed by 1, then by 2, then by 2 again
        automaton.extend(np.array([token], np.int32))
        seen.append((automaton.match_length, automaton.match_tried, automaton.match_kept))
    assert seen == [
        (0, 0, 0), (0, 0, 0), (1, 0, 0), (0, 0, 0), (0, 0, 0), (1, 1, 0), (2, 0, 0), (0, 0, 0), (1, 2, 1),
    ]  # fmt: skip
    automaton.reset()
    assert (automaton.match_tried, automaton.match_kept) == (0, 0)


@both
@settings(max_examples=100)
@given(text=st.lists(st.integers(1, 3), max_size=40))
def test_trials_of_a_single_token_are_counted(kernels: ModuleType, text: list[int]) -> None:
    """Between tokens that never come again, a match is one token: its trials can be counted by hand."""
    automaton = kernels.SuffixAutomaton()
    last: dict[int, int] = {}
    counts: dict[int, list[int]] = {}
    fresh = 100
    for token in text:
        automaton.extend(np.array([token], np.int32))
        assert [automaton.match_tried, automaton.match_kept] == counts.get(token, [0, 0])
        follower = 50 + len(text) % 2 if len(last) % 2 else 60
        if token in last:
            tried, kept = counts.get(token, [0, 0])
            counts[token] = [tried + 1, kept + (last[token] == follower)]
        last[token] = follower
        automaton.extend(np.array([follower], np.int32))
        fresh += 1
        automaton.extend(np.array([fresh], np.int32))


@both
@settings(max_examples=100)
@given(text=st.lists(st.integers(0, 2), max_size=60), capacity=st.integers(2, 20))
def test_memory_is_bounded_by_forgetting_the_older_half(
    kernels: ModuleType, text: list[int], capacity: int
) -> None:
    automaton = kernels.SuffixAutomaton(capacity)
    kept: list[int] = []
    for token in text:
        automaton.extend(np.array([token], np.int32))
        if len(kept) == capacity:
            kept = kept[(len(kept) + 1) // 2 :]
        kept.append(token)
        assert len(automaton) == len(kept)
        assert automaton.match_length == scanned(kept)[0]
    automaton.reset()
    assert (len(automaton), automaton.match_length) == (0, 0)
    assert automaton.continuation(5).tolist() == []


@pytest.mark.skipif(native is None, reason="not built here")
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32 - 1), alphabet=st.sampled_from([2, 5, 300]), capacity=st.integers(2, 400))
def test_native_and_reference_automata_agree_on_longer_texts(seed: int, alphabet: int, capacity: int) -> None:
    text = np.random.default_rng(seed).integers(0, alphabet, 600).astype(np.int32)
    automata = [kernels.SuffixAutomaton(capacity) for kernels in BOTH]
    for i in range(0, 600, 7):
        for automaton in automata:
            automaton.extend(text[i : i + 7])
        assert len({(a.match_length, a.match_tried, a.match_kept) for a in automata}) == 1
        assert len({tuple(a.continuation(8).tolist()) for a in automata}) == 1


# What is refused.

F32, I32, F64 = np.zeros(4, np.float32), np.zeros(2, np.int32), np.zeros(2)
BAD: list[tuple[str, tuple[Any, ...], str]] = [
    ("argmax", (np.zeros((2, 3)),), r"argmax needs float32 \[n, vocab\], got float64 \[2, 3\]"),
    ("argmax", (F32,), r"argmax needs float32 \[n, vocab\], got float32 \[4\]"),
    ("argmax", (np.zeros((2, 0), np.float32),), r"got float32 \[2, 0\]"),
    ("argmax", (np.zeros((4, 6), np.float32)[:, ::2],), "contiguous"),
    ("argmax_prob", (np.zeros(3),), r"argmax_prob needs float32 \[vocab\], got float64 \[3\]"),
    ("argmax_prob", (F32[:0],), "got an empty row"),
    ("argmax_prob", (F32[::2],), "contiguous"),
    ("top", (np.zeros((2, 3), np.float32), 1, NO_IDS), r"top needs float32 \[vocab\], got float32 \[2, 3\]"),
    ("top", (F32[:0], 1, NO_IDS), "got an empty row"),
    ("top", (F32, 0, NO_IDS), "k >= 1, got 0"),
    ("top", (F32, -5, NO_IDS), "k >= 1, got -5"),
    ("top", (F32, 1, np.zeros(1, np.int64)), r"int32 \[m\] extra ids, got int64 \[1\]"),
    ("top", (F32, 1, np.array([4], np.int32)), "within the row of 4, got 4"),
    ("top", (F32, 1, np.array([-1], np.int32)), "within the row of 4, got -1"),
    ("excess", (I32, F64, I32, F32[:2], 1.0), r"float64 \[n\] probabilities, got float32 \[2\]"),
    ("excess", (I32, np.zeros(3), I32, F64, 1.0), "of one length"),
    ("residual", (I32, F64, I32[:1], F64, 1.0), "of one length"),
    ("residual", (F64, F64, I32, F64, 1.0), r"int32 \[n\] ids .* got float64 \[2\]"),
]


@both
@pytest.mark.parametrize(
    ("function", "args", "message"), BAD, ids=[f"{f}-{i}" for i, (f, *_) in enumerate(BAD)]
)
def test_what_is_refused(kernels: ModuleType, function: str, args: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        getattr(kernels, function)(*args)


@both
def test_what_the_automaton_refuses(kernels: ModuleType) -> None:
    for capacity in (1, 0, -1, 2**28 + 1):
        with pytest.raises(ValueError, match="capacity of 2 to"):
            kernels.SuffixAutomaton(capacity)
    automaton = kernels.SuffixAutomaton(8)
    with pytest.raises(ValueError, match=r"extend needs int32 \[n\] tokens, got int64 \[1\]"):
        automaton.extend(np.zeros(1, np.int64))
    with pytest.raises(ValueError, match="limit of at least 0"):
        automaton.continuation(-1)
    with pytest.raises(ValueError, match="find needs a limit of at least 0"):
        automaton.find(np.zeros(1, np.int32), -1)
    with pytest.raises(ValueError, match=r"find needs int32 \[n\] tokens, got float32 \[4\]"):
        automaton.find(F32, 1)
