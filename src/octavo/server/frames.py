"""The live map's stream: its content, a writer and a reader.

A stream is a sequence of frames, numbered from 1. The first is a snapshot. Each of the others has the changes
since the previous one, or is a snapshot if the reader missed frames or the number of cells changed.

    frame      u32 length of the rest | u32 number | u32 kind: 1 snapshot, 2 changes | u32 length of the JSON
               JSON, padded with spaces to a multiple of 4
               u32 tables removed, the number of each
               u32 tables new or changed; each: number | blocks kept at its front | further | blocks
               u32 cells; each: block | cell                                            (changes)
               u32 cells; each: cell, from block 0 on                                   (snapshot)

    cell       0: without a name; else the first bits of the name, with 1: named, 2: also in an offload tier
    table      one holder's blocks in order; the JSON's `holders` describes the holder of a new table

All numbers are little-endian. The JSON has `now`, the engine's clock, and of the following what has changed:
`server`, `pool`, `holders`, `requests` and `requests_gone`, `pins`, `sessions`, `tenants`, `tier`, `events`
(newest first, the last few), `stats`, `latency`. The holders of a block, and their number, follow from the
tables.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import numpy as np

from octavo.server.errors import JsonObject
from octavo.server.frame_rows import event_row, holder_row, part_rows, request_row
from octavo.server.sse import encode_json

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from octavo.engine.outputs import Glimpse, TableView

SNAPSHOT, CHANGES = 1, 2
NAMED, OFFLOADED = 1, 2
_NAME_BITS = 0xFFFFFFFC
_SEGMENT = 1024  # blocks whose names are compared at once: most segments have not changed
_NO_NAME = bytes(4)


@dataclass(slots=True)
class _LastSent:
    """A table as it was last sent."""

    number: int
    blocks: list[int]
    row: JsonObject


@dataclass(slots=True)
class _Changes:
    """The content of one frame."""

    json: JsonObject = field(default_factory=dict)
    gone: list[int] = field(default_factory=list)  # the numbers of tables
    tables: list[tuple[int, int, list[int]]] = field(default_factory=list)  # number, kept, further blocks
    blocks: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))
    cells: NDArray[np.uint32] = field(default_factory=lambda: np.zeros(0, np.uint32))

    @property
    def is_empty(self) -> bool:
        """Whether only the time has changed."""
        return self.json.keys() <= {"now"} and not (self.gone or self.tables or len(self.blocks))


class FrameWriter:
    """Writes glimpses as frames. Used by one thread."""

    def __init__(self, server: Mapping[str, object]) -> None:
        self.number = 0
        self._base = 0  # the frame to which the newest one's changes apply; 0: none, all get a snapshot
        self._server = dict(server)
        self._names: list[bytes | None] = []
        self._cells = np.zeros(0, np.uint32)
        self._tables: dict[int, _LastSent] = {}
        self._tables_begun = 0
        self._requests: dict[int, JsonObject] = {}
        self._parts: JsonObject = {}
        self._now = 0.0
        self._changes = _Changes()
        self._written: dict[int, bytes] = {}  # by kind: the newest frames

    def write(self, glimpse: Glimpse, more_parts: Mapping[str, object]) -> bool:
        """Make a frame of this state, with further parts of the JSON. If only the time has changed, make none
        and return False. O(blocks), fast if few of them have changed."""
        self._now = glimpse.pool.now
        changes = _Changes({"now": round(self._now, 3)})
        is_resized = len(glimpse.names) != len(self._names)
        self._diff_cells(glimpse, changes)
        self._diff_tables(glimpse.tables, changes)
        self._diff_requests(glimpse, changes)
        parts = part_rows(glimpse) | dict(more_parts)
        parts["events"] = [event_row(event) for event in glimpse.pool.events]
        changes.json |= {name: part for name, part in parts.items() if self._parts.get(name) != part}
        self._parts = parts
        if changes.is_empty and not is_resized:
            return False
        self._next(changes)
        if is_resized:
            self._base = 0
        return True

    def write_heartbeat(self) -> None:
        """Make a frame with only the time, so that readers see that the engine is running."""
        self._next(_Changes({"now": round(self._now, 3)}))

    def frame_after(self, number: int) -> bytes:
        """The next frame for a reader that has frame `number`; 0: it has none."""
        kind = CHANGES if number and number == self._base else SNAPSHOT
        if kind not in self._written:
            self._written[kind] = (
                self._snapshot() if kind == SNAPSHOT else self._encode(CHANGES, self._changes)
            )
        return self._written[kind]

    def _next(self, changes: _Changes) -> None:
        self._base = self.number
        self.number += 1
        self._changes, self._written = changes, {}

    def _diff_cells(self, glimpse: Glimpse, changes: _Changes) -> None:
        names, before = glimpse.names, self._names
        if len(before) != len(names):
            before, self._cells = [None] * len(names), np.zeros(len(names), np.uint32)
        cells = self._cells.copy()
        for first in range(0, len(names), _SEGMENT):
            segment = names[first : first + _SEGMENT]
            if segment != before[first : first + _SEGMENT]:
                old, new = cells[first : first + _SEGMENT], _cells_of(segment)
                is_same = (old & _NAME_BITS) == (new & _NAME_BITS)
                cells[first : first + _SEGMENT] = new | np.where(is_same, old & OFFLOADED, 0).astype(
                    np.uint32
                )
        window = cells[glimpse.offloaded_from : glimpse.offloaded_from + len(glimpse.offloaded)]
        window &= np.uint32(~OFFLOADED & 0xFFFFFFFF)
        window |= np.frombuffer(glimpse.offloaded, np.uint8).astype(np.uint32) * OFFLOADED
        changes.blocks = np.nonzero(cells != self._cells)[0].astype(np.uint32)
        changes.cells = cells[changes.blocks]
        self._names, self._cells = names, cells

    def _diff_tables(self, tables: Sequence[TableView], changes: _Changes) -> None:
        now: dict[int, _LastSent] = {}
        holders = []
        for table_view in tables:
            sent, row = self._tables.get(table_view.number), holder_row(table_view)
            if sent is None:
                self._tables_begun += 1
                sent = _LastSent(self._tables_begun, [], {})
            if sent.row.keys() != row.keys() | {"number"} or any(sent.row[key] != row[key] for key in row):
                sent.row = {"number": sent.number} | row
                holders.append(sent.row)
            if sent.blocks != table_view.blocks:
                kept = _common_prefix(sent.blocks, table_view.blocks)
                changes.tables.append((sent.number, kept, table_view.blocks[kept:]))
                sent.blocks = table_view.blocks
            now[table_view.number] = sent
        changes.gone = [sent.number for table, sent in self._tables.items() if table not in now]
        if holders:
            changes.json["holders"] = holders
        self._tables = now

    def _diff_requests(self, glimpse: Glimpse, changes: _Changes) -> None:
        rows = {request.request_id: request_row(request) for request in glimpse.requests}
        changed = [row for number, row in rows.items() if self._requests.get(number) != row]
        gone = [number for number in self._requests if number not in rows]
        if changed:
            changes.json["requests"] = changed
        if gone:
            changes.json["requests_gone"] = gone
        self._requests = rows

    def _snapshot(self) -> bytes:
        tables = self._tables.values()
        whole: JsonObject = {"now": round(self._now, 3), "server": self._server}
        whole |= {"holders": [sent.row for sent in tables], "requests": list(self._requests.values())}
        changes = _Changes(whole | self._parts)
        changes.tables = [(sent.number, 0, sent.blocks) for sent in tables]
        changes.cells = self._cells
        return self._encode(SNAPSHOT, changes)

    def _encode(self, kind: int, changes: _Changes) -> bytes:
        text = encode_json(changes.json)
        text += b" " * (-len(text) % 4)
        numbers = [len(changes.gone), *changes.gone, len(changes.tables)]
        for number, kept, further in changes.tables:
            numbers += [number, kept, len(further), *further]
        numbers.append(len(changes.cells))
        if kind == SNAPSHOT:
            cells = changes.cells
        else:
            cells = np.column_stack((changes.blocks, changes.cells)).reshape(-1)
        rest = np.array(numbers, np.uint32).tobytes() + cells.astype("<u4").tobytes()
        head = struct.pack("<IIII", 12 + len(text) + len(rest), self.number, kind, len(text))
        return head + text + rest


def _cells_of(names: Sequence[bytes | None]) -> NDArray[np.uint32]:
    """The cells of blocks with these names. (N,)"""
    fronts = np.frombuffer(b"".join([name[:4] if name else _NO_NAME for name in names]), "<u4")
    is_named = np.frombuffer(bytes(map(bool, names)), np.uint8)
    return ((fronts & _NAME_BITS) | is_named).astype(np.uint32)


def _common_prefix(old: list[int], new: list[int]) -> int:
    """The number of blocks in the common prefix."""
    if len(old) <= len(new) and new[: len(old)] == old:
        return len(old)
    return next(
        (i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new))
    )


@dataclass(slots=True)
class HolderBlocks:
    """A holder and its blocks, as the reader knows them."""

    row: JsonObject
    blocks: list[int] = field(default_factory=list)


class FrameReader:
    """Reads a stream into the state after the newest frame. For programs; the page has its own reader."""

    def __init__(self) -> None:
        self.number = 0
        self.cells = np.zeros(0, np.uint32)
        self.holdings: dict[int, HolderBlocks] = {}
        self.requests: dict[int, JsonObject] = {}
        self.parts: JsonObject = {}  # everything else of the JSON, the newest of each
        self.num_snapshots = 0
        self._data = bytearray()

    def feed(self, data: bytes) -> int:
        """Add received bytes; returns how many frames they completed."""
        self._data += data
        count = 0
        while len(self._data) >= 4:
            (length,) = struct.unpack_from("<I", self._data)
            if len(self._data) < 4 + length:
                break
            self._apply(bytes(self._data[4 : 4 + length]))
            del self._data[: 4 + length]
            count += 1
        return count

    def _apply(self, frame: bytes) -> None:
        number, kind, json_length = struct.unpack_from("<III", frame)
        parts: JsonObject = json.loads(frame[12 : 12 + json_length])
        rest = np.frombuffer(frame, "<u4", offset=12 + json_length).astype(np.uint32)
        if kind == SNAPSHOT:
            self.holdings, self.requests, self.parts = {}, {}, {}
            self.num_snapshots += 1
        elif number != self.number + 1:
            raise ValueError(f"frame {number} came after {self.number}; its changes are of another state")
        self.number = number
        self._apply_json(parts)
        self._apply_numbers(kind, rest)

    def _apply_json(self, parts: JsonObject) -> None:
        holders, requests = parts.pop("holders", ()), parts.pop("requests", ())
        for row in cast("list[JsonObject]", holders):
            self.holdings.setdefault(cast(int, row["number"]), HolderBlocks({})).row = row
        for row in cast("list[JsonObject]", requests):
            self.requests[cast(int, row["id"])] = row
        for number in cast("list[int]", parts.pop("requests_gone", ())):
            self.requests.pop(number, None)
        self.parts |= parts

    def _apply_numbers(self, kind: int, rest: NDArray[np.uint32]) -> None:
        gone = int(rest[0])
        for number in rest[1 : 1 + gone].tolist():
            del self.holdings[number]
        place = 1 + gone
        count, place = int(rest[place]), place + 1
        for _ in range(count):
            number, kept, further = rest[place : place + 3].tolist()
            blocks = self.holdings[number].blocks
            blocks[kept:] = rest[place + 3 : place + 3 + further].tolist()
            place += 3 + further
        count, place = int(rest[place]), place + 1
        if kind == SNAPSHOT:
            self.cells = rest[place : place + count].copy()
        else:
            pairs = rest[place : place + 2 * count].reshape(-1, 2)
            self.cells[pairs[:, 0]] = pairs[:, 1]
