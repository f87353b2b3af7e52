"""Lines of text for `octavo top`, fitted to a width in terminal cells.

Names of tenants, sessions and events come from clients: `clean` removes characters that control a terminal.
Lines are rich's `Text`, which has no markup.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells, set_cell_size
from rich.text import Text

QUIET = "dim"
WRONG = "red"
_WIDTH_MIN = 8  # narrower terminals crop lines
_GAPS = (2, 1)  # cells between two columns: the usual gap, and that of a narrow terminal
# Categories that move the cursor, change colours or the writing direction, or are half a character.
_NOT_SHOWN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})


@dataclass(frozen=True, slots=True)
class Canvas:
    """The size and colours of the output. `height` None: endless, as in a file."""

    width: int
    height: int | None = None
    has_greys: bool = False  # enough colours to distinguish the states of blocks
    is_ascii: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table. `words` replace its cells, outside the table, if the column does not fit."""

    title: str
    cells: Sequence[str]
    is_right: bool = False
    words: Sequence[str] = ()
    drop: int = 0  # if the table is too wide, the column with the highest is dropped first; 0: never


@dataclass(frozen=True, slots=True)
class Table:
    """The lines of a table, and for each row the words of the dropped columns."""

    head: str
    rows: list[str]
    words: list[list[str]]


def clean(text: object) -> str:
    """The text without control characters; line breaks and tabs become spaces."""
    kept = (" " if char in "\n\r\t" else char for char in str(text))
    return "".join(char for char in kept if unicodedata.category(char) not in _NOT_SHOWN)


def cut(text: str, width: int) -> str:
    """The text cut to `width` cells, with ".." at the end if it was longer."""
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 2)) + ".."


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines, broken between words; a word longer than a line is broken, too."""
    lines = [""]
    width = max(width, _WIDTH_MIN)
    for word in text.split():
        for piece in chop_cells(word, width):
            if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(piece) > width:
                lines.append("")
            lines[-1] += f" {piece}" if lines[-1] else piece
    return lines


def indented(text: str, width: int, indent: int, style: str = "") -> list[Text]:
    """The wrapped text with a left margin."""
    return [Text(" " * indent + line, style) for line in wrapped(text, width - indent)]


def flow(items: Iterable[Text], width: int) -> list[Text]:
    """Items in lines, several per line; an item longer than a line is broken and loses its colours."""
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
    """As many of the groups of lines as fit into `limit` lines, then the number of the others. `unseen`: so
    many more groups exist that cannot fit."""
    if limit is None or (sum(map(len, blocks)) <= limit and not unseen):
        return [line for lines in blocks for line in lines]
    shown: list[Text] = []
    for place, lines in enumerate(blocks):
        if len(shown) + len(lines) >= limit:  # keep a line for the number
            return [*shown, Text(f"and {len(blocks) + unseen - place:,} more", QUIET)] if limit > 0 else []
        shown += lines
    raise AssertionError("all groups fit, but some are unseen")


def table(columns: Sequence[Column], width: int) -> Table:
    """A table of `width` cells; if it is too wide, with narrower gaps, then with fewer columns."""
    kept = [_SizedColumn(column, max(map(cell_len, (column.title, *column.cells)))) for column in columns]
    gap = next((gap for gap in _GAPS if _total(kept, gap) <= width), _GAPS[-1])
    while _total(kept, gap) > width and any(sized.column.drop for sized in kept):
        kept.remove(max(kept, key=lambda sized: sized.column.drop))
    left = {id(sized.column) for sized in kept}
    words = [column.words for column in columns if id(column) not in left and column.words]
    rows = zip(*(sized.column.cells for sized in kept), strict=True)
    return Table(
        _row(kept, [sized.column.title for sized in kept], gap, width),
        [_row(kept, cells, gap, width) for cells in rows],
        [[of_column[row] for of_column in words if of_column[row]] for row in range(len(columns[0].cells))],
    )


@dataclass(frozen=True, slots=True)
class _SizedColumn:
    column: Column
    width: int  # in terminal cells, of the widest one


def _total(columns: Sequence[_SizedColumn], gap: int) -> int:
    return sum(sized.width + gap for sized in columns) - gap


def _row(columns: Sequence[_SizedColumn], cells: Sequence[str], gap: int, width: int) -> str:
    filled = []
    for sized, cell in zip(columns, cells, strict=True):
        spaces = " " * (sized.width - cell_len(cell))
        filled.append(spaces + cell if sized.column.is_right else cell + spaces)
    return cut((" " * gap).join(filled).rstrip(), width)
