"""The published state: which block is in which media, as routers know it. Turns changes of the ledger into
events that every router can follow.

    BlockStored    once for each medium, until it is removed there: llm-d counts them
    the parent     is published before its child, and stays published while its child is

The ledger may lose a block before its child, which no prompt finds then. Here such a child is published as
removed, and as stored again when its parent is back:

    A <- B <- C        B leaves:  C removed, B removed           B comes back:  B stored, C stored

published = its media, if its parent is published in any medium; else none. Every change is O(1), plus the
descendants of a block that leaves or comes back. It knows no sockets and no clock; one thread uses it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

from octavo.kv_events.identity import Identity
from octavo.kv_events.wire import MEDIUM, BlockRemoved, BlockStored, Event, removed, stored
from octavo.memory.changes import BIT, Change, Content

_MEDIA = tuple((BIT[place], medium) for place, medium in MEDIUM.items())
RUN_MAX = 256  # blocks per event


class _Block:
    """A block of a tenant. One without a medium stays while it has children."""

    __slots__ = ("children", "content", "hash", "key", "parent", "published", "where")

    def __init__(self, key: tuple[bytes, str], hash_: int) -> None:
        self.key, self.hash = key, hash_
        self.content: Content | None = None
        self.parent: _Block | None = None
        self.children: set[_Block] | None = None
        self.where = self.published = 0  # bits of media


class Events:
    """Events in the making: consecutive blocks that come to a medium are one event."""

    def __init__(self, identity: Identity) -> None:
        self.events: list[Event] = []
        self.num_blocks = 0
        self._identity = identity
        self._open: dict[str, tuple[BlockStored, _Block]] = {}  # by medium: the open event and its last block

    def store(self, block: _Block, medium: str) -> None:
        """The block comes to the medium."""
        content, parent = block.content, block.parent
        assert content is not None
        self.num_blocks += 1
        event, last = self._open.get(medium, (None, None))
        if event is None or last is not parent or parent is None or len(event.block_hashes) == RUN_MAX:
            tag = self._identity.tag_of(block.key[1], content.salt)
            size = len(content.tokens) // 4
            event = stored(size, medium, tag, None if parent is None else parent.hash)
            if tag and parent is None:
                event.extra_keys = [[tag]]
            self.events.append(event)
        elif event.extra_keys is not None:
            event.extra_keys.append(None)
        event.block_hashes.append(block.hash)
        event.token_ids += array("I", content.tokens)
        self._open[medium] = event, block

    def remove(self, block: _Block, medium: str) -> None:
        """The block leaves the medium."""
        self._open.clear()  # later events must come after this one
        self.num_blocks += 1
        last = self.events[-1] if self.events else None
        if not isinstance(last, BlockRemoved) or last.medium != medium or len(last.block_hashes) == RUN_MAX:
            last = removed(medium)
            self.events.append(last)
        last.block_hashes.append(block.hash)


class Picture:
    """All blocks with their published media. With `last_only` a block is published as removed only when it is
    in no medium any more, for routers that forget it at the first removal."""

    def __init__(self, identity: Identity, *, last_only: bool = False) -> None:
        self._identity = identity
        self._last_only = last_only
        self._blocks: dict[tuple[bytes, str], _Block] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def apply(self, changes: Iterable[Change]) -> list[Event]:
        """Apply these changes; returns the events to publish."""
        events = Events(self._identity)
        for change in changes:
            key = (change.name, change.tenant)
            block = self._blocks.get(key)
            if change.is_added:
                if block is None or block.content is None:
                    block = self._place(key, change.content)
                block.where |= BIT[change.place]
            elif block is None:
                continue
            else:
                block.where &= ~BIT[change.place]
            self._settle(block, events)
            self._drop(block)
        return events.events

    def begin(self, changes: Iterable[Change]) -> None:
        """Set the whole state, without events."""
        self._blocks.clear()
        self.apply(changes)

    def snapshot(self, blocks_max: int) -> Iterable[list[Event]]:
        """All published events, a parent before its child, in batches of about `blocks_max`. O(blocks)."""
        events = Events(self._identity)
        stack = [block for block in self._blocks.values() if block.parent is None and block.published]
        while stack:
            block = stack.pop()
            for bit, medium in _MEDIA:
                if block.published & bit:
                    events.store(block, medium)
            stack += [child for child in block.children or () if child.published]
            if events.num_blocks >= blocks_max:
                yield events.events
                events = Events(self._identity)
        if events.events:
            yield events.events

    def _place(self, key: tuple[bytes, str], content: Content) -> _Block:
        block = self._find(key)
        block.content = content
        if content.parent is not None:
            block.parent = self._find((content.parent, key[1]))
            block.parent.children = block.parent.children or set()
            block.parent.children.add(block)
        return block

    def _find(self, key: tuple[bytes, str]) -> _Block:
        block = self._blocks.get(key)
        if block is None:
            block = self._blocks[key] = _Block(key, self._identity.hash_of(*key))
        return block

    def _settle(self, first: _Block, events: Events) -> None:
        """Publish the changes of a block, and of its descendants if it came back or left."""
        stack = [first]
        while stack:
            block = stack.pop()
            parent = block.parent
            wanted = block.where if parent is None or parent.published else 0
            if wanted:
                if not block.published:
                    stack += block.children or ()
                self._publish(block, wanted, events)
            elif block.published:
                for gone in reversed(_published_descendants(block)):
                    self._publish(gone, 0, events)

    def _publish(self, block: _Block, wanted: int, events: Events) -> None:
        before, block.published = block.published, wanted
        for bit, medium in _MEDIA:  # additions first: a moving block is always published somewhere
            if wanted & ~before & bit:
                events.store(block, medium)
        for bit, medium in _MEDIA:
            if before & ~wanted & bit and not (self._last_only and wanted):
                events.remove(block, medium)
                if self._last_only:
                    return

    def _drop(self, block: _Block | None) -> None:
        """Forget blocks without media and children."""
        while block is not None and not block.where and not block.children:
            del self._blocks[block.key]
            parent, block.parent = block.parent, None
            if parent is not None and parent.children is not None:
                parent.children.discard(block)
                parent.children = parent.children or None
            block = parent


def _published_descendants(block: _Block) -> list[_Block]:
    """The block and all its published descendants, each before its children."""
    found = [block]
    for one in found:
        found += [child for child in one.children or () if child.published]
    return found
