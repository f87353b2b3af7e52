"""Viewers of the live map, as raw ASGI calls: each reads at its own pace, leaves when it likes, and notes
what it was sent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

from tests.waiting import LIMIT_S

from octavo.server.frames import FrameReader

WATCH = "/v1/kv/watch"


def scope_of(path, headers=(), method="GET"):
    given = {"host": "127.0.0.1:8000", **dict(headers)}
    return {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": method, "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "scheme": "http",
        "headers": [(name.lower().encode(), value.encode()) for name, value in given.items()],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip


class Viewer:
    """One client of the stream. `reads` is cleared while it does not read."""

    def __init__(self, app, key=None, headers=(), method="GET"):
        self.reader, self.status, self.headers, self.body = FrameReader(), None, {}, b""
        self.reads, self.ended = asyncio.Event(), False
        self.reads.set()
        self._gone, self._told = asyncio.Event(), asyncio.Event()
        given = dict(headers) | ({"authorization": f"Bearer {key}"} if key else {})
        self.call = asyncio.ensure_future(app(scope_of(WATCH, given, method), self._receive, self._send))
        self.call.add_done_callback(lambda _: self._tell())

    async def _receive(self):
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message):
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {name.decode(): value.decode() for name, value in message["headers"]}
        else:
            if message["body"]:
                await self.reads.wait()
            self.body += message["body"]
            self.ended = not message.get("more_body", False)
            if self.status == 200:
                self.reader.feed(message["body"])
        self._tell()

    def _tell(self):
        self._told.set()
        self._told = asyncio.Event()

    async def until(self, condition):
        """Wait until it holds of this viewer."""
        async with asyncio.timeout(LIMIT_S):
            while not condition(self):
                assert not self.call.done(), (self.status, self.body[:300])
                await self._told.wait()
        return self.reader

    async def leave(self):
        self._gone.set()
        await asyncio.wait_for(self.call, LIMIT_S)

    async def end(self):
        """Wait until the server has ended the stream."""
        await asyncio.wait_for(self.call, LIMIT_S)
        assert self.ended
        return self


@asynccontextmanager
async def watching(app, *keys):
    """A viewer for each key, which has got its first frame; all leave in the end."""
    viewers = [Viewer(app, key) for key in keys or (None,)]
    try:
        for viewer in viewers:
            await viewer.until(lambda one: one.reader.number)
        yield viewers
    finally:
        for viewer in viewers:
            await viewer.leave()
