"""Server-sent events over a connection that may vanish: what was running is told so, at once, whatever
happened.

Starlette's StreamingResponse leaves a generator suspended when it is cancelled while sending; here
`on_close` runs in every case, so a client that went away frees its blocks without waiting for a garbage
collector.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from octavo.server.errors import encode_json

DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def event(body: Mapping[str, object]) -> bytes:
    """One event; JSON escapes line breaks, so one line is enough."""
    return b"data: " + encode_json(body) + b"\n\n"


class EventStream(Response):
    """Sends what `events` yields until it ends or the client leaves, then calls `on_close` once."""

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_close: Callable[[], None],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers=_HEADERS | dict(headers or {}))
        del self.headers["content-length"]
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send_all(send))
        watcher = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_close()
            watcher.cancel()
            sender.cancel()  # does nothing to one that is done
            await asyncio.wait({sender, watcher})
            await self._events.aclose()
        error = None if sender.cancelled() else sender.exception()
        if error is not None and not isinstance(error, OSError):  # OSError: the client left while we wrote
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client has gone; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
