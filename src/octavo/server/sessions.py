"""/v1/sessions: chats of a tenant whose blocks are kept between their turns.

A turn is an ordinary POST /v1/chat/completions with `session` ("new", or an id) or the header
X-Octavo-Session. An id is looked up, and never becomes part of a file's path.

Operators see the sessions of all tenants, and name a tenant with ?tenant=. Without tenants the name is "";
sessions that tenants left on disk are then invisible, until they expire or the server has tenants again.
"""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import SessionView
from octavo.errors import InvalidRequest
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, json_response
from octavo.server.field_list import Body
from octavo.server.former_names import with_former_fields
from octavo.server.generation import SESSION_HEADER, Edge
from octavo.server.openai_schema import ChatBody
from octavo.server.tenant import own_salt, owner_of, tenant_of, visible_tenant

_LIMIT_MAX = 10_000
_LIMIT_DIGITS_MAX = 9


class SessionBody(Body, extra="forbid"):
    """POST /v1/sessions."""

    ttl: float | None = None


class ForkBody(SessionBody):
    """POST /v1/sessions/{id}/fork."""

    turn: int | None = None


def session_of(request: Request, body: ChatBody) -> str | None:
    """The session that a chat request names; None: it belongs to none. Raises InvalidRequest."""
    header = request.headers.get(SESSION_HEADER)
    if "" in (header, body.session):
        raise InvalidRequest(
            'session is ""; allowed: "new", the id of a session, or none of it', param="session"
        )
    if header and body.session and header != body.session:
        raise InvalidRequest(
            f"the field session and the header {SESSION_HEADER} name two sessions; allowed: one",
            param="session",
        )
    session = header if body.session is None else body.session
    if session == "":
        raise InvalidRequest(
            'the session is empty; allowed: "new", or the id of a session; or none of it', param="session"
        )
    if session and body.num_choices != 1:
        raise InvalidRequest(f"n is {body.num_choices}; allowed with a session: 1", param="n")
    if session and body.use_beam_search:
        raise InvalidRequest(
            "use_beam_search is true; allowed with a session: false", param="use_beam_search"
        )
    if session and own_salt(request, body):
        raise InvalidRequest(
            "cache_salt is given; allowed with a session: none (leave out one of the two)",
            param="cache_salt",
        )
    return session


async def create_session(edge: Edge, request: Request) -> Response:
    """POST /v1/sessions."""
    body = validate(SessionBody, await read_json(edge, request))
    view = await edge.model.sessions.create(tenant_of(request), body.ttl)
    return json_response(_to_json(view), status=HTTPStatus.CREATED)


async def list_sessions(edge: Edge, request: Request) -> Response:
    """GET /v1/sessions: the tenant's, or all for an operator; up to ?limit= of `total`."""
    tenant = tenant_of(request) if edge.roster is None else visible_tenant(request)
    views = await edge.model.sessions.all(tenant, _limit_of(request))
    total = edge.model.sessions.count(tenant)
    return json_response({"object": "list", "data": [_to_json(view) for view in views], "total": total})


async def show_session(edge: Edge, request: Request) -> Response:
    """GET /v1/sessions/{id}."""
    return json_response(_to_json(await edge.model.sessions.find(*_owner_and_id(request))))


async def delete_session(edge: Edge, request: Request) -> Response:
    """DELETE /v1/sessions/{id}."""
    return json_response(_to_json(await edge.model.sessions.delete(*_owner_and_id(request))))


async def fork_session(edge: Edge, request: Request) -> Response:
    """POST /v1/sessions/{id}/fork: a new session that continues from one of its turns."""
    body = validate(ForkBody, await read_json(edge, request))
    tenant, session_id = _owner_and_id(request)
    if tenant != tenant_of(request):
        edge.check_tenant(tenant)  # a removed tenant gets no new sessions
    view = await edge.model.sessions.fork(tenant, session_id, body.turn, body.ttl)
    row = _to_json(view) | {"forked_from": session_id, "turn": view.num_turns}
    return json_response(row, status=HTTPStatus.CREATED)


async def suspend_session(edge: Edge, request: Request) -> Response:
    """POST /v1/sessions/{id}/suspend: answers once data, index and session are on disk."""
    return json_response(_to_json(await edge.model.sessions.suspend(*_owner_and_id(request))))


async def resume_session(edge: Edge, request: Request) -> Response:
    """POST /v1/sessions/{id}/resume: answers once its blocks are held in the pool."""
    tenant, session_id = _owner_and_id(request)
    if tenant != tenant_of(request):
        edge.check_tenant(tenant)  # a removed tenant gets no memory
    return json_response(_to_json(await edge.model.sessions.resume(tenant, session_id)))


def _limit_of(request: Request) -> int | None:
    """?limit=; None: all. Raises InvalidRequest."""
    given = request.query_params.get("limit")
    if given is None:
        return None
    limit = int(given) if given.isascii() and given.isdecimal() and len(given) <= _LIMIT_DIGITS_MAX else 0
    if not 1 <= limit <= _LIMIT_MAX:
        raise InvalidRequest(
            f"limit is {given[:40]!r}; allowed: 1 to {_LIMIT_MAX:,}, or none of it for all", param="limit"
        )
    return limit


def _owner_and_id(request: Request) -> tuple[str, str]:
    """The session's tenant and its id. Raises as `owner_of`."""
    return owner_of(request, request.query_params.get("tenant")), request.path_params["session_id"]


def _to_json(view: SessionView) -> JsonObject:
    blocks = view.blocks
    return with_former_fields(
        {
            "id": view.session_id,
            "object": "session",
            "tenant": view.tenant,
            "state": blocks.state.value,
            "tier": blocks.tier,
            "num_tokens": view.num_tokens,
            "turns": view.num_turns,
            "num_blocks": blocks.num_blocks,
            "blocks_in_pool": blocks.in_pool,
            "blocks_held": blocks.held,
            "blocks_offloaded": blocks.offloaded,
            "blocks_kept_offloaded": blocks.kept,
            "bytes_in_pool": blocks.in_pool * blocks.bytes_per_block,
            "bytes_offloaded": blocks.offloaded * blocks.bytes_per_block,
            "age": round(view.age, 3),
            "seconds_left": round(view.seconds_left, 3),
            "note": blocks.note,
        }
    )
