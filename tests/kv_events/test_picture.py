"""What routers find after random changes, parents leaving before their children too."""

from __future__ import annotations

import random
from array import array

import msgspec
import pytest
from tests.kv_events.channel import Channel
from tests.kv_events.readers import AIBrix, events_of

from octavo.kv_events.identity import Identity
from octavo.kv_events.picture import Picture
from octavo.kv_events.stream import Stream
from octavo.kv_events.wire import MEDIUM, BlockRemoved, BlockStored, Form
from octavo.memory.changes import Change, Content, Place

SIZE = 2
TIERS = {Place.POOL: "gpu", Place.HOST: "cpu", Place.DISK: "disk"}


def name_of(number: int) -> bytes:
    return bytes(24) + number.to_bytes(8, "big")


class Tree:
    """Names as a tree of prompts, and where each is."""

    def __init__(self, r: random.Random, num_names: int, salts: list[str]) -> None:
        self.random = r
        self.parents: list[int | None] = []
        self.tokens: list[list[int]] = []
        self.salts: list[str] = []
        self.where: dict[int, set[Place]] = {}
        for number in range(num_names):
            parent = r.choice([None, *range(number)]) if number and r.random() < 0.3 else (number or None)
            parent = parent - 1 if parent else None
            self.parents.append(parent)
            before = [] if parent is None else self.tokens[parent]
            self.tokens.append([*before, number, r.randrange(9)])
            self.salts.append(r.choice(salts) if parent is None else self.salts[parent])

    def change(self) -> Change:
        """A name comes to a place, or leaves it."""
        number, place = self.random.randrange(len(self.parents)), self.random.choice([*Place])
        places = self.where.setdefault(number, set())
        is_added = place not in places
        (places.add if is_added else places.discard)(place)
        parent = self.parents[number]
        own = array("I", self.tokens[number][-SIZE:]).tobytes()
        content = Content(None if parent is None else name_of(parent), own, self.salts[number])
        return Change(name_of(number), "", place, is_added, content)

    def found(self, number: int) -> list[set[str]]:
        """The places of each block of a prompt, up to the first that is nowhere."""
        chain: list[int] = []
        at: int | None = number
        while at is not None:
            chain.insert(0, at)
            at = self.parents[at]
        found = []
        for one in chain:
            if not self.where.get(one):
                break
            found.append({TIERS[place] for place in self.where[one]})
        return found


@pytest.mark.parametrize(
    ("seed", "num_changes"),
    [(1, 3_000), (2, 3_000), pytest.param(3, 100_000, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("replays", [True, False])
def test_readers_find_what_is_there_after_losses_late_joins_and_restarts(
    replays: bool, seed: int, num_changes: int
) -> None:
    r = random.Random(seed)
    tree, channel = Tree(r, 120, ["", "", "a"]), Channel(r, Identity(), replays=replays)
    left = num_changes
    while left > 0:
        count = r.randint(1, 20)
        channel.publish_changes([tree.change() for _ in range(count)])
        left -= count
        if r.random() < 0.02:
            channel.join()
        if r.random() < 0.005:
            whole = [_added(tree, number, place) for number in tree.where for place in tree.where[number]]
            r.shuffle(whole)
            channel.begin(whole, is_process=r.random() < 0.5)
        for reader in channel.readers:
            if channel.is_current(reader) and r.random() < 0.1:
                number = r.randrange(120)
                assert reader.find(tree.tokens[number], SIZE, tree.salts[number]) == tree.found(number)
    channel.end_losses()
    for reader in channel.readers:
        for number in range(120):
            assert reader.find(tree.tokens[number], SIZE, tree.salts[number]) == tree.found(number)
        assert reader.num_lost == 0, "a child was told before its parent"
    assert channel.num_lost > 10


def _added(tree: Tree, number: int, place: Place) -> Change:
    parent = tree.parents[number]
    own = array("I", tree.tokens[number][-SIZE:]).tobytes()
    content = Content(None if parent is None else name_of(parent), own, tree.salts[number])
    return Change(name_of(number), "", place, True, content)


@pytest.mark.parametrize("num_changes", [2_000, pytest.param(100_000, marks=pytest.mark.full)])
def test_a_reader_that_drops_a_block_at_its_first_removal_finds_it_until_the_last(num_changes: int) -> None:
    r = random.Random(4)
    tree, reader = Tree(r, 60, [""]), AIBrix()
    stream = Stream(Identity(), Form.ARRAY, lambda: 1.5, replays=False)
    for _ in range(num_changes):
        for batch in stream.apply([tree.change()]):
            reader.receive(b"", batch.number, batch.payload)
        number = r.randrange(60)
        assert len(reader.find(tree.tokens[number], SIZE, "")) == len(tree.found(number))
    assert reader.num_lost == 0


def test_a_block_behind_one_that_left_is_published_again_when_that_is_back() -> None:
    picture, contents = Picture(Identity()), [Content(None, bytes(8)), Content(name_of(1), bytes(8))]
    first, second = (
        Change(name_of(number), "", Place.POOL, True, content) for number, content in enumerate(contents, 1)
    )
    gone = msgspec.structs.replace(first, is_added=False)
    (run,) = picture.apply([first, second])
    assert isinstance(run, BlockStored)
    assert run.block_hashes == [2**63 + 1, 2**63 + 2]
    (left,) = picture.apply([gone])
    assert isinstance(left, BlockRemoved)
    assert left.block_hashes == [2**63 + 2, 2**63 + 1]
    (back,) = picture.apply([first])
    assert back == run
    assert picture.apply([msgspec.structs.replace(second, is_added=False), gone]) == [left]
    assert len(picture) == 0


def test_a_block_that_moves_to_another_medium_is_never_reported_to_be_nowhere() -> None:
    picture, content = Picture(Identity()), Content(None, bytes(8), "a")
    host = Change(name_of(1), "", Place.HOST, True, content)
    picture.apply([host])
    disk = msgspec.structs.replace(host, place=Place.DISK)
    stored, removed = picture.apply([disk, msgspec.structs.replace(host, is_added=False)])
    assert isinstance(stored, BlockStored)
    assert stored.medium == "STORAGE"
    assert isinstance(removed, BlockRemoved)
    assert removed.medium == "CPU"
    assert stored.extra_keys == [["a"]]
    assert stored.cache_salt == "a"


def test_long_runs_are_cut_and_go_on_with_their_parent() -> None:
    contents = [Content(name_of(n - 1) if n else None, bytes(8)) for n in range(600)]
    changes = [Change(name_of(n), "", Place.POOL, True, contents[n]) for n in range(600)]
    events = Picture(Identity()).apply(changes)
    assert [len(event.block_hashes) for event in events if isinstance(event, BlockStored)] == [256, 256, 88]
    assert [getattr(event, "parent_block_hash", 0) for event in events] == [
        None,
        2**63 + 255,
        2**63 + 511,
    ]


def test_a_prompt_of_ten_thousand_blocks_leaves_and_comes_back() -> None:
    picture = Picture(Identity())
    contents = [Content(name_of(n - 1) if n else None, bytes(8)) for n in range(10_000)]
    changes = [Change(name_of(n), "", Place.POOL, True, contents[n]) for n in range(10_000)]
    picture.apply(changes)
    gone = picture.apply([msgspec.structs.replace(changes[0], is_added=False)])
    assert sum(len(event.block_hashes) for event in gone if isinstance(event, BlockRemoved)) == 10_000
    back = picture.apply(changes[:1])
    assert sum(len(event.block_hashes) for event in back if isinstance(event, BlockStored)) == 10_000


def test_media_are_those_that_routers_know() -> None:
    assert [*MEDIUM.values()] == ["GPU", "CPU", "STORAGE"]
    assert events_of(msgspec.msgpack.encode((1.5, [], 0)), is_array=False) == []
