"""POST /api/chat and /api/generate: Ollama's requests through the chat path.

A prompt of /api/generate is a chat of one message, after `system` if that is given. With `raw` or `suffix`,
or if the model has no chat template, the prompt is used as it is. Without messages, or without a prompt, the
answer is `load` or `unload`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequest
from octavo.server.answer_driver import answer
from octavo.server.body import read_json, validate
from octavo.server.chat_run import ChatRun, begin_chat, chat_params, check_chat
from octavo.server.dialects.common import rename_fields
from octavo.server.dialects.ollama import (
    NAMES,
    OllamaBody,
    OllamaChatBody,
    OllamaGenerateBody,
    chat_body,
    chat_fields,
    check_name,
    is_unload,
)
from octavo.server.dialects.ollama_answer import OllamaCodec, OllamaShape
from octavo.server.dialects.ollama_messages import chat_messages, is_prefilled
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import Edge, hold_grammar, refuse_session, submit_all
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ChatBody, ModelBounds
from octavo.server.prompts import encode_prompts
from octavo.server.sessions import session_of
from octavo.server.tenant import engine_request, tenant_of
from octavo.tools.answer import AnswerKind
from octavo.types import ChatMessage

# The answer to a raw prompt is plain text.
_TEXT: Final = AnswerKind(thinking=None, form=None)


async def ollama_chat(edge: Edge, request: Request) -> Response:
    """Answer one chat. Raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    raw = await read_json(edge, request)
    with rename_fields(NAMES):
        body = validate(OllamaChatBody, raw)
        shape = _shape(edge, body, is_chat=True)
        messages = chat_messages(body.messages, edge.model.context_length)
        if not messages:
            return _loaded(shape, body)
        if not edge.model.has_chat_template:
            raise InvalidRequest(
                "this model has no chat template; allowed: POST /api/generate, whose prompt it continues",
                param="messages",
            )
        own: Mapping[str, object] = {"tools": body.tools, "continue_final_message": is_prefilled(messages)}
        chat = chat_body(body, edge.model, own)
        run = await begin_chat(edge, request, chat, messages, watch, session=session_of(request, chat))
    return await _answer(request, run, shape, body, watch)


def check_ollama_chat(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `ollama_chat` that depend on the body alone."""
    with rename_fields(NAMES):
        body = validate(OllamaChatBody, raw)
        chat_messages(body.messages, model.context_length)
        check_chat(validate(ChatBody, chat_fields(body, model.context_length, {"tools": body.tools})), model)


def check_ollama_prompt(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `ollama_generate` that depend on the body alone."""
    with rename_fields(NAMES):
        body = validate(OllamaGenerateBody, raw)
        check_chat(validate(ChatBody, chat_fields(body, model.context_length, {})), model)


async def ollama_generate(edge: Edge, request: Request) -> Response:
    """Answer one prompt. Raises as `ollama_chat`."""
    watch = edge.metrics.watch(request.scope)
    raw = await read_json(edge, request)
    with rename_fields(NAMES):
        body = validate(OllamaGenerateBody, raw)
        shape = _shape(edge, body, is_chat=False)
        refuse_session(request, "on /api/chat, whose turns make a session")
        if not body.prompt and not body.suffix:
            return _loaded(shape, body)
        chat = chat_body(body, edge.model, {})
        if body.raw or body.suffix or not edge.model.has_chat_template:
            run = await _begin_raw(edge, request, body, chat, watch)
        else:
            messages = [ChatMessage("system", body.system)] if body.system else []
            messages.append(ChatMessage("user", body.prompt or ""))
            run = await begin_chat(edge, request, chat, messages, watch)
    return await _answer(request, run, shape, body, watch)


def _shape(edge: Edge, body: OllamaBody, *, is_chat: bool) -> OllamaShape:
    return OllamaShape(check_name(body.model, edge.model), is_chat, bool(body.logprobs))


def _loaded(shape: OllamaShape, body: OllamaBody) -> Response:
    """The answer to a request without messages or prompt."""
    return json_response(shape.loaded("unload" if is_unload(body.keep_alive) else "load"))


async def _answer(
    request: Request, run: ChatRun, shape: OllamaShape, body: OllamaBody, watch: RequestWatch
) -> Response:
    """A stream, unless the request has `stream` false."""
    is_stream = body.stream is not False
    return await answer(
        request, run, OllamaCodec(run, shape, watch, is_stream=is_stream), is_stream=is_stream
    )


async def _begin_raw(
    edge: Edge, request: Request, body: OllamaGenerateBody, chat: ChatBody, watch: RequestWatch
) -> ChatRun:
    """Queue the prompt as it is. Raises InvalidRequest for fields that need the chat template."""
    why = "raw is true" if body.raw else "this model has no chat template"
    why = "suffix is given" if body.suffix else why
    for name, given in (("system", body.system), ("think", body.think)):
        if given:
            raise InvalidRequest(f"{name} is given, and {why}; allowed: the prompt alone", param=name)
    params = chat_params(chat, edge.model)
    queued = replace(engine_request(request, chat), params=params)
    [prompt] = await encode_prompts(body.prompt or "", edge.model, tenant_of(request), body.suffix or "")
    async with hold_grammar(edge, request, params, queued.tenant):
        generation = await submit_all(edge, [prompt.tokens], queued, watch)
    return ChatRun(generation, prompt.tokens, params, _TEXT)
