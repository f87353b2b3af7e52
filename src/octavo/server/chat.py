"""POST /v1/chat/completions: from messages to OpenAI's chat shapes, whole or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import OctavoError
from octavo.server.body import read_json, validate
from octavo.server.chat_answer import ChoiceWriter
from octavo.server.chat_run import ChatRun, begin_chat, check_chat
from octavo.server.errors import JsonObject, error_body, json_response
from octavo.server.field_list import Place
from octavo.server.generation import Choice, Edge, Piece, gather_for
from octavo.server.logprobs import chat_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import ChatBody, ModelBounds, UsageWish, check_stream_options
from octavo.server.prompts import chat_messages
from octavo.server.request_fields import OPENAI_FIELDS
from octavo.server.sessions import session_of
from octavo.server.sse import DONE, EventStream, event


@dataclass(frozen=True, slots=True)
class _Plan:
    """How this request's answer is written."""

    answer_id: str
    created: int
    model: str
    run: ChatRun
    tells_ids: bool  # the client asked for token ids
    usage: UsageWish  # in a stream

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
    raw = await read_json(edge, request)
    OPENAI_FIELDS.check(raw, Place.CHAT)
    body = validate(ChatBody, raw)
    check_stream_options(body)
    messages = chat_messages(body.messages, edge.model.context_length)
    run = await begin_chat(edge, request, body, messages, watch, session=session_of(request, body))
    plan = _Plan(
        answer_id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=edge.model.name,
        run=run,
        tells_ids=bool(body.return_token_ids),
        usage=body.usage_wish,
    )
    if body.stream:
        return EventStream(_events(plan), run.generation.cancel, run.generation.headers)
    choices = await gather_for(request, run.generation)
    return json_response(_answer(plan, choices), headers=run.generation.headers)


def check_chat_body(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `chat_completions` would of this body alone."""
    OPENAI_FIELDS.check(raw, Place.CHAT)
    body = validate(ChatBody, raw)
    check_stream_options(body)
    chat_messages(body.messages, model.context_length)
    check_chat(body, model)


def _answer(plan: _Plan, choices: list[Choice]) -> JsonObject:
    generation = plan.run.generation
    shaped = [_whole(plan, index, choice) for index, choice in enumerate(choices)]
    answer = plan.object("chat.completion", shaped) | {"usage": generation.usage()}
    answer |= generation.told_session()
    if plan.run.params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(generation.prompt_infos(0))
    if plan.tells_ids:
        answer["prompt_token_ids"] = plan.run.prompt
    return answer


def _whole(plan: _Plan, index: int, choice: Choice) -> JsonObject:
    writer = ChoiceWriter(plan.run.kind)
    shaped: JsonObject = {
        "index": index,
        "message": writer.message(choice.text),
        "logprobs": None if plan.run.params.logprobs is None else chat_logprobs(choice.tokens),
        "finish_reason": writer.finish_reason(choice.finish),
        "stop_reason": choice.stop,
    }
    if plan.tells_ids:
        shaped["token_ids"] = ids_of(choice.tokens)
    return shaped


async def _events(plan: _Plan) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream: role, text, reason, at last the usage; an error ends it in order."""
    generation = plan.run.generation
    begun: dict[int, ChoiceWriter] = {}
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                usage = generation.told_usage(plan.usage)
                if piece.index not in begun:
                    begun[piece.index] = ChoiceWriter(plan.run.kind)
                    chunk = _chunk(plan, _choice(piece.index, {"role": "assistant", "content": ""}))
                    told = {"prompt_token_ids": plan.run.prompt} if plan.tells_ids else {}
                    yield event(chunk | told | usage | generation.told_session())
                for choice in _choices(plan, piece, begun[piece.index]):
                    yield event(_chunk(plan, choice) | usage)
        if plan.usage.last:
            yield event(plan.object("chat.completion.chunk", []) | {"usage": generation.usage()})
    except OctavoError as error:
        yield event(error_body(error))
    yield DONE


def _choices(plan: _Plan, piece: Piece, writer: ChoiceWriter) -> list[JsonObject]:
    """What one delta says: perhaps text or calls, logprobs or token ids, perhaps the end."""
    delta = piece.delta
    said = writer.deltas(delta.text, is_last=delta.finish is not None)
    wants_logprobs = plan.run.params.logprobs is not None and bool(delta.tokens)
    wants_ids = plan.tells_ids and bool(delta.tokens)
    if not said and (wants_logprobs or wants_ids):
        said = [{"content": ""}]
    choices = [_choice(piece.index, one) for one in said]
    if wants_logprobs:
        choices[0]["logprobs"] = chat_logprobs(delta.tokens)
    if wants_ids:
        choices[0]["token_ids"] = ids_of(delta.tokens)
    if delta.finish is not None:
        finish = {"finish_reason": writer.finish_reason(delta.finish), "stop_reason": delta.stop}
        choices.append(_choice(piece.index, {}) | finish)
    return choices


def _choice(index: int, delta: JsonObject) -> JsonObject:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _chunk(plan: _Plan, choice: JsonObject) -> JsonObject:
    return plan.object("chat.completion.chunk", [choice])
