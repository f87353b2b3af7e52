"""Ranks as processes, behind a real server: the answers of one; when one dies, all end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from tests.attack.house import House, free_port, serving
from tests.waiting import wait_until

from octavo import LLM, SamplingParams

pytestmark = [pytest.mark.full, pytest.mark.real_model]

TORCH = ("--backend", "torch", "--device", "cpu", "--kv-memory", "64MiB", "--context-length", "512")
PROMPTS = ["The capital of France is", "Once upon a time there was a printer who"]


def rank_pids(parent: int) -> list[int]:
    """The processes of its ranks, that live, in order."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            status = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if b"octavo.device.ranks.worker" in words and status[0] != "Z" and int(status[1]) in (parent, 1):
            found.append((json.loads(words[3])["rank"], int(entry.name)))
    return [pid for _, pid in sorted(found)]


def wait_until_gone(pids: list[int], seconds: float) -> None:
    """Ends within so many seconds, which is what users were told."""
    begun = time.monotonic()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert time.monotonic() - begun < seconds


def test_three_ranks_give_the_bits_of_one() -> None:
    params = SamplingParams(max_tokens=6, temperature=0.8, seed=3, logprobs=3)
    answers = []
    for num_ranks in (1, 3):
        llm = LLM(
            tensor_parallel_size=num_ranks,
            backend="torch",
            device="cpu",
            kv_memory_bytes=64 << 20,
            context_length=512,
        )
        outputs = llm.generate(PROMPTS, params)
        answers.append([(one.outputs[0].token_ids, repr(one.outputs[0].logprobs)) for one in outputs])
        llm.close()
    assert answers[0] == answers[1]
    assert rank_pids(os.getpid()) == []


@pytest.mark.parametrize("is_busy", [False, True])
@pytest.mark.parametrize(("sent", "words", "seconds"), [("KILL", "SIGKILL", 2), ("STOP", "is stopped", 10)])
@pytest.mark.parametrize("rank", [1, 2])
def test_one_that_dies_or_stops_ends_all(
    sent: str, words: str, seconds: float, rank: int, is_busy: bool, tmp_path: Path
) -> None:
    with serving(tmp_path, *TORCH, "-tp", "3") as house:
        house.ended = True
        pids = rank_pids(house.process.pid)
        assert len(pids) == 2
        lines: list[str] = []
        reader = threading.Thread(target=read_stream, args=(house, lines))
        if is_busy:
            reader.start()
            wait_until(lambda: lines)
        os.kill(pids[rank - 1], getattr(signal, f"SIG{sent}"))
        status = house.process.wait(seconds)
        assert status not in (None, 0)
        wait_until_gone(pids, 1)
        log = house.log.read_text()
        assert f"rank {rank} (cpu, process {pids[rank - 1]})" in log
        assert words in log
        if is_busy:
            reader.join()
            assert any(words in line and "error" in line for line in lines), lines[-3:]


def read_stream(house: House, lines: list[str]) -> None:
    body = {"prompt": PROMPTS[1], "max_tokens": 300, "stream": True, "ignore_eos": True}
    with httpx.stream("POST", f"{house.url}/v1/completions", json=body, timeout=60) as answer:
        lines += answer.iter_lines()


def test_no_rank_outlives_rank_0(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("octavo-ranks-*"))
    with serving(tmp_path, *TORCH, "-tp", "3") as house:
        house.ended = True
        pids = rank_pids(house.process.pid)
        house.process.send_signal(signal.SIGKILL)
        house.process.wait()
        wait_until_gone(pids, 2)
    assert set(Path("/tmp").glob("octavo-ranks-*")) == before


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_dies_while_it_loads_ends_all(rank: int, tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("octavo-ranks-*"))
    command = [sys.executable, "-m", "octavo", "serve", *TORCH, "-tp", "3", "--port", str(free_port())]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    wait_until(lambda: len(rank_pids(process.pid)) == 2)
    pids = rank_pids(process.pid)
    os.kill(process.pid if rank == 0 else pids[0], signal.SIGKILL)
    assert process.wait(5) != 0
    wait_until_gone(pids, 2)
    assert set(Path("/tmp").glob("octavo-ranks-*")) == before
    if rank:
        assert "rank 1 (cpu" in (tmp_path / "log").read_text()


def test_what_listens_is_the_loopback_alone_and_starts_leave_nothing(tmp_path: Path) -> None:
    before = set(Path("/tmp").glob("octavo-ranks-*"))
    for _ in range(3):
        with serving(tmp_path, *TORCH, "-tp", "3") as house:
            house.ended = True
            pids = [house.process.pid, *rank_pids(house.process.pid)]
            assert {address for pid in pids for address in listening(pid)} == {"0100007F"}
            assert house.ask("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1}).is_success
            house.process.terminate()
            assert house.process.wait(10) == 0
            wait_until_gone(pids[1:], 1)
    assert set(Path("/tmp").glob("octavo-ranks-*")) == before


def listening(pid: int) -> set[str]:
    """IPv4 addresses of its listening sockets, as the system writes them."""
    inodes = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        target = os.readlink(fd)
        if target.startswith("socket:["):
            inodes.add(target[8:-1])
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    newer = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
    assert not [row for row in newer if row[9] in inodes]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}
