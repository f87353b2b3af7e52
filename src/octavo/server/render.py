"""POST /v1/completions/render and /v1/chat/completions/render: the request as the engine would get it, in the
format of vLLM's routes of these names. Routers use them to get the tokens of a prompt.

The body runs through the code of the generating route up to submission, so that tokens, bounds and errors
are the same. Limits of a running engine (pool, quotas, queue) are not checked.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind, ThinkingState
from octavo.params import SamplerParams
from octavo.server.body import read_json
from octavo.server.chat import read_chat_body
from octavo.server.chat_run import PreparedChat, prepare_chat
from octavo.server.completions import prepare_completion
from octavo.server.dialects.error_shapes import REQUEST_ID_KEY
from octavo.server.errors import JsonObject
from octavo.server.generation import Edge, hold_grammar
from octavo.server.openai_schema import ChatBody, CompletionBody, GenerationBody
from octavo.server.prompts import chat_messages
from octavo.server.sessions import session_of
from octavo.server.sse import encode_json
from octavo.server.tokenize import json_array
from octavo.types import ChatMessage
from octavo.types import Request as EngineRequest

# vLLM's names of parameters with the same default. vLLM omits parameters with their default.
_VLLM_NAMES: Mapping[str, str] = {
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "seed": "seed",
    "stop": "stop",
    "stop_token_ids": "stop_token_ids",
    "ignore_eos": "ignore_eos",
    "min_tokens": "min_tokens",
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "skip_special_tokens": "skip_special_tokens",
    "include_stop": "include_stop_str_in_output",
    "allowed_token_ids": "allowed_token_ids",
}
_DEFAULTS = SamplerParams()
_VLLM_GRAMMARS: Mapping[GrammarKind, str] = {
    GrammarKind.JSON_SCHEMA: "json",
    GrammarKind.REGEX: "regex",
    GrammarKind.LARK: "grammar",
    GrammarKind.GBNF: "grammar",
}


async def render_completions(edge: Edge, request: Request) -> Response:
    """POST /v1/completions/render: an array with an object for each prompt. Raises as `completions`."""
    prepared = await prepare_completion(edge, request)
    body, wanted = prepared.body, prepared.wanted
    _refuse_beams(body)
    prompts = [prompt.tokens for prompt in prepared.prompts]
    async with hold_grammar(edge, request, wanted.params, wanted.tenant):  # compiled as for generation
        for prompt in prompts:
            edge.model.checked(replace(wanted, prompt=prompt))
    name, pieces = f"cmpl-{request.scope[REQUEST_ID_KEY]}", []
    for index, prompt in enumerate(prompts):
        sampling = _sampling(edge, body, wanted, len(prompt), max_tokens=0 if prepared.scores_only else None)
        request_id = name if len(prompts) == 1 else f"{name}-{index}"
        pieces.append(await _encode(edge, request_id, prompt, body, wanted, sampling, _NO_CHAT))
    return Response(b"[" + b",".join(pieces) + b"]", media_type="application/json")


async def render_chat(edge: Edge, request: Request) -> Response:
    """POST /v1/chat/completions/render: one object. Raises as `chat_completions`, and InvalidRequest for a
    turn of a session, whose prompt depends on earlier turns."""
    body = read_chat_body(await read_json(edge, request))
    messages = chat_messages(body.messages, edge.model.context_length)
    if session_of(request, body) is not None:
        raise InvalidRequest("session is given; allowed here: chats with all their messages", param="session")
    _refuse_beams(body)
    chat = await prepare_chat(edge, request, body)
    wanted = chat.wanted
    async with hold_grammar(edge, request, wanted.params, wanted.tenant):
        prompt = tuple(await edge.model.encode_chat(messages, chat.options, tenant=wanted.tenant))
        edge.model.checked(replace(wanted, prompt=prompt))
    sampling = _sampling(edge, body, wanted, len(prompt))
    request_id = f"chatcmpl-{request.scope[REQUEST_ID_KEY]}"
    chat_fields = _chat_fields(edge, body, chat, messages, prompt)
    whole = await _encode(edge, request_id, prompt, body, wanted, sampling, chat_fields)
    return Response(whole, media_type="application/json")


def _refuse_beams(body: GenerationBody) -> None:
    if body.use_beam_search:
        raise InvalidRequest(
            "use_beam_search is true; allowed here: false, as vLLM's render routes have it",
            param="use_beam_search",
        )


def _sampling(
    edge: Edge, body: GenerationBody, wanted: EngineRequest, num_prompt: int, max_tokens: int | None = None
) -> JsonObject:
    """vLLM's SamplingParams without defaults, but always with `max_tokens`, limited by the context."""
    params, room = wanted.params, edge.model.context_length - num_prompt
    limit = room if params.max_tokens is None else min(room, params.max_tokens)
    found: JsonObject = {} if wanted.n == 1 else {"n": wanted.n}
    found["max_tokens"] = limit if max_tokens is None else max_tokens
    for ours, theirs in _VLLM_NAMES.items():
        value = getattr(params, ours)
        if value != getattr(_DEFAULTS, ours):
            found[theirs] = value
    if params.logit_bias:
        found["logit_bias"] = {str(token): bias for token, bias in params.logit_bias}
    if body.bad_words:
        found["bad_words"] = body.bad_words
    grammar = body.output_grammar
    return found if grammar is None else {**found, "structured_outputs": _structured(grammar)}


def _structured(grammar: Grammar) -> JsonObject:
    is_json = grammar.kind is GrammarKind.JSON_SCHEMA
    return {_VLLM_GRAMMARS[grammar.kind]: json.loads(grammar.text) if is_json else grammar.text}


_NO_CHAT: JsonObject = {"reasoning_ended": None, "reasoning_parser_kwargs": None, "parse_context": None}


def _chat_fields(
    edge: Edge, body: ChatBody, chat: PreparedChat, messages: Sequence[ChatMessage], prompt: Sequence[int]
) -> JsonObject:
    """The fields that a parser of the answer needs."""
    answers, kwargs = edge.model.answers, dict(chat.options.template_kwargs)
    thinks = answers.thinking_format is not None
    tools = list(chat.options.tools) or None
    return {
        "reasoning_ended": answers.thinking_state(prompt) is ThinkingState.NONE if thinks else None,
        "reasoning_parser_kwargs": {"chat_template_kwargs": kwargs},
        "parse_context": {
            "tools": tools,
            "tool_choice": body.tool_choice or ("auto" if tools else "none"),
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "include_reasoning": chat.thinking.is_shown,
            "chat_template_kwargs": kwargs,
            "history_tool_call_cnt": sum(len(message.tool_calls) for message in messages),
        },
    }


async def _encode(
    edge: Edge,
    request_id: str,
    prompt: Sequence[int],
    body: ChatBody | CompletionBody,
    wanted: EngineRequest,
    sampling: JsonObject,
    chat_fields: JsonObject,
) -> bytes:
    """Encode all of vLLM's keys, null if unused. The tokens are written in pieces, so that other streams run
    in between."""
    options = body.stream_options
    rest: JsonObject = {
        "token_offsets": None,
        "features": None,
        "content_parts": None,
        "sampling_params": sampling,
        "model": edge.model.name,
        **chat_fields,
        "return_token_ids": body.return_token_ids,
        "output_mode": "tokens",
        "stream": bool(body.stream),
        "stream_options": None if options is None else options.model_dump(exclude_none=True),
        "cache_salt": body.cache_salt,
        "priority": -wanted.priority,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }
    head = encode_json({"request_id": request_id})[:-1]
    tokens = (await json_array(prompt, int)).encode()
    return head + b',"token_ids":' + tokens + b"," + encode_json(rest)[1:]
