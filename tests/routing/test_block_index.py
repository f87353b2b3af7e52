"""The index of blocks against a dictionary of sets, and its bounds."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.memory.changes import Place
from octavo.routing import block_index
from octavo.routing.block_index import BlockIndex, Run

REPLICAS = st.sampled_from([0, 1, 2, 63, 900])
NAMES = st.lists(st.integers(0, 12), max_size=8)
PLACES = st.sampled_from(list(Place))
CHANGES = st.tuples(st.sampled_from(["add", "remove", "drop"]), REPLICAS, PLACES, NAMES)


class NaiveIndex:
    """The same in the plainest way."""

    def __init__(self) -> None:
        self.held: dict[int, dict[int, set[Place]]] = defaultdict(lambda: defaultdict(set))

    def apply(self, what: str, replica: int, place: Place, names: list[int]) -> None:
        if what == "drop":
            self.held.pop(replica, None)
        for name in names:
            if what == "add":
                self.held[replica][name].add(place)
            elif what == "remove":
                self.held[replica][name].discard(place)

    def places(self, replica: int, names: list[int]) -> list[Place]:
        """Of the leading blocks that the replica holds, the fastest place of each."""
        found = []
        for name in names:
            places = self.held[replica][name]
            if not places:
                break
            found.append(next(place for place in Place if place in places))
        return found


def places_of(runs: list[Run], replica: int) -> list[Place]:
    return [run.place(replica) for run in runs if run.has(replica) for _ in range(run.start, run.stop)]


@settings(max_examples=200, deadline=None)
@given(st.lists(CHANGES, max_size=30))
def test_it_holds_what_a_plain_model_holds(changes: list) -> None:
    index, naive = BlockIndex(), NaiveIndex()
    for what, replica, place, names in changes:
        naive.apply(what, replica, place, names)
        if what == "drop":
            index.drop(replica)
        else:
            getattr(index, what)(replica, place, names)
        index.check()
    for replica in (0, 1, 2, 63, 900):
        assert index.held_by(replica) == sum(map(bool, naive.held[replica].values()))
        for name in range(13):
            assert places_of(index.find([name]), replica) == naive.places(replica, [name])


PREFIXES = st.tuples(REPLICAS, PLACES, st.integers(0, 40))


@settings(max_examples=200, deadline=None)
@given(st.lists(PREFIXES, max_size=30), st.integers(0, 45))
def test_of_prompts_that_lose_their_tail_first_it_finds_every_block(prefixes: list, length: int) -> None:
    index, naive, lengths = BlockIndex(), NaiveIndex(), defaultdict[tuple, int](int)
    for replica, place, stop in prefixes:  # the replica has that much of the prompt in that place now
        before = lengths[replica, place]
        lengths[replica, place] = stop
        came, left = list(range(before, stop)), list(range(stop, before))
        naive.apply("add", replica, place, came)
        naive.apply("remove", replica, place, left)
        index.add(replica, place, came)
        index.remove(replica, place, left)
    runs, prompt = index.find(range(length)), list(range(length))
    for replica in (0, 1, 2, 63, 900):
        assert places_of(runs, replica) == naive.places(replica, prompt)
    for run, later in pairwise(runs):
        assert run.stop == later.start
        assert run.holders & later.holders == later.holders
    assert all(set(run.replicas()) == {r for r in range(901) if run.has(r)} for run in runs)


def test_a_long_prompt_is_found_by_few_names() -> None:
    class Counted(list):
        count = 0

        def __getitem__(self, at: int) -> int:
            self.count += 1
            return super().__getitem__(at)

    index, prompt = BlockIndex(), Counted(range(9000))
    index.add(1, Place.POOL, range(64))
    index.add(2, Place.POOL, range(8000))
    assert [(run.start, run.stop) for run in index.find(prompt)] == [(0, 64), (64, 8000)]
    assert prompt.count < 60


def test_names_beyond_the_bound_are_counted_and_not_kept() -> None:
    index = BlockIndex(max_blocks=3)
    index.add(0, Place.POOL, [1, 2])
    index.add(1, Place.POOL, [1, 2, 3])
    index.check()
    assert (index.num_blocks, index.num_refused, index.num_names) == (3, 2, 2)
    index.remove(0, Place.POOL, [1, 2])
    index.add(1, Place.POOL, [2, 3])
    assert places_of(index.find([1, 2, 3]), 1) == [Place.POOL] * 3


def test_sets_and_lists_of_names_do_not_grow_with_changes() -> None:
    index = BlockIndex()
    for turn in range(200):
        names = range(100 * turn, 100 * turn + 100)
        index.add(turn % 3, Place.POOL, names)
        index.add(turn % 3, Place.HOST, names)
        index.remove(turn % 3, Place.POOL, names)
        index.remove(turn % 3, Place.HOST, names)
        index.check()
    assert index.num_names == index.num_blocks == 0
    assert len(index._sets) <= 4
    assert sum(map(len, index._names_of.values())) <= 3 * (block_index._SLACK + 200)


def test_a_replica_is_forgotten_and_its_number_used_again() -> None:
    index = BlockIndex()
    index.add(5, Place.DISK, range(10))
    index.add(6, Place.POOL, range(20))
    index.drop(5)
    index.drop(5)
    index.add(5, Place.POOL, [0])
    index.check()
    assert places_of(index.find(range(20)), 5) == [Place.POOL]
    assert places_of(index.find(range(20)), 6) == [Place.POOL] * 20


@pytest.mark.parametrize("names", [[], [7]])
def test_what_none_holds_is_found_nowhere(names: list[int]) -> None:
    index = BlockIndex()
    index.add(0, Place.POOL, [1])
    assert index.find(names) == []
