"""Ollama's messages as those of a chat. Its calls have arguments as objects and mostly no ids, and its
results name the function instead of the call. Here calls get ids, and results the ids of the calls that they
answer.

Source: ollama's `api/types.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from octavo.errors import InvalidRequest, wrong_value
from octavo.grammar import check_depth
from octavo.server.errors import JsonObject
from octavo.server.field_list import Body, done, field_list
from octavo.server.openai_schema import MessageCall
from octavo.server.prompts import too_long
from octavo.server.sse import encode_json
from octavo.tools.messages import CALLS_MAX, read_message
from octavo.types import ChatMessage, ToolCall

_CALL = '{"function": {"name": ..., "arguments": {...}}}'


class OllamaMessage(Body):
    """`messages[]`."""

    role: Literal["system", "user", "assistant", "tool"] = done("system, user, assistant, tool", default=...)
    content: str | None = done("text")
    thinking: str | None = done("of an assistant: passed to the template")
    tool_calls: list[MessageCall] | None = done("of an assistant; arguments are an object")
    tool_name: str | None = done("of a tool: which function it was")
    tool_call_id: str | None = done("of a tool: which call it answers")


@dataclass(slots=True)
class _Calls:
    """The calls of a chat so far."""

    count: int = 0
    open: list[ToolCall] = field(default_factory=list)  # of the last message with calls: without a result

    def take_answered(self, name: str) -> str:
        """The id of the call that a result of this function answers: the first of that name, else the
        first."""
        if not self.open:
            return ""
        index = next((at for at, call in enumerate(self.open) if call.name == name), 0)
        return self.open.pop(index).call_id


def chat_messages(given: object, context_length: int) -> list[ChatMessage]:
    """The messages, reduced to text; may be empty. Raises InvalidRequest that names the message."""
    if given is None:
        return []
    if not isinstance(given, list):
        raise wrong_value("messages", given, "a list of messages")
    if len(given) > context_length:  # each takes at least one token
        raise too_long(f"{len(given):,} messages", "messages", context_length)
    calls = _Calls()
    return [_message(item, f"messages[{index}]", calls) for index, item in enumerate(given)]


def is_prefilled(messages: list[ChatMessage]) -> bool:
    """Whether the last message is the beginning of the answer, which Ollama continues."""
    last = messages[-1]
    return last.role == "assistant" and bool(last.content) and not last.tool_calls


def _message(given: object, where: str, calls: _Calls) -> ChatMessage:
    if not isinstance(given, Mapping):
        raise InvalidRequest(f"{where} must be an object with role and content", param="messages")
    field_list(OllamaMessage).check(given, f"{where}.")
    role = _text(given, "role", where).lower()
    message: JsonObject = {"role": role, "content": _text(given, "content", where)}
    if role == "assistant":
        message["reasoning_content"] = _text(given, "thinking", where) or None
        message["tool_calls"] = _calls_of(given.get("tool_calls"), f"{where}.tool_calls", calls)
    elif role == "tool":
        name, call_id = _text(given, "tool_name", where), _text(given, "tool_call_id", where)
        message |= {"name": name or None, "tool_call_id": call_id or calls.take_answered(name)}
    return read_message(message, where)


def _text(message: Mapping[str, object], field: str, where: str) -> str:
    value = message.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong_value(f"{where}.{field}", value, "a string")
    return value


def _calls_of(given: object, where: str, calls: _Calls) -> list[JsonObject]:
    if given is None:
        return []
    if not isinstance(given, list) or len(given) > CALLS_MAX:
        raise InvalidRequest(f"{where} must be a list of up to {CALLS_MAX} calls", param="messages")
    made = [_call(item, f"{where}[{index}]", calls.count + index) for index, item in enumerate(given)]
    calls.count += len(made)
    calls.open = made or calls.open
    return [{"id": c.call_id, "function": {"name": c.name, "arguments": c.arguments}} for c in made]


def _call(given: object, where: str, number: int) -> ToolCall:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(function, Mapping):
        raise InvalidRequest(f"{where} must be {_CALL}", param="messages")
    name, arguments, call_id = function.get("name"), function.get("arguments"), given.get("id")
    if not isinstance(name, str) or not isinstance(arguments, Mapping | None):
        raise InvalidRequest(f"{where} must be {_CALL}", param="messages")
    if not isinstance(call_id, str | None):
        raise wrong_value(f"{where}.id", call_id, "a string")
    check_depth(arguments, "messages")
    try:
        text = encode_json(arguments or {}).decode()
    except ValueError:
        raise InvalidRequest(
            f"{where} has a number that is too large for JSON; allowed: up to 1.8e308", param="messages"
        ) from None
    # The strictest templates require nine letters and digits.
    return ToolCall(name, text, call_id or f"call{number % 100_000:05d}")
