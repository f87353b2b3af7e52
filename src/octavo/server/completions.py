"""POST /v1/completions: from prompts to OpenAI's completion shapes, whole or as chunks."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.client import EngineClient
from octavo.engine.outputs import TokenInfo
from octavo.errors import InvalidRequest, OctavoError, require_range
from octavo.params import CHOICES_MAX, SamplerParams
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, error_body, json_response
from octavo.server.field_list import Place
from octavo.server.generation import (
    SESSION_HEADER,
    Choice,
    Edge,
    Generation,
    Piece,
    gather_for,
    held_grammar,
    submit_all,
)
from octavo.server.logprobs import characters_begun, completion_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import (
    CompletionBody,
    ModelBounds,
    UsageWish,
    check_stream_options,
    sampling_params,
)
from octavo.server.prompts import Prompt, check_prompts, encode_prompts
from octavo.server.request_fields import OPENAI_FIELDS
from octavo.server.sse import DONE, EventStream, event
from octavo.server.tenant import engine_request

# OpenAI's default on this route.
_MAX_TOKENS = 16
_TOTAL_CHOICES_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Plan:
    """How this request's answer is written."""

    answer_id: str
    created: int
    model: str
    logprobs: int | None  # as the client asked for them
    prompts: tuple[Prompt, ...]
    echoes: tuple[str, ...]  # by prompt: the prompt's text, or "" without echo
    echo: bool
    tells_prompt: bool  # the client asked for prompt_logprobs by name
    tells_ids: bool  # and for token ids
    usage: UsageWish  # in a stream

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
    raw = await read_json(edge, request)
    OPENAI_FIELDS.check(raw, Place.COMPLETIONS)
    _refuse_session(request)
    body = validate(CompletionBody, raw)
    edge.check_model(body.model)
    check_stream_options(body)
    n, wanted = body.num_choices, engine_request(request, body)
    made = _num_made(body, n)
    scores_only = _scores_only(body)
    wanted = replace(wanted, n=made, params=_params(body, edge.model, ranks=made > n))

    prompts = tuple(await encode_prompts(body.prompt, edge.model, wanted.tenant, body.suffix or ""))
    _check_total(made * len(prompts))
    plan = _Plan(
        answer_id=f"cmpl-{uuid.uuid4().hex}",
        created=int(time.time()),
        model=edge.model.name,
        logprobs=body.logprobs,
        prompts=prompts,
        echoes=tuple(_text_of(prompt, edge.model) if body.echo else "" for prompt in prompts),
        echo=bool(body.echo),
        tells_prompt=body.prompt_logprobs is not None,
        tells_ids=bool(body.return_token_ids),
        usage=body.usage_wish,
    )
    async with held_grammar(edge, request, wanted.params, wanted.tenant):
        tokens = [prompt.tokens for prompt in prompts]
        generation = await submit_all(edge, tokens, wanted, watch, scores_only=scores_only)
    if body.stream:
        return EventStream(_events(plan, generation), generation.cancel, generation.headers)
    choices = _likeliest(await gather_for(request, generation), n, made)
    shaped = [_choice(plan, generation, index, choice) for index, choice in enumerate(choices)]
    answer = plan.object(shaped) | {"usage": generation.usage()}
    return json_response(answer, headers=generation.headers)


def check_completion(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `completions` would of this body alone."""
    OPENAI_FIELDS.check(raw, Place.COMPLETIONS)
    body = validate(CompletionBody, raw)
    check_stream_options(body)
    _params(body, model, ranks=False)
    check_prompts(body.prompt, model)


def _check_total(choices: int) -> None:
    if choices > _TOTAL_CHOICES_MAX:
        raise InvalidRequest(
            f"n times the number of prompts is {choices:,}; allowed: up to {_TOTAL_CHOICES_MAX:,}", param="n"
        )


def _refuse_session(request: Request) -> None:
    if SESSION_HEADER in request.headers:
        raise InvalidRequest(
            f"the header {SESSION_HEADER} is given; allowed: on /v1/chat/completions, whose turns make a "
            "session",
            param="session",
        )


def _num_made(body: CompletionBody, n: int) -> int:
    """`best_of`: how many choices are made of a prompt, of which `n` are returned."""
    made = n if body.best_of is None else body.best_of
    require_range("best_of", made, n, CHOICES_MAX, hint="from n on")
    if made > n and (body.stream or body.use_beam_search):
        beside = "stream" if body.stream else "use_beam_search"
        raise InvalidRequest(
            f"best_of is {made} and n {n}; allowed with {beside}: best_of equal to n, or none",
            param="best_of",
        )
    return made


def _scores_only(body: CompletionBody) -> bool:
    """Whether nothing but the prompt's own logprobs is wanted. Raises InvalidRequest."""
    if body.max_tokens != 0:
        return False
    if not body.echo:
        raise InvalidRequest(
            "max_tokens is 0; allowed: 1 or more, or 0 with echo true (with logprobs it scores the prompt)",
            param="max_tokens",
        )
    if body.min_tokens:
        raise InvalidRequest(
            f"min_tokens is {body.min_tokens} and max_tokens 0; allowed: no more than max_tokens",
            param="min_tokens",
        )
    return True


def _likeliest(choices: list[Choice], n: int, made: int) -> list[Choice]:
    """Of the choices that were made of each prompt, the `n` of highest mean logprob per token, likeliest
    first; of equals the one of lower index."""
    if made == n:
        return choices
    groups = [choices[start : start + made] for start in range(0, len(choices), made)]
    return [best for group in groups for best in sorted(group, key=_mean_logprob, reverse=True)[:n]]


def _mean_logprob(choice: Choice) -> float:
    """One that ended before its first token is the last to be chosen."""
    logprobs = [info.logprob for info in choice.tokens if info.logprob is not None]
    return sum(logprobs) / len(logprobs) if logprobs else -math.inf


def _params(body: CompletionBody, model: ModelBounds, *, ranks: bool) -> SamplerParams:
    """`echo` with `logprobs` tells the prompt's logprobs too, so the engine is asked for them; and for those
    of tokens where choices are ranked by them."""
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(prompt_logprobs or 0, body.logprobs)
    return sampling_params(
        body,
        model,
        # The engine makes one token at least; where none is wanted it is dropped.
        max_tokens=_MAX_TOKENS if body.max_tokens is None else body.max_tokens or 1,
        logprobs=0 if ranks and body.logprobs is None else body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _text_of(prompt: Prompt, model: EngineClient) -> str:
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
    if plan.tells_ids:
        shaped["prompt_token_ids"] = plan.prompts[choice.prompt].tokens
        shaped["token_ids"] = ids_of(choice.tokens)
    return shaped


def _logprobs(plan: _Plan, tokens: Sequence[TokenInfo], offset: int) -> JsonObject | None:
    return None if plan.logprobs is None else completion_logprobs(tokens, offset)


async def _events(plan: _Plan, generation: Generation) -> AsyncGenerator[bytes, None]:
    """The chunks of a stream, the prompt before the first where it is echoed; an error ends it in order."""
    offsets: dict[int, int] = {}  # choice -> where its next token begins in its text
    try:
        async with aclosing(generation.pieces()) as pieces:
            async for piece in pieces:
                chunk = _chunk(plan, generation, piece, offsets)
                if chunk is not None:
                    yield event(plan.object([chunk]) | generation.told_usage(plan.usage))
        if plan.usage.last:
            yield event(plan.object([]) | {"usage": generation.usage()})
    except OctavoError as error:
        yield event(error_body(error))
    yield DONE


def _chunk(plan: _Plan, generation: Generation, piece: Piece, offsets: dict[int, int]) -> JsonObject | None:
    """What one delta says, or None when it says nothing yet. Moves the choice's offset on."""
    delta, text, tokens = piece.delta, piece.delta.text, piece.delta.tokens
    is_first = piece.index not in offsets
    if is_first:
        if not tokens and delta.finish is None:
            return None  # the prompt is still being computed
        offsets[piece.index] = 0
        if plan.echo:
            text = plan.echoes[piece.prompt] + text
            tokens = (*generation.prompt_infos(piece.prompt), *tokens)
    wants_logprobs = plan.logprobs is not None and bool(tokens)
    wants_ids = plan.tells_ids and (is_first or bool(tokens))
    if not (text or wants_logprobs or wants_ids or delta.finish is not None):
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
    if plan.tells_ids:
        chunk["token_ids"] = ids_of(delta.tokens)
        if is_first:
            chunk["prompt_token_ids"] = plan.prompts[piece.prompt].tokens
    return chunk
