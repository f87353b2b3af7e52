"""`octavo top`: a live view of a running server's KV memory: blocks, requests that wait and why, sessions and
pins, recent events.

    GET /v1/kv/watch ─ frames ─> Watch (the newest state) ─ every `interval_s` ─> terminal

One task reads frames as they arrive, the other draws. After a lost connection the reader connects again; the
screen keeps the last state meanwhile. `top_rows` draws.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncGenerator
from typing import cast

from rich.console import Console, Group
from rich.live import Live

from octavo.cli.remote_stream import KeyRefused, RemoteServer, StreamRequest, stream_of
from octavo.cli.terminal import is_screen, print_json
from octavo.cli.top_rows import Speeds, Status, ago, draw_screen
from octavo.cli.top_text import Canvas
from octavo.errors import RequestFailed
from octavo.server.frames import FrameReader

_FRAMES = StreamRequest("/v1/kv/watch", "application/octet-stream", "frames")
_ONCE_S = 1.0  # how long --once waits for tokens, to measure their speed
_STALE_S = 8.0  # the server sends a frame every 2 s, or 5 s with many watchers, but none during a step
_RETRY_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # before the first, second ... attempt to connect again
_NOTICE_S = 30.0
_ENOUGH_COLOURS = ("256", "truecolor")


def run(url: str, api_key: str, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Show until interrupted; only once with `once` or `as_json`, or if the output is not a terminal. Raises
    RequestFailed if the server does not answer, or refuses the key."""
    if as_json:
        print_json(asyncio.run(_state(Watch(url, api_key))))
        return
    console = Console()
    if once or not is_screen(console):
        asyncio.run(_show_once(Watch(url, api_key), console))
        return
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_show(Watch(url, api_key), console, interval_s))


class Watch:
    """The newest state of a server's stream, and the state of the connection. `follow` reads the stream."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url
        self.reader = FrameReader()
        self.speeds = Speeds()
        self.first = asyncio.Event()  # a frame has arrived
        self._api_key = api_key
        self._received_at = 0.0  # on the monotonic clock, like all times here
        self._lost = ""  # why there is no connection
        self._run: object = None  # the server's run id
        self._restarted_at = float("-inf")
        self._failures = 0

    async def follow(self) -> None:
        """Read the stream forever. Raises RequestFailed if the first connection fails, or the key is
        refused."""
        while True:
            try:
                await self._follow_once()
                self._lost = f"{self.url} closed the connection"
            except RequestFailed as error:
                if isinstance(error, KeyRefused) or not self.first.is_set():
                    raise
                self._lost = str(error)
            if not self.first.is_set():
                raise RequestFailed(f"{self.url} closed the connection before it sent a frame")
            pause = _RETRY_PAUSES_S[min(self._failures, len(_RETRY_PAUSES_S) - 1)]
            self._failures += 1
            await asyncio.sleep(pause)

    def status(self) -> Status:
        """The state of the connection."""
        now = time.monotonic()
        silent_s = now - self._received_at
        if self._lost:
            return Status(f"no connection for {silent_s:.0f} s, trying again: {self._lost}", True)
        if silent_s > _STALE_S:
            return Status(
                f"no frame for {silent_s:.0f} s: a step takes long, or the connection hangs", is_wrong=True
            )
        if now - self._restarted_at < _NOTICE_S:
            return Status(f"live; the server restarted {ago(now - self._restarted_at)}")
        return Status("live")

    async def _follow_once(self) -> None:
        reader = FrameReader()  # a new stream begins with a snapshot
        async with contextlib.aclosing(_stream(self.url, self._api_key)) as stream:
            async for data in stream:
                try:
                    count = reader.feed(data)
                except (ValueError, LookupError, struct.error) as error:
                    raise RequestFailed(f"{self.url} sent a malformed frame: {error}") from None
                if count:
                    self._update(reader)

    def _update(self, reader: FrameReader) -> None:
        now, run = time.monotonic(), _run_of(reader)
        if self.first.is_set() and run != self._run:
            self.speeds, self._restarted_at = Speeds(), now
        self.reader, self._run, self._received_at = reader, run, now
        self._lost, self._failures = "", 0
        self.speeds.update(reader)
        self.first.set()


async def _state(watch: Watch) -> dict[str, object]:
    """Everything that is drawn, except single blocks."""
    following = asyncio.create_task(watch.follow())
    try:
        await _until_first(watch, following)
    finally:
        await _end(following)
    reader = watch.reader
    holders = [{**each.row, "blocks": len(each.blocks)} for each in reader.holdings.values()]
    return {**reader.parts, "holders": holders, "requests": list(reader.requests.values())}


async def _show_once(watch: Watch, console: Console) -> None:
    following = asyncio.create_task(watch.follow())
    try:
        await _until_first(watch, following)
        if watch.reader.requests:
            await asyncio.wait({following}, timeout=_ONCE_S)
        canvas = _make_canvas(console, is_endless=True)
        lines = draw_screen(watch.url, watch.reader, watch.speeds, canvas, Status())
        console.print(Group(*lines), soft_wrap=True)
    finally:
        await _end(following)


async def _show(watch: Watch, console: Console, interval_s: float) -> None:
    def draw() -> Group:
        canvas = _make_canvas(console, is_endless=False)
        return Group(*draw_screen(watch.url, watch.reader, watch.speeds, canvas, watch.status()))

    following = asyncio.create_task(watch.follow())
    try:
        await _until_first(watch, following)
        with Live(draw(), console=console, screen=True, auto_refresh=False) as live:
            while not following.done():
                await asyncio.wait({following}, timeout=interval_s)
                live.update(draw(), refresh=True)
        await following  # it ends only with an error
    finally:
        await _end(following)


async def _until_first(watch: Watch, following: asyncio.Task[None]) -> None:
    first = asyncio.create_task(watch.first.wait())
    try:
        await asyncio.wait({first, following}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        first.cancel()
    if following.done() and not watch.first.is_set():
        await following


async def _end(following: asyncio.Task[None]) -> None:
    following.cancel()
    await asyncio.wait({following})


def _make_canvas(console: Console, is_endless: bool) -> Canvas:
    width, height = console.size
    is_ascii = console.options.ascii_only
    has_greys = console.color_system in _ENOUGH_COLOURS and not (console.no_color or is_ascii)
    return Canvas(width, None if is_endless else height, has_greys, is_ascii)


def _run_of(reader: FrameReader) -> object:
    return cast("dict[str, object]", reader.parts.get("server") or {}).get("run")


async def _stream(url: str, api_key: str) -> AsyncGenerator[bytes, None]:
    """The frames' bytes as they arrive. Raises as `stream_of`."""
    async with contextlib.aclosing(stream_of(RemoteServer(url, api_key), _FRAMES)) as stream:
        async for data in stream:
            yield data
