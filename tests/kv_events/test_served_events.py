"""A real server's events, as routers read them: live and by replay, in one process and behind front ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.kv_events.readers import Dynamo, LlmD
from tests.processes import running, url_told

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'octavo[events]'")
from tests.kv_events.sockets import client, replay_of  # noqa: E402

pytestmark = pytest.mark.real_model
SIZE = 16
PROMPT = list(range(300, 300 + 5 * SIZE + 3))
FOUND = [{"gpu"}] * 5


@pytest.mark.parametrize("front_ends", [(), ("--http-processes", "1")])
def test_routers_find_what_the_next_request_hits(tmp_path: Path, front_ends: tuple[str, ...]) -> None:
    endpoint, replay = (f"ipc://{tmp_path}/{name}" for name in ("live", "replay"))
    command = [sys.executable, "-m", "octavo", "serve", "--port", "0", "--kv-memory", "64MiB"]
    command += ["--kv-events", endpoint, "--kv-events-replay", replay, *front_ends]
    with (
        running(command, stderr=subprocess.PIPE) as process,
        httpx.Client(base_url=url_told(process), timeout=60) as http,
        client(zmq.SUB, endpoint) as sub,
    ):
        source = http.get("/kv_event_sources").json()["0"]
        assert (source["endpoint"], source["replay_endpoint"]) == (endpoint, replay)

        def cached(**fields: object) -> int:
            body = {"prompt": PROMPT, "max_tokens": 1, **fields}
            usage = http.post("/v1/completions", json=body).raise_for_status().json()["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]

        live = Dynamo()

        def read_until_found(salt: str) -> None:
            while live.find(PROMPT, SIZE, salt) != FOUND:
                topic, number, payload = sub.recv_multipart()
                assert topic.decode() == source["topic"]
                live.receive(topic, int.from_bytes(number, "big"), payload)

        assert cached() == 0
        read_until_found("")
        assert cached() == len(FOUND) * SIZE
        assert live.find(PROMPT, SIZE, "x") == []
        assert cached(cache_salt="x") == 0
        read_until_found("x")
        with client(zmq.DEALER, replay) as dealer:
            late = LlmD(lambda start: replay_of(dealer, start, source["topic"]))
            for salt in ("", "x"):
                assert late.find(PROMPT, SIZE, salt) == FOUND
        metrics = http.get("/metrics").text
        assert 'octavo_kv_events_lost_total{model_name="smollm2-135m"} 0.0' in metrics
