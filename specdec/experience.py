"""What a pair of models has taught about itself on this machine: costs, and how guesses fare."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
from collections.abc import Mapping
from pathlib import Path

from . import partial
from .calibration import Calibration
from .costs import SMALL, CostCurve, Pace

VERSION = 1
FIRST_BALANCE = 3.0  # tokens of plain decoding that an untried pair may lose


class Experience:
    """Cost curves of the target and of drafters with passes of their own, and the acceptance of each drafter.

    target: seconds of the target's pass of one token, as timed before the first text.
    drafters: the same for each drafter that has a model.

    path: where they were written down by earlier runs, and :meth:`keep` writes them.
    balance: what drafting has gained over plain decoding, in tokens that plain decoding would have written
    meanwhile; a new pair is given a few on credit. No draft may lose more than that.
    """

    def __init__(
        self, target: float, drafters: Mapping[str, float] | None = None, path: Path | None = None
    ) -> None:
        self.path = path
        self._pace = Pace()
        self.target = CostCurve(target, self._pace)
        self._a_guess = target / 10
        self._drafters = {
            name: CostCurve(single, self._pace, SMALL) for name, single in (drafters or {}).items()
        }
        self._acceptance: dict[str, Calibration] = {}
        self.balance = FIRST_BALANCE
        if path is not None:
            self._load(path)

    def drafter(self, source: str) -> CostCurve:
        """What the passes of a drafter take."""
        if source not in self._drafters:
            self._drafters[source] = CostCurve(self._a_guess, self._pace, SMALL)
        return self._drafters[source]

    def acceptance(self, source: str) -> Calibration:
        """How often a drafter's guesses are accepted."""
        if source not in self._acceptance:
            self._acceptance[source] = Calibration()
        return self._acceptance[source]

    def as_dict(self) -> dict[str, object]:
        """Milliseconds of the target's pass by rows, and of a drafter's pass."""
        return {
            "target_ms": {str(n): round(1e3 * self.target(n), 2) for n in (1, 2, 4, 8, 16)},
            "drafter_ms": {name: round(1e3 * curve(1), 2) for name, curve in self._drafters.items()},
        }

    def keep(self) -> None:
        """Writes it to its path, whole or not at all; a directory that cannot be written to is no reason to
        fail. Where nothing was learnt there is nothing to write."""
        if self.path is None or not self.target.timed:
            return
        known = {
            "version": VERSION,
            "balance": round(self.balance, 3),
            "target": self.target.remember(),
            "drafters": {name: curve.remember() for name, curve in self._drafters.items()},
            "acceptance": {name: known.remember() for name, known in self._acceptance.items()},
        }
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial.sweep(self.path)
            with partial.writing(self.path) as draft:
                draft.write_text(json.dumps(known), "utf-8")
                draft.replace(self.path)

    def _load(self, path: Path) -> None:
        """Takes up what is written there; a file that is missing, broken or outdated says nothing."""
        fresh = Experience(self.target(1), {name: curve(1) for name, curve in self._drafters.items()})
        try:
            fresh._recall(json.loads(path.read_text("utf-8")))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return
        vars(self).update({**vars(fresh), "path": path})

    def _recall(self, known: Mapping[str, object]) -> None:
        if known["version"] != VERSION:
            raise ValueError(f"version {known['version']}")
        self.balance = float(known["balance"])  # type: ignore[arg-type]  # a TypeError says nothing, too
        self.target.recall(known["target"])  # type: ignore[arg-type]
        for name, curve in known["drafters"].items():  # type: ignore[attr-defined]
            self.drafter(name).recall(curve)
        for name, acceptance in known["acceptance"].items():  # type: ignore[attr-defined]
            self.acceptance(name).recall(acceptance)


def place(directory: Path, *what: object) -> Path:
    """Where the experience of a pair is kept: ``what`` says which models, and how they are run."""
    machine = (platform.machine(), platform.processor(), platform.node(), os.cpu_count())
    name = hashlib.sha256(repr((machine, what)).encode()).hexdigest()[:24]
    return directory / "experience" / f"{name}.json"
