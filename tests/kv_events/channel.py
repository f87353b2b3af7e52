"""A stream and the routers that read it, through a channel that loses messages: with replay llm-d, which asks
for what it lost, without it Dynamo, which waits until all is told again."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from tests.kv_events.readers import Dynamo, LlmD, Reader

from octavo.kv_events.identity import Identity
from octavo.kv_events.stream import Batch, Stream
from octavo.kv_events.wire import Form
from octavo.memory.changes import Change, ChangeRecord

TOPIC = b"kv@host:5557@model"
LOSS = 0.05
READERS_MAX = 6


class Channel:
    """Readers come late, lose single messages, and are there when the publisher's process begins again."""

    def __init__(self, random: Random, identity: Identity, *, replays: bool, batches_max: int = 50) -> None:
        self.readers: list[LlmD | Dynamo] = []
        self.num_lost = self.num_changes = 0
        self._replays = replays
        self._random, self._identity, self._batches_max = random, identity, batches_max
        self._missed: set[int] = set()  # readers that have lost the last message
        self.stream = self._new_stream()

    def _new_stream(self) -> Stream:
        batches_max = self._batches_max
        return Stream(self._identity, Form.MAP, lambda: 1.5, replays=self._replays, batches_max=batches_max)

    def publish(self, record: ChangeRecord) -> None:
        """After a step."""
        self.publish_changes(record.take())

    def publish_changes(self, changes: list[Change]) -> None:
        """The same of these."""
        self.num_changes += len(changes)
        if changes:
            self._send(self.stream.apply(changes))

    def begin(self, changes: list[Change], *, is_process: bool) -> None:
        """The ledger is a new one, in the same process or another."""
        if is_process:
            self.stream = self._new_stream()
            if not self._replays:
                self.readers.clear()  # Dynamo's are gone with the worker that they read
        self._send(self.stream.begin(changes))

    def join(self) -> None:
        """One more reader, of some kind; it may be told a story at once, or has to ask for it."""
        self.readers.append(LlmD(self._replay) if self._replays else Dynamo())
        self._missed.add(id(self.readers[-1]))  # some ask for nothing until they get a message
        del self.readers[:-READERS_MAX]
        if self._random.random() < 0.5:
            self._send(self.stream.snapshot())

    def end_losses(self) -> None:
        """All is told once more, and nothing of it is lost."""
        batches = self.stream.snapshot()
        for reader in self.readers:
            for batch in batches:
                reader.receive(TOPIC, batch.number, batch.payload)
        self._missed.clear()

    def _replay(self, start: int) -> Iterable[tuple[int, bytes]]:
        return [(batch.number, batch.payload) for batch in self.stream.since(start)]

    def _send(self, batches: list[Batch]) -> None:
        for batch in batches:
            is_clear = b"AllBlocksCleared" in batch.payload
            for reader in self.readers:
                has_missed = id(reader) in self._missed
                # Never two in a row: who loses all clearings learns of them when all is told again.
                if not has_missed and self._random.random() < LOSS:
                    self._missed.add(id(reader))
                    self.num_lost += 1
                    continue
                if self._replays or is_clear:
                    self._missed.discard(id(reader))
                reader.receive(TOPIC, batch.number, batch.payload)

    def is_current(self, reader: Reader) -> bool:
        """Whether it has all that was sent: it lost no message that it has not asked for."""
        return id(reader) not in self._missed
