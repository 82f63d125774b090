"""A drafter with another vocabulary: its text arrives whole, and the output stays the target's."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import revocab
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats
from test_decoder import GREEDY, PURE, _law, decoder, plain, tokens_of

from specdec import Drafting, Engine, Loading, SamplingParams, UsageError
from specdec.acceptance import BlockVerification, Rule, TokenRejection
from specdec.adaptive import AdaptiveSchedule
from specdec.backend import Context, Model, Vocabulary
from specdec.drafters import ModelDrafter, TranslatedDrafter
from specdec.drafters.translation import Passage, Translation
from specdec.drafters.translation import tokens_of as cut
from specdec.experience import Experience
from specdec.neartie import measured_difference
from specdec.schedule import FixedRound

SMALL = Loading(n_ctx=256, threads=1)
WORDS = [
    "the",
    "and",
    " that",
    " with",
    "é",
    "😀",
    "語한",
    " 中文，字",
    "\n",
    "\n\n",
    "  ",
    "x",
    "7",
    ".",
    "→ it",
]
texts = st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=60).map("".join)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models for which batches change nothing: one of each kind of tokenizer, and of single bytes."""
    directory = tmp_path_factory.mktemp("translated")
    tiny.llama(directory / "spm.gguf", tokenizer="spm", dtype="q8_0")
    tiny.llama(directory / "bpe.gguf", tokenizer="bpe", dtype="q8_0", n_vocab=520, chat_template=tiny.CHATML)
    tiny.mamba(directory / "mamba.gguf", tokenizer="spm")
    merges = {"tokenizer.ggml.merges": ["a a"]}  # there have to be some; this one makes no token
    tiny.llama(directory / "bytes.gguf", tokenizer="bpe", dtype="q8_0", n_vocab=260, extra=merges)
    revocab.shuffled(directory / "bytes.gguf", directory / "shuffled.gguf")
    return directory


@pytest.fixture(scope="module")
def spm(files: Path) -> Iterator[Model]:
    with Model(files / "spm.gguf") as model:
        yield model


@pytest.fixture(scope="module")
def bpe(files: Path) -> Iterator[Model]:
    with Model(files / "bpe.gguf") as model:
        yield model


@pytest.fixture(scope="module")
def smollm(smollm_path: Path) -> Iterator[Model]:
    with Model(smollm_path) as model:
        yield model


def spelled(vocab: Vocabulary, tokens: object) -> bytes:
    return b"".join(vocab.piece(int(token)) for token in np.asarray(tokens, np.int32))


def wilful(longest: int) -> AdaptiveSchedule:
    """Finds drafts worth their while, whatever these tiny models cost."""
    experience = Experience(10.0, {TranslatedDrafter.name: 1e-6})
    experience.balance = 1e9
    for n in range(1, longest + 2):
        for _ in range(11):
            experience.target.note(n, 0, 10.0 + 0.7 * n)
    experience.target.note = lambda *_: None  # type: ignore[method-assign]
    return AdaptiveSchedule(experience, longest=longest, clock=lambda: 0.0)


# The run: what the target alone writes.


@pytest.mark.parametrize(("target_name", "drafter_name"), [("bpe", "spm"), ("spm", "bpe"), ("bpe", "mamba")])
def test_greedy_equals_plain(files: Path, target_name: str, drafter_name: str) -> None:
    with (
        Model(files / f"{target_name}.gguf") as model,
        Model(files / f"{drafter_name}.gguf") as draft_model,
        Context(model, n_ctx=256, n_outputs=17, threads=1) as target,
        Context(draft_model, n_ctx=256, threads=1) as draft,
    ):
        prompt = model.vocab.tokenize("that was for the 😀 and")
        expected = plain(target, prompt, 60)
        drafted = 0
        for schedule in (*range(1, 17), wilful(16)):
            drafter = TranslatedDrafter(draft, model.vocab, draft_max=16)
            how = {"k": schedule} if isinstance(schedule, int) else {"schedule": schedule}
            run = decoder(target, drafter, **how)  # type: ignore[arg-type]
            steps = list(run.generate(prompt, 60))
            assert tokens_of(steps) == expected
            assert {step.source for step in steps if step.drafted} <= {"translated"}
            drafted += run.stats.drafted
        assert drafted > 500


@pytest.mark.parametrize("rule", [BlockVerification(), TokenRejection()], ids=lambda r: r.name)
@pytest.mark.parametrize("tokenizers", [("bpe", "spm"), ("spm", "bpe")], ids="-".join)
def test_a_sampled_run_has_the_targets_distribution(
    tmp_path: Path, rule: Rule, tokenizers: tuple[tiny.Tokenizer, tiny.Tokenizer]
) -> None:
    seed, runs = 20250, 2000
    names = [tmp_path / "target.gguf", tmp_path / "draft.gguf"]
    for path, tokenizer in zip(names, tokenizers, strict=True):
        tiny.llama(path, tokenizer=tokenizer, n_vocab=384, n_layer=1, scale=5.0)
    with (
        Model(names[0]) as model,
        Model(names[1]) as draft_model,
        Context(model, n_ctx=64, n_outputs=4, threads=1) as target,
        Context(draft_model, n_ctx=64, threads=1) as draft,
    ):
        prompt = model.vocab.tokenize("the and")
        law = _law(target, prompt, 3)
        drafter = TranslatedDrafter(draft, model.vocab, draft_max=3)
        run = decoder(target, drafter, PURE, k=3, rule=rule, seed=seed)
        counts = Counter(tuple(tokens_of(list(run.generate(prompt, 3)))) for _ in range(runs))
        assert run.stats.drafted > runs
    common = [text for text, chance in law.items() if chance * runs >= 5]
    assert len(common) >= 20
    observed, chances = [counts[text] for text in common], [law[text] for text in common]
    frequencies = np.array([*chances, 1.0 - sum(chances)]) * runs
    p_value = scipy_stats.chisquare([*observed, runs - sum(observed)], frequencies).pvalue
    assert p_value > 1e-4, f"seed {seed}: p = {p_value:g}"


@pytest.mark.parametrize("k", [1, 3, 8])
def test_the_same_model_under_other_ids_is_always_right(files: Path, k: int) -> None:
    """It writes bytes at random, most of them no text: they arrive all the same."""
    with (
        Model(files / "bytes.gguf") as model,
        Model(files / "shuffled.gguf") as draft_model,
        Context(model, n_ctx=256, n_outputs=9, threads=1) as target,
        Context(draft_model, n_ctx=256, threads=1) as draft,
    ):
        prompt = model.vocab.tokenize("the and of")
        expected = plain(target, prompt, 100)
        assert min(spelled(model.vocab, expected)) < 128 < max(spelled(model.vocab, expected))
        run = decoder(target, TranslatedDrafter(draft, model.vocab, draft_max=k), k=k)
        assert tokens_of(list(run.generate(prompt, 100))) == expected
        assert run.stats.acceptance_rate == 1.0
        assert run.stats.mean_accepted_length > 1.0 + 0.5 * k


def test_so_is_a_real_one(smollm: Model, smollm_path: Path, tmp_path: Path) -> None:
    with (
        Model(revocab.shuffled(smollm_path, tmp_path / "shuffled.gguf")) as other,
        Context(smollm, n_ctx=128, n_outputs=5) as target,
        Context(other, n_ctx=128) as draft,
    ):
        text = "<|im_start|>user\nWhat is gravity?<|im_end|>\n<|im_start|>assistant\n"
        prompt = smollm.vocab.tokenize(text, special=True)
        direct = ModelDrafter(target, GREEDY, random.Random(0), draft_max=12)
        expected = direct.propose(prompt, FixedRound(12)).tokens
        translated = TranslatedDrafter(draft, smollm.vocab, draft_max=12)
        assert translated.propose(prompt, FixedRound(12)).tokens == expected
        run = decoder(target, TranslatedDrafter(draft, smollm.vocab, draft_max=4), k=4)
        list(run.generate(prompt, 24))
        assert run.stats.acceptance_rate > 0.9


def test_after_many_rounds_the_cache_is_what_reading_once_gives(bpe: Model, spm: Model) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    with Context(spm, n_ctx=2048, n_outputs=17, threads=1) as draft:
        drafter = TranslatedDrafter(draft, bpe.vocab, draft_max=6)
        history = list(bpe.vocab.tokenize("the and of"))
        for _ in range(200):
            block = drafter.propose(np.array(history, np.int32), FixedRound(rng.randint(1, 6)))
            history += block.tokens[: rng.randint(0, len(block))]
            history.append(rng.randrange(4, bpe.vocab.size))
            if rng.random() < 0.05:
                del history[rng.randrange(3, len(history)) :]
        text = np.array(history, np.int32)
        drafter.propose(text, FixedRound(6))
        derived = Translation(bpe.vocab, spm.vocab).read(text).tokens
        assert draft.held[: len(derived)].tolist() == derived.tolist(), f"seed {seed}"
        draft.hold(derived[:-1])
        after = draft.feed(derived[-1:])[0].copy()
        drafter.reset()
        assert len(draft) == 0
        for i in range(0, len(derived), 16):  # from 64 tokens on, llama.cpp attends in another order
            once = draft.score(derived[i : i + 16])[-1].copy()
        bound = 2 * measured_difference(draft, derived) + 1e-6
        np.testing.assert_allclose(after, once, atol=bound, rtol=0, err_msg=f"seed {seed}")


def test_the_limit_counts_the_targets_tokens(bpe: Model, spm: Model) -> None:
    history = bpe.vocab.tokenize("the and of")
    with Context(spm, n_ctx=256, threads=1) as draft:
        drafter = TranslatedDrafter(draft, bpe.vocab, draft_max=8)
        assert drafter.propose(history, FixedRound(0)).tokens == ()
        assert drafter.propose(np.empty(0, np.int32), FixedRound(4)).tokens == ()
        long = drafter.propose(history, FixedRound(8))
        assert all(0.0 < sure <= 1.0 for sure in long.sure)
        for limit in range(1, 8):
            block = drafter.propose(history, FixedRound(limit))
            assert len(block) <= limit
            assert spelled(bpe.vocab, long.tokens).startswith(spelled(bpe.vocab, block.tokens[:-1]))
        doubtful = TranslatedDrafter(draft, bpe.vocab, draft_max=8, p_min=1.0)
        assert doubtful.propose(history, FixedRound(8)).tokens == ()


# The text: nothing is lost on the way.


def pairs(spm: Model, bpe: Model, smollm: Model) -> list[tuple[Vocabulary, Vocabulary]]:
    return [
        (a.vocab, b.vocab) for a, b in ((bpe, spm), (spm, bpe), (smollm, spm), (spm, smollm), (bpe, smollm))
    ]


@settings(max_examples=40, deadline=None)
@given(text=texts, steps=st.lists(st.integers(-6, 9), max_size=25))
def test_reading_on_gives_what_reading_anew_does(
    spm: Model, bpe: Model, smollm: Model, text: str, steps: list[int]
) -> None:
    for own, other in pairs(spm, bpe, smollm):
        history = own.tokenize(text * 4)
        grown = Translation(own, other)
        n = 0
        for step in steps:
            n = min(max(0, n + step * 4), len(history))
            fresh = Translation(own, other).read(history[:n])
            passage = grown.read(history[:n])
            assert passage.tokens.tolist() == fresh.tokens.tolist()
            assert passage[1:] == fresh[1:]


@settings(max_examples=60, deadline=None)
@given(text=texts.filter(lambda text: len(text.encode()) < 500))
def test_a_history_becomes_what_the_drafter_would_have_made_of_its_text(
    spm: Model, bpe: Model, smollm: Model, text: str
) -> None:
    for own, other in pairs(spm, bpe, smollm):
        if spelled(own, own.tokenize(text)) == (b" " if own.adds_space and text else b"") + text.encode():
            passage = Translation(own, other).read(own.tokenize(text))
            assert passage.tokens.tolist() == other.tokenize(text).tolist()


@settings(max_examples=60, deadline=None)
@given(before=texts, after=texts, cut_at=st.floats(0.0, 1.0))
def test_a_draft_arrives_whole_wherever_the_history_ends(
    spm: Model, bpe: Model, smollm: Model, before: str, after: str, cut_at: float
) -> None:
    """In the middle of a word, of a character, of what would be one token."""
    for own, other in pairs(spm, bpe, smollm):
        whole = own.tokenize("a" + before + after)
        if spelled(own, whole) != (b" " if own.adds_space else b"") + ("a" + before + after).encode():
            continue
        n = max(1 + own.adds_bos, int(cut_at * len(whole)))
        passage = Translation(own, other).read(whole[:n])
        rest = spelled(own, whole[n:])
        draft = cut(other, passage.unfinished + rest, begins=False)
        if spelled(other, draft) == passage.unfinished + rest:
            written = Translation(own, other).write(passage, draft.tolist())
            assert spelled(own, [token for token, _ in written]) == rest
            begun = [n for _, n in written]
            assert begun == sorted(begun)
            assert not begun or begun[-1] == len(draft)


def read(own: Model, other: Model, *tokens: object) -> tuple[Translation, Passage]:
    history = np.concatenate([np.atleast_1d(np.asarray(part, np.int32)) for part in tokens])
    translation = Translation(own.vocab, other.vocab)
    return translation, translation.read(history)


def test_a_character_the_history_left_unfinished_is_completed(bpe: Model, spm: Model) -> None:
    tokens = bpe.vocab.tokenize("the 😀")
    assert spelled(bpe.vocab, tokens[-3:]) == "😀".encode()[1:]
    translation, passage = read(bpe, spm, tokens[:-2])
    assert passage.unfinished == "😀".encode()[:2]
    assert spelled(spm.vocab, passage.tokens) == b" the "
    agrees = cut(spm.vocab, "😀 and".encode(), begins=False).tolist()
    written = [token for token, _ in translation.write(passage, agrees)]
    assert written[:2] == tokens[-2:].tolist()
    assert spelled(bpe.vocab, written) == "😀".encode()[2:] + b" and"
    assert translation.write(passage, cut(spm.vocab, b"and so", begins=False).tolist()) == []


def test_committed_tokens_stay_what_they_are(bpe: Model, spm: Model) -> None:
    """ "and" is one token; a history that ends with "an" goes on with "d", not with another "and"."""
    (whole,) = bpe.vocab.tokenize(" and")
    part = bpe.vocab.tokenize(" an")
    assert len(part) == 1
    translation, passage = read(bpe, spm, part)
    draft = cut(spm.vocab, b"d and", begins=False).tolist()
    d = int(bpe.vocab.tokenize("d")[0])
    assert [token for token, _ in translation.write(passage, draft)] == [d, whole]


def test_control_tokens_keep_their_meaning(bpe: Model, spm: Model) -> None:
    chat = "<|im_start|>user\nthe<|im_end|>\n"
    history = bpe.vocab.tokenize(chat, special=True)
    translation, passage = read(bpe, spm, history)
    bos, start, end = 1, 259, 260
    tokens = passage.tokens.tolist()
    assert tokens[:2] == [bos, start]
    assert tokens.count(end) == 1
    assert spelled(spm.vocab, tokens) == b" user\nthe \n"  # its tokenizer puts a space after control tokens
    # what only looks like one is text
    _, as_text = read(bpe, spm, bpe.vocab.tokenize(chat))
    assert start not in as_text.tokens
    assert spelled(spm.vocab, as_text.tokens) == b" " + chat.encode()
    # the drafter's end of a turn is the target's, and nothing is proposed after it
    draft = [*cut(spm.vocab, b"and", begins=False).tolist(), end, 300]
    written = [token for token, _ in translation.write(passage, draft)]
    assert written[-1] == bpe.vocab.tokenize("<|im_end|>", special=True)[0]
    assert spelled(bpe.vocab, written) == b"and"


def test_what_the_drafter_has_no_token_for_is_text_to_it(bpe: Model, tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "plain.gguf", tokenizer="spm", changed={259: "<|other|>"})
    with Model(path) as plain_model:
        _, passage = read(bpe, plain_model, bpe.vocab.tokenize("<|im_start|>user", special=True))
        assert spelled(plain_model.vocab, passage.tokens) == b"<|im_start|> user"


# The engine and the program.


def test_without_the_flag_the_refusal_names_it_and_what_it_costs(files: Path) -> None:
    with pytest.raises(UsageError, match=r"or --draft-translate: .*fewer drafts are accepted"):
        Engine(files / "bpe.gguf", files / "spm.gguf")


@pytest.mark.parametrize("drafter", [None, "suffix,model"])
def test_any_gguf_drafts_for_any_other(files: Path, drafter: str | None) -> None:
    how = Drafting(drafter=drafter, draft_max=4, translate=True)
    with Engine(files / "bpe.gguf", loading=SMALL, drafting=Drafting(drafter="none")) as alone:
        prompt = alone.tokenize("the and of")
        expected = tokens_of(list(alone.decoder(GREEDY).generate(prompt, 40)))
    with Engine(files / "bpe.gguf", files / "spm.gguf", loading=SMALL, drafting=how) as engine:
        run = engine.decoder(GREEDY)
        assert tokens_of(list(run.generate(prompt, 40))) == expected
        assert run.stats.as_dict()["by_drafter"]["translated"]["drafted"] > 0  # type: ignore[index]
        assert engine.shared_vocab is None
        with pytest.raises(UsageError, match="--draft-translate"):
            engine.redraft(Drafting(), files / "spm.gguf")
        engine.redraft(Drafting(translate=True), files / "spm.gguf")
        assert tokens_of(list(engine.decoder(GREEDY).generate(prompt, 40))) == expected
        assert engine.experience is not None
        assert set(engine.experience.as_dict()["drafter_ms"]) >= {"translated"}  # type: ignore[call-overload]
        warm = SamplingParams(temperature=1.0, grammar="root ::= [a-e ]+")
        runs = [tokens_of(list(engine.decoder(warm, seed).generate(prompt, 30))) for seed in (5, 5, 6)]
        assert runs[0] == runs[1] != runs[2]
        assert set(spelled(engine.target.model.vocab, runs[0])) <= set(b"abcde ")


def test_with_one_vocabulary_nothing_is_translated_and_that_is_said_once(
    models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how = Drafting(translate=True)
    with (
        caplog.at_level(logging.WARNING, "specdec"),
        Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL, drafting=how) as engine,
    ):
        assert isinstance(engine.decoder(GREEDY).drafter, ModelDrafter)
        engine.redraft(Drafting(translate=True, draft_max=2), models / "cousin.gguf")
    assert caplog.messages == [
        "--draft-translate: target and drafter have one vocabulary, so nothing is translated"
    ]
