"""Chat sessions for clients: create, fork, view, suspend, resume, delete, and run one turn at a time.
Asynchronous, on any event loop.

    suspend    the scheduler offloads every block   ->  data, then index, are synced  ->  the session's
               record is synced  ->  the answer

So after any crash, a record that says suspended was written after all its blocks. A restart finds the
sessions in the store and the blocks by their names; missing blocks are computed again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from octavo.config import SESSION_TTL_S
from octavo.conversations.conversations import Conversations
from octavo.conversations.record import Record
from octavo.conversations.responses import Responses
from octavo.conversations.store import ConversationStore
from octavo.conversations.turns import Turn
from octavo.engine.control import Control
from octavo.engine.encoder import Encoder
from octavo.engine.outputs import SessionView
from octavo.engine.port import (
    AbandonSuspension,
    CheckTenant,
    ConfirmSuspended,
    FindSlots,
    LoseBlocks,
    SuspendSession,
    ViewSessions,
)
from octavo.engine.submitter import Submitter
from octavo.errors import InvalidRequest, RequestFailed, SessionRefused, UnknownSession
from octavo.inspect.views import SessionBlocks
from octavo.retention.client_pins import PinRequest
from octavo.retention.pins import Strength
from octavo.retention.session_table import SessionState
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions, Request

NEW = "new"  # in place of an id
_PAUSE_S = 0.005
_VIEWED_AT_ONCE = 32  # steps wait while blocks are counted
_SUSPEND_TIMEOUT_S = 300.0  # for offloading the blocks; a slower disk is broken

# From slots and names in the tier to the names that are not on the medium.
SyncBlocks = Callable[[Sequence[tuple[int, bytes]]], "Future[list[bytes]]"]


@dataclass(frozen=True, slots=True)
class SessionSupport:
    """Parts that `start_engine` passes to sessions. `sync` is None without a disk cache."""

    store: ConversationStore = field(default_factory=ConversationStore)
    ttl_s: float = SESSION_TTL_S  # unless the client sets one
    sync: SyncBlocks | None = None


class Sessions:
    """The chat sessions of `EngineClient.sessions`. Raises UnknownSession also for those of other tenants,
    and EngineStopped when the engine is gone."""

    def __init__(
        self, submitter: Submitter, encoder: Encoder, control: Control, support: SessionSupport
    ) -> None:
        self._conversations = Conversations(submitter, encoder, support.store)
        self.responses = Responses(self._conversations, support.ttl_s)
        self._submitter = submitter
        self._control = control
        self._context_length = encoder.context_length
        self._store = support.store
        self._ttl_s = support.ttl_s
        self._sync = support.sync

    async def create(self, tenant: str = "", ttl_s: float | None = None) -> SessionView:
        """An empty session. Raises InvalidRequest, SessionRefused or UnknownTenant, and then creates
        nothing."""
        await self._submitter.send(CheckTenant(tenant))
        record = self._store.create(tenant, self._ttl_s if ttl_s is None else ttl_s)
        try:
            return await self._view(record)
        except BaseException:
            self._conversations.unmake(record)
            raise

    async def fork(
        self, tenant: str, session_id: str, turn: int | None = None, ttl_s: float | None = None
    ) -> SessionView:
        """A new session with the first `turn` turns of this one, or all that have ended, and the same ttl
        unless one is given. It holds the same blocks. This one does not change, and its turn may run. The
        fork of a suspended session is suspended too, and on the medium when this returns.

        Raises as `create`, UnknownSession, or RequestFailed (disk failure), and then creates nothing.
        """
        source = self._store.find(tenant, session_id)
        record = self._store.fork(source, turn, ttl_s)
        try:
            self._store.record_suspended(record, await self._conversations.fork(source, record))
            if self._store.is_suspended(record) and not await self._is_synced(record):
                raise RequestFailed(
                    f"session {session_id} could not be forked: it is suspended, and the record of its fork "
                    "could not be written to disk; resume it, then fork it"
                )
            return await self._view(record)
        except BaseException:
            self._conversations.unmake(record)
            raise

    def count(self, tenant: str | None = "") -> int:
        """The length of `all`."""
        return self._store.count(tenant)

    async def all(self, tenant: str | None = "", limit: int | None = None) -> list[SessionView]:
        """The tenant's sessions, or all tenants', oldest first; or up to `limit`: those with a running turn,
        then the most recently used. The numbers are of several moments, with steps in between."""
        store, views = self._store, list[SessionView]()
        records = store.all(tenant) if limit is None else store.latest(tenant, limit)
        for first in range(0, len(records), _VIEWED_AT_ONCE):
            views += await self._view_each(records[first : first + _VIEWED_AT_ONCE])
        return views

    async def _view_each(self, records: Sequence[Record]) -> list[SessionView]:
        blocks = await self._submitter.send(ViewSessions(tuple(record.session_id for record in records)))
        views = []
        for record, one in zip(records, blocks, strict=True):
            with contextlib.suppress(UnknownSession):  # deleted meanwhile
                views.append(self._to_view(self._found(record), one))
        return views

    async def find(self, tenant: str, session_id: str) -> SessionView:
        """The tenant's session."""
        return await self._view(self._store.find(tenant, session_id))

    def tokens(self, tenant: str, session_id: str) -> tuple[int, ...]:
        """All tokens of a session."""
        return tuple(self._store.find(tenant, session_id).tokens)

    async def delete(self, tenant: str, session_id: str) -> SessionView:
        """Forget it: its blocks are free, and a running turn continues as a plain request. Returns when no
        crash can restore it, or raises RequestFailed when the disk failed. Cancelling the call cancels
        nothing that has begun."""
        view = await self.find(tenant, session_id)
        await self._conversations.delete(self._store.find(tenant, session_id), "session")
        return view

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """The next turn of the request's session, or the first one of a new session (`NEW`), with these
        messages.

        Raises UnknownSession, SessionBusy, or as `Submitter.submit`, and then queues and creates nothing.
        """
        is_new, tenant = request.session == NEW, request.tenant
        record = (
            self._store.create(tenant, self._ttl_s) if is_new else self._store.find(tenant, request.session)
        )
        try:
            return await self._conversations.turn(record, request, messages, options)
        except BaseException:
            if is_new:
                self._conversations.unmake(record)
            raise

    async def suspend(self, tenant: str, session_id: str) -> SessionView:
        """Move all its blocks to disk; returns when they, their index and the session are on the medium.

        Raises SessionRefused (no disk cache, lost blocks, or missing files), SessionBusy, PinRefused, or
        RequestFailed when the disk failed. Then it is not suspended, unless it was before and only its client
        has disconnected, or it is busy.
        """
        record = self._non_empty(tenant, session_id)
        try:
            await self._offload(record)
            num_blocks = await self._sync_blocks(record)
            await self._sync_record(record)
            confirm = ConfirmSuspended(tenant, session_id, num_blocks)
            return self._to_view(record, await self._submitter.send(confirm))
        except BaseException as error:
            # Another call may have suspended it meanwhile.
            if isinstance(error, RequestFailed | SessionRefused) or not self._store.is_suspended(record):
                self._store.record_suspended(record, 0)
                self._submitter.post(AbandonSuspension(session_id))
            raise

    async def _offload(self, record: Record) -> None:
        """Returns when all its blocks are in the offload tier."""
        session_id = record.session_id
        if self._sync is None:
            raise SessionRefused("a session is suspended to disk, and there is none (setting disk_cache)")
        blocks = await self._submitter.send(SuspendSession(record.tenant, session_id))
        for _ in range(int(_SUSPEND_TIMEOUT_S / _PAUSE_S)):
            if blocks.state is not SessionState.SUSPENDING or blocks.stuck:
                break
            await asyncio.sleep(_PAUSE_S)
            blocks = await self._blocks_of(session_id)
        if blocks.state is SessionState.SUSPENDING:
            why = "could not be written to disk" if blocks.stuck else "found no room there that is theirs"
            missing = blocks.num_blocks - blocks.offloaded
            raise RequestFailed(
                f"session {session_id} could not be suspended: {missing:,} of its "
                f"{blocks.num_blocks:,} blocks {why}; it stays in memory"
            )

    async def _sync_blocks(self, record: Record) -> int:
        """Returns the number of blocks when data and index are on the medium; forgets blocks that are not."""
        assert self._sync is not None
        slots = await self._submitter.send(FindSlots(record.tenant, record.session_id))
        lost = await asyncio.wrap_future(self._sync(slots))
        self._found(record)
        if lost:
            await self._submitter.send(LoseBlocks(lost))
            raise RequestFailed(
                f"{len(lost):,} of {len(slots):,} blocks of session {record.session_id} could not be synced "
                "to disk; it is not suspended, and goes on from memory"
            )
        return len(slots)

    async def _sync_record(self, record: Record) -> None:
        """Returns when a restart would find it suspended."""
        blocks = await self._blocks_of(record.session_id)
        self._store.record_suspended(record, blocks.num_suspended)
        if not await self._is_synced(record):
            raise RequestFailed(
                f"the record of session {record.session_id} could not be written to disk; it is not "
                "suspended, and its blocks are there"
            )

    async def _is_synced(self, record: Record) -> bool:
        is_synced = await asyncio.wrap_future(self._store.sync(record.session_id))
        self._found(record)
        return is_synced

    def _found(self, record: Record) -> Record:
        """A session's current state. Raises UnknownSession if it was deleted meanwhile."""
        return self._store.find(record.tenant, record.session_id)

    async def resume(self, tenant: str, session_id: str) -> SessionView:
        """Bring its blocks into the pool, recomputing damaged ones, and hold them until its next turn ends;
        returns when that is done.

        Raises PinRefused with the numbers if there is no room, SessionBusy, RequestFailed.
        """
        record = self._non_empty(tenant, session_id)
        blocks, size = await self._blocks_of(session_id), self._submitter.host.block_size
        num_tokens = min(len(record.tokens), self._context_length - 1) // size * size
        if num_tokens and not blocks.is_resumed:
            order = PinRequest(
                session_id,
                tuple(record.tokens[:num_tokens]),
                record.ttl_s,
                Strength.HOT,
                tenant,
                is_resumed_session=True,
            )
            await self._control.pin(order)
        return await self.find(tenant, session_id)

    def _non_empty(self, tenant: str, session_id: str) -> Record:
        """The non-empty session, registered with the scheduler, whose clock may expire it slightly earlier.
        Raises UnknownSession or InvalidRequest."""
        record = self._store.find(tenant, session_id)
        if not record.tokens:
            raise InvalidRequest(f"nothing was said in session {session_id}", param="session")
        self._conversations.make_known(record)
        return record

    async def _view(self, record: Record) -> SessionView:
        blocks = await self._blocks_of(record.session_id)
        return self._to_view(self._found(record), blocks)

    async def _blocks_of(self, session_id: str) -> SessionBlocks:
        [blocks] = await self._submitter.send(ViewSessions((session_id,)))
        return blocks

    def _to_view(self, record: Record, blocks: SessionBlocks) -> SessionView:
        left_s = self._store.seconds_left(record)
        age = record.ttl_s - left_s + record.used - record.created
        num_tokens, num_turns = len(record.tokens), len(record.turn_ends)
        return SessionView(
            record.session_id, record.tenant, num_tokens, num_turns, max(0.0, age), left_s, blocks
        )
