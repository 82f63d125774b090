"""vocab.compare: which pairs are let through, and what the refusal of the others says."""

from __future__ import annotations

import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny

from specdec import vocab
from specdec.errors import UsageError
from specdec.gguf_file import GGUFFile
from specdec.gguf_header import GGUFArray
from specdec.vocab import VocabMismatchError


def model(path: Path, **options: Any) -> GGUFFile:
    return GGUFFile.read(tiny.llama(path, **{"n_vocab": 400, "n_embd": 32, "n_layer": 1, **options}))


def refusal(target: GGUFFile, draft: GGUFFile) -> str:
    with pytest.raises(VocabMismatchError) as caught:
        vocab.compare(target, draft)
    message = str(caught.value)
    assert message.startswith(f"{draft.path}: cannot draft for {target.path}: ")
    assert message.endswith(
        "; use a drafter of the target's family and tokenizer, or --draft-translate: every round then costs "
        "a tokenisation of the drafter's text, it drafts greedily, and fewer drafts are accepted"
    )
    assert message.isprintable()
    return message


@pytest.mark.parametrize("tokenizer", ["spm", "bpe"])
def test_the_same_vocabulary(tmp_path: Path, tokenizer: tiny.Tokenizer) -> None:
    target = model(tmp_path / "t.gguf", tokenizer=tokenizer)
    draft = model(tmp_path / "d.gguf", tokenizer=tokenizer, seed=1, n_embd=64)
    assert vocab.compare(target, draft) == 400
    assert vocab.compare(target, target) == 400


@pytest.mark.parametrize("n", [1, 17, 128])
def test_padding_may_differ(tmp_path: Path, n: int) -> None:
    short, long = model(tmp_path / "s.gguf"), model(tmp_path / "l.gguf", padding=n)
    assert vocab.compare(short, long) == 400
    assert vocab.compare(long, short) == 400


def test_padding_beyond_128(tmp_path: Path) -> None:
    target, draft = model(tmp_path / "t.gguf"), model(tmp_path / "d.gguf", padding=129)
    assert "it has 529 tokens, the target 400;" in refusal(target, draft)
    assert "it has 400 tokens, the target 529;" in refusal(draft, target)


def test_another_size(tmp_path: Path) -> None:
    message = refusal(model(tmp_path / "t.gguf"), model(tmp_path / "d.gguf", n_vocab=900))
    assert "it has 900 tokens, the target 400" in message
    assert "the acceptance rule would compare the probabilities of different tokens" in message
    assert "what it drafts would be other words to the target, which accepts hardly any" in message


def test_real_tokens_are_no_padding(tmp_path: Path) -> None:
    short, long = model(tmp_path / "s.gguf"), model(tmp_path / "l.gguf", n_vocab=403)
    text = tiny.vocab("spm", 403).texts[400]
    assert f"it has 403 tokens, the target 400, and token 400, {text!r}, is no padding" in refusal(
        short, long
    )
    assert f"it has 400 tokens, the target 403, and token 400, {text!r}, is no padding" in refusal(
        long, short
    )


@pytest.mark.parametrize(
    ("text", "kind", "padding"),
    [
        ("[PAD151936]", tiny.UNUSED, True),
        ("[PAD151936]", tiny.NORMAL, True),
        ("<unused5>", tiny.NORMAL, True),
        ("<|dummy_85|>", tiny.NORMAL, True),
        ("<|reserved_special_token_7|>", tiny.USER_DEFINED, True),
        ("<|tool_call|>", tiny.NORMAL, True),
        ("[UNUSED_TOKEN_3]", tiny.NORMAL, True),
        ("<image_soft_token>", tiny.USER_DEFINED, True),
        ("anything", tiny.UNUSED, True),
        ("anything", tiny.CONTROL, True),
        ("anything", tiny.NORMAL, False),
        ("anything", tiny.USER_DEFINED, False),
        ("<div>", tiny.NORMAL, False),
        ("unused", tiny.NORMAL, False),
        ("<unused5> words", tiny.NORMAL, False),
    ],
)
def test_what_padding_looks_like(tmp_path: Path, text: str, kind: int, padding: bool) -> None:
    types = [*tiny.vocab("spm", 400).types, kind]
    long = model(
        tmp_path / "l.gguf", padding=1, changed={400: text}, extra={"tokenizer.ggml.token_type": types}
    )
    short = model(tmp_path / "s.gguf")
    if padding:
        assert vocab.compare(short, long) == 400
    else:
        assert f"token 400, {text!r}, is no padding" in refusal(short, long)


@pytest.mark.parametrize("token", [0, 1, 4, 399])
@pytest.mark.parametrize(
    "text", ["other", "x", "a much longer text than any of those that were there", "a\nb"]
)
def test_one_token_differs(tmp_path: Path, token: int, text: str) -> None:
    target = model(tmp_path / "t.gguf", tokenizer="bpe")
    draft = model(tmp_path / "d.gguf", tokenizer="bpe", changed={token: text + "~"}, padding=3)
    own = tiny.vocab("bpe", 400).texts[token]
    message = refusal(target, draft)
    assert f"token {token} is {(text + '~')[:40]!r}"[:-1] in message
    assert f"{own!r} to the target (it has 403 tokens, the target 400)" in message


def test_the_first_difference_is_named(tmp_path: Path) -> None:
    """Whatever differs, and however many do, against a comparison text by text."""
    for seed in range(40):
        rng = random.Random(seed)
        changed = {rng.randrange(400): rng.choice(["~x", "~yy" * 30, "~é", "~"]) for _ in range(3)}
        target = model(tmp_path / "t.gguf", tokenizer="bpe")
        draft = model(
            tmp_path / "d.gguf", tokenizer="bpe", changed={i: t + str(i) for i, t in changed.items()}
        )
        assert f"token {min(changed)} is" in refusal(target, draft), seed


def test_another_kind_of_tokenizer(tmp_path: Path) -> None:
    message = refusal(model(tmp_path / "t.gguf"), model(tmp_path / "d.gguf", tokenizer="bpe", n_vocab=410))
    assert "of kind 'gpt2', the target's of kind 'llama', and it has 410 tokens, the target 400" in message


def warning(target: GGUFFile, draft: GGUFFile) -> str:
    """What the pair, which is let through, is warned of; '' for nothing."""
    judged = vocab.judge(target, draft)
    assert judged.refusal is None
    assert vocab.compare(target, draft) == judged.shared == 400
    assert all(found.means.startswith("the output stays the target's") for found in judged.warnings)
    return "; ".join(found.what for found in judged.warnings)


def test_tokens_around_a_text_are_warned_of(tmp_path: Path) -> None:
    plain = model(tmp_path / "plain.gguf")  # SentencePiece: BOS unless the file says otherwise
    without = model(tmp_path / "without.gguf", add_bos=False)
    other = model(tmp_path / "other.gguf", extra={"tokenizer.ggml.bos_token_id": 2})
    ending = model(tmp_path / "ending.gguf", extra={"tokenizer.ggml.add_eos_token": True})
    puts = "its tokenizer puts"
    assert warning(plain, model(tmp_path / "said.gguf", add_bos=True)) == ""
    assert warning(plain, without) == f"{puts} nothing before a text, the target's token 1"
    assert warning(without, plain) == f"{puts} token 1 before a text, the target's nothing"
    assert warning(plain, other) == f"{puts} token 2 before a text, the target's token 1"
    assert warning(plain, ending) == f"{puts} token 2 after a text, the target's nothing"
    # what is not added does not matter
    unused = model(tmp_path / "unused.gguf", add_bos=False, extra={"tokenizer.ggml.bos_token_id": 2})
    assert warning(without, unused) == ""


def test_bos_defaults_of_byte_level_vocabularies(tmp_path: Path) -> None:
    plain = model(tmp_path / "plain.gguf", tokenizer="bpe")
    llama3 = model(tmp_path / "l3.gguf", tokenizer="bpe", extra={"tokenizer.ggml.pre": "llama-bpe"})
    assert warning(plain, llama3) == "its tokenizer puts token 0 before a text, the target's nothing"
    assert warning(llama3, model(tmp_path / "said.gguf", tokenizer="bpe", add_bos=True)) == ""


@pytest.mark.parametrize(("role", "words"), [("eos", "a text"), ("eot", "a turn"), ("eom", "a message")])
def test_another_end_is_warned_of(tmp_path: Path, role: str, words: str) -> None:
    key = f"tokenizer.ggml.{role}_token_id"
    target = model(tmp_path / "t.gguf", extra={key: 2})
    draft = model(tmp_path / "d.gguf", extra={key: 260})
    assert warning(target, draft) == f"it ends {words} with token 260, the target with token 2"
    assert warning(target, model(tmp_path / "same.gguf", extra={key: 2})) == ""


def test_a_control_token_that_is_none_to_the_other_is_warned_of(tmp_path: Path) -> None:
    types = list(tiny.vocab("spm", 400).types)
    types[259] = types[260] = tiny.USER_DEFINED
    target = model(tmp_path / "t.gguf")
    draft = model(tmp_path / "d.gguf", extra={"tokenizer.ggml.token_type": types})
    token = "token 259, '<|im_start|>', is"
    assert warning(target, draft) == (
        f"{token} no control token to it, one to the target (and 1 more like it)"
    )
    assert warning(draft, target) == (
        f"{token} a control token to it, none to the target (and 1 more like it)"
    )


def test_padding_is_found_and_fine(tmp_path: Path) -> None:
    short, long = model(tmp_path / "s.gguf"), model(tmp_path / "l.gguf", padding=17)
    for target, draft, who in ((short, long, "drafter"), (long, short, "target")):
        (found,) = vocab.judge(target, draft).findings
        assert found.effect == "fine"
        assert f": 17 of padding at the end of what the {who} has" in found.what
        assert found.means == "no model writes padding, and it is never proposed"


def test_what_is_refused_is_judged_no_further(tmp_path: Path) -> None:
    target = model(tmp_path / "t.gguf")
    draft = model(tmp_path / "d.gguf", tokenizer="bpe", add_bos=False)
    judged = vocab.judge(target, draft)
    assert [found.effect for found in judged.findings] == ["refused"]
    assert (judged.target, judged.draft, judged.warnings) == (target.path, draft.path, ())


def test_no_vocabulary(tmp_path: Path) -> None:
    target, clip = model(tmp_path / "t.gguf"), GGUFFile.read(tiny.clip(tmp_path / "clip.gguf"))
    for pair in ((target, clip), (clip, target)):
        with pytest.raises(UsageError, match=r"clip.gguf: it has no vocabulary"):
            vocab.compare(*pair)


def test_a_real_size_is_judged_by_every_id(tmp_path: Path) -> None:
    """Of 151,936 tokens, whichever differs: text and kind are looked at as arrays, not one by one."""
    n = 151_936
    lengths = np.random.default_rng(0).integers(1, 12, n)
    raw = b"".join(
        struct.pack("<Q", size + 6) + b"%06d" % i + b"x" * int(size) for i, size in enumerate(lengths)
    )
    starts = np.concatenate([[0], np.cumsum(lengths + 14)])
    kinds = np.full(n, tiny.NORMAL, np.int32)

    def file(text: np.ndarray, types: np.ndarray) -> GGUFFile:
        metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": GGUFArray(8, n, text, starts),
            "tokenizer.ggml.token_type": GGUFArray(5, n, types.view(np.uint8), None),
        }
        return GGUFFile(tmp_path / "m.gguf", (tmp_path / "m.gguf",), metadata, (), 0)

    text = np.frombuffer(raw, np.uint8)
    target = file(text.copy(), kinds)
    assert vocab.judge(target, file(text.copy(), kinds.copy())).findings == ()
    for token in (0, 77_777, n - 1):
        other, types = text.copy(), kinds.copy()
        other[starts[token] + 8] += 1
        types[token] = tiny.CONTROL
        assert f"token {token} is" in refusal(target, file(other, kinds))
        (found,) = vocab.judge(target, file(text.copy(), types)).findings
        assert found.what.startswith(f"token {token}, '{token:06d}x")
