"""Connections by the hundred: silent, dripping, cancelled, not reading, too large. Others do not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path

import pytest
from tests.attack.house import House, Probe, head, post, raise_own_limit, serving, stream

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

BODY = {"prompt": "The sea is", "max_tokens": 12, "temperature": 0, "logprobs": 1}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    raise_own_limit()
    with serving(tmp_path_factory.mktemp("house"), descriptors=1024) as house:
        yield house


def answer_of(house: House) -> object:
    told = house.ask("POST", "/v1/completions", json=BODY)
    assert told.status_code == 200
    return told.json()["choices"]


def test_a_thousand_half_open_and_dripping_connections_leave_health_fast(house: House) -> None:
    before = answer_of(house)

    async def drip(writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            for _ in range(200):
                writer.write(b"a")
                await writer.drain()
                await asyncio.sleep(0.1)

    async def attack() -> None:
        opened = []
        for place in range(1000):
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", house.port)
                opened.append(writer)
                if place % 2:
                    writer.write(b"POST /v1/completions HTTP/1.1\r\nX-Drip: ")
        drips = [asyncio.create_task(drip(writer)) for writer in opened[1::2]]
        await asyncio.sleep(20)
        for task in drips:
            task.cancel()
        for writer in opened:
            writer.close()

    probe = Probe(house.port)
    asyncio.run(attack())
    seconds = probe.end()
    print(
        f"\n/health beside 1,000 half-open connections: {len(seconds)} answers, median "
        f"{seconds[len(seconds) // 2] * 1e3:.1f} ms, slowest {seconds[-1] * 1e3:.1f} ms; "
        f"log {house.log.stat().st_size:,} bytes"
    )
    assert seconds[-1] < 0.2
    assert house.log.stat().st_size < 200_000
    assert house.descriptors() < 900
    assert answer_of(house) == before


def test_three_hundred_streams_all_end_as_one_alone_would(house: House) -> None:
    alone = answer_of(house)

    async def attack() -> list[tuple[int, bytes]]:
        return await asyncio.gather(*(post(house.port, "/v1/completions", BODY) for _ in range(300)))

    answers = asyncio.run(asyncio.wait_for(attack(), 120))
    assert {status for status, _ in answers} == {200}
    assert all(json.loads(data.split(b"\r\n\r\n", 1)[-1])["choices"] == alone for _, data in answers)


def test_a_storm_of_cancels_leaves_no_block_held(house: House) -> None:
    alone = answer_of(house)

    async def one(place: int) -> None:
        count = 0
        async for _ in stream(house.port, {"prompt": f"{place} is", "max_tokens": 500, "ignore_eos": True}):
            count += 1
            if count > place % 3:
                return

    async def attack() -> None:
        for _ in range(4):
            await asyncio.gather(*(one(place) for place in range(60)))

    asyncio.run(asyncio.wait_for(attack(), 120))
    for _ in range(200):
        if house.ask("GET", "/v1/kv").json()["counts"]["held"] == 0:
            break
    else:
        pytest.fail(f"blocks are held: {house.ask('GET', '/v1/kv').json()['counts']}")
    assert answer_of(house) == alone


def test_slow_readers_hold_up_no_one(house: House) -> None:
    alone = answer_of(house)
    body = json.dumps(
        {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "logprobs": 20}
    ).encode()

    async def attack() -> object:
        writers = []
        for _ in range(40):
            _, writer = await asyncio.open_connection("127.0.0.1", house.port, limit=1024)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(head("POST", "/v1/completions", len(body)) + body)
            writers.append(writer)
        told = await asyncio.wait_for(post(house.port, "/v1/completions", BODY), 60)
        for writer in writers:
            writer.transport.abort()
        return json.loads(told[1].split(b"\r\n\r\n", 1)[-1])["choices"]

    assert asyncio.run(attack()) == alone


def test_bodies_of_a_hundred_megabytes_are_refused_without_being_kept(house: House) -> None:
    before = house.rss_mib()

    async def one(chunked: bool) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
        kind = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: 104857600"
        writer.write(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + kind + b"\r\n\r\n")
        piece = b" " * 65536
        with contextlib.suppress(OSError):
            for _ in range(1600):
                writer.write(b"10000\r\n" + piece + b"\r\n" if chunked else piece)
                await writer.drain()
                if reader._buffer:  # type: ignore[attr-defined]
                    break
        told = b""
        with contextlib.suppress(ConnectionError):  # it goes on sending to a closed door, and may miss why
            told = await asyncio.wait_for(reader.readline(), 20)
        writer.close()
        return told

    async def attack() -> list[bytes]:
        return await asyncio.gather(*(one(place % 2 == 0) for place in range(10)))

    answers = asyncio.run(asyncio.wait_for(attack(), 100))
    assert all(b" 413 " in told or told == b"" for told in answers), answers
    grown = house.rss_mib() - before
    print(f"\nten bodies of 100 MB: the server grew by {grown:.0f} MiB")
    assert grown < 200


def test_a_term_alongside_thirty_streams_informs_every_client(tmp_path: Path) -> None:
    with serving(tmp_path, "--drain-timeout", "1") as house:

        async def one() -> bytes:
            body = json.dumps(
                {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True}
            ).encode()
            reader, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(head("POST", "/v1/completions", len(body)) + body)
            told = await reader.read()
            writer.close()
            return told

        async def attack() -> list[bytes]:
            tasks = [asyncio.create_task(one()) for _ in range(30)]
            await asyncio.sleep(1)
            house.ended = True
            house.process.terminate()
            return await asyncio.gather(*tasks)

        answers = asyncio.run(asyncio.wait_for(attack(), 60))
        rc = house.process.wait(20)
        text = house.log.read_text()
    assert rc == 0
    assert "Traceback" not in text
    assert all(b"data: [DONE]" in told for told in answers)
    assert all(b"engine_stopped" in told for told in answers)
