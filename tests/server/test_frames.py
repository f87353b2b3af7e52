"""A stream's reader knows what the glimpses said, however many frames it missed, however bytes were cut."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
from msgspec.structs import replace
from tests.doubles import views

from octavo.engine.outputs import Event, Glimpse, RequestView, TableView
from octavo.memory.holders import HolderKind
from octavo.server import frames as module
from octavo.server.frame_rows import event_row, holder_row, part_rows, request_row
from octavo.server.frames import CHANGES, NAMED, OFFLOADED, SNAPSHOT, FrameReader, FrameWriter
from octavo.step.events import EventKind

SERVER = {"model": "tiny"}


def name_of(number: int) -> bytes:
    """Names whose first 30 bits differ."""
    return struct.pack("<I", number << 2) + bytes(12)


def a_glimpse(names: Sequence[bytes | None] = (None,) * 4, **changes: object) -> Glimpse:
    return views.a_glimpse(names, **{"now": 1.0, "offloaded": bytes(len(names))} | changes)


def a_table(blocks: list[int], label: str = "one", number: int | None = None) -> TableView:
    sequence = {"label": label, "request_id": 1, "choice": 0}
    return views.a_table(HolderKind.SEQUENCE, *blocks, number=number, **sequence)


def a_request(request_id: int, output: int = 0) -> RequestView:
    return views.a_request(request_id, views.a_sequence(num_computed=output, num_prompt=8, num_output=output))


def kind_of(frame: bytes) -> int:
    return int(struct.unpack_from("<I", frame, 8)[0])


class Pair:
    """A writer, and a reader that misses none of its frames."""

    def __init__(self) -> None:
        self.writer, self.reader = FrameWriter(SERVER), FrameReader()

    def take(self, glimpse: Glimpse, **told: object) -> bool:
        is_new = self.writer.write(glimpse, told)
        if is_new:
            assert self.reader.feed(self.writer.frame_after(self.reader.number)) == 1
        return is_new


@dataclass
class Stupid:
    """What a reader should know, from the glimpses alone: everything is made anew from each."""

    offloaded: dict[int, tuple[bytes | None, bool]] = field(default_factory=dict)  # by block: of which name
    capacity: int = 0

    def see(self, glimpse: Glimpse, told: dict[str, object]) -> None:
        if glimpse.pool.capacity != self.capacity:
            self.offloaded, self.capacity = {}, glimpse.pool.capacity
        for i, bit in enumerate(glimpse.offloaded):
            block = glimpse.offloaded_from + i
            self.offloaded[block] = (glimpse.names[block], bool(bit))
        self.cells = []
        for block, name in enumerate(glimpse.names):
            of_name, is_offloaded = self.offloaded.get(block, (None, False))
            if of_name != name:  # the window has not come by since
                self.offloaded.pop(block, None)
                is_offloaded = False
            front = int.from_bytes(name[:4], "little") & ~3 if name else 0
            self.cells.append(front | (NAMED if name else 0) | (OFFLOADED if is_offloaded else 0))
        self.holdings = [(holder_row(table), table.blocks[:]) for table in glimpse.tables]
        self.requests = {request.request_id: request_row(request) for request in glimpse.requests}
        self.parts = {"server": SERVER} | part_rows(glimpse) | told
        self.parts["events"] = [event_row(event) for event in glimpse.pool.events]

    def check(self, reader: FrameReader) -> None:
        assert reader.cells.tolist() == self.cells
        holdings = [
            ({key: value for key, value in one.row.items() if key != "number"}, one.blocks)
            for one in reader.holdings.values()
        ]
        key = repr
        assert sorted(holdings, key=key) == sorted(self.holdings, key=key)
        assert reader.requests == self.requests
        assert {name: part for name, part in reader.parts.items() if name != "now"} == self.parts


class Life:
    """A pool in which anything happens, one little thing after the other."""

    def __init__(self, r: random.Random) -> None:
        self.r, self.window = r, r.choice([3, 7, 50])
        self.names: list[bytes | None] = [None] * r.choice([1, 5, 20])
        self.tables: list[TableView] = []
        self.requests: dict[int, int] = {}
        self.events: list[Event] = []
        self.pins = 0
        self.now, self.offloaded_from, self.count = 0.0, 0, 0
        self.is_offloaded = {i: r.random() < 0.5 for i in range(200)}  # by the number of a name
        self.told: dict[str, object] = {}

    def glimpse(self) -> Glimpse:
        first, self.offloaded_from = self.offloaded_from, self.offloaded_from + self.window
        if self.offloaded_from >= len(self.names):
            self.offloaded_from = 0
        window = self.names[first : first + self.window]
        offloaded = bytes(name is not None and self.is_offloaded[name[0] >> 2] for name in window)
        return a_glimpse(
            self.names,
            now=self.now,
            offloaded_from=first,
            offloaded=offloaded,
            tables=tuple(replace(table, blocks=table.blocks[:]) for table in self.tables),
            requests=tuple(a_request(i, output) for i, output in self.requests.items()),
            events=tuple(reversed(self.events[-5:])),
            pins=tuple(views.a_pin(f"p{i}") for i in range(self.pins)),
        )

    def blocks(self) -> list[int]:
        return self.r.sample(range(len(self.names)), self.r.randint(0, len(self.names)))

    def happen(self) -> None:
        r, self.count = self.r, self.count + 1
        self.now += r.choice([0.0, 0.25])
        table = r.choice(self.tables) if self.tables else None
        match r.randrange(14):
            case 0 | 1:
                self.names[r.randrange(len(self.names))] = name_of(r.randrange(1, 60))
            case 2:
                self.names[r.randrange(len(self.names))] = None
            case 3:
                self.is_offloaded[r.randrange(60)] ^= True
            case 4:
                self.tables.append(a_table(self.blocks(), f"t{self.count}"))
            case 5 if table:
                table.blocks.append(r.randrange(len(self.names)))
            case 6 if table and table.blocks:
                del table.blocks[r.randrange(len(table.blocks)) :]
            case 7 if table and table.blocks:
                table.blocks[r.randrange(len(table.blocks))] = r.randrange(len(self.names))
            case 8 if table:
                self.tables.append(a_table(table.blocks[:], f"fork {self.count}"))
            case 9 if table:
                self.tables.remove(table)
            case 10 if table:
                self.tables[self.tables.index(table)] = replace(table, label=f"renamed {self.count}")
            case 11:
                self.requests[r.randrange(8)] = r.randrange(5)
            case 12:
                self.requests.pop(r.randrange(8), None)
            case 13:
                self.events.append(Event(self.now, EventKind.EVICTED, f"e{self.count}"))
                self.pins = r.randrange(3)
                self.told = {"stats": {"steps": r.randrange(3)}}
            case _:
                pass

    def begin_again(self) -> None:
        """As after an error of the executor: another ledger, of the same or another size."""
        self.names = [None] * self.r.choice([len(self.names), 3, 30])
        self.tables, self.requests, self.offloaded_from = [], {}, 0


@pytest.mark.parametrize("seed", range(40))
def test_readers_fast_slow_and_late_know_what_the_glimpses_said(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    r = random.Random(seed)
    monkeypatch.setattr(module, "_SEGMENT", r.choice([1, 4, 1024]))
    life, stupid, writer = Life(r), Stupid(), FrameWriter(SERVER)
    fast, slow = FrameReader(), FrameReader()
    for step in range(150):
        for _ in range(r.choice([0, 1, 1, 2, 9])):
            life.happen()
        if r.random() < 0.02:
            life.begin_again()
        glimpse = life.glimpse()
        stupid.see(glimpse, life.told)
        if not writer.write(glimpse, life.told) and r.random() < 0.3:
            writer.write_heartbeat()
        readers = [fast, *([slow] if r.random() < 0.4 else []), FrameReader()]
        for reader in readers:
            if reader.number < writer.number:
                reader.feed(writer.frame_after(reader.number))
            stupid.check(reader)
        assert fast.number == writer.number, f"step {step}"
    assert slow.num_snapshots > 1
    assert fast.num_snapshots < slow.num_snapshots


# -- frames --------------------------------------------------------------------------------------------------
def test_the_first_frame_is_a_snapshot_and_the_next_shows_changes_alone() -> None:
    writer = FrameWriter(SERVER)
    writer.write(a_glimpse(), {})
    assert kind_of(writer.frame_after(0)) == SNAPSHOT
    writer.write(a_glimpse([name_of(1), None, None, None]), {})
    changes = writer.frame_after(1)
    assert kind_of(changes) == CHANGES
    assert len(changes) < len(writer.frame_after(0))


def test_a_reader_that_missed_frames_gets_a_snapshot() -> None:
    pair, late = Pair(), FrameReader()
    pair.take(a_glimpse())
    late.feed(pair.writer.frame_after(0))
    for number in (1, 2):
        pair.take(a_glimpse([name_of(number), None, None, None]))
    late.feed(pair.writer.frame_after(1))
    assert (late.num_snapshots, pair.reader.num_snapshots) == (2, 1)
    assert late.cells.tolist() == pair.reader.cells.tolist()


def test_changes_of_another_frame_are_refused() -> None:
    pair, late = Pair(), FrameReader()
    pair.take(a_glimpse())
    late.feed(pair.writer.frame_after(0))
    pair.take(a_glimpse([name_of(1), None, None, None]))
    pair.take(a_glimpse([name_of(2), None, None, None]))
    with pytest.raises(ValueError, match="frame 3 came after 1"):
        late.feed(pair.writer.frame_after(2))


def test_nothing_changed_is_no_frame_and_the_time_alone_is_nothing() -> None:
    pair, tables = Pair(), (a_table([1, 2]),)
    assert pair.take(a_glimpse(tables=tables, requests=(a_request(1),)), stats={"steps": 1})
    again = a_glimpse(tables=tables, requests=(a_request(1),), now=2.0)
    assert not pair.take(again, stats={"steps": 1})
    assert pair.writer.number == 1
    assert pair.take(again, stats={"steps": 2})


def test_a_beat_shows_the_time_and_leaves_all_else() -> None:
    pair, table = Pair(), a_table([1])
    pair.take(a_glimpse([name_of(1), None], tables=(table,)))
    cells = pair.reader.cells.tolist()
    assert not pair.take(a_glimpse([name_of(1), None], tables=(table,), now=9.0))
    pair.writer.write_heartbeat()
    pair.reader.feed(pair.writer.frame_after(1))
    assert pair.reader.parts["now"] == 9.0
    assert (pair.reader.number, pair.reader.num_snapshots) == (2, 1)
    assert pair.reader.cells.tolist() == cells
    assert [one.blocks for one in pair.reader.holdings.values()] == [[1]]


def test_another_capacity_is_reported_in_a_snapshot_to_every_reader() -> None:
    pair = Pair()
    pair.take(a_glimpse([name_of(1), name_of(2)]))
    for names in ([name_of(3)] * 3, [None], [None] * 5):
        assert pair.take(a_glimpse(names))
        assert len(pair.reader.cells) == len(names)
    assert pair.reader.num_snapshots == 4


def test_bytes_may_be_cut_anywhere() -> None:
    writer, data = FrameWriter(SERVER), b""
    for names in ([None, None], [name_of(1), None], [name_of(1), name_of(2)]):
        writer.write(a_glimpse(names, tables=(a_table([0, 1]),)), {"stats": {"words": "ä" * len(data)}})
        data += writer.frame_after(writer.number - 1)
    whole = FrameReader()
    assert whole.feed(data) == 3
    for cut in range(len(data) + 1):
        reader = FrameReader()
        assert reader.feed(data[:cut]) + reader.feed(data[cut:]) == 3
        assert (reader.cells.tolist(), reader.parts) == (whole.cells.tolist(), whole.parts)
    single = FrameReader()
    assert sum(single.feed(data[i : i + 1]) for i in range(len(data))) == 3
    assert [one.blocks for one in single.holdings.values()] == [[0, 1]]


def test_every_frame_is_whole_words() -> None:
    writer = FrameWriter(SERVER)
    for count in range(9):
        writer.write(a_glimpse(), {"stats": "x" * count})
        frame = writer.frame_after(writer.number - 1)
        length, number, _, json_length = struct.unpack_from("<IIII", frame)
        assert (length, number) == (len(frame) - 4, writer.number)
        assert length % 4 == json_length % 4 == 0


# -- cells ---------------------------------------------------------------------------------------------------
def test_a_cell_is_the_names_first_bits_and_whether_it_is_offloaded() -> None:
    pair = Pair()
    names = [None, b"\xff" * 16, bytes(16), b"\x00\x00\x00\x80" + b"\xff" * 12]
    pair.take(a_glimpse(names, offloaded=bytes([0, 1, 0, 1])))
    assert pair.reader.cells.tolist() == [0, 0xFFFFFFFF, NAMED, 0x80000000 | NAMED | OFFLOADED]


def test_a_name_that_takes_anothers_place_does_not_inherit_that_it_is_offloaded() -> None:
    pair = Pair()
    pair.take(a_glimpse([name_of(1), name_of(2)], offloaded=b"\1\1"))
    pair.take(a_glimpse([name_of(3), name_of(2)], offloaded_from=1, offloaded=b"\1"))
    assert (pair.reader.cells & OFFLOADED).tolist() == [0, OFFLOADED]
    pair.take(a_glimpse([None, name_of(2)], offloaded_from=1, offloaded=b"\0"))
    assert (pair.reader.cells & 3).tolist() == [0, NAMED]


def test_what_is_offloaded_stays_reported_until_the_window_comes_by_again() -> None:
    pair, names = Pair(), [name_of(i) for i in (1, 2, 3)]
    pair.take(a_glimpse(names, offloaded=b"\1\1"))
    pair.take(a_glimpse([*names[:2], name_of(4)], offloaded_from=2, offloaded=b"\1"))
    assert (pair.reader.cells & OFFLOADED).tolist() == [OFFLOADED] * 3
    pair.take(a_glimpse([*names[:2], name_of(4)], offloaded=b"\0\1"))
    assert (pair.reader.cells & OFFLOADED).tolist() == [0, OFFLOADED, OFFLOADED]


# -- tables --------------------------------------------------------------------------------------------------
def test_a_table_that_grew_sends_its_further_blocks_alone() -> None:
    writer = FrameWriter(SERVER)
    writer.write(a_glimpse([None] * 9, tables=(a_table([0, 1, 2, 3], number=-1),)), {})
    writer.write(a_glimpse([None] * 9, tables=(a_table([0, 1, 2, 3, 7], number=-1),)), {})
    frame = writer.frame_after(1)
    (json_length,) = struct.unpack_from("<I", frame, 12)
    assert np.frombuffer(frame, "<u4", offset=16 + json_length).tolist() == [0, 1, 1, 4, 1, 7, 0]


def test_one_table_in_place_of_an_equal_one_is_another() -> None:
    pair = Pair()
    pair.take(a_glimpse(tables=(a_table([1, 2]),)))
    first = list(pair.reader.holdings)
    pair.take(a_glimpse(tables=(a_table([1, 2]),)))
    assert list(pair.reader.holdings) != first
    assert [one.blocks for one in pair.reader.holdings.values()] == [[1, 2]]


def test_a_table_without_blocks_is_reported() -> None:
    pair = Pair()
    pair.take(a_glimpse(tables=(a_table([]),)))
    assert [one.blocks for one in pair.reader.holdings.values()] == [[]]
