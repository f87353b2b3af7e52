"""Requests whose head may be read in two ways, as they reach the application."""

from __future__ import annotations

import asyncio
from urllib.parse import unquote

import pytest

from octavo.server.targets import Targets


def seen(raw_path: bytes, headers: list[tuple[bytes, bytes]]):
    """The scope that the application sees, and the headers of its answer."""
    scopes, sent = [], []

    async def app(scope, receive, send):
        scopes.append(scope)
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": "GET",
        "path": raw_path.decode(),
        "raw_path": raw_path,
        "headers": headers,
    }
    asyncio.run(Targets(app)(scope, None, send))
    return scopes[0], dict(sent[0]["headers"])


def test_an_absolute_target_is_its_path_and_its_host():
    scope, _ = seen(b"http://127.0.0.1:8000/v1/mod%65ls", [(b"host", b"evil.example")])
    assert scope["path"] == "/v1/models"
    assert scope["headers"] == [(b"host", b"127.0.0.1:8000")]
    assert seen(b"http://127.0.0.1:8000", [])[0]["path"] == "/"


@pytest.mark.parametrize("target", [b"http://[::1/x", b"http://[zz]/x", b"http:///x", b"http://a@b/x"])
def test_a_target_that_names_no_host_is_refused(target):
    assert refused(target, target.decode())


@pytest.mark.parametrize(
    "target",
    [b"%2Fv1%2Fmodels%2F@evil.example:80/x", b"%2Fv1/kv", b"v1/kv", b"*", b"/v1/kv#/../x", b"/v1/kv?a#b"],
)
def test_a_target_that_is_no_path_is_refused_however_it_reads_decoded(target):
    assert refused(target, unquote(target.decode()))


def test_options_of_the_whole_server_pass():
    assert not refused(b"*", "*", "OPTIONS")


def refused(target: bytes, path: str, method: str = "GET") -> bool:
    """Whether a request is answered with 400 before the application."""
    scopes, sent = [], []

    async def app(scope, receive, send):
        scopes.append(scope)

    async def send(message):
        sent.append(message)

    raw_path, _, query = target.partition(b"?")
    scope = {"type": "http", "method": method, "path": path.partition("?")[0], "raw_path": raw_path}
    asyncio.run(Targets(app)(scope | {"query_string": query, "headers": []}, None, send))
    assert bool(scopes) != bool(sent)
    return bool(sent) and sent[0]["status"] == 400


def test_another_target_is_left_as_it_is():
    headers = [(b"host", b"127.0.0.1")]
    scope, answer = seen(b"/v1/models", headers)
    assert (scope["path"], scope["headers"], answer) == ("/v1/models", headers, {})


@pytest.mark.parametrize("more", [[], [(b"connection", b"keep-alive")]])
def test_a_body_of_two_lengths_ends_the_connection(more):
    both = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked"), *more]
    assert seen(b"/x", both)[1][b"connection"] == b"close"
