"""Token bytes become text that is never cut inside a character and never shows a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence


class TextStream:
    """Turns the bytes of one token after another into text that may be shown.

    Held back: the bytes of an unfinished UTF-8 character, and text that may be the start of a stop
    string. Bytes that are no UTF-8 become U+FFFD.
    stop: strings that end the text; none of them is ever part of it.
    """

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._stop = [s for s in stop if s]
        self._held = ""
        self.stopped = False

    def feed(self, piece: bytes) -> str:
        """The text that this token releases. After a stop string there is no more (``stopped``)."""
        return self._release(self._decoder.decode(piece))

    def finish(self) -> str:
        """What was held back, once no more tokens come."""
        text = self._release(self._decoder.decode(b"", final=True))
        text, self._held = text + self._held, ""
        return text

    def _release(self, text: str) -> str:
        if self.stopped:
            return ""
        self._held += text
        found = [at for s in self._stop if (at := self._held.find(s)) >= 0]
        if found:
            self.stopped = True
            shown, self._held = self._held[: min(found)], ""
            return shown
        keep = max((_overlap(self._held, s) for s in self._stop), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of ``text`` that ``stop`` begins with."""
    for n in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:n]):
            return n
    return 0
