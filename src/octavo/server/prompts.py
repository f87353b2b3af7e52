"""The inputs of a request, `messages` or `prompt`, in all the forms that OpenAI allows."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

from starlette.requests import Request

from octavo.engine.outputs import ChatMessage, ServedModel
from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.server.errors import HttpRefusal
from octavo.server.openai_schema import ChatOptionsBody, check_token
from octavo.server.request_fields import Place, refuse_unsupported
from octavo.server.tenant import is_operator
from octavo.types import ChatOptions, ToolCall

PROMPTS_MAX = 256

CALLS_MAX = 128  # in one message
_ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a completion: its token ids, and its text where the client gave text."""

    tokens: tuple[int, ...]
    text: str | None


def chat_messages(raw: object, context_length: int) -> list[ChatMessage]:
    """The messages of a chat, reduced to text; raises InvalidRequest that names the message."""
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    if len(raw) > context_length:  # each takes a token at least
        raise too_long(f"{len(raw):,} messages", "messages", context_length)
    return [_message(item, f"messages[{index}]") for index, item in enumerate(raw)]


def chat_options(request: Request, body: ChatOptionsBody) -> ChatOptions:
    """How the messages become a prompt. Raises HttpRefusal where a tenant asks for what is an operator's."""
    options = body.chat_options
    if options.allow_control_tokens and not is_operator(request):
        raise HttpRefusal(
            HTTPStatus.FORBIDDEN,
            "allow_control_tokens is true; allowed: false, or an operator's key",
            code="operators_only",
        )
    return options


async def encode_prompts(raw: object, model: ServedModel, tenant: str) -> list[Prompt]:
    """The prompts of a completion: text, a list of texts, token ids, or a list of lists of them.

    Nothing is encoded before all token ids are known to be right, and no text before all texts are known to
    be short enough.
    """
    given = _listed(raw)
    for item in given:
        _check_form(item, model.context_length)
    ids = {}
    for place, item in enumerate(given):
        if isinstance(item, list):
            ids[place] = token_ids(item, "prompt", model)
            await asyncio.sleep(0)  # a body may hold millions: others' streams go on between prompts
    texts = [item for item in given if isinstance(item, str)]
    encoded = await model.encode_all(texts, tenant=tenant) if texts else []
    if not all(encoded):
        raise _bad_prompt("it has no tokens")
    of_texts = iter(Prompt(tuple(tokens), text) for tokens, text in zip(encoded, texts, strict=True))
    return [Prompt(ids[place], None) if place in ids else next(of_texts) for place in range(len(given))]


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


def token_ids(given: list[object], param: str, model: ServedModel) -> tuple[int, ...]:
    """A client's token ids: no more than the context, and all in the vocabulary. Raises InvalidRequest.

    O(n), without a Python loop where all is well.
    """
    _check_count(given, param, model.context_length)
    if not set(map(type, given)) <= {int}:  # a bool is no id
        raise InvalidRequest(f"{param} is wrong: token ids must be integers", param=param)
    ids = cast("list[int]", given)
    if ids:
        check_token(param, min(ids), model.vocab_size)
        check_token(param, max(ids), model.vocab_size)
    return tuple(ids)


def too_long(given: str, param: str, context_length: int) -> RequestTooLarge:
    """The refusal of what no context holds; clients look for these words, to ask a larger model instead."""
    return RequestTooLarge(
        f"{given}; this model's maximum context length is {context_length:,} tokens",
        param=param,
        code="context_length_exceeded",
    )


def _message(raw: object, where: str) -> ChatMessage:
    if not isinstance(raw, dict):
        raise InvalidRequest(f"{where} must be an object with role and content", param="messages")
    role, name = raw.get("role"), raw.get("name")
    if not isinstance(role, str) or role not in _ROLES:
        shown = _shown(role)
        raise InvalidRequest(f"{where}.role is {shown}; allowed: {', '.join(_ROLES)}", param="messages")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{where}.name must be a string", param="messages")
    refuse_unsupported(raw, Place.MESSAGE, f"{where}.")
    calls = _calls(raw.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else ()
    content, answered = raw.get("content"), raw.get("tool_call_id")
    thought = (raw.get("reasoning_content") or raw.get("reasoning")) if role == "assistant" else None
    if answered is not None and not isinstance(answered, str):
        raise InvalidRequest(f"{where}.tool_call_id must be a string", param="messages")
    if thought is not None and not isinstance(thought, str):
        raise InvalidRequest(f"{where}.reasoning_content must be a string", param="messages")
    text = "" if content in (None, []) and calls else _content(content, f"{where}.content")
    return ChatMessage(
        _ROLES[role], text, name, calls, (answered or "") if role == "tool" else "", thought or ""
    )


def _calls(raw: object, where: str) -> tuple[ToolCall, ...]:
    """The calls that an assistant made."""
    if raw is None:
        return ()
    if not isinstance(raw, list) or len(raw) > CALLS_MAX:
        raise InvalidRequest(f"{where} must be a list of up to {CALLS_MAX} calls", param="messages")
    calls = []
    for index, item in enumerate(raw):
        function = item.get("function") if isinstance(item, dict) else None
        name, arguments, call_id = (
            (function.get("name"), function.get("arguments"), item.get("id"))
            if isinstance(function, dict)
            else (None, None, None)
        )
        if not isinstance(name, str) or not isinstance(arguments, str) or not isinstance(call_id, str | None):
            raise InvalidRequest(
                f'{where}[{index}] must be {{"id": ..., "type": "function", "function": {{"name": ..., '
                '"arguments": ...}}}}, and arguments a string of JSON',
                param="messages",
            )
        calls.append(ToolCall(name, arguments or "{}", call_id or ""))
    return tuple(calls)


def _content(raw: object, where: str) -> str:
    """Text, or the text parts of a list of parts joined."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest(f"{where} must be a string or a list of text parts", param="messages")
    texts = []
    for part in raw:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            shown = _shown(kind)
            raise InvalidRequest(
                f"{where} has a part of type {shown}; this model reads text only", param="messages"
            )
        text = part.get("text")
        if not isinstance(text, str):
            raise InvalidRequest(f"{where} has a text part without text", param="messages")
        texts.append(text)
    return "".join(texts)


def _shown(value: object) -> str:
    """A value in a message: no more than a few words of it, and nothing nested."""
    return repr(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _bad_prompt(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"prompt is wrong: {reason}; "
        "allowed: a string, a list of strings, token ids, or a list of lists of them",
        param="prompt",
    )
