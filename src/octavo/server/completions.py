"""POST /v1/completions: from prompts to OpenAI's completion shapes, whole or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import ServedModel, TokenInfo
from octavo.errors import InvalidRequest, OctavoError
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, error_body, json_response
from octavo.server.generation import Choice, Edge, Generation, Piece, gather_for, submit_all
from octavo.server.logprobs import characters_begun, completion_logprobs, prompt_logprobs
from octavo.server.openai_schema import (
    CompletionBody,
    check_stream_options,
    refuse_unsupported,
    sampling_params,
)
from octavo.server.prompts import Prompt, encode_prompts
from octavo.server.sse import DONE, EventStream, event
from octavo.server.tenant import terms_of
from octavo.types import SamplingParams

# OpenAI's default on this route.
_MAX_TOKENS = 16
_TOTAL_CHOICES_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Plan:
    """How this request's answer is written."""

    answer_id: str
    created: int
    model: str
    params: SamplingParams
    echoes: tuple[str, ...]  # by prompt: the prompt's text, or "" without echo
    echo: bool
    tells_prompt: bool  # the client asked for prompt_logprobs by name

    def object(self, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self.answer_id,
            "object": "text_completion",
            "created": self.created,
            "model": self.model,
            "system_fingerprint": None,
            "choices": choices,
        }


async def completions(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    raw = await read_json(request, edge.body_bytes_max)
    refuse_unsupported(raw)
    body = validate(CompletionBody, raw)
    edge.check_model(body.model)
    check_stream_options(body)
    n, terms = body.num_choices, terms_of(request, body)
    _check_best_of(body.best_of, n)
    params = _params(body, edge.model.vocab_size)

    prompts = await encode_prompts(body.prompt, edge.model)
    _check_total(n * len(prompts))
    plan = _Plan(
        answer_id=f"cmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=edge.model.name,
        params=params,
        echoes=tuple(_text_of(prompt, edge.model) if body.echo else "" for prompt in prompts),
        echo=bool(body.echo),
        tells_prompt=body.prompt_logprobs is not None,
    )
    generation = await submit_all(
        edge,
        [prompt.tokens for prompt in prompts],
        params,
        n=n,
        terms=terms,
        watch=watch,
    )
    if body.stream:
        events = _events(plan, generation, with_usage=body.wants_usage)
        return EventStream(events, generation.cancel, generation.headers)
    choices = await gather_for(request, generation)
    shaped = [_choice(plan, generation, index, choice) for index, choice in enumerate(choices)]
    answer = plan.object(shaped) | {"usage": generation.usage()}
    return json_response(answer, headers=generation.headers)


def _check_total(choices: int) -> None:
    if choices > _TOTAL_CHOICES_MAX:
        raise InvalidRequest(
            f"n times the number of prompts is {choices:,}; allowed: up to {_TOTAL_CHOICES_MAX:,}", param="n"
        )


def _check_best_of(best_of: int | None, n: int) -> None:
    if best_of is not None and best_of != n:
        raise InvalidRequest(
            f"best_of is {best_of} and n is {n}; allowed: best_of equal to n (all choices are returned)",
            param="best_of",
        )


def _params(body: CompletionBody, vocab_size: int) -> SamplingParams:
    """`echo` with `logprobs` tells the prompt's logprobs too, so the engine is asked for them."""
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(prompt_logprobs or 0, body.logprobs)
    return sampling_params(
        body,
        vocab_size,
        max_tokens=_MAX_TOKENS if body.max_tokens is None else body.max_tokens,
        logprobs=body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _text_of(prompt: Prompt, model: ServedModel) -> str:
    """The prompt as its client wrote it, or its tokens' text where it sent tokens."""
    if prompt.text is not None:
        return prompt.text
    return b"".join(model.token_bytes(token) for token in prompt.tokens).decode(errors="replace")


def _choice(plan: _Plan, generation: Generation, index: int, choice: Choice) -> JsonObject:
    """A whole choice."""
    prompt = generation.prompt_infos(choice.prompt)
    shaped: JsonObject = {
        "index": index,
        "text": plan.echoes[choice.prompt] + choice.text,
        "logprobs": _logprobs(plan, (*prompt, *choice.tokens) if plan.echo else choice.tokens, 0),
        "finish_reason": choice.finish,
        "stop_reason": choice.stop,
    }
    if plan.tells_prompt:
        shaped["prompt_logprobs"] = prompt_logprobs(prompt)
    return shaped


def _logprobs(plan: _Plan, tokens: Sequence[TokenInfo], offset: int) -> JsonObject | None:
    return None if plan.params.logprobs is None else completion_logprobs(tokens, offset)


async def _events(plan: _Plan, generation: Generation, *, with_usage: bool) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream, the prompt before the first where it is echoed; an error ends it in order."""
    usage: JsonObject = {"usage": None} if with_usage else {}
    offsets: dict[int, int] = {}  # choice -> where its next token begins in its text
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                chunk = _chunk(plan, generation, piece, offsets)
                if chunk is not None:
                    yield event(plan.object([chunk]) | usage)
        if with_usage:
            yield event(plan.object([]) | {"usage": generation.usage()})
    except OctavoError as error:
        yield event(error_body(error))
    yield DONE


def _chunk(plan: _Plan, generation: Generation, piece: Piece, offsets: dict[int, int]) -> JsonObject | None:
    """What one delta says, or None when it says nothing yet. Moves the choice's offset on."""
    delta, text, tokens = piece.delta, piece.delta.text, piece.delta.tokens
    if piece.index not in offsets:
        if not tokens and delta.finish is None:
            return None  # the prompt is still being computed
        offsets[piece.index] = 0
        if plan.echo:
            text = plan.echoes[piece.prompt] + text
            tokens = (*generation.prompt_infos(piece.prompt), *tokens)
    wants_logprobs = plan.params.logprobs is not None and bool(tokens)
    if not (text or wants_logprobs or delta.finish is not None):
        return None
    chunk: JsonObject = {
        "index": piece.index,
        "text": text,
        "logprobs": _logprobs(plan, tokens, offsets[piece.index]) if wants_logprobs else None,
        "finish_reason": delta.finish,
    }
    offsets[piece.index] += sum(characters_begun(info.data) for info in tokens)
    if delta.finish is not None:
        chunk["stop_reason"] = delta.stop
    return chunk
