"""One text in two vocabularies: the target's in the drafter's tokens, the draft in the target's."""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..backend import Vocabulary
from ..tokens import Tokens, common_prefix

SETTLED = 64  # bytes of text; from there on a piece ends at the next word
LONGEST = 512  # bytes; from there on at the next character, for not every text has words with spaces between
NO_TEXT = re.compile("([\udc80-\udcff]+)")  # bytes that are no UTF-8, as "surrogateescape" shows them


class Passage(NamedTuple):
    """A history as the drafter would have written it.

    tokens: the drafter's, int32 [n]. tail: the text, in bytes, since the last border of pieces; begins:
    whether a text begins with it. unfinished: the first bytes of a character, which end the tail and are not
    among the tokens: a drafter that agrees goes on with the whole character.
    """

    tokens: Tokens
    tail: bytes
    begins: bool
    unfinished: bytes


class Translation:
    """Between the tokens of two vocabularies, by way of the bytes they stand for.

    A control token becomes the one of the same text, else of the same role (end, beginning), else text. The
    beginning is the drafter's own: its BOS, if it puts one before texts.

    A history is tokenised in pieces that end where a word begins; tokenizers cut there as well. Where they
    end follows from the tokens up to there and the next one, so the pieces of a history that has grown are
    those it had, and need no second tokenisation.
    """

    def __init__(self, target: Vocabulary, drafter: Vocabulary) -> None:
        self.target = target
        self.drafter = drafter
        self._history = np.empty(0, np.int32)
        self._pieces: list[tuple[int, Tokens]] = []  # up to which token of the history, and the drafter's
        self._controls: dict[int, Tokens] = {}

    def read(self, history: Tokens) -> Passage:
        """The history: the target's tokens, int32 [n]."""
        same = common_prefix(self._history, history)
        while self._pieces and self._pieces[-1][0] >= same:
            self._pieces.pop()
        self._history = history.copy()
        start = self._pieces[-1][0] if self._pieces else 0
        text, begins = b"", self._begins(start)
        for i in range(start, len(history)):
            token = int(history[i])
            control = self.target.is_control(token)
            more = self._text(i, token)
            if text and (control or _ends_piece(text, more)):
                self._pieces.append((i, tokens_of(self.drafter, text, begins=begins)))
                text, begins = b"", False
            if control:
                self._pieces.append((i + 1, self._control(i, token)))
                begins = True
            text += more
        unfinished = unfinished_character(text)
        last = tokens_of(self.drafter, text[: len(text) - len(unfinished)], begins=begins)
        bos = [np.array([self.drafter.bos], np.int32)] if self.drafter.adds_bos else []
        tokens = np.concatenate([*bos, *(tokens for _, tokens in self._pieces), last])
        return Passage(tokens, text, begins, unfinished)

    def write(self, passage: Passage, draft: Sequence[int]) -> list[tuple[int, int]]:
        """What the drafter's tokens add to the passage, in the target's; with each, how many of the drafter's
        have begun where it ends.

        Nothing where they do not go on with the character that the passage left unfinished. A character that
        they leave unfinished themselves is left out, and so is what follows a control token.
        """
        text, begun, control = b"", list[int](), None
        for token in draft:
            if self.drafter.is_control(token):
                control = counterpart(token, self.drafter, self.target)
                break
            begun.append(len(text))
            text += self.drafter.piece(token)
        first = passage.begins and not passage.tail
        if first and self.drafter.adds_space and text[:1] == b" ":
            text, begun = text[1:], [max(0, at - 1) for at in begun]
        cut, at = unfinished_character(text), len(passage.unfinished)
        new = text[: len(text) - len(cut)]
        if new[:at] != passage.unfinished:
            return []
        written: list[tuple[int, int]] = []
        for token in self._follow(passage, new[at:]):
            at += len(self.target.piece(token)) - (first and not written and self.target.adds_space)
            written.append((token, sum(place < at for place in begun)))
        if control is not None and not cut and (written or at == len(new)):
            written.append((control, len(begun) + 1))
        return written

    def _follow(self, passage: Passage, new: bytes) -> list[int]:
        """The target's tokens for text after the passage, whose own tokens are committed: from where both in
        one are cut, if they are cut between them, else of the new text by itself."""
        tail = passage.tail
        whole: list[int] = tokens_of(self.target, tail + new, begins=passage.begins).tolist()
        if not tail:
            return whole
        at = -1 if passage.begins and self.target.adds_space else 0
        ends = list(itertools.accumulate((len(self.target.piece(t)) for t in whole), initial=at))
        in_one = whole[ends.index(len(tail)) :] if len(tail) in ends else []
        if self._spelled(in_one) == new:
            return in_one
        alone: list[int] = tokens_of(self.target, new, begins=False).tolist()
        return alone if self._spelled(alone) == new else []

    def _spelled(self, tokens: list[int]) -> bytes:
        return b"".join(map(self.target.piece, tokens))

    def _begins(self, i: int) -> bool:
        """Whether a text begins at a token of the history: nothing is before it, or a control token."""
        return i == 0 or self.target.is_control(int(self._history[i - 1]))

    def _text(self, i: int, token: int) -> bytes:
        """What a token stands for, without the space that the target's tokenizer puts where a text begins."""
        text = self.target.piece(token)
        return text[1:] if text[:1] == b" " and self.target.adds_space and self._begins(i) else text

    def _control(self, i: int, token: int) -> Tokens:
        """The drafter's tokens for a control token of the target; the BOS of either is not put twice."""
        target, drafter = self.target, self.drafter
        if i == 0 and target.adds_bos and token == target.bos:
            return np.empty(0, np.int32)
        if token not in self._controls:
            found = counterpart(token, target, drafter)
            as_text = tokens_of(drafter, target.spelled(token), begins=False)
            self._controls[token] = as_text if found is None else np.array([found], np.int32)
        tokens = self._controls[token]
        return tokens[1:] if i == 0 and drafter.adds_bos and tokens[:1] == drafter.bos else tokens


def counterpart(token: int, own: Vocabulary, other: Vocabulary) -> int | None:
    """What a control token is called in another vocabulary; None where there is nothing like it."""
    text = own.spelled(token)
    found = other.tokenize_more(text.decode("utf-8", "replace"))
    if len(found) == 1 and other.is_special(int(found[0])) and other.spelled(int(found[0])) == text:
        return int(found[0])
    same_role = -1
    if own.is_eog(token):
        same_role = other.eot if other.eot >= 0 else other.eos
    elif token == own.bos:
        same_role = other.bos
    return same_role if same_role >= 0 else None


def tokens_of(vocab: Vocabulary, text: bytes, *, begins: bool) -> Tokens:
    """Ids for the bytes of a text, int32 [n]; what is no UTF-8 becomes byte tokens, if there are such."""
    parts: list[Tokens] = []
    for part in filter(None, NO_TEXT.split(text.decode("utf-8", "surrogateescape"))):
        if NO_TEXT.match(part):
            tokens = map(vocab.byte_tokens.get, part.encode("utf-8", "surrogateescape"))
            parts.append(np.array([token for token in tokens if token is not None], np.int32))
        else:
            parts.append(vocab.tokenize_part(part, begins=begins and not parts))
    return np.concatenate([np.empty(0, np.int32), *parts])


def unfinished_character(text: bytes) -> bytes:
    """The bytes at the end that begin a character and need more to be one."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    decoder.decode(text[-4:])
    return decoder.getstate()[0]


def _ends_piece(text: bytes, more: bytes) -> bool:
    """Whether a piece is over before what comes next."""
    if len(text) < SETTLED:
        return False
    new_word = more[:1] == b" " and more[1:2].isalnum() and not text[-1:].isspace()
    return new_word or (len(text) >= LONGEST and not unfinished_character(text))
