"""What came of a generation: for the bar, for the summary, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specdec import Decoder, Engine, Step
    from specdec.backend import Vocabulary
    from specdec.decoder import FinishReason
    from specdec.logprobs import TokenLogprobs

    from .view import Status

LOWEST = -9999.0  # stands for a probability of 0, whose logarithm JSON cannot say


class Run:
    """One generation: what came of it so far.

    logprobs: whether the result shows them.
    """

    def __init__(
        self, engine: Engine, decoder: Decoder, *, prompt_tokens: int, logprobs: bool = False
    ) -> None:
        self.finish_reason: FinishReason = "interrupted"
        self.tokens: list[int] = []
        self._engine = engine
        self._decoder = decoder
        self._prompt_tokens = prompt_tokens
        self._text: list[str] = []
        self._logprobs: list[dict[str, object]] | None = [] if logprobs else None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    def take(self, step: Step) -> None:
        """Adds a round."""
        self.tokens += step.tokens
        self._text.append(step.text)
        if self._logprobs is not None:
            self._logprobs += self._described(step)
        if step.finish_reason is not None:
            self.finish_reason = step.finish_reason

    def status(self, step: Step) -> Status:
        """The bar's figures after a round."""
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

    def event(self, step: Step) -> dict[str, object]:
        """A round as an event."""
        event: dict[str, object] = {
            "event": "round",
            "text": step.text,
            "tokens": step.tokens,
            "accepted": step.accepted,
            "drafted": step.drafted,
            "drafter": step.source,
        }
        if self._logprobs is not None:
            event["logprobs"] = self._described(step)
        return event

    def as_dict(self) -> dict[str, object]:
        """The result object that README documents."""
        stats = self._decoder.stats
        stats.seconds["load"] = self._engine.load_seconds
        draft = self._engine.draft
        result: dict[str, object] = {
            "text": self.text,
            "tokens": self.tokens,
            "prompt_tokens": self._prompt_tokens,
            "cached_prompt_tokens": stats.cached_prompt_tokens,
            "completion_tokens": len(self.tokens),
            "finish_reason": self.finish_reason,
            "model": str(self._engine.target.model.path),
            "draft": str(draft.model.path) if draft else None,
            "drafter": self._decoder.drafter.name,
            "schedule": self._decoder.schedule.as_dict(),
            "seed": self._decoder.seed,
            "lossless": self._decoder.rule.lossless,
            "stats": stats.as_dict(),
        }
        if self._logprobs is not None:
            result["logprobs"] = self._logprobs
        return result

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
        elif stats.rounds and decoder.drafter.name != "none":
            lines.append(f"{decoder.drafter.name} drafter: no draft was expected to pay, so there was none")
        parts = ", ".join(f"{part} {value:.2f}" for part, value in seconds.items())
        lines.append(f"seconds: {parts}; {self._prompt_tokens} prompt tokens; seed {decoder.seed}")
        if not decoder.rule.lossless:
            lines.append(f"LOSSY: {decoder.rule.name} acceptance; this is not the target's own distribution")
        if self.finish_reason == "context":
            lines.append(f"the context of {decoder.target.n_ctx} tokens is full; -c makes it larger")
        return lines

    def _described(self, step: Step) -> list[dict[str, object]]:
        return [described(self._engine.target.model.vocab, one) for one in step.logprobs]


def described(vocab: Vocabulary, one: TokenLogprobs) -> dict[str, object]:
    """A token's log-probability and those of the likeliest at its place."""
    top = [_token(vocab, token, logprob) for token, logprob in one.top]
    return {**_token(vocab, one.token, one.logprob), "top": top}


def _token(vocab: Vocabulary, token: int, logprob: float) -> dict[str, object]:
    piece = vocab.piece(token)
    # A control token stands for no bytes of the text, but it has a name.
    text = piece.decode("utf-8", "replace") if piece else vocab.control_text(token)
    return {
        "token": token,
        "text": text,
        "bytes": list(piece),
        "logprob": round(max(logprob, LOWEST), 6),
    }
