"""Stored responses: conversations that others continue, each in its own record. Asynchronous, on any event
loop.

    response A     tokens of A          document of A
       |   \\
       B    C      the tokens of A and later ones: both hold A's blocks under the same names

A response is one turn. It is created as a fork of the previous one, or empty. Its turn is an ordinary one. At
the end its document is attached. So A does not change when B continues it, and B needs nothing of A after A
is deleted or evicted. Documents belong to the server: here they are bytes.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Sequence
from dataclasses import replace

from octavo.conversations.conversations import Conversations
from octavo.conversations.record import ConversationKind, Record
from octavo.conversations.store import ConversationStore, NewResponse
from octavo.conversations.turns import Turn
from octavo.engine.port import CheckTenant, RenewSession
from octavo.errors import InvalidRequest, RequestTooLarge, SessionBusy, SessionRefused, UnknownSession
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions, Request

RESPONSE_PREFIX = "resp_"
_ID_BYTES = 18


def new_response_id() -> str:
    """An id that cannot be guessed: "resp_" and 24 characters."""
    return RESPONSE_PREFIX + secrets.token_urlsafe(_ID_BYTES)


class PreviousBusy(SessionBusy, InvalidRequest):
    """The response to continue has not ended. Unlike other busy sessions, a request field names it."""


def is_in_progress(response_id: str) -> PreviousBusy:
    """The refusal to continue a response whose turn runs."""
    return PreviousBusy(
        f"response {response_id} is in progress; allowed: to go on from one that has ended, or was cancelled",
        param="previous_response_id",
        code="session_busy",
    )


def no_previous(error: UnknownSession) -> UnknownSession:
    """The error for an unknown response to continue."""
    return UnknownSession(str(error), param="previous_response_id", code="previous_response_not_found")


class Responses:
    """The stored responses of `Sessions.responses`. Raises UnknownSession also for those of other tenants,
    and EngineStopped when the engine is gone."""

    def __init__(self, conversations: Conversations, ttl_s: float) -> None:
        self.unstored = UnstoredTurns(conversations)
        self._conversations = conversations
        self._submitter = conversations.submitter
        self._store = conversations.store
        self._ttl_s = ttl_s

    async def create(
        self, tenant: str, response_id: str, document: bytes, previous_id: str | None = None
    ) -> None:
        """Create a response whose turn has not begun, with the tokens of the previous one. Older responses of
        the tenant are deleted if there is no room.

        Raises UnknownSession, SessionBusy while the previous one runs, RequestTooLarge, SessionRefused or
        UnknownTenant, and then creates nothing.
        """
        response = NewResponse(response_id, document)
        await self._submitter.send(CheckTenant(tenant))
        source = None
        if previous_id is not None:
            previous = _find_ended(self._store, tenant, previous_id)
            self._store.use(previous_id)
            source = previous if previous.tokens else None
        self._make_room(tenant, response, previous_id or "")
        made = (
            self._store.create(tenant, self._ttl_s, response)
            if source is None
            else self._store.fork(source, None, self._ttl_s, response)
        )
        try:
            if source is not None:
                await self._conversations.fork(source, made)
                self._submitter.post(RenewSession(source.session_id))
            else:
                self._conversations.make_known(made)
        except BaseException:
            self._conversations.unmake(made)
            raise

    def _make_room(self, tenant: str, response: NewResponse, spared: str = "") -> None:
        for gone in self._store.make_room(tenant, response, spared):
            self._conversations.forget(gone)

    def drop(self, tenant: str, response_id: str) -> None:
        """Forget it, if it exists, without waiting."""
        with contextlib.suppress(UnknownSession):
            self._conversations.unmake(self._store.find(tenant, response_id, ConversationKind.RESPONSE))

    def attach(self, tenant: str, response_id: str, document: bytes) -> bool:
        """Set its document. Returns False if it was deleted meanwhile. Older responses of the tenant are
        deleted; if that is not enough, the bound is exceeded by what this turn has added."""
        response = NewResponse(response_id, document)
        if not self._store.attach(response):
            return False
        with contextlib.suppress(SessionRefused, RequestTooLarge):
            self._make_room(tenant, response)
        return True

    def find(self, tenant: str, response_id: str) -> bytes:
        """The document of a response."""
        return self._store.find(tenant, response_id, ConversationKind.RESPONSE).document

    async def delete(self, tenant: str, response_id: str) -> None:
        """Forget it: its blocks are free, and its continuations are unaffected. Returns when no crash can
        restore it, or raises RequestFailed when the disk failed. Cancelling the call cancels nothing that has
        begun."""
        record = self._store.find(tenant, response_id, ConversationKind.RESPONSE)
        await self._conversations.delete(record, "response")

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """The turn of the response that was created as the request's session. Raises as `Sessions.turn`."""
        record = self._store.find(request.tenant, request.session, ConversationKind.RESPONSE)
        return await self._conversations.turn(record, request, messages, options)


class UnstoredTurns:
    """Turns that continue a stored response and are not stored."""

    def __init__(self, conversations: Conversations) -> None:
        self._conversations = conversations

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """An ordinary request whose prompt continues the tokens of the response named as its session, and
        finds the response's blocks by their names. Raises UnknownSession, SessionBusy, or as
        `Submitter.submit`."""
        submitter, store = self._conversations.submitter, self._conversations.store
        encoder, tenant = self._conversations.encoder, request.tenant
        record = _find_ended(store, tenant, request.session)
        store.use(request.session)
        submitter.post(RenewSession(request.session))
        composed = await encoder.compose(record.tokens, messages, options, tenant=tenant)
        stream = await submitter.submit(replace(request, prompt=composed.tokens, session=""))
        return Turn("", composed.tokens, composed.reused, composed.fallback, stream)


def _find_ended(store: ConversationStore, tenant: str, response_id: str) -> Record:
    """The response to continue. Raises UnknownSession, or SessionBusy while its turn runs."""
    try:
        record = store.find(tenant, response_id, ConversationKind.RESPONSE)
    except UnknownSession as error:
        raise no_previous(error) from None
    if store.is_active(record):
        raise is_in_progress(response_id)
    return record
