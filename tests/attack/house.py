"""A real `octavo serve` in a process of its own, and what the attacks do to it: raw connections, bounded
loops, and a stopwatch beside them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx

SMALL = ("--kv-memory", "256MiB", "--context-length", "8192")
START_S = 60.0
THROUGH_RELAY = "TEST_THROUGH_RELAY"  # 1: a relay and replicas in place of each server


class House:
    """A running server. `log` is its standard error."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process = process
        self.url = url
        self.port = int(url.rsplit(":", 1)[1])
        self.log = log
        self.ended = False  # on purpose

    def ask(self, method: str, path: str, **options: object) -> httpx.Response:
        return httpx.request(method, self.url + path, timeout=120, **options)  # type: ignore[arg-type]

    def rss_mib(self) -> float:
        """Memory of the server process."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024  # type: ignore[union-attr]

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def kill(self) -> None:
        self.ended = True
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def serving(
    folder: Path,
    *arguments: str,
    descriptors: int | None = None,
    env: dict[str, str] | None = None,
    port: int | None = None,
) -> Iterator[House]:
    """A server on the default model. `descriptors` is the most it may have open. It is killed in the end."""

    def limit() -> None:
        if descriptors is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))

    port = port or free_port()
    log = folder / f"server-{port}.log"
    through = os.environ.get(THROUGH_RELAY)
    program = ["tests.cluster.serve_relay"] if through else ["octavo", "serve"]
    command = [sys.executable, "-m", *program, "--port", str(port), *SMALL, *arguments]
    process = subprocess.Popen(command, stderr=log.open("wb"), preexec_fn=limit, env=os.environ | (env or {}))
    house = House(process, f"http://127.0.0.1:{port}", log)
    try:
        deadline = time.monotonic() + (2 * START_S if through else START_S)
        while True:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            with contextlib.suppress(httpx.TransportError):
                if house.ask("GET", "/health").status_code == 200:
                    break
            time.sleep(0.05)
        yield house
        assert house.ended or process.poll() is None, f"the server is dead:\n{log.read_text()[-2000:]}"
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def raise_own_limit() -> None:
    """The attacker needs descriptors, too."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 8192 if hard == resource.RLIM_INFINITY else min(hard, 8192)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def post(port: int, path: str, body: object, **headers: str) -> tuple[int, bytes]:
    """One whole request over a connection of its own; a client library would cost more than the server."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head("POST", path, len(data), **headers) + data)
        status = int((await reader.readline()).split()[1])
        return status, await reader.read()
    finally:
        writer.close()


def head(method: str, path: str, length: int, **headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Connection: close", f"Content-Length: {length}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


async def stream(port: int, body: dict[str, object], **headers: str) -> AsyncIterator[float]:
    """The moments at which chunks of a streamed completion come."""
    data = json.dumps({**body, "stream": True}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**24)
    try:
        writer.write(head("POST", "/v1/completions", len(data), **headers) + data)
        assert b" 200 " in await reader.readline()
        async for line in reader:
            if line.startswith(b"data: "):
                assert b'"error"' not in line, line
                yield time.perf_counter()
    finally:
        writer.close()


class Probe:
    """Asks /health again and again, on a thread of its own process; tells the slowest answer."""

    def __init__(self, port: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _PROBE, str(port)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has begun

    def end(self) -> list[float]:
        """Seconds of every answer. Raises AssertionError where one was no 200."""
        out, _ = self._process.communicate("\n", timeout=30)
        told = json.loads(out)
        assert told["failures"] == [], told["failures"][:3]
        return sorted(told["seconds"])


_PROBE = """
import json, select, socket, sys, time
port, seconds, failures = int(sys.argv[1]), [], []
print("begun", flush=True)
while not select.select([sys.stdin], [], [], 0.02)[0]:
    begun = time.perf_counter()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=10) as one:
            one.sendall(b"GET /health HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
            told = one.recv(4096)
            if b" 200 " not in told:
                failures.append(repr(told[:200]))
    except OSError as error:
        failures.append(repr(error))
    seconds.append(time.perf_counter() - begun)
print(json.dumps({"seconds": seconds, "failures": failures}))
"""
