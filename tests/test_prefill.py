"""Who reads the prompt when: side by side where the cores suffice, else in turn."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest

from specdec import prefill as module
from specdec.backend import Abort, Context, Model
from specdec.drafters import DraftBlock, ModelDrafter, NoDrafter
from specdec.errors import AbortedError, DecodeError
from specdec.prefill import prefill
from specdec.schedule import FixedRound, Horizon
from specdec.settings import SamplingParams
from specdec.tokens import Tokens

TEXT = np.arange(3, 203, dtype=np.int32)
PATIENCE = 60  # seconds; nothing here waits as long unless it fails


class Reading:
    """A drafter that does what it is told in place of reading."""

    name = "reading"
    prompt_threads = 1

    def __init__(self, work: Callable[[Tokens], None]) -> None:
        self._work = work

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        return DraftBlock()

    def read(self, text: Tokens, horizon: Horizon) -> None:
        self._work(text)

    def reset(self) -> None:
        pass


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    return lambda n: monkeypatch.setattr(module, "default_threads", lambda: n)


def test_they_read_side_by_side_where_the_cores_suffice(
    target: Context, cores: Callable[[int], None]
) -> None:
    cores(target.prompt_threads + 1)
    begun, half_read = threading.Event(), threading.Event()

    def read(text: Tokens) -> None:
        begun.set()
        assert half_read.wait(PATIENCE)

    def progress(done: int, of: int) -> None:
        assert begun.wait(PATIENCE)
        half_read.set()

    assert prefill(target, Reading(read), TEXT, FixedRound(4), progress) == 0
    assert half_read.is_set()
    assert target.held.tolist() == TEXT[:-1].tolist()


def test_and_in_turn_where_they_do_not(target: Context, cores: Callable[[int], None]) -> None:
    cores(target.prompt_threads)
    read: list[tuple[list[int], int, int]] = []
    drafter = Reading(lambda text: read.append((text.tolist(), len(target), threading.get_ident())))
    prefill(target, drafter, TEXT, FixedRound(4))
    assert read == [(TEXT.tolist(), len(TEXT) - 1, threading.get_ident())]


def test_who_does_not_read_is_not_asked(target: Context) -> None:
    target.hold(TEXT[:50])
    assert prefill(target, NoDrafter(), TEXT, FixedRound(4)) == 50


def test_side_by_side_a_drafter_reads_what_it_reads_alone(
    target: Context, stranger: Context, cores: Callable[[int], None]
) -> None:
    drafter = ModelDrafter(stranger, SamplingParams(temperature=0.0), np.random.default_rng(0), draft_max=4)
    drafts, rows = [], []
    for n in (1, target.prompt_threads + stranger.prompt_threads):
        cores(n)
        target.clear()
        drafter.reset()
        prefill(target, drafter, TEXT, FixedRound(4))
        assert stranger.held.tolist() == TEXT[:-1].tolist()
        rows.append(target.score(TEXT[-1:]).copy())
        drafts.append(drafter.propose(TEXT, FixedRound(4)).tokens)
    np.testing.assert_array_equal(rows[0], rows[1])
    assert drafts[0] == drafts[1]


def test_the_drafters_error_is_raised_when_the_target_has_read(
    target: Context, cores: Callable[[int], None]
) -> None:
    def fail(text: Tokens) -> None:
        raise DecodeError("no memory left")

    cores(target.prompt_threads + 1)
    with pytest.raises(DecodeError, match="no memory left"):
        prefill(target, Reading(fail), TEXT, FixedRound(4))
    assert target.held.tolist() == TEXT[:-1].tolist()


def test_the_targets_error_waits_for_the_drafter(target: Context, cores: Callable[[int], None]) -> None:
    cores(target.prompt_threads + 1)
    failing, ended = threading.Event(), threading.Event()

    def read(text: Tokens) -> None:
        assert failing.wait(PATIENCE)
        ended.set()

    def progress(done: int, of: int) -> None:
        failing.set()
        raise DecodeError("the target's")

    with pytest.raises(DecodeError, match="the target's"):
        prefill(target, Reading(read), TEXT, FixedRound(4), progress)
    assert ended.is_set()


def test_an_abort_stops_both(target_model: Model, cores: Callable[[int], None]) -> None:
    abort = Abort()
    with (
        Context(target_model, n_ctx=512, threads=1, abort=abort) as target,
        Context(target_model, n_ctx=512, threads=1, abort=abort) as draft,
    ):
        drafter = ModelDrafter(draft, SamplingParams(temperature=0.0), np.random.default_rng(0), draft_max=4)
        cores(2)
        with pytest.raises(AbortedError):
            prefill(target, drafter, TEXT, FixedRound(4), lambda done, of: abort.set())
        assert not abort.busy
        assert 0 < len(target) < len(TEXT) - 1
        abort.clear()
        prefill(target, drafter, TEXT, FixedRound(4))
        assert target.held.tolist() == draft.held.tolist() == TEXT[:-1].tolist()
