"""A client that goes away stops what it had asked for, whatever it was waiting for."""

import asyncio
import json

import pytest
from tests.waiting import LIMIT_S, until

CHAT = "/v1/chat/completions"


async def call_and_leave(app, body, leave):
    """One raw ASGI call whose client is gone once `leave` is set; returns what was sent to it."""
    sent = []
    parts = [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "query_string": b"",
        "root_path": "", "scheme": "http",
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), LIMIT_S)
    return sent


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_cancels_the_request(edge, stream):
    async def scenario():
        edge.model.hold = asyncio.Event()  # never set: the stream stays in its second step
        leave = asyncio.Event()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": stream, "n": 2}
        call = asyncio.create_task(call_and_leave(edge.app, body, leave))
        await until(lambda: edge.model.submitted)
        assert not edge.model.submitted[0].cancelled
        leave.set()
        return await call

    asyncio.run(scenario())
    assert edge.model.submitted[0].cancelled
    assert asyncio.run(edge.model.stats()).running == 0


def test_a_complete_answer_cancels_nothing(edge):
    edge.chat()
    edge.chat(stream=True)
    assert [stream.cancelled for stream in edge.model.submitted] == [False, False]


def test_a_cancelled_handler_cancels_the_request(edge):
    async def scenario():
        edge.model.hold = asyncio.Event()
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
        call = asyncio.create_task(call_and_leave(edge.app, body, asyncio.Event()))
        await until(lambda: edge.model.submitted)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(scenario())
    assert edge.model.submitted[0].cancelled
