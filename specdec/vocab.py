"""May these two models be compared? The acceptance rule needs every id to mean the same to both."""

from __future__ import annotations

import hashlib
import re

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


class VocabMismatchError(UsageError):
    """Target and drafter mean different tokens by the same ids."""


def fingerprint(file: GGUFFile) -> str:
    """A name of the vocabulary: equal names turn any text into the same ids."""
    tokens, merges = file.tokens, file.array("tokenizer.ggml.merges", "string")
    found = hashlib.sha256(f"{file.tokenizer_model} {file.text('tokenizer.ggml.pre')}".encode())
    for array in (tokens, merges):
        found.update(b"" if array is None else array.raw.tobytes())
    return found.hexdigest()


def compare(target: GGUFFile, draft: GGUFFile) -> int:
    """How many ids, from 0 on, both vocabularies have; to both, each of them means the same.

    Compared are the kind of tokenizer, every token's text, what the longer vocabulary has more (up to 128 ids
    of padding may be) and the tokens put around every text. The same as llama.cpp's
    ``common_speculative_are_compatible``, which lets anything pass for padding and skips the first 5 texts.

    Raises VocabMismatchError, which says what differs, why it matters and what to do; UsageError when a file
    has no vocabulary.
    """
    why = (
        "the acceptance rule would compare the probabilities of different tokens (fluent text, a plausible "
        "acceptance rate, the wrong distribution)"
    )
    what = _difference(target, draft)
    if what is None:
        what = _difference_around(target, draft)
        why = "the drafter would be given texts that begin or end otherwise than those it was made for"
    if what:
        raise VocabMismatchError(
            f"{draft.path}: cannot draft for {target.path}: {what}; {why}; "
            "use a drafter of the target's family and tokenizer"
        )
    return min(len(_tokens(target)), len(_tokens(draft)))


def _difference(target: GGUFFile, draft: GGUFFile) -> str | None:
    """The first id that means different tokens, or what tells as much."""
    ours, theirs = _tokens(target), _tokens(draft)
    sizes = f"it has {len(theirs):,} tokens, the target {len(ours):,}"
    if target.tokenizer_model != draft.tokenizer_model:
        kinds = f"of kind {draft.tokenizer_model!r}, the target's of kind {target.tokenizer_model!r}"
        return f"its tokenizer is {kinds}, and {sizes}"
    if abs(len(ours) - len(theirs)) > MAX_PADDING:
        return f"its vocabulary is another one: {sizes}"
    shared = min(len(ours), len(theirs))
    token = _first_difference(ours, theirs, shared)
    if token is not None:
        texts = f"{_quoted(theirs, token)} to it, {_quoted(ours, token)} to the target"
        return f"its vocabulary is another one: token {token} is {texts} ({sizes})"
    longer = draft if len(theirs) > shared else target
    for token in range(shared, max(len(ours), len(theirs))):
        if not _is_padding(longer, token):
            return f"{sizes}, and token {token}, {_quoted(_tokens(longer), token)}, is no padding"
    return None


def _difference_around(target: GGUFFile, draft: GGUFFile) -> str | None:
    """A token that one tokenizer puts around texts and the other does not."""
    for where, own, other in zip(("before", "after"), _automatic(target), _automatic(draft), strict=True):
        if own != other:
            names = ["nothing" if token is None else f"token {token}" for token in (other, own)]
            return f"its tokenizer puts {names[0]} {where} a text, the target's {names[1]}"
    return None


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
