"""Dynamo's frontend before two of our workers, and a server of ours to compare with, on loopback alone.

Dynamo's event plane listens on all addresses, so this runs in a network namespace of its own (`make
test-dynamo`), with files in place of etcd and NATS.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.processes import running, url_told
from tests.waiting import wait_until

from octavo.model.hub.paths import cache_folder

DYNAMO = Path(sys.prefix) / "dynamo" / "bin" / "python"
PLANES = ("--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq")
ENGINE = ("--kv-memory", "256MiB", "--threads", "1")
MODEL = "smollm2-135m"


def skip_unless_alone() -> None:
    """Skip the test, with its reason, where Dynamo or a network namespace is missing."""
    if not DYNAMO.exists():
        pytest.skip(f"there is no {DYNAMO}: make test-dynamo installs Dynamo there")
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        pytest.skip("there are networks besides loopback: make test-dynamo, where `unshare -rn` is allowed")


@dataclass(frozen=True, slots=True)
class Worker:
    process: subprocess.Popen[str]
    status: httpx.Client  # its own metrics

    def blocks_held(self) -> float:
        """The share of its blocks that requests hold, as it has told Dynamo."""
        return sum(metric(self.status, "dynamo_component_gpu_cache_usage_percent"))

    def worker_id(self) -> int:
        """What Dynamo calls it."""
        found = re.search(r'worker_id="([0-9a-f]+)"', self.status.get("/metrics").text)
        assert found is not None
        return int(found[1], 16)


@dataclass(frozen=True, slots=True)
class Cluster:
    frontend: httpx.Client
    octavo: httpx.Client
    workers: tuple[Worker, ...]

    def events_applied(self) -> float:
        """KV events that the router's index has taken."""
        return sum(metric(self.frontend, "dynamo_component_kv_cache_events_applied", 'status="ok"'))

    def num_workers(self) -> float:
        """Those whose events the router reads."""
        name = "dynamo_component_router_kv_zmq_ingress_sources"
        return sum(metric(self.frontend, name, 'state="active"'))


def metric(client: httpx.Client, name: str, label: str = "") -> list[float]:
    """The values of a metric, by all its labels."""
    lines = client.get("/metrics").text.splitlines()
    return [float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{") and label in line]


@contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """All four programs, ready; their logs are in the folder. Ports are those of a namespace of its own."""
    loopback = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST")
    environment = os.environ | dict.fromkeys(loopback, "127.0.0.1")
    environment |= {"DYN_FILE_KV": str(folder / "discovery"), "HF_HUB_OFFLINE": "1", "HOME": str(folder)}
    environment |= {"OCTAVO_CACHE": str(cache_folder())}
    with ExitStack() as stack:

        def start(name: str, *words: object, **variables: str) -> subprocess.Popen[str]:
            log = stack.enter_context((folder / f"{name}.log").open("w"))
            env = environment | variables
            return stack.enter_context(running([DYNAMO, "-m", *words], stdout=log, stderr=log, env=env))

        def client(url: str) -> httpx.Client:
            return stack.enter_context(httpx.Client(base_url=url, timeout=120))

        http = ("--http-host", "127.0.0.1", "--http-port", "18080", "--router-mode", "kv")
        start("frontend", "dynamo.frontend", *http, *PLANES)
        workers = []
        for number in (1, 2):
            words = ("octavo.dynamo", MODEL, *ENGINE, *PLANES)
            process = start(f"worker-{number}", *words, DYN_SYSTEM_PORT=str(19090 + number))
            workers.append(Worker(process, client(f"http://127.0.0.1:{19090 + number}")))
        serve = [sys.executable, "-m", "octavo", "serve", MODEL, *ENGINE, "--port", "0"]
        octavo = stack.enter_context(running(serve, stderr=subprocess.PIPE))
        made = Cluster(client("http://127.0.0.1:18080"), client(url_told(octavo)), tuple(workers))
        wait_until(lambda: _is_ready(made))
        yield made


def _is_ready(made: Cluster) -> bool:
    """Whether the router knows both workers."""
    with suppress(httpx.TransportError):
        return made.num_workers() == 2 and bool(made.frontend.get("/v1/models").json()["data"])
    return False
