"""What a row of logits means: llama.cpp's own sampler chain, turned into a Distribution."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import repeat

import numpy as np

from .backend import Candidates, Chain, Rows, Vocabulary
from .backend import chain as samplers
from .distribution import Distribution, Rng
from .errors import DecodeError, UsageError
from .grammar import Grammar, Logits, State
from .kernels import argmax, top
from .settings import SamplingParams
from .tokens import Tokens, common_prefix

NOTHING_LEFT = (
    "no token can follow here: the grammar and the biases together rule out every one, or the model's "
    "logits are broken"
)


class Sampler:
    """Turns rows of logits into the Distributions llama.cpp's chain would draw from.

    The same for target and drafter: each has its own, with its own random numbers (only XTC needs
    them). The chain's memory is derived from the history it is shown, never kept on trust.

    vocab: whose ids the rows are about. n_ctx: what a window of −1 (all of the context) means.
    grammar: comes before everything else; target and drafter share one.
    """

    def __init__(
        self,
        vocab: Vocabulary,
        params: SamplingParams,
        rng: Rng,
        n_ctx: int,
        grammar: Grammar | None = None,
    ) -> None:
        self.params = params
        self.grammar = grammar
        self._rng = rng
        self._bias = _bias(vocab, params)
        self._scratch = Candidates()
        active = params.active
        self._chain = _build(vocab, params, active, self._bias, n_ctx)
        # A chain without XTC stands by for the positions where its coin says no.
        self._spared: Chain | None = None
        if "xtc" in active and params.xtc_probability < 1.0:
            spared = tuple(name for name in active if name != "xtc")
            self._spared = _build(vocab, params, spared, self._bias, n_ctx)
        self._chains = [chain for chain in (self._chain, self._spared) if chain is not None]
        self._seen = np.empty(0, np.int32)
        self._all_ids = np.arange(vocab.size, dtype=np.int32)
        self._always_touched = np.array(sorted(self._bias), np.int32)
        self.greedy = params.temperature <= 0.0 and "temperature" in active
        moves_the_maximum = {"penalties", "dry", "typ_p", "xtc"}.intersection(active) or self._bias
        self._argmax_decides = self.greedy and not moves_the_maximum and grammar is None
        self._short_list = _short_list(params, active)

    def distributions(self, rows: Rows, history: Tokens, draft: Sequence[int]) -> list[Distribution]:
        """What would be drawn at the last positions of history + draft.

        rows: float32 [n, vocab], n ≤ len(draft) + 1; the last row follows history + draft, the one
        before it history + draft[:-1], and so on: k + 1 rows to verify a draft of k, one to extend it.
        history: int32 [m]. A row may be shorter than the vocabulary: ids past its end do not exist.
        Ends early after a position where the drafted token cannot be drawn: it will be rejected, and rows
        that nobody asks for are not even read.
        """
        first = len(draft) + 1 - len(rows)
        found: list[Distribution] = []
        for at, follow in enumerate(self._positions(history, draft), start=-first):
            if at < 0:
                continue
            found.append(follow(rows[at]))
            if at + first < len(draft) and found[-1].prob(draft[at + first]) == 0.0:
                break
        return found

    def _positions(self, history: Tokens, draft: Sequence[int]) -> Iterator[Callable[[Rows], Distribution]]:
        """For each position from after history to after the draft: how its row becomes a Distribution."""
        if self._argmax_decides:
            yield from repeat(_at_argmax, len(draft) + 1)
            return
        state = self.grammar.after(history) if self.grammar else None
        clones = {chain: chain for chain in self._chains}
        text = history
        if self.params.remembers:
            self._follow(history)
            clones = {chain: chain.clone() for chain in self._chains}
            text = np.concatenate([history, np.asarray(draft, np.int32)])
        for i in range(len(draft) + 1):
            touched = self._touched(text[: len(history) + i])
            yield partial(self._through, clones[self._toss()], touched, state)
            if i < len(draft):
                self._go_on(draft[i], clones, state)

    def _go_on(self, token: int, clones: dict[Chain, Chain], state: State | None) -> None:
        if state:
            state.accept(token)
        for clone in clones.values() if self.params.remembers else ():
            clone.accept(token)

    def _toss(self) -> Chain:
        if self._spared is None or self._rng.random() < self.params.xtc_probability:
            return self._chain
        return self._spared

    def _follow(self, history: Tokens) -> None:
        """Brings the chains' memory to the history: what they saw is compared, not assumed."""
        known = common_prefix(self._seen, history)
        if known < len(self._seen):
            known = 0
            for chain in self._chains:
                chain.reset()
        for token in history[known:].tolist():
            for chain in self._chains:
                chain.accept(token)
        self._seen = history.copy()

    def _touched(self, text: Tokens) -> Tokens:
        if not self.params.remembers:
            return self._always_touched
        window = self.params.window
        recent = text if window < 0 else text[max(0, len(text) - window) :]
        return np.union1d(self._always_touched, recent).astype(np.int32, copy=False)

    def _through(self, chain: Chain, touched: Tokens, state: State | None, row: Rows) -> Distribution:
        ids, logits = self._candidates(row, touched[touched < len(row)], state)
        if len(ids) == 0:  # llama.cpp's samplers end the process on no candidates
            raise DecodeError(NOTHING_LEFT)
        try:
            return Distribution.from_logits(*chain.apply(ids, logits, self._scratch))
        except ValueError as error:
            raise DecodeError(NOTHING_LEFT) from error

    def _candidates(self, row: Rows, touched: Tokens, state: State | None) -> tuple[Tokens, Logits]:
        """The entries of a row that can matter to the chain."""
        # A touched token may sink below k others, so k more than the touched ones are looked at.
        k = self._short_list + len(touched)
        if self._short_list and k < len(row):
            return state.top(row, k, touched) if state else top(row, k, touched)
        ids = state.all(len(row)) if state else self._all_ids[: len(row)]
        return ids, row[ids] if state else row


def _at_argmax(row: Rows) -> Distribution:
    return Distribution.point(int(argmax(row[None, :])[0]))


def _short_list(params: SamplingParams, active: tuple[str, ...]) -> int:
    """How many untouched candidates can matter: the top-k, when only element-wise samplers come before it."""
    if "top_k" not in active:
        return 1 if params.temperature <= 0.0 and active[:1] == ("temperature",) else 0
    before = active[: active.index("top_k")]
    return params.top_k if {"penalties", "dry", "temperature"}.issuperset(before) else 0


def _bias(vocab: Vocabulary, params: SamplingParams) -> dict[int, float]:
    bias = dict(params.logit_bias)
    outside = [token for token in bias if not 0 <= token < vocab.size]
    if outside:
        raise UsageError(f"--logit-bias names token {outside[0]}, the vocabulary has {vocab.size}")
    bias.update(dict.fromkeys(vocab.suppressed_tokens(), -np.inf))
    if params.ignore_eos:
        bias.update(dict.fromkeys(vocab.eog_tokens, -np.inf))
    return bias


def _build(
    vocab: Vocabulary, params: SamplingParams, active: tuple[str, ...], bias: dict[int, float], n_ctx: int
) -> Chain:
    p = params
    # No text is longer than the context; llama.cpp would allocate, and clone, whatever it is told.
    repeat_n, dry_n = (n_ctx if n < 0 else min(n, n_ctx) for n in (p.repeat_last_n, p.dry_penalty_last_n))
    add: dict[str, Callable[[Chain], None]] = {
        "penalties": lambda c: samplers.add_penalties(
            c, vocab, repeat_n, p.repeat_penalty, p.frequency_penalty, p.presence_penalty
        ),
        "dry": lambda c: samplers.add_dry(
            c,
            vocab,
            p.dry_multiplier,
            p.dry_base,
            p.dry_allowed_length,
            dry_n,
            p.dry_sequence_breakers,
        ),
        "top_n_sigma": lambda c: samplers.add_top_n_sigma(c, p.top_n_sigma),
        "top_k": lambda c: samplers.add_top_k(c, p.top_k),
        "typ_p": lambda c: samplers.add_typical(c, p.typical_p),
        "top_p": lambda c: samplers.add_top_p(c, p.top_p),
        "min_p": lambda c: samplers.add_min_p(c, p.min_p),
        "xtc": lambda c: samplers.add_xtc(c, p.xtc_threshold),
        "temperature": lambda c: samplers.add_temperature(c, p.temperature),
    }
    chain = Chain()
    if bias:
        samplers.add_logit_bias(chain, vocab, bias)
    for name in active:
        add[name](chain)
    return chain
