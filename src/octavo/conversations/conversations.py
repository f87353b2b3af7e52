"""The common part of sessions and stored responses: their records, their turns, and their scheduler sessions.

    record     the text as tokens, in the store: the truth
    session    the blocks that the scheduler keeps of it, under their names

The first turn of a session registers it with the scheduler; `make_known` and `fork` do so before a turn.
`attach` registers all records with a new scheduler, at start and after a broken step. All other commands
refer to them by id. After each registration, a record that was deleted meanwhile is forgotten again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from octavo.conversations.record import ConversationKind, Record
from octavo.conversations.store import ConversationStore
from octavo.conversations.turns import Turn, TurnRecorder
from octavo.engine.core import Engine
from octavo.engine.encoder import Encoder
from octavo.engine.port import ForgetSession, ForkSession, RestoreSession, StopTurn, ViewSessions
from octavo.engine.submitter import Submitter
from octavo.errors import RequestFailed, UnknownSession
from octavo.retention.session_table import StoredSession
from octavo.types import ChatMessage, ChatOptions, Request


def stored_session(record: Record, left_s: float) -> StoredSession:
    """The record, for the scheduler; it expires in `left_s` seconds. O(tokens)."""
    return StoredSession(
        record.session_id,
        record.tenant,
        record.tokens.tobytes(),
        record.ttl_s,
        left_s,
        record.num_shared,
        record.num_suspended,
        record.kind is ConversationKind.RESPONSE,
    )


def attach(engine: Engine, store: ConversationStore) -> None:
    """Register all records with the engine's scheduler, and with each later one."""
    engine.restore_sessions = partial(restore, engine, store)
    engine.restore_sessions()


def restore(engine: Engine, store: ConversationStore) -> None:
    """Register all records with a new scheduler, on the engine's thread. Each becomes a suspended session
    that keeps its blocks in the offload tiers, within its tenant's bounds: first those that clients
    suspended, because that was promised, then the most recently used ones."""
    for record in sorted(store.records(), key=lambda record: (record.num_suspended == 0, -record.used)):
        # A turn of an expired record runs: its ttl restarts when the turn ends.
        left_s = store.seconds_left(record) or record.ttl_s
        engine.apply(RestoreSession(stored_session(record, left_s)))


@dataclass(frozen=True, slots=True)
class Conversations:
    """Creates, forks and forgets conversations, and runs their turns."""

    submitter: Submitter
    encoder: Encoder
    store: ConversationStore

    def make_known(self, record: Record) -> None:
        """Register it with the scheduler, so that later commands find it."""
        self.submitter.post(RestoreSession(self._stored(record)))
        self._forget_if_gone(record)

    async def fork(self, source: Record, made: Record) -> int:
        """Register a record that was forked from `source`; returns the number of its suspended blocks."""
        try:
            return await self.submitter.send(ForkSession(source.session_id, self._stored(made)))
        finally:
            self._forget_if_gone(made)

    def forget(self, record: Record) -> None:
        """The record is deleted from the store: delete its scheduler session too."""
        self.submitter.post(ForgetSession(record.tenant, record.session_id))

    def unmake(self, record: Record) -> None:
        """Forget a record, if it exists, without waiting."""
        with contextlib.suppress(UnknownSession):
            self.store.delete(record)
        self.forget(record)

    async def delete(self, record: Record, what: str) -> None:
        """Forget an existing record: its blocks are free, and a running turn continues as a plain request.
        Returns when no crash can restore it, or raises RequestFailed when the disk failed. Cancelling the
        call cancels nothing that has begun. `what`: "session" or "response"."""
        gone: Future[bool] = self.store.delete(record)
        self.forget(record)
        await self.submitter.send(ViewSessions(()))  # after the deletion
        if not await asyncio.shield(asyncio.wrap_future(gone)):
            raise RequestFailed(
                f"{what} {record.session_id} is deleted, but could not be taken off the disk: after a crash "
                "it may be there again; that is tried again with the next one deleted, and when the server "
                "ends"
            )

    async def turn(
        self, record: Record, request: Request, messages: Sequence[ChatMessage], options: ChatOptions
    ) -> Turn:
        """The next turn of that record: the request, with a prompt composed of the earlier tokens and the
        messages. Raises SessionBusy, UnknownSession if it was deleted, or as `Submitter.submit`; then nothing
        was queued."""
        store, session_id, host = self.store, record.session_id, self.submitter.host
        composed = await self.encoder.compose(record.tokens, messages, options, tenant=record.tenant)
        # Held until the request is queued, so that the submitter need not wait for it.
        compiled = await self.submitter.compilers.compiled(request.params, record.tenant)
        turn = secrets.token_hex(8)

        def say(said: Sequence[int], num_shared: int) -> None:
            is_kept, is_new = store.say(session_id, said, num_shared), host.num_recoveries != num_recoveries
            if is_kept and is_new:  # the new scheduler may have the record from before the turn
                self.forget(record)
                with contextlib.suppress(UnknownSession):  # deleted meanwhile
                    self.make_known(store.find_again(record))

        def stop(request_id: int, num_tokens: int) -> None:
            self.submitter.post(StopTurn(session_id, request_id, num_tokens))

        def end() -> None:
            store.end_turn(turn)
            self._forget_if_gone(record)

        recorder = TurnRecorder(composed.tokens, self.encoder.token_bytes, say, stop, end)
        now, num_recoveries = store.begin_turn(record, turn), host.num_recoveries
        try:
            if now.tokens:  # the scheduler's clock may have expired it slightly earlier
                self.make_known(now)
            request = replace(request, prompt=composed.tokens, session=session_id, session_ttl=now.ttl_s)
            stream = await self.submitter.submit(request, fallback=composed.fallback, follower=recorder)
            store.use(session_id)
        except BaseException:
            store.withdraw_turn(turn)
            raise
        finally:
            self._forget_if_gone(record)
        del compiled
        return Turn(session_id, composed.tokens, composed.reused, composed.fallback, stream)

    def _forget_if_gone(self, record: Record) -> None:
        """A session's registration may have come after the `ForgetSession` of its deletion."""
        if not self.store.has(record.session_id):
            self.forget(record)

    def _stored(self, record: Record) -> StoredSession:
        return stored_session(record, self.store.seconds_left(record))
