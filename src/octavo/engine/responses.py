"""Stored responses: conversations that are gone on from, each in a record of its own. Asynchronous, on any
event loop.

    response A     tokens of A          document of A
       |   \\
       B    C      those of A, and what was said after it: both hold A's blocks under the same names

A response is one turn. It is created as a fork of the one before it, or from nothing; its turn is an ordinary
one; at its end its document is attached. So nothing of A changes when B goes on from it, and B needs nothing
of A when A is deleted or has given way. Documents are the server's: here they are bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Sequence

from octavo.engine.outputs import StoredResponse
from octavo.engine.port import CheckTenant, ForgetSession, ForkSession, RenewSession, ViewSessions
from octavo.engine.session_record import SessionRecord
from octavo.engine.session_store import NewResponse, SessionStore
from octavo.engine.session_turns import Turns
from octavo.engine.stream import Turn
from octavo.errors import (
    InvalidRequest,
    RequestFailed,
    RequestTooLarge,
    SessionBusy,
    SessionRefused,
    UnknownSession,
)
from octavo.params import NO_TIMEOUTS, SamplerParams, Timeouts
from octavo.types import DEFAULT_CHAT, RESPONSE_PREFIX, ChatMessage, ChatOptions

_ID_BYTES = 18


def new_response_id() -> str:
    """An id that cannot be guessed: "resp_" and 24 characters."""
    return RESPONSE_PREFIX + secrets.token_urlsafe(_ID_BYTES)


class PreviousBusy(SessionBusy, InvalidRequest):
    """The response to go on from has not ended. Unlike others that are busy, a field names it."""


def is_in_progress(response_id: str) -> PreviousBusy:
    """The refusal to go on from one whose turn runs."""
    return PreviousBusy(
        f"response {response_id} is in progress; allowed: to go on from one that has ended, or was cancelled",
        param="previous_response_id",
        code="session_busy",
    )


def no_previous(error: UnknownSession) -> UnknownSession:
    """The same, where it is the response that is to be gone on from."""
    return UnknownSession(str(error), param="previous_response_id", code="previous_response_not_found")


class Responses:
    """What `Sessions.responses` offers. Raises UnknownSession for those of other tenants too, and
    EngineStopped when the engine is gone."""

    def __init__(self, turns: Turns, ttl_s: float) -> None:
        self.unstored = UnstoredTurns(turns)
        self._turns = turns
        self._submitter = turns.submitter
        self._store = turns.store
        self._ttl_s = ttl_s

    async def create(
        self, tenant: str, response_id: str, document: bytes, previous_id: str | None = None
    ) -> None:
        """A response whose turn has not begun: what was said in the previous one was said in it too. Others
        of the tenant give way, if there must be room.

        Raises UnknownSession, SessionBusy while the previous one runs, RequestTooLarge, SessionRefused or
        UnknownTenant; then nothing was made.
        """
        response = NewResponse(response_id, document)
        await self._submitter.send(CheckTenant(tenant))
        if previous_id is not None:
            _find_ended(self._store, tenant, previous_id)
            self._store.use(previous_id)
        self._make_room(tenant, response, previous_id or "")
        source = None if previous_id is None else self._store.find_response(tenant, previous_id)
        if source is None or not source.tokens:
            self._store.create(tenant, self._ttl_s, response)
            return
        made = self._store.fork(source, None, self._ttl_s, response)
        try:
            await self._submitter.send(ForkSession(self._turns.stored(source), self._turns.stored(made)))
        except BaseException:
            self.drop(tenant, response_id)
            raise
        finally:
            self._turns.forget_if_gone(source)
            self._turns.forget_if_gone(made)
        self._submitter.post(RenewSession(source.session_id))

    def _make_room(self, tenant: str, response: NewResponse, spared: str = "") -> None:
        for gone in self._store.make_room(tenant, response, spared):
            self._forget(gone.tenant, gone.session_id)

    def drop(self, tenant: str, response_id: str) -> None:
        """Forget it, if it is there, and wait for nothing."""
        with contextlib.suppress(UnknownSession):
            self._store.find_response(tenant, response_id)
            self._store.delete(tenant, response_id)
        self._forget(tenant, response_id)

    def _forget(self, tenant: str, response_id: str) -> None:
        self._submitter.post(ForgetSession(tenant, response_id))

    def attach(self, tenant: str, response_id: str, document: bytes) -> bool:
        """Its document is now this. False: it was deleted meanwhile. Others of the tenant give way; where
        that is not enough, there is more than the bound, by what this turn has added."""
        response = NewResponse(response_id, document)
        if not self._store.attach(response):
            return False
        with contextlib.suppress(SessionRefused, RequestTooLarge):
            self._make_room(tenant, response)
        return True

    def find(self, tenant: str, response_id: str) -> StoredResponse:
        """One of them."""
        record = self._store.find_response(tenant, response_id)
        return StoredResponse(response_id, record.document)

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget it; what it held can be taken from now on, and those that went on from it go on. Returns
        when no crash can bring it back, or raises RequestFailed when the disk failed. Cancelling the call
        cancels no part of it that has begun."""
        record = self._store.find_response(tenant, response_id)
        gone = self._store.delete(tenant, response_id)
        self._forget(record.tenant, record.session_id)
        await self._submitter.send(ViewSessions(()))  # behind it
        if not await asyncio.shield(asyncio.wrap_future(gone)):
            raise RequestFailed(
                f"response {response_id} is deleted, but could not be taken off the disk: after a crash it "
                "may be there again; that is tried again with the next one deleted, and when the server ends"
            )

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
        """The turn of a response that was created. Raises as `Sessions.turn`."""
        record = self._store.find_response(tenant, session_id)
        return await self._turns.take(
            record, messages, params, priority=priority, timeouts=timeouts, options=options
        )


class UnstoredTurns:
    """Turns that go on from a stored response, of which nothing is kept."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

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
        """An ordinary request, whose prompt goes on from the tokens of the response `session_id`: it finds
        its blocks by their names. Raises UnknownSession, SessionBusy, or as `Submitter.submit`."""
        submitter, store = self._turns.submitter, self._turns.store
        record = _find_ended(store, tenant, session_id)
        store.use(session_id)
        submitter.post(RenewSession(session_id))
        composed = await self._turns.encoder.compose(record.tokens, messages, options, tenant=tenant)
        stream = await submitter.submit(
            composed.tokens, params, priority=priority, tenant=tenant, timeouts=timeouts
        )
        return Turn("", composed.tokens, composed.reused, composed.fallback, stream)


def _find_ended(store: SessionStore, tenant: str, response_id: str) -> SessionRecord:
    """The one that is to be gone on from. Raises UnknownSession, or SessionBusy while its turn runs."""
    try:
        record = store.find_response(tenant, response_id)
    except UnknownSession as error:
        raise no_previous(error) from None
    if store.is_active(record):
        raise is_in_progress(response_id)
    return record
