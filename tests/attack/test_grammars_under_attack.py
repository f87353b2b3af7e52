"""Grammars that crash, hang or fill the library that compiles them: each costs its own request alone.

ATTACK_MINUTES (1) is how long random ones are sent.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.attack.house import House, Probe, serving, stream
from tests.attack.random_grammars import BOMBS, fields

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

LEAST = {"type": "integer", "minimum": -(2**63), "maximum": -(2**63)}
OBJECT = {"type": "object", "properties": {"a": LEAST}, "required": ["a"]}
SAID = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
FUNCTION = {"name": "f", "parameters": OBJECT, "strict": True}
ROUTES = {
    "completions": ("/v1/completions", {"prompt": "Hi", "max_tokens": 4, "guided_json": OBJECT}),
    "chat": (
        "/v1/chat/completions",
        SAID | {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": OBJECT}}},
    ),
    "chat tools": ("/v1/chat/completions", SAID | {"tools": [{"type": "function", "function": FUNCTION}]}),
    "responses": (
        "/v1/responses",
        {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "a", "schema": OBJECT}}},
    ),
    "responses tools": ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **FUNCTION}]}),
    "messages": (
        "/v1/messages",
        SAID | {"model": "smollm2-135m", "tools": [{"name": "f", "input_schema": OBJECT}]},
    ),
    "ollama": ("/api/chat", SAID | {"model": "smollm2-135m", "format": OBJECT, "stream": False}),
    "ollama generate": (
        "/api/generate",
        {"model": "smollm2-135m", "prompt": "Hi", "format": OBJECT, "stream": False},
    ),
}
# As no check of ours knows it: the process that tries it dies.
DEEP = "start: %json " + json.dumps(OBJECT) + "\n"


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def test_no_route_takes_a_grammar_that_ends_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as house:
        for name, (path, body) in ROUTES.items():
            answer = house.ask("POST", path, json=body)
            # A tool that need not be followed strictly is called with any object.
            assert answer.status_code == (200 if name == "messages" else 400), (name, answer.text)
        answer = house.ask("POST", "/v1/completions", json={"prompt": "Hi", "guided_grammar": DEEP})
        assert answer.status_code == 400
        assert "ended the process that tried it" in answer.text
        assert house.ask("POST", "/v1/completions", json={"prompt": "Hi", "max_tokens": 2}).status_code == 200


async def gaps_of_a_stream(port: int, seconds: float) -> list[float]:
    """Between the chunks of streams, one after the other, for so long."""
    gaps, end = [], time.perf_counter() + seconds
    while time.perf_counter() < end:
        last = None
        async for moment in stream(
            port, {"prompt": "Once upon a time", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
        ):
            if last is not None:
                gaps.append(moment - last)
            last = moment
    return gaps


def send(house: House, body: dict[str, object], timeout: float = 60.0) -> int:
    """Its status; 0 where the client leaves first."""
    try:
        return httpx.post(house.url + "/v1/completions", json=body, timeout=timeout).status_code
    except httpx.TimeoutException:
        return 0


def test_grammars_that_take_long_hold_up_no_prompt_and_end_with_their_clients(tmp_path: Path) -> None:
    bombs = [bomb(random.Random(1)) for bomb in BOMBS]
    with serving(tmp_path) as house, ThreadPoolExecutor(8) as threads:
        house.ask("POST", "/v1/completions", json={"prompt": "Hi", "max_tokens": 2})
        for bomb in bombs:
            body = {"prompt": "Say:", "max_tokens": 4, **bomb}
            left = [threads.submit(send, house, body, 1.0) for _ in range(4)]
            begun = time.perf_counter()
            answer = house.ask(
                "POST", "/v1/completions", json={"prompt": "Once upon a time", "max_tokens": 2}
            )
            assert answer.status_code == 200
            assert time.perf_counter() - begun < 2.0, bomb
            assert {one.result() for one in left} <= {0, 200, 400, 429}
        time.sleep(3.0)
        before = cpu_seconds(house)
        time.sleep(1.0)
        assert cpu_seconds(house) - before < 0.2, "it still works for clients that have gone"


def cpu_seconds(house: House) -> float:
    told = Path(f"/proc/{house.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(told[11]) + int(told[12])) / os.sysconf("SC_CLK_TCK")


def test_what_is_kept_of_many_grammars_is_bounded(tmp_path: Path) -> None:
    def ask(index: int) -> int:
        schema = {"type": "integer", "multipleOf": 20011 + 2 * index}
        return send(house, {"prompt": "Say:", "max_tokens": 8, "guided_json": schema})

    with serving(tmp_path) as house, ThreadPoolExecutor(4) as threads:
        ask(-1)
        before = house.rss_mib()
        assert set(threads.map(ask, range(150))) == {200}
        assert house.rss_mib() - before < 500
        metrics = house.ask("GET", "/metrics").text.splitlines()
        kept = [float(line.split()[-1]) for line in metrics if line.startswith("octavo_grammar_bytes{")]
        assert 0 < max(kept) <= 256 << 20  # a row for each replica, where a relay answers


@pytest.mark.timeout(0)  # it takes as long as it is meant to
def test_random_grammars_disturb_no_one(tmp_path: Path) -> None:
    seconds = 60 * float(os.environ.get("ATTACK_MINUTES", "1"))
    rng, statuses = random.Random(os.environ.get("ATTACK_SEED", "0")), Counter[int]()
    memory: list[float] = []

    def attack(seed: int, end: float) -> None:
        own = random.Random(seed)
        while time.perf_counter() < end:
            body = {"prompt": "Say:", "max_tokens": own.choice([1, 8, 40]), "temperature": 1.0, **fields(own)}
            status = send(house, body, own.choice([0.3, 60.0, 60.0, 60.0]))
            statuses[status] += 1
            assert status in (0, 200, 400, 429), body

    with serving(tmp_path) as house, ThreadPoolExecutor(4) as threads:
        control = asyncio.run(gaps_of_a_stream(house.port, max(20.0, seconds / 10)))
        probe, end = Probe(house.port), time.perf_counter() + seconds
        attackers = [threads.submit(attack, rng.randrange(2**32), end) for _ in range(2)]
        watcher = threads.submit(watch, house, end, memory)
        gaps = asyncio.run(gaps_of_a_stream(house.port, seconds))
        for one in (*attackers, watcher):
            one.result()
        health = probe.end()
    tenth = len(memory) // 10
    first, last = max(memory[tenth : 4 * tenth]), max(memory[-3 * tenth :])
    print(
        f"\n{sum(statuses.values()):,} grammars {dict(statuses)}; gaps p99.9 "
        f"{1e3 * percentile(gaps, 0.999):.0f} ms, control {1e3 * percentile(control, 0.999):.0f}; "
        f"/health p95 {1e3 * percentile(health, 0.95):.0f} ms; "
        f"memory {memory[0]:.0f} MiB, then up to {first:.0f}, at the end {last:.0f}"
    )
    assert percentile(gaps, 0.999) < 0.2
    assert last < 1.1 * first + 32


def watch(house: House, end: float, memory: list[float]) -> None:
    while time.perf_counter() < end:
        memory.append(house.rss_mib())
        time.sleep(0.5)
