"""Requests whose head may be read in two ways, as they reach the application."""

from __future__ import annotations

import asyncio

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
    scopes, sent = [], []

    async def app(scope, receive, send):
        scopes.append(scope)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": target.decode(), "raw_path": target, "headers": []}
    asyncio.run(Targets(app)(scope, None, send))
    assert (scopes, sent[0]["status"]) == ([], 400)


def test_another_target_is_left_as_it_is():
    headers = [(b"host", b"127.0.0.1")]
    scope, answer = seen(b"/v1/models", headers)
    assert (scope["path"], scope["headers"], answer) == ("/v1/models", headers, {})


@pytest.mark.parametrize("more", [[], [(b"connection", b"keep-alive")]])
def test_a_body_of_two_lengths_ends_the_connection(more):
    both = [(b"content-length", b"5"), (b"transfer-encoding", b"chunked"), *more]
    assert seen(b"/x", both)[1][b"connection"] == b"close"
