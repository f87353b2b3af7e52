"""The store of conversations for a front end in another process: each method is a call with a reply.

    RemoteStore.find(...) --name, arguments--> StoreCalls.answer --> ConversationStore.find(...)
                          <------------- packed record ------------

The store answers from memory and needs no engine, so the front end blocks on it: a fifth of a millisecond.
Calls that wait for the disk return a future.
"""

from __future__ import annotations

import inspect
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Concatenate, ParamSpec, Protocol, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec

from octavo.conversations.record import ConversationKind, Record, from_row, to_row
from octavo.conversations.sessions import SyncBlocks
from octavo.conversations.store import ConversationStore, NewResponse
from octavo.errors import EngineStopped

P = ParamSpec("P")
R = TypeVar("R")


class PackedRecord(msgspec.Struct, frozen=True, array_like=True):
    """A record as a message."""

    row: tuple[str, str, bytes, int, int, int, int, int, bytes, bytes]
    num_said: int

    @classmethod
    def of(cls, record: Record) -> PackedRecord:
        """A record as its row. O(tokens)."""
        return cls(to_row(record), record.num_said)  # type: ignore[arg-type]  # its columns

    def record(self) -> Record:
        """The record; times in milliseconds."""
        record = from_row(self.row)
        assert record is not None
        return replace(record, num_said=self.num_said)


class RecordName(msgspec.Struct, frozen=True, array_like=True):
    """A reference to a state of a record."""

    session_id: str
    tenant: str
    is_response: bool
    num_said: int

    @classmethod
    def of(cls, record: Record) -> RecordName:
        """The reference to this state."""
        is_response = record.kind is ConversationKind.RESPONSE
        return cls(record.session_id, record.tenant, is_response, record.num_said)

    def record(self) -> Record:
        """A record without content: for methods that look it up by name."""
        document = b"-" if self.is_response else b""
        return Record(self.session_id, self.tenant, 1.0, 0.0, 0.0, document=document, num_said=self.num_said)


class StoreCalls:
    """The engine's side of one front end: the callable methods, in types of messages. Withdraws the front
    end's turns when it disconnects."""

    def __init__(
        self, store: ConversationStore, sync_blocks: SyncBlocks | None, num_recoveries: Callable[[], int]
    ) -> None:
        self._store = store
        self._sync_blocks = sync_blocks
        self._num_recoveries = num_recoveries
        self._turns: set[str] = set()  # running turns of the front end

    def answer(self, name: str, arguments: bytes | msgspec.Raw) -> object:
        """Call the method of that name; returns a reply, or the future of one. Raises as the method does."""
        method = getattr(type(self), name)
        return method(self, *_arguments_of(method).decode(arguments))

    def leave(self) -> None:
        """The front end has disconnected: withdraw its turns."""
        for turn in self._turns:
            self._store.withdraw_turn(turn)
        self._turns.clear()

    def create(self, tenant: str, ttl_s: float, response: NewResponse | None) -> PackedRecord:
        """See `ConversationStore`, also for the other methods."""
        return PackedRecord.of(self._store.create(tenant, ttl_s, response))

    def fork(
        self, source: RecordName, turn: int | None, ttl_s: float | None, response: NewResponse | None
    ) -> PackedRecord:
        """Fork the current version of the source."""
        found = self._store.find_again(source.record())
        return PackedRecord.of(self._store.fork(found, turn, ttl_s, response))

    def make_room(self, tenant: str, response: NewResponse, spared: str) -> list[RecordName]:
        """References to the deleted ones."""
        return [RecordName.of(record) for record in self._store.make_room(tenant, response, spared)]

    def attach(self, response: NewResponse) -> bool:
        """See the store."""
        return self._store.attach(response)

    def find(self, tenant: str, session_id: str, kind: ConversationKind) -> PackedRecord:
        """The record, with its tokens."""
        return PackedRecord.of(self._store.find(tenant, session_id, kind))

    def has(self, session_id: str) -> bool:
        """Whether it exists."""
        return self._store.has(session_id)

    def is_active(self, record: RecordName) -> bool:
        """Whether a turn runs."""
        return self._store.is_active(record.record())

    def latest(self, tenant: str | None, limit: int | None) -> list[PackedRecord]:
        """All without `limit`."""
        records = self._store.all(tenant) if limit is None else self._store.latest(tenant, limit)
        return list(map(PackedRecord.of, records))

    def count(self, tenant: str | None) -> int:
        """The number of sessions."""
        return self._store.count(tenant)

    def begin_turn(self, record: RecordName, turn: str) -> PackedRecord:
        """The turn belongs to this front end until it ends."""
        now = self._store.begin_turn(record.record(), turn)
        self._turns.add(turn)
        return PackedRecord.of(now)

    def withdraw_turn(self, turn: str) -> None:
        """The engine did not accept it."""
        self._turns.discard(turn)
        self._store.withdraw_turn(turn)

    def end_turn(self, turn: str) -> None:
        """The turn has ended."""
        self._turns.discard(turn)
        self._store.end_turn(turn)

    def use(self, session_id: str) -> None:
        """Restart its ttl."""
        self._store.use(session_id)

    def say(self, session_id: str, tokens: bytes, num_shared: int) -> bool:
        """`tokens`: four bytes each."""
        said = array("I")
        said.frombytes(tokens)
        return self._store.say(session_id, said, num_shared)

    def record_suspended(self, record: RecordName, num_blocks: int) -> None:
        """See the store."""
        self._store.record_suspended(record.record(), num_blocks)

    def is_suspended(self, record: RecordName) -> bool:
        """See the store."""
        return self._store.is_suspended(record.record())

    def delete(self, record: RecordName) -> Future[bool]:
        """Done when it is off the medium."""
        return self._store.delete(record.record())

    def sync(self, session_id: str) -> Future[bool]:
        """Done when it is on the medium."""
        return self._store.sync(session_id)

    def sync_blocks(self, slots: list[tuple[int, bytes]]) -> Future[list[bytes]]:
        """Done when the blocks are on the medium; returns the names of those that are not."""
        assert self._sync_blocks is not None, "there is no disk cache"
        return self._sync_blocks(slots)

    def num_recoveries(self) -> int:
        """The engine's recoveries: after one, its scheduler may have older states of conversations."""
        return self._num_recoveries()


class StoreLink(Protocol):
    """The front end's connection to the store."""

    def __call__(self, name: str, arguments: Sequence[object], reply: object) -> Future[object]:
        """Call the method; returns the future of a reply of that type."""


class RemoteStore:
    """A front end's `ConversationStore`: the same methods, as far as conversations use them. Also raises
    EngineStopped."""

    def __init__(self, call: StoreLink, timeout_s: float, ahead_s: float) -> None:
        """`ahead_s`: the store's clock minus `time.monotonic`."""
        self._link = call
        self._timeout_s = timeout_s
        self._ahead_s = ahead_s

    def create(self, tenant: str, ttl_s: float, response: NewResponse | None = None) -> Record:
        """See `ConversationStore`, also for the other methods."""
        return self._call(StoreCalls.create, tenant, ttl_s, response).record()

    def fork(
        self,
        source: Record,
        turn: int | None = None,
        ttl_s: float | None = None,
        response: NewResponse | None = None,
    ) -> Record:
        """As the store's. O(tokens)."""
        return self._call(StoreCalls.fork, RecordName.of(source), turn, ttl_s, response).record()

    def make_room(self, tenant: str, response: NewResponse, spared: str = "") -> list[Record]:
        """Records without their tokens."""
        return [name.record() for name in self._call(StoreCalls.make_room, tenant, response, spared)]

    def attach(self, response: NewResponse) -> bool:
        """False: it was deleted, or the engine is gone."""
        with suppress(EngineStopped):
            return self._call(StoreCalls.attach, response)
        return False

    def find(self, tenant: str, session_id: str, kind: ConversationKind = ConversationKind.SESSION) -> Record:
        """As the store's. O(tokens)."""
        return self._call(StoreCalls.find, tenant, session_id, kind).record()

    def find_again(self, record: Record) -> Record:
        """As the store's. O(tokens)."""
        return self.find(record.tenant, record.session_id, record.kind)

    def has(self, session_id: str) -> bool:
        """Whether it exists; True if the engine is gone, so that callers do nothing more with it."""
        with suppress(EngineStopped):
            return self._call(StoreCalls.has, session_id)
        return True

    def is_active(self, record: Record) -> bool:
        """Whether a turn runs."""
        return self._call(StoreCalls.is_active, RecordName.of(record))

    def all(self, tenant: str | None = None) -> list[Record]:
        """O(tokens of all)."""
        return [packed.record() for packed in self._call(StoreCalls.latest, tenant, None)]

    def latest(self, tenant: str | None, limit: int) -> list[Record]:
        """O(tokens of them)."""
        return [packed.record() for packed in self._call(StoreCalls.latest, tenant, limit)]

    def count(self, tenant: str | None = None) -> int:
        """The number of sessions."""
        return self._call(StoreCalls.count, tenant)

    def seconds_left(self, record: Record) -> float:
        """By the store's clock at the last reply, and the time passed since."""
        return max(0.0, record.expires - (time.monotonic() + self._ahead_s))

    def begin_turn(self, record: Record, turn: str) -> Record:
        """As the store's. O(tokens)."""
        return self._call(StoreCalls.begin_turn, RecordName.of(record), turn).record()

    # Ends of turns ignore failures: without the engine, its process has ended the turn.

    def withdraw_turn(self, turn: str) -> None:
        """The engine did not accept it."""
        self._begin_plain(StoreCalls.withdraw_turn, turn)

    def end_turn(self, turn: str) -> None:
        """The turn has ended."""
        self._begin_plain(StoreCalls.end_turn, turn)

    def use(self, session_id: str) -> None:
        """Restart its ttl."""
        self._begin_plain(StoreCalls.use, session_id)

    def say(self, session_id: str, tokens: Sequence[int], num_shared: int = 0) -> bool:
        """False: it was deleted, or the engine is gone."""
        with suppress(EngineStopped):
            return self._call(StoreCalls.say, session_id, array("I", tokens).tobytes(), num_shared)
        return False

    def record_suspended(self, record: Record, num_blocks: int) -> None:
        """See the store."""
        self._call(StoreCalls.record_suspended, RecordName.of(record), num_blocks)

    def is_suspended(self, record: Record) -> bool:
        """See the store."""
        return self._call(StoreCalls.is_suspended, RecordName.of(record))

    def delete(self, record: Record) -> Future[bool]:
        """Unlike the store, reports a missing record by the future."""
        return self._begin(StoreCalls.delete, RecordName.of(record))

    def sync(self, session_id: str) -> Future[bool]:
        """Done when it is on the medium."""
        return self._begin(StoreCalls.sync, session_id)

    def sync_blocks(self, slots: Sequence[tuple[int, bytes]]) -> Future[list[bytes]]:
        """Done when the blocks are on the medium; returns the names of those that are not."""
        return self._begin(StoreCalls.sync_blocks, list(slots))

    def num_recoveries(self) -> int:
        """How often the engine has recovered."""
        return self._call(StoreCalls.num_recoveries)

    def close(self) -> None:
        """The engine's process closes the store."""

    def _call(
        self, method: Callable[Concatenate[StoreCalls, P], R], *arguments: P.args, **none: P.kwargs
    ) -> R:
        reply = self._link(method.__name__, arguments, _reply_type(method))
        try:
            return cast(R, reply.result(self._timeout_s))
        except TimeoutError:
            raise EngineStopped(
                f"the engine's process did not answer within {self._timeout_s:.0f} s"
            ) from None

    def _begin_plain(
        self, method: Callable[Concatenate[StoreCalls, P], None], *arguments: P.args, **none: P.kwargs
    ) -> None:
        """Send a call without waiting: later calls are executed after it."""
        self._link(method.__name__, arguments, None)

    def _begin(
        self, method: Callable[Concatenate[StoreCalls, P], Future[R]], *arguments: P.args, **none: P.kwargs
    ) -> Future[R]:
        return cast("Future[R]", self._link(method.__name__, arguments, _reply_type(method)))


@cache
def _arguments_of(method: Callable[..., object]) -> msgspec.msgpack.Decoder[tuple[object, ...]]:
    hints = get_type_hints(method)
    names = list(inspect.signature(method).parameters)[1:]
    return msgspec.msgpack.Decoder(tuple[tuple(hints[name] for name in names)])  # type: ignore[misc]


@cache
def _reply_type(method: Callable[..., object]) -> object:
    """The type of its result, or of its future's result."""
    kind = get_type_hints(method)["return"]
    return get_args(kind)[0] if get_origin(kind) is Future else kind
