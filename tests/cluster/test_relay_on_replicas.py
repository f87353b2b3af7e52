"""A relay over two real replicas of the tiny model: answers are those of one server, also while a replica
dies."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.cluster.conftest import SMALL, new_replica
from tests.cluster.relaying import StaticFleet, fleet_of, relaying
from tests.server.tenants import ALICE, BOB, BOSS, TENANTS, by
from tests.waiting import LIMIT_S, wait_until
from typer.testing import CliRunner, Result

from octavo.cli.main import app
from octavo.cluster.child import ReplicaChild
from octavo.routing.router import Router
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry

HELLO = [{"role": "user", "content": "Hello there"}]
SAMPLED = {"temperature": 0.7, "seed": 5}
ASKED = {
    "/v1/chat/completions": {"messages": HELLO, "max_tokens": 8, "logprobs": True, **SAMPLED},
    "/v1/completions": {"prompt": ["Once", [5, 6, 7]], "max_tokens": 8, "n": 2, "logprobs": 2, **SAMPLED},
    "/v1/messages": {"messages": HELLO, "max_tokens": 8, "temperature": 0},
    "/v1/responses": {"input": "Hello there", "max_output_tokens": 8, "store": False, "temperature": 0},
    "/api/chat": {"model": "tiny", "messages": HELLO, "options": {"num_predict": 8, **SAMPLED}},
    "/api/generate": {"model": "tiny", "prompt": "Hello", "options": {"num_predict": 8, **SAMPLED}},
    "/v1/embeddings": {"input": ["Hello", "there"]},
    "/api/embed": {"model": "tiny", "input": "Hello"},
    "/tokenize": {"prompt": "Hello there"},
    "/v1/messages/count_tokens": {"messages": HELLO},
}
# Ids and times, and what was cached: Anthropic's input_tokens are those that were not.
OF_A_MOMENT = (
    "id",
    "created",
    "_at",
    "duration",
    "block_seconds",
    "cached_tokens",
    "cache_read",
    "input_tokens",
)


@dataclass(frozen=True, slots=True)
class Cluster:
    url: str
    client: httpx.Client
    children: list[ReplicaChild]
    fleet: StaticFleet
    router: Router

    def direct(self, slot: int = 0) -> httpx.Client:
        """A client of one replica."""
        headers = self.children[slot].replica.headers
        return httpx.Client(base_url=self.children[slot].base_url, headers=headers, timeout=LIMIT_S)


def started(folder: Path, key: str, slots: tuple[int, ...] = (0, 1)) -> list[ReplicaChild]:
    return [ReplicaChild(new_replica(slot, key=key), [str(folder), *SMALL]) for slot in slots]


@pytest.fixture(scope="module")
def cluster(tiny_folder: Path) -> Iterator[Cluster]:
    children, router = started(tiny_folder, secrets.token_hex(32)), Router()
    try:
        fleet = fleet_of(children)
        with relaying(tiny_folder, fleet, router=router) as (url, _), httpx.Client(base_url=url) as client:
            client.timeout = httpx.Timeout(LIMIT_S)
            wait_until(lambda: len(router.states(0.0)) == 2)
            yield Cluster(url, client, children, fleet, router)
    finally:
        for child in children:
            child.kill()


def settled(value: object) -> object:
    """The answer without what differs between two times of asking."""
    if isinstance(value, dict):
        kept = {k: v for k, v in value.items() if not any(part in k for part in OF_A_MOMENT)}
        return {name: settled(item) for name, item in kept.items()}
    return [settled(item) for item in value] if isinstance(value, list) else value


def events_of(text: str) -> list[object]:
    """The objects of an answer; of several choices those of each one together, for they come as they are
    made."""
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    found = [json.loads(line) for line in lines if line.startswith("{")]
    found.sort(key=lambda event: event["choices"][0]["index"] if event.get("choices") else 0)
    return [settled(event) for event in found]


@pytest.mark.parametrize("path", ASKED)
def test_an_answer_is_bit_for_bit_that_of_one_server(cluster: Cluster, path: str) -> None:
    with cluster.direct() as direct:
        for more in ({}, {"stream": True}) if "embed" not in path else ({},):
            body = ASKED[path] | ({"stream": False} if path.startswith("/api/") else {}) | more
            one, relayed = direct.post(path, json=body), cluster.client.post(path, json=body)
            assert one.status_code == relayed.status_code == 200, relayed.text
            assert events_of(relayed.text) == events_of(one.text)
            assert relayed.headers["content-type"] == one.headers["content-type"]


def test_a_prompt_is_found_where_its_blocks_are_reported(cluster: Cluster) -> None:
    for body in ({"prompt": "x" * 400}, {"prompt": "x" * 400, "cache_salt": "s"}):
        known = sum(state.num_blocks for state in cluster.router.states(0.0))
        first = cluster.client.post("/v1/completions", json=body)
        wait_until(lambda known=known: sum(s.num_blocks for s in cluster.router.states(0.0)) >= known + 25)
        again = cluster.client.post("/v1/completions", json=body)
        assert again.headers["x-octavo-replica"] == first.headers["x-octavo-replica"]
        [request_id] = again.headers["x-octavo-request"].split(",")
        routing = cluster.client.get(f"/v1/requests/{request_id}").json()["routing"]
        assert routing["replica"] == first.headers["x-octavo-replica"]
        assert routing["reason"].startswith("384 of 400 prompt tokens are cached (384 in pool")
        assert again.json()["usage"]["cached_tokens"] == 384


def test_a_tenants_prompt_is_found_after_a_prefix_that_the_operator_shares(
    tiny_folder: Path, tmp_path: Path
) -> None:
    path, prefix, key = tmp_path / "tenants.toml", "x" * 100, secrets.token_hex(32)
    path.write_text(TENANTS.replace("guaranteed = 4\nmaximum = 8\n", ""))
    flags = [str(tiny_folder), *SMALL, "--tenants", str(path)]
    children = [ReplicaChild(new_replica(slot, key=key), flags) for slot in (0, 1)]
    try:
        router, settings = Router(), ServerSettings(roster=TenantRegistry(path))
        with relaying(tiny_folder, fleet_of(children), settings, router) as (url, _):
            wait_until(lambda: len(router.states(0.0)) == 2)
            client = httpx.Client(base_url=url, timeout=LIMIT_S)
            pin = {"name": "rules", "tenant": "shared", "prompt": prefix}
            assert client.post("/v1/kv/pins", json=pin, **by(BOSS)).status_code == 201
            wait_until(lambda: [len(scheme.shared) for scheme in router.fingerprints().values()] == [6])
            for key, text in ((ALICE, prefix + "a" * 300), (BOB, prefix + "b" * 300), (BOB, "c" * 400)):
                body = {"prompt": text, "max_tokens": 1}
                for found in (f"{96 if text.startswith(prefix) else 0}", "384"):
                    answer = client.post("/v1/completions", json=body, **by(key))
                    request_id = answer.headers["x-octavo-request"]
                    row = client.get(f"/v1/requests/{request_id}", **by(key)).json()
                    assert row["routing"]["reason"].startswith(f"{found} of 400 prompt tokens are cached")
                    assert answer.json()["usage"]["cached_tokens"] == int(found)
    finally:
        for child in children:
            child.kill()


def test_sessions_and_responses_go_on_where_they_began(cluster: Cluster) -> None:
    turn = {"messages": HELLO, "max_tokens": 4}
    for _ in range(2):
        begun = cluster.client.post("/v1/chat/completions", json=turn | {"session": "new"})
        session, name = begun.headers["x-octavo-session"], begun.headers["x-octavo-replica"]
        named = cluster.client.post("/v1/chat/completions", json=turn, headers={"x-octavo-session": session})
        assert named.headers["x-octavo-replica"] == name
        assert cluster.client.get(f"/v1/sessions/{session}").json()["turns"] == 2
        fork = cluster.client.post(f"/v1/sessions/{session}/fork", json={})
        assert fork.json()["id"].startswith(session.partition("-")[0])
        response = cluster.client.post("/v1/responses", json={"input": "a", "max_output_tokens": 4})
        more = {"input": "b", "previous_response_id": response.json()["id"], "max_output_tokens": 4}
        following = cluster.client.post("/v1/responses", json=more)
        assert following.headers["x-octavo-replica"] == response.headers["x-octavo-replica"]
        assert cluster.client.get(f"/v1/responses/{following.json()['id']}").status_code == 200
    assert cluster.client.get("/v1/sessions").json()["total"] >= 4


def raw(url: str, data: bytes) -> bytes:
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), LIMIT_S) as connection:
        connection.sendall(data)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_nothing_is_smuggled_past_the_relay(cluster: Cluster) -> None:
    inner = b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    body = b'{"prompt":"a","max_tokens":1}'
    head = b"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n"
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    both = head + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked + inner
    answer = raw(cluster.url, both)
    assert answer.count(b"HTTP/1.1 ") == 1, "what follows such a request is no request"
    assert b"octavo_blocks" not in answer
    two = head + b"Content-Length: 3\r\nContent-Length: 29\r\n\r\n" + body
    assert raw(cluster.url, two).startswith(b"HTTP/1.1 400")
    only = raw(cluster.url, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked)
    assert only.startswith(b"HTTP/1.1 200"), "a body without a length is framed anew"
    encoded = b"GET /v1/sessions/..%2f..%2fmetrics HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
    assert raw(cluster.url, encoded).startswith(b"HTTP/1.1 404")


def test_metrics_and_maps_are_of_each_replica(cluster: Cluster) -> None:
    text = cluster.client.get("/metrics").text
    for slot in (0, 1):
        assert f'octavo_block_size_tokens{{replica="replica-{slot}",model_name="tiny"}} 16.0' in text
        view = cluster.client.get(f"/v1/kv?replica=replica-{slot}")
        assert view.headers["x-octavo-replica"] == f"replica-{slot}"
        with cluster.client.stream("GET", f"/v1/kv/watch?replica=replica-{slot}") as watched:
            assert next(watched.iter_raw())
    assert cluster.fleet.num_held == 0


def test_one_replicas_pool_is_resized_from_the_command_line(cluster: Cluster) -> None:
    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["pool", *words, "--url", cluster.url, "--json"])

    def num_blocks(*words: str) -> int:
        return int(json.loads(run(*words).stdout)["counts"]["total"])

    before = [num_blocks("show", "--replica", f"replica-{slot}") for slot in (0, 1)]
    size = str(cluster.client.get("/v1/kv").json()["bytes_per_block"] * (before[1] - 1))
    assert num_blocks("resize", size, "--replica", "replica-1") == before[1] - 1
    assert num_blocks("show", "--replica", "replica-0") == before[0]
    assert "allowed: ?replica= with replica-0, replica-1" in str(run("resize", size).exception)


@pytest.mark.full
def test_a_replica_killed_under_load_costs_its_streams_alone(tiny_folder: Path) -> None:
    children, router = started(tiny_folder, secrets.token_hex(32)), Router()
    body = {"max_tokens": 200, "stream": True, "temperature": 0, "ignore_eos": True}
    try:
        fleet = fleet_of(children)
        with relaying(tiny_folder, fleet, router=router) as (url, _), httpx.Client(base_url=url) as client:
            wait_until(lambda: len(router.states(0.0)) == 2)
            client.timeout = httpx.Timeout(LIMIT_S)
            bodies = [body | {"prompt": f"{i} a"} for i in range(8)]
            alone = [texts_of(client.post("/v1/completions", json=one).text) for one in bodies]
            begun, seen = threading.Semaphore(0), [0, 0]

            def read(i: int) -> tuple[str, bool]:
                parts = []
                with client.stream("POST", "/v1/completions", json=bodies[i]) as answer:
                    assert answer.status_code == 200
                    seen[int(answer.headers["x-octavo-replica"][-1])] += 1
                    for line in answer.iter_lines():
                        parts.append(line)
                        if len(parts) == 5:
                            begun.release()
                begun.release()
                text = "\n".join(parts)
                assert text.rstrip().endswith("data: [DONE]")
                return texts_of(text), '"error"' in text

            with ThreadPoolExecutor(8) as pool:
                reading = [pool.submit(read, i) for i in range(8)]
                for _ in range(8):
                    begun.acquire()
                os.kill(children[0].pid, signal.SIGKILL)
                found = [one.result() for one in reading]
            for i, (text, is_cut) in enumerate(found):
                assert alone[i].startswith(text) if is_cut else alone[i] == text
            assert sum(is_cut for _, is_cut in found) <= seen[0]
            after = [client.post("/v1/completions", json={"prompt": f"{i} b"}) for i in range(4)]
            assert {answer.headers["x-octavo-replica"] for answer in after} == {"replica-1"}
            refused = client.get("/v1/sessions/k0-gone")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "slot_without_replica")
    finally:
        for child in children:
            child.kill()


def texts_of(text: str) -> str:
    events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    return "".join(choice["text"] for event in events for choice in event.get("choices", ()))
