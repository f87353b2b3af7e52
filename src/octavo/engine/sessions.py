"""Chat sessions as clients see them: made, forked, told, suspended, resumed, deleted, and a turn of one at a
time. Asynchronous, on any event loop.

    suspend    the scheduler stores every block below  ->  data, then index, are synced  ->  the session's
               record is synced  ->  the answer

So whatever a crash leaves, a record that says suspended was written after all that it stands for. A restart
finds the sessions in the store and the blocks by their names; whatever is missing is computed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from octavo.config import SESSION_TTL_S
from octavo.engine.core import inspector_of
from octavo.engine.outputs import SessionView
from octavo.engine.responses import Responses
from octavo.engine.session_record import SessionRecord
from octavo.engine.session_store import SessionStore
from octavo.engine.session_turns import TakesTurns, forget, know, know_fork, take_turn
from octavo.engine.stream import Turn
from octavo.errors import InvalidRequest, RequestFailed, SessionRefused, UnknownSession
from octavo.inspect.session_views import SessionBlocks
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.retention.client_pins import PinOrder
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.scheduler.scheduler import Scheduler
from octavo.step.events import Event, EventKind
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions

NEW = "new"  # in place of an id
_PAUSE_S = 0.005
_VIEWED_AT_ONCE = 32  # each costs its blocks, and steps wait meanwhile
_SUSPEND_TIMEOUT_S = 300.0  # for the blocks to go down; a disk that takes longer is broken

# Slots and names below, to those of them that are not on the medium.
SyncBlocks = Callable[[Sequence[tuple[int, bytes]]], "Future[list[bytes]]"]


@dataclass(frozen=True, slots=True)
class SessionSupport:
    """What `start_engine` gives to sessions. `sync` is None where there is no disk cache."""

    store: SessionStore = field(default_factory=SessionStore)
    ttl_s: float = SESSION_TTL_S  # where the client says nothing
    sync: SyncBlocks | None = None


class Sessions:
    """What `EngineClient.sessions` offers. Raises UnknownSession for those of other tenants too, and
    EngineStopped when the engine is gone."""

    def __init__(self, llm: TakesTurns, support: SessionSupport) -> None:
        self.responses = Responses(llm, support.store, support.ttl_s)
        self._llm = llm
        self._store = support.store
        self._ttl_s = support.ttl_s
        self._sync = support.sync

    async def create(self, tenant: str = "", ttl_s: float | None = None) -> SessionView:
        """A session in which nothing was said. Raises InvalidRequest, SessionRefused or UnknownTenant; then
        nothing was made."""
        made = list[SessionRecord]()

        def make(scheduler: Scheduler, now: float) -> SessionView:
            scheduler.tenants.check_known(tenant)
            made.append(self._store.create(tenant, self._ttl_s if ttl_s is None else ttl_s))
            return self._told(made[0], inspector_of(scheduler).session(made[0].session_id))

        try:
            return await self._llm.ask(make)
        except BaseException:
            self._llm.tell(lambda s, now: self._unmake(s, *made))  # behind the question
            raise

    async def fork(
        self, tenant: str, session_id: str, turn: int | None = None, ttl_s: float | None = None
    ) -> SessionView:
        """A new session in which the first `turn` turns of this one were said, or all that have ended; where
        no ttl is given it has the same. It holds the same blocks, and of this one nothing changes, whose turn
        may run. One of a suspended session is suspended too, and on the medium when this returns.

        Raises as `create`, or UnknownSession, or RequestFailed when the disk failed; then nothing was made.
        """
        made = list[SessionRecord]()

        def make(scheduler: Scheduler, now: float) -> SessionView:
            scheduler.tenants.check_known(tenant)
            source = self._store.find(tenant, session_id)
            made.append(self._store.fork(source, turn, ttl_s))
            know(scheduler, now, source, self._store.seconds_left(source))
            self._store.record_suspended(made[0], know_fork(scheduler, now, session_id, made[0]))
            return self._told(self._found(made[0]), inspector_of(scheduler).session(made[0].session_id))

        try:
            view = await self._llm.ask(make)
            if self._store.is_suspended(made[0]) and not await self._is_synced(made[0]):
                raise RequestFailed(
                    f"session {session_id} could not be forked: it is suspended, and the record of its fork "
                    "could not be written to disk; resume it, then fork it"
                )
            return view
        except BaseException:
            self._llm.tell(lambda s, now: self._unmake(s, *made))  # behind the question
            raise

    def _unmake(self, scheduler: Scheduler, *records: SessionRecord) -> None:
        """No client was told of these sessions."""
        for record in records:
            self._forget(record)
            forget(scheduler, record.tenant, record.session_id)

    def _forget(self, record: SessionRecord) -> None:
        with contextlib.suppress(UnknownSession):
            self._store.delete(record.tenant, record.session_id)

    def count(self, tenant: str | None = "") -> int:
        """How many `all` would be."""
        return len(self._store.all(tenant))

    async def all(self, tenant: str | None = "", limit: int | None = None) -> list[SessionView]:
        """The tenant's sessions, or everybody's, oldest first; or up to `limit` of them: those whose turn
        runs, then those that were used last. Steps may run in between: the numbers are of several moments."""
        store, views = self._store, list[SessionView]()
        records = store.all(tenant) if limit is None else store.latest(tenant, limit)
        for first in range(0, len(records), _VIEWED_AT_ONCE):
            views += await self._view_each(records[first : first + _VIEWED_AT_ONCE])
        return views

    async def _view_each(self, records: Sequence[SessionRecord]) -> list[SessionView]:
        blocks = await self._llm.look(lambda look, now: [look.session(r.session_id) for r in records])
        views = []
        for record, one in zip(records, blocks, strict=True):
            with contextlib.suppress(UnknownSession):  # deleted meanwhile
                views.append(self._told(self._found(record), one))
        return views

    async def find(self, tenant: str, session_id: str) -> SessionView:
        """One of them."""
        return await self._view(self._store.find(tenant, session_id))

    def tokens(self, tenant: str, session_id: str) -> tuple[int, ...]:
        """All that was said in it."""
        return tuple(self._store.find(tenant, session_id).tokens)

    async def delete(self, tenant: str, session_id: str) -> SessionView:
        """Forget it; what it held and kept can be taken from now on. A turn that runs goes on alone. Returns
        when no crash can bring it back, or raises RequestFailed when the disk failed. Cancelling the call
        cancels no part of it that has begun."""
        view = await self.find(tenant, session_id)
        gone = self._store.delete(tenant, session_id)
        self._llm.tell(lambda s, now: forget(s, tenant, session_id))
        await self._llm.ask(lambda s, now: None)  # behind it
        if not await asyncio.shield(asyncio.wrap_future(gone)):
            raise RequestFailed(
                f"session {session_id} is deleted, but could not be taken off the disk: after a crash it may "
                "be there again; that is tried again with the next one deleted, and when the server ends"
            )
        return view

    async def turn(
        self,
        tenant: str,
        session_id: str,
        messages: Sequence[ChatMessage],
        params: SamplerParams,
        *,
        priority: int = 0,
        timeouts: Timeouts = NO_TIMEOUTS,
        options: ChatOptions = DEFAULT_CHAT,
    ) -> Turn:
        """The next turn of a session, or the first one of a new one (`NEW`).

        Raises UnknownSession, SessionBusy, or as `EngineClient.submit`; then nothing was queued or
        made.
        """
        is_new = session_id == NEW
        record = self._store.create(tenant, self._ttl_s) if is_new else self._store.find(tenant, session_id)
        try:
            return await take_turn(
                self._llm,
                self._store,
                record,
                messages,
                params,
                priority=priority,
                timeouts=timeouts,
                options=options,
            )
        except BaseException:
            if is_new:
                self._forget(record)
                self._llm.tell(lambda s, now: self._unmake(s, record))
            raise

    async def suspend(self, tenant: str, session_id: str) -> SessionView:
        """Send all its blocks to disk; returns when they, their index and the session are on the medium.

        Raises SessionRefused without a disk cache, where blocks are nowhere any more or the disk's files have
        vanished, SessionBusy, PinRefused, RequestFailed when the disk failed. Then it is not suspended,
        unless it had been before and only its client has left, or it is busy.
        """
        record = self._store.find(tenant, session_id)
        await self._know(record)
        try:
            await self._send_down(record)
            num_blocks = await self._sync_blocks(record)
            await self._sync_record(record)
            return self._told(record, await self._llm.ask(lambda s, now: _end(s, now, record, num_blocks)))
        except BaseException as error:
            # Another call may have suspended it meanwhile.
            if isinstance(error, RequestFailed | SessionRefused) or not self._store.is_suspended(record):
                self._store.record_suspended(record, 0)
                self._llm.tell(lambda s, now: s.session_holds.give_up_suspending(session_id))
            raise

    async def _send_down(self, record: SessionRecord) -> None:
        """Returns when all its blocks are below."""
        session_id = record.session_id
        if self._sync is None:
            raise SessionRefused("a session is suspended to disk, and there is none (setting disk_cache)")
        blocks = await self._llm.ask(lambda s, now: _suspend(s, record))
        for _ in range(int(_SUSPEND_TIMEOUT_S / _PAUSE_S)):
            if blocks.state is not SessionState.SUSPENDING or blocks.stuck:
                break
            await asyncio.sleep(_PAUSE_S)
            blocks = await self._llm.look(lambda inspector, now: inspector.session(session_id))
        if blocks.state is SessionState.SUSPENDING:
            why = "could not be written to disk" if blocks.stuck else "found no room there that is theirs"
            raise RequestFailed(
                f"session {session_id} could not be suspended: {blocks.num_blocks - blocks.below:,} of its "
                f"{blocks.num_blocks:,} blocks {why}; it stays in memory"
            )

    async def _sync_blocks(self, record: SessionRecord) -> int:
        """Returns when data and index are on the medium, with how many blocks; what is not is forgotten."""
        assert self._sync is not None
        slots = await self._llm.ask(lambda s, now: _slots_of_suspended(s, record))
        lost = await asyncio.wrap_future(self._sync(slots))
        self._found(record)
        if lost:
            await self._llm.ask(lambda s, now: s.transfers.lose(lost))
            raise RequestFailed(
                f"{len(lost):,} of {len(slots):,} blocks of session {record.session_id} could not be synced "
                "to disk; it is not suspended, and goes on from memory"
            )
        return len(slots)

    async def _sync_record(self, record: SessionRecord) -> None:
        """Returns when a restart finds it as a suspended one."""
        self._store.record_suspended(record, await self._llm.ask(lambda s, now: _num_suspended(s, record)))
        if not await self._is_synced(record):
            raise RequestFailed(
                f"the record of session {record.session_id} could not be written to disk; it is not "
                "suspended, and its blocks are there"
            )

    async def _is_synced(self, record: SessionRecord) -> bool:
        is_synced = await asyncio.wrap_future(self._store.sync(record.session_id))
        self._found(record)
        return is_synced

    def _found(self, record: SessionRecord) -> SessionRecord:
        """As it is now. Raises UnknownSession where it was deleted meanwhile."""
        return self._store.find(record.tenant, record.session_id)

    async def resume(self, tenant: str, session_id: str) -> SessionView:
        """Bring its blocks into the pool, computing what is damaged, and hold them until its next turn ends;
        returns when that is done.

        Raises PinRefused with the numbers where there is no room, SessionBusy, RequestFailed.
        """
        record = self._store.find(tenant, session_id)
        await self._know(record)
        is_held = await self._llm.ask(lambda s, now: _is_resumed(s, record))
        size = self._llm.block_size
        num_tokens = min(len(record.tokens), self._llm.context_length - 1) // size * size
        if num_tokens and not is_held:
            order = PinOrder(
                session_id,
                tuple(record.tokens[:num_tokens]),
                record.ttl_s,
                Strength.HOT,
                tenant,
                is_resumed_session=True,
            )
            await self._llm.control.pin(order)
        return await self.find(tenant, session_id)

    async def _know(self, record: SessionRecord) -> None:
        """The scheduler shall know the session; it may have begun afresh."""
        if not record.tokens:
            raise InvalidRequest(f"nothing was said in session {record.session_id}", param="session")

        def know_it(scheduler: Scheduler, now: float) -> None:
            found = self._found(record)
            know(scheduler, now, found, self._store.seconds_left(found))

        await self._llm.ask(know_it)

    async def _view(self, record: SessionRecord) -> SessionView:
        blocks = await self._llm.look(lambda inspector, now: inspector.session(record.session_id))
        return self._told(self._found(record), blocks)

    def _told(self, record: SessionRecord, blocks: SessionBlocks) -> SessionView:
        left_s = self._store.seconds_left(record)
        age = record.ttl_s - left_s + record.used - record.created
        num_tokens, num_turns = len(record.tokens), len(record.turn_ends)
        return SessionView(
            record.session_id, record.tenant, num_tokens, num_turns, max(0.0, age), left_s, blocks
        )


def restore(scheduler: Scheduler, store: SessionStore, now: float) -> None:
    """At start: every session and response that is remembered is a suspended one, with what is still below of
    it kept, as far as its tenant's bounds let it: of those that were suspended first, for that is what they
    were promised, then of those that were used last."""
    for record in sorted(store.records(), key=lambda record: (record.num_suspended == 0, -record.used)):
        know(scheduler, now, record, store.seconds_left(record))


def _suspend(scheduler: Scheduler, record: SessionRecord) -> SessionBlocks:
    scheduler.session_holds.suspend(record.tenant, record.session_id)
    return inspector_of(scheduler).session(record.session_id)


def _slots_of_suspended(scheduler: Scheduler, record: SessionRecord) -> list[tuple[int, bytes]]:
    """Where its blocks are. Raises UnknownSession, SessionBusy where a client began a turn or resumed it, or
    RequestFailed, unless it is suspended."""
    session = scheduler.session_table.find(record.tenant, record.session_id)
    session.check_still()
    if session.state is not SessionState.SUSPENDED:
        raise _used_meanwhile(record, session.state)
    return scheduler.session_holds.slots(record.session_id)


def _num_suspended(scheduler: Scheduler, record: SessionRecord) -> int:
    session = scheduler.session_table.get(record.session_id)
    return 0 if session is None else scheduler.session_holds.num_suspended(session)


def _is_resumed(scheduler: Scheduler, record: SessionRecord) -> bool:
    session = scheduler.session_table.get(record.session_id)
    return session is not None and session.resumed is not None and session.resumed.table is not None


def _end(scheduler: Scheduler, now: float, record: SessionRecord, num_blocks: int) -> SessionBlocks:
    """It was suspended. Raises RequestFailed where a client has used it or taken that back since."""
    blocks = inspector_of(scheduler).session(record.session_id)
    if blocks.state is SessionState.IDLE:
        raise _used_meanwhile(record, blocks.state)
    text = f"session {record.session_id} was suspended: {num_blocks:,} blocks"
    scheduler.events.record(Event(now, EventKind.SESSION_SUSPENDED, text, None, record.tenant, num_blocks))
    return blocks


def _used_meanwhile(record: SessionRecord, state: SessionState) -> RequestFailed:
    return RequestFailed(
        f"session {record.session_id} is {state.value}: it was used meanwhile, or gave way; suspend it again"
    )
