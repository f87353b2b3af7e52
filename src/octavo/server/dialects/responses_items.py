"""The items of a conversation, as they are stored and told: their ids, and the messages that they mean.

msg_<response>_<k>    message                 the response in which it first stood, and its place among
fc_<response>_<k>     function_call           that one's own items: an id tells where to look for it
fco_<response>_<k>    function_call_output
ctc_<response>_<k>    custom_tool_call, and ctco for its output
rs_<response>_<k>     reasoning

reasoning, message, function_call...    one message of the assistant, as a template writes it
function_call_output                    one message of a tool; calls of custom tools alike
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
_AROUND_CHARS = 32  # what JSON puts around an item, or around a part of one, takes this at least


def item_id(kind: str, response_id: str, place: int) -> str:
    """The id of that response's item."""
    return f"{_PREFIXES[kind]}_{response_id.removeprefix(RESPONSE_PREFIX)}_{place}"


def response_of(given: str) -> str | None:
    """The id of the response in which that item first stood; None: it is no id of ours."""
    found = _ITEM_ID.fullmatch(given)
    return None if found is None else RESPONSE_PREFIX + found.group(1)


def numbered(items: Sequence[JsonObject], response_id: str) -> list[JsonObject]:
    """The same as that response's own items, with ids; they have none yet, or lose it."""
    return [
        {"id": item_id(str(item["type"]), response_id, place)} | {k: v for k, v in item.items() if k != "id"}
        for place, item in enumerate(items)
    ]


def chars_of(items: Sequence[JsonObject]) -> int:
    """About how many characters the items have, logprobs apart. One that stands there often is looked at
    once."""
    sizes = dict[int, int]()  # by object
    return sum(sizes[id(i)] if id(i) in sizes else sizes.setdefault(id(i), _chars(i)) for i in items)


def _chars(item: JsonObject) -> int:
    """Texts, and what is around them."""
    total = _AROUND_CHARS
    for value in item.values():
        if isinstance(value, list):
            total += sum(_AROUND_CHARS + len(text_of([part])) for part in value)
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
    """The conversation as a template is told it."""
    found = [ChatMessage("system", instructions)] if instructions else []
    said = _AssistantTurn()
    for item in items:
        if said.takes(item):
            continue
        found += said.message()
        if item["type"] in OUTPUTS:
            answered = str(item["call_id"])
            found.append(ChatMessage("tool", text_of(item["output"]), tool_call_id=answered))
        elif item.get("role") in _ROLES:
            found.append(ChatMessage(_ROLES[str(item["role"])], text_of(item["content"])))
        else:
            assert said.takes(item)
    return found + said.message()


@dataclass(slots=True)
class _AssistantTurn:
    """What an assistant has said in one go, as it is gathered."""

    thought: str = ""
    content: str | None = None
    calls: list[ToolCall] = field(default_factory=list)

    def takes(self, item: JsonObject) -> bool:
        """Whether the item is part of it, which it is from now on."""
        match item:
            case {"type": "reasoning"} if self.content is None and not self.calls:
                self.thought += text_of(item.get("content") or item.get("summary"))
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

    def message(self) -> list[ChatMessage]:
        """It, and from now on nothing. Thinking alone, after which nothing was said, is no message."""
        content, calls, thought = self.content, tuple(self.calls), self.thought
        self.content, self.calls, self.thought = None, [], ""
        if content is None and not calls:
            return []
        return [ChatMessage("assistant", content or "", tool_calls=calls, reasoning=thought)]
