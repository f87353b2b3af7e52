"""Routers as they read events, written from their own rules and from nothing of `octavo.kv_events`.

Each keeps, for the beginnings of prompts by tokens and salt, the media that have them. `find` says for each
block of a prompt in which media it is, up to the first that is in none.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import msgspec

Key = tuple[object, ...]  # of a block: its tokens and all before them
Replay = Callable[[int], Iterable[tuple[int, bytes]]]  # batches from a number on
MAIN_KINDS = ("full_attention", "mla_attention", "sink_full_attention")
TIERS = {"GPU": "gpu", "DEVICE": "gpu", "CPU": "cpu", "CPU_PINNED": "cpu", "STORAGE": "disk", "DISK": "disk"}


@dataclass
class Stored:
    """A run of blocks."""

    hashes: list[int]
    parent: int | None
    tokens: list[int]
    block_size: int
    medium: str
    extra_keys: list[list[str] | None] | None
    cache_salt: str | None
    group: int | None
    kind: str | None


@dataclass
class Removed:
    """Blocks that are gone from a medium."""

    hashes: list[int]
    medium: str


def events_of(payload: bytes, *, is_array: bool) -> list[Stored | Removed | None]:
    """Of a batch of exactly three; None: all are cleared."""
    time_s, rows, rank = msgspec.msgpack.decode(payload)
    assert isinstance(time_s, float)
    assert rank == 0
    return [_of_array(row) if is_array else _of_map(row) for row in rows]


def _of_map(row: dict[str, object]) -> Stored | Removed | None:
    assert next(iter(row)) == "type"
    match row["type"]:
        case "AllBlocksCleared":
            return None
        case "BlockRemoved":
            return Removed(row["block_hashes"], row["medium"])  # type: ignore[arg-type]
    assert row["type"] == "BlockStored"
    needed = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "medium")
    last = ("extra_keys", "cache_salt", "group_idx", "kv_cache_spec_kind")
    assert row["lora_id"] is None
    assert row["lora_name"] is None
    return Stored(*(row[name] for name in needed), *(row.get(name) for name in last))  # type: ignore[arg-type]


def _of_array(row: list[object]) -> Stored | Removed | None:
    match row[0]:
        case "AllBlocksCleared":
            return None
        case "BlockRemoved":
            return Removed(row[1], row[2])  # type: ignore[arg-type]
    assert row[0] == "BlockStored"
    _, hashes, parent, tokens, size, lora_id, medium, lora_name, extra, group, kind = row
    assert lora_id is None
    assert lora_name is None
    return Stored(hashes, parent, tokens, size, medium, extra, None, group, kind)  # type: ignore[arg-type]


def uint64s_of(payload: bytes) -> set[int]:
    """All numbers of 8 bytes, as msgpack marks them (cf): for the width of hashes."""
    found, at = set(), payload.find(b"\xcf")
    while at >= 0:
        if at + 9 <= len(payload):
            found.add(struct.unpack(">Q", payload[at + 1 : at + 9])[0])
        at = payload.find(b"\xcf", at + 1)
    return found


def keys_of(tokens: Sequence[int], size: int, root: Key) -> list[Key]:
    """Of the full blocks of a prompt."""
    keys, parent = list[Key](), root
    for start in range(0, len(tokens) - size + 1, size):
        parent = (parent, tuple(tokens[start : start + size]))
        keys.append(parent)
    return keys


class Reader:
    """What all have in common: the index, and the order of numbers."""

    is_array = False

    def __init__(self) -> None:
        self.keys: dict[int, Key] = {}  # of the engine's hashes
        self.index: dict[Key, Counter[str]] = {}
        self.num_lost = 0  # blocks whose parent was not known
        self.num_replays = 0

    def find(self, tokens: Sequence[int], size: int, salt: str) -> list[set[str]]:
        """The media of each block, up to the first that is in none."""
        found = []
        for key in keys_of(tokens, size, (salt,) if salt else ()):
            media = {medium for medium, count in self.index.get(key, Counter[str]()).items() if count > 0}
            if not media:
                break
            found.append(media)
        return found

    def apply(self, payload: bytes) -> None:
        """Take a batch."""
        for event in events_of(payload, is_array=self.is_array):
            if event is None:
                self.clear()
            elif isinstance(event, Stored):
                self.store(event)
            else:
                self.remove(event)

    def clear(self) -> None:
        """Nothing is known any more."""
        self.keys.clear()
        self.index.clear()

    def root_of(self, event: Stored) -> Key:
        """What stands before a prompt's first block."""
        extra = event.extra_keys[0] if event.extra_keys else None
        return tuple(extra or ())

    def store(self, event: Stored) -> None:
        """Index the blocks of a run."""
        size = event.block_size
        assert len(event.tokens) == size * len(event.hashes), "a run is dense"
        parent = self.root_of(event) if event.parent is None else self.keys.get(event.parent)
        if parent is None:
            self.num_lost += len(event.hashes)
            return
        for hash_, key in zip(event.hashes, keys_of(event.tokens, size, parent), strict=True):
            assert 2**32 <= hash_ < 2**64
            self.keys[hash_] = key
            self.count(key, event.medium)

    def count(self, key: Key, medium: str) -> None:
        """One more block of that key in the medium."""
        self.index.setdefault(key, Counter())[TIERS[medium]] += 1

    def remove(self, event: Removed) -> None:
        """Take blocks out of a medium."""
        for hash_ in event.hashes:
            key = self.keys.get(hash_)
            if key is not None:
                self.forget(hash_, key, event.medium)

    def forget(self, hash_: int, key: Key, medium: str) -> None:
        """One block of that key less in the medium; the hash is known while any has it."""
        media = self.index[key]
        media[TIERS[medium]] -= 1
        assert media[TIERS[medium]] >= 0, "removed more often than it was stored"
        if not +media:
            del self.index[key], self.keys[hash_]


class LlmD(Reader):
    """Counts stores by medium; asks from 0 when it connects; a smaller number is a restart."""

    def __init__(self, replay: Replay) -> None:
        super().__init__()
        self._replay = replay
        self.last: int | None = None
        self.ask(0)

    def store(self, event: Stored) -> None:
        """Refuse a group without the kind of it."""
        assert event.group is None or event.kind in MAIN_KINDS, "unsupported_cache_kind"
        super().store(event)

    def receive(self, topic: bytes, number: int, payload: bytes) -> None:
        """A live message."""
        assert len(topic.decode().split("@")) == 3
        assert topic.startswith(b"kv@")
        if self.last is not None and number < self.last:
            self.clear()
            self.last = None
        expected = 0 if self.last is None else self.last + 1
        if number > expected:
            self.ask(expected)
        if self.last is None or number > self.last:
            self.last = number
            self.apply(payload)

    def ask(self, start: int) -> None:
        """Replay; an answer that does not begin there and go on without a gap is worth nothing."""
        self.num_replays += 1
        for number, payload in self._replay(start):
            assert number == start, "the pod is never indexed"
            self.last, start = number, start + 1
            self.apply(payload)


class Dynamo(Reader):
    """Files under `cache_salt`, which a child inherits; drops a store with a hash twice, and a message whose
    number it had, or a larger one. A `ZmqSource`: it asks for nothing."""

    def __init__(self) -> None:
        super().__init__()
        self._next = 0

    def clear(self) -> None:
        super().clear()
        self.num_lost = 0

    def forget(self, hash_: int, key: Key, medium: str) -> None:
        if self.index.get(key, Counter[str]())[TIERS[medium]] > 0:  # else the store was lost
            super().forget(hash_, key, medium)

    def root_of(self, event: Stored) -> Key:
        return (event.cache_salt,) if event.cache_salt else ()

    def store(self, event: Stored) -> None:
        if len(set(event.hashes)) < len(event.hashes) or event.parent in event.hashes:
            return
        assert event.group == 0 or event.kind in MAIN_KINDS
        super().store(event)

    def receive(self, topic: bytes, number: int, payload: bytes) -> None:
        """A live message."""
        if number >= self._next:
            self._next = number + 1
            self.apply(payload)


class AIBrix(Reader):
    """Reads arrays alone; a removal drops a block at once, whatever the medium; replays nothing."""

    is_array = True

    def receive(self, topic: bytes, number: int, payload: bytes) -> None:
        """A live message."""
        self.apply(payload)

    def root_of(self, event: Stored) -> Key:
        return ()

    def count(self, key: Key, medium: str) -> None:
        self.index[key] = Counter({"any": 1})

    def forget(self, hash_: int, key: Key, medium: str) -> None:
        self.index.pop(key, None)
        del self.keys[hash_]
