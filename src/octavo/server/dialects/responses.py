"""POST /v1/responses: from a request to a response, stored or not, whole or as a stream.

    stored           creates a record, a fork of the previous response's if there is one, and begins its turn
    not stored       an ordinary request, which reuses the previous response's tokens if there is one

If queueing the request fails, no record remains.

`truncation: auto` leaves out the oldest messages until the rest, and its answer, fit the context:

    system  user  assistant  user  assistant  tool  user        the conversation
    system                   user  assistant  tool  user        kept: it begins with a message of the user
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, cast

from starlette.requests import Request
from starlette.responses import Response

from octavo.conversations.responses import is_in_progress, new_response_id, no_previous
from octavo.conversations.store import DOCUMENTS_BYTES_MAX
from octavo.engine.encoder import BYTES_PER_TOKEN_MAX
from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest, RequestTooLarge, UnknownSession
from octavo.server.answer_driver import answer
from octavo.server.body import read_json
from octavo.server.chat_run import ChatRun, begin_chat, check_chat
from octavo.server.dialects.responses_input import check_outputs, read_input, unknown_item
from octavo.server.dialects.responses_items import chars_of, messages_of, response_of, with_ids
from octavo.server.dialects.responses_request import ParsedRequest, read_request, rename_chat_fields
from octavo.server.dialects.responses_run import ResponseContext, ResponseRun, document_of, parse_document
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge, refuse_session
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ModelBounds
from octavo.server.prompts import chat_options, too_long
from octavo.server.tenant import own_salt, tenant_of
from octavo.serving.client import EngineClient
from octavo.types import ChatOptions

_ANSWER_SHARE: Final = 8  # an answer of unknown length gets one eighth of the context


async def create_response(edge: Edge, request: Request) -> Response:
    """Answer one request. Raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    refuse_session(request, "none, use previous_response_id")
    parsed = read_request(await read_json(edge, request))
    edge.check_model(parsed.body.model)
    response_id, tenant = edge.named(new_response_id()), tenant_of(request)
    context = _context_of(edge, tenant, parsed, response_id)
    response = _initial_response(edge, parsed, response_id)
    chat = await _begin(edge, request, parsed, response, context, watch)
    run = ResponseRun(edge, tenant, response, context, chat, parsed.tools)
    return await answer(request, run, run, is_stream=bool(parsed.body.stream))


def check_response(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `create_response` that depend on the body alone; references are not looked up."""
    parsed = read_request(raw)
    read_input(parsed.body.input, lambda *_: {}, model.context_length)
    with rename_chat_fields():
        check_chat(parsed.chat, model)


def _initial_response(edge: Edge, parsed: ParsedRequest, response_id: str) -> JsonObject:
    """The response before its first output."""
    response: JsonObject = {
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
    return response | parsed.echoed_fields


def _context_of(edge: Edge, tenant: str, parsed: ParsedRequest, response_id: str) -> ResponseContext:
    """The conversation so far, and the request's input. Raises InvalidRequest, RequestTooLarge,
    UnknownSession, or SessionBusy if the previous response is in progress."""
    lookup, previous = Lookup(edge, tenant), parsed.body.previous_response_id
    before = [] if previous is None else lookup.conversation(previous)
    given = read_input(parsed.body.input, lookup.item, edge.model.context_length)
    _check_size([*before, *given], edge.model.context_length)
    own = with_ids(given, response_id)
    check_outputs([*before, *own])
    return ResponseContext([*before, *own], len(own))


def _check_size(items: Sequence[JsonObject], context_length: int) -> None:
    """Raise RequestTooLarge for more text than the context can hold, before it is copied: a reference is a
    few bytes of a request, and may stand for a large item."""
    allowed = min(context_length * BYTES_PER_TOKEN_MAX, DOCUMENTS_BYTES_MAX)
    size = chars_of(items)
    if size > allowed:
        what = "the input, with its references and the conversation before it,"
        raise too_long(f"{what} has {size:,} characters; allowed: {allowed:,}", "input", context_length)


async def _begin(
    edge: Edge,
    request: Request,
    parsed: ParsedRequest,
    response: JsonObject,
    context: ResponseContext,
    watch: RequestWatch,
) -> ChatRun:
    """Queue the response's turn."""
    previous, responses = parsed.body.previous_response_id, edge.model.sessions.responses
    tenant, response_id = tenant_of(request), str(response["id"])
    if own_salt(request, parsed.chat) and (parsed.is_stored or previous is not None):
        raise InvalidRequest(
            "cache_salt is given; allowed with store false and without previous_response_id: a stored "
            "response is continued under the tenant's own block names",
            param="cache_salt",
        )
    with rename_chat_fields():
        messages = await _messages(edge, request, parsed, context, tenant)
        if not parsed.is_stored:
            sessions = None if previous is None else responses.unstored
            return await begin_chat(
                edge, request, parsed.chat, messages, watch, session=previous, sessions=sessions
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
    return await _truncate(edge.model, messages, options, max_output, tenant)


# -- truncation: auto


async def _truncate(
    model: EngineClient,
    messages: Sequence[ChatMessage],
    options: ChatOptions,
    max_output_tokens: int | None,
    tenant: str,
) -> Sequence[ChatMessage]:
    """The messages, or as many of the newest as fit; system messages stay. If not even the last turn fits, it
    is returned, and the engine refuses it. O(log messages) renderings."""
    reserved = max_output_tokens or 0
    if not 0 < reserved < model.context_length:  # missing, or larger than any answer
        reserved = model.context_length // _ANSWER_SHARE
    limit = model.context_length - max(1, reserved)

    async def fits(kept: Sequence[ChatMessage]) -> bool:
        try:
            return len(await model.encode_chat(kept, options, tenant=tenant)) <= limit
        except RequestTooLarge:
            return False

    cuts = [index for index, message in enumerate(messages) if message.role == "user" and index > 0]
    if not cuts or await fits(messages):
        return messages
    low, high = 0, len(cuts) - 1  # the first cut that fits is in [low, high], if any fits
    while low < high:
        middle = (low + high) // 2
        if await fits(_cut(messages, cuts[middle])):
            high = middle
        else:
            low = middle + 1
    return _cut(messages, cuts[low])


def _cut(messages: Sequence[ChatMessage], first: int) -> list[ChatMessage]:
    return [one for index, one in enumerate(messages) if index >= first or one.role == "system"]


# -- stored responses


@dataclass(frozen=True, slots=True)
class _ResponseItems:
    """All items of one response, its output included."""

    items: list[JsonObject]
    by_id: dict[str, JsonObject]


class Lookup:
    """The stored responses of one tenant, each parsed once for a request."""

    def __init__(self, edge: Edge, tenant: str) -> None:
        self._edge = edge
        self._tenant = tenant
        self._responses: dict[str, _ResponseItems] = {}  # by id
        self._inputs: dict[str, JsonObject] = {}  # referenced items, by id

    def conversation(self, response_id: str) -> list[JsonObject]:
        """All items up to the response's last. Raises UnknownSession, or SessionBusy while it is in
        progress."""
        if self._edge.running.is_running(self._tenant, response_id):
            raise is_in_progress(response_id)
        try:
            return self._items_of(response_id).items
        except UnknownSession as error:
            raise no_previous(error) from None

    def item(self, given: str, where: str) -> JsonObject:
        """The stored item of that id, in the form of an input; the same object every time. Raises
        InvalidRequest."""
        if given not in self._inputs:
            self._inputs[given] = _without_logprobs(self._find(given, where))
        return self._inputs[given]

    def _find(self, given: str, where: str) -> JsonObject:
        response_id = response_of(given)
        if response_id is None:
            raise unknown_item(given, where)
        try:
            found = self._items_of(response_id).by_id.get(given)
        except UnknownSession:
            raise unknown_item(given, where) from None
        if found is None:
            raise unknown_item(given, where)
        return found

    def _items_of(self, response_id: str) -> _ResponseItems:
        if response_id not in self._responses:
            stored = self._edge.model.sessions.responses.find(self._tenant, response_id)
            document = parse_document(stored)
            items = [*document.items, *document.output]
            self._responses[response_id] = _ResponseItems(items, {str(item["id"]): item for item in items})
        return self._responses[response_id]


def _without_logprobs(item: JsonObject) -> JsonObject:
    """The item without logprobs, which are many times its text and mean nothing in an input."""
    if item["type"] != "message":
        return item
    parts = cast("list[JsonObject]", item["content"])
    return item | {"content": [{k: v for k, v in part.items() if k != "logprobs"} for part in parts]}
