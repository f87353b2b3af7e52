"""What a relay does with clients that mean harm, and with replicas that fail halfway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.cluster.fakes import CHAT, STREAM, FakeReplica, Got, House, all_got, run, streams
from tests.waiting import until

from octavo.cluster.fleet import Replica
from octavo.cluster.relay import create_relay_server
from octavo.cluster.upstream import Outgoing, Upstream
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
            await upstream.send(Replica("id", 0, "http://127.0.0.1:1"), Outgoing("GET", "@127.0.0.1/x", {}))
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
