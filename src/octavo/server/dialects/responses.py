"""POST /v1/responses: from a request to a response, stored or not, whole or as a stream.

    stored           a record is created, as a fork of the previous one's where there is one; its turn begins
    not stored       an ordinary request, which goes on from the previous one's tokens where there is one

Nothing is left behind where taking the request fails.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from octavo.conversations.responses import new_response_id
from octavo.conversations.store import DOCUMENTS_BYTES_MAX
from octavo.engine.encoder import BYTES_PER_TOKEN_MAX
from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest
from octavo.server.answering import answer
from octavo.server.body import read_json
from octavo.server.chat_run import ChatRun, begin_chat, check_chat
from octavo.server.dialects.responses_input import check_outputs, read_input
from octavo.server.dialects.responses_items import chars_of, messages_of, numbered
from octavo.server.dialects.responses_lookup import Lookup
from octavo.server.dialects.responses_request import ParsedRequest, own_names, read_request
from octavo.server.dialects.responses_run import ResponseContext, ResponseRun, document_of
from octavo.server.dialects.responses_truncation import fitting
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge, refuse_session
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ModelBounds
from octavo.server.prompts import chat_options, too_long
from octavo.server.tenant import own_salt, tenant_of


async def create_response(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    refuse_session(request, "none, use previous_response_id")
    parsed = read_request(await read_json(edge, request))
    edge.check_model(parsed.body.model)
    response_id, tenant = edge.named(new_response_id()), tenant_of(request)
    context = _context_of(edge, tenant, parsed, response_id)
    response = _begun(edge, parsed, response_id)
    chat = await _begin(edge, request, parsed, response, context, watch)
    run = ResponseRun(edge, tenant, response, context, chat, parsed.tools)
    return await answer(request, run, run, is_stream=bool(parsed.body.stream))


def check_response(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `create_response` would of this body alone; what it refers to is not looked up."""
    parsed = read_request(raw)
    read_input(parsed.body.input, lambda *_: {}, model.context_length)
    with own_names():
        check_chat(parsed.chat, model)


def _begun(edge: Edge, parsed: ParsedRequest, response_id: str) -> JsonObject:
    """The response before anything was said."""
    begun: JsonObject = {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "error": None,
        "incomplete_details": None,
        "model": edge.model.name,
        "output": [],
        "usage": None,
    }
    return begun | parsed.echoed_fields


def _context_of(edge: Edge, tenant: str, parsed: ParsedRequest, response_id: str) -> ResponseContext:
    """All that was said before, and what the request says. Raises InvalidRequest, RequestTooLarge,
    UnknownSession, or SessionBusy where the previous response has not ended."""
    lookup, previous = Lookup(edge, tenant), parsed.body.previous_response_id
    before = [] if previous is None else lookup.conversation(previous)
    given = read_input(parsed.body.input, lookup.item, edge.model.context_length)
    _check_size([*before, *given], edge.model.context_length)
    own = numbered(given, response_id)
    check_outputs([*before, *own])
    return ResponseContext([*before, *own], len(own))


def _check_size(items: Sequence[JsonObject], context_length: int) -> None:
    """Raise RequestTooLarge for more text than any context holds, before any of it is copied: a reference is
    a few bytes of a request, and may stand for very many."""
    allowed = min(context_length * BYTES_PER_TOKEN_MAX, DOCUMENTS_BYTES_MAX)
    size = chars_of(items)
    if size > allowed:
        what = "the input, with what it refers to and what was said before it,"
        raise too_long(f"{what} has {size:,} characters; allowed: {allowed:,}", "input", context_length)


async def _begin(
    edge: Edge,
    request: Request,
    parsed: ParsedRequest,
    response: JsonObject,
    context: ResponseContext,
    watch: RequestWatch,
) -> ChatRun:
    """Queue its turn."""
    previous, responses = parsed.body.previous_response_id, edge.model.sessions.responses
    tenant, response_id = tenant_of(request), str(response["id"])
    if own_salt(request, parsed.chat) and (parsed.is_stored or previous is not None):
        raise InvalidRequest(
            "cache_salt is given; allowed with store false and without previous_response_id, for what is "
            "stored is gone on from under the tenant's own names",
            param="cache_salt",
        )
    with own_names():
        messages = await _messages(edge, request, parsed, context, tenant)
        if not parsed.is_stored:
            taker = None if previous is None else responses.unstored
            return await begin_chat(
                edge, request, parsed.chat, messages, watch, session=previous, sessions=taker
            )
        await responses.create(tenant, response_id, document_of(response, context.items), previous)
        try:
            return await begin_chat(
                edge, request, parsed.chat, messages, watch, session=response_id, sessions=responses
            )
        except BaseException:
            responses.drop(tenant, response_id)
            raise


async def _messages(
    edge: Edge, request: Request, parsed: ParsedRequest, context: ResponseContext, tenant: str
) -> Sequence[ChatMessage]:
    messages = messages_of(context.items, parsed.body.instructions)
    if not parsed.may_be_truncated:
        return messages
    options, max_output = chat_options(request, parsed.chat), parsed.body.max_output_tokens
    return await fitting(edge.model, messages, options, max_output, tenant)
