"""The load in a replica's feed, while the engine is busy, hangs in a step, or drains."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from types import SimpleNamespace

import pytest
from tests.cluster.feeds import FeedFollower
from tests.engine.served import Served, serve_tiny
from tests.engine.test_client import greedy, prompt_of
from tests.waiting import until
from tests.wanted import request_for

from octavo.routing.reports import VERSION, Hello
from octavo.server import replica_feed
from octavo.serving.replica_feed import ReplicaFeed

HELLO = Hello(VERSION, 0, "replica-0", "tiny", "f", (), 16, 512, 8, 8, 64)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.setattr(replica_feed, "IDLE_S", 0.02)
    monkeypatch.setattr(replica_feed, "BUSY_S", 0.01)
    served = serve_tiny()
    yield served
    served.turnstile.open.set()
    served.llm.close()


def frames_of(served: Served) -> AsyncGenerator[bytes, None]:
    feed, engine = ReplicaFeed(HELLO, served.engine.inbox.wake), served.engine
    feed.begin(engine._port.follow_places())
    engine._places = feed
    return replica_feed._frames(SimpleNamespace(model=served.llm), feed)  # type: ignore[arg-type]


async def follow(
    frames: AsyncGenerator[bytes, None], follower: FeedFollower, holds: Callable[[], object]
) -> None:
    while not holds():
        follower.feed(await anext(frames))


def test_the_last_load_is_sent_again_while_a_step_takes_long(served: Served) -> None:
    async def run() -> None:
        frames, follower = frames_of(served), FeedFollower()
        await follow(frames, follower, lambda: follower.loads)
        served.turnstile.open.clear()
        submitting = asyncio.create_task(served.llm.submit(request_for(prompt_of(1), greedy(4))))
        await until(served.turnstile.reached.is_set)
        before = len(follower.loads)
        await follow(frames, follower, lambda: len(follower.loads) > before + 3)
        served.turnstile.open.set()
        stream = await submitting
        assert [delta async for delta in stream]
        await frames.aclose()

    asyncio.run(run())


def test_a_feed_ends_with_the_drain_and_says_so(served: Served) -> None:
    async def run() -> None:
        frames, follower = frames_of(served), FeedFollower()
        await follow(frames, follower, lambda: follower.loads)
        assert not follower.loads[-1].is_draining
        draining = asyncio.create_task(served.llm.drain(1.0))
        async for data in frames:
            follower.feed(data)
        assert follower.loads[-1].is_draining
        assert await draining

    asyncio.run(run())


def test_a_reader_that_leaves_is_forgotten(served: Served) -> None:
    async def run() -> None:
        frames, follower = frames_of(served), FeedFollower()
        await follow(frames, follower, lambda: follower.loads)
        await frames.aclose()
        served.engine.inbox.wake()
        await until(lambda: not served.engine._places._readers)  # type: ignore[union-attr]

    asyncio.run(run())
