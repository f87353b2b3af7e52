"""POST /v1/chat/completions: from messages to OpenAI's chat shapes, whole or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import ServedModel, TokenInfo
from octavo.errors import InvalidRequest, OctavoError
from octavo.params import SamplerParams
from octavo.server.body import read_json, validate
from octavo.server.chat_answer import AnswerKind, ChoiceWriter, answer_kind, led_params
from octavo.server.errors import JsonObject, error_body, json_response
from octavo.server.generation import Choice, Edge, Generation, Piece, gather_for, submit_all
from octavo.server.logprobs import chat_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import (
    ChatBody,
    UsageWish,
    check_stream_options,
    sampling_params,
)
from octavo.server.prompts import chat_messages, chat_options
from octavo.server.request_fields import Place, refuse_unsupported
from octavo.server.sessions import session_of
from octavo.server.sse import DONE, EventStream, event
from octavo.server.tenant import terms_of


@dataclass(frozen=True, slots=True)
class _Plan:
    """How this request's answer is written."""

    answer_id: str
    created: int
    model: str
    params: SamplerParams
    prompt: tuple[int, ...]
    tells_ids: bool  # the client asked for token ids
    usage: UsageWish  # in a stream
    kind: AnswerKind  # what its text is read as

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
    refuse_unsupported(raw, Place.CHAT)
    body = validate(ChatBody, raw)
    edge.check_model(body.model)
    check_stream_options(body)
    params = _params(body, edge.model)
    n, terms, salt = body.num_choices, terms_of(request, body), body.salt
    options, use, wish = chat_options(request, body), body.tool_use, body.thinking_wish
    params = await led_params(params, use, wish, edge.model, terms.tenant)

    messages = chat_messages(body.messages, edge.model.context_length)
    session = session_of(request, body)
    if session is not None:
        turn = await edge.model.sessions.turn(
            terms.tenant,
            session,
            messages,
            params,
            priority=terms.priority,
            timeouts=terms.timeouts,
            options=options,
        )
        prompt = turn.prompt
        first = TokenInfo(turn.prompt[0], edge.model.token_bytes(turn.prompt[0]))
        generation = Generation([turn.stream], [first], 1, watch, turn)
    else:
        prompt = tuple(await edge.model.encode_chat(messages, options, tenant=terms.tenant))
        generation = await submit_all(edge, [prompt], params, n=n, terms=terms, watch=watch, cache_salt=salt)
    plan = _Plan(
        answer_id=f"chatcmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=edge.model.name,
        params=params,
        prompt=prompt,
        tells_ids=bool(body.return_token_ids),
        usage=body.usage_wish,
        kind=answer_kind(use, wish, edge.model, prompt),
    )
    if body.stream:
        return EventStream(_events(plan, generation), generation.cancel, generation.headers)
    choices = await gather_for(request, generation)
    return json_response(_answer(plan, generation, choices), headers=generation.headers)


def _params(body: ChatBody, model: ServedModel) -> SamplerParams:
    """`max_completion_tokens` is the newer name of `max_tokens`, and wins."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
    newer = body.max_completion_tokens
    try:
        return sampling_params(
            body,
            model,
            max_tokens=body.max_tokens if newer is None else newer,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
        )
    except InvalidRequest as error:
        # Chat asks for logprobs with two fields; the number is in the second.
        param = "top_logprobs" if error.param == "logprobs" else error.param
        raise InvalidRequest(str(error), param=param, code=error.code) from None


def _answer(plan: _Plan, generation: Generation, choices: list[Choice]) -> JsonObject:
    shaped = [_whole(plan, index, choice) for index, choice in enumerate(choices)]
    answer = plan.object("chat.completion", shaped) | {"usage": generation.usage()}
    answer |= generation.told_session()
    if plan.params.prompt_logprobs is not None:
        answer["prompt_logprobs"] = prompt_logprobs(generation.prompt_infos(0))
    if plan.tells_ids:
        answer["prompt_token_ids"] = plan.prompt
    return answer


def _whole(plan: _Plan, index: int, choice: Choice) -> JsonObject:
    writer = ChoiceWriter(plan.kind)
    shaped: JsonObject = {
        "index": index,
        "message": writer.message(choice.text),
        "logprobs": None if plan.params.logprobs is None else chat_logprobs(choice.tokens),
        "finish_reason": writer.finish_reason(choice.finish),
        "stop_reason": choice.stop,
    }
    if plan.tells_ids:
        shaped["token_ids"] = ids_of(choice.tokens)
    return shaped


async def _events(plan: _Plan, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream: role, text, reason, at last the usage; an error ends it in order."""
    begun: dict[int, ChoiceWriter] = {}
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                usage = generation.told_usage(plan.usage)
                if piece.index not in begun:
                    begun[piece.index] = ChoiceWriter(plan.kind)
                    chunk = _chunk(plan, _choice(piece.index, {"role": "assistant", "content": ""}))
                    told = {"prompt_token_ids": plan.prompt} if plan.tells_ids else {}
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
    wants_logprobs = plan.params.logprobs is not None and bool(delta.tokens)
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
