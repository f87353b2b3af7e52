"""Fronts of several virtual servers: what chooses a replica for each request, as a relay would.

    PREFIX        the router that serves, fed with what replicas report, encoded and late
    ROUND_ROBIN   one after the other
    TWO_CHOICES   of two drawn at random the one with fewer unfinished requests (Mitzenmacher 2001)

Reports are as late as `delay_s` says; what a front itself sees, as first tokens and ends, is not.
"""

from __future__ import annotations

import enum
import heapq
import random
from array import array
from collections import defaultdict
from collections.abc import Callable, Sequence
from itertools import count

from octavo.bench.planner import Front, Server
from octavo.engine.load_report import LoadReporter
from octavo.engine.scheduler_setup import SchedulerSetup
from octavo.memory.changes import ChangeRecord, Place
from octavo.memory.names import NameChain
from octavo.routing.prompt_costs import Prompt
from octavo.routing.reports import (
    NAMES_MAX,
    VERSION,
    Changes,
    FrameReader,
    Hello,
    Load,
    Report,
    encode_frame,
    packed,
    unpacked,
)
from octavo.routing.router import NoReplica, Router
from octavo.types import Request, Update

LOAD_EVERY_S = 0.1
_FINGERPRINT = "of all"


class Routing(enum.StrEnum):
    """How requests are spread."""

    PREFIX = "prefix"
    ROUND_ROBIN = "round-robin"
    TWO_CHOICES = "two-choices"


def front_of(
    routing: Routing, servers: Sequence[Server], setup: SchedulerSetup, delay_s: float, seed: int
) -> Front:
    """A front of its own state. `delay_s`: of replicas' reports."""
    if routing is Routing.PREFIX:
        return PrefixFront(servers, setup, delay_s)
    return RoundRobin(servers) if routing is Routing.ROUND_ROBIN else TwoChoices(servers, seed)


class RoundRobin:
    """One after the other."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._num_servers, self._next = len(servers), 0

    def place(self, request: Request, now: float) -> int | None:
        """The next one."""
        place, self._next = self._next, (self._next + 1) % self._num_servers
        return place

    def follow(self, index: int) -> None:
        """Nothing is known of servers."""


class _Clock:
    """What is to happen at a time, in order."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, act: Callable[[], None]) -> None:
        heapq.heappush(self._due, (when, next(self._numbers), act))

    def go_on(self, now: float) -> None:
        while self._due and self._due[0][0] <= now:
            heapq.heappop(self._due)[2]()


class TwoChoices:
    """Counts the requests that each server has not finished."""

    def __init__(self, servers: Sequence[Server], seed: int) -> None:
        self._random = random.Random(f"two choices {seed}")
        self._open, self._clock = [0] * len(servers), _Clock()
        for index, server in enumerate(servers):
            server.on_update = self._follower(index)

    def place(self, request: Request, now: float) -> int | None:
        """The better one of two."""
        self._clock.go_on(now)
        drawn = self._random.sample(range(len(self._open)), min(2, len(self._open)))
        place = min(drawn, key=self._open.__getitem__)
        self._open[place] += 1
        return place

    def follow(self, index: int) -> None:
        """Its updates are seen already."""

    def _follower(self, index: int) -> Callable[[Update, float], None]:
        def end() -> None:
            self._open[index] -= 1

        def follow(update: Update, now: float) -> None:
            if update.finish is not None:
                self._clock.at(now, end)

        return follow


class PrefixFront:
    """The router, and the feeds of all servers."""

    def __init__(self, servers: Sequence[Server], setup: SchedulerSetup, delay_s: float) -> None:
        self.router, self._clock, self._setup, self._delay_s = Router(), _Clock(), setup, delay_s
        self._feeds = [_Feed(server) for server in servers]
        config = setup.config
        for index, server in enumerate(servers):
            hello = Hello(
                VERSION,
                index,
                f"replica-{index}",
                "",
                _FINGERPRINT,
                setup.identity,
                setup.block_size,
                config.context_length,
                config.max_waiting,
                config.max_rows,
                config.step_tokens,
            )
            self.router.on_hello(str(index), hello)
            server.on_update = self._see
            self._send(index, [self._feeds[index].reporter.report()], 0.0)
        self._has_first: set[int] = set()

    def place(self, request: Request, now: float) -> int | None:
        """As the router says, by what has been reported until now."""
        self._clock.go_on(now)
        chain = NameChain(self._setup.root_of_tenant(request.tenant), self._setup.block_size)
        chain.extend(array("I", request.prompt))
        names = {_FINGERPRINT: unpacked(packed(chain.names))}
        choice = self.router.choose(
            Prompt(len(request.prompt), names, request.max_tokens, b"", request.tenant), now
        )
        if isinstance(choice, NoReplica):
            return None
        self.router.on_sent(choice.replica_id, choice, str(request.request_id), now)
        return int(choice.replica_id)

    def follow(self, index: int) -> None:
        """Send what its feed has to say."""
        feed = self._feeds[index]
        self._send(index, feed.reports(), feed.now)

    def _send(self, index: int, reports: Sequence[Report], now: float) -> None:
        if not reports:
            return
        data = b"".join(map(encode_frame, reports))
        at = now + self._delay_s
        self._clock.at(at, lambda: self._take(index, data, at))

    def _take(self, index: int, data: bytes, now: float) -> None:
        for report in FrameReader().feed(data):
            if isinstance(report, Load):
                self.router.on_load(str(index), report, now)
            elif isinstance(report, Changes):
                self.router.on_changes(str(index), report)

    def _see(self, update: Update, now: float) -> None:
        """The relay sees what passes through it."""
        key = str(update.request_id)
        if update.tokens and update.request_id not in self._has_first:
            self._has_first.add(update.request_id)
            cached = update.usage.num_cached
            self._clock.at(now, lambda: self.router.on_first_token(key, now, cached))
        if update.finish is not None:
            self._has_first.discard(update.request_id)
            self._clock.at(now, lambda: self.router.on_ended(key))


class _Feed:
    """What one server reports: its names as they come and go, and its load from time to time."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._record = server.scheduler.ledger.history.changes = ChangeRecord()
        self.reporter = LoadReporter(server.scheduler)
        self._loaded_at = -LOAD_EVERY_S

    @property
    def now(self) -> float:
        """The server's clock."""
        return self._server.now

    def reports(self) -> list[Report]:
        """What is new after a turn."""
        reports: list[Report] = []
        names = defaultdict[tuple[Place, bytes], bool](bool)
        for change in self._record.take():
            names[change.place, change.name] = change.is_added
        for place in Place:
            added = [name for (of, name), is_added in names.items() if of is place and is_added]
            removed = [name for (of, name), is_added in names.items() if of is place and not is_added]
            for start in range(0, max(len(added), len(removed)), NAMES_MAX):
                part = slice(start, start + NAMES_MAX)
                reports.append(Changes(place, packed(added[part]), packed(removed[part])))
        if self.now - self._loaded_at >= LOAD_EVERY_S or self._server.is_idle:
            self._loaded_at = self.now
            reports.append(self.reporter.report())
        return reports
