"""Lines of text for `octavo top`: fitted to a width in cells, whatever is in them.

What tenants, sessions and events are called comes from strangers: `clean` leaves of it what a terminal only
shows. Lines are rich's `Text`, which reads no markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

QUIET = "dim"
WRONG = "red"
_WIDTH_MIN = 8  # narrower terminals crop
_GAPS = (2, 1)  # cells between two columns: where there is room, and where there is little
# What moves the cursor, changes colours, turns the direction of writing, or is half a character.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Look:
    """What can be drawn on. `height` is None where there is no end, on paper."""

    width: int
    height: int | None = None
    has_greys: bool = False  # enough colours to tell the states of blocks apart
    is_ascii: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. `words` say the same of each row outside it, where the column does not fit;
    without them it is always there, unless it is dropped at once."""

    title: str
    cells: Sequence[str]
    is_right: bool = False
    words: Sequence[str] = ()
    drop: int = 0  # which goes first where the width is too small: the highest; 0: none


@dataclass(frozen=True, slots=True)
class Table:
    """Lines of a table that fits, and for each row the words of the columns that did not."""

    head: str
    rows: list[str]
    words: list[list[str]]


def clean(text: object) -> str:
    """The same without control characters; line breaks and tabs are spaces."""
    kept = (" " if char in "\n\r\t" else char for char in str(text))
    return "".join(char for char in kept if unicodedata.category(char) not in _NOT_SHOWN)


def cut(text: str, width: int) -> str:
    """At most so many cells, with a mark where some were cut off."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 2)) + ".."


def wrapped(text: str, width: int) -> list[str]:
    """Lines of whole words; a word that is longer than a line is broken."""
    lines = [""]
    width = max(width, _WIDTH_MIN)
    for word in text.split():
        for piece in chop_cells(word, width):
            if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(piece) > width:
                lines.append("")
            lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def indented(text: str, width: int, indent: int, style: str = "") -> list[Text]:
    """Wrapped lines with a margin."""
    return [Text(" " * indent + line, style) for line in wrapped(text, width - indent)]


def flow(items: Iterable[Text], width: int) -> list[Text]:
    """Items beside each other; only one that is longer than a line is broken, and loses its colours."""
    lines: list[Text] = []
    for item in items:
        if lines and lines[-1].cell_len + 2 + item.cell_len <= width:
            lines[-1].append("  ").append_text(item)
        elif item.cell_len <= width:
            lines.append(Text().append_text(item))
        else:
            lines += [Text(line, item.style) for line in wrapped(item.plain, width)]
    return lines


def limited(blocks: Sequence[Sequence[Text]], limit: int | None, unseen: int = 0) -> list[Text]:
    """As many of these groups of lines as fit into `limit` lines, and how many more there are; `unseen` more
    have no lines, because so many cannot fit."""
    if limit is None or (sum(map(len, blocks)) <= limit and not unseen):
        return [line for lines in blocks for line in lines]
    shown: list[Text] = []
    for place, lines in enumerate(blocks):
        if len(shown) + len(lines) >= limit:  # one line is left for what follows
            return [*shown, Text(f"and {len(blocks) + unseen - place:,} more", QUIET)] if limit > 0 else []
        shown += lines
    raise AssertionError("all of them fit: those that are unseen should have lines")


def table(columns: Sequence[Column], width: int) -> Table:
    """Columns beside each other in `width` cells: with less room between them, then with fewer of them."""
    kept = [_Fitted(column, max(map(cell_len, (column.title, *column.cells)))) for column in columns]
    gap = next((gap for gap in _GAPS if _total(kept, gap) <= width), _GAPS[-1])
    while _total(kept, gap) > width and any(fitted.column.drop for fitted in kept):
        kept.remove(max(kept, key=lambda fitted: fitted.column.drop))
    left = {id(fitted.column) for fitted in kept}
    words = [column.words for column in columns if id(column) not in left and column.words]
    rows = zip(*(fitted.column.cells for fitted in kept), strict=True)
    return Table(
        _row(kept, [fitted.column.title for fitted in kept], gap, width),
        [_row(kept, cells, gap, width) for cells in rows],
        [[of_column[row] for of_column in words if of_column[row]] for row in range(len(columns[0].cells))],
    )


@dataclass(frozen=True, slots=True)
class _Fitted:
    column: Column
    width: int  # in cells, as wide as its widest


def _total(columns: Sequence[_Fitted], gap: int) -> int:
    return sum(fitted.width + gap for fitted in columns) - gap


def _row(columns: Sequence[_Fitted], cells: Sequence[str], gap: int, width: int) -> str:
    filled = []
    for fitted, cell in zip(columns, cells, strict=True):
        spaces = " " * (fitted.width - cell_len(cell))
        filled.append(spaces + cell if fitted.column.is_right else cell + spaces)
    return cut((" " * gap).join(filled).rstrip(), width)
