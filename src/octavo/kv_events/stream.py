"""Numbered batches, and a buffer of them for replay.

    0      1 ... k      k + 1 ...        m        m + 1 ...
    clear  whole        changes          clear    whole        changes

`AllBlocksCleared` and a snapshot go out at the next numbers when a subscriber joins, when changes were lost,
and after `BATCHES_MAX` batches. So a router that comes late, or lost some batches, knows the whole state from
then on, even without replay. Numbers return to 0 in one case only, because routers differ: Dynamo drops
batches with a number that it had before; llm-d takes a smaller number for a restart, and never reads a
publisher that cannot replay from 0 on. So only with replay, numbers begin at 0 again when batch 0 would leave
the buffer: the buffer always has everything from 0 on. `CLEARINGS` batches begin such a sequence, so that a
router which lost the last messages of the old one, or the first of the new, sees a smaller number and a
clearing. It knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.kv_events.identity import Identity
from octavo.kv_events.picture import Picture
from octavo.kv_events.wire import AllBlocksCleared, Event, Form, encode_batch
from octavo.memory.changes import Change

BATCHES_MAX = 10_000  # in the buffer, as vLLM's `buffer_steps`
BYTES_MAX = 64 << 20
SNAPSHOT_BLOCKS = 1024  # per batch
CLEARINGS = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is sent."""

    number: int
    payload: bytes


class Stream:
    """The batches of a publisher. `clock`: seconds since 1970; `replays`: batches can be requested again."""

    def __init__(
        self,
        identity: Identity,
        form: Form,
        clock: Callable[[], float],
        *,
        replays: bool,
        batches_max: int = BATCHES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self._picture = Picture(identity, last_only=form is Form.ARRAY)
        self._form, self._clock, self._replays = form, clock, replays
        self._batches_min, self._bytes_min = batches_max, bytes_max
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._next = 0
        self._buffer: list[Batch] = []  # from 0 on, if `replays`
        self._num_batches = self._num_bytes = 0  # in the buffer; without replay, since the last snapshot

    def apply(self, changes: Iterable[Change]) -> list[Batch]:
        """Batches for these changes: none, one, or a snapshot when one is due."""
        events = self._picture.apply(changes)
        if not events:
            return []
        return self.snapshot() if self._is_full else [self._add(events)]

    def begin(self, changes: Iterable[Change]) -> list[Batch]:
        """Batches for a new whole state, which replaces the published one."""
        self._picture.begin(changes)
        return self.snapshot()

    def snapshot(self) -> list[Batch]:
        """Batches of a clearing and a snapshot. O(blocks)."""
        num_clearings, is_full = 1, self._is_full
        if is_full and self._replays:
            num_clearings, self._next = CLEARINGS, 0
            self._buffer = []
        if is_full or not self._replays:
            self._num_batches = self._num_bytes = 0
        batches = [self._add([AllBlocksCleared()]) for _ in range(num_clearings)]
        batches += [self._add(events) for events in self._picture.snapshot(SNAPSHOT_BLOCKS)]
        self._batches_max = max(self._batches_min, 2 * len(batches))
        self._bytes_max = max(self._bytes_min, 2 * sum(len(batch.payload) for batch in batches))
        return batches

    def since(self, number: int) -> list[Batch]:
        """The batches from that number on; none without replay."""
        return self._buffer[number:]

    @property
    def _is_full(self) -> bool:
        return self._num_batches >= self._batches_max or self._num_bytes >= self._bytes_max

    def _add(self, events: list[Event]) -> Batch:
        batch = Batch(self._next, encode_batch(self._clock(), events, self._form))
        self._next += 1
        self._num_batches += 1
        self._num_bytes += len(batch.payload)
        if self._replays:
            self._buffer.append(batch)
        return batch
