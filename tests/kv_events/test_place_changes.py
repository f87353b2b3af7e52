"""Random lives of the real scheduler: a follower of names knows what the ledger has, place by place."""

from __future__ import annotations

import random
from collections.abc import Mapping
from types import MappingProxyType

import pytest
from tests.simulator.lives import Simulation

from octavo.memory.changes import Place
from octavo.memory.place_changes import ByPlace, PlaceChanges


class Follower:
    """Knows names by place: it began with all of them, read in parts."""

    def __init__(self, places: PlaceChanges) -> None:
        self.known: dict[Place, set[bytes]] = {place: set() for place in Place}
        self.rest = places.names()

    @property
    def is_whole(self) -> bool:
        return not self.rest

    def read_part(self, places: PlaceChanges, size: int) -> None:
        part = [self.rest.pop() for _ in range(min(size, len(self.rest)))]
        self.apply(places.where(part))

    def apply(self, changes: ByPlace) -> None:
        for place, names in changes.items():
            self.known[place].difference_update(names.removed)
            self.known[place].update(names.added)


class FollowedLife(Simulation):
    """A life with followers that come at any time."""

    def __init__(self, seed: int, overlap: int) -> None:
        self.others = random.Random(seed)
        self.followers: list[Follower] = []
        self.num_compared = self.num_changes = 0
        super().__init__(random.Random(seed), overlap)

    def _begin(self, stored: Mapping[bytes, int] = MappingProxyType({})) -> None:
        super()._begin(stored)
        self.places = PlaceChanges(self.memory)
        self.followers.clear()

    def step(self) -> None:
        super().step()
        changes = self.places.take()
        self.num_changes += sum(len(names.added) + len(names.removed) for names in changes.values())
        if self.others.random() < 0.05:
            self.followers.append(Follower(self.places))
            del self.followers[:-4]
        for follower in self.followers:
            follower.apply(changes)
            if not follower.is_whole:
                follower.read_part(self.places, self.others.choice([1, 3, 100]))
            if follower.is_whole:
                self.compare(follower)

    def compare(self, follower: Follower) -> None:
        tier = self.scheduler.transfers.tier
        wanted: dict[Place, set[bytes]] = {place: set() for place in Place}
        wanted[Place.POOL].update(self.memory.pool.by_name)
        for name in () if tier is None else tier.names():
            wanted[tier.place_of(name)].add(name)  # type: ignore[union-attr]
        assert follower.known == wanted
        self.num_compared += any(wanted.values())


@pytest.mark.parametrize("overlap", [0, 1])
@pytest.mark.parametrize("seed", range(6))
def test_a_follower_knows_what_the_ledger_has(seed: int, overlap: int) -> None:
    life = FollowedLife(seed, overlap)
    life.run(200)
    assert life.num_compared > 20
    assert life.num_changes > 5


@pytest.mark.full
def test_followers_know_what_the_ledger_has_after_a_hundred_thousand_changes() -> None:
    changes, seed = 0, 100
    while changes < 100_000:
        life = FollowedLife(seed, seed % 3)
        life.run(400)
        changes += life.num_changes
        seed += 1
