"""Sessions over HTTP: a turn by field or header, streamed or whole; the routes; who may see what."""

import json

import pytest
from tests.wanted import request_for

from octavo.engine.outputs import ChatMessage
from octavo.errors import PinRefused, SessionBusy, SessionRefused, UnknownSession, UnknownTenant
from octavo.params import SamplerParams
from octavo.server.errors import error_body, status_of

HI = {"role": "user", "content": "hi"}


def test_a_turn_names_its_session_by_field_or_header_and_the_answer_shows_it(edge):
    first = edge.chat(session="new")
    assert first.headers["x-octavo-session"] == "s0"
    assert first.json()["session"] == {"id": "s0", "reused_tokens": 0}
    said = len("user:hi\n")
    body = {"messages": [HI, {"role": "assistant", "content": "Hello"}, HI]}
    second = edge.post("/v1/chat/completions", body, headers={"X-Octavo-Session": "s0"})
    assert second.json()["session"] == {"id": "s0", "reused_tokens": said}
    third = edge.chat(session="s0")
    assert "do not extend" in third.json()["session"]["fallback"]
    assert "session" not in edge.chat().json()
    assert "x-octavo-session" not in edge.chat().headers


def test_a_streamed_turn_shows_its_session_in_the_header_and_the_first_chunk(edge):
    answer = edge.chat(session="new", stream=True)
    assert answer.headers["x-octavo-session"] == "s0"
    chunks = [json.loads(line[6:]) for line in answer.text.splitlines() if line.startswith("data: {")]
    assert [chunk.get("session") for chunk in chunks[:2]] == [{"id": "s0", "reused_tokens": 0}, None]
    text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
    assert text == "Hello wörld!"


@pytest.mark.parametrize(
    ("fields", "status", "message"),
    [
        ({"session": "nobody's"}, 404, "there is no session"),
        ({"session": "../../etc/passwd"}, 404, "there is no session"),
        ({"session": 5}, 400, "session: Input should be a valid string"),
        ({"session": "new", "n": 2}, 400, "n is 2; allowed with a session: 1"),
        ({"session": "new", "use_beam_search": True}, 400, "use_beam_search is true; allowed with a session"),
    ],
)
def test_a_turn_that_is_wrong_is_refused(edge, fields, status, message):
    answer = edge.chat(**fields)
    assert answer.status_code == status
    assert message in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "route",
    [
        "GET /v1/sessions/",
        "DELETE /v1/sessions/",
        "POST /v1/sessions/",
        "POST /v1/sessions//suspend",
        "POST /v1/sessions//resume",
        "POST /v1/sessions//fork",
        "PATCH /v1/kv/pins/",
        "DELETE /v1/kv/pins/",
        "GET /v1/requests/",
        "GET /v1/sessions/%2F",
    ],
)
def test_an_empty_id_is_not_found_and_never_that_of_a_list(edge, route):
    assert edge.post("/v1/sessions", {}).status_code == 201
    method, path = route.split()
    answer = edge.request(method, path, json={"ttl": 5.0} if method in {"PATCH", "POST"} else None)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_route")
    assert edge.get("/v1/sessions").json()["total"] == 1


def test_an_empty_session_is_no_turn_without_one(edge):
    for answer in (
        edge.chat(session=""),
        edge.post("/v1/chat/completions", {"messages": [HI]}, headers={"X-Octavo-Session": ""}),
    ):
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session")
        assert 'allowed: "new", the id of a session' in answer.json()["error"]["message"]
    assert not edge.model.submitted


def test_field_and_header_may_not_differ(edge):
    body = {"messages": [HI], "session": "new"}
    answer = edge.post("/v1/chat/completions", body, headers={"X-Octavo-Session": "s1"})
    assert answer.status_code == 400
    assert "name two sessions" in answer.json()["error"]["message"]


def test_sessions_are_made_listed_shown_moved_and_deleted(edge):
    made = edge.post("/v1/sessions", {"ttl": 30.0})
    assert (made.status_code, made.json()["id"], made.json()["seconds_left"]) == (201, "s0", 30.0)
    assert (made.json()["tier"], made.json()["bytes_in_pool"]) == ("pool and disk", 2000)
    assert [one["id"] for one in edge.get("/v1/sessions").json()["data"]] == ["s0"]
    assert edge.post("/v1/sessions/s0/suspend").json()["state"] == "suspended"
    assert edge.post("/v1/sessions/s0/resume").json()["state"] == "idle"
    assert edge.request("DELETE", "/v1/sessions/s0").status_code == 200
    acts = ("s0/suspend", "s0/resume", "s0/fork")
    for method, path in (("GET", "s0"), ("DELETE", "s0"), *(("POST", act) for act in acts)):
        gone = edge.request(method, f"/v1/sessions/{path}", json={})
        assert (gone.status_code, gone.json()["error"]["code"]) == (404, "unknown_session")


def test_a_session_is_forked_at_any_of_its_turns_and_the_answer_says_at_which(edge):
    edge.chat(session="new")
    body = {"messages": [HI, {"role": "assistant", "content": "Hello"}, HI], "session": "s0"}
    edge.post("/v1/chat/completions", body)
    source = edge.get("/v1/sessions/s0").json()
    assert source["turns"] == 2
    whole = edge.post("/v1/sessions/s0/fork", {"ttl": 30.0})
    assert whole.status_code == 201
    assert (whole.json()["id"], whole.json()["forked_from"], whole.json()["turn"]) == ("s1", "s0", 2)
    assert (whole.json()["num_tokens"], whole.json()["seconds_left"]) == (source["num_tokens"], 30.0)
    assert whole.json().keys() - source.keys() == {"forked_from", "turn"}
    first = edge.post("/v1/sessions/s0/fork", {"turn": 1}).json()
    assert (first["id"], first["turn"], first["turns"], first["num_tokens"]) == ("s2", 1, 1, len("user:hi\n"))
    assert edge.chat(session="s2", messages=body["messages"]).json()["session"]["reused_tokens"] > 0
    assert edge.get("/v1/sessions/s0").json() == source


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"turn": 2}, "turn", "turn is 2; allowed: 1 to 1"),
        ({"turn": 0}, "turn", "turn is 0; allowed: 1 to 1"),
        ({"turn": "1"}, "turn", "valid integer"),
        ({"turn": True}, "turn", "valid integer"),
        ({"turn": 1.5}, "turn", "valid integer"),
        ({"ttl": "5"}, "ttl", "valid number"),
        ({"name": "x"}, "name", "name"),
    ],
)
def test_a_wrong_fork_is_refused(edge, body, param, message):
    edge.chat(session="new")
    answer = edge.post("/v1/sessions/s0/fork", body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    assert message in answer.json()["error"]["message"]
    assert edge.get("/v1/sessions").json()["total"] == 1


def test_a_session_in_which_nothing_was_said_is_not_forked(edge):
    edge.post("/v1/sessions", {})
    answer = edge.post("/v1/sessions/s0/fork", {})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "session")


@pytest.mark.parametrize("body", [{"ttl": "5"}, {"name": "x"}, {"ttl": float("inf")}])
def test_a_wrong_session_body_is_refused(edge, body):
    assert edge.request("POST", "/v1/sessions", content=json.dumps(body)).status_code == 400


def test_a_pin_is_made_of_what_was_said_in_a_session(edge, model):
    edge.chat(session="new")
    assert edge.post("/v1/kv/pins", {"name": "a", "session": "s0"}).status_code == 201
    assert model.control.orders[0].tokens == tuple(b"user:hi\n")
    both = edge.post("/v1/kv/pins", {"name": "b", "session": "s0", "prompt": "x"})
    assert both.status_code == 400


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownSession("x"), 404, "unknown_session"),
        (SessionBusy("x"), 409, "session_busy"),
        (SessionRefused("x"), 409, "session_refused"),
        (PinRefused("x"), 409, "pin_refused"),
        (UnknownTenant("x"), 401, "invalid_api_key"),
    ],
)
def test_every_refusal_has_its_status_and_code(error, status, code):
    assert status_of(error) == status
    assert error_body(error)["error"]["code"] == code


def test_metrics_show_sessions(edge):
    text = edge.get("/metrics").text
    assert 'octavo_sessions{model_name="fake-model"} 0.0' in text
    assert 'octavo_blocks_kept_offloaded{model_name="fake-model"} 0.0' in text
    edge.get("/v1/sessions/guess1")
    edge.get("/v1/sessions/guess2")
    assert 'octavo_http_requests_total{route="/v1/sessions/{session_id}",status="404"} 2.0' in (
        edge.get("/metrics").text
    )


def test_what_tenants_left_is_unknown_to_a_server_without_tenants(edge, model):
    import asyncio

    view = asyncio.run(model.sessions.create("somebody", None))
    own = edge.post("/v1/sessions", {}).json()
    assert [one["id"] for one in edge.get("/v1/sessions").json()["data"]] == [own["id"]]
    path = f"/v1/sessions/{view.session_id}"
    assert edge.get(path).status_code == 404
    named = edge.request("DELETE", f"{path}?tenant=somebody")
    assert named.status_code == 400
    assert "tenant is given; allowed: none, this server has no tenants" in named.json()["error"]["message"]
    with pytest.raises(UnknownSession):
        asyncio.run(
            model.sessions.turn(
                request_for((), SamplerParams(), session=view.session_id), [ChatMessage("user", "x")]
            )
        )


def test_so_many_sessions_are_listed_as_are_asked_for(edge):
    for _ in range(3):
        edge.post("/v1/sessions", {})
    listed = edge.get("/v1/sessions?limit=2").json()
    assert ([one["id"] for one in listed["data"]], listed["total"]) == (["s1", "s2"], 3)
    assert len(edge.get("/v1/sessions?limit=10000").json()["data"]) == 3
    assert edge.get("/v1/sessions").json()["total"] == 3


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "", "x", "1.5", "9" * 5000, "\u0663"])
def test_a_wrong_limit_is_refused_in_words(edge, limit):
    answer = edge.get("/v1/sessions", params={"limit": limit})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "limit")
    assert "allowed: 1 to 10,000, or none of it for all" in answer.json()["error"]["message"]
