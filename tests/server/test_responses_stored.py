"""Responses that were stored: shown, listed, deleted, cancelled, and seen by their tenant alone."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from tests.server.conftest import Edge
from tests.server.response_shapes import checked, events_of, rebuilt
from tests.server.test_disconnect import call_and_leave
from tests.server.test_tenant_keys import ALICE, BOB, BOSS, TENANTS, by
from tests.waiting import LIMIT_S, until

from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry


def ask(edge, given="hi", **fields):
    answer = edge.post("/v1/responses", {"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def while_it_runs(edge, stream, act):
    """The answer to a request that is held at its first token, and what `act` came to meanwhile."""

    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            body = {"input": "hi", "stream": stream}
            running = asyncio.ensure_future(client.post("/v1/responses", json=body))
            await until(lambda: edge.model.submitted)
            [stored] = edge.model.sessions.responses.all()
            acted = await asyncio.wait_for(act(client, stored.response_id), LIMIT_S)
            edge.model.hold.set()
            return await asyncio.wait_for(running, LIMIT_S), acted

    return asyncio.run(scenario())


def test_a_stored_response_is_shown_as_it_was_sent(edge):
    told = ask(edge, metadata={"a": "b"})
    assert checked(edge.get(f"/v1/responses/{told['id']}").json()) == told
    include = "include=message.output_text.logprobs&include[]=reasoning.encrypted_content"
    assert edge.get(f"/v1/responses/{told['id']}?{include}&stream=false").json() == told
    streamed = events_of(edge.post("/v1/responses", {"input": "hi", "stream": True}))[-1]["response"]
    assert edge.get(f"/v1/responses/{streamed['id']}").json() == streamed


@pytest.mark.parametrize("query, param", [("stream=true", "stream"), ("starting_after=3", "starting_after")])
def test_a_stream_cannot_be_taken_up_again(edge, query, param):
    answer = edge.get(f"/v1/responses/{ask(edge)['id']}?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert answer.json()["error"]["code"] == "unsupported_parameter"


def test_an_unknown_include_is_refused(edge):
    answer = edge.get(f"/v1/responses/{ask(edge)['id']}?include=x")
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include")


def test_a_deleted_response_is_gone_and_its_branch_goes_on(edge):
    first = ask(edge, "one")
    second = ask(edge, "two", previous_response_id=first["id"])
    gone = edge.request("DELETE", f"/v1/responses/{first['id']}")
    assert (gone.status_code, gone.json()) == (
        200,
        {"id": first["id"], "object": "response", "deleted": True},
    )
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
        answer = edge.request(method, f"/v1/responses/{first['id']}{path}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
    refused = edge.post("/v1/responses", {"input": "x", "previous_response_id": first["id"]})
    assert refused.json()["error"]["code"] == "previous_response_not_found"
    ask(edge, "three", previous_response_id=second["id"])
    assert edge.model.encodings[-1].text.startswith("user:one\nassistant:")


def test_input_items_are_the_conversation_page_by_page(edge):
    told = None
    for number in range(7):
        told = ask(edge, f"q{number}", **({"previous_response_id": told["id"]} if told else {}))
    path = f"/v1/responses/{told['id']}/input_items"
    whole = edge.get(f"{path}?order=asc&limit=100").json()
    texts = [item["content"][0]["text"] for item in whole["data"]]
    assert texts[::2] == [f"q{number}" for number in range(7)]
    assert set(texts[1::2]) == {"Hello wörld!"}
    assert len({item["id"] for item in whole["data"]}) == 13
    assert (whole["has_more"], whole["first_id"]) == (False, whole["data"][0]["id"])
    pages, after = [], ""
    while True:
        page = edge.get(f"{path}?limit=5{after}").json()
        pages += page["data"]
        after = f"&after={page['last_id']}"
        if not page["has_more"]:
            break
    assert pages == whole["data"][::-1]
    assert edge.get(path).json()["data"] == pages


@pytest.mark.parametrize(
    "query, status, param",
    [
        ("limit=0", 400, "limit"),
        ("limit=101", 400, "limit"),
        ("limit=x", 400, "limit"),
        ("limit=" + "9" * 30, 400, "limit"),
        ("order=up", 400, "order"),
        ("after=msg_1", 404, "after"),
        ("include=x", 400, "include"),
    ],
)
def test_wrong_pages_are_refused(edge, query, status, param):
    answer = edge.get(f"/v1/responses/{ask(edge)['id']}/input_items?{query}")
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


@pytest.mark.parametrize("stream", [False, True])
def test_one_that_runs_is_cancelled_and_what_it_said_stays(edge, stream):
    async def cancel(client, response_id):
        shown = (await client.get(f"/v1/responses/{response_id}")).json()
        return shown, await client.post(f"/v1/responses/{response_id}/cancel")

    answer, (shown, cancelled) = while_it_runs(edge, stream, cancel)
    assert (shown["status"], cancelled.status_code) == ("in_progress", 200)
    told = checked(cancelled.json())
    assert told["status"] == "cancelled"
    assert (told["output"][0]["status"], told["output"][0]["content"][0]["text"]) == ("incomplete", "H")
    assert edge.model.submitted[0].cancelled
    if stream:
        events = events_of(answer)
        assert events[-1] == {"type": "response.incomplete", "response": told} | {
            "sequence_number": len(events) - 1
        }
        rebuilt(events)
    else:
        assert (answer.status_code, answer.json()) == (200, told)
    assert edge.get(f"/v1/responses/{told['id']}").json() == told
    again = edge.post(f"/v1/responses/{told['id']}/cancel")
    assert (again.status_code, "is cancelled" in again.json()["error"]["message"]) == (400, True)
    edge.model.hold = None
    more = ask(edge, "more", previous_response_id=told["id"])
    assert edge.model.encodings[-1].text == "user:hi\nassistant:H\nuser:more\n"
    assert more["status"] == "completed"


def test_one_that_has_ended_is_not_cancelled(edge):
    told = ask(edge)
    answer = edge.post(f"/v1/responses/{told['id']}/cancel")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "response_not_in_progress")
    assert edge.get(f"/v1/responses/{told['id']}").json() == told


def test_deleting_one_that_runs_cancels_it(edge):
    async def delete(client, response_id):
        return await client.delete(f"/v1/responses/{response_id}")

    answer, deleted = while_it_runs(edge, False, delete)
    assert (deleted.status_code, answer.json()["status"]) == (200, "cancelled")
    assert edge.model.sessions.responses.all() == []


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_cancels_its_response(edge, stream, monkeypatch):
    monkeypatch.setattr("tests.server.test_disconnect.CHAT", "/v1/responses")

    async def scenario():
        edge.model.hold = asyncio.Event()
        leave = asyncio.Event()
        body = {"input": "hi", "stream": stream}
        call = asyncio.create_task(call_and_leave(edge.app, body, leave))
        await until(lambda: edge.model.submitted)
        leave.set()
        await call

    asyncio.run(scenario())
    assert edge.model.submitted[0].cancelled
    [stored] = edge.model.sessions.responses.all()
    told = checked(edge.get(f"/v1/responses/{stored.response_id}").json())
    assert told["status"] == "cancelled"
    edge.model.hold = None
    ask(edge, "more", previous_response_id=stored.response_id)


def test_what_ran_when_the_server_ended_has_failed(edge):
    told = ask(edge)
    [stored] = edge.model.sessions.responses.all()
    document = json.loads(stored.document)
    document["response"] |= {"status": "in_progress", "output": []}
    edge.model.sessions.responses.attach("", told["id"], json.dumps(document).encode())
    shown = checked(edge.get(f"/v1/responses/{told['id']}").json())
    assert shown["status"] == "failed"
    assert shown["error"]["message"] == "the server ended while this response was in progress"
    assert edge.post(f"/v1/responses/{told['id']}/cancel").status_code == 400


@pytest.fixture
def house(model, tmp_path):
    """The application with three tenants."""
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return Edge(model, ServerSettings(roster=TenantRegistry(path)))


def test_a_response_is_its_tenants_and_no_one_elses(house):
    told = house.post("/v1/responses", {"input": "hi"}, **by(ALICE)).json()
    path, item = f"/v1/responses/{told['id']}", told["output"][0]["id"]
    for key in (BOB, BOSS):
        for method, more in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/input_items")):
            answer = house.request(method, path + more, **by(key))
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "response_not_found")
        for fields in (
            {"input": "x", "previous_response_id": told["id"]},
            {"input": "x", "previous_response_id": told["id"], "store": False},
            {"input": [{"type": "item_reference", "id": item}]},
        ):
            assert house.post("/v1/responses", fields, **by(key)).status_code in (400, 404)
    assert house.get(path, **by(ALICE)).json() == told
    assert [stream.tenant for stream in house.model.submitted] == ["alice"]


class SlowReader:
    """A client of a stream that stops reading at its first delta, until it is told to go on."""

    def __init__(self):
        self.stopped, self.goes_on, self.body = asyncio.Event(), asyncio.Event(), b""

    async def send(self, message):
        self.body += message.get("body", b"")
        if b"output_text.delta" in self.body:
            self.stopped.set()
            await self.goes_on.wait()

    async def call(self, app):
        """POST /v1/responses, to its end; returns the events."""
        parts = [json.dumps({"input": "hi", "stream": True}).encode()]

        async def receive():
            if not parts:
                await asyncio.Event().wait()
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        path = "/v1/responses"
        scope = {
            "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
            "method": "POST", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "scheme": "http",
            "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
        }  # fmt: skip
        await app(scope, receive, self.send)
        return events_of(
            httpx.Response(200, content=self.body, headers={"content-type": "text/event-stream"})
        )


@pytest.mark.parametrize("deletes", [False, True])
def test_a_client_that_has_stopped_reading_holds_up_no_cancel(edge, monkeypatch, deletes):
    monkeypatch.setattr("octavo.server.dialects.responses_run.END_WAIT_S", 0.01)

    async def scenario():
        reader = SlowReader()
        call = asyncio.ensure_future(reader.call(edge.app))
        await asyncio.wait_for(reader.stopped.wait(), LIMIT_S)
        [stored] = edge.model.sessions.responses.all()
        path = f"/v1/responses/{stored.response_id}"
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            asked = client.delete(path) if deletes else client.post(f"{path}/cancel")
            answer = await asyncio.wait_for(asked, LIMIT_S)
            shown = await client.get(path)
        assert not call.done()
        reader.goes_on.set()
        return answer, shown, await asyncio.wait_for(call, LIMIT_S)

    answer, shown, events = asyncio.run(scenario())
    assert answer.status_code == 200
    told = events[-1]["response"]
    assert (events[-1]["type"], told["status"]) == ("response.incomplete", "cancelled")
    assert told["output"][0]["content"][0]["text"] == "H"
    rebuilt(events)
    if deletes:
        assert (shown.status_code, answer.json()["deleted"]) == (404, True)
    else:
        assert answer.json() == shown.json() == told
