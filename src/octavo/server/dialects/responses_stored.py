"""Stored responses: retrieve, delete, cancel, and list the input items.

Only the tenant's own responses are found; any other id is a 404.
"""

from __future__ import annotations

from collections.abc import Sequence
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import UnknownSession, shown, unsupported, wrong_value
from octavo.server.dialects.responses_request import includes_of
from octavo.server.dialects.responses_run import Document, ResponseRun, parse_document
from octavo.server.errors import HttpRefusal, JsonObject, json_response
from octavo.server.generation import Edge
from octavo.server.tenant import tenant_of

ITEMS_MAX, ITEMS_DEFAULT = 100, 20  # of one page
_DIGITS_MAX = 9


async def show_response(edge: Edge, request: Request) -> Response:
    """GET /v1/responses/{id}: its current state."""
    _check_includes(request)
    for name, harmless in (("stream", ("false",)), ("starting_after", ())):
        given = request.query_params.get(name)
        if given is not None and given not in harmless:
            raise unsupported(
                f"{name} is not supported by this server: stream when it is created, and retrieve it whole",
                name,
            )
    return json_response(_document(edge, request).response)


async def delete_response(edge: Edge, request: Request) -> Response:
    """DELETE /v1/responses/{id}; one in progress is cancelled first."""
    tenant, response_id = _key(request)
    edge.model.sessions.responses.find(tenant, response_id)
    await edge.running.stop(tenant, response_id)
    await edge.model.sessions.responses.delete(tenant, response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def cancel_response(edge: Edge, request: Request) -> Response:
    """POST /v1/responses/{id}/cancel: end one in progress, and answer when it has ended."""
    running = edge.running.find(*_key(request))  # if it is not stored, it is only here
    is_stopped = await edge.running.stop(*_key(request))
    response = running.response if isinstance(running, ResponseRun) else _document(edge, request).response
    if not is_stopped or response["status"] != "cancelled":
        raise _cannot_cancel(response)
    return json_response(response)


async def list_input_items(edge: Edge, request: Request) -> Response:
    """GET /v1/responses/{id}/input_items: all items before its output, earlier responses' included."""
    _check_includes(request)
    order = request.query_params.get("order", "desc")
    if order not in ("asc", "desc"):
        raise wrong_value("order", order, "asc, desc")
    items = _document(edge, request).items
    items = items if order == "asc" else items[::-1]
    limit, first = _limit_of(request), _first_index(request, items)
    page = items[first : first + limit]
    return json_response(
        {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else "",
            "last_id": page[-1]["id"] if page else "",
            "has_more": first + limit < len(items),
        }
    )


def _key(request: Request) -> tuple[str, str]:
    """The tenant, and the response's id."""
    return tenant_of(request), request.path_params["response_id"]


def _document(edge: Edge, request: Request) -> Document:
    """The stored response. Raises UnknownSession."""
    tenant, response_id = _key(request)
    is_running = edge.running.is_running(tenant, response_id)  # first: it may end in between
    document = parse_document(edge.model.sessions.responses.find(tenant, response_id))
    if document.response["status"] != "in_progress" or is_running:
        return document
    why = "the server ended while this response was in progress"
    failed: JsonObject = {"status": "failed", "error": {"code": "server_error", "message": why}}
    return Document(document.response | failed, document.items)


def _cannot_cancel(response: JsonObject) -> HttpRefusal:
    return HttpRefusal(
        HTTPStatus.BAD_REQUEST,
        f"response {response['id']} is {response['status']}; allowed: to cancel one that is in progress",
        code="response_not_in_progress",
    )


def _check_includes(request: Request) -> None:
    """Raise InvalidRequest for unknown values of `include`; valid ones change nothing."""
    given = request.query_params.getlist("include") + request.query_params.getlist("include[]")
    includes_of(list(dict.fromkeys(given)), "include")


def _limit_of(request: Request) -> int:
    given = request.query_params.get("limit", str(ITEMS_DEFAULT))
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) <= _DIGITS_MAX else 0
    if not 1 <= limit <= ITEMS_MAX:
        raise wrong_value("limit", given, f"1 to {ITEMS_MAX}")
    return limit


def _first_index(request: Request, items: Sequence[JsonObject]) -> int:
    """The index at which the page begins. Raises UnknownSession if `after` names none of the items."""
    after = request.query_params.get("after")
    if after is None:
        return 0
    index = next((index for index, item in enumerate(items) if item["id"] == after), None)
    if index is None:
        raise UnknownSession(
            f"there is no item {shown(after)} in this response", param="after", code="item_not_found"
        )
    return index + 1
