"""A turn of a session, or of a stored response, from the record on: composed, queued, recorded.

The store knows what was said, the scheduler which blocks are kept of it. A command carries a record as it was
when the command was sent, and may make the session known to a scheduler that began again; so `forget_if_gone`
follows each such command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.engine.encoder import Encoder
from octavo.engine.port import ForgetSession, StoredSession
from octavo.engine.session_record import SessionRecord
from octavo.engine.session_store import SessionStore
from octavo.engine.stream import Turn
from octavo.engine.submitter import Submitter
from octavo.engine.turns import TurnRecorder
from octavo.params import SamplerParams, Timeouts
from octavo.types import ChatMessage, ChatOptions


def stored(record: SessionRecord, left_s: float) -> StoredSession:
    """The record, for the scheduler; it expires in `left_s` seconds. O(tokens)."""
    return StoredSession(
        record.session_id,
        record.tenant,
        record.tokens.tobytes(),
        record.ttl_s,
        left_s,
        record.num_shared,
        record.num_suspended,
    )


@dataclass(frozen=True, slots=True)
class Turns:
    """Takes the turns of conversations that are kept."""

    submitter: Submitter
    encoder: Encoder
    store: SessionStore

    def stored(self, record: SessionRecord) -> StoredSession:
        """The record, for the scheduler. O(tokens)."""
        return stored(record, self.store.seconds_left(record))

    def forget_if_gone(self, record: SessionRecord) -> None:
        """Where the record was deleted before the command came that carried it, the scheduler must forget the
        session, too."""
        if not self.store.has(record.session_id):
            self.submitter.post(ForgetSession(record.tenant, record.session_id))

    async def take(
        self,
        record: SessionRecord,
        messages: Sequence[ChatMessage],
        params: SamplerParams,
        *,
        priority: int,
        timeouts: Timeouts,
        options: ChatOptions,
    ) -> Turn:
        """The next turn of that record. Raises SessionBusy, UnknownSession where it is no more, or as
        `Submitter.submit`; then nothing was queued."""
        store, tenant, session_id = self.store, record.tenant, record.session_id
        composed = await self.encoder.compose(record.tokens, messages, options, tenant=tenant)
        compiled = await self.submitter.compilers.compiled(params, tenant)
        turn = object()

        def say(said: Sequence[int], num_shared: int) -> None:
            if not store.say(session_id, said, num_shared):
                self.submitter.post(ForgetSession(tenant, session_id))

        recorder = TurnRecorder(composed.tokens, self.encoder.token_bytes, say, lambda: store.end_turn(turn))
        found = store.begin_turn(record, turn)
        try:
            stream = await self.submitter.submit_turn(
                self.stored(found), composed, params, recorder, compiled, priority=priority, timeouts=timeouts
            )
            store.use(session_id)
        except BaseException:
            store.withdraw_turn(turn)
            raise
        finally:
            self.forget_if_gone(record)
        return Turn(session_id, composed.tokens, composed.reused, composed.fallback, stream)
