"""Ranks as processes, behind a real server: the answers of one; when one dies, all end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
import torch
from tests.attack.house import House, free_port, serving
from tests.waiting import LIMIT_S, wait_until

from octavo import LLM, SamplingParams
from octavo.device.ranks.collectives import RankGroup
from octavo.device.ranks.processes import RankProcesses
from octavo.errors import DeviceLost

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
            start = words[words.index(b"octavo.device.ranks.worker") + 1]
            found.append((json.loads(start)["rank"], int(entry.name)))
    return [pid for _, pid in sorted(found)]


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


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
@pytest.mark.parametrize(("sent", "words"), [("KILL", "SIGKILL"), ("STOP", "is stopped")])
@pytest.mark.parametrize("rank", [1, 2])
def test_one_that_dies_or_stops_ends_all(
    sent: str, words: str, rank: int, is_busy: bool, tmp_path: Path
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
        status = house.process.wait(LIMIT_S)
        assert status not in (None, 0)
        wait_until_gone(pids)
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


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where processes of this test make their folders: other tests may run."""
    own = tmp_path / "tmp"
    own.mkdir()
    monkeypatch.setenv("TMPDIR", str(own))
    return own


def test_no_rank_outlives_rank_0(tmp_path: Path, folders: Path) -> None:
    with serving(tmp_path, *TORCH, "-tp", "3") as house:
        house.ended = True
        pids = rank_pids(house.process.pid)
        house.process.send_signal(signal.SIGKILL)
        house.process.wait()
        wait_until_gone(pids)
    assert not list(folders.glob("octavo-ranks-*"))


@pytest.mark.parametrize("rank", [0, 1])
def test_one_that_dies_while_it_loads_ends_all(rank: int, tmp_path: Path, folders: Path) -> None:
    command = [sys.executable, "-m", "octavo", "serve", *TORCH, "-tp", "3", "--port", str(free_port())]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(command, stderr=log)
    wait_until(lambda: len(rank_pids(process.pid)) == 2)
    pids = rank_pids(process.pid)
    os.kill(process.pid if rank == 0 else pids[0], signal.SIGKILL)
    assert process.wait(LIMIT_S) != 0
    wait_until_gone(pids)
    assert not list(folders.glob("octavo-ranks-*"))
    if rank:
        assert "rank 1 (cpu" in (tmp_path / "log").read_text()


def test_what_listens_is_the_loopback_alone_and_starts_leave_nothing(tmp_path: Path, folders: Path) -> None:
    for _ in range(3):
        with serving(tmp_path, *TORCH, "-tp", "3") as house:
            house.ended = True
            pids = [house.process.pid, *rank_pids(house.process.pid)]
            assert {address for pid in pids for address in listening(pid)} == {"0100007F"}
            assert house.ask("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 1}).is_success
            house.process.terminate()
            assert house.process.wait(LIMIT_S) == 0
            wait_until_gone(pids[1:])
    assert not list(folders.glob("octavo-ranks-*"))


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


def test_one_that_fails_says_why_and_ends_all() -> None:
    fd = os.memfd_create("ranks")
    ranks = RankProcesses(["cpu", "cpu", "cuda:7"], "auto", 30.0, fd)
    pids = [state.pid for state in ranks.states()]
    with pytest.raises(DeviceLost, match=rf"rank 2 \(cuda:7, process {pids[1]}\) failed: device is cuda:7"):
        ranks.answers()
    wait_until_gone(pids)
    ranks.close()
    os.close(fd)


def test_one_that_keeps_the_others_waiting_is_named() -> None:
    fd = os.memfd_create("ranks")
    ranks = RankProcesses(["cpu", "cpu"], "auto", 5.0, fd)
    ranks.answers()
    group = RankGroup(ranks.rendezvous, 0, 2, 5.0, torch.device("cpu"))
    ranks.have_met(group)
    pids = [state.pid for state in ranks.states()]
    with pytest.raises(RuntimeError, match="Timed out") as raised:
        group.gather_pieces(torch.zeros(3))  # of which rank 1 knows nothing
    lost = str(ranks.why(raised.value))
    assert f"(rank 1 (cpu, process {pids[0]}) did not come to it)" in lost
    wait_until_gone(pids)
    ranks.close()
    os.close(fd)


def test_a_suspended_session_is_found_by_as_many_ranks_and_by_no_other_number(tmp_path: Path) -> None:
    disk = ("--disk-cache", str(tmp_path / "disk"), "--disk-size", "64MiB")
    body = {"messages": [{"role": "user", "content": PROMPTS[1] * 4}], "max_tokens": 4, "temperature": 0}
    with serving(tmp_path, *TORCH, *disk, "-tp", "3") as house:
        house.ended = True
        first = house.ask("POST", "/v1/chat/completions", json={**body, "session": "new"})
        session = first.headers["x-octavo-session"]
        assert house.ask("POST", f"/v1/sessions/{session}/suspend").is_success
        details = house.ask("POST", "/api/show", json={"model": "smollm2-135m"}).json()["details"]
        assert details["parameter_size"].startswith("134")  # of all ranks
        assert len(house.ask("GET", "/v1/kv").json()["ranks"]) == 3
        house.process.terminate()
        house.process.wait(10)
    said = [
        *body["messages"],
        first.json()["choices"][0]["message"],
        {"role": "user", "content": "And then?"},
    ]  # type: ignore[misc]
    turn = {**body, "session": session, "messages": said}
    with serving(tmp_path, *TORCH, *disk, "-tp", "3") as house:
        found = house.ask("POST", "/v1/chat/completions", json=turn)
        assert found.json()["usage"]["cached_tokens"] >= 32
        assert house.ask("PATCH", "/v1/kv", json={"blocks": 30}).is_success
    with serving(tmp_path, *TORCH, *disk) as house:
        assert house.ask("POST", "/v1/chat/completions", json=turn).status_code == 404
