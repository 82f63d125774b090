"""The speculative loop: draft, verify in one pass, keep what the target agrees to, roll back the rest."""

from __future__ import annotations

import operator
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from .acceptance import Rule, accept
from .backend import Context, FeedProgress
from .distribution import Rng
from .drafters import Drafter, NoDrafter
from .drafters.model import irreversible
from .errors import UsageError
from .logprobs import TokenLogprobs, token_logprobs
from .prefill import prefill
from .sampling import Sampler
from .schedule import Schedule
from .stats import Stats
from .text import TextStream
from .tokens import Tokens

FinishReason = Literal["stop", "length", "context", "interrupted"]
MakeRoom = Callable[[Tokens], Tokens | None]


@dataclass(frozen=True)
class Step:
    """What one round emitted.

    tokens: the ids, those of the draft first. pieces: the text each token releases, '' where a
    character or a possible stop string is still unfinished. tail: text released because the
    generation ended. accepted: how many of the tokens came from the draft; drafted: its length.
    source: the drafter's name. finish_reason: set on the last step. logprobs: one for each token, when
    they were asked for.
    """

    tokens: tuple[int, ...]
    pieces: tuple[str, ...]
    accepted: int
    drafted: int
    source: str
    tail: str = ""
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def texts(self) -> Iterator[tuple[str, bool]]:
        """The text this step releases, piece by piece, and whether each was drafted."""
        yield from ((piece, i < self.accepted) for i, piece in enumerate(self.pieces))
        yield self.tail, False

    @property
    def text(self) -> str:
        """All the text this step releases."""
        return "".join(self.pieces) + self.tail


class Decoder:
    """Generates with a target, losslessly under a lossless rule, whatever the drafter proposes.

    target: the context that decides; it keeps what it read, so a next prompt with the same beginning
    is not read again. sampler: the target's. rng: the acceptance rule's random numbers.
    seed: what all of them were made from, where that is known.
    stats: totals of all generations until ``stats.reset()``.
    Raises UsageError for a target that cannot be rolled back, unless the drafter is ``NoDrafter``.
    """

    def __init__(
        self,
        target: Context,
        drafter: Drafter,
        sampler: Sampler,
        schedule: Schedule,
        rule: Rule,
        rng: Rng,
        *,
        seed: int | None = None,
    ) -> None:
        if not isinstance(drafter, NoDrafter):
            if not target.rollback_strategy.can_roll_back:
                raise UsageError(irreversible(target, "target"))
            if schedule.longest + 1 > target.n_outputs:
                raise UsageError(
                    f"drafts of {schedule.longest} tokens need a target context with n_outputs of at "
                    f"least {schedule.longest + 1}, it has {target.n_outputs}"
                )
        self.target = target
        self.drafter = drafter
        self.schedule = schedule
        self.rule = rule
        self.seed = seed
        self.stats = Stats()
        self._sampler = sampler
        self._rng = rng

    def generate(
        self,
        prompt: Tokens | Sequence[int],
        max_tokens: int = -1,
        *,
        stop: Sequence[str] = (),
        logprobs: int = 0,
        progress: FeedProgress | None = None,
        make_room: MakeRoom | None = None,
    ) -> Iterator[Step]:
        """Continues the prompt, a Step a round; the last one has a finish_reason.

        prompt: token ids, at least one. max_tokens: at least 1, or -1 for no limit. stop: strings that
        end the text and are not part of it. logprobs: how many of the likeliest tokens each step tells, 0
        for none. progress: called with (read, in all) while the prompt is read. make_room: given all that
        the context holds when it is full, a shorter history to go on from, or None to end.
        Raises UsageError at once for a prompt that is empty or leaves the context no room, and for any
        other max_tokens.
        """
        n = self._checked(prompt)
        if operator.index(max_tokens) != -1 and max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, or -1 for no limit, got {max_tokens}")
        history = np.empty(self.target.n_ctx + self.schedule.longest + 1, np.int32)
        history[:n] = prompt
        return self._rounds(history, n, max_tokens, TextStream(stop), logprobs, progress, make_room)

    @property
    def speedup(self) -> float | None:
        """Estimated tokens per second over plain decoding's, None before the first token.

        What a plain step costs is the schedule's own figure, where it measures; else it is taken from the
        rounds without a draft; while there are few of them, from
        the passes of one token that were timed when the target's context was made, which cannot take
        longer than those of several, and from what a row costs this side of llama.cpp.
        """
        stats = self.stats
        if not stats.emitted:
            return None
        known = self.schedule.plain_seconds(len(self.target))
        if known is not None:
            plain = known
        elif stats.plain_rounds >= 3:
            plain = stats.plain_seconds / stats.plain_rounds
        else:
            own = (stats.seconds["sample"] + stats.seconds["other"]) / (stats.drafted + stats.rounds)
            plain = min(self.target.pass_seconds, stats.seconds["verify"] / stats.rounds) + own
        return plain * stats.tokens_per_second

    def _checked(self, prompt: Tokens | Sequence[int]) -> int:
        """The prompt's length. Raises UsageError for one that cannot be continued."""
        n, n_ctx, n_vocab = len(prompt), self.target.n_ctx, self.target.model.vocab.size
        if n == 0:
            raise UsageError("the prompt is empty: there is nothing to continue")
        if n >= n_ctx:
            raise UsageError(
                f"the prompt has {n} tokens and the context holds {n_ctx}: nothing more fits; "
                f"raise -c (the model was trained for {self.target.model.n_ctx_train})"
            )
        ids = np.asarray(prompt)
        if ids.ndim != 1 or ids.dtype.kind not in "iu":
            raise UsageError("the prompt must be a sequence of token ids, as Engine.tokenize gives")
        if ids.min() < 0 or ids.max() >= n_vocab:
            raise UsageError(f"the prompt has token ids outside the target's vocabulary of {n_vocab}")
        return n

    def _rounds(
        self,
        history: Tokens,
        n: int,
        max_tokens: int,
        text: TextStream,
        logprobs: int,
        progress: FeedProgress | None,
        make_room: MakeRoom | None,
    ) -> Iterator[Step]:
        n_ctx = self.target.n_ctx
        left = max_tokens if max_tokens >= 0 else sys.maxsize
        emitted = 0
        self._read(history[:n], n, progress)
        reason: FinishReason | None = None
        while reason is None:
            step = self._round(history[:n], min(n_ctx - n, left - emitted), text, logprobs)
            history[n : n + len(step.tokens)] = step.tokens
            n += len(step.tokens)
            emitted += len(step.tokens)
            reason = step.finish_reason or ("length" if emitted == left else None)
            if reason is None and n == n_ctx:
                shorter = make_room(history[:n]) if make_room else None
                if shorter is None:
                    reason = "context"
                else:
                    n = self._checked(shorter)
                    history[:n] = shorter
                    self._read(history[:n], n - emitted, progress)
            if reason is not None:
                step = replace(step, tail=text.finish(), finish_reason=reason)
            yield step

    def _read(self, history: Tokens, n_prompt: int, progress: FeedProgress | None) -> None:
        """Brings target and drafter to a history whose first n_prompt tokens were given, not generated."""
        began = time.perf_counter()
        if self._sampler.grammar:
            self._sampler.grammar.start = n_prompt
        horizon = self.schedule.round(len(history), self.target.n_ctx - len(history))
        try:
            held = prefill(self.target, self.drafter, history, horizon, progress)
            self.stats.cached_prompt_tokens += held
        finally:  # an interrupted one took time, too
            self.stats.seconds["prefill"] += time.perf_counter() - began

    def _round(self, history: Tokens, room: int, text: TextStream, logprobs: int) -> Step:
        """One draft and its verification."""
        clock = [time.perf_counter()]
        horizon = self.schedule.round(len(history), room)
        draft = horizon.cut(self.drafter.propose(history, horizon))
        x = draft.tokens
        clock.append(time.perf_counter())

        self.target.hold(history[:-1])
        rows = self.target.score(np.array([history[-1], *x], np.int32), sure=1)
        clock.append(time.perf_counter())

        p = self._sampler.distributions(rows, history, x)
        verdict = accept(self.rule, draft, p, self._rng)
        clock.append(time.perf_counter())

        follow = [*x[: verdict.accepted], verdict.token]
        tokens, pieces, ended = self._until_stop(follow, text)
        known = zip(rows, tokens, strict=False) if logprobs else ()
        likely = tuple(token_logprobs(row, token, logprobs) for row, token in known)
        kept = min(verdict.accepted, len(tokens))
        self.target.rollback(len(history) + kept)
        self.stats.count(drafted=len(x), accepted=kept, emitted=len(tokens), source=draft.source)
        clock.append(time.perf_counter())
        self.stats.time(clock, drafted=len(x))
        horizon.learn(follow, verdict.accepted, clock[-1] - clock[1])
        reason: FinishReason | None = "stop" if ended else None
        return Step(tokens, pieces, kept, len(x), draft.source, finish_reason=reason, logprobs=likely)

    def _until_stop(
        self, tokens: Sequence[int], text: TextStream
    ) -> tuple[tuple[int, ...], tuple[str, ...], bool]:
        """The stop policy: an end-of-generation token is not emitted; the token that completes a stop
        string is, and its text ends before the string."""
        vocab = self.target.model.vocab
        pieces: list[str] = []
        for token in tokens:
            if vocab.is_eog(token):
                return tuple(tokens[: len(pieces)]), tuple(pieces), True
            pieces.append(text.feed(vocab.piece(token)))
            if text.stopped:
                return tuple(tokens[: len(pieces)]), tuple(pieces), True
        return tuple(tokens), tuple(pieces), False
