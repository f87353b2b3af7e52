"""Parses the inputs of a request, `messages` or `prompt`, in all the forms that OpenAI allows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from starlette.requests import Request

from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.server.errors import HttpRefusal
from octavo.server.field_list import field_list
from octavo.server.openai_schema import (
    PROMPTS_MAX,
    ChatOptionsBody,
    ModelBounds,
    OpenAIMessage,
    check_token,
)
from octavo.server.tenant import is_operator
from octavo.serving.client import EngineClient
from octavo.tools.messages import read_message
from octavo.types import ChatOptions


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a completion: its token ids, and its text if the client sent text."""

    tokens: tuple[int, ...]
    text: str | None


def chat_messages(raw: object, context_length: int) -> list[ChatMessage]:
    """The messages of a chat, reduced to text. Raises InvalidRequest, which names the message."""
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    if len(raw) > context_length:  # each has at least one token
        raise too_long(f"{len(raw):,} messages", "messages", context_length)
    return [_message(item, f"messages[{index}]") for index, item in enumerate(raw)]


def chat_options(request: Request, body: ChatOptionsBody) -> ChatOptions:
    """The chat template's options. Raises HttpRefusal if a tenant sets an option of operators."""
    options = body.chat_options
    if options.allow_control_tokens and not is_operator(request):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN,
            "allow_control_tokens is true; allowed: false, or an operator's key",
            code="operators_only",
        )
    return options


async def encode_prompts(raw: object, model: EngineClient, tenant: str, suffix: str = "") -> list[Prompt]:
    """The prompts of a completion: text, a list of texts, token ids, or a list of lists of them. With a
    `suffix` they are fill-in-the-middle prompts.

    Checks all token ids, and the length of all texts, before it encodes anything.
    """
    given = _checked(raw, model.context_length)
    ids = {}
    for place, item in enumerate(given):
        if isinstance(item, list):
            ids[place] = token_ids(item, "prompt", model)
            await asyncio.sleep(0)  # a body may hold millions of ids: lets other streams run
    texts = [item for item in given if isinstance(item, str)]
    if suffix:
        return await _infill_prompts(given, ids, model, tenant, suffix)
    encoded = await model.encode_all(texts, tenant=tenant) if texts else []
    if not all(encoded):
        raise _bad_prompt("it has no tokens")
    of_texts = iter(Prompt(tuple(tokens), text) for tokens, text in zip(encoded, texts, strict=True))
    return [Prompt(ids[place], None) if place in ids else next(of_texts) for place in range(len(given))]


async def _infill_prompts(
    given: Sequence[object],
    ids: Mapping[int, tuple[int, ...]],
    model: EngineClient,
    tenant: str,
    suffix: str,
) -> list[Prompt]:
    """The prompts and the suffix between the model's fill-in-the-middle tokens."""
    infill = model.answers.infill
    if infill is None:
        raise InvalidRequest(
            "suffix is given, and this model's files name no fill-in-the-middle tokens; leave it out",
            param="suffix",
        )
    begin = await model.encode("", tenant=tenant)
    behind = await model.encode(suffix, tenant=tenant, add_special_tokens=False)
    prompts = []
    for place, item in enumerate(given):
        text = item if isinstance(item, str) else None
        before = (
            [*ids[place]]
            if text is None
            else await model.encode(text, tenant=tenant, add_special_tokens=False)
        )
        prompts.append(Prompt(tuple(infill.prompt(begin, before, behind)), text))
    return prompts


def check_prompts(raw: object, model: ModelBounds) -> None:
    """Raise InvalidRequest for prompts that are wrong before any text is encoded."""
    for item in _checked(raw, model.context_length):
        if isinstance(item, list):
            token_ids(item, "prompt", model)


def _checked(raw: object, context_length: int) -> list[object]:
    """The prompts, each of a valid form and within the context."""
    given = _listed(raw)
    for item in given:
        _check_form(item, context_length)
    return given


def _listed(raw: object) -> list[object]:
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not raw:
        raise _bad_prompt("it is missing or empty")
    if _is_id(raw[0]):
        return [raw]
    if len(raw) > PROMPTS_MAX:
        raise InvalidRequest(f"prompt has {len(raw):,} prompts; allowed: 1 to {PROMPTS_MAX}", param="prompt")
    return raw


def _check_form(item: object, context_length: int) -> None:
    if isinstance(item, str):
        return
    if not isinstance(item, list) or not item:
        raise _bad_prompt("one of the prompts is empty, or neither text nor token ids")
    _check_count(item, "prompt", context_length)


def _check_count(given: list[object], param: str, context_length: int) -> None:
    if len(given) > context_length:
        raise too_long(f"{param} has {len(given):,} tokens", param, context_length)


def token_ids(given: list[object], param: str, model: ModelBounds) -> tuple[int, ...]:
    """A client's token ids, checked against context and vocabulary. Raises InvalidRequest.

    O(n), without a Python loop if all are integers.
    """
    _check_count(given, param, model.context_length)
    if not set(map(type, given)) <= {int}:  # excludes bool
        raise InvalidRequest(f"{param} is wrong: token ids must be integers", param=param)
    ids = cast("list[int]", given)
    if ids:
        check_token(param, min(ids), model.vocab_size)
        check_token(param, max(ids), model.vocab_size)
    return tuple(ids)


def too_long(given: str, param: str, context_length: int) -> RequestTooLarge:
    """The refusal of a prompt beyond the context. Clients match its wording to choose another model."""
    return RequestTooLarge(
        f"{given}; this model's maximum context length is {context_length:,} tokens",
        param=param,
        code="context_length_exceeded",
    )


def _message(raw: object, where: str) -> ChatMessage:
    if isinstance(raw, dict):
        field_list(OpenAIMessage).check(raw, f"{where}.")
    return read_message(raw, where)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad_prompt(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"prompt is wrong: {reason}; "
        "allowed: a string, a list of strings, token ids, or a list of lists of them",
        param="prompt",
    )
