"""Texts to draft from beside the conversation: tokenised once, kept in the cache directory."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import partial
from .backend import Vocabulary
from .errors import UsageError
from .kernels import SuffixAutomaton
from .tokens import Tokens


def index(files: Sequence[Path], vocab: Vocabulary, name: str, cache: Path) -> SuffixAutomaton:
    """The files' tokens in a suffix automaton.

    name: the vocabulary's (:func:`.vocab.fingerprint`). What a file's text becomes in it is written to
    ``cache``, named by the content of both, and read from there the next time. Raises UsageError for a file
    that cannot be read or is not UTF-8 text.
    """
    texts = [_tokens(file, vocab, name, cache) for file in files]
    automaton = SuffixAutomaton(max(2, sum(len(text) for text in texts)))
    for text in texts:
        automaton.extend(text)
    return automaton


def _tokens(file: Path, vocab: Vocabulary, name: str, cache: Path) -> Tokens:
    try:
        raw = file.read_bytes()
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"--lookup-corpus {file}: not a text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise UsageError(f"--lookup-corpus {file}: {error.strerror or error}") from error
    kept = cache / f"{hashlib.sha256(raw).hexdigest()[:24]}-{name[:16]}.npy"
    try:
        known = np.load(kept, allow_pickle=False)
        if known.dtype == np.int32 and known.ndim == 1 and _within(known, vocab):
            return np.ascontiguousarray(known)
    except (OSError, ValueError, EOFError):  # not there yet, or broken
        pass
    tokens = vocab.tokenize(text, special=False)
    with contextlib.suppress(OSError):  # a cache that cannot be written to only costs time
        cache.mkdir(parents=True, exist_ok=True)
        partial.sweep(kept)
        with partial.writing(kept) as draft:
            with draft.open("wb") as out:
                np.save(out, tokens)
            draft.replace(kept)
    return tokens


def _within(tokens: Tokens, vocab: Vocabulary) -> bool:
    return not len(tokens) or (int(tokens.min()) >= 0 and int(tokens.max()) < vocab.size)
