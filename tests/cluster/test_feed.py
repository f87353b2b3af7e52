"""The feed of a real replica: who it is, the blocks that it has, its load."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from tests.cluster.conftest import StartChild, new_replica
from tests.cluster.feeds import FeedFollower, following
from tests.waiting import LIMIT_S

from octavo.cluster.child import ReplicaChild
from octavo.memory.changes import Place
from octavo.memory.names import NameChain, root_name
from octavo.routing.reports import NAME_BYTES, Hello
from octavo.routing.slots import slot_of
from octavo.server.app import create_app
from octavo.server.settings import ServerSettings


def ask(child: ReplicaChild, method: str, path: str, **options: object) -> httpx.Response:
    headers = child.replica.headers | options.pop("headers", {})  # type: ignore[arg-type,operator]
    answer = httpx.request(method, f"{child.base_url}{path}", headers=headers, timeout=LIMIT_S, **options)  # type: ignore[arg-type]
    assert answer.is_success, answer.text
    return answer


def complete(child: ReplicaChild, prompt: str) -> None:
    ask(child, "POST", "/v1/completions", json={"prompt": prompt, "max_tokens": 1, "temperature": 0})


def chat(child: ReplicaChild, text: str, max_tokens: int = 1) -> httpx.Response:
    """In a new session."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": max_tokens, "ignore_eos": True}
    headers = {"X-Octavo-Session": "new"}
    return ask(child, "POST", "/v1/chat/completions", json=body, headers=headers)


@contextmanager
def long_stream(child: ReplicaChild) -> Iterator[None]:
    """A stream of which the first piece has come; the block's end leaves it."""
    body = {"prompt": "a", "max_tokens": 1900, "ignore_eos": True, "stream": True}
    url, headers = f"{child.base_url}/v1/completions", child.replica.headers
    with httpx.stream("POST", url, json=body, headers=headers, timeout=LIMIT_S) as stream:
        pieces = stream.iter_raw()
        next(pieces)
        yield


def names_of(child: ReplicaChild, hello: Hello, prompt: str) -> list[bytes]:
    """Of the prompt's full blocks, as a router makes them."""
    tokens = ask(child, "POST", "/tokenize", json={"prompt": prompt}).json()["tokens"]
    chain = NameChain(root_name(b"", *hello.root_parts), hello.block_size)
    chain.extend(array("I", tokens))
    return [name[-NAME_BYTES:] for name in chain.names]


def until(pieces: Iterator[FeedFollower], holds: Callable[[FeedFollower], object]) -> FeedFollower:
    """The follower, when that holds of it."""
    return next(follower for follower in pieces if holds(follower))


WITH_FRONT_ENDS = pytest.mark.parametrize("front_ends", ["0", "2"])


@WITH_FRONT_ENDS
def test_a_router_finds_the_blocks_of_a_prompt_and_sees_them_go(
    start_child: StartChild, front_ends: str
) -> None:
    child = start_child(new_replica(3), "--kv-memory", "256KiB", "--http-processes", front_ends)
    child.wait_ready(LIMIT_S)
    complete(child, "a" * 200)
    with following(child) as pieces:
        follower = until(pieces, lambda seen: seen.known[Place.POOL])
        hello = follower.hello
        assert hello is not None
        assert (hello.slot, hello.name, hello.model) == (3, "replica-3", "tiny")
        first = names_of(child, hello, "a" * 200)
        assert len(first) == 200 // hello.block_size
        assert set(first) == follower.known[Place.POOL]
        complete(child, "b" * 300)
        second = names_of(child, hello, "b" * 300)
        until(pieces, lambda seen: seen.known[Place.POOL] >= set(second))
        num_blocks = follower.loads[-1].num_blocks
        complete(child, "c" * (num_blocks - 2) * hello.block_size)
        third = names_of(child, hello, "c" * (num_blocks - 2) * hello.block_size)
        until(pieces, lambda seen: seen.known[Place.POOL] >= set(third))
        assert not follower.known[Place.POOL] >= set(first), "they had to go"
        assert len(follower.known[Place.POOL]) <= num_blocks
        assert follower.num_clears == 1


def test_blocks_on_disk_are_found_there_also_after_a_restart(start_child: StartChild, tmp_path: Path) -> None:
    replica = new_replica(5, tmp_path / "5")
    child = start_child(replica, "--disk-size", "8MiB")
    child.wait_ready(LIMIT_S)
    said = chat(child, "a" * 100, 30)
    session = said.headers["X-Octavo-Session"]
    assert slot_of(session) == 5
    with following(child) as pieces:
        ask(child, "POST", f"/v1/sessions/{session}/suspend")
        known = set(until(pieces, lambda seen: len(seen.known[Place.DISK]) >= 129 // 16).known[Place.DISK])
    assert child.drain(LIMIT_S) == 0
    again = start_child(replica, "--disk-size", "8MiB")
    again.wait_ready(LIMIT_S)
    with following(again) as pieces:
        assert until(pieces, lambda seen: seen.known[Place.DISK]).known[Place.DISK] == known
    assert ask(again, "GET", f"/v1/sessions/{session}").json()["id"] == session


def test_the_load_is_reported_while_something_runs_and_when_nothing_does(start_child: StartChild) -> None:
    child = start_child()
    child.wait_ready(LIMIT_S)
    with following(child) as pieces:
        until(pieces, lambda seen: seen.loads and seen.loads[-1].num_running == 0)
        with long_stream(child):
            until(pieces, lambda seen: seen.loads[-1].num_running == 1 and seen.loads[-1].decode_left > 0)
        until(pieces, lambda seen: seen.loads[-1].num_running == 0)


@WITH_FRONT_ENDS
def test_a_drain_is_reported_and_ends_the_feed(start_child: StartChild, front_ends: str) -> None:
    child = start_child(None, "--http-processes", front_ends)
    child.wait_ready(LIMIT_S)
    with following(child) as pieces:
        until(pieces, lambda seen: seen.loads)
        with long_stream(child):
            child.begin_drain()
            until(pieces, lambda seen: seen.loads[-1].is_draining)
        assert all(seen.loads[-1].is_draining for seen in pieces)
    assert child.wait(LIMIT_S) == 0


@WITH_FRONT_ENDS
def test_ids_name_the_slot_and_are_found_again(start_child: StartChild, front_ends: str) -> None:
    child = start_child(new_replica(12), "--http-processes", front_ends)
    child.wait_ready(LIMIT_S)
    said = chat(child, "ab")
    request_id, session = said.headers["X-Octavo-Request"], said.headers["X-Octavo-Session"]
    fork = ask(child, "POST", f"/v1/sessions/{session}/fork", json={}).json()["id"]
    response = ask(child, "POST", "/v1/responses", json={"input": "ab", "max_output_tokens": 16}).json()
    items = [item["id"] for item in response["output"]]
    assert [slot_of(one) for one in (request_id, session, fork, response["id"], *items)] == [12] * (
        4 + len(items)
    )
    assert ask(child, "GET", f"/v1/requests/{request_id}").json()["request_id"] == request_id
    assert ask(child, "GET", f"/v1/responses/{response['id']}").json()["id"] == response["id"]
    more = {"input": [{"type": "item_reference", "id": items[0]}, {"role": "user", "content": "c"}]}
    ask(child, "POST", "/v1/responses", json=more | {"max_output_tokens": 16})
    for other in ("1", "k11-1", "k12-x", "k12-9"):
        path = f"{child.base_url}/v1/requests/{other}"
        assert httpx.get(path, headers=child.replica.headers).status_code == 404


def test_a_plain_server_has_no_feed(start_child: StartChild) -> None:
    from tests.doubles.fake_model import FakeModel
    from tests.server.conftest import Edge

    edge = Edge(FakeModel(), ServerSettings())
    assert edge.get("/replica/feed").status_code == 404
    assert create_app(FakeModel(), ServerSettings()) is not None  # type: ignore[arg-type]
    assert "/replica/feed" not in edge.get("/openapi.json").text
