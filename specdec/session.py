"""A conversation, whose tokens stay in the caches from turn to turn."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from .backend import FeedProgress, Message
from .decoder import Decoder, Step
from .engine import Engine
from .errors import ContextFullError, UsageError
from .reasoning import TAGS, opens_reasoning
from .tokens import Tokens

ContextFull = Literal["drop", "stop"]
OnForget = Callable[[list[Message]], None]

ROOM = 4  # a conversation that is cut leaves at least 1/ROOM of the context to the answer


@dataclass(frozen=True)
class Passage:
    """A piece of the conversation's text and the tokens it was read or written as.

    ends: for an answer, where the text of its first n tokens ends, -1 where that is inside a character; a
    passage that was tokenised stands as a whole.
    """

    text: bytes
    tokens: Tokens
    ends: tuple[int, ...] = ()


class Session:
    """Messages, and answers to them.

    messages: ``{"role": …, "content": …}``, oldest first, the system prompt (if any) before all others. They
    are the authority and may be changed between answers in any way: what is already tokens is found out by
    comparing texts, and what the caches hold by comparing tokens, so only what is new is read.
    forgotten: how many messages after the system prompt no longer fit and are not shown to the model.
    context_full: "drop" forgets the oldest turns whole when the context is full, also in the middle of an
    answer; "stop" refuses the next answer, and ends a running one. on_forget: told what was just forgotten.
    """

    def __init__(
        self, engine: Engine, *, context_full: ContextFull = "drop", on_forget: OnForget | None = None
    ) -> None:
        self.engine = engine
        self.messages: list[Message] = []
        self.forgotten = self._told = 0
        self.context_full = context_full
        self._on_forget = on_forget or (lambda _messages: None)
        self._passages: list[Passage] = []
        self._written: list[int] = []  # the answer that follows the passages

    @property
    def system(self) -> str:
        """The system prompt, '' for none."""
        return self.messages[0]["content"] if self._n_system else ""

    @system.setter
    def system(self, text: str) -> None:
        self.messages[: self._n_system] = [{"role": "system", "content": text}] if text else []

    def ask(self, text: str) -> None:
        """Adds a user's message."""
        self.messages.append({"role": "user", "content": text})

    def undo(self) -> str | None:
        """Takes back the last user's message and what followed it; the message, None when there is none."""
        for at in range(len(self.messages) - 1, self._n_system - 1, -1):
            if self.messages[at]["role"] == "user":
                text = self.messages[at]["content"]
                del self.messages[at:]
                self.forgotten = self._told = min(self.forgotten, at - self._n_system)
                return text
        return None

    def reset(self) -> None:
        """Forgets every turn; the system prompt stays."""
        del self.messages[self._n_system :]
        self.forgotten = self._told = 0

    @property
    def last_question(self) -> str | None:
        """The text of the user's last message, None before the first."""
        return self._last("user")

    @property
    def last_answer(self) -> str | None:
        """The text of the last answer, None before the first."""
        return self._last("assistant")

    def _last(self, role: str) -> str | None:
        return next((m["content"] for m in reversed(self.messages) if m["role"] == role), None)

    def answer(
        self,
        decoder: Decoder,
        max_tokens: int = -1,
        *,
        stop: Sequence[str] = (),
        progress: FeedProgress | None = None,
    ) -> Iterator[Step]:
        """Answers the last message; the answer is among the messages as far as it has come.

        decoder: of the same engine. The rest is as for :meth:`Decoder.generate`. However the iteration ends,
        what was written stays. Raises UsageError when there is nothing to answer or it alone is too long,
        ContextFullError when the context is full and ``context_full`` says stop.
        """
        if not self.messages or self.messages[-1]["role"] == "assistant":
            raise UsageError("there is no message to answer")
        n_asked, n_ctx = len(self.messages), self.engine.target.n_ctx
        reserve = n_ctx // ROOM if max_tokens < 0 else min(max_tokens, n_ctx // ROOM)
        text, prompt = self._fitting(n_asked, n_ctx - reserve)
        before = len(prompt)

        def make_room(history: Tokens) -> Tokens | None:
            nonlocal before
            written = history[before:]
            if self.context_full == "stop" or not self._forget_oldest(n_asked):
                return None
            _, shorter = self._fitting(n_asked, n_ctx - reserve - len(written))
            before = len(shorter)
            return np.concatenate([shorter, written]) if before + len(written) < n_ctx else None

        steps = decoder.generate(prompt, max_tokens, stop=stop, progress=progress, make_room=make_room)
        return self._kept(steps, _opened_block(text))

    def _kept(self, steps: Iterator[Step], opened: str) -> Iterator[Step]:
        """Passes the steps on, and keeps what they write. opened: a reasoning block the prompt began."""
        tokens: list[int] = []
        message: Message = {"role": "assistant", "content": opened}
        for step in steps:
            tokens += step.tokens
            self._written = tokens
            if message is not self.messages[-1]:
                self.messages.append(message)
            message["content"] += step.text
            yield step

    def _fitting(self, n_asked: int, room: int) -> tuple[str, Tokens]:
        """The prompt, as text and tokens, after forgetting what does not fit into ``room`` tokens."""
        forgotten = self.forgotten
        text, tokens = self._prompt(n_asked)
        if self.context_full == "stop":
            if len(tokens) >= self.engine.target.n_ctx:
                raise ContextFullError(
                    f"the conversation has {len(tokens)} tokens and the context holds "
                    f"{self.engine.target.n_ctx}: take turns back, begin anew, or start with a larger -c"
                )
            return text, tokens
        while len(tokens) > room and self._forget_oldest(n_asked):
            text, tokens = self._prompt(n_asked)
        if len(tokens) >= self.engine.target.n_ctx:
            self.forgotten = forgotten  # it was in vain: the decoder refuses this prompt
        else:
            self._tell()
        return text, tokens

    def _tell(self) -> None:
        first = self._n_system
        news = self.messages[first + self._told : first + self.forgotten]
        self._told = self.forgotten
        if news:
            self._on_forget(news)

    def _forget_oldest(self, n_asked: int) -> bool:
        """Forgets one more turn; False when only the one to be answered is left."""
        first = self._n_system + self.forgotten
        for at in range(first + 1, n_asked):
            if self.messages[at]["role"] == "user":
                self.forgotten += at - first
                return True
        return False

    @property
    def _n_system(self) -> int:
        return int(bool(self.messages) and self.messages[0]["role"] == "system")

    def _prompt(self, n_asked: int) -> tuple[str, Tokens]:
        n_system = self._n_system
        shown = self.messages[:n_system] + self.messages[n_system + self.forgotten : n_asked]
        text = self.engine.template.render(shown)
        return text, self._tokenize(text)

    def _tokenize(self, text: str) -> Tokens:
        """Ids of a rendered conversation, in which what was read or written before keeps its tokens."""
        vocab = self.engine.target.model.vocab
        raw = text.encode("utf-8", "surrogatepass")
        known = self._known(raw)
        rest = raw[sum(len(passage.text) for passage in known) :]
        more = vocab.tokenize_more(rest.decode("utf-8", "surrogatepass"))
        if not known or not self._goes_on(more, rest):
            known, rest, more = [], raw, self.engine.tokenize(text)
        self._passages, self._written = [*known, Passage(rest, more)], []
        return np.concatenate([passage.tokens for passage in self._passages])

    def _known(self, raw: bytes) -> list[Passage]:
        """The passages that a text begins with; of the last one, if it was written, the part that stands."""
        known: list[Passage] = []
        at = 0
        for passage in [*self._passages, self._answer_passage()]:
            whole = raw.startswith(passage.text, at)
            kept = passage if whole else _common(passage, raw[at : at + len(passage.text)])
            if len(kept.tokens):
                known.append(kept)
            if not whole:
                break
            at += len(passage.text)
        return known

    def _answer_passage(self) -> Passage:
        vocab = self.engine.target.model.vocab
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text, ends = b"", []
        for token in self._written:
            text += decoder.decode(vocab.piece(token)).encode()
            ends.append(-1 if decoder.getstate()[0] else len(text))
        unfinished = decoder.decode(b"", final=True).encode()
        if unfinished:
            text, ends = text + unfinished, [*ends[:-1], len(text) + len(unfinished)]
        return Passage(text, np.array(self._written, np.int32), tuple(ends))

    def _goes_on(self, more: Tokens, rest: bytes) -> bool:
        """Whether tokens of the rest of a text are what they would be within the whole."""
        vocab = self.engine.target.model.vocab
        if len(more) and vocab.is_special(int(more[0])) and rest.startswith(vocab.spelled(int(more[0]))):
            return True
        # Some tokenizers put a space before every text, also where it goes on.
        return b"".join(vocab.spelled(token) for token in more.tolist()) == rest


def _opened_block(prompt: str) -> str:
    """The reasoning block that a prompt ends in, '' for none."""
    return prompt[max(prompt.rfind(tag) for tag in TAGS) :] if opens_reasoning(prompt) else ""


def _common(passage: Passage, raw: bytes) -> Passage:
    """The tokens of a written passage whose text a text begins with."""
    n = 0
    for i, end in enumerate(passage.ends, start=1):
        if end >= 0:
            if not raw.startswith(passage.text[:end]):
                break
            n = i
    length = passage.ends[n - 1] if n else 0
    return Passage(passage.text[:length], passage.tokens[:n], passage.ends[:n])
