"""The cost of a cluster's relay: CPU us for each forwarded chunk, and the delay of the first token.

    python -m bench.relay_cost chunks  [--streams 64] [--per-second 50] [--seconds 6]
    python -m bench.relay_cost first   [--requests 60] [--tokens 500] [--chat]

`chunks`: a process that only writes chunks replaces the replicas; the relay is the real one, over the tiny
model's tokenizer and template. `first`: requests to a real replica of the tiny model, alternately direct and
through a relay, one at a time. CPU time is that of the relay's process, from /proc.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
from tests.cluster.conftest import SMALL, new_replica
from tests.cluster.relaying import StaticFleet, fleet_of
from tests.cluster.tiny_folder import write_tiny_folder

from octavo.cluster.child import ReplicaChild
from octavo.cluster.fleet import Replica
from octavo.cluster.relay import create_relay_server
from octavo.config import StartOptions
from octavo.routing.reports import Hello, Load, encode_frame
from octavo.routing.router import Router
from octavo.server.run import bind
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_renderer

_CHUNK = b'data: {"id":"chatcmpl-1","choices":[{"index":0,"delta":{"content":"' + b"x" * 120 + b'"}}]}\n\n'
_FRAMED = b"%x\r\n%s\r\n" % (len(_CHUNK), _CHUNK)
_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
)
_CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "stream": True}


class _Writer(asyncio.Protocol):
    """One connection to the process that replaces the replicas."""

    def __init__(self, num_chunks: int, per_second: float) -> None:
        self._num_chunks, self._pause_s = num_chunks, 1 / per_second

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if data.startswith(b"GET /replica/feed"):
            self._task = asyncio.get_running_loop().create_task(self._feed())
        elif b"\r\n\r\n" in data:
            self._task = asyncio.get_running_loop().create_task(self._chunks())

    async def _feed(self) -> None:
        hello = Hello(1, 0, "replica-0", "tiny", "f", (b"tiny",), 16, 2048, 1024, 64, 512)
        load = Load(0, 0, 0, (), 0, 1000, 1000)
        self._transport.write(_HEAD)
        for report in (hello, *[load] * 600):
            frame = encode_frame(report)
            self._transport.write(b"%x\r\n%s\r\n" % (len(frame), frame))
            await asyncio.sleep(0.5)

    async def _chunks(self) -> None:
        self._transport.write(_HEAD)
        for _ in range(self._num_chunks):
            await asyncio.sleep(self._pause_s)
            self._transport.write(_FRAMED)
        self._transport.write(b"0\r\n\r\n")


async def _write_chunks(port: int, num_chunks: int, per_second: float) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Writer(num_chunks, per_second), "127.0.0.1", port)
    await server.serve_forever()


def _relay(model: str, port: int, target: str, key: str) -> None:
    """Run a relay over one replica until the process is killed."""
    fleet = StaticFleet(key, {"id-0": Replica("id-0", 0, target)})
    renderer = start_renderer(model, StartOptions(), lambda _: None)
    server = create_relay_server(renderer, ServerSettings(), Router(), fleet)
    asyncio.run(server.serve(sockets=[bind("127.0.0.1", port)]))


def _free_port() -> int:
    with bind("127.0.0.1", 0) as listener:
        return int(listener.getsockname()[1])


def _started(*words: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "bench.relay_cost", *map(str, words)])


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _wait_until_routed(url: str) -> None:
    """Wait until the relay serves and knows its replica."""
    for _ in range(400):
        try:
            rows = httpx.get(f"{url}/cluster").json()["replicas"]
            if rows[0]["load"] is not None:
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.05)
    raise SystemExit("the relay does not serve")


async def _read_stream(port: int, body: bytes, after_s: float) -> int:
    """Read a stream. Returns the number of chunks."""
    await asyncio.sleep(after_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    num = 0
    while data := await reader.read(1 << 16):
        num += data.count(b"data: ")
        if data.endswith(b"0\r\n\r\n"):
            break
    writer.close()
    return num


def _measure_chunks(folder: str, streams: int, per_second: float, seconds: float) -> None:
    ports, num = (_free_port(), _free_port()), int(seconds * per_second)
    writer = _started("writer", ports[0], num, per_second)
    relay = _started("relay", folder, ports[1], f"http://127.0.0.1:{ports[0]}", "0" * 64)
    try:
        _wait_until_routed(f"http://127.0.0.1:{ports[1]}")
        body = httpx.Request("POST", "http://a", json=_CHAT).content
        asyncio.run(_read_stream(ports[1], body, 0.0))  # warm-up

        async def all_streams() -> list[int]:
            pauses = [i / per_second / streams for i in range(streams)]
            return await asyncio.gather(*[_read_stream(ports[1], body, pause) for pause in pauses])

        before, started = _cpu_s(relay.pid), time.perf_counter()
        chunks = sum(asyncio.run(all_streams()))
        spent, took = _cpu_s(relay.pid) - before, time.perf_counter() - started
        print(f"{streams} streams x {per_second:g}/s: {chunks:,} chunks in {took:.1f} s", end="; ")
        print(f"{spent / chunks * 1e6:.0f} us of CPU a chunk, requests included")
    finally:
        relay.kill()
        writer.kill()


def _first_s(client: httpx.Client, url: str, text: str, headers: dict[str, str], is_chat: bool) -> float:
    """Seconds until the end of an answer of one token."""
    prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    path = "/v1/chat/completions" if is_chat else "/v1/completions"
    started = time.perf_counter()
    answer = client.post(url + path, json=prompt | {"max_tokens": 1}, headers=headers)
    assert answer.status_code == 200, answer.text
    return time.perf_counter() - started


def _measure_first(folder: str, requests: int, num_tokens: int, *, is_chat: bool) -> None:
    child = ReplicaChild(new_replica(), [folder, *SMALL])
    fleet, port = fleet_of([child]), _free_port()
    target = fleet.known["id-0"].base_url
    relay = _started("relay", folder, port, target, child.replica.key)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait_until_routed(url)
        times: dict[str, list[float]] = {"direct": [], "relayed": []}
        before = _cpu_s(relay.pid)
        with httpx.Client(timeout=30) as client:
            for _ in range(requests):
                for name, where in (("direct", target), ("relayed", url)):
                    prompt = secrets.token_urlsafe(num_tokens)[
                        :num_tokens
                    ]  # the tiny model's tokens are bytes
                    headers = child.replica.headers if name == "direct" else {}
                    times[name].append(_first_s(client, where, prompt, headers, is_chat) * 1e3)
        for name, found in times.items():
            deciles = statistics.quantiles(found, n=20)
            figures = (statistics.median(found), deciles[1], deciles[-1])
            print("{}: one token after {:.2f} ms, p10 {:.2f} ms, p95 {:.2f} ms".format(name, *figures))
        added = statistics.median(times["relayed"]) - statistics.median(times["direct"])
        print(
            f"added by the relay: {added:.2f} ms in the median of {requests}, {num_tokens} tokens", end="; "
        )
        print(f"{(_cpu_s(relay.pid) - before) / requests * 1e3:.1f} ms of CPU a request, reports included")
    finally:
        relay.kill()
        child.kill()


def main() -> None:
    """Run the measurement of the command line."""
    if sys.argv[1:2] == ["writer"]:
        asyncio.run(_write_chunks(int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])))
        return
    if sys.argv[1:2] == ["relay"]:
        _relay(sys.argv[2], int(sys.argv[3]), sys.argv[4], sys.argv[5])
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["chunks", "first"])
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--per-second", type=float, default=50)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--requests", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--chat", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tiny = str(write_tiny_folder(Path(folder) / "tiny"))
        if given.what == "chunks":
            _measure_chunks(tiny, given.streams, given.per_second, given.seconds)
        else:
            _measure_first(tiny, given.requests, given.tokens, is_chat=given.chat)


if __name__ == "__main__":
    main()
