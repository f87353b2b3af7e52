"""The live map's stream: who may watch, what each sees, and what it costs when nobody does."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import numpy as np
import pytest
from msgspec.structs import replace
from tests.doubles.fake_model import FakeModel
from tests.engine.served import serve_tiny, step_for_each_glimpse
from tests.server.test_tenant_keys import ALICE, BOB, BOSS, NOBODY, TENANTS
from tests.server.viewers import Viewer, watching
from tests.waiting import turns, until, wait_until
from tests.wanted import request_for

from octavo.errors import EngineStopped
from octavo.params import SamplerParams
from octavo.server import feeds as feeds_module
from octavo.server.app import create_app
from octavo.server.frames import SNAPSHOT
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry


class Glimpses:
    """Counts a model's glimpses, lets the test change what they say, and fails them when told to."""

    def __init__(self, model):
        self.asked, self.names, self.error = [], None, None
        self._plain = model.control.glimpse
        model.control.glimpse = self._glimpse

    async def _glimpse(self, offloaded_from, tenant=None):
        self.asked.append(tenant)
        if self.error is not None:
            raise self.error
        found = await self._plain(offloaded_from, tenant)
        return found if self.names is None else replace(found, names=self.names[:])

    async def more(self, count=1):
        """Wait for so many more."""
        wanted = len(self.asked) + count
        await until(lambda: len(self.asked) >= wanted)


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    """Glimpses as fast as they come, so that no test waits for one."""
    monkeypatch.setattr(feeds_module, "INTERVAL_S", 0.0)
    monkeypatch.setattr(feeds_module, "_INTERVAL_MAX_S", 0.002)


@pytest.fixture
def fake():
    model = FakeModel()
    return model, Glimpses(model)


@pytest.fixture
def roster(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return TenantRegistry(path)


def run(scenario):
    return asyncio.run(asyncio.wait_for(scenario, 30))


def feeding():
    """Tasks of feeds that run."""
    return [task for task in asyncio.all_tasks() if "_Feed._run" in repr(task.get_coro())]


# -- the stream ----------------------------------------------------------------------------------------------
def test_the_stream_begins_with_a_snapshot_and_says_who_serves(fake):
    async def scenario():
        async with watching(create_app(fake[0], ServerSettings())) as [viewer]:
            assert (viewer.status, viewer.headers["content-type"]) == (200, "application/octet-stream")
            assert viewer.headers["cache-control"] == "no-cache"
            assert int.from_bytes(viewer.body[8:12], "little") == SNAPSHOT
            server, pool = viewer.reader.parts["server"], viewer.reader.parts["pool"]
            assert (server["model"], server["tenant"], pool["blocks"]) == ("fake-model", None, 10)
            assert {"stats", "latency"} <= viewer.reader.parts.keys()

    run(scenario())


def test_what_changes_is_sent_as_changes(fake):
    model, glimpses = fake

    async def scenario():
        async with watching(create_app(model, ServerSettings())) as [viewer]:
            glimpses.names = [b"\xff" * 16] + [None] * 19
            reader = await viewer.until(lambda one: one.reader.cells[0])
            assert reader.num_snapshots == 1

    run(scenario())


def test_while_nothing_changes_a_beat_shows_the_time_alone(fake, monkeypatch):
    monkeypatch.setattr(feeds_module, "_BEAT_S", 0.0)

    async def scenario():
        async with watching(create_app(fake[0], ServerSettings())) as [viewer]:
            size = len(viewer.body)
            reader = await viewer.until(lambda one: one.reader.number == 3)
            assert reader.num_snapshots == 1
            assert len(viewer.body) - size == 2 * 40

    run(scenario())


def test_two_viewers_share_one_feed(fake):
    model, glimpses = fake

    async def scenario():
        async with watching(create_app(model, ServerSettings()), None, None) as viewers:
            assert len(feeding()) == 1
            glimpses.names = [b"\xff" * 16] + [None] * 19
            for viewer in viewers:
                await viewer.until(lambda one: one.reader.cells[0])
            assert viewers[0].reader.number == viewers[1].reader.number

    run(scenario())


def test_a_viewer_that_does_not_read_gets_the_newest_snapshot_and_no_queue(fake):
    model, glimpses = fake

    async def scenario():
        async with watching(create_app(model, ServerSettings()), None, None) as [slow, fast]:
            slow.reads.clear()
            for first in range(1, 9):
                glimpses.names = [bytes([first * 4]) * 16] + [None] * 19
                await fast.until(lambda one, first=first: one.reader.cells[0] >> 2 & 63 == first)
            behind, newest = slow.reader.number, fast.reader.number
            assert newest >= behind + 7
            slow.reads.set()
            reader = await slow.until(lambda one: one.reader.number == newest)
            assert reader.num_snapshots == 2, "the frames between were not kept for it"
            assert reader.cells.tolist() == fast.reader.cells.tolist()
            assert fast.reader.num_snapshots == 1, "and who reads waits for nobody"

    run(scenario())


# -- what it costs -------------------------------------------------------------------------------------------
def test_without_a_viewer_there_is_no_task_and_no_glimpse(fake, monkeypatch):
    monkeypatch.setattr(feeds_module, "_INTERVAL_MAX_S", 0.0)  # a glimpse in each turn of the event loop
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings())
        await turns(50)
        assert (feeding(), glimpses.asked) == ([], [])
        async with watching(app, None, None) as [first, second]:
            await first.leave()
            await glimpses.more()
            assert len(feeding()) == 1, "the other one watches on"
            await second.leave()
            asked = len(glimpses.asked)
            await turns(50)
            assert feeding() == []
            assert len(glimpses.asked) <= asked + 1

    run(scenario())


def test_the_next_viewer_after_the_last_gets_a_feed_of_its_own(fake):
    async def scenario():
        app = create_app(fake[0], ServerSettings())
        for _ in range(3):
            async with watching(app) as [viewer]:
                assert viewer.reader.number == 1

    run(scenario())


def test_no_more_than_so_many_watch_also_of_those_that_come_at_once(fake, monkeypatch):
    monkeypatch.setattr(feeds_module, "VIEWERS_MAX", 3)

    async def scenario():
        app = create_app(fake[0], ServerSettings())
        viewers = [Viewer(app) for _ in range(5)]
        refused = [await one.end() for one in viewers[3:]]
        assert [one.status for one in refused] == [429, 429]
        assert b"too_many_viewers" in refused[0].body
        for one in viewers[:3]:
            await one.until(lambda one: one.reader.number)
        await viewers[0].leave()
        async with watching(app):
            pass
        for one in viewers[1:3]:
            await one.leave()

    run(scenario())


def test_viewers_of_one_tenant_take_no_place_of_another(fake, roster, monkeypatch):
    monkeypatch.setattr(feeds_module, "VIEWERS_MAX", 2)

    async def scenario():
        app = create_app(fake[0], ServerSettings(roster=roster))
        async with watching(app, ALICE, ALICE, BOB, BOSS):
            assert (await Viewer(app, ALICE).end()).status == 429

    run(scenario())


def test_asking_for_the_headers_alone_is_no_viewer(fake):
    async def scenario():
        told = await Viewer(create_app(fake[0], ServerSettings()), method="HEAD").end()
        assert (told.status, told.body, fake[1].asked) == (200, b"", [])

    run(scenario())


# -- whose it is ---------------------------------------------------------------------------------------------
def test_a_foreign_page_and_a_stranger_are_refused(fake, roster):
    async def scenario():
        app = create_app(fake[0], ServerSettings())
        for headers in ({"host": "evil.example"}, {"origin": "http://evil.example"}):
            told = await Viewer(app, headers=headers).end()
            assert (told.status, b"foreign_host" in told.body) == (403, True)
        for settings in (ServerSettings(api_keys=("one",)), ServerSettings(roster=roster)):
            app = create_app(fake[0], settings)
            for key in (None, NOBODY):
                told = await Viewer(app, key).end()
                assert (told.status, b"invalid_api_key" in told.body) == (401, True)
        assert fake[1].asked == []
        async with watching(create_app(fake[0], ServerSettings(api_keys=("one",))), "one"):
            pass

    run(scenario())


def test_a_tenant_asks_for_its_own_and_an_operator_for_all(fake, roster):
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings(roster=roster))
        async with watching(app, ALICE, ALICE, BOB, BOSS) as viewers:
            told = [viewer.reader.parts["server"]["tenant"] for viewer in viewers]
            assert told == ["alice", "alice", "bob", None]
            assert len(feeding()) == 3
            assert set(glimpses.asked) == {"alice", "bob", None}
            for viewer in viewers[:3]:
                assert not {"stats", "latency"} & viewer.reader.parts.keys(), "everybody's numbers"

    run(scenario())


def test_a_tenant_whose_key_is_gone_gets_no_more_frames(fake, roster):
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings(roster=roster))
        async with watching(app, ALICE, BOB) as [alice, bob]:
            roster.path.write_text("[[tenant]]" + TENANTS.split("[[tenant]]", 2)[2])
            assert await roster.reload(model.control)
            number = alice.reader.number
            glimpses.names = [b"\xff" * 16] + [None] * 19
            await alice.end()
            assert alice.reader.number == number
            await bob.until(lambda one: one.reader.cells[0])

    run(scenario())


# -- its end -------------------------------------------------------------------------------------------------
def test_the_stream_ends_with_the_engine_and_the_next_viewer_gets_the_reason(fake):
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings())
        async with watching(app, None, None) as viewers:
            glimpses.error = EngineStopped("it gave up")
            for viewer in viewers:
                await viewer.end()
        assert feeding() == []
        told = await Viewer(app).end()
        assert (told.status, b"it gave up" in told.body) == (503, True)
        assert feeding() == []

    run(scenario())


def test_a_mistake_of_ours_in_a_feed_ends_its_streams_and_is_reported(fake):
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings())
        viewer = Viewer(app)
        await viewer.until(lambda one: one.reader.number)
        glimpses.error = ZeroDivisionError("a bug")
        with pytest.raises(ZeroDivisionError):
            await viewer.call
        glimpses.error = None
        async with watching(app):
            pass

    run(scenario())


def test_a_feed_that_failed_is_no_ones_next_one_while_a_slow_viewer_still_holds_it(fake):
    model, glimpses = fake

    async def scenario():
        app = create_app(model, ServerSettings())
        slow, fast = Viewer(app), Viewer(app)
        for viewer in (slow, fast):
            await viewer.until(lambda one: one.reader.number)
        slow.reads.clear()
        glimpses.names = [b"\xff" * 16] + [None] * 19
        await fast.until(lambda one: one.reader.cells[0])
        glimpses.error = EngineStopped("for a moment")
        await fast.end()
        glimpses.error = None
        async with watching(app) as [viewer]:
            glimpses.names = [b"\xf0" * 16] + [None] * 19
            await viewer.until(lambda one: one.reader.number > 1)
            slow.reads.set()
            await slow.end()
            glimpses.names = [b"\xff" * 16] + [None] * 19
            await viewer.until(lambda one: one.reader.number > 2)

    run(scenario())


# -- a real engine -------------------------------------------------------------------------------------------
@pytest.fixture
def served():
    served = serve_tiny()
    yield served
    served.turnstile.permits = None
    served.llm.close()


@asynccontextmanager
async def interleaved(served):
    """Glimpses come between steps."""
    step_for_each_glimpse(served)
    try:
        yield
    finally:
        served.turnstile.permits.release(10_000)


PARAMS = SamplerParams(max_tokens=80, ignore_eos=True)
PROMPT = list(range(2, 42))  # two blocks and a half


def state_of(reader):
    holdings = {number: (one.row, one.blocks) for number, one in reader.holdings.items()}
    return reader.cells.tolist(), holdings, reader.requests


def test_a_real_engines_pool_is_seen_as_it_fills_and_empties(served):
    async def scenario():
        app = create_app(served.llm, ServerSettings())
        async with watching(app) as [viewer], interleaved(served):
            assert (len(viewer.reader.cells), viewer.reader.holdings) == (200, {})
            stream = await served.llm.submit(request_for(PROMPT, PARAMS))
            reader = await viewer.until(lambda one: one.reader.holdings and one.reader.cells.any())
            [holding], [request] = reader.holdings.values(), reader.requests.values()
            assert holding.row["kind"] == "sequence"
            assert holding.row["request"] == request["id"] == stream.request_id
            assert len(holding.blocks) >= 3
            reader = await viewer.until(lambda one: not one.reader.holdings and not one.reader.requests)
            assert np.count_nonzero(reader.cells) == 119 // 16, "what was computed stays cached"
            assert reader.num_snapshots == 1
            async with watching(app) as [late]:
                assert state_of(late.reader) == state_of(reader)

    run(scenario())


def test_a_tenant_sees_its_own_blocks_and_not_one_of_anothers(served, roster):
    async def scenario():
        await roster.begin(served.llm.control)
        app = create_app(served.llm, ServerSettings(roster=roster))
        async with watching(app, ALICE, BOB, BOSS) as [alice, bob, boss], interleaved(served):
            before = bob.reader.parts | {"now": 0}
            await served.llm.submit(request_for(PROMPT, PARAMS, tenant="alice"))
            for viewer in (alice, boss):
                await viewer.until(lambda one: one.reader.holdings and one.reader.cells.any())
                [own] = viewer.reader.holdings.values()
                assert own.row["tenant"] == "alice"
            for viewer in (alice, boss):
                await viewer.until(lambda one: not one.reader.holdings)
            assert boss.reader.cells.any()
            assert not alice.reader.cells.any(), "whether it stays cached, others decide"
            cells, holdings, requests = state_of(bob.reader)
            assert (set(cells), holdings, requests) == ({0}, {}, {})
            assert bob.reader.parts | {"now": 0} == before
            assert b"alice" not in bob.body

    run(scenario())


def test_a_drain_ends_the_stream(served):
    async def scenario():
        app = create_app(served.llm, ServerSettings())
        async with watching(app) as [viewer]:
            assert await served.llm.drain(1.0)
            await viewer.end()
        assert (await Viewer(app).end()).status == 503

    run(scenario())


def test_without_a_viewer_the_engine_is_asked_nothing(served, monkeypatch):
    asked = []
    plain = served.llm.submitter.send

    async def send(command):
        asked.append(command)
        return await plain(command)

    monkeypatch.setattr(served.llm.submitter, "send", send)

    async def scenario():
        app = create_app(served.llm, ServerSettings())
        async with watching(app):
            pass
        count = len(asked)
        assert count
        stream = await served.llm.submit(request_for([2, 3], SamplerParams(max_tokens=9, ignore_eos=True)))
        async for _ in stream:
            pass
        assert len(asked) == count

    run(scenario())
    wait_until(lambda: not served.engine.has_work)


def test_the_more_feeds_there_are_the_longer_each_of_them_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds_module, "INTERVAL_S", 0.15)
    monkeypatch.setattr(feeds_module, "_INTERVAL_MAX_S", 5.0)
    assert feeds_module.pause_s(0.001) == pytest.approx(0.149)
    assert feeds_module.pause_s(0.002) == pytest.approx(0.2)
    assert feeds_module.pause_s(0.002, 10) == pytest.approx(2.0)
    assert feeds_module.pause_s(0.002, 1000) == 5.0
