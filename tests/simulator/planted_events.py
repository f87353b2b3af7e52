"""Bugs planted in what routers are sent: the record of changes, the picture of it, its numbers and tags.
Published lives notice them, whose routers lose messages and come late."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from tests.kv_events.published import drive_published
from tests.simulator.planting import PlantedBug

from octavo.kv_events import picture
from octavo.kv_events.identity import Identity
from octavo.kv_events.picture import Events, Picture, _Block
from octavo.kv_events.stream import Batch, Stream
from octavo.kv_events.wire import Event
from octavo.memory.changes import Change, ChangeRecord, Place


def _tell_without_its_parent(self: Picture, first: _Block, events: Events) -> None:
    self._publish(first, first.where, events)


def _begin_with_what_was(self: Picture, changes: Iterable[Change]) -> None:
    self.apply(changes)


def _snapshot_child_first(self: Picture, blocks_max: int) -> Iterable[list[Event]]:
    events = Events(self._identity)
    for block in reversed(self._blocks.values()):
        for bit, medium in picture._MEDIA:
            if block.published & bit:
                events.store(block, medium)
    yield events.events


def _number_from_0_on(self: Stream) -> list[Batch]:
    self._next = 0
    return _TELL_ALL(self)


def _tag_without_salt(self: Identity, tenant: str, salt: str) -> str:
    return self.tenant_tag(tenant)


def _remove_from_the_pool_alone(self: ChangeRecord, name: bytes, place: Place) -> None:
    if place is Place.POOL:
        _REMOVE(self, name, place)


_TELL_ALL, _REMOVE = Stream.snapshot, ChangeRecord.remove
_Bug = partial(PlantedBug, drive=drive_published)
EVENT_BUGS = (
    _Bug("block told without its parent", Picture, "_settle", _tell_without_its_parent),
    _Bug("block stays told without its parent", picture, "_published_descendants", lambda block: [block]),
    _Bug("restart told beside what was", Picture, "begin", _begin_with_what_was),
    _Bug("snapshot tells children first", Picture, "snapshot", _snapshot_child_first),
    _Bug("numbers begin again for each that joins", Stream, "snapshot", _number_from_0_on),
    _Bug("replay without its first batch", Stream, "since", lambda self, n: self._buffer[max(n, 1) :]),
    _Bug("salt missing in a tag", Identity, "tag_of", _tag_without_salt),
    _Bug("removal from a tier not told", ChangeRecord, "remove", _remove_from_the_pool_alone),
    _Bug("content lost on its way to a tier", ChangeRecord, "begin_store", lambda self, name: None),
    _Bug("found on disk, and not told", ChangeRecord, "_record_arrivals", lambda self, *of_name: None),
)
