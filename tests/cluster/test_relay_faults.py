"""What a relay does with clients that mean harm, and with replicas that fail halfway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.cluster.fakes import House, all_got, run
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
