"""What stored responses say, looked up once for a request: conversations that are gone on from, and items."""

from __future__ import annotations

from octavo.errors import SessionBusy, UnknownSession
from octavo.server.dialects.responses_input import unknown_item
from octavo.server.dialects.responses_items import response_of
from octavo.server.dialects.responses_run import parse_document
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge


class Lookup:
    """Of one tenant, whose alone is found."""

    def __init__(self, edge: Edge, tenant: str) -> None:
        self._edge = edge
        self._tenant = tenant
        self._items: dict[str, list[JsonObject]] = {}  # by response

    def conversation(self, response_id: str) -> list[JsonObject]:
        """All that was said in it and before it. Raises UnknownSession, or SessionBusy while it runs."""
        if self._edge.running.find(self._tenant, response_id) is not None:
            raise SessionBusy(
                f"response {response_id} is in progress; allowed: to go on from one that has ended, or was "
                "cancelled"
            )
        try:
            return self._items_of(response_id)
        except UnknownSession as error:
            code = "previous_response_not_found"
            raise UnknownSession(str(error), param="previous_response_id", code=code) from None

    def item(self, given: str, where: str) -> JsonObject:
        """The stored item of that id. Raises InvalidRequest."""
        response_id = response_of(given)
        if response_id is None:
            raise unknown_item(given, where)
        try:
            items = self._items_of(response_id)
        except UnknownSession:
            raise unknown_item(given, where) from None
        found = next((item for item in items if item["id"] == given), None)
        if found is None:
            raise unknown_item(given, where)
        return found

    def _items_of(self, response_id: str) -> list[JsonObject]:
        if response_id not in self._items:
            stored = self._edge.model.sessions.responses.find(self._tenant, response_id)
            document = parse_document(stored.document)
            self._items[response_id] = [*document.items, *document.output]
        return self._items[response_id]
