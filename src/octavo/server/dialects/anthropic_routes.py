"""The routes of Anthropic's API: /v1/messages."""

from __future__ import annotations

from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.answer_driver import answer
from octavo.server.body import read_json, validate
from octavo.server.chat_run import begin_chat, check_chat
from octavo.server.dialects.anthropic import NAMES, CountTokensBody, MessagesBody, translate
from octavo.server.dialects.anthropic_answer import MessageCodec
from octavo.server.dialects.common import rename_fields
from octavo.server.dialects.error_shapes import request_id_of
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import CHAT_HAS_SESSIONS, Edge, refuse_session
from octavo.server.openai_schema import ModelBounds
from octavo.server.prompts import chat_options
from octavo.server.route import Access, Route, Spread
from octavo.server.tenant import tenant_of


async def create_message(edge: Edge, request: Request) -> Response:
    """POST /v1/messages."""
    watch = edge.metrics.watch(request.scope)
    body = validate(MessagesBody, await read_json(edge, request))
    refuse_session(request, CHAT_HAS_SESSIONS)
    with rename_fields(NAMES):
        chat = translate(body, edge.model.context_length)
        run = await begin_chat(edge, request, chat.body, chat.messages, watch)
    codec = MessageCodec(run, edge.model.name, body.max_tokens or 1, request_id_of(request.scope))
    return await answer(request, run, codec, is_stream=bool(body.stream))


async def count_message_tokens(edge: Edge, request: Request) -> Response:
    """POST /v1/messages/count_tokens: the length of the prompt that /v1/messages would compute."""
    body = validate(CountTokensBody, await read_json(edge, request))
    edge.check_model(body.model)
    with rename_fields(NAMES):
        chat = translate(body, edge.model.context_length)
        _ = chat.body.tool_use, chat.body.output_grammar  # they raise InvalidRequest
        options = chat_options(request, chat.body)
        tokens = await edge.model.encode_chat(chat.messages, options, tenant=tenant_of(request))
    return json_response({"input_tokens": len(tokens)})


def check_message(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `create_message` that depend on the body alone."""
    _check(validate(MessagesBody, raw), model)


def check_count(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `count_message_tokens` that depend on the body alone."""
    _check(validate(CountTokensBody, raw), model)


def _check(body: CountTokensBody, model: ModelBounds) -> None:
    with rename_fields(NAMES):
        check_chat(translate(body, model.context_length).body, model)


ANTHROPIC_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/v1/messages",
        create_message,
        Access.TENANT,
        "Answer a chat, as Anthropic's API does",
        Spread.PREFIX,
        body=MessagesBody,
        check=check_message,
        errors=(404, 429, 500, 503),
        streams=True,
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        count_message_tokens,
        Access.TENANT,
        "The number of tokens of such a chat",
        Spread.RELAY,
        body=CountTokensBody,
        check=check_count,
        errors=(404, 429, 503),
    ),
)
