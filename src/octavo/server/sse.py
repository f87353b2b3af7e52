"""Server-sent events that clean up at once when the client disconnects.

Starlette's StreamingResponse leaves a generator suspended if it is cancelled while sending. Here `on_close`
runs in every case, so that a disconnected client's blocks do not wait for the garbage collector.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncGenerator, Callable, Mapping

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DONE = b"data: [DONE]\n\n"
# A comment, which clients skip: proxies and browsers close connections that are silent for a minute.
KEEP_ALIVE = b": keep-alive\n\n"
KEEP_ALIVE_S = 15.0
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def encode_json(body: Mapping[str, object]) -> bytes:
    """Compact UTF-8. Raises ValueError for NaN, which would be our bug."""
    return json.dumps(body, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def event(body: Mapping[str, object]) -> bytes:
    """One event on one line: JSON escapes line breaks."""
    return b"data: " + encode_json(body) + b"\n\n"


def named_event(body: Mapping[str, object]) -> bytes:
    """One event, named by its type."""
    return f"event: {body['type']}\n".encode() + event(body)


class EventStream(Response):
    """Sends what `events` yields until it ends or the client disconnects, then calls `on_close` once.

    After `keep_alive_s` of silence (None: never) it sends `keep_alive`, which readers of `media_type` skip.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        on_close: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        *,
        keep_alive_s: float | None = KEEP_ALIVE_S,
        keep_alive: bytes = KEEP_ALIVE,
        media_type: str = "text/event-stream",
    ) -> None:
        super().__init__(headers=_HEADERS | dict(headers or {}), media_type=media_type)
        del self.headers["content-length"]
        self._keep_alive_s, self._keep_alive = keep_alive_s, keep_alive
        self._sent_at = 0.0  # on the event loop's clock
        self._events = events
        self._on_close = on_close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sender = asyncio.create_task(self._send_all(send))
        watcher = asyncio.create_task(wait_for_disconnect(receive))
        keeper = asyncio.create_task(self._send_keep_alives(send))
        try:
            await asyncio.wait({sender, watcher}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._on_close()
            for task in (watcher, keeper, sender):
                task.cancel()
            await asyncio.wait({sender, watcher, keeper})
            await self._events.aclose()
        error = None if sender.cancelled() else sender.exception()
        if error is not None and not isinstance(
            error, OSError
        ):  # OSError: the client disconnected during a write
            raise error

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        loop = asyncio.get_running_loop()
        self._sent_at = loop.time()
        async for data in self._events:
            await send({"type": "http.response.body", "body": data, "more_body": True})
            self._sent_at = loop.time()
        self._sent_at = math.inf  # nothing may follow the end
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send_keep_alives(self, send: Send) -> None:
        """Send a keep-alive after each silence: a request may wait long in the queue."""
        loop = asyncio.get_running_loop()
        while self._keep_alive_s is not None:
            await asyncio.sleep(self._keep_alive_s)
            silent_s = loop.time() - self._sent_at if self._sent_at else 0.0
            if silent_s >= self._keep_alive_s / 2:
                await send({"type": "http.response.body", "body": self._keep_alive, "more_body": True})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client disconnects; the request's body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass
