"""Sessions for tests of the HTTP edge, as `tests.doubles.fake_model.FakeModel` has them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msgspec.structs import replace as replace_struct
from tests.doubles.fake_responses import FakeResponses

from octavo.conversations.turns import Turn
from octavo.engine.outputs import (
    ChatMessage,
    SessionBlocks,
    SessionState,
    SessionView,
)
from octavo.errors import InvalidRequest, UnknownSession, require_range
from octavo.types import DEFAULT_CHAT, ChatOptions, Request

if TYPE_CHECKING:
    from tests.doubles.fake_model import FakeModel


class FakeSessions:
    """Sessions in a dictionary; a turn's answer counts as said at once."""

    def __init__(self, model: FakeModel) -> None:
        self.responses = FakeResponses(model)
        self._model = model
        self._views: dict[str, SessionView] = {}
        self._said: dict[str, list[tuple[int, ...]]] = {}  # after each turn

    async def create(self, tenant: str, ttl_s: float | None) -> SessionView:
        """s0, s1, ..."""
        session_id = f"s{len(self._views)}"
        blocks = SessionBlocks(num_blocks=3, held=2, bytes_per_block=1000, in_pool=2, offloaded=1)
        self._views[session_id] = SessionView(session_id, tenant, 0, 0, 0.0, ttl_s or 60.0, blocks)
        self._said[session_id] = []
        return self._views[session_id]

    def count(self, tenant: str | None) -> int:
        """The tenant's, or everybody's."""
        return sum(tenant in (None, view.tenant) for view in self._views.values())

    async def all(self, tenant: str | None, limit: int | None) -> list[SessionView]:
        """The same; the newest of them are those that were used last."""
        views = [view for view in self._views.values() if tenant in (None, view.tenant)]
        return views[-(len(views) if limit is None else limit) :]

    async def find(self, tenant: str, session_id: str) -> SessionView:
        """Raises UnknownSession."""
        view = self._views.get(session_id)
        if view is None or view.tenant != tenant:
            raise UnknownSession(f"there is no session {session_id!r}", param="session")
        return view

    def tokens(self, tenant: str, session_id: str) -> tuple[int, ...]:
        """What was said."""
        return (self._said[session_id] or [()])[-1]

    async def delete(self, tenant: str, session_id: str) -> SessionView:
        """Gone."""
        view = await self.find(tenant, session_id)
        del self._views[session_id]
        return view

    async def turn(
        self, request: Request, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT
    ) -> Turn:
        """A stream of the answer, to all messages."""
        is_new, tenant = request.session == "new", request.tenant
        view = await (self.create(tenant, None) if is_new else self.find(tenant, request.session))
        prompt = tuple(await self._model.encode_chat(messages, options, tenant=tenant))
        said = self.tokens(tenant, view.session_id)
        extends = prompt[: len(said)] == said
        stream = await self._model.submit(replace(request, prompt=prompt, tenant=""))
        self._say(view, [*self._said[view.session_id], prompt])
        fallback = "" if extends else "the messages do not extend what was said"
        return Turn(view.session_id, prompt, len(said) if extends else 0, fallback, stream)  # type: ignore[arg-type]

    async def fork(
        self, tenant: str, session_id: str, turn: int | None = None, ttl_s: float | None = None
    ) -> SessionView:
        """What was said until then. Raises UnknownSession or InvalidRequest."""
        source = await self.find(tenant, session_id)
        said = self._said[session_id]
        if not said:
            raise InvalidRequest(f"nothing was said in session {session_id}", param="session")
        require_range("turn", len(said) if turn is None else turn, 1, len(said), whole=True)
        made = await self.create(tenant, source.seconds_left if ttl_s is None else ttl_s)
        return self._say(made, said[:turn])

    def _say(self, view: SessionView, said: list[tuple[int, ...]]) -> SessionView:
        self._said[view.session_id] = said
        told = replace(view, num_tokens=len(said[-1]), num_turns=len(said))
        self._views[view.session_id] = told
        return told

    async def suspend(self, tenant: str, session_id: str) -> SessionView:
        """At once."""
        return self._in_state(await self.find(tenant, session_id), SessionState.SUSPENDED)

    async def resume(self, tenant: str, session_id: str) -> SessionView:
        """At once."""
        return self._in_state(await self.find(tenant, session_id), SessionState.IDLE)

    def _in_state(self, view: SessionView, state: SessionState) -> SessionView:
        self._views[view.session_id] = replace(view, blocks=replace_struct(view.blocks, state=state))
        return self._views[view.session_id]
