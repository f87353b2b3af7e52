"""What stored responses say, looked up once for a request: conversations that are gone on from, and items."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from octavo.conversations.responses import is_in_progress, no_previous
from octavo.errors import UnknownSession
from octavo.server.dialects.responses_input import unknown_item
from octavo.server.dialects.responses_items import response_of
from octavo.server.dialects.responses_run import parse_document
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge


@dataclass(frozen=True, slots=True)
class _ResponseItems:
    """All items of one response, its output included."""

    items: list[JsonObject]
    by_id: dict[str, JsonObject]


class Lookup:
    """Of one tenant, whose alone is found."""

    def __init__(self, edge: Edge, tenant: str) -> None:
        self._edge = edge
        self._tenant = tenant
        self._said: dict[str, _ResponseItems] = {}  # by response
        self._found: dict[str, JsonObject] = {}  # items, by id, that were referred to

    def conversation(self, response_id: str) -> list[JsonObject]:
        """All that was said in it and before it. Raises UnknownSession, or SessionBusy while it runs."""
        if self._edge.running.is_running(self._tenant, response_id):
            raise is_in_progress(response_id)
        try:
            return self._said_in(response_id).items
        except UnknownSession as error:
            raise no_previous(error) from None

    def item(self, given: str, where: str) -> JsonObject:
        """The stored item of that id, as a client would send it; the same object every time. Raises
        InvalidRequest."""
        if given not in self._found:
            self._found[given] = _as_sent(self._find(given, where))
        return self._found[given]

    def _find(self, given: str, where: str) -> JsonObject:
        response_id = response_of(given)
        if response_id is None:
            raise unknown_item(given, where)
        try:
            found = self._said_in(response_id).by_id.get(given)
        except UnknownSession:
            raise unknown_item(given, where) from None
        if found is None:
            raise unknown_item(given, where)
        return found

    def _said_in(self, response_id: str) -> _ResponseItems:
        if response_id not in self._said:
            stored = self._edge.model.sessions.responses.find(self._tenant, response_id)
            document = parse_document(stored)
            items = [*document.items, *document.output]
            self._said[response_id] = _ResponseItems(items, {str(item["id"]): item for item in items})
        return self._said[response_id]


def _as_sent(item: JsonObject) -> JsonObject:
    """Logprobs are told of an output. They are many times its text, and say nothing of an input."""
    if item["type"] != "message":
        return item
    parts = cast("list[JsonObject]", item["content"])
    return item | {"content": [{k: v for k, v in part.items() if k != "logprobs"} for part in parts]}
