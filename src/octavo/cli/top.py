"""`octavo top`: a running server's KV memory, live: its blocks, who waits and why, what it keeps, what
happened lately.

    GET /v1/kv/watch ─ frames ─> Watch (the newest state) ─ every `interval_s` ─> terminal

One task reads, as fast as frames come; the other draws. A connection that is lost is made again; what was
seen last stays meanwhile. How it looks, `top_rows` knows.
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

from octavo.cli.remote_stream import KeyRefused, RemoteServer, Wish, stream_of
from octavo.cli.tables import print_json
from octavo.cli.terminal import is_screen
from octavo.cli.top_rows import Status, ago, screen
from octavo.cli.top_speeds import Speeds
from octavo.cli.top_text import Look
from octavo.errors import RequestFailed
from octavo.server.frames import FrameReader

_FRAMES = Wish("/v1/kv/watch", "application/octet-stream", "frames")
_ONCE_S = 1.0  # how long one picture waits for tokens to come, so that it can say how fast they do
_STALE_S = 8.0  # the server sends a frame every two seconds, five where many watch, but none during a step
_PAUSES_S = (0.5, 1.0, 2.0, 4.0, 8.0)  # before the first, second ... attempt to connect again
_NOTICE_S = 30.0
_ENOUGH_COLOURS = ("256", "truecolor")


def run(url: str, api_key: str, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Show until interrupted; once, where that is asked for or no screen can be drawn on again, or as JSON.
    Raises RequestFailed when the server does not answer, and when the key ceases to be one."""
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
    """What a server's stream said last, and whether it goes on. `follow` reads it."""

    def __init__(self, url: str, api_key: str) -> None:
        self.url = url
        self.reader = FrameReader()
        self.speeds = Speeds()
        self.first = asyncio.Event()  # something can be shown
        self._api_key = api_key
        self._heard_at = 0.0  # on the monotonic clock, as all times here
        self._lost = ""  # why there is no connection
        self._run: object = None  # the server's
        self._began_again_at = float("-inf")
        self._failures = 0

    async def follow(self) -> None:
        """Read for ever. Raises RequestFailed where nothing has come yet, or the key is refused."""
        while True:
            try:
                await self._follow_once()
                self._lost = f"{self.url} ended the connection"
            except RequestFailed as error:
                if isinstance(error, KeyRefused) or not self.first.is_set():
                    raise
                self._lost = str(error)
            if not self.first.is_set():
                raise RequestFailed(f"{self.url} ended the connection before it said anything")
            pause = _PAUSES_S[min(self._failures, len(_PAUSES_S) - 1)]
            self._failures += 1
            await asyncio.sleep(pause)

    def status(self) -> Status:
        """Whether news come, in words."""
        now = time.monotonic()
        silent_s = now - self._heard_at
        if self._lost:
            return Status(f"no connection since {silent_s:.0f} s, trying again: {self._lost}", True)
        if silent_s > _STALE_S:
            return Status(
                f"no news for {silent_s:.0f} s: a step takes long, or the connection hangs", is_wrong=True
            )
        if now - self._began_again_at < _NOTICE_S:
            return Status(f"live; the server began again {ago(now - self._began_again_at)}")
        return Status("live")

    async def _follow_once(self) -> None:
        reader = FrameReader()  # a new stream begins with a snapshot
        async with contextlib.aclosing(_stream(self.url, self._api_key)) as stream:
            async for data in stream:
                try:
                    count = reader.feed(data)
                except (ValueError, LookupError, struct.error) as error:
                    raise RequestFailed(f"{self.url} sent what is no frame: {error}") from None
                if count:
                    self._take(reader)

    def _take(self, reader: FrameReader) -> None:
        now, run = time.monotonic(), _run_of(reader)
        if self.first.is_set() and run != self._run:
            self.speeds, self._began_again_at = Speeds(), now
        self.reader, self._run, self._heard_at = reader, run, now
        self._lost, self._failures = "", 0
        self.speeds.look(reader)
        self.first.set()


async def _state(watch: Watch) -> dict[str, object]:
    """All that a picture is drawn from, but for single blocks."""
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
        lines = screen(watch.url, watch.reader, watch.speeds, _look_of(console, is_paper=True), Status())
        console.print(Group(*lines), soft_wrap=True)
    finally:
        await _end(following)


async def _show(watch: Watch, console: Console, interval_s: float) -> None:
    def picture() -> Group:
        look = _look_of(console, is_paper=False)
        return Group(*screen(watch.url, watch.reader, watch.speeds, look, watch.status()))

    following = asyncio.create_task(watch.follow())
    try:
        await _until_first(watch, following)
        with Live(picture(), console=console, screen=True, auto_refresh=False) as live:
            while not following.done():
                await asyncio.wait({following}, timeout=interval_s)
                live.update(picture(), refresh=True)
        await following  # it ends by an error alone
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


def _look_of(console: Console, is_paper: bool) -> Look:
    width, height = console.size
    is_ascii = console.options.ascii_only
    has_greys = console.color_system in _ENOUGH_COLOURS and not (console.no_color or is_ascii)
    return Look(width, None if is_paper else height, has_greys, is_ascii)


def _run_of(reader: FrameReader) -> object:
    return cast("dict[str, object]", reader.parts.get("server") or {}).get("run")


async def _stream(url: str, api_key: str) -> AsyncGenerator[bytes, None]:
    """The frames' bytes as they come; raises as `stream_of`."""
    async with contextlib.aclosing(stream_of(RemoteServer(url, api_key), _FRAMES)) as stream:
        async for data in stream:
            yield data
