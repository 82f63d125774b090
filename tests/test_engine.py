"""The library's front door: a pair is loaded, checked and decoded with; what cannot work is refused first."""

from __future__ import annotations

import itertools
import logging
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

import specdec
from specdec import Drafting, Engine, Loading, SamplingParams, UsageError
from specdec.backend import builtin_templates
from specdec.backend.memory import Memory
from specdec.drafters import CascadeDrafter, LookupDrafter, ModelDrafter, NoDrafter, SuffixDrafter
from specdec.experience import FIRST_BALANCE

SMALL = Loading(n_ctx=256, threads=1)
GREEDY = SamplingParams(temperature=0.0)


def text_of(engine: Engine, params: SamplingParams = GREEDY, n: int = 30) -> str:
    steps = engine.decoder(params, seed=1).generate(engine.tokenize("the and of"), n)
    return "".join(step.text for step in steps)


def test_every_drafter_writes_what_the_target_writes(models: Path) -> None:
    texts = {}
    for kind, cls in (
        (None, ModelDrafter),
        ("model", ModelDrafter),
        ("suffix", SuffixDrafter),
        ("lookup", LookupDrafter),
        ("suffix,model", CascadeDrafter),
        ("lookup,suffix", CascadeDrafter),
        ("none", NoDrafter),
    ):
        drafting = Drafting(drafter=kind)
        with Engine(
            models / "target.gguf", models / "cousin.gguf", loading=SMALL, drafting=drafting
        ) as engine:
            assert isinstance(engine.decoder(GREEDY).drafter, cls)
            texts[kind] = text_of(engine)
    assert len(set(texts.values())) == 1
    with Engine(models / "target.gguf", loading=SMALL) as engine:
        assert isinstance(engine.decoder(GREEDY).drafter, SuffixDrafter)


def test_decoders_that_take_turns_on_one_engine_do_not_mix(models: Path) -> None:
    """The contexts are shared; the history is the authority on what they should hold."""
    with Engine(str(models / "target.gguf"), str(models / "cousin.gguf"), loading=SMALL) as engine:
        prompts = [engine.tokenize("the and of"), engine.tokenize("with his they")]
        alone = [[t for s in engine.decoder(GREEDY).generate(p, 24) for t in s.tokens] for p in prompts]
        runs = [engine.decoder(GREEDY).generate(p, 24) for p in prompts]
        mixed: list[list[int]] = [[], []]
        for _ in range(24):
            for run, tokens in zip(runs, mixed, strict=True):
                tokens += [t for step in itertools.islice(run, 1) for t in step.tokens]
        assert mixed == alone


def test_sampling_is_repeatable_by_seed(models: Path) -> None:
    with Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL) as engine:
        runs = [
            [t for s in engine.decoder(SamplingParams(), seed=s).generate([1, 40, 41], 30) for t in s.tokens]
            for s in (7, 7, 8)
        ]
        assert runs[0] == runs[1] != runs[2]
        # What follows the clock cannot be repeated, so a seed fixes the draft length where tokens are drawn.
        schedules = [
            engine.decoder(params, seed).schedule.name
            for params, seed in ((SamplingParams(), 7), (SamplingParams(), None), (GREEDY, 7))
        ]
        assert schedules == ["fixed", "adaptive", "adaptive"]
        drawn = engine.decoder().seed
        assert isinstance(drawn, int)


@pytest.mark.parametrize(("accept", "lossless"), [("block", True), ("token", True), ("typical", False)])
def test_the_rule_is_the_one_asked_for(models: Path, accept: Any, lossless: bool) -> None:
    with Engine(models / "target.gguf", loading=SMALL, drafting=Drafting(accept=accept)) as engine:
        rule = engine.decoder(GREEDY).rule
    assert (rule.name, rule.lossless) == (accept, lossless)


def test_loading_reports_the_share_of_both_files(models: Path) -> None:
    shares: list[float] = []
    Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL, progress=shares.append).close()
    assert shares == sorted(shares)
    assert shares[-1] == 1.0


def test_a_chat_is_rendered_with_the_models_template(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "chat.gguf", chat_template=tiny.CHATML, add_bos=False)
    with Engine(path, loading=SMALL) as engine:
        got = engine.tokenize_chat([{"role": "user", "content": "hello"}])
        expected = engine.tokenize("<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n")
        assert got.tolist() == expected.tolist()
    with (
        Engine(tiny.llama(tmp_path / "plain.gguf"), loading=SMALL) as engine,
        pytest.raises(UsageError, match="has no chat template; --chat-template chatml"),
    ):
        engine.tokenize_chat([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize("template", ["{{ raise_exception('no such role') }}", "{% if %}", "{{ 1 // 0 }}"])
def test_a_template_that_fails_is_an_error_of_one_line(tmp_path: Path, template: str) -> None:
    path = tiny.llama(tmp_path / "chat.gguf", chat_template=template)
    with (
        Engine(path, loading=SMALL) as engine,
        pytest.raises(
            UsageError, match=r"chat\.gguf: the chat template failed \(.+\); --chat-template takes"
        ) as caught,
    ):
        engine.tokenize_chat([{"role": "user", "content": "hello"}])
    assert "\n" not in str(caught.value)


def test_a_template_by_name_is_llama_cpps_own(tmp_path: Path) -> None:
    path = tiny.llama(tmp_path / "chat.gguf", chat_template="{{ raise_exception('not this one') }}")
    messages = [{"role": "user", "content": "héllo 😀"}]
    with Engine(path, loading=Loading(n_ctx=256, threads=1, chat_template="chatml")) as engine:
        expected = "<|im_start|>user\nhéllo 😀<|im_end|>\n<|im_start|>assistant\n"
        assert engine.template.render(messages) == expected
        assert engine.tokenize_chat(messages).tolist() == engine.tokenize(expected).tolist()
    with Engine(
        path, loading=Loading(n_ctx=256, threads=1, chat_template="{{ messages[0].content }}!")
    ) as engine:
        assert engine.template.render(messages) == "héllo 😀!"
    assert {"chatml", "llama3", "gemma"} <= set(builtin_templates())


def test_the_drafter_changes_and_the_target_keeps_what_it_read(models: Path, tmp_path: Path) -> None:
    other = tiny.llama(tmp_path / "other.gguf", n_vocab=1024)
    pair, fixed = (models / "target.gguf", models / "cousin.gguf"), Drafting(draft_max=8)
    with Engine(*pair, loading=SMALL, drafting=fixed, longest_draft=16) as engine:
        text = text_of(engine)
        read = engine.target.tokens_fed
        cousin = engine.draft
        assert cousin is not None
        engine.redraft(Drafting(draft_max=16), models / "cousin.gguf")
        assert engine.draft is cousin
        with pytest.raises(UsageError, match=r"1,024.*512"):
            engine.redraft(Drafting(), other)
        with pytest.raises(UsageError, match="longer than the 16"):
            engine.redraft(Drafting(draft_max=17), models / "cousin.gguf")
        assert (engine.draft, engine.drafting.draft_max) == (cousin, 16)
        engine.redraft(Drafting(), models / "cousin.gguf")
        assert engine.decoder(GREEDY).schedule.longest == 16  # what the target was made for
        engine.redraft(Drafting(), models / "stranger.gguf")
        with pytest.raises(ValueError, match="closed"):
            _ = cousin.pointer
        engine.redraft(Drafting(drafter="none"))
        assert (engine.kind, engine.draft, engine.target.tokens_fed) == ("none", None, read)
        assert text_of(engine) == text


def test_another_vocabulary_is_refused_with_both_sizes_before_anything_is_loaded(
    tmp_path: Path, models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.engine.Model", None)
    other = tiny.llama(tmp_path / "other.gguf", n_vocab=1024)
    with pytest.raises(UsageError, match=r"1,024.*512") as caught:
        Engine(models / "target.gguf", other)
    assert "probabilities of different tokens" in str(caught.value)
    assert "target's family and tokenizer" in str(caught.value)


def test_padding_at_the_end_of_a_vocabulary_is_allowed_on_either_side(tmp_path: Path, models: Path) -> None:
    padded = tiny.llama(tmp_path / "padded.gguf", seed=0, noise=0.1, padding=40)
    plain = models / "target.gguf"
    for target, draft in ((plain, padded), (padded, plain)):
        with Engine(target, draft, loading=SMALL) as engine, Engine(target, loading=SMALL) as alone:
            assert engine.shared_vocab == 512
            assert text_of(engine) == text_of(alone)
            text_of(engine, SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0), 60)


def test_what_may_cost_acceptance_is_said_once(
    tmp_path: Path, models: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """llama.cpp refuses such a pair; its drafts are verified like any other's."""
    without = tiny.llama(tmp_path / "without.gguf", seed=0, noise=0.1, add_bos=False)
    with caplog.at_level(logging.WARNING, "specdec"):
        with Engine(models / "target.gguf", without, loading=SMALL) as engine:
            engine.redraft(Drafting(draft_max=3), without)
            text = text_of(engine)
        with Engine(models / "target.gguf", loading=SMALL) as alone:
            assert text_of(alone) == text
    (warning,) = caplog.messages
    assert "its tokenizer puts nothing before a text, the target's token 1; the output stays" in warning


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (dict(draft_max=0), "--draft-max must be at least 1, got 0"),
        (dict(draft_max=4, draft_min=5), r"--draft-min must be 0 to --draft-max \(4\), got 5"),
        (dict(draft_min=25), r"--draft-min must be 0 to --draft-max \(24\), got 25"),
        (dict(p_min=1.5), "--draft-p-min is a probability"),
        (dict(drafter="sufix"), "--drafter 'sufix' is not known: use model, suffix, lookup, none"),
        (dict(drafter=""), "--drafter '' is not known"),
        (dict(drafter="suffix,none"), "none alone"),
        (dict(drafter="lookup,lookup"), "name each drafter once"),
        (dict(drafter="model,suffix"), "the model comes last"),
        (dict(drafter="model", lookup_corpus=(Path("a"),)), "--lookup-corpus is for the suffix drafter"),
        (dict(ngram_max=2, ngram_min=3), "1 <= min <= max"),
        (dict(typical_threshold=0.0), "threshold must be above 0"),
    ],
)
def test_draft_settings_that_make_no_sense(bad: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Drafting(**bad)


def test_a_drafter_model_without_a_model_is_refused(models: Path) -> None:
    with pytest.raises(UsageError, match="--drafter model needs a drafter GGUF"):
        Engine(models / "target.gguf", drafting=Drafting(drafter="model"))


def test_the_schedule_is_adaptive_unless_a_length_is_fixed(models: Path) -> None:
    for drafting, name, longest in (
        (Drafting(), "adaptive", 24),
        (Drafting(draft_max=5, draft_min=2), "fixed", 5),
    ):
        with Engine(
            models / "target.gguf", models / "cousin.gguf", loading=SMALL, drafting=drafting
        ) as engine:
            decoder = engine.decoder(GREEDY)
            assert (decoder.schedule.name, decoder.schedule.longest) == (name, longest)
            assert engine.target.n_outputs == longest + 1
            assert list(decoder.generate([1, 40, 41], 30))[-1].finish_reason == "length"
            assert decoder.speedup is not None
            assert decoder.speedup > 0.0


def test_what_a_pair_taught_is_there_the_next_time(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("specdec.engine.cache_dir", lambda: tmp_path)
    balances = []
    for _ in range(2):
        with Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL) as engine:
            assert engine.experience is not None
            balances.append(engine.experience.balance)
            text_of(engine, n=60)
            left = engine.experience.balance
    assert len(list((tmp_path / "experience").glob("*.json"))) == 1
    assert balances[0] == FIRST_BALANCE
    assert balances[1] != FIRST_BALANCE
    with Engine(models / "target.gguf", models / "cousin.gguf", loading=SMALL) as engine:
        assert engine.experience is not None
        assert engine.experience.balance == pytest.approx(left, abs=1e-3)
    with Engine(models / "target.gguf", models / "stranger.gguf", loading=SMALL) as engine:
        assert engine.experience is not None
        assert engine.experience.balance == FIRST_BALANCE


def test_a_corpus_is_drafted_from(models: Path, tmp_path: Path) -> None:
    with Engine(models / "target.gguf", loading=SMALL, drafting=Drafting(drafter="none")) as engine:
        expected = text_of(engine)
    words = tmp_path / "words.txt"
    words.write_text("the and of" + expected, "utf-8")
    drafting = Drafting(drafter="suffix", draft_max=8, lookup_corpus=(words,))
    with Engine(models / "target.gguf", loading=SMALL, drafting=drafting) as engine:
        decoder = engine.decoder(GREEDY)
        steps = list(decoder.generate(engine.tokenize("the and of"), 30))
        assert "".join(step.text for step in steps) == expected
        assert decoder.stats.accepted > 0


def test_a_small_models_threads_are_tried_out(models: Path) -> None:
    for loading, most in (
        (Loading(n_ctx=64, threads=4), 4),
        (Loading(n_ctx=64, threads=4, threads_draft=3), 3),
    ):
        with Engine(models / "target.gguf", models / "cousin.gguf", loading=loading) as engine:
            assert engine.draft is not None
            assert engine.target.threads == 4
            assert engine.draft.threads in ((1, 2, 4) if most == 4 else (3,))


def test_a_failed_start_frees_what_it_loaded(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Memory, "restore", lambda memory, state: False)
    recurrent = tiny.mamba(tmp_path / "river.gguf")
    with (
        Engine(models / "target.gguf", recurrent, loading=SMALL) as engine,
        pytest.raises(UsageError, match="a mamba model cannot be the drafter"),
    ):
        engine.decoder(GREEDY)
    with pytest.raises(ValueError, match="closed"):
        engine.target.score(np.array([1], np.int32))


def test_importing_the_package_loads_neither_llama_cpp_nor_numpy() -> None:
    code = (
        "import sys, specdec, specdec.cli.app; specdec.__version__; "
        "print([m for m in ('llama_cpp', 'numpy', 'gguf', 'huggingface_hub') if m in sys.modules])"
    )
    env = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd="/", env=env, check=True
    )
    assert done.stdout.strip() == "[]"


def test_every_public_name_is_there() -> None:
    for name in specdec.__all__:
        assert getattr(specdec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = specdec.nonsense


def test_a_split_model_is_one_model(tmp_path: Path) -> None:
    whole = tiny.llama(tmp_path / "whole.gguf", dtype="q8_0")
    first = tiny.llama(tmp_path / "split.gguf", dtype="q8_0", split=5)
    assert first.name == "split-00001-of-00005.gguf"
    texts = []
    for path in (whole, first):
        with Engine(path, path, loading=Loading(n_ctx=128, threads=1)) as engine:
            decoder = engine.decoder(SamplingParams(temperature=0.0))
            steps = list(decoder.generate(engine.tokenize("the and to of"), 16))
            texts.append([token for step in steps for token in step.tokens])
            assert engine.target.model.size > 0
    assert len(texts[0]) == 16
    assert texts[0] == texts[1]
    (tmp_path / "split-00004-of-00005.gguf").unlink()
    missing = re.escape(f"{first}: split-00004-of-00005.gguf of this split model missing; fetch it into")
    with pytest.raises(UsageError, match=missing):
        Engine(first)
