"""Anthropic's `system` and `messages`, lists of content blocks, as the messages of a chat.

    system                     a system message
    user: text, tool_result    user messages and tool messages, in their order
    assistant: thinking, text, tool_use   one message with its reasoning, text and calls

Consecutive messages of one role are one turn, as in Anthropic's API: most chat templates require turns that
alternate. If the last message is the assistant's, the answer continues it (prefill).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from octavo.errors import InvalidRequest, shown, unsupported, wrong_value
from octavo.grammar import check_depth
from octavo.server.dialects.common import media_placeholder, require_string
from octavo.server.field_list import Body, done, field_list
from octavo.server.prompts import too_long
from octavo.tools.messages import CALLS_MAX
from octavo.types import ChatMessage, ToolCall

_BLOCKS: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
_MEDIA: Final = ("image", "document")
_BETWEEN_MESSAGES: Final = "\n\n"  # of one turn; nothing stands between the blocks of one message


class AnthropicBlock(Body):
    """`content[]`."""

    type: str = done(
        "user: text, tool_result; assistant: text, tool_use, thinking, redacted_thinking", default=...
    )
    text: str | None = done()
    id: str | None = done("of tool_use")
    name: str | None = done("of tool_use")
    input: dict[str, object] | None = done("of tool_use")
    tool_use_id: str | None = done("of tool_result: the id of a tool_use before it")
    content: object = done("of tool_result: text, or text blocks; images and documents become a sentence")
    is_error: bool | None = done("of tool_result: its text begins with `Error: `")
    thinking: str | None = done("passed to the template; most templates leave out old thinking")


class AnthropicMessage(Body):
    """`messages[]`."""

    role: Literal["user", "assistant", "system"] = done(default=...)
    content: str | list[AnthropicBlock] = done("text, or blocks", default=...)


@dataclass(frozen=True, slots=True)
class ParsedMessages:
    """A chat; `is_prefilled`: its last message is the beginning of the answer."""

    messages: list[ChatMessage]
    is_prefilled: bool


@dataclass(slots=True)
class _JoinedText:
    """Pieces of text, and the index of the message that the last one is from."""

    pieces: list[str] = field(default_factory=list)
    message_index: int = -1

    def add(self, text: str, message_index: int) -> None:
        """Append a piece, separated from a piece of another message."""
        if text and self.pieces and self.message_index != message_index:
            self.pieces.append(_BETWEEN_MESSAGES)
        if text:
            self.pieces.append(text)
            self.message_index = message_index


@dataclass(slots=True)
class _Turn:
    """A chat message, built of one or more of the client's."""

    role: str
    text: _JoinedText = field(default_factory=_JoinedText)
    thinking: _JoinedText = field(default_factory=_JoinedText)
    calls: list[ToolCall] = field(default_factory=list)
    function: str = ""  # of a tool's result
    call_id: str = ""

    def message(self) -> ChatMessage:
        """The message in the chat path's form."""
        text, thinking = "".join(self.text.pieces), "".join(self.thinking.pieces)
        calls = tuple(self.calls)
        return ChatMessage(self.role, text, self.function or None, calls, self.call_id, thinking)


def read_messages(system: object, messages: object, context_length: int) -> ParsedMessages:
    """The messages of a chat, reduced to text. Raises InvalidRequest that names the block. O(blocks)."""
    if not isinstance(messages, list) or not messages:
        raise InvalidRequest("messages must be a list of at least one message", param="messages")
    _check_count(messages, context_length)
    reader = _TurnReader()
    if system is not None:
        reader.add_system(system)
    for index, item in enumerate(messages):
        reader.add(item, index, is_last=index == len(messages) - 1)
    return reader.finish(f"messages[{len(messages) - 1}]")


def _check_count(messages: Sequence[object], context_length: int) -> None:
    """Raise RequestTooLarge for more blocks than the context has tokens: each block needs at least one."""
    blocks = 0
    for item in messages:
        content = item.get("content") if isinstance(item, Mapping) else None
        blocks += len(content) if isinstance(content, list) else 1
    if max(blocks, len(messages)) > context_length:
        raise too_long(f"{blocks:,} blocks in {len(messages):,} messages", "messages", context_length)


class _TurnReader:
    """Collects the messages into turns."""

    def __init__(self) -> None:
        self._turns: list[_Turn] = []
        self._functions: dict[str, str] = {}  # by the id of a call

    def add_system(self, given: object) -> None:
        """The system prompt: text, or text blocks."""
        text = _joined(given, "system")
        if text:
            self._turns.append(_Turn("system", _JoinedText([text])))

    def add(self, given: object, index: int, *, is_last: bool) -> None:
        """One message."""
        where = f"messages[{index}]"
        if not isinstance(given, Mapping):
            raise wrong_value(where, given, "an object with role and content")
        role, content = given.get("role"), given.get("content")
        if not isinstance(role, str) or role not in _BLOCKS:
            raise wrong_value(f"{where}.role", role, ", ".join(_BLOCKS))
        if isinstance(content, str):
            content = [{"type": "text", "text": content}]
        may_be_empty = role == "assistant" and is_last  # an empty prefill is no prefill
        if not isinstance(content, list) or not (content or may_be_empty):
            raise wrong_value(f"{where}.content", content, "a string, or a list of at least one block")
        for block_index, block in enumerate(content):
            self._add_block(block, role, index, f"{where}.content[{block_index}]")

    def finish(self, where: str) -> ParsedMessages:
        """The parsed chat. Raises InvalidRequest if no answer can follow the last message, which is at
        `where`."""
        is_prefilled = bool(self._turns) and self._turns[-1].role == "assistant"
        if is_prefilled:
            last = self._turns[-1]
            _check_prefill(last, where)
            is_prefilled = bool(last.text.pieces)
            if not is_prefilled:
                self._turns.pop()
        if not self._turns:
            raise InvalidRequest(
                f"{where} is empty, and so is all before it; allowed: a message of the user", param="messages"
            )
        return ParsedMessages([turn.message() for turn in self._turns], is_prefilled)

    def _turn_of(self, role: str) -> _Turn:
        """The last turn if it has that role, else a new one."""
        if not self._turns or self._turns[-1].role != role or role == "system":
            self._turns.append(_Turn(role))
        return self._turns[-1]

    def _add_block(self, given: object, role: str, message_index: int, where: str) -> None:
        block = _checked_block(given, where, _BLOCKS[role])
        kind = block["type"]
        if kind == "tool_result":
            self._add_result(block, where)
            return
        turn = self._turn_of(role)
        match kind:
            case "text":
                turn.text.add(require_string(block, "text", where), message_index)
            case "thinking":
                turn.thinking.add(require_string(block, "thinking", where), message_index)
            case "tool_use":
                self._add_call(turn, block, where)

    def _add_call(self, turn: _Turn, block: Mapping[str, object], where: str) -> None:
        name, call_id = require_string(block, "name", where), require_string(block, "id", where)
        given = block.get("input")
        if not isinstance(given, Mapping):
            raise wrong_value(f"{where}.input", given, "an object")
        if len(turn.calls) == CALLS_MAX:
            raise InvalidRequest(
                f"{where} is one call of more than {CALLS_MAX} in a turn; allowed: {CALLS_MAX}",
                param="messages",
            )
        check_depth(given, "messages")
        turn.calls.append(ToolCall(name, json.dumps(given, ensure_ascii=False), call_id))
        self._functions[call_id] = name

    def _add_result(self, block: Mapping[str, object], where: str) -> None:
        call_id = require_string(block, "tool_use_id", where)
        if call_id not in self._functions:
            raise wrong_value(f"{where}.tool_use_id", call_id, "the id of a tool_use in a message before it")
        is_error, content = block.get("is_error"), block.get("content")
        if is_error not in (None, False, True):
            raise wrong_value(f"{where}.is_error", is_error, "true or false")
        text = "" if content is None else _joined(content, f"{where}.content", has_media=True)
        if is_error:
            text = f"Error: {text}"  # chat templates have no field for it
        result = _Turn("tool", _JoinedText([text]), function=self._functions[call_id], call_id=call_id)
        self._turns.append(result)


def _check_prefill(last: _Turn, where: str) -> None:
    """Raise InvalidRequest for a last assistant message that the answer cannot continue."""
    if last.calls:
        raise InvalidRequest(
            f"{where} ends the chat with tool_use; allowed: a user message after it, with the tool_result",
            param="messages",
        )
    if last.thinking.pieces and not last.text.pieces:
        raise InvalidRequest(
            f"{where} ends the chat with thinking alone; allowed: text, which the answer continues",
            param="messages",
        )


def _joined(given: object, where: str, *, has_media: bool = False) -> str:
    """A string, or the text of text blocks; `has_media`: an image among them becomes a sentence."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list):
        raise wrong_value(where, given, "a string, or a list of text blocks")
    places = [f"{where}[{index}]" for index in range(len(given))]
    kinds = ("text", *(_MEDIA if has_media else ()))
    blocks = [_checked_block(block, place, kinds) for block, place in zip(given, places, strict=True)]
    return "".join(_block_text(block, place) for block, place in zip(blocks, places, strict=True))


def _block_text(block: Mapping[str, object], where: str) -> str:
    kind = str(block["type"])
    return media_placeholder(kind) if kind in _MEDIA else require_string(block, "text", where)


def _checked_block(given: object, where: str, kinds: tuple[str, ...]) -> Mapping[str, object]:
    """The block, if it is an object of one of the types `kinds`. Raises InvalidRequest."""
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or not isinstance(kind, str):
        raise wrong_value(where, given, f"an object with a type: {', '.join(kinds)}")
    if kind not in kinds:
        raise unsupported(
            f"{where}.type is {shown(kind)}; allowed: {', '.join(kinds)} (this model reads text only)",
            where.partition("[")[0],
        )
    field_list(AnthropicBlock).check(given, f"{where}.")
    return given
