"""A terminal's screen, as a test sees it."""

from __future__ import annotations

import unicodedata

import pyte
from wcwidth import wcwidth


class Screen(pyte.Screen):
    """pyte's screen with a history, and with what real terminals do and it does not.

    `keeps_wrap` says whether a restored cursor keeps its pending wrap: xterm's does, tmux's does not.
    """

    def __init__(self, columns: int, lines: int, *, keeps_wrap: bool = True) -> None:
        super().__init__(columns, lines)
        self.history: list[str] = []
        self.keeps_wrap = keeps_wrap
        self.keeps_region = False  # over a resize; hardly any terminal does

    def draw(self, data: str) -> None:
        for char in data:  # pyte drops all that follows a joiner in the same call
            if wcwidth(char) == 2 and self.cursor.x == self.columns - 1:
                self.cursor.x = self.columns  # pyte halves a wide character in the last column
            if wcwidth(char) == 0 and self.cursor.x == self.columns:
                self._mark_last_column(char)
            else:
                super().draw(char)

    def _mark_last_column(self, mark: str) -> None:
        """Combine with the row's last character; pyte would wrap first."""
        row = self.buffer[self.cursor.y]
        x = self.columns - 1 if row[self.columns - 1].data else self.columns - 2
        if unicodedata.combining(mark):
            row[x] = row[x]._replace(data=unicodedata.normalize("NFC", row[x].data + mark))

    def index(self) -> None:
        top, bottom = self.margins or (0, self.lines - 1)
        if self.cursor.y == bottom:
            self.history.append(self.row(top))
        super().index()

    def restore_cursor(self) -> None:
        saved = self.savepoints[-1].cursor.x if self.savepoints else 0
        super().restore_cursor()
        if self.keeps_wrap and saved == self.columns:  # pyte forgets it
            self.cursor.x = saved

    def cursor_up(self, count: int | None = None) -> None:
        super().cursor_up(count)
        self.ensure_hbounds()  # pyte keeps a pending wrap that real terminals drop

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Like tmux: rows below the cursor go first, then the top ones, into the history.

        pyte drops the top ones and leaves the cursor where it was.
        """
        lines, columns = lines or self.lines, columns or self.columns
        surplus = max(0, self.cursor.y + 1 - lines)
        self.history += [self.row(y) for y in range(surplus)]
        rows = [self.buffer[y] for y in range(surplus, min(self.lines, surplus + lines))]
        self.buffer.clear()
        self.buffer.update(enumerate(rows))
        for row in rows:
            for x in [x for x in row if x >= columns]:
                del row[x]
        self.cursor.x, self.cursor.y = min(self.cursor.x, columns), self.cursor.y - surplus
        self.lines, self.columns = lines, columns
        if not self.keeps_region:
            self.margins = None

    def row(self, y: int) -> str:
        """What row `y` shows."""
        cells = self.buffer[y]
        return "".join(cells[x].data for x in range(self.columns)).rstrip()

    def rows(self) -> list[str]:
        """What the screen shows."""
        return [self.row(y) for y in range(self.lines)]

    def transcript(self, last: int | None = None) -> list[str]:
        """All rows ever written, down to row `last` of the screen, without the blank ones at the end."""
        rows = self.history + self.rows()[:last]
        while rows and not rows[-1]:
            rows.pop()
        return rows
