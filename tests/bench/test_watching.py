"""`python -m bench.watching`: a scene that is what it says, a reader that counts right, a report."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator

import pytest
from bench.watching.__main__ import line_of, other_fields, verdict
from bench.watching.reader import FrameCounter
from bench.watching.watching import BusyScheduler, ReaderCounts, Round, Scene, draw, reading
from tests.doubles.fake_model import FakeModel
from tests.waiting import LIMIT_S

from octavo.bench.load import Arrival, LoadReport, Quantiles
from octavo.bench.workloads import WorkloadTargets
from octavo.errors import ConfigError, RequestFailed
from octavo.server.frames import FrameReader, FrameWriter
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings

SMALL = Scene(blocks=200, requests=5, streams=2, prompt=32, frames=4)


def report(speed: float) -> LoadReport:
    spread = Quantiles(1.0, 1.0, 1.0)
    return LoadReport(
        "random", Arrival(1).in_words(), 1, 1, 0, {}, {}, 1.0, 1, speed, 1.0, spread, spread, spread,
        WorkloadTargets(1.0, 1.0), 1, 1.0,
    )  # fmt: skip


def test_the_scene_is_a_sound_scheduler_whose_streams_all_run_and_whose_other_blocks_are_cached() -> None:
    busy = BusyScheduler(SMALL)
    for _ in range(40):
        busy.step()
        busy.scheduler.check()
    live, counts = busy.scheduler.live, busy.scheduler.ledger.counts()
    assert (len(live.running), len(live.waiting)) == (2, 3)
    assert (counts.held, counts.cached, counts.free) == (10, 190, 0)  # 32 + 40 tokens each
    tier = busy.scheduler.transfers.tier
    assert tier is not None
    names = [name for name in busy.scheduler.ledger.pool.name_of if name]
    assert sum(name in tier for name in names) > 150


def test_what_is_drawn_is_what_a_reader_was_sent() -> None:
    reader, writer = FrameReader(), FrameWriter({})
    told: list[bytes] = []

    class Noting:
        @property
        def number(self) -> int:
            return writer.number

        write = staticmethod(writer.write)

        def frame_after(self, number: int) -> bytes:
            told.append(writer.frame_after(number))
            return told[-1]

    drawn = draw(SMALL, Noting(), other_fields(), lambda spent_s: 0.2, lambda text: None)  # type: ignore[arg-type]
    assert [reader.feed(frame) for frame in told[:-1]] == [1] * 12
    assert (reader.num_snapshots, len(reader.cells), len(reader.requests)) == (1, 200, 5)
    assert drawn.snapshot_bytes == len(told[-1])
    assert drawn.frame_bytes == sum(map(len, told[8:12])) / 4
    assert drawn.frames_per_s == pytest.approx(5.0, rel=0.1)
    assert drawn.blocks_per_s == pytest.approx(2 * 20 / 16, rel=0.3)
    assert [one.row["kind"] for one in reader.holdings.values()] == ["sequence"] * 2


def test_no_answer_ends_while_it_is_watched_however_long_the_feed_sleeps() -> None:
    drawn = draw(SMALL, FrameWriter({}), other_fields(), lambda spent_s: 1.0, lambda text: None)
    assert drawn.blocks_per_s == pytest.approx(2 * 20 / 16, rel=0.1)


def test_a_scene_that_does_not_fit_its_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--blocks is 100; allowed: 1\d,\d{3} or more"):
        Scene(blocks=100)


def test_frames_are_counted_however_their_bytes_are_cut() -> None:
    data = b"".join(struct.pack("<I", length) + bytes([7]) * length for length in (12, 1, 300))
    for cut in range(len(data) + 1):
        counter = FrameCounter()
        counter.feed(data[:cut])
        counter.feed(data[cut:])
        assert (counter.frames, counter.bytes) == (3, len(data))
    single = FrameCounter()
    for i in range(len(data)):
        single.feed(data[i : i + 1])
    assert single.frames == 3


@pytest.fixture
def url() -> Iterator[str]:
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = build_server(FakeModel(), ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield base_url(listener)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def test_a_reader_reads_until_it_is_ended(url: str) -> None:
    with reading(url) as read:
        pass
    assert read[0].frames >= 1
    assert read[0].bytes > 100
    with pytest.raises(RequestFailed, match="has no live map"), reading(url + "/nothing"):
        pass


def test_the_report_is_the_median_of_the_rounds() -> None:
    turns = [
        Round(report(100.0), report(speed), ReaderCounts(10, 4096, 2.0)) for speed in (99.0, 90.0, 101.0)
    ]
    assert verdict(turns).endswith("0.990 in the median, 0.900 to 1.010")
    assert line_of(turns[0])["frames_per_s"] == 5.0
    assert line_of(turns[0])["bytes_per_s"] == 2048.0
