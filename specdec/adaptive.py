"""The adaptive schedule: drafts as far as that pays, by measured costs and learnt acceptance.

With λ the seconds a token has cost lately, C(n) the target's pass over n rows and d the drafter's pass, a
draft of k tokens is worth λ·E[accepted] − k·d − (C(k+1) − C(1)) more than a plain step. C jumps from one row
to two and is flat afterwards, so looking one token ahead would never start: what is looked for is the best
length, and drafting goes on while that is better than stopping here.

What was drawn before a token decides on drawing it, never the token itself; that leaves the output exact:
the draft's length is a stopping time, the possible drafts are the leaves of a tree, and under both lossless
rules the chance that x₁..xᵢ stays depends on x₁..xᵢ alone, wherever the leaves below are (token rejection:
Πⱼ min(1, pⱼ/qⱼ); block verification: cᵢ, by induction from the leaves, where h = c: with children that stay
with chance c, their mean Σₓ min(q, cᵢ·p) is cᵢ − Sᵢ, and 1 − (1 − hᵢ)(1 − cᵢ + Sᵢ) = cᵢ). Cutting off a token
because of its own q is no such rule: of p = q = (0.9, 0.1) it would make (0.99, 0.01). What is certain once
the tokens before it are known, a point mass, may be cut. ``tests/test_acceptance.py`` sums over such trees.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from .drafters.draft import DraftBlock
from .experience import Experience
from .settings import LONGEST_DRAFT

LOG = logging.getLogger("specdec.schedule")

FIRST_PACE = 0.6  # seconds a token, plain being 1, until rounds have shown it
ROUNDS = 20.0  # how many rounds "lately" looks back on
SHARE = 0.01  # of plain decoding's time: what drafting may lose, besides what it has gained
CARRIED = 10.0  # plain tokens of earlier runs' gains that a run may lose
PROBING = 0.1  # the share of plain decoding spent on trying a drafter again that did not pay


class AdaptiveSchedule:
    """Drafts as far as it pays, and not at all where it does not.

    experience: costs and acceptance, what is known of them so far; it is learnt into.
    longest: the ceiling of the draft length. draft_min: shorter drafts are not verified.
    clock: gives seconds; the drafters' passes are timed with it.
    """

    name = "adaptive"

    def __init__(
        self,
        experience: Experience,
        *,
        longest: int = LONGEST_DRAFT,
        draft_min: int = 0,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.experience = experience
        self.draft_min = draft_min
        self.clock = clock
        experience.balance = min(experience.balance, CARRIED)
        self.emitted = 0
        self.forgone: dict[str, float] = {}  # what a drafter that is out of step would have gained meanwhile
        self.wrong_at: dict[str, int] = {}  # tokens emitted when a drafter's guess last was wrong
        self._longest = longest
        self._seconds = FIRST_PACE * ROUNDS * experience.target(1)
        self._tokens = ROUNDS

    @property
    def longest(self) -> int:
        return self._longest

    def round(self, length: int, room: int) -> AdaptiveRound:
        return AdaptiveRound(self, length, min(self._longest, room - 1, self.experience.target.reach - 1))

    def plain_seconds(self, length: int) -> float:
        return self.experience.target(1, length)

    def token_value(self, length: int) -> float:
        """Seconds a token costs lately: what an accepted one saves. Never more than a plain step."""
        return min(self._seconds / self._tokens, self.plain_seconds(length))

    def stake(self, length: int) -> float:
        """Seconds that may be lost now."""
        return max(0.0, self.experience.balance) * self.plain_seconds(length)

    def settle(self, length: int, tokens: int, seconds: float) -> None:
        """A round emitted so many tokens in so many seconds."""
        self.emitted += tokens
        self.experience.balance += tokens * (1.0 + SHARE) - seconds / self.plain_seconds(length)
        fade = 1.0 - 1.0 / ROUNDS
        self._tokens = fade * self._tokens + tokens
        self._seconds = fade * self._seconds + seconds

    def as_dict(self) -> dict[str, object]:
        return {"name": self.name, "longest": self._longest, **self.experience.as_dict()}


class AdaptiveRound:
    """One round of it: what is drafted, what that costs, and what comes of it."""

    def __init__(self, schedule: AdaptiveSchedule, length: int, limit: int) -> None:
        self.limit = limit
        self._schedule = schedule
        self._experience = schedule.experience
        self._length = length
        self._token = schedule.token_value(length)
        self._stake = schedule.stake(length)
        self._floor = 0.0  # what a draft has to be worth more than,
        self._rival = 0  # and the tokens of the draft that is worth that
        self._alive = 1.0  # the chance that all of the model's draft so far is accepted
        self._spent = 0.0
        self._reading: tuple[str, int, float] | None = None  # the drafter's pass that is under way
        self._costs = self._experience.target.drafts(max(limit, 0), length)  # seconds, by draft length
        self._shown: list[DraftBlock] = []
        self._verified = 0

    def goes_on(self, source: str, sure: Sequence[float], unread: int = 1) -> bool:
        self._finish_pass()
        k = len(sure)
        if k >= self.limit:
            return False
        if k == 0:
            goes = self._starts(source, unread)
        else:
            self._alive *= self._experience.acceptance(source).chance(sure[-1])
            goes = k < self._schedule.draft_min or self._pays(source, k)
        if goes:
            self._reading = (source, unread, self._schedule.clock())
        return goes

    def could_pay(self, source: str) -> bool:
        return self.ahead(source, 0, 1.0, 1.0) > 0.0

    def considers(self, sure: float) -> bool:
        return True

    def worth(self, draft: DraftBlock) -> float:
        self._shown.append(draft)
        return self._best_cut(draft)[1]

    def beyond(self, draft: DraftBlock) -> AdaptiveRound:
        self._rival, self._floor = self._best_cut(draft)
        return self

    def cut(self, draft: DraftBlock) -> DraftBlock:
        self._finish_pass()
        draft = draft.first(min(len(draft), max(self.limit, 0)))
        if all(draft is not other for other in self._shown):
            self._shown.append(draft)
        kept = draft.first(self._best_cut(draft)[0])
        self._verified = len(kept)
        return kept

    def learn(self, tokens: Sequence[int], accepted: int, seconds: float) -> None:
        experience, length = self._experience, self._length
        experience.target.note(self._verified + 1, length, seconds)
        LOG.debug(
            "draft of %d, %d accepted; a token is worth %.1f ms, %.1f tokens gained",
            self._verified, accepted, 1e3 * self._token, self._experience.balance,
        )  # fmt: skip
        for draft in self._shown:
            self._compare(draft, tokens, accepted)
        spent = self._spent + _fair(seconds, self._costs[self._verified])
        self._schedule.settle(length, len(tokens), spent)

    def _compare(self, draft: DraftBlock, tokens: Sequence[int], accepted: int) -> None:
        """Learns from each guess up to the first that was wrong, where that is known."""
        acceptance = self._experience.acceptance(draft.source)
        if draft.drawn:
            right = [i < accepted for i in range(min(accepted + 1, self._verified))]
        else:  # a guess that is certain can be compared even where it was not verified
            right = [guess == token for guess, token in zip(draft.tokens, tokens, strict=False)]
        for sure, kept in zip(draft.sure, right, strict=False):
            acceptance.learn(sure, kept)
            if not kept:
                self._schedule.wrong_at[draft.source] = self._schedule.emitted
                break

    def ahead(self, source: str, k: int, alive: float, usual: float) -> float:
        """What going on from k tokens is worth at best, in seconds more than stopping here."""
        cost = self._experience.drafter(source)(1, self._length)
        gain = 0.0
        best = here = -self._costs[k]
        for n in range(k + 1, self.limit + 1):
            alive *= usual
            gain += self._token * alive - cost
            best = max(best, gain - self._costs[n])
        return best - here

    def _pays(self, source: str, k: int) -> bool:
        cost = self._spent + self._experience.drafter(source)(1, self._length)
        if cost + self._costs[k + 1] - self._costs[0] > self._stake:
            return False
        return self.ahead(source, k, self._alive, self._experience.acceptance(source).usual) > 0.0

    def _starts(self, source: str, unread: int) -> bool:
        schedule = self._schedule
        curve = self._experience.drafter(source)
        catch_up = curve(unread, self._length) - curve(1, self._length)
        gain = self.ahead(source, 0, 1.0, self._experience.acceptance(source).usual) - self._floor
        if self._rival:  # its tokens are not free: this drafter has to read them before it next drafts
            gain += curve(self._rival + 1, self._length) - curve(1, self._length)
        loss = catch_up + curve(1, self._length) + self._costs[1] - self._costs[0]
        # Catching up pays off over the rounds that follow; how many, nobody knows. It is done once the gains
        # that were let go make up for it: never twice as dear as knowing would have been.
        forgone = schedule.forgone[source] = schedule.forgone.get(source, 0.0) + max(gain, 0.0)
        waited = (schedule.emitted - schedule.wrong_at.get(source, 0)) * self._costs[0]
        pays = gain > 0.0 and forgone >= catch_up
        probes = self._floor == 0.0 and loss <= PROBING * waited and self.ahead(source, 0, 1.0, 1.0) > 0.0
        starts = loss <= self._stake and (pays or probes)
        if starts:
            schedule.forgone[source] = 0.0
        return starts

    def _finish_pass(self) -> None:
        """The drafter's pass, if one was under way, is over: what it took is learnt."""
        if self._reading is None:
            return
        source, n, began = self._reading
        self._reading = None
        curve = self._experience.drafter(source)
        seconds = self._schedule.clock() - began
        curve.note(n, self._length, seconds)
        self._spent += _fair(seconds, curve(n, self._length))

    def _best_cut(self, draft: DraftBlock) -> tuple[int, float]:
        """Where the draft's value peaks, and what it is there. Tokens that were drawn stay."""
        acceptance = self._experience.acceptance(draft.source)
        best, peak = draft.drawn, 0.0 if draft.drawn == 0 else float("-inf")
        alive, gain = 1.0, 0.0
        for k, sure in enumerate(draft.sure, start=1):
            alive *= acceptance.chance(sure)
            gain += self._token * alive
            extra = self._costs[k] - self._costs[0]
            if k < max(draft.drawn, self._schedule.draft_min) or (k > draft.drawn and extra > self._stake):
                continue
            if gain - extra > peak:
                best, peak = k, gain - extra
        return best, peak


def _fair(seconds: float, expected: float) -> float:
    """What a pass is charged with: its time, but a pass that was held up is not the drafter's fault."""
    return min(seconds, 1.5 * expected)
