"""Shows an answer while it streams: as Markdown in a terminal, as plain text elsewhere.

    # Whales            |
                        |  finished blocks: printed once
    Whales are large.   |
    - They sing.        |  the current block: redrawn with each piece of text, in the screen's last lines,
    - They dive and     |  so that scrolled lines are not repainted

A block (a paragraph, a list, a table, code) is finished when a whole line of the next one has arrived: later
text cannot change it. Of a block longer than the screen only the end is drawn until it is finished. Lines
break between words. The model's line breaks are kept, and its tags (`<think>`) are text. All text is shown,
except control characters, which could control the terminal.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from markdown_it import MarkdownIt
from rich.console import Console
from rich.control import Control
from rich.markdown import Markdown
from rich.segment import ControlType, Segment, Segments

from octavo.cli.terminal import is_screen, write

_DRAW_EVERY_S = 0.05
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@contextmanager
def show_answer(console: Console) -> Iterator[Callable[[str], None]]:
    """A function that shows the pieces of an answer; a line break ends it."""
    if not is_screen(console):
        yield write
        write("\n")
        return
    view = _MarkdownView(console)
    try:
        yield view.add
    finally:
        view.finish()


def rendered(text: str) -> Markdown:
    """Rich's Markdown in the dialect of chats."""
    made = Markdown("", hyperlinks=False)  # addresses are shown: a terminal may not support links
    made.parsed = _parser().parse(text)
    for token in made.parsed:
        for part in token.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"
    return made


def length_finished(text: str) -> int:
    """Number of characters at the beginning in blocks that no further text can change."""
    whole = text[: text.rfind("\n") + 1]
    begins = [token.map[0] for token in _parser().parse(whole) if token.level == 0 and token.map]
    lines = whole.split("\n")[: begins[-1] if begins else 0]
    return sum(len(line) + 1 for line in lines)


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _MarkdownView:
    """An answer in a terminal: printed blocks, then a region that is redrawn."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""  # of the current block
        self._has_printed = False
        self._height = 0  # of the region; the cursor is in its last line
        self._drawn_at = float("-inf")

    def add(self, text: str) -> None:
        """Add text to the answer."""
        self._text += _CONTROL.sub("", text)
        cut = length_finished(self._text) if "\n" in text else 0
        if cut or time.monotonic() - self._drawn_at >= _DRAW_EVERY_S:
            with self._console:  # erase and draw in one write
                if cut:
                    self._print(self._text[:cut])
                    self._text = self._text[cut:]
                self._draw()
            self._drawn_at = time.monotonic()

    def finish(self) -> None:
        """Print the last block."""
        with self._console:
            self._print(self._text)

    def _print(self, text: str) -> None:
        """Replace the region by finished blocks."""
        lines = self._lines_of(text)
        self._put(lines, ends=bool(lines))
        self._height = 0
        self._has_printed |= bool(lines)

    def _draw(self) -> None:
        """Redraw the end of the current block, as much as fits on the screen."""
        lines = self._lines_of(self._text)[-max(1, self._console.height - 1) :]
        self._put(lines, ends=False)
        self._height = len(lines)

    def _put(self, lines: Sequence[Sequence[Segment]], *, ends: bool) -> None:
        """Replace the region by these lines; `ends`: with a line break after the last one."""
        if self._height:
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * (self._height - 1)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        parts = [part for line in lines for part in (*line, Segment.line())]
        self._console.print(Segments(parts if ends else parts[:-1]), crop=False)

    def _lines_of(self, text: str) -> list[list[Segment]]:
        """The lines of blocks, after an empty one if others precede them; none for empty text."""
        drawn = self._console.render_lines(rendered(text), pad=False)
        lines = [_strip_right(line) for line in drawn]
        while lines and not lines[0]:
            del lines[0]
        while lines and not lines[-1]:
            del lines[-1]
        return [[], *lines] if lines and self._has_printed else lines


def _strip_right(line: Sequence[Segment]) -> list[Segment]:
    """The line without invisible trailing spaces."""
    kept = list(line)
    while kept and not (kept[-1].style and kept[-1].style.bgcolor):
        text = kept[-1].text.rstrip(" ")
        if text:
            kept[-1] = Segment(text, kept[-1].style)
            break
        del kept[-1]
    return kept
