"""The map that `octavo top` draws: what each block is, told from the tables, and a cell for each.

    half blocks   two rows of cells in a line: the upper one is the character's colour, the lower one the
                  ground's. Greys are as it should be, blue is shared, as on the server's page
    letters       where there are too few colours: one letter for each cell, the legend's

A block keeps its place while the pool and the terminal keep their sizes. With more blocks than cells a cell
stands for several that follow each other, and shows the most used of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, cast

import numpy as np
from rich.text import Text

from octavo.cli.top_text import QUIET, Look, flow
from octavo.server.frames import NAMED, FrameReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

# What a block is; the most used of several is the last in this order. ui/pool.js has the same.
OUTSIDE, FREE, CACHED, SESSION, HELD, PINNED, MOVING, SHARED = range(8)
_KIND = {"sequence": 0, "session": 1, "pin": 2, "fetch": 3, "store": 3}
_LINES_MIN, _LINES_MAX = 2, 12  # of the map
_ON_PAPER = 8
_STEP = 16  # the cells of a row are a multiple of it
_SHAPE = 2.5  # how much wider than high the map is to be, in square cells
_UPPER = "▀"


@dataclass(frozen=True, slots=True)
class StateStyle:
    """A state in words, as a letter and as a colour."""

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
    """Where cells stand."""

    columns: int
    per_cell: int  # blocks


def num_blocks(reader: FrameReader) -> int:
    """How many the pool has now."""
    return int(cast("dict[str, int]", reader.parts["pool"])["blocks"])


def states_of(reader: FrameReader) -> NDArray[np.uint8]:
    """What each block of the pool is. (N,) O(blocks + entries of tables)."""
    count = num_blocks(reader)
    holders = np.zeros((4, len(reader.cells)), np.int64)  # sequences, sessions, pins, copies on their way
    for holding in reader.holdings.values():
        np.add.at(holders[_KIND.get(str(holding.row["kind"]), 2)], holding.blocks, 1)
    sequences, sessions, pins, moving = holders[:, :count]
    is_named = (reader.cells[:count] & NAMED) > 0
    return np.select(
        [moving > 0, sequences + sessions + pins > 1, pins > 0, sessions > 0, sequences > 0, is_named],
        [MOVING, SHARED, PINNED, SESSION, HELD, CACHED],
        FREE,
    ).astype(np.uint8)


def grid_for(blocks: int, look: Look) -> Grid:
    """A grid for so many blocks, of nothing but the two sizes."""
    rows_of_a_line = 2 if look.has_greys else 1
    lines = _ON_PAPER if look.height is None else min(max(look.height // 4, _LINES_MIN), _LINES_MAX)
    rows = lines * rows_of_a_line
    widest = look.width // _STEP * _STEP or max(1, look.width)
    per_cell = max(1, math.ceil(blocks / (widest * rows)))
    cells = math.ceil(blocks / per_cell)
    wanted = max(math.sqrt(_SHAPE * 2 / rows_of_a_line * cells), cells / rows, 1)
    return Grid(min(widest, math.ceil(wanted / _STEP) * _STEP), per_cell)


def cells_of(states: NDArray[np.uint8], grid: Grid) -> NDArray[np.uint8]:
    """The grid's cells, each the most used of its blocks; OUTSIDE where there are none. (rows, columns)"""
    cells = math.ceil(len(states) / grid.per_cell)
    rows = math.ceil(cells / grid.columns)
    filled = np.full(rows * grid.columns * grid.per_cell, OUTSIDE, np.uint8)
    filled[: len(states)] = states
    most: NDArray[np.uint8] = filled.reshape(rows, grid.columns, grid.per_cell).max(axis=2)
    return most


def draw_map(states: NDArray[np.uint8], look: Look) -> list[Text]:
    """The map's lines."""
    cells = cells_of(states, grid_for(len(states), look))
    if not look.has_greys:
        return [Text("".join(_LETTERS[state] for state in row).rstrip()) for row in cells.tolist()]
    if len(cells) % 2:
        cells = np.vstack((cells, np.full((1, cells.shape[1]), OUTSIDE, np.uint8)))
    return [_half_blocks(*rows) for rows in zip(cells[::2].tolist(), cells[1::2].tolist(), strict=True)]


def draw_legend(states: NDArray[np.uint8], look: Look, tenant: str | None, below: int | None) -> list[Text]:
    """Each state in words, and of how many blocks it is; `below` is how many are found in tiers."""
    counts = np.bincount(states, minlength=SHARED + 1).tolist()
    items = [_legend_of(kind, counts[kind.state], look, tenant) for kind in KINDS]
    if tenant is not None:
        items.pop(CACHED - FREE)  # what is cached is nobody's own
    if below is not None:
        items.append(Text(f"offloaded {below:,}"))
    per_cell = grid_for(len(states), look).per_cell
    if per_cell > 1:
        items.append(Text(f"a cell: {per_cell:,} blocks, the most used", QUIET))
    return flow(items, look.width)


def _legend_of(kind: StateStyle, count: int, look: Look, tenant: str | None) -> Text:
    # To a tenant all is free that it does not hold; whether others do, it is not told.
    word = "not yours" if tenant is not None and kind.state == FREE else kind.word
    sign, style = ("■", kind.colour) if look.has_greys else (kind.letter, "")
    return Text().append(sign, style).append(f" {word} {count:,}")


def _half_blocks(upper: list[int], lower: list[int]) -> Text:
    line = Text()
    for (above, below), same in groupby(_until_outside(upper, lower)):
        ground = f" on {_COLOURS[below]}" if below in _COLOURS else ""
        line.append(_UPPER * len(list(same)), _COLOURS[above] + ground)
    return line


def _until_outside(upper: list[int], lower: list[int]) -> Iterator[tuple[int, int]]:
    return ((a, b) for a, b in zip(upper, lower, strict=True) if a != OUTSIDE)
