"""How an answer is shown while it comes: as Markdown in a terminal, and as it is everywhere else.

    # Whales            |
                        |  finished blocks: printed once, and never touched again
    Whales are large.   |
    - They sing.        |  the block that is being written: drawn again with each piece of text, in the last
    - They dive and     |  lines of the screen, so that what has scrolled away is not repainted

A block (a paragraph, a list, a table, code) is finished when a whole line of the next has come: no text that
follows changes it then. Of one that is longer than the screen its end is drawn, and all of it when it is
finished. Lines end between words. A model's line break is a line break, and its tags (`<think>`) are text:
nothing that it wrote is left out, but for control characters, which could drive the terminal.
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
def answer_on(console: Console) -> Iterator[Callable[[str], None]]:
    """Show an answer whose text is handed over piece by piece; it ends with a line break."""
    if not is_screen(console):
        yield write
        write("\n")
        return
    view = _MarkdownView(console)
    try:
        yield view.take
    finally:
        view.finish()


def rendered(text: str) -> Markdown:
    """Markdown as chats write it."""
    made = Markdown("", hyperlinks=False)  # an address is shown, where a terminal may know no links
    made.parsed = _parser().parse(text)
    for token in made.parsed:
        for part in token.children or ():
            if part.type == "softbreak":
                part.type = "hardbreak"
    return made


def length_finished(text: str) -> int:
    """How many characters at the beginning belong to blocks that no further text changes."""
    whole = text[: text.rfind("\n") + 1]
    begins = [token.map[0] for token in _parser().parse(whole) if token.level == 0 and token.map]
    lines = whole.split("\n")[: begins[-1] if begins else 0]
    return sum(len(line) + 1 for line in lines)


def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"])


class _MarkdownView:
    """An answer in a terminal: printed blocks, and a region below that is drawn again."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._text = ""  # of the block that is being written
        self._has_printed = False
        self._height = 0  # of the region; the cursor stands in its last line
        self._drawn_at = float("-inf")

    def take(self, text: str) -> None:
        """More text."""
        self._text += _CONTROL.sub("", text)
        cut = length_finished(self._text) if "\n" in text else 0
        if cut or time.monotonic() - self._drawn_at >= _DRAW_EVERY_S:
            with self._console:  # what is erased and what is drawn is written at once
                if cut:
                    self._print(self._text[:cut])
                    self._text = self._text[cut:]
                self._draw()
            self._drawn_at = time.monotonic()

    def finish(self) -> None:
        """The last block is as it is."""
        with self._console:
            self._print(self._text)

    def _print(self, text: str) -> None:
        """A block that stays, in place of the region."""
        lines = self._lines_of(text)
        self._put(lines, ends=bool(lines))
        self._height = 0
        self._has_printed |= bool(lines)

    def _draw(self) -> None:
        """The end of what is being written: as much of it as fits on the screen."""
        lines = self._lines_of(self._text)[-max(1, self._console.height - 1) :]
        self._put(lines, ends=False)
        self._height = len(lines)

    def _put(self, lines: Sequence[Sequence[Segment]], *, ends: bool) -> None:
        """These lines in place of the region; `ends`: a line break behind the last one."""
        if self._height:
            up = ((ControlType.CURSOR_UP, 1), (ControlType.ERASE_IN_LINE, 2)) * (self._height - 1)
            self._console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2), *up))
        parts = [part for line in lines for part in (*line, Segment.line())]
        self._console.print(Segments(parts if ends else parts[:-1]), crop=False)

    def _lines_of(self, text: str) -> list[list[Segment]]:
        """A block's lines, with an empty one before it where something stands above; none of no text."""
        drawn = self._console.render_lines(rendered(text), pad=False)
        lines = [_without_spaces_behind(line) for line in drawn]
        while lines and not lines[0]:
            del lines[0]
        while lines and not lines[-1]:
            del lines[-1]
        return [[], *lines] if lines and self._has_printed else lines


def _without_spaces_behind(line: Sequence[Segment]) -> list[Segment]:
    """The same line where they cannot be seen."""
    kept = list(line)
    while kept and not (kept[-1].style and kept[-1].style.bgcolor):
        text = kept[-1].text.rstrip(" ")
        if text:
            kept[-1] = Segment(text, kept[-1].style)
            break
        del kept[-1]
    return kept
