"""Connections that send nothing, drip, or are too many: they are closed, and requests are answered."""

import asyncio
import contextlib
import logging
import os
import resource
import socket
from unittest import mock

import pytest
from tests.doubles.fake_model import FakeModel
from tests.waiting import LIMIT_S, turns, until
from uvicorn.config import Config
from uvicorn.server import ServerState

from octavo.errors import ConfigError
from octavo.server.connections import (
    ACCEPT_AT_ONCE,
    BoundedConnection,
    Connections,
    State,
    connections_allowed,
    track_requests,
)
from octavo.server.run import bind, build_server
from octavo.server.settings import ServerSettings

HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


@contextlib.asynccontextmanager
async def serving(model=None, **settings):
    """A server on this event loop; gives its port."""
    listener, ready = bind("127.0.0.1", 0), asyncio.Event()
    chosen = ServerSettings(**{"drain_timeout_s": 0.1, **settings})
    server = build_server(model or FakeModel(), chosen, lambda _: ready.set())
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await asyncio.wait_for(ready.wait(), LIMIT_S)
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await asyncio.wait_for(task, LIMIT_S)


async def connect(port):
    return await asyncio.open_connection("127.0.0.1", port)


async def ask(port, request=HEALTH):
    reader, writer = await connect(port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.readuntil(b"\r\n"), LIMIT_S)
    writer.close()
    return answer


async def until_headers_would_be_late(port):
    """Until the time for headers has passed, by the server's own clock: it closes a silent connection."""
    reader, writer = await connect(port)
    with contextlib.suppress(ConnectionError):
        assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""
    writer.close()


def run(scenario):
    asyncio.run(asyncio.wait_for(scenario, 2 * LIMIT_S))


def test_an_answer_never_waits_for_an_acknowledgement():
    with bind("127.0.0.1", 0) as listener:
        listener.listen()
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("begun", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A"])
def test_headers_that_do_not_come_end_the_connection(begun):
    async def scenario():
        async with serving(headers_timeout_s=0.2) as port:
            reader, writer = await connect(port)
            writer.write(begun)
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""

    run(scenario())


def test_a_byte_now_and_then_gains_no_time():
    async def scenario():
        async with serving(headers_timeout_s=0.3) as port:
            reader, writer = await connect(port)
            ended = asyncio.ensure_future(reader.read())
            with contextlib.suppress(ConnectionError):
                writer.write(b"GET /health HTTP/1.1\r\nX-Drip: ")
                for _ in range(200):
                    writer.write(b"a")
                    await writer.drain()
                    done, _ = await asyncio.wait({ended}, timeout=0.05)
                    if done:
                        break
                else:
                    pytest.fail("it dripped for ten seconds")
                assert ended.result() == b""

    run(scenario())


def test_the_time_counts_again_for_each_request_of_a_connection():
    async def scenario():
        async with serving(headers_timeout_s=0.2) as port:
            reader, writer = await connect(port)
            for _ in range(3):
                writer.write(HEALTH)
                assert b"200" in await reader.readuntil(b"\r\n")
                await reader.readuntil(b'{"status":"ok"}')
                await until_headers_would_be_late(port)  # between requests it may wait
            writer.write(b"GET /health HTTP/1.1\r\n")
            with contextlib.suppress(ConnectionError):
                assert await asyncio.wait_for(reader.read(), LIMIT_S) == b""

    run(scenario())


def test_an_answer_may_take_longer_than_headers_may():
    async def scenario():
        model = FakeModel("ab")
        model.hold = asyncio.Event()
        body = b'{"prompt": "x"}'
        request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )
        async with serving(model, headers_timeout_s=0.2) as port:
            asked = asyncio.ensure_future(ask(port, request + body))
            await until(lambda: model.submitted)
            await until_headers_would_be_late(port)
            model.hold.set()
            assert b"200" in await asked

    run(scenario())


def test_silent_connections_are_closed_for_one_that_asks():
    async def scenario():
        async with serving(connections_max=8, headers_timeout_s=600) as port:
            silent = [await connect(port) for _ in range(40)]
            for _ in range(10):
                assert b"200" in await ask(port)
            ends = [asyncio.ensure_future(reader.read(1)) for reader, _ in silent]
            await until(lambda: sum(not end.done() for end in ends) <= 4)  # half of all, for one address
            for _, writer in silent:
                writer.close()
            await asyncio.gather(*ends, return_exceptions=True)

    run(scenario())


def test_the_only_connection_of_an_address_makes_room_for_its_next():
    async def scenario():
        async with serving(connections_max=2) as port:
            _, silent = await connect(port)
            for _ in range(5):
                assert b"200" in await ask(port)
            silent.close()

    run(scenario())


def test_a_request_is_busy_from_its_last_header_on_until_its_answer_is_whole():
    """Also one that came early: between two turns of the loop nothing may close the connection."""
    states, answered = [], []

    async def answer(scope, receive, send):
        answered.append(scope["path"])
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async def scenario():
        config = Config(track_requests(answer), http="h11")
        config.load()
        connections, state = Connections(2, 600, None), ServerState()
        connection = BoundedConnection(
            connections, config.http_protocol_class, config=config, server_state=state, app_state={}
        )
        transport = mock.Mock(get_extra_info={"peername": ("::1", 9)}.get, is_closing=lambda: False)
        connection.connection_made(transport)
        for sent, count in ((HEALTH, 1), (HEALTH + HEALTH, 3)):
            assert connection.state is not State.BUSY
            connection.data_received(sent)
            while len(answered) < count or state.tasks:
                states.append(connection.state)
                await turns()
            await turns()
            assert connection.state is State.KEPT
        connection.data_received(HEALTH[:20])
        assert connection.state is State.WAITING
        connection.connection_lost(None)

    run(scenario())
    assert len(states) > 3
    assert set(states) == {State.BUSY}


def test_a_connection_whose_request_is_being_answered_is_not_closed_for_another():
    async def scenario():
        model = FakeModel("ab")
        model.hold = asyncio.Event()
        body = b'{"prompt": "x"}'
        request = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(
            body
        )
        async with serving(model, connections_max=8) as port:
            asked = [asyncio.ensure_future(ask(port, request + body)) for _ in range(4)]
            await until(lambda: len(model.submitted) >= 4)
            assert b"503 Service Unavailable" in await ask(port), "all that this address may have are busy"
            model.hold.set()
            assert all(b"200" in answer for answer in await asyncio.gather(*asked))
            assert b"200" in await ask(port)

    run(scenario())


def test_connections_leave_descriptors_to_everything_else():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, hard))
        in_use = len(os.listdir("/proc/self/fd"))
        assert abs(connections_allowed() - (1024 - 64 - ACCEPT_AT_ONCE - in_use)) < 20
        with pytest.raises(ConfigError, match="ulimit -n"):
            connections_allowed(1000)
        resource.setrlimit(resource.RLIMIT_NOFILE, (in_use + 200, hard))
        with pytest.raises(ConfigError, match="file descriptors"):
            connections_allowed()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_flood_of_refusals_is_a_few_lines_and_a_count():
    from octavo.server.logs import FloodFilter

    now = 0.0
    flood = FloodFilter(lambda: now)

    def say(text, *values):
        record = logging.LogRecord("octavo.server", logging.WARNING, "", 0, text, values, None)
        return record.getMessage() if flood.filter(record) else None

    told = [said for place in range(500) if (said := say("refused %d", place))]
    assert len(told) == 20
    assert say("something else") == "something else"
    now = 11.0
    assert say("refused %d", 500) == "refused 500 (480 more like it were left out)"
    assert say("refused %d", 501) == "refused 501"
