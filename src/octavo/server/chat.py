"""POST /v1/chat/completions: from messages to OpenAI's chat shapes."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from octavo.server.answering import answer
from octavo.server.body import read_json, validate
from octavo.server.chat_answer import ChatCodec
from octavo.server.chat_run import begin_chat, check_chat
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge
from octavo.server.openai_schema import ChatBody, ModelBounds, check_stream_options
from octavo.server.prompts import chat_messages
from octavo.server.sessions import session_of


async def chat_completions(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    body = read_chat_body(await read_json(edge, request))
    messages = chat_messages(body.messages, edge.model.context_length)
    run = await begin_chat(edge, request, body, messages, watch, session=session_of(request, body))
    return await answer(request, run, ChatCodec(run, edge.model.name, body), is_stream=bool(body.stream))


def check_chat_body(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `chat_completions` would of this body alone."""
    body = read_chat_body(raw)
    chat_messages(body.messages, model.context_length)
    check_chat(body, model)


def read_chat_body(raw: JsonObject) -> ChatBody:
    """The body, with fields that go together. Raises InvalidRequest."""
    body = validate(ChatBody, raw)
    check_stream_options(body)
    return body
