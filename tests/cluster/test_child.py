"""A replica is a child process: it has the cluster's key, says when it serves, and never outlives its
parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from tests.cluster.conftest import SMALL, StartChild, new_replica
from tests.processes import is_alive, running
from tests.waiting import LIMIT_S, wait_until

from octavo.cluster.child import ReplicaChild, ReplicaEnded
from octavo.errors import ConfigError
from octavo.server.replica import KEY_HEADER, ReplicaIdentity

ROOT = Path(__file__).parents[2]
PARENT = """
import sys
from tests.cluster.conftest import new_replica
from octavo.cluster.child import ReplicaChild
child = ReplicaChild(new_replica(), sys.argv[1:])
child.wait_ready()
print(child.pid, flush=True)
sys.stdin.read()
"""
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, "temperature": 0}


def test_every_route_wants_the_clusters_key(start_child: StartChild) -> None:
    child = start_child()
    url = child.wait_ready(LIMIT_S)
    wrong = ({}, {KEY_HEADER: "0" * 64}, {KEY_HEADER: b"\xc3\xa4"}, {KEY_HEADER: ""})
    with httpx.Client(base_url=url) as client:
        for path in ("/health", "/ping", "/metrics", "/", "/ui", "/v1/chat/completions", "/none"):
            for headers in wrong:
                answer = client.get(path, headers=headers)
                assert answer.status_code == 403
                assert answer.json()["error"]["code"] == "cluster_key"
            assert client.get(path, headers=child.replica.headers).status_code != 403


def test_a_child_serves_and_ends_in_order(start_child: StartChild) -> None:
    log: list[str] = []
    child = start_child(new_replica(7), on_log=log.append)
    url = child.wait_ready(LIMIT_S)
    child.check_health()
    answer = httpx.post(f"{url}/v1/chat/completions", json=CHAT, headers=child.replica.headers)
    assert answer.status_code == 200
    assert child.drain(LIMIT_S) == 0
    assert not child.is_alive
    assert "replica-7 INFO octavo.server: stopped" in log[-1]
    assert child.replica.key not in "\n".join(log)
    with pytest.raises(ReplicaEnded, match=r"replica-7 ended with status 0; the last of its log:\n"):
        child.check_health()


def test_the_clients_key_is_wanted_as_ever(start_child: StartChild) -> None:
    child = start_child(None, "--api-key", "secret")
    url, headers = child.wait_ready(LIMIT_S), child.replica.headers
    assert httpx.get(f"{url}/v1/models", headers=headers).status_code == 401
    both = headers | {"Authorization": "Bearer secret"}
    assert httpx.get(f"{url}/v1/models", headers=both).status_code == 200
    child.check_health()  # which needs the cluster's alone


def test_names_in_host_and_origin_are_not_its_business(start_child: StartChild) -> None:
    child = start_child()
    headers = child.replica.headers | {"Host": "models.example", "Origin": "https://app.example"}
    assert httpx.get(f"{child.wait_ready(LIMIT_S)}/v1/models", headers=headers).status_code == 200


def test_the_key_is_in_no_argument_and_no_variable(start_child: StartChild) -> None:
    child = start_child()
    child.wait_ready(LIMIT_S)
    for name in ("cmdline", "environ"):
        assert child.replica.key.encode() not in Path(f"/proc/{child.pid}/{name}").read_bytes()
    assert child.replica.key not in repr(child.replica)


@pytest.mark.parametrize("front_ends", ["0", "2"])
def test_nothing_is_left_of_a_parent_that_was_killed(tiny_folder: Path, front_ends: str) -> None:
    command = [sys.executable, "-c", PARENT, tiny_folder, *SMALL, "--http-processes", front_ends]
    with running(command, stdin=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        found = with_children(int(parent.stdout.readline()))
        assert len(found) > int(front_ends)
        assert all(map(is_alive, found))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    wait_until(lambda: not any(map(is_alive, found)))


def with_children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(word) for path in tasks for word in path.read_text().split()]
    return [pid, *(one for child in children for one in with_children(child))]


def test_how_a_child_ended_is_said_with_its_last_lines(start_child: StartChild) -> None:
    killed = start_child()
    killed.wait_ready(LIMIT_S)
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait(LIMIT_S) == -signal.SIGKILL
    with pytest.raises(
        ReplicaEnded, match=r"(?s)was ended by signal 9 \(SIGKILL\); the last of its log:\n.*serving"
    ):
        killed.check_health()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--kv-memory", "1KiB"), "octavo: --kv-memory is 1024; allowed"),
        (("--tls-cert", "a.pem", "--tls-key", "b.pem"), "--tls-cert is a.pem, and this is a replica"),
        (("--unix-socket", "a.sock"), "--unix-socket"),
        (("--metrics-address", "9100"), "--metrics-address is 9100, and this is a replica"),
    ],
)
def test_what_a_child_cannot_begin_with_is_in_the_error(
    start_child: StartChild, flags: tuple[str, ...], message: str
) -> None:
    child = start_child(None, *flags)
    with pytest.raises(ReplicaEnded, match=r"ended with status 2") as raised:
        child.wait_ready(LIMIT_S)
    assert message in str(raised.value)


def test_a_child_waits_until_another_has_left_its_slot(start_child: StartChild, tmp_path: Path) -> None:
    replica, phases = new_replica(4, tmp_path / "4"), list[str]()
    first = start_child(replica, "--disk-size", "8MiB")
    first.wait_ready(LIMIT_S)
    second = start_child(replica, "--disk-size", "8MiB")

    def on_progress(text: str) -> None:
        phases.append(text)
        if "waiting" in text:
            first.begin_drain()

    second.wait_ready(LIMIT_S, on_progress)
    assert phases[0] == f"waiting until another process leaves slot 4: {tmp_path / '4'}"
    assert first.wait(LIMIT_S) == 0
    second.kill()
    third = start_child(replica, "--disk-size", "8MiB")
    third.wait_ready(LIMIT_S)  # a lock ends with its process


def test_a_slot_whose_folder_cannot_be_used_is_an_error(start_child: StartChild, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    child = start_child(new_replica(4, tmp_path / "file" / "4"))
    with pytest.raises(
        ReplicaEnded, match=r"the folder of slot 4, .*file/4, cannot be used: Not a directory"
    ):
        child.wait_ready(LIMIT_S)


def test_a_child_that_no_process_can_be_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(ReplicaEnded, match=r"replica-0 cannot be started: .*No such file"):
        ReplicaChild(new_replica(), [])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"key": "00"}, "64 hex digits"),
        ({"slot": -1}, "slot is -1; allowed: 0 to 99,999"),
        ({"name": "a b"}, "name is 'a b'; allowed"),
    ],
)
def test_a_replica_that_is_none_is_refused(changed: dict[str, object], message: str) -> None:
    fields: dict[str, object] = {"key": "0" * 64, "slot": 0, "name": "replica-0"}
    with pytest.raises(ConfigError, match=message):
        ReplicaIdentity(**(fields | changed))  # type: ignore[arg-type]


def test_the_line_that_names_a_replica_can_be_read_again() -> None:
    replica = new_replica(3, Path("/cache/3"))
    assert ReplicaIdentity.of_line(replica.to_line()) == replica
    for line in (b"", b"{}\n", b"[]\n", b"\xff\n", replica.to_line()[:20], b'{"key": 1}\n'):
        with pytest.raises(ConfigError, match="the line that a replica begins with is wrong"):
            ReplicaIdentity.of_line(line)


def test_a_line_with_values_that_are_none_is_refused() -> None:
    line = new_replica(3).to_line().replace(b'"slot":3', b'"slot":-3')
    with pytest.raises(ConfigError, match="slot is -3"):
        ReplicaIdentity.of_line(line)
