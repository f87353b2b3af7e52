"""A tenant that takes all it can of steps, queue and pins leaves the others their share."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.attack.house import House, head, raise_own_limit, serving, stream
from tests.attack.test_tokenizing_under_attack import tenants

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

WORDS = "It was a bright cold day in April, and the clocks were striking thirteen. "
GREEDY, OTHER = {"Authorization": "Bearer b-key"}, {"Authorization": "Bearer a-key"}


def ask(house: House, path: str, body: dict[str, object], key: dict[str, str]) -> httpx.Response:
    return house.ask("POST", path, json=body, headers=key)


def test_a_short_prompt_does_not_wait_for_anothers_long_ones(tmp_path: Path) -> None:
    async def first_token(house: House) -> float:
        begun = time.perf_counter()
        body = {"prompt": "Once upon a time", "max_tokens": 2, "temperature": 0}
        moments = [moment async for moment in stream(house.port, body, **OTHER)]
        return moments[0] - begun

    with serving(tmp_path, "--tenants", tenants(tmp_path), "--kv-memory", "1GiB") as house:
        asyncio.run(first_token(house))
        with ThreadPoolExecutor(4) as threads:
            long = [
                threads.submit(
                    ask, house, "/v1/completions", {"prompt": f"{i} " + WORDS * 350, "max_tokens": 1}, GREEDY
                )
                for i in range(4)
            ]
            time.sleep(1.5)
            waited = asyncio.run(first_token(house))
            assert not any(one.done() for one in long), "the prompts were too short for this test"
            assert waited < 2.0
            assert {one.result().status_code for one in long} == {200}


def test_a_full_queue_of_one_tenant_refuses_no_other(tmp_path: Path) -> None:
    raise_own_limit()
    data = b'{"prompt": "%b", "max_tokens": 2000, "ignore_eos": true, "stream": true}' % WORDS.encode()

    async def flood(house: House) -> list[asyncio.StreamWriter]:
        writers = []
        for _ in range(1200):
            _, writer = await asyncio.open_connection("127.0.0.1", house.port)
            writer.write(head("POST", "/v1/completions", len(data), **GREEDY) + data)
            writers.append(writer)
        await asyncio.sleep(6.0)
        body = {"prompt": "Once upon a time", "max_tokens": 2}
        async with httpx.AsyncClient(timeout=10.0) as client:
            # It may wait for a row, which nothing guarantees it; refused it must not be.
            with contextlib.suppress(httpx.ReadTimeout):
                answer = await client.post(house.url + "/v1/completions", json=body, headers=OTHER)
                assert answer.status_code == 200, answer.text
        for writer in writers:
            writer.close()
        return writers

    with serving(tmp_path, "--tenants", tenants(tmp_path)) as house:
        asyncio.run(flood(house))


def test_all_pins_of_one_tenant_leave_room_for_anothers(tmp_path: Path) -> None:
    with serving(tmp_path, "--tenants", tenants(tmp_path), "--kv-memory", "1GiB") as house:
        with ThreadPoolExecutor(8) as threads:
            made = [
                threads.submit(
                    ask, house, "/v1/kv/pins", {"name": f"p{i}", "prompt": [1000 + i] * 17}, GREEDY
                )
                for i in range(1100)
            ]
            statuses = Counter(one.result().status_code for one in made)
        assert set(statuses) == {201, 409}
        answer = ask(house, "/v1/kv/pins", {"name": "mine", "prompt": WORDS * 3}, OTHER)
        assert answer.status_code == 201, answer.text
