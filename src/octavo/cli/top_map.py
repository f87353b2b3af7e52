"""The map of `octavo top`: the state of each block, computed from block tables, and a cell for each block.

    half blocks   two rows of cells per line: the character's colour is the upper cell, the background the
                  lower one. Greys are normal states, blue is shared, as on the server's page
    letters       with too few colours: one letter per cell, as in the legend

A block keeps its cell while the pool and the terminal keep their sizes. With more blocks than cells, a cell
stands for several consecutive blocks and shows the most used one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np
from rich.text import Text

from octavo.cli.top_text import QUIET, Canvas, flow
from octavo.server.frames import NAMED, FrameReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

# States of a block, from the least to the most used. The same as in ui/pool.js.
OUTSIDE, FREE, CACHED, SESSION, HELD, PINNED, MOVING, SHARED = range(8)
_KIND = {"sequence": 0, "session": 1, "pin": 2, "fetch": 3, "store": 3}
_LINES_MIN, _LINES_MAX = 2, 12  # of the map
_LINES_ENDLESS = 8  # without a height
_STEP = 16  # the cells per row are a multiple of it
_ASPECT = 2.5  # the map's width over its height, in square cells
_UPPER = "▀"


@dataclass(frozen=True, slots=True)
class StateStyle:
    """A state's word, letter and colour."""

    state: int
    word: str
    letter: str
    colour: str


KINDS = (
    StateStyle(FREE, "free", ".", "#2b2b28"),
    StateStyle(CACHED, "cached", "c", "#454541"),
    StateStyle(SESSION, "session", "k", "#6a6a64"),
    StateStyle(HELD, "held", "s", "#8f8f88"),
    StateStyle(PINNED, "pinned", "p", "#b9b9b2"),
    StateStyle(MOVING, "moving", "m", "#ecece7"),
    StateStyle(SHARED, "shared", "S", "#5aa0ea"),
)
_COLOURS = {kind.state: kind.colour for kind in KINDS}
_LETTERS = " " + "".join(kind.letter for kind in KINDS)  # by state


@dataclass(frozen=True, slots=True)
class Grid:
    """The arrangement of cells."""

    columns: int
    per_cell: int  # blocks


def num_blocks(reader: FrameReader) -> int:
    """The pool's current number of blocks."""
    return int(cast("dict[str, int]", reader.parts["pool"])["blocks"])


def states_of(reader: FrameReader) -> NDArray[np.uint8]:
    """The state of each block of the pool. (N,) O(blocks + entries of tables)."""
    count = num_blocks(reader)
    holders = np.zeros((4, len(reader.cells)), np.int64)  # sequences, sessions, pins, transfers
    for holding in reader.holdings.values():
        np.add.at(holders[_KIND.get(str(holding.row["kind"]), 2)], holding.blocks, 1)
    sequences, sessions, pins, moving = holders[:, :count]
    is_named = (reader.cells[:count] & NAMED) > 0
    return np.select(
        [moving > 0, sequences + sessions + pins > 1, pins > 0, sessions > 0, sequences > 0, is_named],
        [MOVING, SHARED, PINNED, SESSION, HELD, CACHED],
        FREE,
    ).astype(np.uint8)


def grid_for(blocks: int, canvas: Canvas) -> Grid:
    """The grid for so many blocks; depends only on their number and the canvas."""
    rows_of_a_line = 2 if canvas.has_greys else 1
    lines = _LINES_ENDLESS if canvas.height is None else min(max(canvas.height // 4, _LINES_MIN), _LINES_MAX)
    rows = lines * rows_of_a_line
    widest = canvas.width // _STEP * _STEP or max(1, canvas.width)
    per_cell = max(1, math.ceil(blocks / (widest * rows)))
    cells = math.ceil(blocks / per_cell)
    wanted = max(math.sqrt(_ASPECT * 2 / rows_of_a_line * cells), cells / rows, 1)
    return Grid(min(widest, math.ceil(wanted / _STEP) * _STEP), per_cell)


def cells_of(states: NDArray[np.uint8], grid: Grid) -> NDArray[np.uint8]:
    """The grid's cells, each with the state of its most used block, or OUTSIDE. (rows, columns)"""
    cells = math.ceil(len(states) / grid.per_cell)
    rows = math.ceil(cells / grid.columns)
    filled = np.full(rows * grid.columns * grid.per_cell, OUTSIDE, np.uint8)
    filled[: len(states)] = states
    most: NDArray[np.uint8] = filled.reshape(rows, grid.columns, grid.per_cell).max(axis=2)
    return most


def draw_map(states: NDArray[np.uint8], canvas: Canvas) -> list[Text]:
    """The map's lines."""
    cells = cells_of(states, grid_for(len(states), canvas))
    if not canvas.has_greys:
        return [Text("".join(_LETTERS[state] for state in row).rstrip()) for row in cells.tolist()]
    if len(cells) % 2:
        cells = np.vstack((cells, np.full((1, cells.shape[1]), OUTSIDE, np.uint8)))
    return [_half_blocks(*rows) for rows in zip(cells[::2].tolist(), cells[1::2].tolist(), strict=True)]


def draw_legend(
    states: NDArray[np.uint8], canvas: Canvas, tenant: str | None, num_offloaded: int | None
) -> list[Text]:
    """Each state's word and number of blocks, and the number of blocks in offload tiers, if there are any."""
    counts = np.bincount(states, minlength=SHARED + 1).tolist()
    items = [_legend_of(kind, counts[kind.state], canvas, tenant) for kind in KINDS]
    if tenant is not None:
        items.pop(CACHED - FREE)  # cached blocks belong to no tenant
    if num_offloaded is not None:
        items.append(Text(f"offloaded {num_offloaded:,}"))
    per_cell = grid_for(len(states), canvas).per_cell
    if per_cell > 1:
        items.append(Text(f"a cell: the most used of {per_cell:,} blocks", QUIET))
    return flow(items, canvas.width)


def _legend_of(kind: StateStyle, count: int, canvas: Canvas, tenant: str | None) -> Text:
    # A tenant does not see which of the other blocks are free.
    word = "not yours" if tenant is not None and kind.state == FREE else kind.word
    sign, style = ("■", kind.colour) if canvas.has_greys else (kind.letter, "")
    return Text().append(sign, style).append(f" {word} {count:,}")


def _half_blocks(upper: list[int], lower: list[int]) -> Text:
    line = Text()
    for (top, bottom), same in groupby(_inside(upper, lower)):
        background = f" on {_COLOURS[bottom]}" if bottom in _COLOURS else ""
        line.append(_UPPER * len(list(same)), _COLOURS[top] + background)
    return line


def _inside(upper: list[int], lower: list[int]) -> Iterator[tuple[int, int]]:
    return ((a, b) for a, b in zip(upper, lower, strict=True) if a != OUTSIDE)
