"""Random lives whose changes are published, and the routers that read them."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

from tests.kv_events.channel import Channel
from tests.kv_events.readers import Reader
from tests.simulator.lives import Simulation

from octavo.kv_events.identity import Identity
from octavo.memory.changes import ChangeRecord, Place
from octavo.memory.names import NameChain
from octavo.types import Request

TIERS = {Place.POOL: "gpu", Place.HOST: "cpu", Place.DISK: "disk"}
KEY = Identity(b"k" * 32)


class PublishedLife(Simulation):
    """A life whose changes are published, and whose prompts are looked up by routers and by the ledger."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.others = random.Random(seed)
        self.channel = Channel(self.others, KEY, replays=seed % 2 == 0)
        self.num_looked = self.num_found = 0
        self.last_record: ChangeRecord | None = None
        super().__init__(random.Random(seed), overlap)

    def new_record(self) -> ChangeRecord:
        """Of a process that may have found on disk what its blocks hold."""
        record, old = ChangeRecord(), self.last_record
        if old is not None and self.others.random() < 0.7:
            for name in old._blocks:
                if (found := old.find(name)) is not None:
                    record.expect(name, *found)
        self.last_record = record
        return record

    @property
    def record(self) -> ChangeRecord:
        record = self.memory.history.changes
        assert record is not None
        return record

    def _begin(self, stored: Mapping[bytes, int] = MappingProxyType({})) -> None:
        super()._begin(stored)
        self._of_before = frozenset(self.record._blocks)
        self.record.take()
        self.channel.begin(self.record.whole(), is_process=self.others.random() < 0.5)

    def step(self) -> None:
        super().step()
        self.publish()
        if self.others.random() < 0.03:
            self.channel.join()
        if self.others.random() < 0.2 and self.books.requests:
            self.look(self.others.choice([*self.books.requests.values()]))

    def publish(self) -> None:
        """What the engine does after a step."""
        self.channel.publish(self.record)

    def look(self, request: Request) -> None:
        """By every reader that has all messages, and by the ledger."""
        self.publish()
        chain = self.scheduler._chain_of(request)
        wanted = self._places(chain, request.tenant)
        salt = KEY.tag_of(request.tenant, request.cache_salt)
        for reader in self.channel.readers:
            if self.channel.is_current(reader):
                found = reader.find(request.prompt, self.block_size, salt)
                self.num_looked += 1
                self.num_found += bool(found)
                self._compare(found, wanted)

    def _compare(self, found: list[set[str]], wanted: list[set[str]]) -> None:
        if not self._has_two_names:
            assert found == wanted
            return
        # The same tokens may have a name of their own and one that the operator shared: routers know either.
        assert len(found) >= len(wanted)
        assert all(few <= many for few, many in zip(wanted, found, strict=False))

    @property
    def _has_two_names(self) -> bool:
        return bool(self._shared)

    def _places(self, chain: NameChain, tenant: str) -> list[set[str]]:
        tier, found = self.scheduler.transfers.tier, list[set[str]]()
        for name in chain.names:
            places = {TIERS[Place.POOL]} if name in self.memory.pool.by_name else set[str]()
            if tier is not None and name in tier:
                places.add(TIERS[tier.place_of(name)])
            block = self.record._blocks.get(name)
            if not places or block is None or block.content is None or tenant not in block.users:
                break
            found.append(places)
        return found

    def check_record(self) -> None:
        """It has what the ledger has, and nothing else."""
        self.record.take()
        tier = self.scheduler.transfers.tier
        there = {*self.memory.pool.by_name, *(() if tier is None else tier.names())}
        arriving = set() if tier is None else {name for name in tier.slots() if tier.is_storing(name)}
        blocks = self.record._blocks
        assert there <= blocks.keys() <= there | arriving
        unknown = {name for name, block in blocks.items() if block.content is None}
        assert unknown <= self._of_before, "what this process named has a content"


def drive_published(seed: int, overlap: int, steps: int = 200) -> PublishedLife:
    """Run one life, to where nothing is lost any more; an AssertionError names what broke."""
    life = PublishedLife(seed, overlap)
    life.run(steps)
    readers_agree(life)
    life.check_record()
    return life


def readers_agree(life: PublishedLife) -> None:
    """All of them, about every prompt, when nothing is lost any more."""
    life.publish()
    life.channel.end_losses()
    for request in life.books.requests.values():
        life.look(request)
    for reader in life.channel.readers:
        assert_whole(reader)


def assert_whole(reader: Reader) -> None:
    assert reader.num_lost == 0, "a child was told before its parent"
