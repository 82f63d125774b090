"""Every kind of memory, as target and as drafter: plain decoding's text, and the state of the kept tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
import tiny_architectures
from neartie import assert_same_run

from specdec.acceptance import BlockVerification
from specdec.backend import Abort, Context, Model
from specdec.decoder import Decoder
from specdec.drafters import DraftBlock, Drafter, LookupDrafter, ModelDrafter, NoDrafter
from specdec.errors import AbortedError
from specdec.neartie import measured_difference
from specdec.sampling import Sampler
from specdec.schedule import FixedSchedule, Horizon
from specdec.settings import SamplingParams
from specdec.tokens import Tokens

GREEDY = SamplingParams(temperature=0.0)
WARM = SamplingParams(temperature=0.7)

# What a target's context finds, and one that drafts, which has no snapshots to roll back many passes.
CELLS = ("cell removal", "cell removal")
REPLAY = ("checkpoint and replay", "checkpoint and replay")
SNAPSHOTS = ("state snapshots", "checkpoint and replay")
STRATEGIES = {
    "llama": CELLS,
    "gemma3": CELLS,
    "qwen2": CELLS,
    "qwen3": CELLS,
    "qwen3moe": CELLS,
    "lfm2": SNAPSHOTS,
    "mamba": REPLAY,
    "mamba2": REPLAY,
    "falcon-h1": REPLAY,
    "nemotron_h": SNAPSHOTS,
    "qwen35": SNAPSHOTS,
    "qwen3next": REPLAY,
    "rwkv7": REPLAY,
}
ALL = pytest.mark.parametrize("architecture", STRATEGIES)
NOT_CELLS = pytest.mark.parametrize("architecture", [a for a, s in STRATEGIES.items() if s != CELLS])
NOISE = {"mamba": 0.02, "mamba2": 0.05, "lfm2": 0.05}  # so that a drafter is right about half of the time

# Longer than gemma3's window, and with repetitions for prompt lookup.
PROMPT = np.concatenate([np.random.default_rng(1).integers(3, 512, 40), [41, 77, 300, 41, 77]]).astype(
    np.int32
)


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Path]:
    directory = tmp_path_factory.mktemp("architectures")
    return {
        (name, role): tiny_architectures.write(
            name, directory / f"{name}-{role}.gguf", noise=0.0 if role == "target" else NOISE.get(name, 0.1)
        )
        for name in STRATEGIES
        for role in ("target", "draft")
    }


Files = dict[tuple[str, str], Path]


@contextmanager
def context(path: Path, n_outputs: int = 1) -> Iterator[Context]:
    with Model(path) as model, Context(model, n_ctx=512, n_outputs=n_outputs, threads=1) as made:
        yield made


def decoder(target: Context, drafter: Drafter, k: int, params: SamplingParams = GREEDY) -> Decoder:
    rng = np.random.default_rng(k)
    sampler = Sampler(target.model.vocab, params, rng, target.n_ctx)
    return Decoder(target, drafter, sampler, FixedSchedule(k), BlockVerification(), rng)


def tokens_of(run: Decoder, n: int, prompt: Tokens = PROMPT) -> list[int]:
    return [token for step in run.generate(prompt, n) for token in step.tokens]


def bound_of(target: Context, text: list[int]) -> float:
    """Twice the largest difference between batched and single passes; cells may differ by a last bit more."""
    return 2 * measured_difference(target, np.array([*PROMPT, *text], np.int32)) + 1e-6


@ALL
def test_the_probe_finds_the_strategy_and_leaves_no_trace(files: Files, architecture: str) -> None:
    with context(files[architecture, "target"], 17) as target, context(files[architecture, "draft"]) as draft:
        assert (target.rollback_strategy.name, draft.rollback_strategy.name) == STRATEGIES[architecture]
        assert target.rollback_strategy.can_roll_back
        assert len(target) == target.tokens_fed == 0
        assert target.last_position == -1
        fresh = target.feed(PROMPT).copy()
        target.clear()
        np.testing.assert_array_equal(target.feed(PROMPT), fresh)


@ALL
def test_greedy_equals_plain(files: Files, architecture: str) -> None:
    with context(files[architecture, "target"], 17) as target, context(files[architecture, "draft"]) as draft:
        expected = tokens_of(decoder(target, NoDrafter(), 1), 40)
        bound = bound_of(target, expected)
        for k in (1, 2, 3, 5, 8, 16):
            drafter = ModelDrafter(draft, GREEDY, np.random.default_rng(0), draft_max=k)
            run = decoder(target, drafter, k)
            got = tokens_of(run, 40)
            assert_same_run(target, PROMPT.tolist(), expected, got, bound)
            assert 0 < run.stats.accepted < run.stats.drafted, f"k = {k}: nothing is tested"
        run = decoder(target, LookupDrafter(), 16)
        assert_same_run(target, PROMPT.tolist(), expected, tokens_of(run, 40), bound)


@pytest.mark.parametrize(
    ("target_kind", "draft_kind"),
    [("llama", "mamba2"), ("rwkv7", "llama"), ("qwen35", "qwen3"), ("gemma3", "lfm2")],
)
def test_any_pair_equals_plain(files: Files, target_kind: str, draft_kind: str) -> None:
    with context(files[target_kind, "target"], 17) as target, context(files[draft_kind, "draft"]) as draft:
        expected = tokens_of(decoder(target, NoDrafter(), 1), 30)
        bound = bound_of(target, expected)
        drafter = ModelDrafter(draft, GREEDY, np.random.default_rng(0), draft_max=8)
        got = tokens_of(decoder(target, drafter, 8), 30)
        assert_same_run(target, PROMPT.tolist(), expected, got, bound)


@ALL
@pytest.mark.parametrize("k", [1, 4, 16])
def test_a_sampled_run_judges_by_the_rows_of_plain_decoding(files: Files, architecture: str, k: int) -> None:
    """Every row that a token was drawn from is the one that single passes over the written text give."""
    with context(files[architecture, "target"], 17) as target, context(files[architecture, "draft"]) as draft:
        seen: list[tuple[int, np.ndarray]] = []
        drafter = ModelDrafter(draft, WARM, np.random.default_rng(5), draft_max=k)
        run = decoder(target, drafter, k, WARM)
        score = target.score

        def noted(tokens: Tokens, *, sure: int = 0) -> np.ndarray:
            rows = score(tokens, sure=sure)
            seen.append((len(target), rows.copy()))
            return rows

        target.score = noted  # type: ignore[method-assign]
        steps = list(run.generate(PROMPT, 40))
        target.score = score  # type: ignore[method-assign]
        text = np.array([*PROMPT, *(t for step in steps for t in step.tokens)], np.int32)
        bound = measured_difference(target, text) * 2 + 1e-6
        singles = np.concatenate([target.score(text[i : i + 1], sure=1).copy() for i in range(len(text))])
        for (end, rows), step in zip(seen, steps, strict=True):
            first = end - len(rows)
            used = len(step.tokens)
            np.testing.assert_allclose(rows[:used], singles[first : first + used], atol=bound, rtol=0)
        assert 0 < run.stats.accepted < run.stats.drafted


@ALL
@pytest.mark.parametrize("sure", [0, 1])
def test_a_pass_is_taken_back_in_one_step_or_in_several(files: Files, architecture: str, sure: int) -> None:
    """Also as a whole: what snapshots cannot undo, though llama.cpp says that they did."""
    tokens = np.array([41, 77, 12, 9, 200, 31], np.int32)
    with context(files[architecture, "target"], 17) as target:
        for steps in [(6,), (5,), (3,), (1,), (0,), (4, 2), (5, 3, 1), (3, 0), (4, -1), (0, -30)]:
            target.clear()
            target.feed(PROMPT)
            target.score(PROMPT[:3])  # older snapshots, which must not be taken for those of the next pass
            target.rollback(len(PROMPT))
            target.score(tokens, sure=sure)
            for step in steps:
                target.rollback(len(PROMPT) + step)
            assert len(target) == len(PROMPT) + steps[-1]
            _assert_state(target, target.held.tolist())


@ALL
@pytest.mark.parametrize("sure", [0, 1])
def test_200_rounds_of_random_acceptance_leave_the_state_of_the_kept_tokens(
    files: Files, architecture: str, sure: int
) -> None:
    seed = 12
    rng = np.random.default_rng(seed)
    kept: list[int] = []
    with context(files[architecture, "target"], 17) as target:
        for _ in range(200):
            tokens = rng.integers(3, 512, rng.integers(1, 10)).astype(np.int32)
            if len(kept) + len(tokens) > 150:
                target.rollback(40)
                kept = kept[:40]
            target.score(tokens, sure=sure)
            stay = int(rng.integers(sure, len(tokens) + 1))
            target.rollback(len(kept) + stay)
            kept += tokens[:stay].tolist()
            assert target.held.tolist() == kept, f"seed {seed}"
        _assert_state(target, kept)


@ALL
def test_200_rounds_of_drafting_leave_the_state_of_the_history(files: Files, architecture: str) -> None:
    """As a drafter does: the new history is fed, then one token at a time, of which some are kept."""
    seed = 13
    rng = np.random.default_rng(seed)
    history = PROMPT
    with context(files[architecture, "draft"]) as draft:
        for _ in range(200):
            if len(history) > 140:
                history = history[: len(PROMPT)]
            draft.align(history[:-1])
            draft.feed(history[len(draft) :])
            drafted = rng.integers(3, 512, rng.integers(1, 9)).astype(np.int32)
            for token in drafted[:-1]:
                draft.score(token[None])
            kept = drafted[: rng.integers(0, len(drafted) + 1)]
            history = np.concatenate([history, kept, rng.integers(3, 512, 1).astype(np.int32)])
        draft.align(history)
        _assert_state(draft, draft.held.tolist())


def _assert_state(made: Context, kept: list[int]) -> None:
    """The logits after one more token are those that follow the kept tokens fed once."""
    probe = np.array([7], np.int32)
    after = made.score(probe).copy()
    text = np.array(kept, np.int32)
    n = made.n_outputs
    rows = []
    for size in (1, n):
        made.clear()
        rows.append(
            np.concatenate([made.score(text[i : i + size]).copy() for i in range(0, len(text), size)])
        )
    made.clear()
    made.feed(text)
    bound = 2 * float(np.abs(rows[0] - rows[1]).max()) + 1e-3
    np.testing.assert_allclose(after, made.score(probe), atol=bound, rtol=0)


class _Stopping(Abort):
    """Stops a pass when llama.cpp asks for the n-th time, in the middle of the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.left = -1
        self.callback = llama_cpp.ggml_abort_callback(self._asked)

    def _asked(self, _data: object) -> bool:
        self.left -= 1
        if self.left == 0:
            self.set()
        return self.is_set


@ALL
def test_a_stopped_pass_leaves_no_trace(files: Files, architecture: str) -> None:
    abort = _Stopping()
    with (
        Model(files[architecture, "target"]) as model,
        Context(model, n_ctx=512, n_outputs=17, threads=1, abort=abort) as target,
    ):
        for asked in (1, 5, 12, 22):
            for again in (False, True):  # with tokens to be read again, and without
                target.clear()
                target.hold(PROMPT)
                target.score(PROMPT[:5], sure=1)
                target.rollback(len(PROMPT) + (3 if again else 5))
                text = target.held.tolist()
                abort.left = asked
                with pytest.raises(AbortedError):
                    target.score(PROMPT[5:12], sure=1)
                abort.clear()
                assert target.held.tolist() == text
                _assert_state(target, text)


@ALL
def test_a_next_prompt_reuses_what_it_shares(files: Files, architecture: str) -> None:
    with context(files[architecture, "target"], 17) as target:
        run = decoder(target, LookupDrafter(), 8)
        answer = tokens_of(run, 20)
        for prompt in (
            np.array([*PROMPT, *answer, 55, 56, 57], np.int32),  # goes on
            np.array([*PROMPT, 99, 98], np.int32),  # the answer was dropped
            np.array([*PROMPT[:20], 99, 98], np.int32),  # goes back far
            PROMPT[:5],
            np.array([9, *PROMPT], np.int32),  # something else
            PROMPT,
        ):
            got = tokens_of(run, 12, prompt)
            with context(files[architecture, "target"], 17) as fresh:
                expected = tokens_of(decoder(fresh, NoDrafter(), 1), 12, prompt)
                bound = 2 * measured_difference(fresh, np.concatenate([prompt, got]).astype(np.int32)) + 1e-6
                assert_same_run(fresh, prompt.tolist(), expected, got, bound)


@pytest.mark.parametrize(("n_ctx", "n_outputs"), [(8, 9), (16, 40), (300, 300), (512, 100)])
def test_contexts_and_drafts_of_any_length_can_be_made(files: Files, n_ctx: int, n_outputs: int) -> None:
    """llama.cpp ends the process where snapshots outnumber a batch or outgrow its graph."""
    for architecture in ("lfm2", "mamba2", "llama"):
        with Model(files[architecture, "target"]) as model:
            target = Context(model, n_ctx=n_ctx, n_outputs=n_outputs, threads=1)
            target.feed(PROMPT[:3])
            target.score(PROMPT[3:7], sure=1)
            target.rollback(5)
            _assert_state(target, PROMPT[:5].tolist())


def test_a_rollback_does_not_reach_behind_a_sliding_window(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a cache no larger than the window and a batch, what lies behind is gone and must be read again."""
    params = Context._params

    def windowed(made: Context, threads: int) -> llama_cpp.llama_context_params:
        small = params(made, threads)
        small.swa_full = False
        return small

    monkeypatch.setattr(Context, "_params", windowed)
    text = np.random.default_rng(3).integers(3, 512, 400).astype(np.int32)
    with context(files["gemma3", "target"], 9) as target:
        assert target.rollback_strategy.name == "cell removal"
        for keep, n_read in ((390, 390), (200, 200), (100, 0), (10, 0)):
            target.clear()
            target.hold(text)
            assert target.memory.first_position > 100
            target.rollback(keep)
            assert target.n_read == n_read
            _assert_state(target, text[:keep].tolist())


@NOT_CELLS
def test_the_end_of_the_last_prompt_is_remembered(files: Files, architecture: str) -> None:
    with context(files[architecture, "target"], 17) as target:
        run = decoder(target, LookupDrafter(), 8)
        tokens_of(run, 30)
        read = target.tokens_fed
        target.hold(np.array([*PROMPT, 99, 98], np.int32))
        assert (
            target.tokens_fed - read == 3
        )  # the prompt's last token, never read before the round, and the two


@NOT_CELLS
def test_a_rejection_costs_no_pass(files: Files, architecture: str) -> None:
    """Passes are as many as rounds, but for the few that spare reading the same tokens again and again."""
    with context(files[architecture, "target"], 17) as target, context(files[architecture, "draft"]) as draft:
        for each in (target, draft):
            each.passes = 0  # type: ignore[attr-defined]
            _count(each)
        run = decoder(target, ModelDrafter(draft, GREEDY, np.random.default_rng(0), draft_max=4), 4)
        tokens_of(run, 100)
        rounds = run.stats.rounds
        assert run.stats.rejected > rounds / 2
        assert target.passes <= 1 + 1.3 * rounds  # type: ignore[attr-defined]
        assert draft.passes == run.stats.drafted + 1  # type: ignore[attr-defined]  # the prompt
        assert target.tokens_fed <= len(PROMPT) + run.stats.drafted + rounds + 16 * rounds


def _count(made: Context) -> None:
    one = made._pass

    def counted(end: int, n_rows: int) -> np.ndarray:
        made.passes += 1  # type: ignore[attr-defined]
        return one(end, n_rows)

    made._pass = counted  # type: ignore[method-assign]


@NOT_CELLS
def test_many_rejections_in_a_row_fit_the_pass(files: Files, architecture: str) -> None:
    """A drafter that is always wrong: what must be read again never outgrows a batch."""
    with context(files[architecture, "target"], 17) as target:
        expected = tokens_of(decoder(target, NoDrafter(), 1), 120)
        bound = bound_of(target, expected)
        got = tokens_of(decoder(target, _Wrong(expected), 2), 120)
        assert_same_run(target, PROMPT.tolist(), expected, got, bound)


class _Wrong:
    """Drafts two tokens that do not follow."""

    name = "wrong"

    def __init__(self, text: list[int]) -> None:
        self.text = text

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        at, limit = len(history) - len(PROMPT), horizon.limit
        return DraftBlock(
            tuple((t + 1) % 500 + 3 for t in self.text[at : at + min(limit, 2)]), source=self.name
        )

    def reset(self) -> None: ...
