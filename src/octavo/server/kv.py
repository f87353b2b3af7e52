"""The routes of KV memory: the pool, its map, live requests and why they wait, pins.

GET    /v1/kv                  blocks by state and holder, pins, recent events
GET    /v1/kv/map              every block and its owners
GET    /v1/requests            all that have not ended
GET    /v1/requests/{id}       one, or one of the last 1,000 that have ended, with its block table; where
                               its prompt was found, and why not; id as in the header X-Octavo-Request
GET    /v1/kv/pins             all pins
POST   /v1/kv/pins             {name, prompt | messages | tokens, ttl, strength}
PATCH  /v1/kv                  {blocks | bytes | target_itl}: resizes the pool, or sets the target
PATCH  /v1/kv/pins/{name}      {ttl}
DELETE /v1/kv/pins/{name}

With tenants, one that is not an operator sees only its own data. An operator may name another tenant, or
`shared`: "tenant" in a new pin's body, ?tenant= for an existing pin.
"""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import PinRequest, PoolView, Strength, TenantUse
from octavo.errors import InvalidRequest, require_range
from octavo.routing.slots import slot_of, without_slot
from octavo.server.body import read_json, validate
from octavo.server.errors import HttpRefusal, JsonObject, json_response
from octavo.server.field_list import Body
from octavo.server.generation import Edge, until_disconnect
from octavo.server.kv_rows import kv_row, pin_row, request_row, use_row
from octavo.server.openai_schema import Messages, ModelBounds, Prompts, Tokens
from octavo.server.prompts import chat_messages, check_prompts, encode_prompts
from octavo.server.tenant import entry_of, owner_of, tenant_of, visible_tenant
from octavo.server.tenant_registry import TenantRegistry

_TTL_S = 3600.0
_REQUEST_ID_DIGITS_MAX = 18


class PinBody(Body, extra="forbid"):
    """POST /v1/kv/pins. The prompt is given in one of four ways."""

    name: str
    prompt: Prompts = None
    messages: Messages = None
    tokens: Tokens = None
    session: str | None = None
    ttl: float = _TTL_S
    strength: str = Strength.HOT.value
    tenant: str | None = None


class ResizeBody(Body, extra="forbid"):
    """PATCH /v1/kv: one of the three. `target_itl` is in seconds; null: no target."""

    blocks: int | None = None
    bytes: int | None = None
    target_itl: float | None = None


class RenewBody(Body, extra="forbid"):
    """PATCH /v1/kv/pins/{name}."""

    ttl: float


async def show_kv(edge: Edge, request: Request) -> Response:
    """GET /v1/kv."""
    tenant = entry_of(request)
    if tenant is not None and not tenant.operator:
        own = await edge.model.control.kv(tenant.name)
        return json_response(kv_row(own) | {"bounds": asdict(tenant.policy(own.bytes_per_block))})
    view = await edge.model.control.kv()
    card = edge.model.card
    row = kv_row(view) | {"calibration": {"key": card.calibration, "command": card.calibrate_command}}
    if edge.roster is not None:
        row["tenants"] = _tenants(edge.roster, view)
    return json_response(row)


def _tenants(roster: TenantRegistry, view: PoolView) -> list[JsonObject]:
    """What each tenant uses, with its bounds in blocks: those of the file, then removed ones that still hold
    something."""
    uses = {} if view.totals is None else {use.name: use for use in view.totals.tenants}
    rows = []
    for tenant in roster.tenants.all:
        policy = tenant.policy(view.bytes_per_block)
        use = uses.pop(tenant.name, TenantUse(tenant.name))
        rows.append(asdict(policy) | use_row(use) | {"operator": tenant.operator})
    return rows + [use_row(use) for use in uses.values()]


async def resize_pool(edge: Edge, request: Request) -> Response:
    """PATCH /v1/kv: answers when the pool has its new size, or the target is set."""
    body = validate(ResizeBody, await read_json(edge, request))
    if len(body.model_fields_set) != 1:
        raise InvalidRequest("allowed: exactly one of blocks, bytes and target_itl", param="blocks")
    if "target_itl" in body.model_fields_set:
        return json_response(kv_row(await edge.model.control.set_target(body.target_itl)))
    blocks = body.blocks
    if blocks is None:
        per_block = (await edge.model.control.kv()).bytes_per_block
        blocks = (body.bytes or 0) // max(1, per_block)
    require_range("blocks", blocks, 1, 2**40)
    return json_response(kv_row(await edge.model.control.resize(blocks)))


async def show_map(edge: Edge, request: Request) -> Response:
    """GET /v1/kv/map."""
    block_map = await edge.model.control.map(visible_tenant(request))
    return json_response({"states": block_map.states, "owner": block_map.owner, "owners": block_map.owners})


async def list_requests(edge: Edge, request: Request) -> Response:
    """GET /v1/requests: block tables are empty."""
    views = await edge.model.control.requests(visible_tenant(request))
    return json_response({"object": "list", "data": [request_row(view, edge.slot) for view in views]})


async def show_request(edge: Edge, request: Request) -> Response:
    """GET /v1/requests/{id}."""
    given = request.path_params["request_id"]
    number = without_slot(given) if slot_of(given) == edge.slot else ""
    is_id = number.isascii() and number.isdecimal() and len(number) <= _REQUEST_ID_DIGITS_MAX
    view = await edge.model.control.request(int(number), visible_tenant(request)) if is_id else None
    if view is None:
        raise HttpRefusal(
            HTTPStatus.NOT_FOUND,
            f"there is no request {given[:40]!r} that waits, runs, or ended lately; /v1/requests lists those "
            "that have not ended",
            code="unknown_request",
        )
    return json_response(request_row(view, edge.slot))


async def list_pins(edge: Edge, request: Request) -> Response:
    """GET /v1/kv/pins."""
    pins = [pin_row(pin) for pin in await edge.model.control.pins(visible_tenant(request))]
    return json_response({"object": "list", "data": pins})


async def create_pin(edge: Edge, request: Request) -> Response:
    """POST /v1/kv/pins: answers when the blocks are held."""
    body = validate(PinBody, await read_json(edge, request))
    strength = next((each for each in Strength if each.value == body.strength), None)
    if strength is None:
        allowed = ", ".join(each.value for each in Strength)
        raise InvalidRequest(f"strength is {body.strength[:40]!r}; allowed: {allowed}", param="strength")
    tenant = owner_of(request, body.tenant)
    if tenant != tenant_of(request):  # the client's own is checked when the pin is queued
        edge.check_tenant(tenant)
    tokens = await _tokens_of(body, edge, tenant_of(request))
    pin_request = PinRequest(body.name, tokens, body.ttl, strength, tenant)
    pin = await until_disconnect(request, edge.model.control.pin(pin_request))
    return json_response(pin_row(pin), status=HTTPStatus.CREATED)


def check_pin(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `create_pin` would for this body alone."""
    body = validate(PinBody, raw)
    if body.messages is not None:
        chat_messages(body.messages, model.context_length)
    for prompt in (body.prompt, body.tokens):
        if prompt is not None:
            check_prompts(prompt, model)


async def renew_pin(edge: Edge, request: Request) -> Response:
    """PATCH /v1/kv/pins/{name}."""
    body = validate(RenewBody, await read_json(edge, request))
    tenant = owner_of(request, request.query_params.get("tenant"))
    name = request.path_params["name"]
    return json_response(pin_row(await edge.model.control.renew_pin(tenant, name, body.ttl)))


async def delete_pin(edge: Edge, request: Request) -> Response:
    """DELETE /v1/kv/pins/{name}."""
    tenant = owner_of(request, request.query_params.get("tenant"))
    return json_response(pin_row(await edge.model.control.unpin(tenant, request.path_params["name"])))


async def _tokens_of(body: PinBody, edge: Edge, tenant: str) -> tuple[int, ...]:
    """The prompt's token ids, from the one of the four fields that is given."""
    given = [name for name in ("prompt", "messages", "tokens", "session") if getattr(body, name) is not None]
    if len(given) != 1:
        raise InvalidRequest(
            f"given: {', '.join(given) or 'none of them'}; allowed: exactly one of prompt, messages, tokens, "
            "session",
            param="prompt",
        )
    if body.session is not None:
        return edge.model.sessions.tokens(tenant, body.session)
    if body.messages is not None:
        messages = chat_messages(body.messages, edge.model.context_length)
        return tuple(await edge.model.encode_chat(messages, tenant=tenant))
    prompts = await encode_prompts(body.prompt if body.tokens is None else body.tokens, edge.model, tenant)
    if len(prompts) != 1 or (body.tokens is not None and prompts[0].text is not None):
        raise InvalidRequest("allowed: one prompt, as text or as token ids", param=given[0])
    return prompts[0].tokens
