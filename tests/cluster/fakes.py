"""Replicas that do as a test says, behind a real relay application, on one event loop."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from starlette.applications import Starlette
from tests.cluster.relaying import StaticFleet
from tests.waiting import turns, until

from octavo.cluster.fleet import Replica
from octavo.cluster.relay import create_relay_app
from octavo.config import StartOptions
from octavo.routing.reports import Hello, Load, encode_frame
from octavo.routing.router import Router
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient
from octavo.serving.start import start_renderer

T = TypeVar("T")
KEY = "5" * 64
IDLE = Load(0, 0, 0, (), 0, 1000, 1000)
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Got:
    """A request that a replica was sent."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, object]:
        return dict(json.loads(self.body))


Behave = Callable[[Got, asyncio.StreamWriter], Awaitable[None]]


def answers(body: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Behave:
    """A whole JSON answer."""

    async def behave(got: Got, writer: asyncio.StreamWriter) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        lines = [f"HTTP/1.1 {status} Words", f"content-length: {len(data)}", "content-type: application/json"]
        lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
        writer.write("\r\n".join([*lines, "", ""]).encode() + data)

    return behave


def streams(
    events: Sequence[bytes], content_type: str = "text/event-stream", *, dies: bool = False
) -> Behave:
    """An answer in chunks; `dies`: the connection ends behind them, in place of their end."""

    async def behave(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(STREAM % content_type.encode())
        for event in events:
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
        if dies:
            await turns(100)  # what was sent has been read: an end that comes with it takes it along
            writer.close()
        else:
            writer.write(b"0\r\n\r\n")

    return behave


async def dies(got: Got, writer: asyncio.StreamWriter) -> None:
    """Nothing but the end of the connection."""
    writer.transport.abort()


@dataclass(slots=True)
class FakeReplica:
    """One server, with a feed. `behave` is what it does with any other request."""

    slot: int
    behave: Behave = field(default_factory=lambda: answers({"ok": True}))
    load: Load = IDLE
    got: list[Got] = field(default_factory=list)
    num_left: int = 0  # connections that were closed before their answer ended
    url: str = ""
    _server: asyncio.Server | None = None

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def end(self) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while True:
                got = await _read_request(reader)
                assert got.headers["x-octavo-cluster"] == KEY
                if got.path == "/replica/feed":
                    await self._feed(writer)
                self.got.append(got)
                doing = asyncio.ensure_future(self.behave(got, writer))
                ended = asyncio.ensure_future(reader.read(1))
                await asyncio.wait({doing, ended}, return_when=asyncio.FIRST_COMPLETED)
                if not doing.done():
                    doing.cancel()
                    self.num_left += 1
                    return
                ended.cancel()
                await asyncio.gather(doing, ended, return_exceptions=True)
                await writer.drain()

    async def _feed(self, writer: asyncio.StreamWriter) -> None:
        hello = Hello(1, self.slot, f"replica-{self.slot}", "tiny", "f", (b"tiny",), 16, 2048, 8, 4, 64)
        writer.write(STREAM % b"application/octet-stream")
        for report in (hello, self.load):
            frame = encode_frame(report)
            writer.write(b"%x\r\n%s\r\n" % (len(frame), frame))
        await asyncio.Event().wait()


async def _read_request(reader: asyncio.StreamReader) -> Got:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    assert "transfer-encoding" not in headers
    return Got(method, path, headers, await reader.readexactly(int(headers.get("content-length", 0))))


@dataclass(frozen=True, slots=True)
class House:
    """A relay application, a client of it, and the replicas behind."""

    client: httpx.AsyncClient
    replicas: Sequence[FakeReplica]
    fleet: StaticFleet
    router: Router
    app: Starlette


def new_renderer(folder: Path) -> EngineClient:
    return start_renderer(str(folder), StartOptions(), lambda _: None)


@asynccontextmanager
async def house_of(
    renderer: EngineClient, *replicas: FakeReplica, settings: ServerSettings | None = None
) -> AsyncIterator[House]:
    """The relay has the reports of all replicas when this is entered."""
    async with AsyncExitStack() as stack:
        for replica in replicas:
            await replica.begin()
            stack.callback(replica.end)
        known = {f"id-{one.slot}": Replica(f"id-{one.slot}", one.slot, one.url) for one in replicas}
        fleet, router = StaticFleet(KEY, known), Router()
        app = create_relay_app(renderer, settings or ServerSettings(), router, fleet)
        app.state.relay.begin()
        stack.push_async_callback(app.state.relay.close)
        await until(lambda: len(router.states(0.0)) == len(replicas))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", timeout=30)
        await stack.enter_async_context(client)
        yield House(client, replicas, fleet, router, app)
        assert fleet.num_held == 0


def run(renderer: EngineClient, replicas: tuple[FakeReplica, ...], act: Callable[[House], Awaitable[T]]) -> T:
    """What `act` gives, in a house of these."""

    async def main() -> T:
        async with house_of(renderer, *replicas) as house:
            return await act(house)

    return asyncio.run(main())


def all_got(*replicas: FakeReplica) -> list[Got]:
    """The requests of all."""
    return [got for replica in replicas for got in replica.got]
