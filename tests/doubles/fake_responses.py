"""Stored responses for tests of the HTTP edge, as `tests.doubles.fake_sessions.FakeSessions` has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from octavo.conversations.turns import Turn
from octavo.engine.outputs import ChatMessage
from octavo.errors import UnknownSession
from octavo.types import DEFAULT_CHAT, ChatOptions, Request

if TYPE_CHECKING:
    from tests.doubles.fake_model import FakeModel


@dataclass(frozen=True)
class KeptResponse:
    """What was created, with its newest document."""

    response_id: str
    document: bytes


class FakeResponses:
    """Responses in a dictionary; a turn's prompt counts as said at once."""

    def __init__(self, model: FakeModel) -> None:
        self.dropped: list[str] = []
        self.unstored = FakeUnstored(self)
        self._model = model
        self._stored: dict[str, KeptResponse] = {}
        self._tenants: dict[str, str] = {}
        self._said: dict[str, tuple[int, ...]] = {}

    async def create(
        self, tenant: str, response_id: str, document: bytes, previous_id: str | None = None
    ) -> None:
        """Raises UnknownSession."""
        said = () if previous_id is None else self.said(tenant, previous_id)
        self._stored[response_id] = KeptResponse(response_id, document)
        self._tenants[response_id], self._said[response_id] = tenant, said

    def drop(self, tenant: str, response_id: str) -> None:
        """Recorded."""
        self.dropped.append(response_id)
        self._stored.pop(response_id, None)

    def attach(self, tenant: str, response_id: str, document: bytes) -> bool:
        """At once."""
        if response_id not in self._stored:
            return False
        self._stored[response_id] = replace(self._stored[response_id], document=document)
        return True

    def find(self, tenant: str, response_id: str) -> bytes:
        """Raises UnknownSession."""
        if response_id not in self._stored or self._tenants[response_id] != tenant:
            raise UnknownSession(
                f"there is no response {response_id!r}", param="response_id", code="response_not_found"
            )
        return self._stored[response_id].document

    def said(self, tenant: str, response_id: str) -> tuple[int, ...]:
        """What was said in it. Raises UnknownSession."""
        self.find(tenant, response_id)
        return self._said[response_id]

    def all(self) -> list[KeptResponse]:
        """Of all tenants."""
        return list(self._stored.values())

    async def delete(self, tenant: str, response_id: str) -> None:
        """Gone."""
        self.find(tenant, response_id)
        del self._stored[response_id]

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """A stream of the answer, to all messages."""
        said = self.said(request.tenant, request.session)
        turn = await self.go_on(request, said, messages, options)
        self._said[request.session] = turn.prompt
        return turn

    async def go_on(
        self, request: Request, said: tuple[int, ...], messages: Sequence[ChatMessage], options: ChatOptions
    ) -> Turn:
        """From what was said."""
        prompt = tuple(await self._model.encode_chat(messages, options, tenant=request.tenant))
        extends = prompt[: len(said)] == said
        stream = await self._model.submit(replace(request, prompt=prompt))
        fallback = "" if extends else "the messages do not extend what was said"
        return Turn(request.session, prompt, len(said) if extends else 0, fallback, stream)  # type: ignore[arg-type]


class FakeUnstored:
    """Turns of which nothing is kept."""

    def __init__(self, responses: FakeResponses) -> None:
        self._responses = responses

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """From what was said in the response of that id."""
        said = self._responses.said(request.tenant, request.session)
        return await self._responses.go_on(replace(request, session=""), said, messages, options)
