"""Where a relay sends requests, what replicas get of them, and what clients get where replicas fail."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json

import httpx
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
    house_of,
    run,
    streams,
)
from tests.server.tenants import ALICE, NOBODY, TENANTS, by
from tests.waiting import turns, until

from octavo.cluster.relay import create_relay_server
from octavo.routing.router import RouterCounts
from octavo.server.run import bind
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry

RESPONSE = {"input": "Hello", "max_output_tokens": 4}
MESSAGE = {"messages": CHAT["messages"], "max_tokens": 4}
OLLAMA = {"model": "tiny", "messages": CHAT["messages"]}
FULL = answers({"error": {"message": "full", "code": "queue_full"}}, 429, {"retry-after": "3"})


# -- what is passed on ---------------------------------------------------------------------------------------
def test_a_replica_gets_the_body_as_it_came_and_the_headers_that_it_reads(renderer, pair):
    body = gzip.compress(json.dumps(CHAT).encode())
    headers = {
        "authorization": "Bearer mine",
        "content-encoding": "gzip",
        "x-request-id": "mine-1",
        "traceparent": "00-1-2-03",
        "x-octavo-cluster": "0" * 64,
        "x-octavo-replica": "replica-9",
        "x-octavo-anything": "1",
        "cookie": "a=b",
        "forwarded": "for=1",
        "connection": "x-api-key",
    }
    path = "/v1/chat/completions?a=%2F&b"
    answer = run(renderer, pair, lambda house: house.client.post(path, content=body, headers=headers))
    assert answer.status_code == 200
    [got] = all_got(*pair)
    assert (got.method, got.path, got.body) == ("POST", path, body)
    named = {name: value for name, value in got.headers.items() if name in headers or "octavo" in name}
    assert named.pop("x-octavo-cluster") == "5" * 64
    kept = ("authorization", "content-encoding", "x-request-id", "traceparent")
    assert named == {name: headers[name] for name in kept}
    assert got.headers["host"].startswith("127.0.0.1:")
    assert answer.headers["x-octavo-replica"] in ("replica-0", "replica-1")
    assert answer.headers["x-request-id"] == "mine-1"


def test_of_a_header_that_comes_twice_a_replica_gets_the_one_that_the_relay_has_read(renderer, pair):
    twice = [
        ("x-octavo-session", "k1-a"),
        ("x-octavo-session", "k0-b"),
        ("x-api-key", "1"),
        ("x-api-key", "2"),
    ]
    path = "/v1/chat/completions"
    run(renderer, pair, lambda house: house.client.post(path, json=CHAT, headers=twice))
    assert pair[0].got == []
    assert (pair[1].got[0].headers["x-octavo-session"], pair[1].got[0].headers["x-api-key"]) == ("k1-a", "1")


def test_a_long_header_of_an_answer_is_passed_on(renderer, pair):
    ids = ",".join(f"k0-{number}" for number in range(2000))
    pair[0].behave = pair[1].behave = answers({}, 200, {"x-octavo-request": ids})
    answer = run(renderer, pair, lambda house: house.client.post("/v1/completions", json={"prompt": "a"}))
    assert answer.headers["x-octavo-request"] == ids


def test_prompts_with_one_beginning_go_to_one_replica(renderer, pair):
    async def act(house: House) -> set[str]:
        said = "One long beginning that several requests have in common. " * 8
        bodies = [{"prompt": said + end} for end in ("a", "b", "c", "d")]
        sent = [await house.client.post("/v1/completions", json=body) for body in bodies]
        return {answer.headers["x-octavo-replica"] for answer in sent}

    assert len(run(renderer, pair, act)) == 1


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/chat/completions", CHAT | {"temperature": 9}, 400),
        ("/v1/chat/completions", CHAT | {"model": "other"}, 404),
        ("/v1/completions", {"prompt": "a" * 5000}, 400),
        ("/v1/messages", {"messages": [], "max_tokens": 4}, 400),
        ("/api/chat", OLLAMA | {"options": {"top_k": "x"}}, 400),
        ("/v1/responses", RESPONSE | {"previous_response_id": 7}, 400),
        ("/v1/nothing", {}, 404),
        ("/replica/feed", {}, 404),
    ],
)
def test_what_a_replica_would_refuse_of_a_body_is_refused_before_it(renderer, pair, path, body, status):
    answer = run(renderer, pair, lambda house: house.client.post(path, json=body))
    assert answer.status_code == status
    assert "error" in answer.json()
    assert all_got(*pair) == []


def test_who_may_not_in_gets_no_further_than_the_relay(renderer, pair, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)

    async def main() -> list[int]:
        statuses = []
        async with house_of(renderer, *pair) as house:
            for headers in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
                answer = await house.client.post("/v1/chat/completions", json=CHAT, headers=headers)
                statuses.append(answer.status_code)
        settings = ServerSettings(roster=TenantRegistry(path))
        async with house_of(renderer, FakeReplica(0), settings=settings) as house:
            for key in (NOBODY, ALICE):
                answer = await house.client.post("/v1/completions", json={"prompt": "a"}, **by(key))
                statuses.append(answer.status_code)
            for route in ("/cluster", "/metrics"):
                statuses.append((await house.client.get(route, **by(ALICE))).status_code)
            assert [got.headers["authorization"] for got in all_got(*house.replicas)] == [f"Bearer {ALICE}"]
        return statuses

    assert asyncio.run(main()) == [403, 403, 401, 200, 403, 403]
    assert all_got(*pair) == []


# -- replicas that fail --------------------------------------------------------------------------------------
def test_a_request_whose_replica_dies_before_it_answers_goes_to_another(renderer, pair):
    async def act(house: House) -> list[int]:
        statuses = []
        for dying in pair:
            pair[0].behave = pair[1].behave = answers({"ok": True})
            dying.behave = dies
            bodies = ({"prompt": text} for text in ("a", "b", "c"))
            posts = [await house.client.post("/v1/completions", json=body) for body in bodies]
            statuses += [answer.status_code for answer in posts]
        return statuses

    assert run(renderer, pair, act) == [200] * 6
    assert len(all_got(*pair)) > 6, "a replica died at least once"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT | {"session": "new"}),
        ("/v1/responses", RESPONSE),
        ("/v1/sessions", {}),
    ],
)
def test_what_writes_is_not_sent_twice_unless_it_was_not_read(renderer, pair, path, body):
    async def act(house: House) -> tuple[int, str, list[int]]:
        pair[0].behave = pair[1].behave = dies
        refused = await house.client.post(path, json=body)
        assert len(all_got(*pair)) == 1
        pair[0].behave = pair[1].behave = answers({"ok": True})
        pair[0].end()  # nothing listens there any more
        after = [(await house.client.post(path, json=body)).status_code for _ in range(4)]
        return refused.status_code, refused.json()["error"]["code"], after

    assert run(renderer, pair, act) == (503, "replica_lost", [200] * 4)


def test_a_refusal_of_a_full_replica_is_passed_on_when_all_are_full(renderer, pair):
    async def act(house: House) -> None:
        for full in pair:
            pair[0].behave = pair[1].behave = answers({"ok": True})
            full.behave = FULL
            assert (await house.client.post("/v1/completions", json={"prompt": "a"})).status_code == 200
        pair[0].behave = pair[1].behave = FULL
        answer = await house.client.post("/v1/chat/completions", json=CHAT | {"session": "new"})
        assert (answer.status_code, answer.headers["retry-after"]) == (429, "3")
        assert answer.json()["error"]["code"] == "queue_full"

    run(renderer, pair, act)


def test_without_a_replica_clients_get_503_in_their_own_shape(renderer, pair):
    async def act(house: House) -> None:
        house.fleet.known.clear()
        await until(lambda: not house.router.states(0.0))
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/messages", MESSAGE), ("/api/chat", OLLAMA)):
            answer = await house.client.post(path, json=body)
            assert answer.status_code == 503
            assert "no replica" in str(answer.json()["error"])
        assert (await house.client.get("/health")).status_code == 503

    run(renderer, pair, act)


def test_a_request_waits_for_the_first_report_of_a_replica_that_runs(renderer, pair):
    """An update ends the last old replica when the first new one runs."""

    async def act(house: House) -> None:
        old = dict(house.fleet.known)
        house.fleet.known.clear()
        await until(lambda: not house.router.states(0.0))
        house.fleet.known |= old
        assert not house.router.states(0.0)
        assert (await house.client.post("/v1/chat/completions", json=CHAT)).status_code == 200

        # The router knows the old ones still, which take nothing more.
        house.fleet.known.clear()
        house.fleet.known |= {"id-new": dataclasses.replace(old["id-1"], replica_id="id-new")}
        assert set(old) == {state.replica_id for state in house.router.states(0.0)}
        assert (await house.client.post("/v1/chat/completions", json=CHAT)).status_code == 200

    run(renderer, pair, act)


def last_events(text: str) -> list[dict[str, object]]:
    lines = (line.removeprefix("data: ") for line in text.splitlines())
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(
    ("path", "body", "events", "kind"),
    [
        ("/v1/chat/completions", CHAT, b'data: {"n": 1}\n\ndata: {"n"', "openai"),
        ("/v1/completions", {"prompt": "a"}, b'data: {"n": 1}\n\ndata: {"n', "openai"),
        ("/v1/messages", MESSAGE, b'event: a\ndata: {"n": 1}\n\nevent: a\ndata: ', "anthropic"),
        ("/v1/responses", RESPONSE, b'event: a\ndata: {"n": 1,"sequence_number":6}\n\nevent', "responses"),
        ("/api/chat", OLLAMA, b'{"n": 1}\n{"n"', "ollama"),
    ],
)
def test_a_cut_stream_ends_with_the_error_event_of_its_api(renderer, pair, path, body, events, kind):
    media = "application/x-ndjson" if kind == "ollama" else "text/event-stream"
    pair[0].behave = pair[1].behave = streams([events[:5], events[5:]], media, dies=True)
    answer = run(renderer, pair, lambda house: house.client.post(path, json=body | {"stream": True}))
    assert answer.status_code == 200
    first, error = last_events(answer.text)
    assert first["n"] == 1
    assert "was lost before its end" in answer.text
    match kind:
        case "openai":
            assert error["error"]["type"] == "service_unavailable_error"
            assert answer.text.endswith("data: [DONE]\n\n")
        case "anthropic":
            assert (error["type"], error["error"]["type"]) == ("error", "overloaded_error")
            assert "\nevent: error\n" in answer.text
        case "responses":
            assert (error["type"], error["sequence_number"]) == ("error", 7)
        case "ollama":
            assert list(error) == ["error"]


def test_an_event_that_is_too_large_to_keep_back_is_passed_on_as_it_comes(renderer, pair, monkeypatch):
    monkeypatch.setattr("octavo.cluster.relayed_answer._EVENT_BYTES_MAX", 100)
    large = b"data: " + b"x" * 500
    pair[0].behave = pair[1].behave = streams([large, large + b"\n\n", b"data: end\n\n"])
    answer = run(renderer, pair, lambda house: house.client.post("/v1/completions", json={"prompt": "a"}))
    assert answer.content == large + large + b"\n\ndata: end\n\n"


def test_a_client_that_leaves_ends_its_request_at_the_replica(renderer, pair):
    async def waits(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.json.get("stream"):
            writer.write(STREAM % b"text/event-stream" + b"a\r\ndata: {}\n\n\r\n")
        await asyncio.Event().wait()

    async def open_and_leave(port: int, body: dict[str, object]) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        data = json.dumps(body).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n\r\n"
        writer.write(head.encode() + data)
        if body.get("stream"):
            await reader.readuntil(b"data: {}")
        else:
            await until(lambda: all_got(*pair))
        writer.close()

    async def act(house: House) -> None:
        for replica in pair:
            replica.behave = waits
        server = create_relay_server(renderer, ServerSettings(), house.router, house.fleet)
        with bind("127.0.0.1", 0) as listener:
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await until(lambda: server.started)
            for body in ({"prompt": "a"}, {"prompt": "a", "stream": True}):
                await open_and_leave(listener.getsockname()[1], body)
                await until(lambda: any(replica.num_left for replica in pair))
                for replica in pair:
                    replica.num_left = 0
                    replica.got.clear()
            server.should_exit = True
            await serving

    run(renderer, pair, act)


def test_a_relay_that_ends_informs_the_clients_that_still_read(renderer, pair):
    async def waits(got: Got, writer: asyncio.StreamWriter) -> None:
        if got.json.get("stream"):
            writer.write(STREAM % b"text/event-stream" + b'd\r\ndata: {"n"}\n\n\r\n')
        await asyncio.Event().wait()

    async def act(house: House) -> list[httpx.Response]:
        for replica in pair:
            replica.behave = waits
        bodies = ({"prompt": "a", "stream": True}, {"prompt": "a"}, {"prompt": "b", "stream": True})
        posts = [asyncio.ensure_future(house.client.post("/v1/completions", json=body)) for body in bodies]
        await until(lambda: len(all_got(*pair)) == len(bodies))
        await turns(100)  # the heads of the answers have come
        await house.app.state.relay.stop()
        refused = await house.client.post("/v1/completions", json={"prompt": "a"})
        return [*await asyncio.gather(*posts), refused]

    streamed, whole, also_streamed, refused = run(renderer, pair, act)
    for answer in (streamed, also_streamed):
        assert "engine_stopped" in answer.text
        assert answer.text.endswith("data: [DONE]\n\n")
    for answer in (whole, refused):
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "engine_stopped")


# -- by id, all, and one -------------------------------------------------------------------------------------
def test_an_id_names_its_slot_and_one_without_goes_to_any(renderer, pair):
    paths = ("/v1/sessions/k1-abc", "/v1/responses/resp_k1-abc", "/v1/requests/k1-7")

    async def act(house: House) -> None:
        for path in paths:
            assert (await house.client.get(path)).headers["x-octavo-replica"] == "replica-1"
        for body in (CHAT | {"session": "k1-abc"}, RESPONSE | {"previous_response_id": "resp_k1-abc"}):
            path = "/v1/responses" if "input" in body else "/v1/chat/completions"
            assert (await house.client.post(path, json=body)).headers["x-octavo-replica"] == "replica-1"
        assert (await house.client.get("/v1/sessions/unknown")).status_code == 200
        refused = await house.client.get("/v1/sessions/k7-abc")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "slot_without_replica")
        house.fleet.gone.add("id-1")
        assert (await house.client.get(paths[0])).status_code == 503

    run(renderer, pair, act)


def test_a_request_is_shown_with_its_replica_and_why_it_was_chosen(renderer, pair):
    async def act(house: House) -> None:
        for replica in pair:
            request_id = f"k{replica.slot}-5"
            replica.behave = answers({"request_id": request_id}, 200, {"x-octavo-request": request_id})
        sent = await house.client.post("/v1/completions", json={"prompt": "a"})
        shown = (await house.client.get(f"/v1/requests/{sent.headers['x-octavo-request']}")).json()
        assert shown["request_id"] == sent.headers["x-octavo-request"]
        assert shown["routing"]["replica"] == sent.headers["x-octavo-replica"]
        assert "predicted wait" in shown["routing"]["reason"]
        await house.client.post("/v1/chat/completions", json=CHAT | {"session": "k1-abc"})
        shown = (await house.client.get("/v1/requests/k1-5")).json()
        assert shown["routing"] == {"replica": "replica-1", "reason": "'k1-abc' is kept by slot 1"}
        house.app.state.relay._routed.clear()  # as at another relay
        shown = (await house.client.get("/v1/requests/k1-5")).json()
        assert shown["routing"]["replica"] == "replica-1"
        assert "another relay sent the request" in shown["routing"]["reason"]

    run(renderer, pair, act)


def test_lists_of_all_are_one_list_and_one_replica_can_be_named(renderer, pair):
    async def act(house: House) -> None:
        for replica in pair:
            row = {"id": f"k{replica.slot}-a"}
            replica.behave = answers({"object": "list", "data": [row], "total": 3})
        whole = (await house.client.get("/v1/sessions?limit=1")).json()
        rows = [{"id": f"k{slot}-a", "replica": f"replica-{slot}"} for slot in (0, 1)]
        assert whole == {"object": "list", "data": rows, "total": 6}
        assert [got.path for got in all_got(*pair)] == ["/v1/sessions?limit=1"] * 2
        one = await house.client.get("/v1/sessions?replica=replica-1&limit=1")
        assert one.json()["data"] == [{"id": "k1-a"}]
        assert pair[1].got[-1].path == "/v1/sessions?limit=1"
        assert (await house.client.get("/v1/kv")).headers["x-octavo-replica"] == "replica-0"
        refused = await house.client.get("/v1/kv?replica=replica-7")
        assert "replica-0, replica-1" in refused.json()["error"]["message"]
        pair[0].end()
        pair[0].behave = dies
        left = await house.client.get("/v1/sessions")
        assert left.headers["x-octavo-replicas-missing"] == "replica-0"
        assert left.json()["total"] == 3

    run(renderer, pair, act)


def test_a_change_of_one_replica_names_it(renderer, pair):
    async def act(house: House) -> None:
        refused = await house.client.patch("/v1/kv", json={"blocks": 5})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "replica")
        assert "allowed: ?replica= with replica-0, replica-1" in refused.json()["error"]["message"]
        assert all_got(*pair) == []
        assert (await house.client.patch("/v1/kv?replica=replica-1", json={"blocks": 5})).status_code == 200
        assert [got.json for got in pair[1].got] == [{"blocks": 5}]

    run(renderer, pair, act)


def test_a_pin_is_made_by_all_or_by_none(renderer, pair):
    async def act(house: House) -> None:
        made = answers({"name": "a b", "tenant": "t"}, 201)
        pair[0].behave = pair[1].behave = made
        body = {"name": "a b", "prompt": "hello"}
        assert (await house.client.post("/v1/kv/pins", json=body)).status_code == 201
        assert [got.method for got in all_got(*pair)] == ["POST", "POST"]
        pair[1].behave = answers({"error": {"code": "pin_refused"}}, 409)
        assert (await house.client.post("/v1/kv/pins", json=body)).status_code == 409
        assert (pair[0].got[-1].method, pair[0].got[-1].path) == ("DELETE", "/v1/kv/pins/a%20b?tenant=t")
        pair[1].behave = answers({"error": {}}, 404)
        assert (await house.client.delete("/v1/kv/pins/a")).status_code == 201
        of_session = {"name": "a", "session": "k1-x"}
        assert (await house.client.post("/v1/kv/pins", json=of_session)).status_code == 404
        assert pair[1].got[-1].json == of_session

    run(renderer, pair, act)


def test_metrics_of_all_have_a_label_and_a_family_has_one_head(renderer, pair):
    text = b'# HELP a_x words of it\n# TYPE a_x gauge\na_x 5\na_x{b="c d"} 1\n# TYPE e counter\ne{} 2\n'
    pair[0].behave = pair[1].behave = answers(text)
    lines = run(renderer, pair, lambda house: house.client.get("/metrics")).text.splitlines()
    assert lines[:6] == [
        "# HELP a_x words of it",
        "# TYPE a_x gauge",
        'a_x{replica="replica-0"} 5',
        'a_x{replica="replica-0",b="c d"} 1',
        'a_x{replica="replica-1"} 5',
        'a_x{replica="replica-1",b="c d"} 1',
    ]
    assert 'e{replica="replica-1"} 2' in lines
    for count in dataclasses.fields(RouterCounts):
        assert any(line.startswith(f'octavo_router_{count.name}_total{{replica="relay-') for line in lines)


def test_the_cluster_is_shown_with_states_and_loads(renderer, pair):
    view = run(renderer, pair, lambda house: house.client.get("/cluster")).json()
    assert [row["name"] for row in view["replicas"]] == ["replica-0", "replica-1"]
    assert view["replicas"][0]["load"]["num_blocks"] == IDLE.num_blocks
    assert view["replicas"][0]["state"] == "running"
    assert view["relay"]["lost"] == 0
