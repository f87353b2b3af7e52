"""GET /v1/kv/watch: the pool as it changes, in frames (`frames.py` draws them).

It is fetched like any other route, with a key where there are keys: an EventSource could send none.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.generation import Edge
from octavo.server.sse import EventStream
from octavo.server.tenant import entry_of, visible_tenant

_MEDIA_TYPE = "application/octet-stream"


async def watch_pool(edge: Edge, request: Request) -> Response:
    """Stream until the client leaves, the engine stops, or its key ceases to be one."""
    if request.method == "HEAD":
        return Response(media_type=_MEDIA_TYPE, headers={"Cache-Control": "no-cache"})
    entry = entry_of(request)

    def may_go_on() -> bool:
        return edge.roster is None or entry in edge.roster.tenants.all

    frames = edge.feeds.frames(visible_tenant(request), may_go_on)
    await anext(frames, b"")  # what speaks against it is raised here, where it can still be answered
    return EventStream(frames, media_type=_MEDIA_TYPE, keep_alive_s=None)
