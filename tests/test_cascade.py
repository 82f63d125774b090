"""Several drafters in turn: which of them is heard, and that the output stays the target's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from specdec.adaptive import AdaptiveSchedule
from specdec.distribution import Distribution
from specdec.drafters import CascadeDrafter, DraftBlock
from specdec.experience import Experience
from specdec.schedule import FixedRound, Horizon
from specdec.tokens import Tokens

HISTORY = np.array([1, 2, 3], np.int32)


class Free:
    """Offers the same each time."""

    def __init__(self, name: str, tokens: Sequence[int], sure: float = 0.5) -> None:
        self.name, self.tokens, self.sure = name, tuple(tokens), sure
        self.read_texts: list[int] = []

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        tokens = self.tokens[: max(horizon.limit, 0)]
        return DraftBlock(tokens, source=self.name, sure=[self.sure] * len(tokens))

    def reset(self) -> None:
        self.tokens = ()


class Costly(Free):
    """Asks before each token, and draws from several."""

    asked = 0
    prompt_threads = 2

    def propose(self, history: Tokens, horizon: Horizon) -> DraftBlock:
        n = 0
        while horizon.goes_on(self.name, [self.sure] * n) and n < len(self.tokens):
            n += 1
        self.asked = n
        q = [Distribution(np.array([t, t + 1], np.int32), np.array([0.5, 0.5])) for t in self.tokens[:n]]
        return DraftBlock(self.tokens[:n], q, self.name, [self.sure] * n)

    def read(self, text: Tokens, horizon: Horizon) -> None:
        self.read_texts = text.tolist()


def test_at_a_fixed_length_the_first_that_has_anything_is_heard() -> None:
    for first, second, source in (([7], [8, 9], "a"), ([], [8, 9], "b"), ([], [], "a,b,model")):
        model = Costly("model", [])
        draft = CascadeDrafter([Free("a", first), Free("b", second), model]).propose(HISTORY, FixedRound(4))
        assert draft.source == source
        assert draft.tokens == tuple(first or second)
    model = Costly("model", [5, 6, 7])
    assert CascadeDrafter([Free("a", []), model]).propose(HISTORY, FixedRound(2)).tokens == (5, 6)
    assert CascadeDrafter([Free("a", [3]), model]).propose(HISTORY, FixedRound(2)).tokens == (3,)
    assert model.asked == 0
    # Below --draft-min there is nothing worth offering.
    assert CascadeDrafter([Free("a", [3]), model]).propose(HISTORY, FixedRound(3, 2)).tokens == (5, 6, 7)


def adaptive(model: float, free: float) -> AdaptiveSchedule:
    """A schedule whose target takes 0.1 s a pass, its model 0.01 s; acceptance as given."""
    experience = Experience(0.1, {"model": 0.01})
    for name, rate in (("model", model), ("free", free), ("other", 0.9)):
        for i in range(300):
            experience.acceptance(name).learn(0.8, i % 100 < 100 * rate)
    experience.balance = 100.0
    return AdaptiveSchedule(experience)


def test_adaptively_the_draft_that_is_worth_most_is_heard() -> None:
    sources = {}
    for model, free in ((0.95, 0.2), (0.3, 0.95), (0.95, 0.97)):
        cascade = CascadeDrafter([Free("free", [4] * 8, 0.8), Costly("model", [5] * 24, 0.8)])
        sources[model, free] = cascade.propose(HISTORY, adaptive(model, free).round(100, 100)).source
    assert sources == {(0.95, 0.2): "model", (0.3, 0.95): "free", (0.95, 0.97): "free"}


def test_of_free_drafts_the_better_one_is_heard_and_all_are_learnt_from() -> None:
    schedule = adaptive(0.0, 0.2)
    before = schedule.experience.acceptance("free").chance(0.8)
    cascade = CascadeDrafter([Free("free", [4] * 8, 0.8), Free("other", [6] * 8, 0.8)])
    horizon = schedule.round(100, 100)
    draft = horizon.cut(cascade.propose(HISTORY, horizon))
    assert draft.source == "other"
    horizon.learn([4], 0, 0.2)
    assert schedule.experience.acceptance("free").chance(0.8) > before


def test_a_cascade_is_named_read_and_reset_as_one() -> None:
    free, model = Free("free", [4]), Costly("model", [5])
    cascade = CascadeDrafter([free, model])
    assert cascade.name == "free,model"
    assert cascade.prompt_threads == 2
    assert CascadeDrafter([free]).prompt_threads == 0
    cascade.read(HISTORY, FixedRound(4))
    assert (free.read_texts, model.read_texts) == ([], [1, 2, 3])
    cascade.reset()
    assert free.tokens == model.tokens == ()
