"""The loop against plain decoding: the same tokens, the same distribution, the same stops."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import tiny
from neartie import assert_same_run
from scipy import stats as scipy_stats

from specdec.acceptance import BlockVerification, Rule, TokenRejection, Typical
from specdec.adaptive import AdaptiveSchedule
from specdec.backend import Context, Model
from specdec.decoder import Decoder, Step
from specdec.drafters import DraftBlock, Drafter, LookupDrafter, ModelDrafter, NoDrafter
from specdec.errors import UsageError
from specdec.experience import Experience
from specdec.neartie import measured_difference
from specdec.sampling import Sampler
from specdec.schedule import FixedSchedule, Horizon, Schedule
from specdec.settings import SamplingParams
from specdec.tokens import Tokens

GREEDY = SamplingParams(temperature=0.0)
PURE = SamplingParams(temperature=1.0, samplers=())
PROMPT = np.array([1, 300, 41, 77, 300, 41, 90, 12, 300, 41], np.int32)


class Scripted:
    """Proposes what it was told to, position by position of the whole text; keeps what it was asked."""

    name = "scripted"

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)
        self.limits: list[int] = []

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        limit = horizon.limit
        self.limits.append(limit)
        return DraftBlock(tuple(self.text[len(history) : len(history) + max(limit, 0)]), source=self.name)

    def reset(self) -> None:
        self.limits.clear()


def decoder(
    target: Context,
    drafter: Drafter,
    params: SamplingParams = GREEDY,
    *,
    k: int = 4,
    k_min: int = 0,
    rule: Rule | None = None,
    seed: int = 0,
    schedule: Schedule | None = None,
) -> Decoder:
    rng = np.random.default_rng(seed)
    sampler = Sampler(target.model.vocab, params, rng, target.n_ctx)
    schedule = schedule or FixedSchedule(k, k_min)
    return Decoder(target, drafter, sampler, schedule, rule or BlockVerification(), rng)


def wilful(longest: int) -> AdaptiveSchedule:
    """An adaptive schedule for which a pass of the target is dear and one of the drafter nearly free."""
    experience = Experience(10.0, {"model": 1e-6})
    experience.balance = 1e9
    for n in range(1, longest + 2):
        for _ in range(11):
            experience.target.note(n, 0, 10.0 + 0.7 * n)
    experience.target.note = lambda *_: None  # type: ignore[method-assign]  # these tiny models' own costs
    return AdaptiveSchedule(experience, longest=longest, clock=lambda: 0.0)


def tokens_of(steps: Sequence[Step]) -> list[int]:
    return [token for step in steps for token in step.tokens]


def plain(
    target: Context, prompt: Tokens = PROMPT, n: int = 40, params: SamplingParams = GREEDY
) -> list[int]:
    return tokens_of(list(decoder(target, NoDrafter(), params).generate(prompt, n)))


# Greedy: token by token.


@pytest.mark.parametrize("k", [*range(1, 17)])
@pytest.mark.parametrize("drafter_name", ["stranger", "cousin", "lookup"])
@pytest.mark.parametrize("rule", [BlockVerification(), TokenRejection()], ids=lambda r: r.name)
def test_greedy_equals_plain(target: Context, models: Path, drafter_name: str, k: int, rule: Rule) -> None:
    expected = plain(target, n=60)
    bound = 2 * measured_difference(target, np.array([*PROMPT, *expected], np.int32))
    with _drafter(drafter_name, models, k) as drafter:
        run = decoder(target, drafter, k=k, rule=rule)
        got = tokens_of(list(run.generate(PROMPT, 60)))
    assert_same_run(target, PROMPT.tolist(), expected, got, bound)
    if drafter_name == "stranger":
        assert run.stats.acceptance_rate < 0.3  # wrong most of the time: rejection is what is tested
    if drafter_name == "cousin":
        assert 0.05 < run.stats.acceptance_rate < 0.95


@pytest.mark.parametrize("drafter_name", ["stranger", "cousin", "lookup"])
def test_an_adaptive_length_changes_nothing_either(target: Context, models: Path, drafter_name: str) -> None:
    expected = plain(target, n=100)
    bound = 2 * measured_difference(target, np.array([*PROMPT, *expected], np.int32))
    with _drafter(drafter_name, models, 16) as drafter:
        run = decoder(target, drafter, schedule=wilful(16))
        steps = list(run.generate(PROMPT, 100))
    assert_same_run(target, PROMPT.tolist(), expected, tokens_of(steps), bound)
    lengths = {step.drafted for step in steps}
    assert len(lengths) >= 3, "the length varies"


class _drafter:  # noqa: N801 - reads as the function it stands for
    def __init__(self, name: str, models: Path, k: int, params: SamplingParams = GREEDY) -> None:
        self.model: Model | None = None
        if name == "lookup":
            self.drafter: Drafter = LookupDrafter(ngram_max=3, ngram_min=1)
            return
        self.model = Model(models / f"{name}.gguf")
        context = Context(self.model, n_ctx=256, threads=1)
        self.drafter = ModelDrafter(context, params, np.random.default_rng(5), draft_max=k)

    def __enter__(self) -> Drafter:
        return self.drafter

    def __exit__(self, *_: object) -> None:
        if self.model:
            self.model.close()


@pytest.mark.parametrize("dtype", ["q8_0", "q4_0"])
def test_where_batches_are_exact_so_is_the_run(tmp_path: Path, models: Path, dtype: str) -> None:
    path = tiny.llama(tmp_path / "quantised.gguf", seed=3, dtype=dtype)  # type: ignore[arg-type]
    with Model(path) as model, Context(model, n_ctx=256, n_outputs=17, threads=1) as target:
        expected = plain(target, n=100)
        assert measured_difference(target, np.array(expected, np.int32)) == 0.0
        with _drafter("cousin", models, 7) as drafter:
            assert tokens_of(list(decoder(target, drafter, k=7).generate(PROMPT, 100))) == expected


def test_smollm2_with_a_coarser_drafter(smollm_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    import llama_cpp

    coarse = tmp_path_factory.mktemp("coarse") / "smollm2.Q4_0.gguf"
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype, params.allow_requantize, params.nthread = llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0, True, 2
    assert llama_cpp.llama_model_quantize(str(smollm_path).encode(), str(coarse).encode(), params) == 0
    with Model(smollm_path) as model, Model(coarse) as draft_model:
        target = Context(model, n_ctx=512, n_outputs=17)
        draft = Context(draft_model, n_ctx=512)
        prompt = model.vocab.tokenize(
            "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n", special=True
        )
        expected = plain(target, prompt, 48)
        bound = 2 * measured_difference(target, np.concatenate([prompt, np.array(expected, np.int32)]))
        for drafter in (
            LookupDrafter(),
            ModelDrafter(draft, GREEDY, np.random.default_rng(0), draft_max=16),
        ):
            for k in (1, 2, 3, 5, 8, 11, 16):
                run = decoder(target, drafter, k=k)
                got = tokens_of(list(run.generate(prompt, 48)))
                assert_same_run(target, prompt.tolist(), expected, got, bound)
                assert run.stats.accepted > 0


# Sampled: the distribution.


@pytest.mark.parametrize("drafter_name", ["stranger", "cousin", "lookup"])
@pytest.mark.parametrize("rule", [BlockVerification(), TokenRejection()], ids=lambda r: r.name)
def test_a_sampled_run_has_the_targets_distribution(tmp_path: Path, drafter_name: str, rule: Rule) -> None:
    seed = 20240
    p_value = _chi_square(tmp_path, drafter_name, rule, seed, runs=4000)
    assert p_value > 1e-4, f"seed {seed}: p = {p_value:g}"


@pytest.mark.parametrize("rule", [BlockVerification(), TokenRejection()], ids=lambda r: r.name)
def test_so_has_one_whose_draft_length_depends_on_what_was_drawn(tmp_path: Path, rule: Rule) -> None:
    seed = 20242
    p_value = _chi_square(tmp_path, "cousin", rule, seed, runs=3000, schedule=wilful(3))
    assert p_value > 1e-4, f"seed {seed}: p = {p_value:g}"


def test_a_lossy_rule_fails_the_chi_square_test(tmp_path: Path) -> None:
    assert _chi_square(tmp_path, "cousin", Typical(0.3), 20241, runs=2000) < 1e-9


def _chi_square(
    directory: Path, drafter_name: str, rule: Rule, seed: int, runs: int, schedule: Schedule | None = None
) -> float:
    """p of 3-token continuations at temperature 1 against the probabilities of plain decoding."""
    n_vocab = 384  # a steep head leaves few of them with any weight
    shape = {"n_vocab": n_vocab, "n_layer": 1, "scale": 5.0}
    tiny.llama(directory / "target.gguf", seed=0, **shape)  # type: ignore[arg-type]
    tiny.llama(directory / "stranger.gguf", seed=1, **shape)  # type: ignore[arg-type]
    tiny.llama(directory / "cousin.gguf", seed=0, noise=0.2, **shape)  # type: ignore[arg-type]
    prompt = np.array([1, 100, 41, 100], np.int32)
    with (
        Model(directory / "target.gguf") as model,
        Context(model, n_ctx=64, n_outputs=4, threads=1) as target,
        _drafter(drafter_name, directory, 3, PURE) as drafter,
    ):
        expected = _law(target, prompt, 3)
        run = decoder(target, drafter, PURE, k=3, rule=rule, seed=seed, schedule=schedule)
        counts = Counter(tuple(tokens_of(list(run.generate(prompt, 3)))) for _ in range(runs))
    common = [t for t, chance in expected.items() if chance * runs >= 5]
    assert len(common) >= 20
    observed = [counts[t] for t in common]
    chances = [expected[t] for t in common]
    everything_else = (runs - sum(observed), 1.0 - sum(chances))
    frequencies = np.array([*chances, everything_else[1]]) * runs
    return float(scipy_stats.chisquare([*observed, everything_else[0]], frequencies).pvalue)


def _law(target: Context, prompt: Tokens, depth: int, keep: float = 3e-4) -> dict[tuple[int, ...], float]:
    """Probabilities of continuations by the target alone, of those likely enough to count."""
    law: dict[tuple[int, ...], float] = {}
    frontier: list[tuple[tuple[int, ...], float]] = [((), 1.0)]
    while frontier:
        prefix, mass = frontier.pop()
        text = np.array([*prompt, *prefix], np.int32)
        target.align(text[:-1])
        row = target.feed(text[len(target) :])[0].astype(np.float64)
        p = np.exp(row - row.max())
        p /= p.sum()
        for token in np.flatnonzero(mass * p >= keep):
            ended = target.model.vocab.is_eog(int(token))
            longer = prefix if ended else (*prefix, int(token))
            if len(longer) == depth or ended:
                law[longer] = law.get(longer, 0.0) + mass * float(p[token])
            else:
                frontier.append((longer, mass * float(p[token])))
    return law


def test_the_same_seed_gives_the_same_text(target: Context, models: Path) -> None:
    params = SamplingParams(temperature=1.0)
    runs = []
    for seed in (4, 4, 5):
        with _drafter("cousin", models, 5, params) as drafter:
            runs.append(
                tokens_of(list(decoder(target, drafter, params, k=5, seed=seed).generate(PROMPT, 30)))
            )
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


def test_typical_acceptance_is_lossy_and_accepts_more(target: Context, models: Path) -> None:
    params = SamplingParams(temperature=1.0)
    rates = []
    for rule in (BlockVerification(), Typical(0.05)):
        with _drafter("cousin", models, 5, params) as drafter:
            run = decoder(target, drafter, params, k=5, rule=rule)
            list(run.generate(PROMPT, 100))
            rates.append(run.stats.acceptance_rate)
    assert rates[1] > rates[0]


# One round.


def test_one_pass_per_round_and_statistics_that_add_up(target: Context) -> None:
    expected = plain(target, n=12)
    wrong = (expected[5] + 1) % 512
    script = Scripted([*PROMPT, *expected[:5], wrong, *expected[6:]])
    run = decoder(target, script, k=4)
    target.clear()
    passes = _count_passes(target)
    steps = list(run.generate(PROMPT, 12))
    assert tokens_of(steps) == expected
    # Rounds: 4 accepted + bonus; the next begins with the planted error; then 4 + bonus; the last needs none.
    assert [(s.drafted, s.accepted, len(s.tokens)) for s in steps] == [
        (4, 4, 5),
        (4, 0, 1),
        (4, 4, 5),
        (0, 0, 1),
    ]
    assert script.limits == [4, 4, 4, 0]
    assert passes == [9, 5, 5, 5, 1]  # the prompt but its last token, then one pass a round
    stats = run.stats
    assert (stats.rounds, stats.drafted, stats.accepted, stats.rejected, stats.emitted) == (4, 12, 8, 4, 12)
    assert stats.acceptance_rate == pytest.approx(8 / 12)
    assert stats.mean_accepted_length == 3.0
    assert stats.drafted_by_position == [3, 3, 3, 3]
    assert stats.accepted_by_position == [2, 2, 2, 2]
    assert steps[-1].finish_reason == "length"
    assert stats.decoding_seconds == pytest.approx(
        sum(stats.seconds[p] for p in ("draft", "verify", "sample", "other"))
    )


def _count_passes(context: Context) -> list[int]:
    sizes: list[int] = []
    decode = context._decode

    def counted(tokens: Tokens, *rest: int) -> np.ndarray:
        sizes.append(len(tokens))
        return decode(tokens, *rest)

    context._decode = counted  # type: ignore[method-assign]
    return sizes


def test_an_empty_draft_is_one_plain_step(target: Context) -> None:
    run = decoder(target, Scripted([]), k=4)
    steps = list(run.generate(PROMPT, 5))
    assert tokens_of(steps) == plain(target, n=5)
    assert [s.drafted for s in steps] == [0] * 5
    assert run.stats.plain_rounds == 5


def test_drafts_below_the_minimum_are_not_verified(target: Context) -> None:
    expected = plain(target, n=8)
    run = decoder(target, Scripted([*PROMPT, *expected][: len(PROMPT) + 2]), k=4, k_min=3)
    steps = list(run.generate(PROMPT, 8))
    assert tokens_of(steps) == expected
    assert run.stats.drafted == 0


@pytest.mark.parametrize("accepted", [0, 1, 3, 4])
def test_after_a_round_the_cache_holds_the_text_but_its_last_token(target: Context, accepted: int) -> None:
    expected = plain(target, n=8)
    draft = [*expected[:accepted], *((t + 1) % 512 for t in expected[accepted:4])]
    run = decoder(target, Scripted([*PROMPT, *draft]), k=4)
    steps = run.generate(PROMPT, 8)
    step = next(steps)
    assert step.accepted == accepted
    assert target.held.tolist() == [*PROMPT, *step.tokens][:-1]
    assert target.last_position == len(target) - 1


# Stops.


def test_the_budgets_last_token_is_emitted_and_never_exceeded(target: Context) -> None:
    expected = plain(target, n=20)
    for n in range(1, 12):
        steps = list(decoder(target, Scripted([*PROMPT, *expected]), k=16).generate(PROMPT, n))
        assert tokens_of(steps) == expected[:n]
        assert steps[-1].finish_reason == "length"


@pytest.mark.parametrize("at", [0, 2, 3, 7])
def test_an_end_of_generation_token_is_not_emitted_and_cuts_the_run(
    target: Context, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    expected = plain(target, n=12)
    end = expected[at]
    first = expected.index(end)
    monkeypatch.setattr(target.model.vocab, "is_eog", lambda token: token == end)
    run = decoder(target, Scripted([*PROMPT, *expected]), k=5)
    steps = list(run.generate(PROMPT, 12))
    assert tokens_of(steps) == expected[:first]
    assert steps[-1].finish_reason == "stop"
    assert run.stats.emitted == first
    kept = [*PROMPT, *expected[:first]]
    assert target.held.tolist() in (kept, kept[:-1])
    assert run.stats.accepted == sum(s.accepted for s in steps)
    assert run.stats.rejected == run.stats.drafted - run.stats.accepted
    monkeypatch.undo()
    # The conversation can go on from exactly there.
    more = tokens_of(list(decoder(target, NoDrafter()).generate(np.array(kept, np.int32), 4)))
    assert more == expected[first : first + 4]


def test_a_stop_string_across_tokens_and_rounds_is_not_shown(target: Context) -> None:
    vocab = target.model.vocab
    expected = plain(target, n=16)
    texts = [vocab.piece(t).decode("utf-8", "replace") for t in expected]
    whole = "".join(texts)
    border = len("".join(texts[:7]))
    stop = whole[border - 1 : border + 1]
    at = whole.index(stop)
    assert "\ufffd" not in stop
    for k in (1, 3, 8):
        run = decoder(target, Scripted([*PROMPT, *expected]), k=k)
        steps = list(run.generate(PROMPT, 16, stop=["never there", stop]))
        assert "".join(s.text for s in steps) == whole[:at]
        assert steps[-1].finish_reason == "stop"
        got = tokens_of(steps)
        assert got == expected[: len(got)]
        assert "".join(texts[: len(got)]).find(stop) >= 0 > "".join(texts[: len(got) - 1]).find(stop)
        kept = [*PROMPT, *got]
        assert target.held.tolist() in (kept, kept[:-1])


def test_a_full_context_ends_the_text(target_model: Model) -> None:
    with Context(target_model, n_ctx=24, n_outputs=9, threads=1) as target:
        expected = plain(target, n=-1)
        steps = list(decoder(target, Scripted([*PROMPT, *expected]), k=8).generate(PROMPT))
        assert tokens_of(steps) == expected
        assert len(expected) == 24 - len(PROMPT)
        assert steps[-1].finish_reason == "context"


@pytest.mark.parametrize(
    ("prompt", "n", "message"),
    [
        ([], 4, "the prompt is empty"),
        (list(range(3, 260)), 4, "the prompt has 257 tokens and the context holds 256"),
        ([1, 600], 4, "outside the target's vocabulary of 512"),
        ([1, -3], 4, "outside the target's vocabulary"),
        ([1, 2], 0, "max_tokens must be at least 1"),
        ([1, 2], -2, "max_tokens must be at least 1"),
        ([1, 2**40], 4, "outside the target's vocabulary"),
        ([1.5, 2.0], 4, "must be a sequence of token ids"),
        ([[1, 2]], 4, "must be a sequence of token ids"),
        ("text", 4, "must be a sequence of token ids"),
    ],
)
def test_preconditions_are_refused_at_once(target: Context, prompt: list[int], n: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        decoder(target, NoDrafter()).generate(prompt, n)


def test_a_draft_longer_than_the_target_can_score_is_refused(target_model: Model) -> None:
    with (
        Context(target_model, n_ctx=64, n_outputs=4, threads=1) as target,
        pytest.raises(UsageError, match="n_outputs of at least 9, it has 4"),
    ):
        decoder(target, LookupDrafter(), k=8)


def test_a_next_prompt_reads_only_what_is_new(target: Context) -> None:
    first = plain(target, n=10)
    longer = np.array([*PROMPT, *first, 55, 56, 57], np.int32)
    passes = _count_passes(target)
    list(decoder(target, NoDrafter()).generate(longer, 1))
    assert passes == [3, 1]  # the last emitted token and the new ones but the last; then the round


def test_progress_is_told_while_the_prompt_is_read(target: Context) -> None:
    told: list[tuple[int, int]] = []
    prompt = np.arange(3, 203, dtype=np.int32)
    list(decoder(target, NoDrafter()).generate(prompt, 1, progress=lambda n, of: told.append((n, of))))
    assert told == [(64, 199), (128, 199), (192, 199), (199, 199)]


# A desynchronised drafter is caught.


class Desynchronised(ModelDrafter):
    """Skips the rollback: what was rejected stays in its cache, and what follows is fed after it."""

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        fed = getattr(self, "fed", 0)
        self.context.align = lambda text: len(self.context)  # type: ignore[method-assign]
        held = len(self.context)
        self.fed = len(history)
        new = history[min(fed, len(history) - 1) :]
        # What align would have rolled back is passed off as the history.
        return super().propose(np.concatenate([self.context.held.copy(), new]) if held else history, horizon)


def test_a_drafter_that_skips_its_rollback_is_caught(models: Path, target: Context) -> None:
    """A drafter of the target's own weights is always right; out of step, it is not, and that shows."""
    rates = {}
    for kind in (ModelDrafter, Desynchronised):
        with Model(models / "target.gguf") as twin, Context(twin, n_ctx=256, threads=1) as context:
            drafter = kind(context, GREEDY, np.random.default_rng(0), draft_max=4)
            run = decoder(target, _Spoiled(drafter), k=4)
            assert tokens_of(list(run.generate(PROMPT, 40))) == plain(target, n=40)
            rates[kind] = run.stats.accepted_by_position[0] / run.stats.drafted_by_position[0]
    assert rates[ModelDrafter] == 1.0
    assert rates[Desynchronised] < 0.5


class _Spoiled:
    """Passes a drafter's proposals on with the third token changed, so that each round rejects something."""

    name = "spoiled"

    def __init__(self, drafter: Drafter) -> None:
        self.drafter = drafter

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        tokens = list(self.drafter.propose(history, horizon).tokens)
        if len(tokens) > 2:
            tokens[2] = (tokens[2] + 1) % 512
        return DraftBlock(tuple(tokens), source=self.name)

    def reset(self) -> None:
        self.drafter.reset()
