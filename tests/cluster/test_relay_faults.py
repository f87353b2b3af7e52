"""What a relay does with clients that mean harm, and with replicas that fail halfway."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.cluster.fakes import (
    CHAT,
    IDLE,
    STREAM,
    FakeReplica,
    Got,
    House,
    all_got,
    answers,
    dies,
    run,
    streams,
)
from tests.cluster.relaying import StaticFleet
from tests.waiting import turns, until

from octavo.cluster.fleet import Replica
from octavo.cluster.relay import create_relay_server
from octavo.cluster.upstream import OutgoingRequest, Upstream
from octavo.server.run import bind
from octavo.server.settings import ServerSettings
from octavo.serving.client import EngineClient


@asynccontextmanager
async def served(renderer: EngineClient, house: House) -> AsyncIterator[int]:
    """The port of a relay server of this house."""
    server = create_relay_server(renderer, ServerSettings(), house.router, house.fleet)
    with bind("127.0.0.1", 0) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        await until(lambda: server.started)
        yield listener.getsockname()[1]
        server.should_exit = True
        await serving


# -- targets -------------------------------------------------------------------------------------------------
def test_a_target_cannot_name_the_host_that_gets_the_clusters_key(renderer, pair):
    async def act(house: House) -> list[bytes]:
        heads = []
        async with served(renderer, house) as port:
            evil = pair[1].url.removeprefix("http://")
            for target in (f"%2Fv1%2Frequests%2F@{evil}", f"%2Fv1%2Fkv%2Fpins%2F@{evil}/x", "%2Fv1/kv"):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(f"GET {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
                heads.append(await reader.readline())
                writer.close()
        return heads

    assert run(renderer, pair, act) == [b"HTTP/1.1 400 Bad Request\r\n"] * 3
    assert all_got(*pair) == []


def test_a_path_that_is_none_is_sent_nowhere():
    async def main() -> None:
        upstream = Upstream("key")
        with pytest.raises(ValueError, match="allowed: /path"):
            await upstream.send(
                Replica("id", 0, "http://127.0.0.1:1"), OutgoingRequest("GET", "@127.0.0.1/x", {})
            )
        await upstream.close()

    asyncio.run(main())


# -- streams that do not begin -------------------------------------------------------------------------------
SIGN = b": keep-alive\n\n"


async def dies_behind_its_head(got: Got, writer: asyncio.StreamWriter) -> None:
    await streams([], dies=True)(got, writer)


async def streamed(house: House, body: dict[str, object], dying: FakeReplica) -> list[str]:
    """Answers to a few prompts where one replica ends behind the heads of its answers."""
    for replica in house.replicas:
        replica.behave = streams([b"data: {}\n\n"])
    dying.behave = dies_behind_its_head
    path = "/v1/chat/completions"
    posts = [await house.client.post(path, json=body | {"stream": True, "seed": seed}) for seed in range(3)]
    return [f"{answer.status_code} {answer.text}" for answer in posts]


def test_a_stream_whose_replica_dies_behind_its_head_is_that_of_another(renderer, pair):
    async def act(house: House) -> list[str]:
        answered = await streamed(house, CHAT, pair[0]) + await streamed(house, CHAT, pair[1])
        assert house.app.state.relay.view()["relay"]["lost"] > 0
        return answered

    assert run(renderer, pair, act) == ["200 data: {}\n\n"] * 6


def test_a_stream_that_writes_is_not_sent_twice(renderer, pair):
    async def act(house: House) -> None:
        for replica in pair:
            replica.behave = dies_behind_its_head
        body = CHAT | {"session": "new", "stream": True}
        refused = await house.client.post("/v1/chat/completions", json=body)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "replica_lost")
        assert len(all_got(*pair)) == 1

    run(renderer, pair, act)


@pytest.mark.parametrize(
    ("path", "sign", "media"),
    [
        ("/v1/chat/completions", SIGN, "text/event-stream"),
        ("/v1/messages", b'event: ping\ndata: {"type":"ping"}\n\n', "text/event-stream"),
        ("/api/chat", b" ", "application/x-ndjson"),
    ],
)
def test_a_sign_of_life_is_passed_on_and_behind_it_is_an_error_event(renderer, pair, path, sign, media):
    pair[0].behave = pair[1].behave = streams([sign], media, dies=True)
    body = CHAT | {"stream": True, "model": "tiny"}
    answer = run(renderer, pair, lambda house: house.client.post(path, json=body))
    assert answer.content.startswith(sign)
    assert "was lost before its end" in answer.text
    assert len(all_got(*pair)) == 1


@pytest.mark.parametrize("sign", [b"", SIGN])
def test_a_client_that_leaves_before_a_stream_begins_ends_it_at_the_replica(renderer, pair, sign):
    async def waits(got: Got, writer: asyncio.StreamWriter) -> None:
        chunk = b"%x\r\n%s\r\n" % (len(sign), sign) if sign else b""
        writer.write(STREAM % b"text/event-stream" + chunk)
        await asyncio.Event().wait()

    async def act(house: House) -> None:
        pair[0].behave = pair[1].behave = waits
        async with served(renderer, house) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            data = b'{"prompt": "a", "stream": true}'
            head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            if sign:
                await reader.readuntil(sign)  # it has come to the client at once
            else:
                await until(lambda: all_got(*pair))
            writer.close()
            await until(lambda: any(replica.num_left for replica in pair))

    run(renderer, pair, act)


# -- replicas that are full or gone --------------------------------------------------------------------------
async def hangs(got: Got, writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


def test_the_cluster_is_shown_with_how_many_answers_each_replica_has(renderer, pair):
    async def act(house: House) -> None:
        for replica in pair:
            replica.behave = hangs
        post = asyncio.ensure_future(house.client.post("/v1/chat/completions", json=CHAT))
        await until(lambda: all_got(*pair))
        rows = (await house.client.get("/cluster")).json()["replicas"]
        assert sum(row["answering"] for row in rows) == 1
        scraped = house.app.state.relay._metrics.render().decode()
        assert 'octavo_relay_answers_open{to="replica-' in scraped
        await house.app.state.relay.close()
        assert (await post).status_code == 503
        rows = (await house.client.get("/cluster")).json()["replicas"]
        assert [row["answering"] for row in rows] == [0, 0]

    run(renderer, pair, act)


def test_a_turn_that_its_replica_did_not_read_is_sent_to_its_slot_again(renderer, pair):
    async def act(house: House) -> None:
        async def post() -> tuple[int, str]:
            answer = await house.client.post("/v1/chat/completions", json=CHAT | {"session": "k1-abc"})
            return answer.status_code, answer.json().get("error", {}).get("code", "")

        pair[1].behave = dies
        assert await post() == (503, "replica_lost")
        assert len(pair[1].got) == 1, "it may have read the turn, which is not sent again"
        pair[1].end()
        waiting = asyncio.ensure_future(post())
        await until(lambda: house.app.state.relay._metrics.requests.labels("replica-1")._value.get() > 2)
        assert not waiting.done()
        restarted = FakeReplica(1)
        await restarted.begin()
        house.fleet.known["id-1"] = dataclasses.replace(house.fleet.known["id-1"], base_url=restarted.url)
        assert await waiting == (200, "")
        assert len(restarted.got) == 1
        restarted.end()

    run(renderer, pair, act)


def test_where_the_only_replica_left_is_full_a_request_gets_429_and_is_counted_once(renderer, pair):
    async def act(house: House) -> None:
        pair[0].behave = dies
        house.router.on_load("id-1", msgspec.structs.replace(IDLE, is_full=True), time.monotonic())
        answer = await house.client.post("/v1/chat/completions", json=CHAT)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "queue_full")
        assert (house.router.counts.full, house.router.counts.none) == (1, 0)

    run(renderer, pair, act)


def test_a_request_that_waits_for_a_report_in_vain_is_counted_once(renderer, pair, monkeypatch):
    monkeypatch.setattr("octavo.cluster.relay._FIRST_REPORT_S", 0.3)

    async def act(house: House) -> None:
        for slot in (0, 1):
            house.router.on_gone(f"id-{slot}")
        house.app.state.relay._feeds.known.clear()  # they run, and their reports are awaited
        assert (await house.client.post("/v1/chat/completions", json=CHAT)).status_code == 503
        assert (house.router.counts.full, house.router.counts.none) == (0, 1)

    run(renderer, pair, act)


def test_a_replica_that_is_lost_within_its_refusal_is_not_the_last_one(renderer, pair):
    async def refuses_and_dies(got: Got, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 429 Words\r\ncontent-length: 100\r\n\r\n{")
        await turns(100)
        writer.close()

    async def act(house: House) -> list[int]:
        found = []
        for dying in pair:
            pair[0].behave = pair[1].behave = answers({"ok": True})
            dying.behave = refuses_and_dies
            for seed in range(3):
                answer = await house.client.post("/v1/chat/completions", json=CHAT | {"seed": seed})
                found.append(answer.status_code)
        return found

    assert run(renderer, pair, act) == [200] * 6


def test_the_error_events_number_follows_the_last_event_that_the_client_has(renderer, pair):
    event = b'event: a\ndata: {"sequence_number":6}\n\n'
    behind = SIGN + b'event: a\ndata: {"sequence_number":9}'  # the latter is kept back
    pair[0].behave = pair[1].behave = streams([event, behind], dies=True)
    body = {"input": "Hello", "stream": True}
    answer = run(renderer, pair, lambda house: house.client.post("/v1/responses", json=body))
    assert '"sequence_number":7' in answer.text
    assert '"sequence_number":9' not in answer.text


def test_replicas_are_followed_again_whatever_an_error_was(renderer, pair, monkeypatch, caplog):
    def fails(*_: object) -> None:
        raise RuntimeError("one time")

    async def act(house: House) -> None:
        old, house.fleet.known = house.fleet.known, {}
        await until(lambda: not house.router.states(0.0))
        with monkeypatch.context() as changed:
            changed.setattr(house.router, "on_load", fails)
            house.fleet.known = old
            await until(lambda: "a report of replica-1 was not read" in caplog.text)
            changed.setattr(StaticFleet, "replicas", fails)
            await until(lambda: "the fleet was not read" in caplog.text)
        await until(lambda: len(house.router.states(0.0)) == 2)

    run(renderer, pair, act)


# -- all replicas --------------------------------------------------------------------------------------------
PINS = "/v1/kv/pins"
PIN = {"name": "a", "prompt": "hello"}
PIN_ROW = {"name": "a", "tenant": ""}
MADE = answers(PIN_ROW, 201)


@pytest.mark.parametrize(("age", "is_deleted"), [(0.0, True), (60.0, False)])
def test_where_one_replica_did_not_answer_a_pin_is_undone_but_not_an_older_one(
    renderer, pair, age, is_deleted
):
    listed = answers({"object": "list", "data": [{"name": "b", "age": 0.0}, PIN_ROW | {"age": age}]})

    async def loses_the_answer(got: Got, writer: asyncio.StreamWriter) -> None:
        await (dies if got.method == "POST" else listed)(got, writer)

    async def dies_at_deletes(got: Got, writer: asyncio.StreamWriter) -> None:
        await (dies if got.method == "DELETE" else MADE)(got, writer)

    async def act(house: House) -> None:
        third = house.replicas[2]
        pair[0].behave, pair[1].behave, third.behave = dies_at_deletes, MADE, loses_the_answer
        refused = await house.client.post(PINS, json=PIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "replica_lost")
        assert "replica-2" in refused.json()["error"]["message"]
        assert refused.headers["x-octavo-replicas-missing"] == "replica-2"
        for replica in pair:
            assert [got.method for got in replica.got][:2] == ["POST", "DELETE"]
        assert [got.method for got in third.got] == ["POST", "GET", *(["DELETE"] if is_deleted else [])]

    run(renderer, (*pair, FakeReplica(2)), act)


def test_a_change_names_the_replicas_that_did_not_answer(renderer, pair):
    async def act(house: House) -> None:
        pair[1].behave = dies
        answer = await house.client.delete(f"{PINS}/a")
        assert (answer.status_code, answer.headers["x-octavo-replicas-missing"]) == (200, "replica-1")

    run(renderer, pair, act)


def test_a_pin_whose_client_leaves_is_undone_where_one_refuses_it(renderer, pair):
    async def act(house: House) -> None:
        may_refuse = asyncio.Event()

        async def refuses(got: Got, writer: asyncio.StreamWriter) -> None:
            await may_refuse.wait()
            await answers({"error": {}}, 409)(got, writer)

        pair[0].behave, pair[1].behave = MADE, refuses
        async with served(renderer, house) as port:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            data = json.dumps(PIN).encode()
            head = f"POST {PINS} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
            writer.write(head.encode() + data)
            await until(lambda: len(all_got(*pair)) == 2)
            writer.close()
            await turns(100)  # it has been noticed
            may_refuse.set()
            await until(lambda: [got.method for got in pair[0].got] == ["POST", "DELETE"])

    run(renderer, pair, act)


def test_a_replica_that_hangs_does_not_block_a_pin_and_is_named(renderer, pair, monkeypatch):
    monkeypatch.setattr("octavo.cluster.fan_out._PIN_S", 0.05)
    monkeypatch.setattr("octavo.cluster.fan_out._SILENT_S", 0.05)

    async def act(house: House) -> None:
        pair[0].behave, pair[1].behave = MADE, hangs
        async with asyncio.timeout(20):
            refused = await house.client.post(PINS, json=PIN)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "replica_lost")
        assert "did not answer: replica-1" in refused.json()["error"]["message"]
        assert [got.method for got in pair[0].got] == ["POST", "DELETE"]
        assert pair[1].num_left > 0, "its connection was closed, which cancels the pin there"

    run(renderer, pair, act)


def test_a_replica_that_hangs_blocks_no_list(renderer, pair, monkeypatch):
    monkeypatch.setattr("octavo.cluster.fan_out._SILENT_S", 0.05)
    pair[0].behave, pair[1].behave = answers(b"# TYPE a_x gauge\na_x 5\n"), hangs
    scraped = run(renderer, pair, lambda house: house.client.get("/metrics"))
    assert 'a_x{replica="replica-0"} 5' in scraped.text
    assert scraped.headers["x-octavo-replicas-missing"] == "replica-1"


def test_a_head_request_has_the_head_of_what_get_has(renderer, pair):
    async def act(house: House) -> list[int]:
        pair[0].behave = pair[1].behave = answers({"ok": True}, 200, {"x-octavo-request": "k0-5"})
        await house.client.post("/v1/completions", json={"prompt": "a"})
        found = [(await house.client.head("/v1/requests/k0-5")).status_code]
        pair[0].behave = pair[1].behave = answers({"object": "list", "data": []})
        found += [(await house.client.head(path)).status_code for path in ("/v1/sessions", PINS)]
        assert "HEAD" not in {got.method for got in all_got(*pair)}
        return found

    assert run(renderer, pair, act) == [200] * 3


def test_a_packed_pin_of_a_session_goes_to_its_slot(renderer, pair):
    body = gzip.compress(json.dumps({"name": "a", "session": "k1-x"}).encode())
    headers = {"content-encoding": "gzip"}
    answer = run(renderer, pair, lambda house: house.client.post(PINS, content=body, headers=headers))
    assert answer.status_code == 200
    assert ([got.body for got in pair[1].got], pair[0].got) == ([body], [])
