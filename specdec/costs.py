"""What a pass costs on this machine, learnt from the passes of the run."""

from __future__ import annotations

import bisect
import math
from collections import deque
from collections.abc import Mapping, Sequence

KNOTS = (1, 2, 4, 8, 16, 32, 64)
# What a pass of so many tokens usually costs, a pass of one being 1 (16-bit weights on a CPU); it is only
# believed until passes of about that size have been timed.
USUAL = (1.0, 1.3, 1.6, 2.0, 2.7, 4.6, 9.0)
SMALL = (1.0, 1.75, 2.75, 4.75, 8.5, 16.0, 31.0)  # the same of a small model in 4 bits, bound by arithmetic
WINDOW = 11  # timings that count at each knot; older ones are forgotten
FIRST_REACH = 4  # tokens of a pass that is tried before any was timed
PACE_GAIN = 0.25  # how much of a deviation changes the pace
REMEMBERED = 3  # how many timings a remembered one stands for


class Pace:
    """How slow the machine is at present, compared with how it was when it was timed.

    Shared by the curves of a run: when everything takes twice as long for a while, passes of a size that
    nobody tries meanwhile would too.
    """

    def __init__(self) -> None:
        self.factor = 1.0

    def note(self, ratio: float) -> None:
        """A pass took ``ratio`` times as long as was expected at this pace."""
        self.factor *= min(max(ratio, 0.5), 2.0) ** PACE_GAIN


class CostCurve:
    """Seconds of a forward pass, by the tokens it reads and the length of the text it continues.

    Timings are gathered at a few batch sizes (knots) and for each doubling of the text's length. A knot's
    figure is the lower median of its recent timings and of what was believed before, so a pass that a busy
    machine held up changes nothing. Between knots the curve is linear, and it never falls.

    single: seconds of a pass of one token, as timed before the first text. pace: the machine's. shape: what
    passes at the knots cost, that of one token being 1, as far as nobody knows better.
    """

    def __init__(self, single: float, pace: Pace, shape: Sequence[float] = USUAL) -> None:
        self._shape = shape
        self._single = single
        self._pace = pace
        self._timings: dict[tuple[int, int], deque[float]] = {}
        self._tables: dict[int, list[float]] = {}

    def __call__(self, n: int, length: int = 0) -> float:
        """Seconds of a pass of n ≥ 1 tokens after a text of ``length`` tokens."""
        table = self._table(_scale(length))
        seconds = table[n] if n < len(table) else table[-1] * n / (len(table) - 1)
        return seconds * self._pace.factor

    def drafts(self, longest: int, length: int) -> list[float]:
        """Seconds of the passes over drafts of 0, 1, 2, … tokens, each with the token before it."""
        return [self._pace.factor * seconds for seconds in self._table(_scale(length))[1 : longest + 2]]

    def note(self, n: int, length: int, seconds: float) -> None:
        """A pass of n tokens after a text of ``length`` tokens took so long."""
        seconds = max(seconds, 1e-9)  # of a clock that ticks coarsely
        knot = _nearest(n)
        scale = _scale(length)
        known = self._at(scale, knot) if (scale, knot) in self._timings else None
        timings = self._timings.setdefault((scale, knot), deque(maxlen=WINDOW))
        if len(timings) >= REMEMBERED:
            self._pace.note(seconds / self(n, length))
        timings.append(seconds / self._pace.factor * self._shape[knot] / _between(self._shape, n))
        if self._at(scale, knot) != known:
            self._tables.clear()

    @property
    def reach(self) -> int:
        """The largest pass whose cost can be foretold: twice what was timed twice. A target that is bound by
        arithmetic takes three times what is usual for 16 tokens, which is better not found out by 16."""
        timed = [knot for (_, knot), timings in self._timings.items() if len(timings) >= 2]
        return max(FIRST_REACH, 2 * KNOTS[max(timed, default=0)])

    @property
    def timed(self) -> bool:
        """Whether any pass was timed."""
        return bool(self._timings)

    def remember(self) -> dict[str, float]:
        """The curve as plain data for :meth:`recall`: seconds by "scale:knot"."""
        return {
            f"{scale}:{KNOTS[knot]}": _lower_median(timings) * self._pace.factor
            for (scale, knot), timings in sorted(self._timings.items())
        }

    def recall(self, remembered: Mapping[str, float]) -> None:
        """Takes up what :meth:`remember` gave. Raises ValueError for anything else."""
        for name, seconds in remembered.items():
            scale, knot = (int(part) for part in name.split(":"))
            if not (0 <= scale < 64 and 0.0 < seconds < math.inf):
                raise ValueError(f"no pass takes {seconds} s")
            timings = [float(seconds)] * REMEMBERED
            self._timings[scale, KNOTS.index(knot)] = deque(timings, maxlen=WINDOW)
        self._tables.clear()

    def _table(self, scale: int) -> list[float]:
        """Seconds by tokens, from 0 on, up to the largest knot; made when it is asked for after a change."""
        if scale not in self._tables:
            self._tables[scale] = self._made(scale)
        return self._tables[scale]

    def _made(self, scale: int) -> list[float]:
        known: dict[int, float] = {}
        for knot in range(len(KNOTS)):
            seconds = self._at(scale, knot)
            if seconds is not None:
                known[knot] = seconds
        at_knots = _without_falls(_filled(known, self._shape))
        table = [0.0]
        for left, right, low, high in zip(KNOTS, KNOTS[1:], at_knots, at_knots[1:], strict=False):
            table += [low + (high - low) * i / (right - left) for i in range(right - left)]
        return [*table, at_knots[-1]]

    def _at(self, scale: int, knot: int) -> float | None:
        """Seconds at a knot: of this scale, or of the nearest that was timed; None where none was."""
        scales = [s for s, k in self._timings if k == knot]
        if not scales:
            return self._single if knot == 0 else None
        nearest = min(scales, key=lambda s: (abs(s - scale), s))
        # What was believed before the first timing counts as one: alone, a long timing proves nothing.
        shorter = [s for s in scales if s < nearest]
        believed = self._at(max(shorter), knot) if shorter else self._single * self._shape[knot]
        assert believed is not None  # there are timings of the shorter scale
        return _lower_median([*self._timings[nearest, knot], believed])


def _filled(known: Mapping[int, float], shape: Sequence[float]) -> list[float]:
    """A figure for each knot: between those that are known the shape is bent, past the last kept."""
    bends = {knot: math.log(seconds / shape[knot]) for knot, seconds in known.items()}
    knots = sorted(bends)
    filled: list[float] = []
    for knot in range(len(KNOTS)):
        right = bisect.bisect_left(knots, knot)
        if right == len(knots):
            bend = bends[knots[-1]]
        elif knots[right] == knot or right == 0:
            bend = bends[knots[right]]
        else:
            a, b = knots[right - 1], knots[right]
            bend = bends[a] + (bends[b] - bends[a]) * (knot - a) / (b - a)
        filled.append(shape[knot] * math.exp(bend))
    return filled


def _without_falls(seconds: Sequence[float]) -> list[float]:
    """The same, where no larger pass is cheaper: the figures of a fall are averaged."""
    levels: list[list[float]] = []
    for value in seconds:
        level = [value]
        while levels and _mean(levels[-1]) > _mean(level):
            level = levels.pop() + level
        levels.append(level)
    return [_mean(level) for level in levels for _ in level]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _lower_median(values: Sequence[float] | deque[float]) -> float:
    return sorted(values)[(len(values) - 1) // 2]


def _scale(length: int) -> int:
    """0 for texts below 1024 tokens, and one more for each doubling."""
    return (length >> 10).bit_length()


def _nearest(n: int) -> int:
    """The knot that is nearest to n, in proportion."""
    right = bisect.bisect_left(KNOTS, n)
    if right == len(KNOTS):
        return right - 1
    if right == 0 or KNOTS[right] / n <= n / KNOTS[right - 1]:
        return right
    return right - 1


def _between(shape: Sequence[float], n: int) -> float:
    """The cost of n tokens by a shape, a pass of one being 1."""
    right = bisect.bisect_left(KNOTS, n)
    if right == len(KNOTS):
        return shape[-1] * n / KNOTS[-1]
    if KNOTS[right] == n:
        return shape[right]
    a, b = KNOTS[right - 1], KNOTS[right]
    return shape[right - 1] + (shape[right] - shape[right - 1]) * (n - a) / (b - a)
