"""Numbered batches, and those of them that can be asked for again.

    0 ... 7      8 ... k      k + 1 ...
    cleared      snapshot     what changed since

Numbers begin at 0 again, with `AllBlocksCleared` and a snapshot of all that there is, where the batch 0 would
leave the buffer: so the buffer always holds the whole story, and a router that comes late, or lost more than
is kept, learns all of it from 0 on. Routers take a number that is smaller than their last one for a restart.
So that one which lost the last messages of the old story, or the first ones of the new, sees such a number
and a clearing, `CLEARINGS` batches begin it; one that loses as many in a row may keep what is stale until the
next story. It knows no sockets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from octavo.kv_events.identity import Identity
from octavo.kv_events.picture import Picture
from octavo.kv_events.wire import AllBlocksCleared, Event, Form, encode_batch
from octavo.memory.changes import Change

BATCHES_MAX = 10_000  # of the buffer, as vLLM's `buffer_steps`
BYTES_MAX = 64 << 20
SNAPSHOT_BLOCKS = 1024  # of a batch
CLEARINGS = 8


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch as it is sent."""

    number: int
    payload: bytes


class Stream:
    """What a publisher sends. `clock`: seconds since 1970."""

    def __init__(
        self,
        identity: Identity,
        form: Form,
        clock: Callable[[], float],
        *,
        batches_max: int = BATCHES_MAX,
        bytes_max: int = BYTES_MAX,
    ) -> None:
        self.num_stories = 0  # how often numbers began at 0
        self._picture = Picture(identity, last_only=form is Form.ARRAY)
        self._form, self._clock = form, clock
        self._batches_min, self._bytes_min = batches_max, bytes_max
        self._batches_max, self._bytes_max = batches_max, bytes_max
        self._buffer: list[Batch] = []
        self._num_bytes = 0

    def apply(self, changes: Iterable[Change]) -> list[Batch]:
        """What to send of these changes: nothing, a batch, or a new story where the buffer is full."""
        events = self._picture.apply(changes)
        if not events:
            return []
        if len(self._buffer) >= self._batches_max or self._num_bytes >= self._bytes_max:
            return self.begin_again()
        return [self._add(events)]

    def begin(self, changes: Iterable[Change]) -> list[Batch]:
        """These are all that there is now, whatever was told before."""
        self._picture.begin(changes)
        return self.begin_again()

    def begin_again(self) -> list[Batch]:
        """A new story: what to send of it. O(blocks)."""
        self._buffer, self._num_bytes = [], 0
        self.num_stories += 1
        for _ in range(CLEARINGS):
            self._add([AllBlocksCleared()])
        for events in self._picture.snapshot(SNAPSHOT_BLOCKS):
            self._add(events)
        self._batches_max = max(self._batches_min, 2 * len(self._buffer))
        self._bytes_max = max(self._bytes_min, 2 * self._num_bytes)
        return list(self._buffer)

    def since(self, number: int) -> list[Batch]:
        """The batches from that number on."""
        return self._buffer[number:]

    def _add(self, events: list[Event]) -> Batch:
        batch = Batch(len(self._buffer), encode_batch(self._clock(), events, self._form))
        self._buffer.append(batch)
        self._num_bytes += len(batch.payload)
        return batch
