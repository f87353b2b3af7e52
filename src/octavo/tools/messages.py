"""Reads one message of a chat from OpenAI's JSON to a `ChatMessage`, for the server's routes and
`octavo.api`.

It knows no request: for errors, the caller passes the place of the message in it.
"""

from __future__ import annotations

from octavo.errors import InvalidRequest
from octavo.types import ChatMessage, ToolCall

CALLS_MAX = 128  # in one message
ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
# The text of a part of content; thinking is kept separate.
_TEXT_OF = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")


def read_message(raw: object, where: str) -> ChatMessage:
    """The message, reduced to text. Raises InvalidRequest, which says what is wrong at `where`."""
    if not isinstance(raw, dict):
        raise InvalidRequest(f"{where} must be an object with role and content", param="messages")
    role, name = raw.get("role"), raw.get("name")
    if not isinstance(role, str) or role not in ROLES:
        raise InvalidRequest(f"{where}.role is {_shown(role)}; allowed: {', '.join(ROLES)}", param="messages")
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{where}.name must be a string", param="messages")
    calls = _calls(raw.get("tool_calls"), f"{where}.tool_calls") if role == "assistant" else ()
    content, answered = raw.get("content"), raw.get("tool_call_id")
    thought = next((raw[name] for name in _THOUGHTS if raw.get(name)), None) if role == "assistant" else None
    if answered is not None and not isinstance(answered, str):
        raise InvalidRequest(f"{where}.tool_call_id must be a string", param="messages")
    if thought is not None and not isinstance(thought, str):
        raise InvalidRequest(f"{where}.reasoning_content must be a string", param="messages")
    is_silent = content in (None, []) and role == "assistant"  # only calls, or only thinking
    text, thinking = ("", "") if is_silent else _content(content, f"{where}.content", role == "assistant")
    thought = thought or (thinking if role == "assistant" else "")
    return ChatMessage(ROLES[role], text, name, calls, (answered or "") if role == "tool" else "", thought)


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


def _content(raw: object, where: str, may_think: bool) -> tuple[str, str]:
    """Text, or the text parts of a list of parts joined; and its parts that are thinking."""
    if isinstance(raw, str):
        return raw, ""
    if not isinstance(raw, list) or not raw:
        raise InvalidRequest(f"{where} must be a string or a list of text parts", param="messages")
    texts, thoughts = list[str](), list[str]()
    for part in raw:
        kind = part.get("type") if isinstance(part, dict) else None
        if not isinstance(kind, str) or kind not in _TEXT_OF or (kind == "thinking" and not may_think):
            raise InvalidRequest(
                f"{where} has a part of type {_shown(kind)}; this model reads text only", param="messages"
            )
        text = part.get(_TEXT_OF[kind])
        if not isinstance(text, str):
            raise InvalidRequest(f"{where} has a {kind} part without {_TEXT_OF[kind]}", param="messages")
        (thoughts if kind == "thinking" else texts).append(text)
    return "".join(texts), "".join(thoughts)


def _shown(value: object) -> str:
    """A value for an error message: at most a few words of it, and nothing nested."""
    return repr(value[:40]) if isinstance(value, str) else f"of type {type(value).__name__}"
