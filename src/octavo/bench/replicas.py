"""Balancers over several virtual servers: they choose a replica for each request, like a cluster's relay.

    PREFIX        the production router, with the replicas' reports, encoded and delayed
    ROUND_ROBIN   each replica in turn
    TWO_CHOICES   of two random replicas the one with fewer unfinished requests (Mitzenmacher 2001)

Reports are delayed by `delay_s`. First tokens and ends of requests, which pass through the balancer, are not.
"""

from __future__ import annotations

import enum
import heapq
import random
from array import array
from collections.abc import Callable, Sequence
from itertools import count

from octavo.bench.planner import Balancer, VirtualServer
from octavo.config import StartOptions
from octavo.engine.load_report import LoadReporter
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.memory.names import NameChain
from octavo.memory.place_changes import PlaceChanges
from octavo.routing.prompt_costs import RoutedPrompt
from octavo.routing.reports import (
    Changes,
    Load,
    ReportSplitter,
    encode_frame,
    pack_names,
    unpack_names,
)
from octavo.routing.router import NoReplica, Router
from octavo.routing.slots import ReplicaStart
from octavo.serving.replica_feed import frames_of, hello_of
from octavo.types import Request, Update

LOAD_EVERY_S, IDLE_EVERY_S = 0.1, 1.0


class RoutingPolicy(enum.StrEnum):
    """The policy of a balancer."""

    PREFIX = "prefix"
    ROUND_ROBIN = "round-robin"
    TWO_CHOICES = "two-choices"


def balancer_of(
    routing: RoutingPolicy, servers: Sequence[VirtualServer], setup: SchedulerSetup, delay_s: float, seed: int
) -> Balancer:
    """A new balancer. `delay_s`: delay of the replicas' reports."""
    if routing is RoutingPolicy.PREFIX:
        return PrefixBalancer(servers, setup, delay_s)
    return RoundRobin(servers) if routing is RoutingPolicy.ROUND_ROBIN else TwoChoices(servers, seed)


class RoundRobin:
    """Chooses each server in turn."""

    def __init__(self, servers: Sequence[VirtualServer]) -> None:
        self._num_servers, self._next = len(servers), 0

    def place(self, request: Request, now: float) -> int | None:
        """The next server."""
        place, self._next = self._next, (self._next + 1) % self._num_servers
        return place

    def follow(self, index: int) -> None:
        """Nothing to do: it has no state of servers."""


class _Clock:
    """Calls scheduled at virtual times, in order."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def advance(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()


class TwoChoices:
    """Counts the requests that each server has not finished."""

    def __init__(self, servers: Sequence[VirtualServer], seed: int) -> None:
        self._random = random.Random(f"two choices {seed}")
        self._open, self._clock = [0] * len(servers), _Clock()
        for index, server in enumerate(servers):
            server.on_update = self._follower(index)

    def place(self, request: Request, now: float) -> int | None:
        """The less loaded of two random servers."""
        self._clock.advance(now)
        drawn = self._random.sample(range(len(self._open)), min(2, len(self._open)))
        place = min(drawn, key=self._open.__getitem__)
        self._open[place] += 1
        return place

    def follow(self, index: int) -> None:
        """Nothing to do: `on_update` sees its updates."""

    def _follower(self, index: int) -> Callable[[Update, float], None]:
        def end() -> None:
            self._open[index] -= 1

        def follow(update: Update, now: float) -> None:
            if update.finish is not None:
                self._clock.at(now, end)

        return follow


class PrefixBalancer:
    """The router, and the feeds of all servers."""

    def __init__(self, servers: Sequence[VirtualServer], setup: SchedulerSetup, delay_s: float) -> None:
        self.router, self._clock, self._setup, self._delay_s = Router(), _Clock(), setup, delay_s
        self._servers, self._feeds = servers, [_Feed(server) for server in servers]
        for index, server in enumerate(servers):
            hello = hello_of(ReplicaStart(index, f"replica-{index}"), "", setup, StartOptions())
            self._fingerprint = hello.fingerprint
            self.router.on_hello(str(index), hello)
            server.on_update = self._see
            self.follow(index)
        self._has_first: set[int] = set()

    def place(self, request: Request, now: float) -> int | None:
        """The router's choice, by the reports received until now."""
        for index, server in enumerate(self._servers):
            if server.is_idle and now - self._feeds[index].loaded_at >= IDLE_EVERY_S:
                self._send(index, now)
        self._clock.advance(now)
        chain = NameChain(self._setup.root_of_tenant(request.tenant), self._setup.block_size)
        chain.extend(array("I", request.prompt))
        names = {self._fingerprint: unpack_names(pack_names(chain.names))}
        choice = self.router.choose(
            RoutedPrompt(len(request.prompt), names, request.max_tokens, b"", request.tenant), now
        )
        if isinstance(choice, NoReplica):
            return None
        self.router.on_sent(choice.replica_id, choice, str(request.request_id), now)
        return int(choice.replica_id)

    def follow(self, index: int) -> None:
        """Send the new frames of its feed."""
        self._send(index, self._servers[index].now)

    def _send(self, index: int, now: float) -> None:
        if data := self._feeds[index].take(now):
            at = now + self._delay_s
            self._clock.at(at, lambda: self._take(index, data, at))

    def _take(self, index: int, data: bytes, now: float) -> None:
        for report in ReportSplitter().feed(data):
            if isinstance(report, Load):
                self.router.on_load(str(index), report, now)
            elif isinstance(report, Changes):
                self.router.on_changes(str(index), report)

    def _see(self, update: Update, now: float) -> None:
        """Report first tokens and ends to the router, as the relay does."""
        key = str(update.request_id)
        if update.tokens and update.request_id not in self._has_first:
            self._has_first.add(update.request_id)
            self._clock.at(now, lambda: self.router.on_first_token(key))
        if update.finish is not None:
            self._has_first.discard(update.request_id)
            self._clock.at(now, lambda: self.router.on_ended(key))


class _Feed:
    """One server's reports: changes of its block names, and its load at intervals."""

    def __init__(self, server: VirtualServer) -> None:
        self._server = server
        self._places = PlaceChanges(server.scheduler.ledger)
        self._reporter = LoadReporter(server.scheduler)
        self.loaded_at = -LOAD_EVERY_S

    def take(self, now: float) -> bytes:
        """The frames since the last call."""
        data = frames_of(self._places.take())
        if now - self.loaded_at >= LOAD_EVERY_S or self._server.is_idle:
            self.loaded_at = now
            data += encode_frame(self._reporter.report())
        return data
