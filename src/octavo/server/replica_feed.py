"""GET /replica/feed: what routers learn of a replica, in frames of `octavo.routing.reports`.

It is there only in a replica of a cluster, and the cluster's key alone opens it. It ends with the engine, and
where its reader is cut off because it does not read.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.port import ViewLoad
from octavo.errors import EngineStopped
from octavo.routing.reports import encode_frame
from octavo.server.generation import Edge
from octavo.server.sse import EventStream
from octavo.serving.replica_feed import FeedReader, ReplicaFeed

BUSY_S, IDLE_S = 0.1, 1.0  # between two reports of the load, where something runs and where nothing does
_GATHER_S = 0.02  # changes of the steps within this time are sent together
_MEDIA_TYPE = "application/octet-stream"


async def replica_feed(edge: Edge, request: Request) -> Response:
    """Stream until the reader leaves, is cut off, or the engine stops."""
    feed = edge.model.feed
    if feed is None or edge.model.gave_up is not None:
        raise EngineStopped(edge.model.gave_up or "the engine has stopped")
    if request.method == "HEAD":
        return Response(media_type=_MEDIA_TYPE, headers={"Cache-Control": "no-cache"})
    return EventStream(_frames(edge, feed), media_type=_MEDIA_TYPE, keep_alive_s=None)


async def _frames(edge: Edge, feed: ReplicaFeed) -> AsyncGenerator[bytes, None]:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()

    def on_data() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(ready.set)

    yield encode_frame(feed.hello)
    reader = feed.open(on_data)
    try:
        async for data in _of_reader(edge, reader, ready):
            yield data
    finally:
        reader.close()


async def _of_reader(edge: Edge, reader: FeedReader, ready: asyncio.Event) -> AsyncGenerator[bytes, None]:
    """Its frames, and the load between them."""
    loop = asyncio.get_running_loop()
    sent, due = 0.0, loop.time()
    while True:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(due):
                await ready.wait()
                await asyncio.sleep(_GATHER_S)
        ready.clear()
        if (data := reader.take()) is None:
            return
        if data:
            yield data
            due = min(due, sent + BUSY_S)
        if loop.time() >= due:
            try:
                load = await edge.model.submitter.send(ViewLoad())
            except EngineStopped:
                return
            load = msgspec.structs.replace(load, is_draining=edge.model.is_draining)
            yield encode_frame(load)
            sent = loop.time()
            due = sent + (BUSY_S if load.num_running or load.num_waiting else IDLE_S)
