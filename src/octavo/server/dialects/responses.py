"""POST /v1/responses: from a request to a response, stored or not, whole or as a stream.

    stored           a record is created, as a fork of the previous one's where there is one; its turn begins
    not stored       an ordinary request, which goes on from the previous one's tokens where there is one

Nothing is left behind where taking the request fails.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from starlette.requests import Request
from starlette.responses import Response

from octavo.conversations.responses import new_response_id
from octavo.conversations.store import DOCUMENTS_BYTES_MAX
from octavo.engine.encoder import BYTES_PER_TOKEN_MAX
from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest
from octavo.server.body import read_json
from octavo.server.chat_run import ChatRun, begin_chat, check_chat
from octavo.server.dialects.responses_input import check_outputs, read_input
from octavo.server.dialects.responses_items import chars_of, messages_of, numbered
from octavo.server.dialects.responses_lookup import Lookup
from octavo.server.dialects.responses_request import Asked, own_names, read_request
from octavo.server.dialects.responses_run import Conversation, ResponseRun, document_of
from octavo.server.dialects.responses_truncation import fitting
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import SESSION_HEADER, Edge, until_disconnect
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ModelBounds
from octavo.server.prompts import chat_options, too_long
from octavo.server.sse import EventStream, encode_json
from octavo.server.tenant import tenant_of


async def create_response(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    _refuse_session(request)
    asked = read_request(await read_json(edge, request))
    edge.check_model(asked.body.model)
    response_id, tenant = new_response_id(), tenant_of(request)
    talk = _conversation(edge, tenant, asked, response_id)
    response = _begun(edge, asked, response_id)
    run = await _begin(edge, request, asked, response, talk, watch)
    answer = ResponseRun(edge, tenant, response, talk, run, asked.tools)
    if asked.body.stream:
        return EventStream(_frames(answer), answer.close, answer.headers)
    try:
        whole = await until_disconnect(request, answer.whole())
    finally:
        answer.close()
    return json_response(whole, headers=answer.headers)


def check_response(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `create_response` would of this body alone; what it refers to is not looked up."""
    asked = read_request(raw)
    read_input(asked.body.input, lambda *_: {}, model.context_length)
    with own_names():
        check_chat(asked.chat, model)


def _refuse_session(request: Request) -> None:
    if SESSION_HEADER in request.headers:
        raise InvalidRequest(
            f"the header {SESSION_HEADER} is given; allowed: none, use previous_response_id", param="session"
        )


async def _frames(answer: ResponseRun) -> AsyncGenerator[bytes, None]:
    async with aclosing(answer.events()) as events:
        async for event in events:
            yield f"event: {event['type']}\n".encode() + b"data: " + encode_json(event) + b"\n\n"


def _begun(edge: Edge, asked: Asked, response_id: str) -> JsonObject:
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
    return begun | asked.told


def _conversation(edge: Edge, tenant: str, asked: Asked, response_id: str) -> Conversation:
    """All that was said before, and what the request says. Raises InvalidRequest, RequestTooLarge,
    UnknownSession, or SessionBusy where the previous response has not ended."""
    lookup, previous = Lookup(edge, tenant), asked.body.previous_response_id
    before = [] if previous is None else lookup.conversation(previous)
    given = read_input(asked.body.input, lookup.item, edge.model.context_length)
    _check_size([*before, *given], edge.model.context_length)
    own = numbered(given, response_id)
    check_outputs([*before, *own])
    return Conversation([*before, *own], len(own))


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
    asked: Asked,
    response: JsonObject,
    talk: Conversation,
    watch: RequestWatch,
) -> ChatRun:
    """Queue its turn."""
    previous, responses = asked.body.previous_response_id, edge.model.sessions.responses
    tenant, response_id = tenant_of(request), str(response["id"])
    if asked.chat.cache_salt is not None and (asked.is_stored or previous is not None):
        raise InvalidRequest(
            "cache_salt is given; allowed with store false and without previous_response_id, for what is "
            "stored is gone on from under the tenant's own names",
            param="cache_salt",
        )
    with own_names():
        messages = await _messages(edge, request, asked, talk, tenant)
        if not asked.is_stored:
            taker = None if previous is None else responses.unstored
            return await begin_chat(
                edge, request, asked.chat, messages, watch, session=previous, sessions=taker
            )
        await responses.create(tenant, response_id, document_of(response, talk.items), previous)
        try:
            return await begin_chat(
                edge, request, asked.chat, messages, watch, session=response_id, sessions=responses
            )
        except BaseException:
            responses.drop(tenant, response_id)
            raise


async def _messages(
    edge: Edge, request: Request, asked: Asked, talk: Conversation, tenant: str
) -> Sequence[ChatMessage]:
    messages = messages_of(talk.items, asked.body.instructions)
    if not asked.may_be_truncated:
        return messages
    options, max_output = chat_options(request, asked.chat), asked.body.max_output_tokens
    return await fitting(edge.model, messages, options, max_output, tenant)
