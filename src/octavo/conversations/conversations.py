"""What sessions and stored responses have in common: their records, their turns, and what the scheduler knows
of them.

    record     what was said, in the store: the truth
    session    the blocks that the scheduler keeps of it, under their names

A session's first turn makes it known to the scheduler; `make_known` and `fork` do so before a turn. `attach`
makes all records known to a scheduler that is new, at start and after a broken step. All other commands name
them by their ids. After each that makes one known, a record that was deleted meanwhile is forgotten again.
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
    """Make all records known to the engine's scheduler, and to each that will follow it."""
    engine.restore_sessions = partial(restore, engine, store)
    engine.restore_sessions()


def restore(engine: Engine, store: ConversationStore) -> None:
    """Make all records known to a scheduler that is new, on the thread that turns the engine. Each is a
    suspended session, with what is still in an offload tier of it kept, as far as its tenant's bounds let it:
    of those that were suspended first, for that is what they were promised, then of those that were used
    last."""
    for record in sorted(store.records(), key=lambda record: (record.num_suspended == 0, -record.used)):
        # A turn runs of one whose time has passed: it gets its ttl anew when that ends.
        left_s = store.seconds_left(record) or record.ttl_s
        engine.apply(RestoreSession(stored_session(record, left_s)))


@dataclass(frozen=True, slots=True)
class Conversations:
    """Makes, forks and forgets them, and takes their turns."""

    submitter: Submitter
    encoder: Encoder
    store: ConversationStore

    def make_known(self, record: Record) -> None:
        """To the scheduler, if it is not: what is asked of it next finds it."""
        self.submitter.post(RestoreSession(self._stored(record)))
        self._forget_if_gone(record)

    async def fork(self, source: Record, made: Record) -> int:
        """Make a record that was forked from that one known; returns how many blocks of it are suspended."""
        try:
            return await self.submitter.send(ForkSession(source.session_id, self._stored(made)))
        finally:
            self._forget_if_gone(made)

    def forget(self, record: Record) -> None:
        """It is no more in the store: the scheduler shall keep nothing of it."""
        self.submitter.post(ForgetSession(record.tenant, record.session_id))

    def unmake(self, record: Record) -> None:
        """Forget a record, if it is there, and wait for nothing."""
        with contextlib.suppress(UnknownSession):
            self.store.delete(record)
        self.forget(record)

    async def delete(self, record: Record, what: str) -> None:
        """Forget a record that is there; what it held and kept can be taken from now on, and a turn that runs
        goes on alone. Returns when no crash can bring it back, or raises RequestFailed when the disk failed.
        Cancelling the call cancels no part of it that has begun. `what`: "session" or "response"."""
        gone: Future[bool] = self.store.delete(record)
        self.forget(record)
        await self.submitter.send(ViewSessions(()))  # behind it
        if not await asyncio.shield(asyncio.wrap_future(gone)):
            raise RequestFailed(
                f"{what} {record.session_id} is deleted, but could not be taken off the disk: after a crash "
                "it may be there again; that is tried again with the next one deleted, and when the server "
                "ends"
            )

    async def turn(
        self, record: Record, request: Request, messages: Sequence[ChatMessage], options: ChatOptions
    ) -> Turn:
        """The next turn of that record: the request, whose prompt is composed of what was said before and the
        messages. Raises SessionBusy, UnknownSession where it is no more, or as `Submitter.submit`; then
        nothing was queued."""
        store, session_id, host = self.store, record.session_id, self.submitter.host
        composed = await self.encoder.compose(record.tokens, messages, options, tenant=record.tenant)
        # Held until the request is queued, so that the submitter need not wait for it.
        compiled = await self.submitter.compilers.compiled(request.params, record.tenant)
        turn = secrets.token_hex(8)

        def say(said: Sequence[int], num_shared: int) -> None:
            is_kept, is_new = store.say(session_id, said, num_shared), host.num_recoveries != num_recoveries
            if is_kept and is_new:  # the new scheduler may have the record as it was before the turn
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
            if now.tokens:  # the scheduler's clock may have let it expire a moment earlier
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
        """A command that makes it known may have come behind the `ForgetSession` of its deletion."""
        if not self.store.has(record.session_id):
            self.forget(record)

    def _stored(self, record: Record) -> StoredSession:
        return stored_session(record, self.store.seconds_left(record))
