"""Replicas on Ray: parts are killed under load, and no answer is wrong. `make test-cluster` runs these."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from bench.cluster_faults import (
    PROMPTS,
    Faults,
    RunningCluster,
    alone,
    began_at,
    cluster,
    environment_of,
    octavo,
    ray_nodes,
    under_load,
    until,
)

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: make test-cluster"
    ),
]
MAX_TOKENS, NUM_CLIENTS = 24, 4
FLAGS = ("--threads", "1", "--kv-memory", "8MiB")


@pytest.fixture(scope="module")
def expected(tiny_folder: Path) -> dict[str, str]:
    """One server's answers, by prompt."""
    return alone(str(tiny_folder), PROMPTS, MAX_TOKENS)


@pytest.fixture(scope="module")
def running(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    disk = ("--disk-cache", tmp_path_factory.mktemp("disk"), "--disk-size", "8MiB")
    with cluster(str(tiny_folder), "--replicas", "2", *FLAGS, *map(str, disk)) as started:
        yield started


@pytest.mark.parametrize(
    ("fault", "may_lose"),
    [
        ("child", True),
        ("actor", True),
        ("relay", True),
        ("controller", False),
        ("scale", False),
        ("update", False),
    ],
)
def test_under_load_no_answer_is_wrong_and_only_running_ones_are_lost(
    running: RunningCluster, expected: dict[str, str], fault: str, may_lose: bool
) -> None:
    faults = Faults(running, num_replicas=2, num_relays=2)
    with under_load(running.url, expected, NUM_CLIENTS, MAX_TOKENS) as load:
        faults.cause(fault)
    assert load.whole > 0
    assert load.wrong == 0
    assert sum(load.lost.values()) <= (NUM_CLIENTS if may_lose else 0), load.lost
    assert faults.orphans() == 0


def test_a_session_is_there_again_when_another_replica_has_its_slot(running: RunningCluster) -> None:
    messages = [{"role": "user", "content": "Remember the number 7, please, and all that was said."}]
    first = _turn(running, messages, "new")
    session = first.headers["x-octavo-session"]
    slot = int(session.partition("-")[0].removeprefix("k"))
    faults = Faults(running, num_replicas=2, num_relays=2)
    before = {row["replica"] for row in running.members("engine") if row["slot"] == slot}
    [victim] = [row["child_pid"] for row in running.members("engine") if row["slot"] == slot]
    os.kill(int(str(victim)), 9)
    until(lambda: before.isdisjoint(faults.ids()) and faults.is_whole())
    messages += [first.json()["choices"][0]["message"], {"role": "user", "content": "Which one?"}]
    second = _turn(running, messages, session)
    assert second.status_code == 200, second.text
    assert second.headers["x-octavo-replica"] == f"replica-{slot}"
    assert second.headers["x-octavo-session"] == session


def _turn(running: RunningCluster, messages: list[dict[str, str]], session: str) -> httpx.Response:
    body = {"messages": messages, "max_tokens": 8, "temperature": 0, "session": session}
    return httpx.post(f"{running.url}/v1/chat/completions", json=body, timeout=60)


def test_the_clusters_key_is_in_no_argument_variable_or_file_of_ray(running: RunningCluster) -> None:
    folder = running.folder / "clusters" / "octavo"
    where = json.loads((folder / "cluster.json").read_text())
    script = (
        "from pathlib import Path; from octavo.cluster.ray_access import set_environment; "
        f"set_environment(Path({where['token']!r})); "
        "from octavo.cluster.ray_access import cluster_key, join_ray; "
        f"join_ray({where['address']!r}, quiet=True); print('KEY', cluster_key(is_open=False))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    key = next(line.split()[1] for line in done.stdout.splitlines() if line.startswith("KEY"))
    assert len(key) == 64
    for secret in (key, Path(where["token"]).read_text()):
        for pid in running.processes():
            for name in ("cmdline", "environ"):
                assert secret.encode() not in Path(f"/proc/{pid}/{name}").read_bytes()
        logs = Path("/tmp/ray/session_latest/logs")
        shown = subprocess.run(["grep", "-rl", secret, logs], capture_output=True, text=True, timeout=120)
        assert shown.stdout == ""
        assert secret not in running.ask("status", "--json")


def test_a_stopped_cluster_leaves_no_process_and_no_folder(
    running: RunningCluster, tiny_folder: Path
) -> None:
    before = running.processes()
    assert len(before) > 8
    assert running.stop() == 0
    until(lambda: not [pid for pid, began in before.items() if began_at(pid) == began], 30)
    assert not (running.folder / "clusters" / "octavo").exists()


def test_a_nodes_raylet_is_killed_and_another_node_takes_its_replica(
    tiny_folder: Path, expected: dict[str, str]
) -> None:
    with (
        ray_nodes(2) as nodes,
        cluster(
            str(tiny_folder), "--replicas", "2", "--replicas-per-node", "1", *FLAGS, nodes=nodes
        ) as running,
    ):
        used = {str(row["node"]) for row in running.members("engine")}
        assert len(used) == 2  # one replica each
        faults = Faults(running, num_replicas=2, num_relays=4)
        second = nodes.started[1]
        with under_load(running.url, expected, NUM_CLIENTS, MAX_TOKENS) as load:
            os.kill(nodes.raylet(second), 9)
            nodes.start()
            until(
                lambda: used != {str(row["node"]) for row in running.members("engine")} and faults.is_whole()
            )
        assert (load.wrong, faults.orphans()) == (0, 0)
        assert load.whole > 0


def test_a_ray_without_a_token_is_refused(tiny_folder: Path) -> None:
    with ray_nodes(1, is_open=True) as nodes:
        command = [*octavo(), "cluster", "serve", str(tiny_folder), "--address", nodes.address]
        environment = environment_of(nodes.folder, None) | {"RAY_AUTH_TOKEN": "x" * 64}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
        assert done.returncode == 2
        assert "requires no token: every client of its ports can run code on every node" in done.stderr


def test_a_node_without_the_model_is_refused_by_name(tmp_path: Path) -> None:
    with ray_nodes(1) as nodes:
        nodes.start(OCTAVO_CACHE=str(tmp_path))
        command = [*octavo(), "cluster", "serve", "--replicas", "2", "--address", nodes.address]
        environment = environment_of(nodes.folder, nodes)
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
        assert done.returncode == 2
        assert done.stderr.count("octavo models pull smollm2-135m") == 1
        assert "node " in done.stderr
