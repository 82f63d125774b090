"""What a model thinks aloud before it answers, told apart from the answer."""

from __future__ import annotations

from typing import NamedTuple

TAGS = {"<think>": "</think>", "[THINK]": "[/THINK]"}


class Span(NamedTuple):
    """A piece of a model's text. reasoning: whether it belongs to the block before the answer."""

    text: str
    reasoning: bool


class ReasoningStream:
    """Splits streamed text into a reasoning block and the answer after it.

    A block counts at the beginning of the text alone (after whitespace), so that an answer may speak of
    ``<think>``. Its tags and the whitespace around it belong to it. Held back: what may become a tag.
    """

    def __init__(self, open: bool = False) -> None:
        """open: the prompt has opened the block already (``opens_reasoning``)."""
        self._closers = tuple(TAGS.values()) if open else ()  # empty outside a block
        self._begun = open
        self._answering = False
        self._held = ""

    def feed(self, text: str) -> list[Span]:
        """The spans that this piece releases; none is empty, and joined they are the text."""
        self._held += text
        if not self._begun:
            self._begin()
        spans = [Span(self._thought(), True)] if self._closers else []
        if self._begun and not self._closers:
            spans += [Span(self._space(), True), Span(self._answer(), False)]
        return [span for span in spans if span.text]

    def finish(self) -> list[Span]:
        """What was held back, once no more text comes."""
        held, self._held = self._held, ""
        return [Span(held, bool(self._closers))] if held else []

    def _begin(self) -> None:
        """Decides whether the text begins with a block, as soon as that can be known."""
        body = self._held.lstrip()
        self._closers = tuple(closer for opener, closer in TAGS.items() if body.startswith(opener))
        undecided = any(opener.startswith(body) for opener in TAGS)
        self._answering = not self._closers and not undecided
        self._begun = bool(self._closers) or self._answering

    def _thought(self) -> str:
        """Takes what is surely reasoning, and leaves the block at its closing tag."""
        ends = [at + len(c) for c in self._closers if (at := self._held.find(c)) >= 0]
        partial = (n for c in self._closers for n in range(1, len(c)) if self._held.endswith(c[:n]))
        end = min(ends) if ends else len(self._held) - max(partial, default=0)
        if ends:
            self._closers = ()
        return self._take(end)

    def _space(self) -> str:
        """Takes the whitespace between the block and the answer."""
        if self._answering:
            return ""
        body = self._held.lstrip()
        self._answering = bool(body)
        return self._take(len(self._held) - len(body))

    def _answer(self) -> str:
        return self._take(len(self._held))

    def _take(self, n: int) -> str:
        taken, self._held = self._held[:n], self._held[n:]
        return taken


def without_reasoning(text: str, open: bool = False) -> str:
    """The answer alone; empty while the block is unfinished. open: as for ``ReasoningStream``."""
    stream = ReasoningStream(open)
    return "".join(span.text for span in stream.feed(text) + stream.finish() if not span.reasoning)


def opens_reasoning(prompt: str) -> bool:
    """Whether a rendered prompt ends with an opening tag, so that the model begins inside the block."""
    return prompt.rstrip().endswith(tuple(TAGS))
