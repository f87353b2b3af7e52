"""The inputs of a request, `messages` or `prompt`, in all the forms that OpenAI allows."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.engine.outputs import ChatMessage, ServedModel
from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.server.openai_schema import check_token

PROMPTS_MAX = 256

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


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
        raise RequestTooLarge(
            f"{len(raw):,} messages; the model's context is {context_length:,} tokens", param="messages"
        )
    return [_message(item, f"messages[{index}]") for index, item in enumerate(raw)]


async def encode_prompts(raw: object, model: ServedModel) -> list[Prompt]:
    """The prompts of a completion: text, a list of texts, token ids, or a list of lists of them."""
    if isinstance(raw, str):
        given: list[object] = [raw]
    elif not isinstance(raw, list) or not raw:
        raise _bad_prompt("it is missing or empty")
    elif _is_id(raw[0]):
        given = [raw]
    else:
        given = raw
    if len(given) > PROMPTS_MAX:
        raise InvalidRequest(
            f"prompt has {len(given):,} prompts; allowed: 1 to {PROMPTS_MAX}", param="prompt"
        )
    return [await _encode(item, model) for item in given]


async def _encode(item: object, model: ServedModel) -> Prompt:
    if isinstance(item, str):
        tokens = await model.encode(item)
        if not tokens:
            raise _bad_prompt("it has no tokens")
        return Prompt(tuple(tokens), item)
    if not isinstance(item, list) or not item:
        raise _bad_prompt("one of the prompts is empty, or neither text nor token ids")
    if len(item) > model.context_length:
        raise RequestTooLarge(
            f"the prompt has {len(item):,} tokens; the model's context is {model.context_length:,}",
            param="prompt",
        )
    for token in item:
        if not _is_id(token):
            raise _bad_prompt("token ids must be integers")
        check_token("prompt", token, model.vocab_size)
    return Prompt(tuple(item), None)


def _message(raw: object, where: str) -> ChatMessage:
    if not isinstance(raw, dict):
        raise InvalidRequest(f"{where} must be an object with role and content", param="messages")
    role, name = raw.get("role"), raw.get("name")
    if not isinstance(role, str) or role not in _ROLES:
        shown = _shown(role)
        raise InvalidRequest(f"{where}.role is {shown}; allowed: {', '.join(_ROLES)}", param="messages")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{where}.name must be a string", param="messages")
    if raw.get("tool_calls") or raw.get("function_call"):
        raise InvalidRequest(f"{where}: tool calls are not supported by this server", param="messages")
    return ChatMessage(_ROLES[role], _content(raw.get("content"), f"{where}.content"), name)


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
