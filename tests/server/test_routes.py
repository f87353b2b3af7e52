"""One table of routes: what describes the server is what serves."""

import json
import logging
import re

import pytest
from tests.waiting import LIMIT_S

from octavo import __version__
from octavo.engine.outputs import EngineStats
from octavo.server.logs import JsonLines, TextLines
from octavo.server.route import Access
from octavo.server.routes import ROUTES, match_route
from octavo.server.run import PreemptionMonitor
from octavo.server.sse import EventStream


def test_the_description_has_every_route_and_no_other(edge):
    told = edge.get("/openapi.json").json()
    found = {(method.upper(), path) for path, methods in told["paths"].items() for method in methods}
    assert found == {(route.method, route.template) for route in ROUTES}
    names = [operation["operationId"] for path in told["paths"].values() for operation in path.values()]
    assert len(names) == len(set(names))


def test_every_reference_of_the_description_leads_somewhere(edge):
    text = edge.get("/openapi.json").text
    schemas = json.loads(text)["components"]["schemas"]
    assert set(re.findall(r'"#/components/schemas/([^"]+)"', text)) <= set(schemas)


def test_the_page_for_people_names_every_route_and_loads_nothing(edge):
    answer = edge.get("/docs")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert "<script" not in answer.text
    for route in ROUTES:
        assert route.template in answer.text
    assert "max_completion_tokens" in answer.text


def test_probes_and_version_answer(edge):
    assert edge.get("/ping").json() == {"status": "ok"}
    assert edge.get("/version").json() == {"version": __version__}


def test_a_request_is_matched_with_the_table_once(edge, monkeypatch):
    matched = []

    def match(method, path):
        matched.append((method, path))
        return match_route(method, path)

    monkeypatch.setattr("octavo.server.routes.match_route", match)
    asked = [
        ("HEAD", "/health", 200),
        ("GET", "/v1/models/x", 404),
        ("PUT", "/v1/kv", 405),
        ("GET", "/a", 404),
    ]
    for method, path, status in asked:
        assert edge.request(method, path).status_code == status
    assert matched == [(method, path) for method, path, _ in asked]


def test_a_label_is_the_template_of_a_path_whatever_the_method():
    found = match_route("PUT", "/v1/kv/pins/mine")
    assert (found.route, found.label, found.access) == (None, "/v1/kv/pins/{name}", Access.OPERATOR)
    found = match_route("HEAD", "/ui/a/b.js")
    assert (found.label, found.access, found.path_params) == ("/ui/{name}", Access.OPEN, {"name": "a/b.js"})
    found = match_route("GET", "/made/up")
    assert (found.label, found.access) == ("other", Access.OPERATOR)


@pytest.mark.parametrize("given", ["abc-1", "a" * 128, "trace:1.2_3"])
def test_a_request_id_comes_back(edge, given):
    assert edge.get("/v1/models", headers={"X-Request-Id": given}).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", "a\u00e9".encode()])
def test_an_odd_request_id_is_replaced(edge, given):
    answer = edge.get("/v1/nothing", headers={"X-Request-Id": given})
    assert answer.headers["x-request-id"].startswith("req-")


def test_an_answer_is_a_line_of_log_without_what_was_said(edge, caplog):
    with caplog.at_level(logging.INFO, "octavo.access"):
        edge.chat(messages=[{"role": "user", "content": "my secret"}])
        edge.get("/health")
        edge.get("/v1/made-up-secret")
    chat, other = [record for record in caplog.records if record.name == "octavo.access"]
    fields = chat.fields
    assert (fields["route"], fields["status"], fields["finish"]) == ("/v1/chat/completions", 200, "stop")
    assert fields["output_tokens"] == len("Hello wörld!".encode())
    assert fields["prompt_tokens"] > 0
    assert fields["first_token_s"] is not None
    assert other.fields["route"] == "other"
    assert "secret" not in caplog.text


def test_a_refused_key_is_logged_and_the_key_is_not(make_edge, caplog):
    make_edge(api_keys=("right",)).get("/v1/models", headers={"Authorization": "Bearer wrong-secret"})
    assert "refused: 127.0.0.1 to /v1/models: invalid_api_key" in caplog.text
    assert "wrong-secret" not in caplog.text


def record(text, *values, **extra):
    made = logging.LogRecord("octavo.server", logging.WARNING, "", 0, text, values, None)
    vars(made).update(extra)
    return made


def test_a_line_of_log_is_one_line_whatever_a_client_sent():
    assert (
        TextLines()
        .format(record("path %s", "/a\n2026-01-01 INFO forged\x1b[2J"))
        .endswith(
            "path /a\\x0a2026-01-01 INFO forged\\x1b[2J"  # nothing moves a terminal's cursor either
        )
    )
    line = JsonLines().format(record("path %s", "/a\nb", fields={"tenant": "alice"}))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["message"], told["tenant"], told["level"]) == ("path /a\nb", "alice", "warning")


def test_a_storm_of_preemptions_is_reported_once_a_period(edge, caplog):
    clock = [0.0]
    monitor = PreemptionMonitor(lambda: clock[0])
    for clock[0], preemptions in ((1.0, 50), (10.0, 50), (11.0, 90), (20.5, 90), (31.0, 95)):
        if monitor.is_due():
            monitor.check(EngineStats(preemptions=preemptions))
    told = [r.getMessage() for r in caplog.records if "memory is short" in r.getMessage()]
    assert [re.search(r"(\d+) preemptions", text).group(1) for text in told] == ["50", "40"]


def test_a_stream_on_which_nothing_comes_is_kept_alive_by_comments():
    import asyncio

    sent = []

    async def scenario():
        go_on = asyncio.Event()

        async def events():
            yield b"data: 1\n\n"
            await go_on.wait()
            yield b"data: 2\n\n"

        async def receive():
            await asyncio.Event().wait()

        async def send(message):
            sent.append(message.get("body"))
            if sent.count(b": keep-alive\n\n") == 3:
                go_on.set()

        stream = EventStream(events(), lambda: None, keep_alive_s=0.01)
        await asyncio.wait_for(stream({}, receive, send), LIMIT_S)

    asyncio.run(scenario())
    assert sent[1] == b"data: 1\n\n"
    assert sent[2:5] == [b": keep-alive\n\n"] * 3
    assert sent[-2:] == [b"data: 2\n\n", b""]
