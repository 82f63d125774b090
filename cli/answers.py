"""Answers to requests, one after the other from the same models, in the form that was asked for."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Literal, TextIO

from specdec import Engine, Step
from specdec.errors import AbortedError, SpecdecError, UsageError

from . import jsontext
from .requests import Line, Request
from .result import Run
from .view import View

Form = Literal["text", "json", "events"]
Name = dict[str, object]  # {"id": …} before everything else of an object, where requests have one


class Answers:
    """Answers requests and writes what comes of them.

    draft: the drafter's file. stream: where ``view`` writes. failed, seen: requests so far.
    """

    def __init__(self, engine: Engine, draft: Path | None, view: View, stream: TextIO, form: Form) -> None:
        self.failed = 0
        self.seen = 0
        self._engine = engine
        self._draft = draft
        self._view = view
        self._stream = stream
        self._form = form
        self._tokens = 0
        self._seconds = 0.0

    def one(self, request: Request) -> None:
        """Answers the only request.

        Raises UsageError for one that these models cannot do; KeyboardInterrupt after an interruption, once
        what there was is written.
        """
        run = self._answer(request, {})
        self._view.summary(run.summary())
        if run.finish_reason == "interrupted":
            raise KeyboardInterrupt

    def each(self, lines: Iterable[Line]) -> None:
        """Answers them all; what is wrong with one is its answer. Raises KeyboardInterrupt as :meth:`one`."""
        try:
            for line in lines:
                self.seen += 1
                if self._answered(line) == "interrupted":
                    raise KeyboardInterrupt
        except KeyboardInterrupt:
            self._view.summary([self._total()])
            raise
        self._view.summary([self._total()])

    def _answered(self, line: Line) -> str:
        """How it finished."""
        try:
            if isinstance(line.request, UsageError):
                raise line.request
            return self._answer(line.request, {"id": line.id}).finish_reason
        except AbortedError:
            raise
        except SpecdecError as error:
            self.failed += 1
            event: Name = {"event": "error"} if self._form == "events" else {}
            self._write({"id": line.id, **event, "error": {"message": str(error), "line": line.number}})
            return "error"

    def _total(self) -> str:
        rate = self._tokens / self._seconds if self._seconds else 0.0
        return (
            f"{self.seen} requests, {self.failed} failed; {self._tokens} tokens in {self._seconds:.1f} s, "
            f"{rate:.1f} tok/s"
        )

    def _answer(self, request: Request, name: Name) -> Run:
        """Generates to the end; an interruption ends it with what was written kept."""
        engine = self._engine
        if request.drafting != engine.drafting:
            engine.redraft(request.drafting, self._draft)
        decoder = engine.decoder(request.sampling, request.seed)
        prompt = request.prompt.tokens(engine)
        run = Run(engine, decoder, prompt_tokens=len(prompt), logprobs=bool(request.logprobs))
        with suppress(AbortedError, KeyboardInterrupt):
            with self._view.loading("reading the prompt") as share:
                steps = decoder.generate(
                    prompt,
                    request.max_tokens,
                    stop=request.stop,
                    logprobs=request.logprobs,
                    progress=lambda n, of: share(n / of),
                )
                first = next(steps)
            for step in chain([first], steps):
                run.take(step)
                self._show(run, step, name)
        self._tokens += decoder.stats.emitted
        self._seconds += decoder.stats.decoding_seconds
        if self._form == "json":
            self._write({**name, **run.as_dict()})
        elif self._form == "events":
            self._write({**name, "event": "result", **run.as_dict()})
        return run

    def _show(self, run: Run, step: Step, name: Name) -> None:
        if self._form == "text":
            for text, from_draft in step.texts:
                self._view.write(text, from_draft=from_draft)
        elif self._form == "events":
            self._write({**name, **run.event(step)})
        self._view.status(run.status(step))

    def _write(self, value: Name) -> None:
        self._view.write(jsontext.line(value, self._stream), from_draft=False)
