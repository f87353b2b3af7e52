"""Live feeds of the pool: one for the operator and one for each tenant, made only while a client watches.

    glimpse (engine's thread) -> FrameWriter -> the newest frame -> each viewer, at its own pace

A viewer that reads as fast as frames come gets what changed; one that is slower misses some and gets a
snapshot: the newest, never a queue of old ones. How often a glimpse is taken follows from what one costs.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from http import HTTPStatus

from octavo.engine.outputs import EngineStats
from octavo.errors import EngineStopped
from octavo.server.errors import HttpRefusal, JsonObject
from octavo.server.frame_rows import stats_row
from octavo.server.frames import FrameWriter
from octavo.serving.client import EngineClient

INTERVAL_S = 0.15  # between two glimpses, at least
_SHARE = 0.01  # of the time, nearly: all feeds together write frames for so long; glimpses cost as much again
_INTERVAL_MAX_S = 5.0  # a page that hears nothing for longer says so
_BEAT_S = 2.0  # a frame comes at least as often
_LATENCY_S = 1.0  # between two looks at the histograms
VIEWERS_MAX = 64  # of one feed: a tenant's take no place of another's


class Feeds:
    """All feeds of one server. `latency` tells the histograms' counts. The event loop's."""

    def __init__(
        self,
        model: EngineClient,
        latency: Callable[[], JsonObject],
        describe: Callable[[], Mapping[str, object]],
        run_id: str,
    ) -> None:
        self._model = model
        self._latency = latency
        self._describe = describe
        self._run_id = run_id  # another one: the server began again
        self._feeds: dict[str | None, _Feed] = {}

    async def frames(self, tenant: str | None, may_go_on: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Frames for one viewer, until the engine stops or it may not go on; before them b"", as soon as the
        first is there. `tenant` is None for the operator.

        The first step raises HttpRefusal where too many watch already, or EngineStopped.
        """
        feed = self._feeds.get(tenant)
        if feed is None or feed.has_ended:
            server = {"run": self._run_id, "tenant": tenant} | dict(self._describe())
            feed = self._feeds[tenant] = _Feed(
                self._model, tenant, self._latency, server, lambda: len(self._feeds)
            )
        feed.join()
        try:
            number = 0
            if await feed.is_newer(number):
                yield b""
            with suppress(EngineStopped):  # the next request that a viewer makes is told why
                while await feed.is_newer(number) and may_go_on():
                    frame, number = feed.writer.frame_after(number), feed.writer.number
                    yield frame
        finally:
            if feed.leave() == 0 and self._feeds.get(tenant) is feed:
                del self._feeds[tenant]


def pause_s(spent_s: float, num_feeds: int = 1) -> float:
    """How long one of so many feeds sleeps after a frame that took so long to make."""
    return min(max(INTERVAL_S - spent_s, spent_s * num_feeds / _SHARE), _INTERVAL_MAX_S)


class _Feed:
    """What one tenant, or the operator, may see. Its task ends with its last viewer."""

    def __init__(
        self,
        model: EngineClient,
        tenant: str | None,
        latency: Callable[[], JsonObject],
        server: Mapping[str, object],
        count_feeds: Callable[[], int],
    ) -> None:
        self._count_feeds = count_feeds
        self.writer = FrameWriter(server)
        self.num_viewers = 0
        self._model = model
        self._tenant = tenant
        self._latency = latency
        self._latency_told: JsonObject = {}
        self._latency_at = float("-inf")
        self._below_from = 0
        self._written_at = float("-inf")
        self._newer = asyncio.Event()  # set once, when there is a newer frame; then another takes its place
        self._task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """There will be no more frames."""
        return self._task is not None and self._task.done()

    def join(self) -> None:
        """One more viewer. Raises HttpRefusal where there are too many."""
        if self.num_viewers >= VIEWERS_MAX:
            raise HttpRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self.num_viewers} clients watch the pool already; allowed: {VIEWERS_MAX}; close one",
                code="too_many_viewers",
            )
        self.num_viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(lambda _: self._tell())

    def leave(self) -> int:
        """One viewer less; returns how many are left."""
        self.num_viewers -= 1
        if self.num_viewers == 0 and self._task is not None:
            self._task.cancel()
        return self.num_viewers

    async def is_newer(self, number: int) -> bool:
        """True when there is a frame after `number`. Raises what the feed ended with when there will be
        none."""
        while self.writer.number <= number and self._task is not None:
            if self._task.done():
                self._task.result()
            await self._newer.wait()
        return self.writer.number > number

    def _tell(self) -> None:
        self._newer.set()
        self._newer = asyncio.Event()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(await self._look())

    async def _look(self) -> float:
        """One glimpse, and a frame where something changed; returns for how long to sleep."""
        looking = self._model.control.glimpse(self._below_from, self._tenant)
        glimpse, stats = await asyncio.gather(looking, self._stats())
        began = time.perf_counter()
        self._below_from = glimpse.next_below_from
        is_new = self.writer.take(glimpse, self._told(began, stats))
        if not is_new and began - self._written_at >= _BEAT_S:
            self.writer.beat()
            is_new = True
        if is_new:
            self._written_at = began
            self._tell()
        return pause_s(time.perf_counter() - began, self._count_feeds())

    async def _stats(self) -> EngineStats | None:
        """All tenants' numbers, so the operator's alone."""
        return None if self._tenant is not None else await self._model.stats()

    def _told(self, now: float, stats: EngineStats | None) -> JsonObject:
        """What the engine's counters and the histograms say."""
        if stats is None:
            return {}
        if now - self._latency_at >= _LATENCY_S:
            self._latency_at, self._latency_told = now, self._latency()
        return {"stats": stats_row(stats), "latency": self._latency_told}
