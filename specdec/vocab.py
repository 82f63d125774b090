"""May these two models be compared? The acceptance rule needs every id to mean the same to both."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from .errors import UsageError
from .gguf_file import GGUFFile
from .gguf_header import GGUFArray

MAX_PADDING = 128  # ids that one vocabulary may have more; SPEC_VOCAB_MAX_SIZE_DIFFERENCE in llama.cpp

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5  # of llama_token_type

# What families round a vocabulary up with: [PAD151936] (Qwen; llama.cpp's converter writes it for any id
# without a text), <unused5> (Gemma), <|dummy_85|> (Phi), <|reserved_special_token_7|> (Llama), ...
BRACKETED = re.compile(r"<.+>|\[.+\]", re.DOTALL)
FILLER = re.compile(
    r"<\|.+\|>|[<\[].*(pad|unused|dummy|reserved|extra|placeholder|special|spare|blank|empty).*[>\]]",
    re.DOTALL | re.IGNORECASE,
)

# tokenizer.ggml.pre of the byte-level BPE vocabularies that begin texts with BOS when the file does not say.
# fmt: off
BOS_BY_DEFAULT = frozenset((
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    "tekken", "chameleon",
))
# fmt: on

OTHER_TOKENS = (
    "the acceptance rule would compare the probabilities of different tokens: what it drafts would be other "
    "words to the target, which accepts hardly any"
)
WAY_OUT = (
    "use a drafter of the target's family and tokenizer, or --draft-translate: every round then costs a "
    "tokenisation of the drafter's text, it drafts greedily, and fewer drafts are accepted"
)


class VocabMismatchError(UsageError):
    """Target and drafter mean different tokens by the same ids."""


def fingerprint(file: GGUFFile) -> str:
    """A name of the vocabulary: equal names turn any text into the same ids."""
    tokens, merges = file.tokens, file.array("tokenizer.ggml.merges", "string")
    found = hashlib.sha256(f"{file.tokenizer_model} {file.text('tokenizer.ggml.pre')}".encode())
    for array in (tokens, merges):
        found.update(b"" if array is None else array.raw.tobytes())
    return found.hexdigest()


Effect = Literal["refused", "warned", "fine"]


class Finding(NamedTuple):
    """One thing in which a drafter's vocabulary differs from the target's.

    what: what differs, with both values. means: what follows from that. effect: "refused" where ids mean
    different tokens, and drafts cannot be verified; "warned" where the output stays the target's and fewer
    drafts may be accepted; "fine" where nothing follows.
    """

    what: str
    means: str
    effect: Effect


@dataclass(frozen=True)
class Comparison:
    """What :func:`judge` found. shared: how many ids, from 0 on, both vocabularies have; what a drafter has
    more is padding, and never proposed."""

    target: Path
    draft: Path
    shared: int
    findings: tuple[Finding, ...]

    @property
    def warnings(self) -> tuple[Finding, ...]:
        """What lets a pair through, and may cost it acceptance."""
        return tuple(found for found in self.findings if found.effect == "warned")

    @property
    def refusal(self) -> VocabMismatchError | None:
        """The error for a pair whose drafts cannot be verified: what differs, why it matters, what to do."""
        for found in self.findings:
            if found.effect == "refused":
                return VocabMismatchError(
                    f"{self.draft}: cannot draft for {self.target}: {found.what}; {found.means}; {WAY_OUT}"
                )
        return None


def compare(target: GGUFFile, draft: GGUFFile) -> int:
    """How many ids, from 0 on, both vocabularies have; to both, each of them means the same.

    Raises VocabMismatchError, which says what differs, why it matters and what to do; UsageError when a file
    has no vocabulary.
    """
    judged = judge(target, draft)
    if judged.refusal is not None:
        raise judged.refusal
    return judged.shared


def judge(target: GGUFFile, draft: GGUFFile) -> Comparison:
    """Everything in which two vocabularies differ, and what each of these things means for the pair.

    Whether ids mean the same is told by the kind of tokenizer, every token's text, and what the longer
    vocabulary has more: up to 128 ids of padding may be. That much is llama.cpp's
    ``common_speculative_are_compatible``, which lets anything pass for padding and skips the first 5 texts.
    It also refuses other BOS and EOS rules; here they are a warning, for the drafter is given the target's
    tokens whatever its own rules are, so that nothing but its guesses can suffer. The same goes for a token
    of the same text that one model ends a text with, or hides as a control token, and the other does not.
    Raises UsageError when a file has no vocabulary.
    """
    found = list(_differences(target, draft))
    if all(one.effect != "refused" for one in found):
        found += [*_other_rules(target, draft), *_other_ends(target, draft), *_other_types(target, draft)]
    shared = min(len(_tokens(target)), len(_tokens(draft)))
    return Comparison(target.path, draft.path, shared, tuple(found))


def _differences(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    """The first id that means different tokens, or what tells as much; else the padding, if there is any."""
    ours, theirs = _tokens(target), _tokens(draft)
    sizes = f"it has {len(theirs):,} tokens, the target {len(ours):,}"
    shared, longest = min(len(ours), len(theirs)), max(len(ours), len(theirs))
    longer = draft if len(theirs) > shared else target
    if target.tokenizer_model != draft.tokenizer_model:
        kinds = f"of kind {draft.tokenizer_model!r}, the target's of kind {target.tokenizer_model!r}"
        yield Finding(f"its tokenizer is {kinds}, and {sizes}", OTHER_TOKENS, "refused")
    elif longest - shared > MAX_PADDING:
        yield Finding(f"its vocabulary is another one: {sizes}", OTHER_TOKENS, "refused")
    elif (token := _first_difference(ours, theirs, shared)) is not None:
        texts = f"{_quoted(theirs, token)} to it, {_quoted(ours, token)} to the target"
        what = f"its vocabulary is another one: token {token} is {texts} ({sizes})"
        yield Finding(what, OTHER_TOKENS, "refused")
    elif (real := next((t for t in range(shared, longest) if not _is_padding(longer, t)), None)) is not None:
        what = f"{sizes}, and token {real}, {_quoted(_tokens(longer), real)}, is no padding"
        yield Finding(what, OTHER_TOKENS, "refused")
    elif longest > shared:
        who = "the drafter" if longer is draft else "the target"
        what = f"{sizes}: {longest - shared} of padding at the end of what {who} has"
        yield Finding(what, "no model writes padding, and it is never proposed", "fine")


def _other_rules(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    """Tokens that one tokenizer puts around texts and the other does not."""
    for where, own, other in zip(("before", "after"), _automatic(target), _automatic(draft), strict=True):
        if own != other:
            names = ["nothing" if token is None else f"token {token}" for token in (other, own)]
            what = f"its tokenizer puts {names[0]} {where} a text, the target's {names[1]}"
            means = (
                "the output stays the target's, whose tokens the drafter is given; texts begin or end "
                "otherwise than those it was made for, so fewer drafts may be accepted"
            )
            yield Finding(what, means, "warned")


def _other_ends(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    """Other tokens at the end of a text or a turn, where both files name them."""
    for role, words in (("eos", "a text"), ("eot", "a turn"), ("eom", "a message")):
        key = f"tokenizer.ggml.{role}_token_id"
        own, other = target.integer(key), draft.integer(key)
        if own is not None and other is not None and own != other:
            means = (
                "the output stays the target's, which alone says where it ends; drafts that reach an end are "
                "rejected there"
            )
            yield Finding(f"it ends {words} with token {other}, the target with token {own}", means, "warned")


def _other_types(target: GGUFFile, draft: GGUFFile) -> Iterator[Finding]:
    """Tokens with the same text of which only one model makes a control token."""
    ours, theirs = target.token_types, draft.token_types
    if ours is None or theirs is None:
        return
    shared = min(len(_tokens(target)), len(_tokens(draft)))
    differ = np.flatnonzero((ours[:shared] == CONTROL) != (theirs[:shared] == CONTROL))
    if len(differ):
        token = int(differ[0])
        sides = ("a control token", "none") if theirs[token] == CONTROL else ("no control token", "one")
        more = f" (and {len(differ) - 1:,} more like it)" if len(differ) > 1 else ""
        what = (
            f"token {token}, {_quoted(_tokens(target), token)}, is {sides[0]} to it, {sides[1]} to the target"
        )
        means = (
            "the output stays the target's; a drafter that was not taught the target's use of such a token "
            "guesses worse around it"
        )
        yield Finding(what + more, means, "warned")


def _tokens(file: GGUFFile) -> GGUFArray:
    if not file.tokens:
        raise UsageError(f"{file.path}: it has no vocabulary; give a text-generation GGUF instead")
    return file.tokens


def _first_difference(a: GGUFArray, b: GGUFArray, n: int) -> int | None:
    """The first of ``n`` ids whose texts differ. Compares the arrays as they lie: 2 ms for 150,000 tokens."""
    assert a.starts is not None
    assert b.starts is not None
    end = min(int(a.starts[n]), int(b.starts[n]))
    differs = a.raw[:end] != b.raw[:end]
    at = int(differs.argmax())
    return int(a.starts.searchsorted(at, side="right")) - 1 if differs[at] else None


def _is_padding(file: GGUFFile, token: int) -> bool:
    """Whether a model never writes this token: it is marked as such, or its text says so."""
    types, text = file.token_types, str(_tokens(file)[token])
    kind = None if types is None else int(types[token])
    if kind in (CONTROL, UNUSED):
        return True
    return bool((BRACKETED if kind == USER_DEFINED else FILLER).fullmatch(text))


def _automatic(file: GGUFFile) -> tuple[int | None, int | None]:
    """The ids put before and after every text, or None; defaults as in ``llama_vocab::impl::load``."""
    model, pre = file.tokenizer_model, file.text("tokenizer.ggml.pre")
    add_bos, add_eos = file.flag("tokenizer.ggml.add_bos_token"), file.flag("tokenizer.ggml.add_eos_token")
    if add_bos is None:
        add_bos = model in ("llama", "bert") or (model == "gpt2" and pre in BOS_BY_DEFAULT)
    if add_eos is None:
        add_eos = model == "t5"
    defaults = {"llama": (1, 2), "gpt2": (11, 11), "bert": (101, None), "t5": (None, 1), "plamo2": (1, 2)}
    bos, eos = file.integer("tokenizer.ggml.bos_token_id"), file.integer("tokenizer.ggml.eos_token_id")
    default_bos, default_eos = defaults.get(model or "", (None, None))
    if "gemma4" in (model, pre):
        add_bos = True  # whatever the file says
    return (
        (default_bos if bos is None else bos) if add_bos else None,
        (default_eos if eos is None else eos) if add_eos else None,
    )


def _quoted(tokens: GGUFArray, token: int) -> str:
    text = str(tokens[token])
    return repr(text if len(text) <= 40 else text[:40] + "…")
