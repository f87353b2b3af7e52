"""The hit rate of prefixes that requests share, in a live cluster, by how requests are routed.

    python -m bench.live_hits                          the tiny model, 2 and 4 replicas
    python -m bench.live_hits smollm2-135m --kv-memory 160MiB

Real replicas behind a real relay, without Ray. Each run starts with empty replicas and sends the same
requests: one of 12 prefixes for each replica, drawn at random, and a short text of its own. A replica has
room for about 14 prefixes of 512 tokens; all replicas together for all of them. A hit is a prompt token
that the replica says was cached.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import secrets
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
from tests.cluster.conftest import new_replica
from tests.cluster.relaying import fleet_of, relaying
from tests.cluster.tiny_folder import write_tiny_folder
from tests.waiting import wait_until

from octavo.cluster.child import ReplicaChild
from octavo.routing.prompt_costs import RoutedPrompt
from octavo.routing.router import Choice, NoReplica, Router

PREFIXES_PER_REPLICA = 12
WORDS = (
    "the",
    "a",
    "river",
    "house",
    "cold",
    "green",
    "walks",
    "old",
    "new",
    "tree",
    "stone",
    "never",
    "often",
)


class RoundRobin(Router):
    """One replica after the other."""

    _num_chosen = 0

    def choose(
        self, prompt: RoutedPrompt, now: float, excluded: frozenset[str] = frozenset()
    ) -> Choice | NoReplica:
        """The next one."""
        self._num_chosen += 1
        ids = [state.replica_id for state in self.states(now)]
        return _forced(super().choose(prompt, now, excluded), ids[self._num_chosen % len(ids)])


class TwoChoices(Router):
    """Of two replicas drawn at random the one with fewer unfinished requests."""

    def __init__(self) -> None:
        super().__init__()
        self._random = random.Random(0)

    def choose(
        self, prompt: RoutedPrompt, now: float, excluded: frozenset[str] = frozenset()
    ) -> Choice | NoReplica:
        """The better one of two."""
        drawn = self._random.sample(self.states(now), 2)
        least = min(drawn, key=lambda state: state.num_sent)
        return _forced(super().choose(prompt, now, excluded), least.replica_id)


def _forced(choice: Choice | NoReplica, replica_id: str) -> Choice | NoReplica:
    if isinstance(choice, NoReplica) or choice.replica_id == replica_id:
        return choice
    others = tuple(one for one in (choice.replica_id, *choice.ranked) if one != replica_id)
    return replace(choice, replica_id=replica_id, hit_tokens={}, ranked=others)


ROUTERS: Mapping[str, type[Router]] = {
    "prefix": Router,
    "round robin": RoundRobin,
    "two choices": TwoChoices,
}


def requests_of(num_replicas: int, num_requests: int, prefix_words: int) -> list[str]:
    """The same prompts for each router."""
    r = random.Random(num_replicas)
    prefixes = [
        " ".join([f"{number}:", *r.choices(WORDS, k=prefix_words)])
        for number in range(PREFIXES_PER_REPLICA * num_replicas)
    ]
    return [f"{r.choice(prefixes)} {number} {r.choice(WORDS)}" for number in range(num_requests)]


async def _send_all(url: str, prompts: list[str], num_clients: int) -> tuple[int, int]:
    """Tokens that were cached, and all tokens of the prompts."""
    cached = total = 0
    waiting = iter(prompts)

    async def send(client: httpx.AsyncClient) -> None:
        nonlocal cached, total
        for prompt in waiting:
            answer = await client.post("/v1/completions", json={"prompt": prompt, "max_tokens": 4})
            answer.raise_for_status()
            usage = answer.json()["usage"]
            cached += usage["cached_tokens"]
            total += usage["prompt_tokens"]

    async with httpx.AsyncClient(base_url=url, timeout=600) as client:
        await asyncio.gather(*[send(client) for _ in range(num_clients)])
    return cached, total


def hit_rate(router: Router, model: str, kv_memory: str, num_replicas: int, prompts: list[str]) -> float:
    """Of one run, with replicas that begin empty."""
    key, flags = secrets.token_hex(32), ("--kv-memory", kv_memory, "--threads", "1")
    with ExitStack() as ends:
        replicas = [new_replica(slot, key=key) for slot in range(num_replicas)]
        children = [ReplicaChild(one, [model, *flags], on_log=lambda line: None) for one in replicas]
        for child in children:
            ends.callback(child.kill)
        url, _ = ends.enter_context(relaying(Path(model), fleet_of(children), router=router))
        wait_until(lambda: len(router.states(0.0)) == num_replicas)
        cached, total = asyncio.run(_send_all(url, prompts, 2 * num_replicas))
    return cached / total


def main() -> None:
    """A row for each number of replicas."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?")
    parser.add_argument("--kv-memory", default="2MiB")
    parser.add_argument("--replicas", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--requests", type=int, default=20, help="for each prefix")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = given.model or str(write_tiny_folder(Path(folder) / "tiny"))
        prefix_words = 480 if given.model else 95  # the tiny model's tokens are bytes
        print("| replicas | requests | " + " | ".join(ROUTERS) + " | seen before |")
        print("| --- | --- |" + " --- |" * (len(ROUTERS) + 1))
        for num_replicas in given.replicas:
            num_requests = given.requests * PREFIXES_PER_REPLICA * num_replicas
            prompts = requests_of(num_replicas, num_requests, prefix_words)
            rates = [
                hit_rate(kind(), model, given.kv_memory, num_replicas, prompts) for kind in ROUTERS.values()
            ]
            most = 1 - len({prompt.partition(":")[0] for prompt in prompts}) / num_requests
            row = " | ".join(f"{rate:.1%}" for rate in rates)
            print(f"| {num_replicas} | {num_requests} | {row} | {most:.1%} |", flush=True)


if __name__ == "__main__":
    main()
