"""Web pages by their Origin: the server's own, those that are named, those of this machine; preflights."""

from __future__ import annotations

import gzip
import json
import zlib

import pytest

CHAT, SESSIONS = "/v1/chat/completions", "/v1/sessions"
LOCAL = ["http://localhost:3000", "http://127.0.0.1:5173", "https://localhost", "app://obsidian.md"]
LOCAL += ["vscode-webview://1a2b", "tauri://localhost", "http://tauri.localhost"]
FOREIGN = [
    "null",
    "https://evil.example",
    "http://localhost.evil.example",
    "http://localhost:3000.evil",
    "file://",
]
HELLO = {"messages": [{"role": "user", "content": "Hi"}]}


def preflight(edge, path, origin, method="POST", **headers):
    asked = {"Origin": origin, "Access-Control-Request-Method": method} | headers
    return edge.request("OPTIONS", path, headers=asked)


@pytest.mark.parametrize("origin", LOCAL)
def test_pages_of_this_machine_ask_for_inference_by_preflight(edge, origin):
    asked = preflight(edge, "/api/chat", origin, **{"Access-Control-Request-Private-Network": "true"})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == origin
    assert asked.headers["access-control-allow-private-network"] == "true"
    answer = edge.post(CHAT, HELLO, headers={"Origin": origin, "Content-Type": "application/json"})
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == origin


@pytest.mark.parametrize("origin", [*LOCAL, *FOREIGN])
@pytest.mark.parametrize(
    ("method", "path"), [("DELETE", SESSIONS + "/x"), ("POST", SESSIONS), ("GET", SESSIONS)]
)
def test_every_other_route_wants_a_page_of_the_server_itself(edge, origin, method, path):
    assert preflight(edge, path, origin, method).status_code == 403
    assert edge.request(method, path, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("origin", FOREIGN)
def test_foreign_pages_and_pages_without_a_name_stay_out(edge, origin):
    assert preflight(edge, CHAT, origin).status_code == 403
    assert edge.post(CHAT, HELLO, headers={"Origin": origin}).status_code == 403
    assert edge.get("/v1/models", headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/plain; application/json"]
)
def test_what_a_browser_sends_without_a_preflight_is_refused_of_a_page_of_this_machine(edge, kind):
    headers = {"Origin": LOCAL[0], "Content-Type": kind}
    assert edge.request("POST", CHAT, content=json.dumps(HELLO), headers=headers).status_code == 403
    assert edge.model.submitted == []


def test_the_servers_own_page_has_its_scheme_host_and_port(edge):
    own = {"Host": "127.0.0.1:8000", "Origin": "http://127.0.0.1:8000"}
    assert edge.get(SESSIONS, headers=own).status_code == 200
    for origin in (
        "http://127.0.0.1:8001",
        "https://127.0.0.1:8000",
        "http://localhost:8000",
        "http://127.0.0.1",
    ):
        assert edge.get(SESSIONS, headers=own | {"Origin": origin}).status_code == 403


def test_behind_a_proxy_that_speaks_tls_the_host_is_named(make_edge):
    edge = make_edge(allowed_hosts=("octavo.example",))
    assert (
        edge.get(SESSIONS, headers={"Host": "octavo.example", "Origin": "https://octavo.example"}).status_code
        == 200
    )
    other = {"Host": "octavo.example", "Origin": "https://octavo.example:8443"}
    assert edge.get(SESSIONS, headers=other).status_code == 403


@pytest.mark.parametrize("settings", [{"api_keys": ("k",)}, {"host": "0.0.0.0", "insecure": True}])
def test_with_keys_or_on_a_network_no_page_of_this_machine_is_let_in(make_edge, settings):
    assert preflight(make_edge(**settings), "/api/chat", LOCAL[0]).status_code == 403


def test_a_refused_preflight_is_logged_with_the_flag(edge, caplog):
    preflight(edge, CHAT, "https://app.example")
    assert "--allowed-origin 'https://app.example'" in caplog.text


def test_containers_on_this_machine_ask_for_inference_by_its_name(edge):
    host = {"Host": "host.docker.internal:8000"}
    assert edge.get("/api/tags", headers=host).status_code == 200
    assert edge.get(SESSIONS, headers=host).status_code == 403


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_packed_bodies_are_unpacked_within_bounds(make_edge, encoding, pack):
    edge, headers = make_edge(), {"Content-Encoding": encoding}
    body = pack(json.dumps(HELLO).encode())
    assert edge.request("POST", CHAT, content=body, headers=headers).status_code == 200
    for wrong, code in (
        (body[:-5], "invalid_encoding"),
        (b"no " + body, "invalid_encoding"),
        (body + b"more", "invalid_encoding"),
        (body + body, "invalid_encoding"),
    ):
        answer = edge.request("POST", CHAT, content=wrong, headers=headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, code)
    bomb = pack(b" " * (64 << 20))
    assert edge.request("POST", CHAT, content=bomb, headers=headers).status_code == 413


def test_another_encoding_is_named(edge):
    answer = edge.request("POST", CHAT, content=b"x", headers={"Content-Encoding": "br"})
    assert answer.status_code == 415
    assert "gzip, deflate" in answer.json()["error"]["message"]
