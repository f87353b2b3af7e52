"""The real server and its memory: blocks on disk outlive kill -9, a smaller pool gives memory back."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.waiting import wait_until

pytestmark = [pytest.mark.full, pytest.mark.real_model]

PROMPTS = [" ".join(f"chapter {i}, line {j}." for j in range(50)) for i in range(4)]


class Server:
    """`octavo serve` as a process of its own."""

    def __init__(self, *words: str) -> None:
        command = [sys.executable, "-m", "octavo", "serve", "--port", "0", *words]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert self.process.stdout is not None
        self.url = ""
        for line in self.process.stdout:
            if " at http://" in line:
                self.url = line.split(" at ")[1].split("/v1")[0]
                break
        assert self.url, "the server did not start"

    def ask(self, prompt: str) -> dict[str, object]:
        body = {"prompt": prompt, "max_tokens": 6, "temperature": 0, "logprobs": 1}
        answer = httpx.post(f"{self.url}/v1/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        told: dict[str, object] = answer.json()
        return told

    def kv(self) -> dict[str, object]:
        told: dict[str, object] = httpx.get(f"{self.url}/v1/kv", timeout=60).json()
        return told

    def resident(self) -> int:
        """Bytes of this process that are in memory."""
        pages = Path(f"/proc/{self.process.pid}/statm").read_text().split()[1]
        return int(pages) * 4096

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def start() -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def start_one(*words: str) -> Server:
        servers.append(Server(*words))
        return servers[-1]

    yield start_one
    for server in servers:
        server.kill()


def test_answers_are_found_again_after_kill_9_bit_for_bit(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    words = ("--kv-memory", "32MiB", "--disk-cache", str(tmp_path), "--disk-size", "256MiB")
    server = start(*words)
    first = [server.ask(prompt) for prompt in PROMPTS]
    wait_until(lambda: server.kv()["below"]["in_flight"] == 0 and server.kv()["below"]["stored"] > 60)  # type: ignore[index]
    server.kill()
    server = start(*words)
    again = [server.ask(prompt) for prompt in PROMPTS]
    for one, other in zip(first, again, strict=True):
        assert one["choices"] == other["choices"], "tokens or logprobs differ"
    usage = again[0]["usage"]  # the others may find the disk too slow, on a busy machine
    assert usage["cached_tokens"] >= usage["prompt_tokens"] - 16  # type: ignore[index]
    assert server.kv()["below"]["failed"] == 0  # type: ignore[index]


def test_another_kind_of_kv_finds_nothing_of_it(start: Callable[..., Server], tmp_path: Path) -> None:
    words = ("--kv-memory", "32MiB", "--disk-cache", str(tmp_path), "--disk-size", "64MiB")
    server = start(*words)
    server.ask(PROMPTS[0])
    wait_until(lambda: server.kv()["below"]["stored"] > 10)  # type: ignore[index]
    server.kill()
    server = start(*words, "--kv", "int8")
    assert server.ask(PROMPTS[0])["usage"]["cached_tokens"] == 0  # type: ignore[index]


def test_a_smaller_pool_gives_its_memory_back(start: Callable[..., Server]) -> None:
    server = start("--kv-memory", "128MiB")
    for i in range(5):
        server.ask(" ".join(f"page {i}, word {j}." for j in range(130)))  # some 800 tokens, 18 MB
    before = server.resident()
    answer = httpx.patch(f"{server.url}/v1/kv", json={"bytes": 32 << 20}, timeout=60)
    assert answer.status_code == 200, answer.text
    wait_until(lambda: server.resident() < before - (50 << 20))
    wanted = server.ask(PROMPTS[0])["choices"]
    assert httpx.patch(f"{server.url}/v1/kv", json={"bytes": 128 << 20}, timeout=60).status_code == 200
    assert server.ask(PROMPTS[0])["choices"] == wanted


def test_a_prompt_larger_than_the_pool_is_answered_as_by_a_large_one_also_after_kill_9(
    start: Callable[..., Server], tmp_path: Path
) -> None:
    prompt = " ".join(f"chapter {i}, line {j}." for i in range(9) for j in range(50))
    large = start("--kv-memory", "512MiB")
    expected = large.ask(prompt)
    assert expected["usage"]["prompt_tokens"] > 3000  # type: ignore[index]
    large.kill()
    words = ("--kv-memory", "16MiB", "--disk-cache", str(tmp_path), "--disk-size", "256MiB")
    server = start(*words)
    assert server.ask(prompt)["choices"] == expected["choices"]
    wait_until(lambda: server.kv()["below"]["in_flight"] == 0 and server.kv()["below"]["stored"] > 150)  # type: ignore[index]
    wait_until(lambda: server.kv()["below"]["num_cold"] == 0)  # type: ignore[index]
    server.kill()
    server = start(*words)
    again = server.ask(prompt)
    assert again["choices"] == expected["choices"]
    assert again["usage"]["cached_tokens"] > 1000  # type: ignore[index]
