"""GET /v1/kv/watch: the pool's changes as a stream of frames (format in frames.py).

The page reads it with `fetch`, which can send a key; an EventSource cannot.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.generation import Edge
from octavo.server.sse import EventStream
from octavo.server.tenant import entry_of, visible_tenant

_MEDIA_TYPE = "application/octet-stream"


async def watch_pool(edge: Edge, request: Request) -> Response:
    """Stream until the client disconnects, the engine stops, or the key becomes invalid."""
    if request.method == "HEAD":
        return Response(media_type=_MEDIA_TYPE, headers={"Cache-Control": "no-cache"})
    entry = entry_of(request)

    def is_allowed() -> bool:
        return edge.roster is None or entry in edge.roster.tenants.all

    frames = edge.feeds.frames(visible_tenant(request), is_allowed)
    await anext(frames, b"")  # raises errors now, while the status can still be set
    return EventStream(frames, media_type=_MEDIA_TYPE, keep_alive_s=None)
