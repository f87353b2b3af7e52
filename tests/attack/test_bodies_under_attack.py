"""Bodies of 8 MiB that are refused, sent again and again by one tenant, leave another's stream its pace."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attack.house import House, Probe, serving
from tests.attack.test_tokenizing_under_attack import gaps, in_words, tenants

pytestmark = [pytest.mark.real_model, pytest.mark.attack]

BODY_BYTES = 8 << 20
CONNECTIONS = 4
GAP_GROWS_S = 0.02
HEALTH_S = 0.05
ROUNDS = 3  # of which one must hold: the machine may have other work in the others

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
USER = '"messages":[{"role":"user","content":"a"}]'
# name: (path, beginning, an item, end); {} in an item is its number
SHAPES = {
    "nested lists": (CHAT, f'{{{USER},"chat_template_kwargs":{{"a":[', "[[]]", "]}}"),
    "1e999": (COMPLETIONS, '{"prompt":"a","x":[', "1e999", "]}"),
    "prompts of ids": (COMPLETIONS, '{"prompt":[', "[1]", "]}"),
    "one prompt of ids": (COMPLETIONS, '{"prompt":[', "1", "]}"),
    "floats": (COMPLETIONS, '{"prompt":[', "1.5", "]}"),
    "objects and an escape": (COMPLETIONS, '{"temperature":-1,"prompt":"\\u0041","x":[', "{}", "]}"),
    "parts": ("/v1/messages", '{"max_tokens":1,"messages":[{"role":"user","content":[', "[]", "]}]}"),
    "text parts": (
        "/v1/messages",
        '{"max_tokens":1,"messages":[{"role":"user","content":[',
        '{"type":"text","text":"a"}',
        "]}]}",
    ),
    "logit_bias": (COMPLETIONS, '{"prompt":"a","logit_bias":{', '"%d":"a"', "}}"),
    "metadata": ("/v1/responses", '{"input":"a","metadata":{', '"%d":"a"', "}}"),
    "tools": (CHAT, f'{{{USER},"tools":[', "[]", "]}"),
    "distinct keys": (COMPLETIONS, '{"prompt":"a","temperature":-1,', '"%d":1', "}"),
    "wrong ids": (COMPLETIONS, '{"prompt":"a","allowed_token_ids":[', '"a"', "]}"),
    "inputs": ("/v1/embeddings", '{"input":[', "[1]", "]}"),
    "a schema": (CHAT, f'{{{USER},"json_schema":{{"enum":[', "[]", "]}}"),
    "messages": ("/api/chat", '{"model":"smollm2-135m","messages":[', "{}", "]}"),
    "a session": ("/v1/sessions", "{", '"%d":1', "}"),
    "long numbers": (COMPLETIONS, '{"prompt":"a","temperature":-1,"x":[', "9" * 4000, "]}"),
    "a text of escapes": (COMPLETIONS, '{"temperature":-1,"prompt":"', "\\n" * 4000, '"}'),
}


def body_of(head: str, item: str, tail: str) -> bytes:
    items, size = [], len(head) + len(tail)
    while size < BODY_BYTES - len(item) - 16:
        items.append(item % len(items) if "%d" in item else item)
        size += len(items[-1]) + 1
    return (head + ",".join(items) + tail).encode()


class Flood:
    """Sends a body over some connections at a time, again and again, from a process of its own."""

    def __init__(self, port: int, path: str, file: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", _FLOOD, str(port), path, str(file), str(CONNECTIONS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it has had its first answer

    def end(self) -> set[int]:
        """The statuses of all answers."""
        out, _ = self._process.communicate("\n", timeout=60)
        return set(json.loads(out))


_FLOOD = """
import http.client, json, sys, threading
port, path, connections, statuses, ended = int(sys.argv[1]), sys.argv[2], int(sys.argv[4]), [], []
body = open(sys.argv[3], "rb").read()
def send():
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Authorization": "Bearer b-key"})
    statuses.append(connection.getresponse().status)
    connection.close()
def loop():
    while not ended:
        send()
send()
threads = [threading.Thread(target=loop) for _ in range(connections)]
[thread.start() for thread in threads]
print("begun", flush=True)
sys.stdin.readline()
ended.append(True)
[thread.join() for thread in threads]
print(json.dumps(statuses))
"""


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    folder = tmp_path_factory.mktemp("house")
    with serving(folder, "--tenants", tenants(folder)) as house:
        asyncio.run(gaps(house))  # warm
        yield house


def p95(values: list[float]) -> float:
    return sorted(values)[int(0.95 * len(values))]


@pytest.mark.parametrize("name", SHAPES)
def test_refused_bodies_leave_anothers_stream_its_pace(house: House, tmp_path: Path, name: str) -> None:
    path, head, item, tail = SHAPES[name]
    file = tmp_path / "body.json"
    file.write_bytes(body_of(head, item, tail))
    for _ in range(ROUNDS):
        alone = asyncio.run(gaps(house))
        flood, probe = Flood(house.port, path, file), Probe(house.port)
        beside = asyncio.run(gaps(house))
        health, statuses = probe.end(), flood.end()
        print(
            f"\n{name}: median and slowest gap {in_words(alone)}, beside {in_words(beside)}; p95 "
            f"{p95(alone) * 1e3:.1f} and {p95(beside) * 1e3:.1f} ms; /health p95 {p95(health) * 1e3:.1f} ms; "
            f"memory {house.rss_mib():.0f} MiB"
        )
        assert statuses == {400}
        if p95(beside) - p95(alone) < GAP_GROWS_S and p95(health) < HEALTH_S:
            return
    pytest.fail(f"beside {name} the stream lost its pace {ROUNDS} times")
