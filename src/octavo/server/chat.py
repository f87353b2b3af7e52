"""POST /v1/chat/completions: from messages to OpenAI's chat shapes, whole or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import TokenInfo
from octavo.errors import InvalidRequest, OctavoError
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, error_body, json_response
from octavo.server.generation import Choice, Edge, Generation, Piece, gather_for, submit_all
from octavo.server.logprobs import chat_logprobs, prompt_logprobs
from octavo.server.openai_schema import ChatBody, check_stream_options, refuse_unsupported, sampling_params
from octavo.server.prompts import chat_messages
from octavo.server.sessions import session_of
from octavo.server.sse import DONE, EventStream, event
from octavo.server.tenant import terms_of
from octavo.types import SamplingParams


@dataclass(frozen=True, slots=True)
class _Head:
    """What every object of one answer repeats."""

    answer_id: str
    created: int
    model: str

    def object(self, kind: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.answer_id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        }


async def chat_completions(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    raw = await read_json(request, edge.body_bytes_max)
    refuse_unsupported(raw)
    body = validate(ChatBody, raw)
    edge.check_model(body.model)
    check_stream_options(body)
    params = _params(body, edge.model.vocab_size)
    n, terms = body.num_choices, terms_of(request, body)

    messages = chat_messages(body.messages, edge.model.context_length)
    session = session_of(request, body)
    if session is not None:
        turn = await edge.model.sessions.turn(
            terms.tenant, session, messages, params, priority=terms.priority, timeouts=terms.timeouts
        )
        first = TokenInfo(turn.prompt[0], edge.model.token_bytes(turn.prompt[0]))
        generation = Generation([turn.stream], [first], 1, watch, turn)
    else:
        prompt = await edge.model.encode_chat(messages)
        generation = await submit_all(edge, [prompt], params, n=n, terms=terms, watch=watch)
    head = _Head(f"chatcmpl-{uuid.uuid4().hex}", int(time.time()), edge.model.name)
    if body.stream:
        events = _events(head, generation, params, with_usage=body.wants_usage)
        return EventStream(events, generation.cancel, generation.headers)
    choices = await gather_for(request, generation)
    return json_response(_answer(head, generation, choices, params), headers=generation.headers)


def _params(body: ChatBody, vocab_size: int) -> SamplingParams:
    """`max_completion_tokens` is the newer name of `max_tokens`, and wins."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
    newer = body.max_completion_tokens
    try:
        return sampling_params(
            body,
            vocab_size,
            max_tokens=body.max_tokens if newer is None else newer,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
        )
    except InvalidRequest as error:
        # Chat asks for logprobs with two fields; the number is in the second.
        param = "top_logprobs" if error.param == "logprobs" else error.param
        raise InvalidRequest(str(error), param=param, code=error.code) from None


def _answer(head: _Head, generation: Generation, choices: list[Choice], params: SamplingParams) -> JsonObject:
    shaped: list[JsonObject] = [
        {
            "index": index,
            "message": {"role": "assistant", "content": choice.text, "refusal": None},
            "logprobs": None if params.logprobs is None else chat_logprobs(choice.tokens),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop,
        }
        for index, choice in enumerate(choices)
    ]
    answer = head.object("chat.completion", shaped) | {"usage": generation.usage()}
    answer |= generation.told_session()
    if params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(generation.prompt_infos(0))
    return answer


async def _events(
    head: _Head, generation: Generation, params: SamplingParams, *, with_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream: role, text, reason, at last the usage; an error ends it in order."""
    usage: JsonObject = {"usage": None} if with_usage else {}
    begun: set[int] = set()
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                if piece.index not in begun:
                    begun.add(piece.index)
                    chunk = _chunk(head, _choice(piece.index, {"role": "assistant", "content": ""}))
                    yield event(chunk | usage | generation.told_session())
                for choice in _choices(piece, params):
                    yield event(_chunk(head, choice) | usage)
        if with_usage:
            yield event(head.object("chat.completion.chunk", []) | {"usage": generation.usage()})
    except OctavoError as error:
        yield event(error_body(error))
    yield DONE


def _choices(piece: Piece, params: SamplingParams) -> list[JsonObject]:
    """What one delta says: perhaps text or logprobs, perhaps the end."""
    delta, choices = piece.delta, []
    wants_logprobs = params.logprobs is not None and bool(delta.tokens)
    if delta.text or wants_logprobs:
        choice = _choice(piece.index, {"content": delta.text})
        if wants_logprobs:
            choice["logprobs"] = chat_logprobs(delta.tokens)
        choices.append(choice)
    if delta.finish is not None:
        choices.append(_choice(piece.index, {}) | {"finish_reason": delta.finish, "stop_reason": delta.stop})
    return choices


def _choice(index: int, delta: JsonObject) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _chunk(head: _Head, choice: JsonObject) -> JsonObject:
    return head.object("chat.completion.chunk", [choice])
