"""Which replicas hold a name, and in which place, for millions of names and a thousand replicas.

    where    name -> number of a set                 {n1: 4, n2: 4, n3: 9}
    sets     number -> three bits for each replica   [..., 4: r0 pool, r7 pool and disk, 9: r7 host]

Blocks of one prompt are mostly held alike, so few different sets serve all names, and a name costs an entry
of one dictionary. A change makes another set, or finds the one that is equal; a set without names is dropped.

    names of a prompt   n1 n2 n3 n4        find   [0, 2) r0 r7    [2, 3) r7    (n4 is held by none)

For each replica there is a list of names that came to it, with which it is forgotten in O(its names). At most
`max_blocks` pairs of replica and name are kept; what comes then is not, and is counted: requests for it go
where they would go anyway. It does not know addresses, loads or time.
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
_SLACK = 1024  # names in a replica's list in addition to those that it holds


@dataclass(frozen=True, slots=True)
class Run:
    """Blocks [start, stop) of a prompt, which the replicas of `holders` hold from the prompt's first block
    on. `holders`: bit `_WIDTH * replica`."""

    start: int
    stop: int
    holders: int
    _set: int

    def has(self, replica: int) -> bool:
        """Whether the replica is one of the holders."""
        return self.holders >> _WIDTH * replica & 1 == 1

    def place(self, replica: int) -> Place:
        """The fastest place in which this holder has these blocks."""
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
    """Replicas are small integers from 0, names integers as `reports.unpacked` makes them."""

    def __init__(self, max_blocks: int = 10_000_000) -> None:
        self.max_blocks = max_blocks
        self.num_blocks = 0  # pairs of replica and name
        self.num_refused = 0  # names that came when there were so many
        self._where: dict[int, int] = {}
        self._sets: list[int] = []
        self._masks: list[int] = []  # of each set, one bit for each replica in it
        self._counts: list[int] = []  # names with that set
        self._number_of: dict[int, int] = {}  # set -> its number
        self._free: list[int] = []  # numbers
        self._came: dict[int, array[int]] = {}  # by replica, each name once or more, and names that left
        self._held: dict[int, int] = {}  # by replica

    @property
    def num_names(self) -> int:
        """Different names."""
        return len(self._where)

    def held_by(self, replica: int) -> int:
        """Names that a replica holds, in any place."""
        return self._held.get(replica, 0)

    def add(self, replica: int, place: Place, names: Sequence[int]) -> None:
        """They can be found there. O(names)."""
        assert 0 <= replica < REPLICAS_MAX
        room = self.max_blocks - self.num_blocks
        if len(names) > room:
            self.num_refused += len(names) - room
            names = names[:room]
        came = self._came.setdefault(replica, array("Q"))
        came.extend(names)
        self._change(replica, names, 1 << _WIDTH * replica + _SHIFT[place], 0)
        if len(came) > 2 * self._held.get(replica, 0) + _SLACK:
            shift, where, sets = _WIDTH * replica, self._where, self._sets
            kept = {name for name in came if name in where and sets[where[name]] >> shift & _ALL}
            self._came[replica] = array("Q", kept)

    def remove(self, replica: int, place: Place, names: Sequence[int]) -> None:
        """They can be found there no more; names that could not be change nothing. O(names)."""
        self._change(replica, names, 0, 1 << _WIDTH * replica + _SHIFT[place])

    def drop(self, replica: int) -> None:
        """Forget all that a replica holds. O(names that it holds)."""
        names = self._came.pop(replica, None)
        if names is not None:
            self._change(replica, names, 0, _ALL << _WIDTH * replica)
            assert self._held.pop(replica, 0) == 0

    def find(self, names: Sequence[int]) -> list[Run]:
        """The prompt's leading blocks that one replica or more hold, by who does: later runs have fewer
        holders, or other places. Blocks between two that are held alike count as held alike: pools and tiers
        evict the tail of a prompt before its head. O(runs * log blocks)."""
        where, runs, start, holders = self._where, list[Run](), 0, -1
        while start < len(names):
            number = where.get(names[start])
            if number is None or not (holders := holders & self._masks[number]):
                break
            low, step = start, 1  # of those with this number
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
        """Add and take these bits of the sets of all the names."""
        where, counts = self._where, self._counts
        next_of: dict[int | None, int | None] = {}  # number of a set -> of what it becomes; None: of none
        own, change = _ALL << _WIDTH * replica, 0
        change_of: dict[int | None, int] = {}  # how many more names the replica has for each such name
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
                self._forget(touched)

    def _number(self, bits: int) -> int:
        """Of the set with these bits, which has one name or more soon."""
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

    def _forget(self, number: int) -> None:
        """No name has this set."""
        del self._number_of[self._sets[number]]
        self._sets[number] = self._masks[number] = 0
        self._free.append(number)

    def check(self) -> None:
        """Assert what must hold. O(everything)."""
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
    """So many bits, `_WIDTH` apart."""
    return ((1 << _WIDTH * count) - 1) // _ALL
