"""The runs of a benchmark: every way of decoding on one prompt, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from specdec.errors import SpecdecError, UsageError
from specdec.prompts import BenchPrompt

from .bench_peer import Asked, Rival
from .bench_plan import Configuration
from .bench_timed import Details, Timed, Trial

if TYPE_CHECKING:
    from specdec import Engine
    from specdec.tokens import Tokens

WARM_UP = 4  # tokens that nobody counts


class Race:
    """Runs trials on a loaded pair. Nothing of what a run takes to load or to read its prompt is counted.

    draft: the drafter's file. n: tokens for each prompt. seed: the first trial's; each has its own, the same
    for all ways of decoding. trouble: told when a rival fails in the middle, which is no reason to stop.
    Raises UsageError for a prompt that the context cannot hold.
    """

    def __init__(
        self,
        engine: Engine,
        draft: Path | None,
        entrants: Sequence[Configuration | Rival],
        prompts: Sequence[BenchPrompt],
        n: int,
        seed: int,
        trouble: Callable[[str], None],
    ) -> None:
        self.trials: list[Trial] = []
        self._engine = engine
        self._draft = draft
        self._entrants = entrants
        self._n = n
        self._seed = seed
        self._trouble = trouble
        if engine.draft is not None:  # however often it is loaded again, it runs alike
            engine.loading = replace(engine.loading, threads_draft=engine.draft.threads)
        texts = [(prompt.kind, engine.question(prompt.text)) for prompt in prompts]
        self._prompts = [(kind, text, engine.tokenize(text)) for kind, text in texts]
        n_ctx = engine.target.n_ctx
        for i, (kind, _, tokens) in enumerate(self._prompts, 1):
            if len(tokens) + n > n_ctx:
                raise UsageError(
                    f"prompt {i} ({kind}) has {len(tokens)} tokens, and with -n {n} they do not fit a "
                    f"context of {n_ctx}: raise -c"
                )

    def warm_up(self, progress: Callable[[float], None]) -> None:
        """A few tokens by each of them. Raises what a configuration or a rival cannot do.

        progress: told the share that is done, 0 to 1.
        """
        _, text, tokens = self._prompts[0]
        for i, entrant in enumerate(self._entrants):
            progress(i / len(self._entrants))
            self._run(entrant, text, tokens, min(self._n, WARM_UP), self._seed)

    def run(self, number: int, progress: Callable[[float], None]) -> None:
        """The next trial, of the prompt whose turn it is; ``trials`` has it at once, whatever happens."""
        i = number % len(self._prompts)
        kind, text, tokens = self._prompts[i]
        trial = Trial(number, i, kind, len(tokens))
        self.trials.append(trial)
        first = number % len(self._entrants)  # nobody is always the first, or always after the same pause
        for done, entrant in enumerate((*self._entrants[first:], *self._entrants[:first])):
            progress(done / len(self._entrants))
            try:
                trial.runs[entrant.name] = self._run(entrant, text, tokens, self._n, self._seed + number)
            except SpecdecError as error:
                if isinstance(entrant, Configuration):
                    raise
                self._trouble(f"{error}; left out of prompt {i + 1}")

    def _run(self, entrant: Configuration | Rival, text: str, tokens: Tokens, n: int, seed: int) -> Timed:
        if isinstance(entrant, Configuration):
            return self._own(entrant, tokens, n, seed)
        return entrant.run(Asked(text, tuple(map(int, tokens)), n, entrant.temperature, seed))

    def _own(self, configuration: Configuration, prompt: Tokens, n: int, seed: int) -> Timed:
        engine = self._engine
        engine.redraft(configuration.drafting(), self._draft)
        decoder = engine.decoder(configuration.sampling(), seed)
        engine.target.hold(prompt[:-1])
        if engine.draft is not None and len(prompt) <= engine.draft.n_ctx:
            engine.draft.hold(prompt[:-1])
        tokens: list[int] = []
        rounds, passes = [], []
        drafter_before, before = _decoding(engine)
        drafter = drafter_before
        for step in decoder.generate(prompt, n):
            drafter, now = _decoding(engine)
            tokens += step.tokens
            rounds.append((step.drafted, step.accepted))
            passes.append(now - before)
            before = now
        stats = decoder.stats
        details = Details(stats, rounds, passes, drafter - drafter_before)
        return Timed(
            stats.emitted, stats.decoding_seconds, stats.drafted, stats.accepted, tuple(tokens), details
        )


def _decoding(engine: Engine) -> tuple[float, float]:
    """Seconds inside llama_decode so far: the drafter's and the target's."""
    return 0.0 if engine.draft is None else engine.draft.decode_seconds, engine.target.decode_seconds
