"""The items of a conversation, as stored and as answered: their ids, and the chat messages that they stand
for.

msg_<response>_<k>    message                 the response that it was first part of, and its index among
fc_<response>_<k>     function_call           that response's own items
fco_<response>_<k>    function_call_output
ctc_<response>_<k>    custom_tool_call, and ctco for its output
rs_<response>_<k>     reasoning

reasoning, message, function_call...    one message of the assistant
function_call_output                    one message of a tool; the same for custom tools
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

from octavo.conversations.responses import RESPONSE_PREFIX
from octavo.engine.outputs import ChatMessage
from octavo.server.dialects.responses_tools import custom_arguments, joined_name
from octavo.server.errors import JsonObject
from octavo.types import ToolCall

_PREFIXES = {
    "message": "msg",
    "function_call": "fc",
    "function_call_output": "fco",
    "custom_tool_call": "ctc",
    "custom_tool_call_output": "ctco",
    "reasoning": "rs",
}
_ITEM_ID = re.compile(r"(?:msg|fc|fco|ctc|ctco|rs)_((?:k[0-9]{1,5}-)?[A-Za-z0-9_-]{24})_[0-9]{1,6}")
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ROLES = {"system": "system", "developer": "system", "user": "user"}
_OVERHEAD_CHARS = 32  # JSON around an item, or around a part of one, takes at least this


def item_id(kind: str, response_id: str, index: int) -> str:
    """The id of the response's item at this index."""
    return f"{_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}_{index}"


def response_of(given: str) -> str | None:
    """The id of the response that the item was first part of; None if it is no id of ours."""
    found = _ITEM_ID.fullmatch(given)
    return None if found is None else RESPONSE_PREFIX + found.group(1)


def with_ids(items: Sequence[JsonObject], response_id: str) -> list[JsonObject]:
    """The items with ids of that response; an id that an item already has is replaced."""
    return [
        {"id": item_id(str(item["type"]), response_id, index)} | {k: v for k, v in item.items() if k != "id"}
        for index, item in enumerate(items)
    ]


def chars_of(items: Sequence[JsonObject]) -> int:
    """About how many characters the items have, without logprobs."""
    sizes = dict[int, int]()  # by object: one item may be listed many times
    return sum(sizes[id(i)] if id(i) in sizes else sizes.setdefault(id(i), _chars(i)) for i in items)


def _chars(item: JsonObject) -> int:
    """Texts, and the JSON around them."""
    total = _OVERHEAD_CHARS
    for value in item.values():
        if isinstance(value, list):
            total += sum(_OVERHEAD_CHARS + len(text_of([part])) for part in value)
        else:
            total += len(value) if isinstance(value, str) else 0
    return total


def text_of(content: object) -> str:
    """The text of a string, or of parts."""
    if isinstance(content, str):
        return content
    parts = cast("list[JsonObject]", content or [])
    return "".join(str(part.get("text", part.get("refusal", ""))) for part in parts)


def messages_of(items: Sequence[JsonObject], instructions: str | None) -> list[ChatMessage]:
    """The conversation as a chat."""
    found = [ChatMessage("system", instructions)] if instructions else []
    turn = _AssistantTurn()
    for item in items:
        if turn.add(item):
            continue
        found += turn.take()
        if item["type"] in OUTPUTS:
            answered = str(item["call_id"])
            found.append(ChatMessage("tool", text_of(item["output"]), tool_call_id=answered))
        elif item.get("role") in _ROLES:
            found.append(ChatMessage(_ROLES[str(item["role"])], text_of(item["content"])))
        else:
            assert turn.add(item)
    return found + turn.take()


@dataclass(slots=True)
class _AssistantTurn:
    """Consecutive items of the assistant, joined into one message."""

    thinking: str = ""
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def add(self, item: JsonObject) -> bool:
        """Add the item; False if it cannot be part of the same message."""
        match item:
            case {"type": "reasoning"} if self.content is None and not self.calls:
                self.thinking += text_of(item.get("content") or item.get("summary"))
            case {"type": "message", "role": "assistant"} if self.content is None or self.calls:
                self.content = (self.content or "") + text_of(item["content"])
            case {"type": "function_call"}:
                name, arguments, call_id = (str(item[key]) for key in ("name", "arguments", "call_id"))
                namespace = str(item.get("namespace") or "")
                name = joined_name(namespace, name) if namespace else name
                self.calls.append(ToolCall(name, arguments or "{}", call_id))
            case {"type": "custom_tool_call"}:
                arguments = json.dumps(custom_arguments(str(item["input"])), ensure_ascii=False)
                self.calls.append(ToolCall(str(item["name"]), arguments, str(item["call_id"])))
            case _:
                return False
        return True

    def take(self) -> list[ChatMessage]:
        """The message, if there is one, and empty the turn. Thinking without text or calls is dropped."""
        content, calls, thinking = self.content, tuple(self.calls), self.thinking
        self.content, self.calls, self.thinking = None, [], ""
        if content is None and not calls:
            return []
        return [ChatMessage("assistant", content or "", tool_calls=calls, reasoning=thinking)]
