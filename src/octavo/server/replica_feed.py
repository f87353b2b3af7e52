"""GET /replica/feed: a replica's blocks and load for routers, in frames of `octavo.routing.reports`.

Only replicas of a cluster have it, and it needs the cluster's key. It ends with the engine, or when its
reader is cut off for not reading.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.port import ViewLoad
from octavo.errors import EngineStopped
from octavo.routing.reports import Load, encode_frame
from octavo.server.generation import Edge
from octavo.server.sse import EventStream
from octavo.serving.replica_feed import Feed

BUSY_S, IDLE_S = 0.1, 1.0  # between two reports of the load, with and without requests
_GATHER_S = 0.02  # changes of steps within this time are sent together
_MEDIA_TYPE = "application/octet-stream"


async def replica_feed(edge: Edge, request: Request) -> Response:
    """Stream until the reader leaves, is cut off, or the engine stops."""
    feed = edge.model.feed
    if feed is None or edge.model.gave_up is not None:
        raise EngineStopped(edge.model.gave_up or "the engine has stopped")
    if request.method == "HEAD":
        return Response(media_type=_MEDIA_TYPE, headers={"Cache-Control": "no-cache"})
    return EventStream(_frames(edge, feed), media_type=_MEDIA_TYPE, keep_alive_s=None)


async def _frames(edge: Edge, feed: Feed) -> AsyncGenerator[bytes, None]:
    """The hello, then its frames and, in between, its load; the last load again while a step takes long."""
    yield encode_frame(feed.hello)
    clock, reader = asyncio.get_running_loop().time, feed.open()
    reading = asyncio.wrap_future(reader.read())
    loading: asyncio.Task[Load] | None = None
    load, sent, due = None, 0.0, clock()
    try:
        while True:
            if loading is None and clock() >= (sent + BUSY_S if edge.model.is_draining else due):
                loading = asyncio.create_task(edge.model.submitter.send(ViewLoad()))
            works: list[asyncio.Future[bytes | None] | asyncio.Future[Load]] = [reading]
            works += [] if loading is None else [loading]
            await asyncio.wait(works, timeout=BUSY_S, return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                if (data := reading.result()) is None:
                    return
                yield data
                due = min(due, sent + BUSY_S)
                await asyncio.sleep(_GATHER_S)
                reading = asyncio.wrap_future(reader.read())
            if loading is not None and loading.done():
                load, loading = loading.result(), None
                due = clock() + (BUSY_S if load.num_running or load.num_waiting else IDLE_S)
            elif load is None or clock() < sent + IDLE_S:
                continue
            sent = clock()
            yield _frame_of(load, is_draining=edge.model.is_draining)
    except EngineStopped:
        if load is not None:
            yield _frame_of(load, is_draining=True)
    finally:
        for work in (reading, loading):
            if work is not None:
                work.cancel()
        reader.close()


def _frame_of(load: Load, *, is_draining: bool) -> bytes:
    return encode_frame(msgspec.structs.replace(load, is_draining=is_draining))
