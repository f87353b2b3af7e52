"""The damage when a part of a cluster dies under load: lost requests, wrong answers, orphaned processes,
and seconds until all replicas serve again.

    python -m bench.cluster_faults                          the default model, two replicas, every fault
    python -m bench.cluster_faults MODEL --faults child,relay,scale --clients 8

Needs `octavo[ray]`. Every answer is compared with that of a single server that ran before. A request is lost
if its client gets no complete answer: an error, or a stream that ends early.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

from octavo.cluster.child import ReplicaChild
from octavo.cluster.ports import descendants
from octavo.server.replica import ReplicaIdentity

FAULTS = ("child", "actor", "relay", "controller", "raylet", "scale", "update")
PREFIX = "You are a careful librarian who answers in one sentence. "
PROMPTS = tuple(f"{PREFIX}Say something about book number {number}." for number in range(16))
LIMIT_S = 180.0
_POLL_S = 0.2
Row = dict[str, object]


@dataclass
class Load:
    """The clients' results. `lost`: by kind of error."""

    whole: int = 0
    wrong: int = 0
    lost: Counter[str] = field(default_factory=Counter)
    by_replica: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True)
class Outcome:
    """The outcome of one fault."""

    fault: str
    load: Load
    orphans: int
    heal_s: float | None  # until all configured replicas and relays run

    @property
    def line(self) -> str:
        """A line of the table."""
        lost = sum(self.load.lost.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.load.lost.most_common(4))
        heal = "" if self.heal_s is None else f"{self.heal_s:.1f}"
        counts = f"{self.load.whole:>7}{lost:>6}{self.load.wrong:>7}{self.orphans:>9}{heal:>9}"
        return f"{self.fault:<12}{counts}  {kinds}"


class RunningCluster:
    """`octavo cluster serve` as a process with its own cache folder, which links to the models of the usual
    one."""

    def __init__(self, model: str | None, *flags: str, folder: Path, nodes: RayNodes | None = None) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder, self.log = folder, folder / "serve.log"
        self._nodes = nodes
        self._environment = environment_of(folder, nodes)
        self._model = [] if model is None else [model]
        self._flags = [*flags, "--port", str(self.port), "--log-level", "warning"]
        self._address = [] if nodes is None else ["--address", nodes.address]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it serves. Exits with its log if it fails."""
        command = [*octavo(), "cluster", "serve", *self._model, *self._flags, *self._address]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log, env=self._environment)
        until(lambda: "ctrl-c stops it" in self.log.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.log.read_text()

    def ask(self, *command: str, timeout_s: float = LIMIT_S) -> str:
        """The output of another command of `octavo cluster`. Raises with its error output."""
        done = subprocess.run(
            [*octavo(), "cluster", *command, *self._address],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def members(self, kind: str = "") -> list[Row]:
        """The members of that kind; none while Ray does not answer."""
        try:
            lines = self.ask("status", "--json").splitlines()
        except AssertionError:
            return []
        return [row for row in map(json.loads, lines) if kind in ("", row["kind"])]

    def processes(self) -> dict[int, str]:
        """All its descendants by process id, with their start times."""
        assert self.process is not None
        roots = [self.process.pid, *(() if self._nodes is None else self._nodes.pids)]
        return {pid: began for root in roots for pid in descendants(root) if (began := began_at(pid))}

    def stop(self) -> int:
        """Stop it as ctrl-c does, by force after a timeout. Returns its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        try:
            return self.process.wait(LIMIT_S)
        finally:
            self.process.kill()


class RayNodes:
    """Ray nodes on this machine (`ray start` for each), with their own token unless they are open."""

    def __init__(self, folder: Path, is_open: bool = False) -> None:
        self.is_open = is_open
        self.folder, self.token = folder, folder / "ray-token"
        self.started: list[subprocess.Popen[bytes]] = []
        self.token.touch(0o600)
        self.token.write_text(secrets.token_hex(32))
        self.address = f"127.0.0.1:{free_port()}"

    @property
    def pids(self) -> list[int]:
        """Ids of the processes with the nodes' token."""
        return [process.pid for process in self.started]

    def start(self, **variables: str) -> subprocess.Popen[bytes]:
        """Start one more node, the head first, and wait until the cluster lists it."""
        port = self.address.rpartition(":")[2]
        first = ["--head", "--port", port, "--include-dashboard", "false"]
        where = ["--address", self.address] if self.started else first
        size = ["--num-cpus", "2", "--object-store-memory", str(80 * 2**20)]
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", *where, *size]
        environment = environment_of(self.folder, self) | variables
        path = self.folder / f"node-{len(self.started)}.log"
        with path.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--disable-usage-stats"], env=environment, stdout=log, stderr=log
            )
        self.started.append(process)
        until(lambda: b"Ray runtime started" in path.read_bytes())
        return process

    def raylet(self, node: subprocess.Popen[bytes]) -> int:
        """The process id of a node's raylet."""
        return next(pid for pid in descendants(node.pid) if _name(pid) == "raylet")

    def stop(self) -> None:
        """Stop all nodes, the head last."""
        for process in reversed(self.started):
            process.terminate()
        for process in reversed(self.started):
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()


@contextmanager
def ray_nodes(count: int, is_open: bool = False) -> Iterator[RayNodes]:
    """A Ray cluster of so many nodes, stopped at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="octavo-nodes-") as folder:
        nodes = RayNodes(Path(folder), is_open)
        link_models(Path(folder))
        try:
            for _ in range(count):
                nodes.start()
            yield nodes
        finally:
            nodes.stop()


def environment_of(folder: Path, nodes: RayNodes | None) -> dict[str, str]:
    """The environment of a process: the cache folder, and the token of these nodes."""
    found = {**os.environ, "OCTAVO_CACHE": str(folder)}
    if nodes is not None:
        mode = "disabled" if nodes.is_open else "token"
        found |= {"RAY_AUTH_MODE": mode, "RAY_AUTH_TOKEN_PATH": str(nodes.token), "RAY_worker_niceness": "0"}
    return found


@contextmanager
def cluster(model: str | None, *flags: str, nodes: RayNodes | None = None) -> Iterator[RunningCluster]:
    """A running cluster, stopped at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="octavo-cluster-") as own:
        folder = Path(own) if nodes is None else nodes.folder
        link_models(folder)
        running = RunningCluster(model, *flags, folder=folder, nodes=nodes)
        try:
            running.start()
            yield running
        finally:
            if running.process is not None and running.process.poll() is None:
                running.stop()


def link_models(folder: Path) -> None:
    """Link the models of the usual cache in another one."""
    from octavo.model.hub.alias import ALIASES
    from octavo.model.hub.paths import cache_folder

    for name in ALIASES:
        if (cache_folder() / name).is_dir() and not (folder / name).exists():
            (folder / name).symlink_to(cache_folder() / name)


def octavo() -> list[str]:
    """The command of this installation."""
    return [sys.executable, "-m", "octavo"]


def free_port() -> int:
    """A port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> float:
    """Wait until the condition holds. Returns the seconds; raises TimeoutError."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > limit_s:
            raise TimeoutError(f"it does not hold after {limit_s:.0f} s")
        time.sleep(_POLL_S)
    return time.monotonic() - began


def alone(model: str | None, prompts: Sequence[str], max_tokens: int) -> dict[str, str]:
    """The answers of a single server, by prompt."""
    child = ReplicaChild(
        ReplicaIdentity(secrets.token_hex(32), 0, "alone"),
        [*([] if model is None else [model]), "--log-level", "warning"],
    )
    try:
        child.wait_ready(LIMIT_S)

        async def ask() -> dict[str, str]:
            async with aiohttp.ClientSession(headers=child.replica.headers) as session:
                return {each: await answer(session, child.base_url, each, max_tokens) for each in prompts}

        return asyncio.run(ask())
    finally:
        child.kill()


class LostAnswer(Exception):
    """A client got no complete answer; the text is the reason in a word or two."""


async def answer(
    session: aiohttp.ClientSession, url: str, prompt: str, max_tokens: int, load: Load | None = None
) -> str:
    """The text of a stream. Raises LostAnswer."""
    body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    text = ""
    try:
        async with session.post(f"{url}/v1/completions", json=body) as response:
            if response.status != 200:
                raise LostAnswer(f"status {response.status}")
            if load is not None:
                load.by_replica[response.headers.get("x-octavo-replica", "")] += 1
            async for line in response.content:
                if line.startswith(b"data: [DONE]"):
                    return text
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise LostAnswer("error event")
                    text += event["choices"][0]["text"] if event["choices"] else ""
        raise LostAnswer("ended early")
    except (aiohttp.ClientError, OSError) as error:
        raise LostAnswer(type(error).__name__) from None


@contextmanager
def under_load(url: str, expected: dict[str, str], num_clients: int, max_tokens: int) -> Iterator[Load]:
    """Run clients that send requests continuously, in a thread, until the block ends and they have their last
    answers."""
    import threading

    load, ending = Load(), threading.Event()

    async def client(session: aiohttp.ClientSession, first: int) -> None:
        at = first
        while not ending.is_set():
            prompt = PROMPTS[at % len(PROMPTS)]
            at += 1
            try:
                text = await answer(session, url, prompt, max_tokens, load)
            except LostAnswer as lost:
                load.lost[str(lost)] += 1
                await asyncio.sleep(0.1)
            else:
                load.whole += 1
                load.wrong += text != expected[prompt]

    async def all_clients() -> None:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            await asyncio.gather(*(client(session, 3 * number) for number in range(num_clients)))

    thread = threading.Thread(target=asyncio.run, args=(all_clients(),), daemon=True)
    thread.start()
    try:
        yield load
    finally:
        ending.set()
        thread.join(LIMIT_S)


class Faults:
    """Causes faults in one running cluster, and waits until it is complete again."""

    def __init__(self, running: RunningCluster, num_replicas: int, num_relays: int) -> None:
        self._running, self._num_replicas, self._num_relays = running, num_replicas, num_relays

    def cause(self, fault: str) -> float:
        """Cause a fault. Returns the seconds until the cluster is complete again; raises TimeoutError."""
        began = time.monotonic()
        if fault == "scale":
            self._running.ask("scale", "--replicas", "1")
            self._running.ask("scale", "--replicas", str(self._num_replicas))
        elif fault == "update":
            self._running.ask("update")
        else:
            pid = self.victim(fault)
            before = self.ids()
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            if fault in ("child", "actor", "relay"):
                until(lambda: len(self.ids() - before) == 1 and self.is_whole())
                return time.monotonic() - began
            until(lambda: not began_at(pid))
        until(self.is_whole)
        return time.monotonic() - began

    def victim(self, fault: str) -> int:
        """The process id to kill."""
        if fault == "controller":
            return next(pid for pid in self._running.processes() if _name(pid).startswith("ray::ServeContr"))
        kind, field_name = {
            "child": ("engine", "child_pid"),
            "actor": ("engine", "pid"),
            "relay": ("relay", "pid"),
        }[fault]
        pid = self._running.members(kind)[0][field_name]
        assert isinstance(pid, int)
        return pid

    def ids(self) -> set[str]:
        """The ids of all members."""
        return {str(row["replica"]) for row in self._running.members()}

    def is_whole(self) -> bool:
        """Whether exactly the configured numbers of replicas and relays run."""
        rows = self._running.members()
        states = Counter((row["kind"], row["state"]) for row in rows)
        return states == {
            ("engine", "running"): self._num_replicas,
            ("relay", "running"): self._num_relays,
        }

    def orphans(self) -> int:
        """The number of replica processes whose actors are not members."""
        known = {row["child_pid"] for row in self._running.members("engine")}
        pids = {pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if self._is_child(pid)}
        return len(pids - known)

    def _is_child(self, pid: int) -> bool:
        """Whether a process is a replica of this cluster, by the cache folder in its environment."""
        with suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            own = f"OCTAVO_CACHE={self._running.folder}".encode()
            return b"octavo.cli.replica" in words and own in variables
        return False


def _name(pid: int) -> str:
    """The name of a process; "": there is none."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def began_at(pid: int) -> str:
    """The start time of a process in kernel ticks; "": there is none, or it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]
    return ""


def raylet_killed(given: argparse.Namespace, expected: dict[str, str]) -> Outcome:
    """Two nodes: the raylet of the second dies, then a third is started."""
    flags = ("--replicas", str(given.replicas), "--threads", "1", "--replicas-per-node", "1")
    with ray_nodes(2) as nodes, cluster(given.model, *flags, nodes=nodes) as running:
        causes = Faults(running, given.replicas, 4)
        nodes_used = {str(row["node"]) for row in running.members("engine")}
        assert len(nodes_used) == given.replicas, nodes_used
        second = nodes.started[1]
        with under_load(running.url, expected, given.clients, given.max_tokens) as load:
            os.kill(nodes.raylet(second), signal.SIGKILL)
            began = time.monotonic()
            nodes.start()
            until(lambda: nodes_used != {str(row["node"]) for row in running.members("engine")})
            until(causes.is_whole)
            heal_s = time.monotonic() - began
        return Outcome("raylet", load, causes.orphans(), heal_s)


def main() -> None:
    """Run the faults of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?")
    parser.add_argument("--replicas", type=int, default=2)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--faults", default=",".join(FAULTS))
    given = parser.parse_args()
    faults = given.faults.split(",")
    if unknown := set(faults) - set(FAULTS):
        parser.error(f"--faults has {sorted(unknown)}; allowed: {', '.join(FAULTS)}")
    expected = alone(given.model, PROMPTS, given.max_tokens)
    print(f"{'fault':<12}{'whole':>7}{'lost':>6}{'wrong':>7}{'orphans':>9}{'heal s':>9}  lost by")
    if others := [each for each in faults if each != "raylet"]:
        one_node(given, expected, others)
    if "raylet" in faults:
        print(raylet_killed(given, expected).line)


def one_node(given: argparse.Namespace, expected: dict[str, str], faults: Sequence[str]) -> None:
    """Run faults in one cluster, one after another; then stop it and count the processes left."""
    with cluster(given.model, "--replicas", str(given.replicas), "--threads", "1") as running:
        causes = Faults(running, given.replicas, 2)
        everything = running.processes()
        for fault in faults:
            with under_load(running.url, expected, given.clients, given.max_tokens) as load:
                heal_s = causes.cause(fault)
            print(Outcome(fault, load, causes.orphans(), heal_s).line, flush=True)
            everything |= running.processes()
        status = running.stop()
    left = [pid for pid, began in everything.items() if began_at(pid) == began]
    print(f"stopped with status {status}; processes left: {len(left)}")


if __name__ == "__main__":
    main()
