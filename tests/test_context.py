"""A context: what it holds, what it gives back, what it refuses."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tiny

from specdec.acceptance import BlockVerification
from specdec.backend import Abort, Context, Model
from specdec.backend.memory import Memory
from specdec.decoder import Decoder
from specdec.drafters import LookupDrafter, ModelDrafter, NoDrafter
from specdec.errors import AbortedError, ContextFullError, RollbackError, UsageError
from specdec.neartie import measured_difference
from specdec.rollback import State
from specdec.sampling import Sampler
from specdec.schedule import FixedSchedule
from specdec.settings import SamplingParams

TOKENS = np.array([1, 40, 300, 41, 77, 12, 9, 200], np.int32)
GREEDY = SamplingParams(temperature=0.0)
RESTORE = Memory.restore


def test_rows_are_views_of_what_follows_each_token(target: Context) -> None:
    rows = target.score(TOKENS)
    assert rows.shape == (8, 512)
    assert rows.dtype == np.float32
    assert rows.base is not None  # no copy
    batched = rows.copy()
    target.clear()
    single = np.concatenate([target.score(TOKENS[i : i + 1]).copy() for i in range(8)])
    np.testing.assert_allclose(batched, single, atol=1e-3)
    target.clear()
    np.testing.assert_allclose(target.feed(TOKENS)[0], single[-1], atol=1e-3)


@pytest.mark.parametrize("keep", [0, 1, 5, 7, 8])
def test_after_a_rollback_the_state_is_that_of_the_kept_tokens(target: Context, keep: int) -> None:
    target.score(TOKENS)
    target.rollback(keep)
    assert target.held.tolist() == TOKENS[:keep].tolist()
    assert target.last_position == keep - 1
    after = target.score(TOKENS[:2]).copy()
    target.clear()
    if keep:
        target.feed(TOKENS[:keep])
    np.testing.assert_allclose(after, target.score(TOKENS[:2]), atol=1e-3)


def test_200_rounds_of_random_acceptance_leave_the_state_of_the_kept_tokens(target: Context) -> None:
    seed = 12
    rng = np.random.default_rng(seed)
    kept: list[int] = []
    for _ in range(200):
        tokens = rng.integers(3, 512, rng.integers(1, 9)).astype(np.int32)
        if len(kept) + len(tokens) > 200:
            target.rollback(40)
            kept = kept[:40]
        target.score(tokens)
        stay = int(rng.integers(0, len(tokens) + 1))
        target.rollback(len(kept) + stay)
        kept += tokens[:stay].tolist()
        assert target.held.tolist() == kept, f"seed {seed}"
    probe = np.array([7], np.int32)
    after = target.score(probe).copy()
    text = np.array(kept, np.int32)
    bound = 2 * measured_difference(target, text)
    target.feed(text)
    np.testing.assert_allclose(after, target.score(probe), atol=bound, rtol=0)


def test_align_keeps_the_common_prefix(target: Context) -> None:
    target.feed(TOKENS)
    assert target.align(np.array([1, 40, 300, 5, 6], np.int32)) == 3
    assert target.held.tolist() == [1, 40, 300]
    assert target.align(np.array([1, 40, 300, 41], np.int32)) == 3
    assert target.align(np.array([1], np.int32)) == 1
    assert target.align(np.empty(0, np.int32)) == 0
    assert target.last_position == -1


def test_what_cannot_be_kept_is_an_error(target: Context) -> None:
    target.feed(TOKENS)
    for keep in (-1, 9):
        with pytest.raises(ValueError, match="cannot keep"):
            target.rollback(keep)


def test_a_full_context_refuses_more_and_stays_as_it_was(target_model: Model) -> None:
    with Context(target_model, n_ctx=10, n_outputs=4, threads=1) as context:
        context.feed(TOKENS)
        with pytest.raises(ContextFullError, match=r"8 \+ 3 tokens do not fit a context of 10"):
            context.score(TOKENS[:3])
        assert context.held.tolist() == TOKENS.tolist()
        assert context.score(TOKENS[:2]).shape == (2, 512)


def test_a_wrong_number_of_tokens_is_refused(target: Context) -> None:
    with pytest.raises(ValueError, match="score takes 1 to 17 tokens, got 18"):
        target.score(np.zeros(18, np.int32))
    with pytest.raises(ValueError, match="score takes 1 to 17 tokens, got 0"):
        target.score(TOKENS[:0])
    with pytest.raises(ValueError, match="at least one token"):
        target.feed(TOKENS[:0])


def test_the_probe_finds_cell_removal_and_times_a_pass(target: Context) -> None:
    assert target.rollback_strategy.name == "cell removal"
    assert 0.0 < target.pass_seconds < 5.0
    assert len(target) == 0
    assert target.last_position == -1


def test_a_cache_that_kept_more_than_it_was_told_is_noticed(target: Context) -> None:
    expected = _after_five(target)
    for answer in (True, False):
        target.feed(TOKENS)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target.memory, "remove_cells", lambda keep, answer=answer: answer)  # does nothing
            with pytest.raises(
                RollbackError, match="should end at position 4 after a rollback, it ends at 7"
            ):
                target.rollback(5)
        assert target.held.tolist() == TOKENS[:5].tolist()
        np.testing.assert_allclose(target.score(TOKENS[:1]), expected, atol=1e-3)
        target.clear()


def _after_five(target: Context) -> np.ndarray:
    target.feed(TOKENS[:5])
    rows = target.score(TOKENS[:1]).copy()
    target.clear()
    return rows


def _unrestored(memory: Memory, state: State) -> bool:
    return True  # says so, does nothing


def _spoiled(memory: Memory, state: State) -> bool:
    state = state.copy()
    state[-4096:] = 0  # where the last layer's state lies
    return RESTORE(memory, state)


@pytest.mark.parametrize("restore", [_unrestored, _spoiled])
def test_a_memory_that_does_not_come_back_is_refused_by_name_but_decodes_plainly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restore: Callable[[Memory, State], bool]
) -> None:
    path = tiny.mamba(tmp_path / "river.gguf")
    rng = np.random.default_rng(0)
    monkeypatch.setattr(Memory, "restore", restore)
    with Model(path) as model, Context(model, n_ctx=64, n_outputs=5, threads=1) as recurrent:
        assert recurrent.rollback_strategy.name == "none"
        sampler = Sampler(model.vocab, GREEDY, rng, 64)
        with pytest.raises(UsageError, match=r"river\.gguf: a mamba model cannot be the target"):
            Decoder(recurrent, LookupDrafter(), sampler, FixedSchedule(4), BlockVerification(), rng)
        with pytest.raises(UsageError, match=r"river\.gguf: a mamba model cannot be the drafter"):
            ModelDrafter(recurrent, GREEDY, rng, draft_max=4)
        decoder = Decoder(recurrent, NoDrafter(), sampler, FixedSchedule(4), BlockVerification(), rng)
        first = [t for s in decoder.generate(TOKENS, 8) for t in s.tokens]
        # Another prompt: what cannot be rolled back is read anew.
        other = [t for s in decoder.generate(TOKENS[:5], 8) for t in s.tokens]
        again = [t for s in decoder.generate(TOKENS, 8) for t in s.tokens]
        assert first == again
        assert first != other


def test_an_abort_stops_a_running_pass_and_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "slow.gguf", n_embd=512, n_layer=12, n_ff=2048, n_head=8, n_head_kv=8)
    abort = Abort()
    with Model(path) as model, Context(model, n_ctx=2048, n_outputs=3, threads=1, abort=abort) as context:
        context.feed(TOKENS)
        prompt = np.tile(TOKENS, 200)
        began = time.perf_counter()
        context.feed(prompt[:256])
        whole = (time.perf_counter() - began) * len(prompt) / 256
        context.rollback(8)
        threading.Timer(whole / 10, abort.set).start()
        began = time.perf_counter()
        with pytest.raises(AbortedError):
            context.feed(prompt)
        assert time.perf_counter() - began < whole * 0.7
        n = len(context)
        assert context.held.tolist() == [*TOKENS, *prompt[: n - 8]]
        assert context.last_position == n - 1
        with pytest.raises(AbortedError):
            context.score(TOKENS[:1])
        with pytest.raises(AbortedError):
            Model(path, abort=abort)
        assert context.last_position == n - 1
        abort.clear()
        context.score(TOKENS[:1])  # and it works again


def test_closing_is_orderly_in_any_order(models: Path) -> None:
    model = Model(models / "target.gguf")
    context = Context(model, n_ctx=32, threads=1)
    model.close()  # closes the context first
    uses = [
        lambda: context.score(TOKENS[:1]),
        lambda: context.feed(TOKENS),
        lambda: context.clear(),
        lambda: context.memory.remove_cells(0),
        lambda: context.last_position,
        lambda: model.size,
        lambda: model.chat_template,
        lambda: model.vocab.is_eog(9),
        lambda: model.vocab.tokenize("text"),
        lambda: Context(model),
    ]
    for use in uses:
        with pytest.raises(ValueError, match="is closed"):
            use()
    context.close()
    model.close()
    for _ in range(3):
        _left_to_the_garbage_collector(models)
        gc.collect()


def _left_to_the_garbage_collector(models: Path) -> None:
    context = Context(Model(models / "target.gguf"), n_ctx=32, threads=1)
    assert len(context) == 0


def test_loading_reports_its_progress_and_an_exception_stops_it(models: Path) -> None:
    shares: list[float] = []
    Model(models / "target.gguf", progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0

    def stop(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Model(models / "target.gguf", progress=stop)


def test_a_file_llama_cpp_cannot_load_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\x00" * 100)
    with pytest.raises(UsageError, match=r"broken\.gguf: llama\.cpp cannot load this model: .*version"):
        Model(path)


@pytest.mark.parametrize("text", ["hello world", "", " the\n\tand é😀あ語 한", "<|im_start|>"])
def test_text_survives_the_vocabulary(target_model: Model, text: str) -> None:
    vocab = target_model.vocab
    tokens = vocab.tokenize(text)
    assert tokens.dtype == np.int32
    back = b"".join(vocab.piece(int(t)) for t in tokens).decode()
    assert back == (f" {text}" if text else "")  # this tokenizer puts a space before any text


def test_control_tokens_are_read_only_when_asked_for(target_model: Model) -> None:
    vocab = target_model.vocab
    assert len(vocab.tokenize("<|im_start|>", special=True)) < len(vocab.tokenize("<|im_start|>"))
    assert vocab.tokenize("<s>the", special=True).tolist() == vocab.tokenize("the", special=True).tolist()
    assert vocab.piece(vocab.bos) == b""
    assert vocab.control_text(vocab.bos) == "<s>"
    for token in (-1, 512):
        with pytest.raises(ValueError, match="outside the vocabulary of 512"):
            vocab.piece(token)
