"""``specdec generate``: one prompt in, its text out."""

from __future__ import annotations

import json
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from specdec.errors import AbortedError, UsageError

from .options import DraftOptions, ModelOptions, OutputOptions, PromptOptions, SamplingOptions, takes
from .prompt import read_prompt

if TYPE_CHECKING:
    from specdec import Decoder, Engine, Step
    from specdec.decoder import FinishReason
    from specdec.tokens import Tokens

    from .view import Status, View


@takes(PromptOptions, ModelOptions, DraftOptions, SamplingOptions, OutputOptions)
def generate(
    asked: PromptOptions,
    models: ModelOptions,
    drafts: DraftOptions,
    sampling: SamplingOptions,
    output: OutputOptions,
) -> None:
    """Write the answer to a prompt, or continue a text.

    The text goes to stdout and nothing else does; status and summary go to the terminal and to stderr.

    [bold]Examples[/bold]

    specdec generate "Explain why the sky is blue."

    specdec generate -m big.gguf -md small.gguf -n 200 "Write a haiku."

    cat notes.txt | specdec generate -m big.gguf -md small.gguf --temp 0 > summary.txt

    specdec generate --raw --drafter lookup -m big.gguf -f story.txt
    """
    prompt = read_prompt(asked)
    if asked.max_tokens == 0:
        raise UsageError("-n 0 asks for no text; use at least 1, or -1 for no limit")
    params, drafting = sampling.sampling(), drafts.drafting()

    import secrets

    from specdec import Engine

    from .interrupts import interruptible
    from .locate import locate_pair
    from .log import log_shown
    from .view import View

    with (
        View(color=output.color, quiet=output.quiet) as view,
        log_shown(view, output.verbose),
        interruptible() as signals,
    ):
        target, draft = locate_pair(models, drafting, quiet=output.quiet)
        with view.loading("loading the models") as share:
            engine = Engine(
                target,
                draft,
                loading=models.loading(),
                drafting=drafting,
                progress=share,
                abort=signals.abort,
            )
        with engine:
            seed = secrets.randbits(32) if sampling.seed in (None, -1) else sampling.seed
            decoder = engine.decoder(params, seed)
            run = Run(engine, decoder, seed)
            run.go(_tokens(engine, prompt, raw=asked.raw), asked, view, streamed=not output.json_)
            if output.json_:
                view.write(json.dumps(run.as_dict(), ensure_ascii=False) + "\n", from_draft=False)
            view.summary(run.summary())


def _tokens(engine: Engine, prompt: str, *, raw: bool) -> Tokens:
    if raw or (engine.target.model.chat_template is None and engine.loading.chat_template is None):
        return engine.tokenize(prompt)
    return engine.tokenize_chat([{"role": "user", "content": prompt}])


class Run:
    """One generation: what came of it so far, for the bar, the summary and the JSON."""

    def __init__(self, engine: Engine, decoder: Decoder, seed: int | None) -> None:
        self.finish_reason: FinishReason = "interrupted"
        self._engine = engine
        self._decoder = decoder
        self._seed = seed
        self._n_prompt = 0
        self._tokens: list[int] = []
        self._text: list[str] = []

    def go(self, prompt: Tokens, asked: PromptOptions, view: View, *, streamed: bool) -> None:
        """Generates to the end; an interruption ends it with what was written kept."""
        self._n_prompt = len(prompt)
        with suppress(AbortedError, KeyboardInterrupt):
            with view.loading("reading the prompt") as share:
                steps = self._decoder.generate(
                    prompt, asked.max_tokens, stop=asked.stop or (), progress=lambda n, of: share(n / of)
                )
                first = next(steps)
            for step in chain([first], steps):
                self._take(step, view, streamed)

    def _take(self, step: Step, view: View, streamed: bool) -> None:
        self._tokens += step.tokens
        self._text.append(step.text)
        if streamed:
            for i, piece in enumerate(step.pieces):
                view.write(piece, from_draft=i < step.accepted)
            view.write(step.tail, from_draft=False)
        view.status(self._status(step))
        if step.finish_reason is not None:
            self.finish_reason = step.finish_reason

    def _status(self, step: Step) -> Status:
        from .view import Status

        stats = self._decoder.stats
        return Status(
            tokens=stats.emitted,
            tokens_per_second=stats.tokens_per_second,
            acceptance_rate=stats.acceptance_rate if stats.drafted else None,
            mean_accepted_length=stats.mean_accepted_length if stats.drafted else None,
            draft_length=step.drafted,
            speedup=self._decoder.speedup if stats.drafted else None,
        )

    def as_dict(self) -> dict[str, object]:
        """The result object that README documents."""
        stats = self._decoder.stats
        stats.seconds["load"] = self._engine.load_seconds
        draft = self._engine.draft
        return {
            "text": "".join(self._text),
            "tokens": self._tokens,
            "prompt_tokens": self._n_prompt,
            "completion_tokens": len(self._tokens),
            "finish_reason": self.finish_reason,
            "model": str(self._engine.target.model.path),
            "draft": str(draft.model.path) if draft else None,
            "drafter": self._decoder.drafter.name,
            "schedule": self._decoder.schedule.as_dict(),
            "seed": self._seed,
            "lossless": self._decoder.rule.lossless,
            "stats": stats.as_dict(),
        }

    def summary(self) -> list[str]:
        """The closing lines."""
        stats, decoder = self._decoder.stats, self._decoder
        seconds = {**stats.seconds, "load": self._engine.load_seconds}
        speed = (
            f"{stats.emitted} tokens in {stats.decoding_seconds:.1f} s, {stats.tokens_per_second:.1f} tok/s"
        )
        if stats.drafted and decoder.speedup:
            speed += f", about {decoder.speedup:.2f}× plain decoding"
        lines = [speed]
        if stats.drafted:
            lines.append(
                f"{decoder.drafter.name} drafter: {stats.accepted} of {stats.drafted} drafted accepted "
                f"({stats.acceptance_rate:.1%}), {stats.mean_accepted_length:.2f} tokens a round, "
                f"{stats.rounds} rounds"
            )
        parts = ", ".join(f"{part} {value:.2f}" for part, value in seconds.items())
        lines.append(f"seconds: {parts}; {self._n_prompt} prompt tokens; seed {self._seed}")
        if not decoder.rule.lossless:
            lines.append(f"LOSSY: {decoder.rule.name} acceptance; this is not the target's own distribution")
        if self.finish_reason == "context":
            lines.append(f"the context of {decoder.target.n_ctx} tokens is full; -c makes it larger")
        return lines
