"""Grammars: the quick search finds what llama.cpp allows; constrained text is the constrained target's."""

from __future__ import annotations

import codecs
import json
import random
from collections.abc import Iterator
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
import tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Drafting, Engine, Loading, SamplingParams, UsageError
from specdec.backend import Candidates, Chain, Model
from specdec.distribution import Distribution
from specdec.errors import DecodeError
from specdec.grammar import Grammar, TokenTree, from_json_schema
from specdec.neartie import measured_difference
from specdec.sampling import Sampler

SCHEMA = json.dumps(
    {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["é", "and", "the"]}, "minItems": 1, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
)
GRAMMARS = {
    "schema": from_json_schema(SCHEMA),
    "two words": 'root ::= ("the" | "and") " " ("é" | "😀" | "語")',
    "anything": "root ::= [^\\x00]*",
    "not ascii": "root ::= [^a-z\\n]+",
    "cjk": "root ::= [一-龥ぁ-ん]+",
}


@pytest.fixture(scope="module")
def smollm(smollm_path: Path) -> Iterator[Model]:
    with Model(smollm_path) as model:
        yield model


def full_row(model: Model, chain: Chain) -> list[int]:
    """What llama.cpp's sampler allows when it is shown the whole vocabulary."""
    ids = np.arange(model.vocab.size, dtype=np.int32)
    _, logits = chain.apply(ids, np.zeros(len(ids), np.float32), Candidates())
    return np.flatnonzero(np.isfinite(logits)).tolist()


def utf8_only(model: Model, text: list[int], ids: list[int]) -> list[int]:
    """Those with which the text can still become UTF-8, which llama.cpp does not ask for."""
    before = b"".join(model.vocab.spelled(token) for token in text)
    found = []
    for token in ids:
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            decoder.decode(before + (b"" if model.vocab.is_eog(token) else model.vocab.spelled(token)))
        except UnicodeDecodeError:
            continue
        found.append(token)
    return found


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_walk_over_the_tree_finds_all_that_is_allowed(
    name: str, smollm: Model, target_model: Model
) -> None:
    rng = random.Random(name)
    for model in (target_model, smollm):
        grammar = Grammar(model.vocab, GRAMMARS[name])
        text: list[int] = []
        for _ in range(25):
            state = grammar.after(np.array(text, np.int32))
            allowed = state.all(model.vocab.size).tolist()
            assert allowed == utf8_only(model, text, full_row(model, state._chain)), (name, text)
            going_on = [token for token in allowed if not model.vocab.is_eog(token)]
            if not going_on:
                break
            text.append(rng.choice(going_on))


@given(seed=st.integers(0, 2**32 - 1), k=st.integers(1, 60), length=st.integers(0, 12))
@settings(max_examples=60, deadline=None)
def test_the_largest_allowed_are_found_whatever_the_row(
    smollm: Model, seed: int, k: int, length: int
) -> None:
    rng = np.random.default_rng(seed)
    grammar = Grammar(smollm.vocab, GRAMMARS["schema"])
    text = smollm.vocab.tokenize('{"name": "the é and", "age": 12')[:length]
    state = grammar.after(text)
    row = rng.normal(size=smollm.vocab.size).astype(np.float32)
    extra = np.unique(rng.integers(0, len(row), 20).astype(np.int32))
    ids, logits = state.top(row, k, extra)
    allowed = state.all(len(row))
    best = allowed[np.argsort(-row[allowed])[:k]]
    assert set(best.tolist()) <= set(ids.tolist()) <= set(allowed.tolist())
    assert set(extra.tolist()).intersection(allowed.tolist()) <= set(ids.tolist())
    assert logits.tolist() == row[ids].tolist()


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.0),
        SamplingParams(temperature=1.0, top_k=0, top_p=1.0, min_p=0.0),
        SamplingParams(repeat_penalty=1.3, dry_multiplier=0.5, logit_bias={40: 3.0, 41: -5.0}),
        SamplingParams(top_n_sigma=1.0, temperature=1.5),
    ],
)
def test_a_constrained_distribution_is_that_of_llama_cpps_chain(
    params: SamplingParams, target_model: Model
) -> None:
    """Grammar and chain over the full row, position by position, against the sampler's short lists."""
    vocab = target_model.vocab
    rng = np.random.default_rng(3)
    history = vocab.tokenize("the and of")
    ids = {vocab.spelled(i): i for i in range(vocab.size)}
    draft = [ids[c.encode()] for c in '{"name": "t']
    rows = rng.normal(scale=4, size=(len(draft) + 1, vocab.size)).astype(np.float32)
    for row, token in zip(rows, draft, strict=False):
        row[token] = 30.0  # the sampler ends early after a token without a chance
    grammar = Grammar(vocab, GRAMMARS["schema"])
    grammar.start = len(history)
    sampler = Sampler(vocab, params, random.Random(1), 64, grammar)
    plain = Sampler(vocab, params, random.Random(1), 64)
    got = sampler.distributions(rows, history, draft)
    assert len(got) == len(draft) + 1
    reference = Chain()
    reference.add(llama_cpp.llama_sampler_init_grammar, vocab.pointer, GRAMMARS["schema"].encode(), b"root")
    for i, (row, mine) in enumerate(zip(rows, got, strict=True)):
        ids = np.array(utf8_only(target_model, draft[:i], full_row(target_model, reference)), np.int32)
        masked = np.full(vocab.size, -np.inf, np.float32)
        masked[ids] = row[ids]
        expected = plain.distributions(masked[None], np.append(history, draft[:i]).astype(np.int32), [])[0]
        same(mine, expected, vocab.size)
        if i < len(draft):
            reference.accept(draft[i])


def same(a: Distribution, b: Distribution, n_vocab: int) -> None:
    dense = np.zeros((2, n_vocab))
    dense[0, a.ids], dense[1, b.ids] = a.probs, b.probs
    assert set(a.ids.tolist()) == set(b.ids.tolist())
    assert np.abs(dense[0] - dense[1]).max() < 1e-6


def test_fifty_seeds_of_json_plain_and_speculative(tmp_path: Path) -> None:
    """Every text parses; greedy runs equal plain ones exactly (q8_0 batches are bit-exact)."""
    target = tiny.llama(tmp_path / "target.gguf", dtype="q8_0", n_vocab=640)
    cousin = tiny.llama(tmp_path / "cousin.gguf", dtype="q8_0", noise=0.1, n_vocab=640)
    grammar = from_json_schema(SCHEMA)
    loading = Loading(n_ctx=256, threads=1)
    with Engine(target, cousin, loading=loading, longest_draft=16) as engine:
        vocab = engine.target.model.vocab
        assert measured_difference(engine.target, np.arange(300, 340, dtype=np.int32)) == 0.0
        accepted = 0
        for seed in range(50):
            prompt = engine.tokenize(f"the {seed} of")
            texts = {}
            for drafter in ("model", "lookup", "none"):
                drafting = Drafting(drafter=drafter, draft_max=1 + seed % 8)  # type: ignore[arg-type]
                engine.redraft(drafting, cousin)
                for temperature in (0.0, 1.2):
                    params = SamplingParams(temperature=temperature, grammar=grammar)
                    decoder = engine.decoder(params, seed)
                    steps = list(decoder.generate(prompt, 200))
                    text = "".join(step.text for step in steps)
                    got = json.loads(text)
                    assert list(got) == ["name", "age", "tags"], (seed, text)
                    assert isinstance(got["age"], int)
                    assert set(got["tags"]) <= {"é", "and", "the"}
                    assert steps[-1].finish_reason == "stop"
                    accepted += decoder.stats.accepted if temperature else 0
                    if not temperature:
                        texts[drafter] = text
            assert len(set(texts.values())) == 1, (seed, texts)
        assert vocab.eog_tokens
        assert accepted > 200


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("foo", "expecting ::="),
        ('root ::= root "a"', "left recursion"),
        ("root ::= nope", "Undefined rule identifier 'nope'"),
        ('a ::= "x"', "does not contain a 'root'"),
        ("root ::= [", "unexpected end of input"),
        ("root ::= " + "(" * 100_000, "nested more than 2000"),
        ("root ::= " + '"a"' * 500_000, "longer than 1 MiB"),
        ('root ::= "a\0b"', "a NUL in it"),
    ],
)
def test_what_is_no_grammar_is_refused_with_the_reason(
    source: str, reason: str, target_model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UsageError, match="grammar") as caught:
        Grammar(target_model.vocab, source)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "value", ["a\nb", "tab\t", "a\\b", 'a"b', "é😀", "\u2028", {'a"b\\': 1}, ["x\\", None, True, 1.5]]
)
def test_a_constant_is_written_as_json_says(models: Path, value: object) -> None:
    with Engine(models / "target.gguf", loading=Loading(n_ctx=128, threads=1)) as engine:
        params = SamplingParams(grammar=from_json_schema(json.dumps({"const": value})), temperature=1.0)
        steps = engine.decoder(params, 1).generate([1, 300], 100)
        assert json.loads("".join(step.text for step in steps)) == value


def test_characters_are_utf_8_also_where_the_model_would_like_other_bytes(models: Path) -> None:
    with Engine(models / "target.gguf", loading=Loading(n_ctx=128, threads=1)) as engine:
        for seed in range(8):
            params = SamplingParams(
                grammar='root ::= ("😀" | "é" | "→" | [^a-z]){6}', temperature=3.0, top_k=0
            )
            steps = list(engine.decoder(params, seed).generate([1, 300], 60))
            raw = b"".join(engine.target.model.vocab.piece(t) for step in steps for t in step.tokens)
            assert len(raw.decode("utf-8")) == 6


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        "5",
        "[]",
        "null",
        '{"items": false, "type": "array"}',
        '{"$ref": "#/nowhere"}',
        '{"type": "string", "minLength": 5, "maxLength": 2}',
        '{"type": "nonsense"}',
        '"text"',
        "[1]",
    ],
)
def test_what_is_no_schema_is_refused(schema: str) -> None:
    with pytest.raises(UsageError, match="JSON schema"):
        from_json_schema(schema)


def test_a_grammar_and_biases_that_leave_nothing_are_an_error(models: Path) -> None:
    with Engine(models / "target.gguf", loading=Loading(n_ctx=64, threads=1)) as engine:
        params = SamplingParams(grammar='root ::= "a"', ignore_eos=True)
        steps = engine.decoder(params, 1).generate([1, 300], 20)
        with pytest.raises(DecodeError, match="rule out every one"):
            list(steps)


def test_a_tree_of_prefixes() -> None:
    tree = TokenTree([b"a", b"ab", b"", b"b", b"abc", b"abd", b"ab", b"ba"])
    assert tree.roots.tolist() == [0, 2, 3]
    assert tree.children(np.array([0, 3], np.int32)).tolist() == [1, 7]
    assert tree.children(np.array([1], np.int32)).tolist() == [6]
    assert tree.children(np.array([6], np.int32)).tolist() == [4, 5]
    assert tree.children(np.array([4, 7, 2], np.int32)).tolist() == []
