"""A grammar that the text must follow (GBNF, llama.cpp's own sampler), fast enough for whole drafts."""

from __future__ import annotations

import codecs
import json
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from .backend import Candidates, Chain, Vocabulary, gbnf_from_json_schema, grammar_chain
from .errors import UsageError
from .kernels import top
from .tokens import Tokens, common_prefix

Logits = npt.NDArray[np.float32]

FIRST_LOOK = 64  # candidates tried first: of the likeliest tokens a few are mostly allowed
WIDER = 8  # how many times more are tried next
SHARE = 16  # the walk over the token tree beats trying more than this part of the vocabulary


def from_json_schema(schema: str) -> str:
    """The GBNF of a JSON schema (llama.cpp's ``json_schema_to_gbnf``). Raises UsageError for a bad one."""
    try:
        json.loads(schema)
    except json.JSONDecodeError as error:
        raise UsageError(f"the JSON schema is not JSON: {error}") from error
    try:
        return gbnf_from_json_schema(schema)
    except Exception as error:  # the converter asserts, indexes and recurses its way through the schema
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"the JSON schema cannot be made into a grammar: {reason}") from error


class Grammar:
    """What may be written from position ``start`` of the history on (``llama_sampler_init_grammar``).

    One grammar serves the target's sampler and the drafter's: both ask it about the same history. Its state
    is derived from that history, never kept on trust. Raises UsageError for a source that is no GBNF.
    """

    def __init__(self, vocab: Vocabulary, source: str) -> None:
        self.start = 0
        self._vocab = vocab
        self._chain = grammar_chain(vocab, source)
        self._scratch = Candidates()
        self._tree = _tree_of(vocab)
        self._seen = np.empty(0, np.int32)
        self._unfinished = b""  # the character that the text so far ends in the middle of

    def after(self, history: Tokens) -> State:
        """Where the grammar stands after a history (int32 [n], n ≥ start) that has followed it."""
        text = history[self.start :]
        known = common_prefix(self._seen, text)
        if known < len(self._seen):
            known, self._unfinished = 0, b""
            self._chain.reset()
        for token in text[known:].tolist():
            self._chain.accept(token)
            self._unfinished = self.unfinished(self._unfinished, token)
        self._seen = text.copy()
        return State(self, self._chain.clone(), self._unfinished)

    def allowed(self, chain: Chain, unfinished: bytes, ids: Tokens) -> npt.NDArray[np.bool_]:
        """Which of the ids may come next, bool [n]. unfinished: the bytes of a character not yet whole."""
        _, logits = chain.apply(ids, np.zeros(len(ids), np.float32), self._scratch)
        allowed: npt.NDArray[np.bool_] = np.isfinite(logits)
        # llama.cpp matches pieces of characters without asking whether they are UTF-8.
        doubtful = allowed if unfinished else allowed & self._tree.ragged[ids]
        for i in np.flatnonzero(doubtful):
            allowed[i] = _utf8_rest(unfinished + self._tree.texts[ids[i]]) is not None
        return allowed

    def unfinished(self, before: bytes, token: int) -> bytes:
        """The unfinished character after one more token."""
        return _utf8_rest(before + self._tree.texts[token]) or b""

    def walk(self, chain: Chain, unfinished: bytes) -> Tokens:
        """Every token that may come next, ascending, int32 [n]."""
        found = []
        level = self._tree.roots
        while len(level):
            level = level[self.allowed(chain, unfinished, level)]
            found.append(level)
            level = self._tree.children(level)
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.int32)


class State:
    """A grammar at one place of a text."""

    def __init__(self, grammar: Grammar, chain: Chain, unfinished: bytes) -> None:
        self._grammar = grammar
        self._chain = chain
        self._unfinished = unfinished

    def accept(self, token: int) -> None:
        """Goes on by a token, which must be allowed: llama.cpp ends the process on any other."""
        self._chain.accept(token)
        self._unfinished = self._grammar.unfinished(self._unfinished, token)

    def all(self, n_vocab: int) -> Tokens:
        """Every allowed id below n_vocab, ascending, int32 [n]."""
        ids = self._grammar.walk(self._chain, self._unfinished)
        return ids[ids < n_vocab]

    def top(self, row: Logits, k: int, extra_ids: Tokens) -> tuple[Tokens, Logits]:
        """At least the k largest allowed entries of a row and the allowed ones of ``extra_ids``.

        As :func:`specdec.kernels.top`; fewer than k only where fewer are allowed.
        """
        n = max(FIRST_LOOK, 4 * k)
        while n <= len(row) // SHARE:
            ids, logits = top(row, n, extra_ids)
            allowed = self._grammar.allowed(self._chain, self._unfinished, ids)
            if np.count_nonzero(allowed) >= k + len(extra_ids):
                return ids[allowed], logits[allowed]
            n *= WIDER
        ids = self.all(len(row))
        return ids, row[ids]


class TokenTree:
    """A vocabulary by its prefixes: a token's parent is the longest other token that its text begins with.

    Whatever rules out a token's text rules out every text that begins with it, so a search goes down only
    from tokens that are allowed.
    roots: int32 [n], the tokens without a parent. ragged: bool [vocab], whose text is no whole UTF-8.
    """

    def __init__(self, texts: Sequence[bytes]) -> None:
        """texts: of each token, by id."""
        self.texts = texts
        self.ragged = np.array([_utf8_rest(text) != b"" for text in texts])
        parents = np.full(len(texts), -1, np.int32)
        path: list[int] = []
        for token in sorted(range(len(texts)), key=texts.__getitem__):
            while path and not texts[token].startswith(texts[path[-1]]):
                path.pop()
            if path:
                parents[token] = path[-1]
            if texts[token]:  # an empty text says nothing about those that begin with it
                path.append(token)
        self.roots = np.flatnonzero(parents < 0).astype(np.int32)
        self._by_parent = np.argsort(parents, kind="stable").astype(np.int32)
        ordered = parents[self._by_parent]
        self._first = np.searchsorted(ordered, np.arange(len(texts)), side="left")
        self._count = np.searchsorted(ordered, np.arange(len(texts)), side="right") - self._first

    def children(self, tokens: Tokens) -> Tokens:
        """The children of all these tokens, int32 [n]."""
        count = self._count[tokens]
        ends = np.cumsum(count)
        offsets = np.arange(ends[-1] if len(ends) else 0) - np.repeat(ends - count, count)
        children: Tokens = self._by_parent[np.repeat(self._first[tokens], count) + offsets]
        return children


def _utf8_rest(raw: bytes) -> bytes | None:
    """The bytes at the end that begin a character; None for what no UTF-8 text begins with."""
    decoder = codecs.getincrementaldecoder("utf-8")("strict")
    try:
        decoder.decode(raw)
    except UnicodeDecodeError:
        return None
    return decoder.getstate()[0]


_TREES: weakref.WeakKeyDictionary[Vocabulary, TokenTree] = weakref.WeakKeyDictionary()


def _tree_of(vocab: Vocabulary) -> TokenTree:
    """The vocabulary's tree, made when it is first needed: that takes a while."""
    if vocab not in _TREES:
        # Whether a token that ends the text is allowed has nothing to do with how it is spelled.
        ends = set(vocab.eog_tokens)
        texts = [b"" if token in ends else vocab.spelled(token) for token in range(vocab.size)]
        _TREES[vocab] = TokenTree(texts)
    return _TREES[vocab]
