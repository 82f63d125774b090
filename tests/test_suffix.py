"""The suffix drafter: the longest repetition, in the text and in a corpus; where the corpus comes from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from specdec.kernels import SuffixAutomaton

from specdec.adaptive import AdaptiveSchedule
from specdec.backend import Model
from specdec.corpus import index
from specdec.drafters import DraftBlock, SuffixDrafter
from specdec.errors import UsageError
from specdec.experience import Experience
from specdec.gguf_file import GGUFFile
from specdec.schedule import FixedRound
from specdec.vocab import fingerprint


def propose(drafter: SuffixDrafter, text: list[int], limit: int = 8) -> DraftBlock:
    return drafter.propose(np.array(text, np.int32), FixedRound(limit))


def corpus(tokens: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton(max(2, len(tokens)))
    automaton.extend(np.array(tokens, np.int32))
    return automaton


@pytest.mark.parametrize(
    ("text", "limit", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 7, 1, 2], 8, [3, 4, 5, 6]),  # two tokens match: four are drafted
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 8, [4, 5, 6, 7, 1, 2]),
        ([1, 2, 3, 4, 5, 6, 7, 1, 2, 3], 2, [4, 5]),
        ([1, 2, 3, 9, 1], 8, []),  # one repeated token says next to nothing,
        ([1, 2, 8, 1, 2, 9, 1], 8, [2, 9]),  # unless it went on as before,
        ([1, 2, 8, 1, 3, 9, 1], 8, []),  # which this one did not
        ([5, 5, 5, 5], 8, [5]),
        ([1, 2, 3], 8, []),
        ([1], 8, []),
        ([], 8, []),
        ([1, 2, 3, 1, 2], 0, []),
    ],
)
def test_what_is_proposed(text: list[int], limit: int, expected: list[int]) -> None:
    block = propose(SuffixDrafter(), text, limit)
    assert list(block.tokens) == expected
    assert block.source == "suffix"
    assert block.drawn == 0
    assert list(block.sure[1:]) == sorted(block.sure[1:])  # each that is right makes the match longer


def test_a_schedule_that_weighs_its_drafts_sees_them_all() -> None:
    horizon = AdaptiveSchedule(Experience(1.0)).round(5, 100)
    block = SuffixDrafter().propose(np.array([1, 2, 3, 9, 1], np.int32), horizon)
    assert block.tokens == (2, 3)
    assert block.sure == pytest.approx((0.2, 1 / 3))


def test_a_match_that_went_on_as_before_is_surer() -> None:
    def first(text: list[int]) -> float:
        horizon = AdaptiveSchedule(Experience(1.0)).round(len(text), 100)
        return SuffixDrafter().propose(np.array(text, np.int32), horizon).sure[0]

    untried, kept, changed = first([1, 2, 8, 1]), first([1, 2, 8, 1, 2, 9, 1]), first([1, 2, 8, 1, 3, 9, 1])
    assert changed < untried < kept


def test_a_longer_match_is_surer() -> None:
    short = propose(SuffixDrafter(), [1, 2, 3, 4, 1, 2])
    long = propose(SuffixDrafter(), [1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6])
    assert long.sure[0] > short.sure[0]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 40), st.lists(st.integers(0, 3), max_size=12)), max_size=8))
def test_it_follows_a_history_that_grows_shrinks_and_changes(edits: list[tuple[int, list[int]]]) -> None:
    drafter = SuffixDrafter()
    text: list[int] = []
    for keep, more in edits:
        text = text[:keep] + more
        got = propose(drafter, text)
        drafter_of_its_own = propose(SuffixDrafter(), text)
        assert got.tokens == drafter_of_its_own.tokens
        assert got.sure == drafter_of_its_own.sure


def test_reset_forgets_the_text() -> None:
    drafter = SuffixDrafter()
    propose(drafter, [1, 2, 3, 4, 1, 2])
    drafter.reset()
    assert propose(drafter, [1, 2]).tokens == ()


def test_the_longer_match_wins_be_it_in_the_text_or_in_the_corpus() -> None:
    beside = corpus([9, 7, 1, 2, 3, 40, 41, 42, 43, 44, 45])
    assert propose(SuffixDrafter(beside), [7, 1, 2]).tokens == (3, 40, 41, 42, 43, 44)
    text = [7, 1, 2, 60, 61, 62, 8, 1, 2]
    assert propose(SuffixDrafter(beside), text).tokens == (60, 61, 62, 8)  # two tokens each: the text's own
    assert propose(SuffixDrafter(beside), [*text, 60, 9, 7, 1, 2, 3]).tokens == (40, 41, 42, 43, 44, 45)


# The corpus.


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / "a.txt", tmp_path / "b.py"]
    paths[0].write_text("the and to of in is it you that he was for on are\n" * 3, "utf-8")
    paths[1].write_text("with as they at be this have from or had by\n", "utf-8")
    return paths


def test_files_are_tokenised_once_and_kept(
    files: list[Path], target_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab, name, cache = target_model.vocab, "0123456789abcdef0", tmp_path / "cache"
    texts = [vocab.tokenize(f.read_text("utf-8")) for f in files]
    first = index(files, vocab, name, cache)
    assert len(first) == sum(len(t) for t in texts)
    length, following = first.find(texts[1][2:6], 4)
    assert (length, following.tolist()) == (4, texts[1][6:10].tolist())
    assert len(list(cache.iterdir())) == 2

    def never(*_: object, **__: object) -> None:
        raise AssertionError("tokenised again")

    monkeypatch.setattr(type(vocab), "tokenize", never)
    assert len(index(files, vocab, name, cache)) == len(first)
    with pytest.raises(AssertionError, match="tokenised again"):
        index(files, vocab, "another vocabulary", cache)
    files[0].write_text("other words", "utf-8")
    with pytest.raises(AssertionError, match="tokenised again"):
        index(files, vocab, name, cache)


@pytest.mark.parametrize("broken", [b"", b"no array", b"\x93NUMPY"])
def test_a_broken_cache_is_made_again(
    files: list[Path], target_model: Model, tmp_path: Path, broken: bytes
) -> None:
    n = len(index(files, target_model.vocab, "v", tmp_path / "cache"))
    for kept in (tmp_path / "cache").iterdir():
        kept.write_bytes(broken)
    assert len(index(files, target_model.vocab, "v", tmp_path / "cache")) == n
    for kept in (tmp_path / "cache").iterdir():
        np.save(kept, np.array([10**6], np.int32))  # no token of this vocabulary
    assert len(index(files, target_model.vocab, "v", tmp_path / "cache")) == n


def test_a_cache_that_cannot_be_written_only_costs_time(files: list[Path], target_model: Model) -> None:
    assert len(index(files, target_model.vocab, "v", files[0] / "no directory")) > 0


def test_what_is_no_text_is_refused(target_model: Model, tmp_path: Path) -> None:
    binary = tmp_path / "model.bin"
    binary.write_bytes(b"\x00\xff\xfe")
    for path, message in (
        (binary, "not a text in UTF-8"),
        (tmp_path / "none", "No such file"),
        (tmp_path, "Is a directory"),
    ):
        with pytest.raises(UsageError, match=message):
            index([path], target_model.vocab, "v", tmp_path / "cache")


def test_a_vocabulary_is_known_by_its_tokens(models: Path, tmp_path: Path) -> None:
    import tiny

    names = [fingerprint(GGUFFile.read(models / f"{name}.gguf")) for name in ("target", "cousin")]
    assert names[0] == names[1]
    other = tiny.llama(tmp_path / "other.gguf", changed={300: "changed"})
    assert fingerprint(GGUFFile.read(other)) != names[0]
