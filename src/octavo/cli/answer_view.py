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
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from markdown_it import MarkdownIt
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

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
        self._drawn_at = float("-inf")
        self._live = Live(console=console, auto_refresh=False, transient=True, redirect_stdout=False)
        self._live.start()

    def take(self, text: str) -> None:
        """More text."""
        self._text += _CONTROL.sub("", text)
        cut = length_finished(self._text) if "\n" in text else 0
        if cut:
            finished, self._text = self._text[:cut], self._text[cut:]
            self._live.update(self._unfinished())
            self._print(finished)
        elif time.monotonic() - self._drawn_at >= _DRAW_EVERY_S:
            self._live.update(self._unfinished(), refresh=True)
            self._drawn_at = time.monotonic()

    def finish(self) -> None:
        """The last block is as it is."""
        self._live.update(Text())
        if self._text.strip():
            self._print(self._text)
        self._live.stop()

    def _unfinished(self) -> Group:
        return Group(*self._gap(), _End(rendered(self._text)))

    def _print(self, text: str) -> None:
        self._console.print(*self._gap(), rendered(text), sep="\n")
        self._has_printed = True

    def _gap(self) -> list[Text]:
        """An empty line between two blocks."""
        return [Text()] if self._has_printed else []


class _End:
    """Of something long the last lines: as many as the screen has, less one for the gap and one below."""

    def __init__(self, whole: Markdown) -> None:
        self._whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._whole, options.update(height=None), pad=False)
        for line in lines[-max(1, console.height - 2) :]:
            yield from line
            yield Segment.line()
