"""Random lives of the real scheduler: what a router reads in a replica's feed is what its ledger finds, name
by name and place by place."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future
from types import MappingProxyType

import pytest
from tests.cluster.feeds import FeedFollower
from tests.simulator.lives import Simulation

from octavo.memory.changes import ChangeRecord, Place
from octavo.memory.ledger import Ledger
from octavo.memory.place_changes import PlaceChanges
from octavo.routing.reports import NAME_BYTES, VERSION, Hello
from octavo.serving import replica_feed
from octavo.serving.replica_feed import FeedSubscriber, ReplicaFeed

HELLO = Hello(VERSION, 0, "replica-0", "tiny", "f", (), 16, 512, 8, 8, 64)


class Router:
    """A reader of the feed that may leave frames unread for a while."""

    def __init__(self, feed: ReplicaFeed) -> None:
        self.follower = FeedFollower()
        self.reader = feed.open()
        self._reading: Future[bytes | None] | None = None

    def read(self) -> None:
        """All that waits."""
        while (reading := self._reading or self.reader.read()).done():
            data = reading.result()
            assert data is not None
            self.follower.feed(data)
            self._reading = None
        self._reading = reading


class FollowedLife(Simulation):
    """A life with routers that come at any time; its ledger is a new one now and then."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.others = random.Random(seed)
        self.routers: list[Router] = []
        self.num_compared = self.num_wakes = self.num_changes = self.num_shared = 0
        self.num_names: Counter[Place] = Counter()
        self.with_events = seed % 2 == 1
        self.feed = ReplicaFeed(HELLO, self.wake)
        super().__init__(random.Random(seed), overlap)

    def wake(self) -> None:
        self.num_wakes += 1

    def new_record(self) -> ChangeRecord | None:
        """In some lives events are published, too."""
        return ChangeRecord() if self.with_events else None

    def _begin(self, stored: Mapping[bytes, int] = MappingProxyType({})) -> None:
        super()._begin(stored)
        self.feed.begin(PlaceChanges(self.memory, self.scheduler.pins.shared_names))

    def step(self) -> None:
        super().step()
        self.num_changes += len(self.memory.history.moves or ())
        if self.others.random() < 0.05:
            self.routers.append(Router(self.feed))
            for gone in self.routers[:-4]:
                gone.reader.close()
            del self.routers[:-4]
        self.feed.hand_over()
        for router in self.routers:
            if self.others.random() < 0.5:
                router.read()
        if self.others.random() < 0.1:
            self.compare()

    def compare(self) -> None:
        """Once all has been read that there is, as an idle engine would."""
        wakes = -1
        while wakes < self.num_wakes:
            wakes = self.num_wakes
            self.feed.hand_over()
            for router in self.routers:
                router.read()
        wanted = names_of(self.memory)
        shared = {name[-NAME_BYTES:] for name in self.scheduler.pins.shared_names}
        self.num_shared += len(shared)
        for router in self.routers:
            assert router.follower.known == wanted
            assert router.follower.shared == shared
            self.num_compared += 1
        if (record := self.memory.history.changes) is not None:
            assert {name[-NAME_BYTES:] for name in record._blocks} >= set().union(*wanted.values())
        self.num_names += Counter({place: len(names) for place, names in wanted.items()})


def names_of(ledger: Ledger) -> dict[Place, set[bytes]]:
    """What the ledger finds, by place."""
    found: dict[Place, set[bytes]] = {place: set() for place in Place}
    found[Place.POOL] = {name[-NAME_BYTES:] for name in ledger.pool.by_name}
    if ledger.tier is not None:
        for name in ledger.tier.names():
            found[ledger.tier.place_of(name)].add(name[-NAME_BYTES:])
    return found


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names come in parts of three, and no part is made while one is unread."""
    monkeypatch.setattr(replica_feed, "NAMES_MAX", 3)
    monkeypatch.setattr(replica_feed, "_PART_NAMES", 4)
    monkeypatch.setattr(replica_feed, "_AHEAD_BYTES", 0)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("overlap", [0, 1])
def test_routers_know_what_the_ledger_finds(overlap: int) -> None:
    names, compared, shared = Counter[Place](), 0, 0
    for seed in range(8):
        life = FollowedLife(seed, overlap)
        life.run(200)
        life.compare()
        names, compared = names + life.num_names, compared + life.num_compared
        shared += life.num_shared
    assert compared > 100
    assert shared > 10
    assert all(names[place] > 10 for place in Place)


@pytest.mark.full
@pytest.mark.usefixtures("small_parts")
def test_routers_know_what_the_ledger_finds_after_a_hundred_thousand_changes() -> None:
    changes, seed = 0, 100
    while changes < 100_000:
        life = FollowedLife(seed, seed % 3)
        life.run(400)
        changes, seed = changes + life.num_changes, seed + 1


def feed_over(ledger: Ledger) -> ReplicaFeed:
    feed = ReplicaFeed(HELLO, lambda: None)
    feed.begin(PlaceChanges(ledger))
    return feed


def publish(ledger: Ledger, number: int) -> bytes:
    """One more name in the pool."""
    name = number.to_bytes(32, "big")
    ledger.pool.publish(ledger.pool.take(), name)
    return name[-NAME_BYTES:]


def test_a_router_that_does_not_read_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_feed, "UNREAD_BYTES_MAX", 200)
    ledger = Ledger(64, 4)
    feed = feed_over(ledger)
    lazy, eager = feed.open(), Router(feed)
    known = set()
    for number in range(1, 20):
        known.add(publish(ledger, number))
        feed.hand_over()
        eager.read()
    assert eager.follower.known[Place.POOL] == known
    assert lazy.read().result(0) is None
    assert feed._readers == [eager.reader]


def test_a_new_ledger_clears_what_routers_know() -> None:
    ledger = Ledger(8, 4)
    feed = feed_over(ledger)
    router = Router(feed)
    publish(ledger, 1)
    feed.hand_over()
    router.read()
    assert len(router.follower.known[Place.POOL]) == 1
    feed.begin(PlaceChanges(Ledger(8, 4)))
    feed.hand_over()
    router.read()
    assert router.follower.known[Place.POOL] == set()
    assert router.follower.num_clears == 2


def test_the_end_of_the_engine_ends_the_feed() -> None:
    feed = feed_over(Ledger(8, 4))
    reader = feed.open()
    reading = reader.read()
    feed.close()
    assert reading.result(0) is None
    assert reader.read().result(0) is None


def test_without_readers_no_list_grows() -> None:
    ledger = Ledger(8, 4)
    feed = feed_over(ledger)
    publish(ledger, 1)
    feed.hand_over()
    assert ledger.history.moves == []
    assert Ledger(8, 4).history.moves is None


def test_a_reader_that_left_is_forgotten() -> None:
    feed = feed_over(Ledger(8, 4))
    reader: FeedSubscriber = feed.open()
    reader.close()
    feed.hand_over()
    assert feed._readers == []
