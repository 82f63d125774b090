"""One conversation at the terminal or in a script: its models, its settings, its answers."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from pathlib import Path

from specdec import Decoder, Engine
from specdec.errors import AbortedError, UsageError
from specdec.reasoning import ReasoningStream, Span, opens_reasoning
from specdec.session import ContextFull, Session
from specdec.stats import Stats

from . import charts
from .interrupts import interruptible
from .line import Lines
from .log import log_shown
from .options import OutputOptions
from .plain import cut, encodable, neutral
from .requests import Defaults
from .result import Run
from .view import View

LOG = logging.getLogger("specdec")
QUOTED = 30  # cells of a forgotten message that are shown


class Conversation:
    """What the commands work on.

    session: the messages. settings: what the flags and ``/set`` say. draft: the drafter's file, None where
    there is none. stats, turns: of all answers.
    """

    def __init__(
        self,
        engine: Engine,
        draft: Path | None,
        settings: Defaults,
        lines: Lines,
        output: OutputOptions,
        *,
        context_full: ContextFull,
        hide_reasoning: bool,
    ) -> None:
        self.engine = engine
        self.session = Session(engine, context_full=context_full, on_forget=_tell_forgotten)
        self.settings = settings
        self.draft = draft
        self.lines = lines
        self.stats = Stats()
        self.turns = 0
        self._output = output
        self._hide_reasoning = hide_reasoning
        self._seed = settings.request_seed
        self._decoder: Decoder | None = None
        self._plain_seconds = 0.0  # what all answers would have taken without drafts

    @property
    def on_terminal(self) -> bool:
        """Whether a person reads what is written to stdout as it comes."""
        return self.lines.interactive and sys.stdout.isatty()

    @property
    def speedup(self) -> float | None:
        """Estimated, over plain decoding; None before there were drafts."""
        if not self.stats.drafted or not self.stats.decoding_seconds:
            return None
        return self._plain_seconds / self.stats.decoding_seconds

    def tell(self, *lines: str) -> None:
        """Says something that is not the model's: to a person among the text, else on stderr."""
        stream = sys.stdout if self.on_terminal else sys.stderr
        for line in lines:
            print(encodable(neutral(line), stream), file=stream)
        stream.flush()

    def change(self, settings: Defaults, draft: Path | None) -> None:
        """Other settings from the next answer on, or another drafter.

        Raises UsageError for settings that cannot be, and as ``Engine.redraft``; then nothing has changed.
        """
        sampling, drafting = settings.sampling.sampling(), settings.drafts.drafting()
        before = self.engine.drafting
        if drafting != before or draft != self.draft:
            self.engine.redraft(drafting, draft)
        try:
            seed = self._next_seed(settings)
            decoder = self.engine.decoder(sampling, seed)
        except UsageError:
            self.engine.redraft(before, self.draft)
            raise
        self.settings, self.draft, self._decoder, self._seed = settings, draft, decoder, seed

    def _next_seed(self, settings: Defaults) -> int | None:
        """A seed goes on where settings change: the same random numbers again would repeat the same words."""
        given = settings.request_seed
        if given is None or self._seed is None or given != self.settings.request_seed:
            return given
        return self._seed + 1

    @property
    def decoder(self) -> Decoder:
        """Goes on from answer to answer until the settings change."""
        if self._decoder is None:
            self._decoder = self.engine.decoder(self.settings.sampling.sampling(), self._seed)
        return self._decoder

    def ask(self, text: str) -> None:
        """A user's message, and the answer to it. Raises as ``Session.answer``; then it was not asked."""
        self.session.ask(text)
        try:
            self.answer()
        finally:
            if self.session.messages and self.session.messages[-1]["role"] == "user":
                self.session.undo()

    def answer(self) -> None:
        """Answers the last message; Ctrl-C ends the answer and keeps what there is of it."""
        decoder = self.decoder
        decoder.stats = Stats()
        asked = len(self.session.messages)
        run = Run(self.engine, decoder, prompt_tokens=0)
        interrupted = False
        view = View(color=self._output.color, quiet=self._output.quiet)
        try:
            with (
                interruptible(self.engine.abort, at_passes=True),
                self.lines.busy(),
                view,
                log_shown(view, self._output.verbose),
                suppress(AbortedError, KeyboardInterrupt),
            ):
                self._show(run, decoder, view)
        except KeyboardInterrupt:
            interrupted = True
        self._count(decoder)
        if interrupted and len(self.session.messages) == asked:
            self.tell("stopped before the answer began; the conversation is as it was")
        elif interrupted and not self.lines.interactive:
            raise KeyboardInterrupt

    def _show(self, run: Run, decoder: Decoder, view: View) -> None:
        """Streams an answer, its reasoning dimmed or hidden, and a line of statistics."""
        asked = self.settings.asked
        stream = ReasoningStream(opens_reasoning(self.engine.template.render(self.session.messages)))
        try:
            with view.loading("reading the conversation") as share:
                steps = self.session.answer(
                    decoder,
                    asked.max_tokens,
                    stop=asked.stop or (),
                    progress=lambda n, of: share(n / of),
                )
                first = next(steps)
            for step in chain([first], steps):
                run.take(step)
                for piece, from_draft in step.texts:
                    self._write(stream.feed(piece), view, from_draft=from_draft)
                view.status(run.status(step))
        finally:
            if run.tokens or decoder.stats.emitted:
                self._write(stream.finish(), view, from_draft=False)
                self._close(run, decoder, view)

    def _write(self, spans: list[Span], view: View, *, from_draft: bool) -> None:
        for text, reasoning in spans:
            if not (reasoning and self._hide_reasoning):
                view.write(text, from_draft=from_draft, reasoning=reasoning)

    def _close(self, run: Run, decoder: Decoder, view: View) -> None:
        if not run.text.endswith("\n"):
            view.write("\n", from_draft=False)
        speedup = decoder.speedup if decoder.stats.drafted else None
        line = charts.answer_line(decoder.stats, speedup=speedup, width=_width(), unicode=_unicode())
        notes = ["the context is full: the answer ends here"] if run.finish_reason == "context" else []
        view.summary([line, *notes])

    def _count(self, decoder: Decoder) -> None:
        if decoder.stats.emitted:
            self.turns += 1
            self._plain_seconds += decoder.stats.decoding_seconds * (decoder.speedup or 1.0)
        self.stats.add(decoder.stats)

    def report(self) -> Iterator[str]:
        """The statistics of the whole conversation."""
        yield from charts.conversation(
            self.stats, speedup=self.speedup, turns=self.turns, width=_width(), unicode=_unicode()
        )


def _width() -> int:
    """Cells in a row of the terminal, also where stdout is none."""
    columns = 0
    with suppress(OSError, ValueError):
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    return shutil.get_terminal_size((columns or 80, 24)).columns


def _unicode() -> bool:
    return encodable("█×", sys.stdout) == "█×"


def _tell_forgotten(messages: list[dict[str, str]]) -> None:
    first = cut(" ".join(messages[0]["content"].split()), QUOTED)
    turns = sum(message["role"] == "user" for message in messages)
    what = f"the oldest turn, “{first}…”," if turns == 1 else f"the {turns} oldest turns, from “{first}…” on,"
    LOG.warning("the context is full: %s is no longer shown to the model; -c makes it larger", what)
