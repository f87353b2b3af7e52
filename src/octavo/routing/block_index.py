"""An index from block names to the replicas that hold them, for millions of names and a thousand replicas.

    where    name -> number of a set                 {n1: 4, n2: 4, n3: 9}
    sets     number -> three bits for each replica   [..., 4: r0 pool, r7 pool and disk, 9: r7 host]

The blocks of a prompt mostly have the same holders, so there are few distinct sets, and a name costs one
dictionary entry. A change of a name finds an equal set or creates one. A set without names is dropped.

    names of a prompt   n1 n2 n3 n4        find   [0, 2) r0 r7    [2, 3) r7    (n4 has no holder)

Each replica has a list of the names that it got, so that it is dropped in O(its names). At most `max_blocks`
pairs of replica and name are kept. Later ones are only counted, and their requests are routed by load. The
index has no addresses, loads or times.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from octavo.memory.changes import Place

REPLICAS_MAX = 4096
_SHIFT = {Place.POOL: 0, Place.HOST: 1, Place.DISK: 2}
_PLACES = tuple(_SHIFT)
_WIDTH = len(_SHIFT)
_ALL = (1 << _WIDTH) - 1
_SLACK = 1024  # stale names in a replica's list before it is compacted


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks [start, stop) of a prompt. `holders`: the replicas that hold all blocks [0, stop), as bits
    `_WIDTH * replica`."""

    start: int
    stop: int
    holders: int
    _set: int

    def has(self, replica: int) -> bool:
        """Whether this replica is a holder."""
        return self.holders >> _WIDTH * replica & 1 == 1

    def place(self, replica: int) -> Place:
        """The fastest place where this holder has these blocks."""
        bits = self._set >> _WIDTH * replica & _ALL
        return _PLACES[(bits & -bits).bit_length() - 1]

    def replicas(self) -> list[int]:
        """The holders. O(replicas)."""
        found, bits = list[int](), self.holders
        while bits:
            low = bits & -bits
            found.append(low.bit_length() // _WIDTH)
            bits ^= low
        return found


class BlockIndex:
    """Replicas are small integers from 0, names integers of `reports.unpack_names`."""

    def __init__(self, max_blocks: int = 10_000_000) -> None:
        self.max_blocks = max_blocks
        self.num_blocks = 0  # pairs of replica and name
        self.num_refused = 0  # names that were beyond `max_blocks`
        self._where: dict[int, int] = {}
        self._sets: list[int] = []
        self._masks: list[int] = []  # of each set, a bit for each of its replicas
        self._counts: list[int] = []  # of each set, its names
        self._number_of: dict[int, int] = {}  # set -> its number
        self._free: list[int] = []  # numbers
        self._names_of: dict[int, array[int]] = {}  # by replica; may have a name twice, and removed names
        self._held: dict[int, int] = {}  # by replica

    @property
    def num_names(self) -> int:
        """The number of distinct names."""
        return len(self._where)

    def held_by(self, replica: int) -> int:
        """The number of names that a replica holds, in any place."""
        return self._held.get(replica, 0)

    def add(self, replica: int, place: Place, names: Sequence[int]) -> None:
        """Record that a replica holds these names in a place. O(names)."""
        assert 0 <= replica < REPLICAS_MAX
        room = self.max_blocks - self.num_blocks
        if len(names) > room:
            self.num_refused += len(names) - room
            names = names[:room]
        added = self._names_of.setdefault(replica, array("Q"))
        added.extend(names)
        self._change(replica, names, 1 << _WIDTH * replica + _SHIFT[place], 0)
        if len(added) > 2 * self._held.get(replica, 0) + _SLACK:
            shift, where, sets = _WIDTH * replica, self._where, self._sets
            kept = {name for name in added if name in where and sets[where[name]] >> shift & _ALL}
            self._names_of[replica] = array("Q", kept)

    def remove(self, replica: int, place: Place, names: Sequence[int]) -> None:
        """Record that a replica no longer holds these names in a place. Unknown names change nothing.
        O(names)."""
        self._change(replica, names, 0, 1 << _WIDTH * replica + _SHIFT[place])

    def drop(self, replica: int) -> None:
        """Remove a replica with all its names. O(names that it holds)."""
        names = self._names_of.pop(replica, None)
        if names is not None:
            self._change(replica, names, 0, _ALL << _WIDTH * replica)
            assert self._held.pop(replica, 0) == 0

    def find(self, names: Sequence[int]) -> list[Run]:
        """The prompt's leading blocks that a replica holds, as runs with the same holders; later runs have
        fewer holders, or other places. Two blocks with the same set are taken to have only such blocks
        between them, because pools and tiers evict a prompt's tail before its head. O(runs * log blocks)."""
        where, runs, start, holders = self._where, list[Run](), 0, -1
        while start < len(names):
            number = where.get(names[start])
            if number is None or not (holders := holders & self._masks[number]):
                break
            low, step = start, 1  # the last block known to have this number
            while low + step < len(names) and where.get(names[low + step]) == number:
                low, step = low + step, 2 * step
            high = min(low + step, len(names))
            while high - low > 1:
                middle = (low + high) // 2
                if where.get(names[middle]) == number:
                    low = middle
                else:
                    high = middle
            runs.append(Run(start, high, holders, self._sets[number]))
            start = high
        return runs

    def _change(self, replica: int, names: Sequence[int], added: int, removed: int) -> None:
        """Set and clear these bits in the sets of all the names."""
        where, counts = self._where, self._counts
        next_of: dict[int | None, int | None] = {}  # number of a set -> number after the change
        own, change = _ALL << _WIDTH * replica, 0
        change_of: dict[int | None, int] = {}  # by number: names that the replica gains by the change
        for name in names:
            number = where.get(name)
            if number in next_of:
                then = next_of[number]
            else:
                before = 0 if number is None else self._sets[number]
                after = before & ~removed | added
                then = next_of[number] = self._number(after) if after else None
                change_of[number] = bool(after & own) - bool(before & own)
            if then is number:
                continue
            change += change_of[number]
            if number is not None:
                counts[number] -= 1
            if then is None:
                del where[name]
            else:
                counts[then] += 1
                where[name] = then
        self._held[replica] = self._held.get(replica, 0) + change
        self.num_blocks += change
        for touched in {*next_of.keys(), *next_of.values()}:
            if touched is not None and not counts[touched]:
                self._drop_set(touched)

    def _number(self, bits: int) -> int:
        """The number of the set with these bits, created if needed. The caller then gives it a name."""
        number = self._number_of.get(bits)
        if number is not None:
            return number
        mask = 0
        for shift in range(_WIDTH):
            mask |= bits >> shift
        mask &= _ones(bits.bit_length() // _WIDTH + 1)
        if self._free:
            number = self._free.pop()
            self._sets[number], self._masks[number] = bits, mask
        else:
            number = len(self._sets)
            self._sets.append(bits)
            self._masks.append(mask)
            self._counts.append(0)
        self._number_of[bits] = number
        return number

    def _drop_set(self, number: int) -> None:
        """Drop a set without names."""
        del self._number_of[self._sets[number]]
        self._sets[number] = self._masks[number] = 0
        self._free.append(number)

    def check(self) -> None:
        """Assert the invariants. O(everything)."""
        counts = [0] * len(self._sets)
        held = dict[int, int]()
        for number in self._where.values():
            counts[number] += 1
        assert counts == self._counts
        for number, count in enumerate(counts):
            assert (count == 0) == (self._sets[number] == 0), "a set without names is dropped"
            for replica in Run(0, 1, self._masks[number], 0).replicas():
                held[replica] = held.get(replica, 0) + count
        assert held == {replica: count for replica, count in self._held.items() if count}
        assert sum(held.values()) == self.num_blocks <= self.max_blocks
        assert len(self._number_of) + len(self._free) == len(self._sets)


def _ones(count: int) -> int:
    """`count` bits, `_WIDTH` apart."""
    return ((1 << _WIDTH * count) - 1) // _ALL
