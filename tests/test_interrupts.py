"""What a signal does while llama.cpp is busy, and while it is not."""

from __future__ import annotations

import signal
import threading

import pytest
from specdec.cli import interrupts
from specdec.cli.interrupts import Signals, interruptible, unbroken

from specdec.backend import Abort
from specdec.errors import AbortedError


@pytest.mark.parametrize("busy", [False, True])
def test_a_signal_sets_the_abort_and_raises_where_it_can(busy: bool) -> None:
    signals = Signals(Abort())
    signals.raising = True
    if busy:
        signals.abort.call(signals.receive, signal.SIGINT, None)
    else:
        with pytest.raises(KeyboardInterrupt):
            signals.receive(signal.SIGINT, None)
    assert signals.abort.is_set
    with pytest.raises(KeyboardInterrupt):
        signals.leave()


def test_an_abort_is_busy_while_any_thread_is_at_work() -> None:
    abort, begun, ended = Abort(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        assert ended.wait(60)

    thread = threading.Thread(target=abort.call, args=(work,))
    thread.start()
    assert begun.wait(60)
    assert abort.call(lambda: 7) == 7
    assert abort.busy
    ended.set()
    thread.join()
    assert not abort.busy


def test_ctrl_c_waits_for_a_pass_but_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    signals = Signals(Abort(), at_passes=True)
    signals.raising = True
    signals.receive(signal.SIGINT, None)
    signals.receive(signal.SIGINT, None)
    assert signals.abort.is_set
    monkeypatch.setattr(interrupts, "PATIENCE", 0.0)
    with pytest.raises(KeyboardInterrupt):
        signals.receive(signal.SIGINT, None)


def test_an_end_does_not_wait_for_a_pass() -> None:
    signals = Signals(Abort(), at_passes=True)
    signals.raising = True
    with pytest.raises(KeyboardInterrupt):
        signals.receive(signal.SIGTERM, None)


def test_ctrl_c_does_not_take_an_end_back() -> None:
    signals = Signals(Abort())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        signals.receive(number, None)
    with pytest.raises(SystemExit) as ended:
        signals.leave()
    assert ended.value.code == 143


@pytest.mark.parametrize("failure", [AbortedError("stopped"), OSError(5, "Input/output error")])
def test_the_signal_is_what_counts_of_all_that_fails_after_it(failure: Exception) -> None:
    handler = signal.getsignal(signal.SIGTERM)

    def work() -> None:
        with interruptible() as signals:
            signals.abort.call(signal.raise_signal, signal.SIGTERM)
            raise failure

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is handler


def test_ctrl_c_does_nothing_but_where_it_is_waited_for() -> None:
    with unbroken():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), interruptible():
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_a_failure_without_a_signal_is_a_failure() -> None:
    with pytest.raises(BrokenPipeError), interruptible():
        raise BrokenPipeError


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible() as signals:
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
            signal.raise_signal(signal.SIGHUP)
        assert not signals.abort.is_set
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
