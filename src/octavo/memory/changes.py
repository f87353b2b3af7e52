"""The arrivals and departures of blocks in each tier, as a list that another thread publishes; and the tokens
of the blocks that are there.

    pool, tiers --add, remove-->  blocks: name -> where it is, content, users    (while any tier has the name)
    scheduler   --describe----->  changes: [...]   --take, after a step-->   a publisher

A name has a content once a sequence has described it: its parent name, its tokens, its cache salt. Until then
no change of it is recorded. Describing it records its arrivals as new ones. So names that an earlier process
left on disk are recorded when a request first finds them.

A name belongs to the tenant whose sequence described it. A name that the operator shares belongs to each
tenant that used it, and each change of it is recorded once per tenant. A name on its way to a tier keeps its
content. Every operation is O(1), except `describe`, O(names), and `whole`. The record does not know blocks,
hashes or sockets. Without events there is no record.
"""

from __future__ import annotations

import enum
from array import array
from collections.abc import Collection

import msgspec

from octavo.memory.names import NameChain


class Place(enum.StrEnum):
    """A tier that can have a named block."""

    POOL = "pool"
    HOST = "host"
    DISK = "disk"

    __hash__ = str.__hash__  # the hash of an enumeration is slow, and ages are counted for each block


BIT = {Place.POOL: 1, Place.HOST: 2, Place.DISK: 4}
_ARRIVING = 8  # its bytes are on their way to a tier: not findable there yet


class Content(msgspec.Struct, frozen=True, gc=False):
    """The content of a named block. `tokens`: little-endian uint32, one block; `salt`: the client's."""

    parent: bytes | None  # the name of the block before it; None: the first of a prompt
    tokens: bytes
    salt: str = ""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A name of a tenant arrived in a tier, or left it."""

    name: bytes
    tenant: str
    place: Place
    is_added: bool
    content: Content


class _Block(msgspec.Struct, gc=False):
    """A name that a tier has, or that a sequence has described since the last `take`."""

    where: int = 0  # bits of `BIT`
    content: Content | None = None
    users: tuple[str, ...] = ()  # tenants


class ChangeRecord:
    """The changes since the last `take`, and the content of every name in a tier. `tenants`: those that are
    recorded; None: all."""

    def __init__(self, tenants: Collection[str] | None = None) -> None:
        self.changes: list[Change] = []
        self._tenants = None if tenants is None else frozenset(tenants)
        self._blocks: dict[bytes, _Block] = {}
        self._described: list[bytes] = []  # names that were new then; a tier may have none of them

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, name: bytes, place: Place) -> None:
        """The name is findable there from now on. Idempotent."""
        block = self._blocks.get(name)
        if block is None:
            block = self._blocks[name] = _Block()
        if not block.where & BIT[place]:
            block.where |= BIT[place]
            self._record(name, block, place, is_added=True)

    def remove(self, name: bytes, place: Place) -> None:
        """The name is not findable there any more."""
        block = self._blocks.get(name)
        if block is not None and block.where & BIT[place]:
            self._record(name, block, place, is_added=False)
            self._clear(name, block, BIT[place])

    def begin_store(self, name: bytes) -> None:
        """The bytes are on their way to a tier: the content is kept, even if the pool evicts the name."""
        self._blocks.setdefault(name, _Block()).where |= _ARRIVING

    def end_store(self, name: bytes) -> None:
        """The store has ended; if it succeeded, `add` came before."""
        block = self._blocks.get(name)
        if block is not None:
            self._clear(name, block, _ARRIVING)

    def describe(
        self, chain: NameChain, tokens: array[int], tenant: str | None, salt: str, start: int, stop: int
    ) -> None:
        """Record the content of the names [start, stop) of the chain: a sequence of that tenant computed or
        found these blocks (None: of the operator, for all tenants). `tokens`: of the whole chain. O(stop -
        start)."""
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
            self._record_arrivals(name, block, users)

    def expect(self, name: bytes, content: Content, tenants: tuple[str, ...]) -> None:
        """Record the content of a name that a tier has; `add` follows."""
        users = tuple(one for one in tenants if self._tenants is None or one in self._tenants)
        if users:
            self._blocks[name] = _Block(0, content, users)
            self._described.append(name)

    def find(self, name: bytes) -> tuple[Content, tuple[str, ...]] | None:
        """The content of a name, and its tenants. From any thread."""
        block = self._blocks.get(name)
        return None if block is None or block.content is None else (block.content, block.users)

    def take(self) -> list[Change]:
        """The changes since the last call, in order."""
        for name in self._described:
            block = self._blocks.get(name)
            if block is not None and not block.where:
                del self._blocks[name]
        self._described.clear()
        changes, self.changes = self.changes, []
        return changes

    def whole(self) -> list[Change]:
        """All findable names as new arrivals, in no order. O(names)."""
        return [
            Change(name, user, place, True, block.content)
            for name, block in self._blocks.items()
            if block.content is not None
            for place in Place
            if block.where & BIT[place]
            for user in block.users
        ]

    def _record(self, name: bytes, block: _Block, place: Place, *, is_added: bool) -> None:
        if block.content is not None:
            for user in block.users:
                self.changes.append(Change(name, user, place, is_added, block.content))

    def _record_arrivals(self, name: bytes, block: _Block, users: tuple[str, ...]) -> None:
        """Record all its places for users that have none of them yet."""
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
