"""What came to a tier and what left it, as a list that another thread can publish; and the tokens of what is
there.

    pool, tiers --add, remove-->  blocks: name -> where it is, content, users    (while any tier has the name)
    scheduler   --describe----->  changes: [...]   --take, after a step-->   a publisher

A name has a content when a sequence has described it: the name before it, its tokens, its cache salt. Until
then nothing of it is told; once it is described, its arrivals are told as if they were new. So names that an
older process left on disk are told when a request first finds them.

A name belongs to the tenant whose sequence described it. A name that the operator shares belongs to each
tenant that used it, and a change of it is told once for each. A name that is on its way to a tier keeps its
content. Every operation is O(1) but for `describe`, O(names), and `whole`. It does not know blocks, hashes or
sockets. Where events are off there is no record, and no list grows.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Collection

import msgspec

from octavo.memory.names import NameChain


class Place(enum.StrEnum):
    """Where a named block can be found."""

    POOL = "pool"
    HOST = "host"
    DISK = "disk"

    __hash__ = str.__hash__  # an enumeration's own is slow, and ages are counted for each block


BIT = {Place.POOL: 1, Place.HOST: 2, Place.DISK: 4}
_ARRIVING = 8  # its bytes are on their way to a tier, where it cannot be found yet


class Content(msgspec.Struct, frozen=True, gc=False):
    """What a name stands for. `tokens`: little-endian uint32, one block of them; `salt`: the client's."""

    parent: bytes | None  # the name of the block before it; None: it begins a prompt
    tokens: bytes
    salt: str = ""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A name of a tenant came to a place, or left it."""

    name: bytes
    tenant: str
    place: Place
    is_added: bool
    content: Content


class _Block(msgspec.Struct, gc=False):
    """A name that a tier has, or that a sequence has described since the list was last taken."""

    where: int = 0  # bits of places
    content: Content | None = None
    users: tuple[str, ...] = ()  # tenants


class ChangeRecord:
    """The changes since they were last taken, and the content of every name that a tier has. `tenants`: of
    these alone; None: of all."""

    def __init__(self, tenants: Collection[str] | None = None) -> None:
        self.changes: list[Change] = []
        self._tenants = None if tenants is None else frozenset(tenants)
        self._blocks: dict[bytes, _Block] = {}
        self._described: list[bytes] = []  # names that were new then, and that no tier may have

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, name: bytes, place: Place) -> None:
        """It can be found there from now on. Again does nothing."""
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block()
        if not block.where & BIT[place]:
            block.where |= BIT[place]
            self._tell(name, block, place, is_added=True)

    def remove(self, name: bytes, place: Place) -> None:
        """It cannot be found there any more."""
        block = self._blocks.get(name)
        if block is not None and block.where & BIT[place]:
            self._tell(name, block, place, is_added=False)
            self._clear(name, block, BIT[place])

    def begin_store(self, name: bytes) -> None:
        """Its bytes are on their way to a tier: its content is kept, also where the pool loses it."""
        self._blocks.setdefault(name, _Block()).where |= _ARRIVING

    def end_store(self, name: bytes) -> None:
        """They have arrived, after `add`, or have not."""
        block = self._blocks.get(name)
        if block is not None:
            self._clear(name, block, _ARRIVING)

    def describe(
        self, chain: NameChain, tokens: array[int], tenant: str | None, salt: str, start: int, stop: int
    ) -> None:
        """Say what the names [start, stop) of the chain stand for: a sequence of that tenant (None: of the
        operator, for all) computed these blocks, or found them. `tokens`: of the whole chain.
        O(stop - start)."""
        if self._tenants is not None and tenant is not None and tenant not in self._tenants:
            return
        users, names, size = () if tenant is None else (tenant,), chain.names, chain.block_size
        for index in range(start, stop):
            name = names[index]
            block = self._blocks.get(name)
            if block is None:
                block = self._blocks[name] = _Block()
                self._described.append(name)
            if block.content is None:
                parent = names[index - 1] if index else None
                own = tokens[index * size : (index + 1) * size]
                block.content, block.users = Content(parent, own.tobytes(), salt), users
            elif index >= chain.num_shared or tenant in block.users:
                continue
            else:
                block.users += users
            self._tell_all(name, block, users)

    def expect(self, name: bytes, content: Content, tenants: tuple[str, ...]) -> None:
        """Say what a name stands for that a tier has, and that is added next."""
        users = tuple(one for one in tenants if self._tenants is None or one in self._tenants)
        if users:
            self._blocks[name] = _Block(0, content, users)
            self._described.append(name)

    def find(self, name: bytes) -> tuple[Content, tuple[str, ...]] | None:
        """What is known of a name, and its tenants. Any thread may ask."""
        block = self._blocks.get(name)
        return None if block is None or block.content is None else (block.content, block.users)

    def take(self) -> list[Change]:
        """The changes since the last call, in their order."""
        for name in self._described:
            block = self._blocks.get(name)
            if block is not None and not block.where:
                del self._blocks[name]
        self._described.clear()
        changes, self.changes = self.changes, []
        return changes

    def whole(self) -> list[Change]:
        """All that can be found, as if it had just come, in no order. O(names)."""
        return [
            Change(name, user, place, True, block.content)
            for name, block in self._blocks.items()
            if block.content is not None
            for place in Place
            if block.where & BIT[place]
            for user in block.users
        ]

    def _tell(self, name: bytes, block: _Block, place: Place, *, is_added: bool) -> None:
        if block.content is not None:
            for user in block.users:
                self.changes.append(Change(name, user, place, is_added, block.content))

    def _tell_all(self, name: bytes, block: _Block, users: tuple[str, ...]) -> None:
        """All its places, to users that know none of them."""
        content = block.content
        if content is None or not block.where:
            return
        for place in Place:
            if block.where & BIT[place]:
                self.changes += [Change(name, user, place, True, content) for user in users]

    def _clear(self, name: bytes, block: _Block, bit: int) -> None:
        block.where &= ~bit
        if not block.where:
            del self._blocks[name]
