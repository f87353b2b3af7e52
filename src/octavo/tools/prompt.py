"""Tools as messages, for a chat template that does not support them: a part of the system message describes
the functions and the format of calls; calls and results of earlier turns become text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from octavo.tools.formats import ToolFormat
from octavo.types import ChatMessage, ToolCall

_TOOLS_TEXT = """You can call functions. Each line between <tools> and </tools> describes one:
<tools>
{tools}
</tools>
To call a function, answer with nothing but its name and arguments, written so:
{example}
What it returns comes back between <tool_response> and </tool_response>."""


def as_messages(
    messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, object]], form: ToolFormat
) -> list[ChatMessage]:
    """The chat, in messages of text alone."""
    text_only = [_without_calls(message, form) for message in _joined_results(messages)]
    if not tools:
        return text_only
    described = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    example = form.written([ToolCall("function-name", '{"argument": "value"}')])
    text = _TOOLS_TEXT.replace("{tools}", described).replace("{example}", example)
    if text_only and text_only[0].role == "system":
        return [replace(text_only[0], content=f"{text_only[0].content}\n\n{text}"), *text_only[1:]]
    return [ChatMessage("system", text), *text_only]


def _without_calls(message: ChatMessage, form: ToolFormat) -> ChatMessage:
    if not message.tool_calls:
        return message
    calls = form.written(message.tool_calls)
    content = f"{message.content}\n{calls}" if message.content else calls
    return replace(message, content=content, tool_calls=())


def _joined_results(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Results of tools as user messages; consecutive results are joined to one message."""
    joined: list[ChatMessage] = []
    was_result = False
    for message in messages:
        is_result = message.role == "tool"
        if is_result:
            text = f"<tool_response>\n{message.content}\n</tool_response>"
            if was_result:
                joined[-1] = replace(joined[-1], content=f"{joined[-1].content}\n{text}")
            else:
                joined.append(ChatMessage("user", text))
        else:
            joined.append(message)
        was_result = is_result
    return joined
