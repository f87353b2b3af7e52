"""Live feeds of the pool: one for the operator and one for each tenant, active only while a client watches.

    glimpse (engine's thread) -> FrameWriter -> the newest frame -> each viewer, at its own pace

A viewer that reads as fast as frames are made gets the changes. A slower one misses frames and gets a
snapshot of the newest state; old frames are never queued. The interval between glimpses follows their cost.
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

INTERVAL_S = 0.15  # the least between two glimpses
_SHARE = 0.01  # of the time, approximately, in which all feeds write frames; glimpses cost as much again
_INTERVAL_MAX_S = 5.0  # after a longer silence the page reports a lost connection
_BEAT_S = 2.0  # the most between two frames
_LATENCY_S = 1.0  # between two reads of the histograms
VIEWERS_MAX = 64  # of one feed, so that tenants do not compete


class Feeds:
    """All feeds of one server. `latency` returns the histograms' counts. Used on the event loop only."""

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
        self._run_id = run_id  # changes when the server restarts
        self._feeds: dict[str | None, _Feed] = {}

    async def frames(self, tenant: str | None, may_go_on: Callable[[], bool]) -> AsyncGenerator[bytes, None]:
        """Frames for one viewer, until the engine stops or `may_go_on` is false; before them b"", as soon as
        the first exists. `tenant` is None for the operator.

        The first step raises HttpRefusal if there are too many viewers, or EngineStopped.
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
            if await feed.wait_for_newer(number):
                yield b""
            with suppress(EngineStopped):  # a viewer's next request gets this error
                while await feed.wait_for_newer(number) and may_go_on():
                    frame, number = feed.writer.frame_after(number), feed.writer.number
                    yield frame
        finally:
            if feed.leave() == 0 and self._feeds.get(tenant) is feed:
                del self._feeds[tenant]


def pause_s(spent_s: float, num_feeds: int = 1) -> float:
    """How long one of `num_feeds` sleeps after making a frame in `spent_s`."""
    return min(max(INTERVAL_S - spent_s, spent_s * num_feeds / _SHARE), _INTERVAL_MAX_S)


class _Feed:
    """The feed of one tenant or of the operator. Its task ends with its last viewer."""

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
        self._latency_counts: JsonObject = {}
        self._latency_at = float("-inf")
        self._offloaded_from = 0
        self._written_at = float("-inf")
        self._newer = asyncio.Event()  # set once, when there is a newer frame, then replaced
        self._task: asyncio.Task[None] | None = None

    @property
    def has_ended(self) -> bool:
        """Whether there will be no more frames."""
        return self._task is not None and self._task.done()

    def join(self) -> None:
        """Add a viewer. Raises HttpRefusal if there are too many."""
        if self.num_viewers >= VIEWERS_MAX:
            raise HttpRefusal(
                HTTPStatus.TOO_MANY_REQUESTS,
                f"{self.num_viewers} clients watch the pool already; allowed: {VIEWERS_MAX}; close one",
                code="too_many_viewers",
            )
        self.num_viewers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._task.add_done_callback(lambda _: self._notify())

    def leave(self) -> int:
        """Remove a viewer; returns how many are left."""
        self.num_viewers -= 1
        if self.num_viewers == 0 and self._task is not None:
            self._task.cancel()
        return self.num_viewers

    async def wait_for_newer(self, number: int) -> bool:
        """Wait for a frame after `number`. Raises the error with which the feed ended, if it has ended."""
        while self.writer.number <= number and self._task is not None:
            if self._task.done():
                self._task.result()
            await self._newer.wait()
        return self.writer.number > number

    def _notify(self) -> None:
        self._newer.set()
        self._newer = asyncio.Event()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(await self._poll())

    async def _poll(self) -> float:
        """Take a glimpse, and make a frame if something changed; returns how long to sleep."""
        coming = self._model.control.glimpse(self._offloaded_from, self._tenant)
        glimpse, stats = await asyncio.gather(coming, self._stats())
        began = time.perf_counter()
        self._offloaded_from = glimpse.next_offloaded_from
        is_new = self.writer.write(glimpse, self._statistics(began, stats))
        if not is_new and began - self._written_at >= _BEAT_S:
            self.writer.write_heartbeat()
            is_new = True
        if is_new:
            self._written_at = began
            self._notify()
        return pause_s(time.perf_counter() - began, self._count_feeds())

    async def _stats(self) -> EngineStats | None:
        """All tenants' statistics, for the operator only."""
        return None if self._tenant is not None else await self._model.stats()

    def _statistics(self, now: float, stats: EngineStats | None) -> JsonObject:
        """The engine's counters and the histograms."""
        if stats is None:
            return {}
        if now - self._latency_at >= _LATENCY_S:
            self._latency_at, self._latency_counts = now, self._latency()
        return {"stats": stats_row(stats), "latency": self._latency_counts}
