"""Prompts and chats in all accepted forms, and their token ids.

"text"   ["text", ...]   {"prompt": "text"}   {"prompt_token_ids": [1, 2]}   [1, 2]   [[1, 2], ...]
[{"role": ..., "content": ...}, ...]   or a list of such chats; content is text, or a list of text parts
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NotRequired, TypedDict

from octavo.engine.requests import render_chat
from octavo.errors import InvalidRequest, as_tokens, is_number, shown
from octavo.params import TOKENS_MAX
from octavo.text.continuation import encode_rendered
from octavo.text.tokenizer import Tokenizer
from octavo.tools.definitions import tools_of
from octavo.tools.messages import read_message
from octavo.types import ChatMessage, ChatOptions


class TextPrompt(TypedDict):
    """Text, and the cache salt of its blocks."""

    prompt: str
    cache_salt: NotRequired[str | None]


class TokensPrompt(TypedDict):
    """Token ids, optionally with their text."""

    prompt_token_ids: Sequence[int]
    prompt: NotRequired[str | None]
    cache_salt: NotRequired[str | None]


# A dict of one of the two kinds above; typed as a mapping, because list literals match neither.
Prompt = str | Mapping[str, object] | Sequence[int]
Prompts = Prompt | Sequence[Prompt]
Message = ChatMessage | Mapping[str, object]
Chat = Sequence[Message]

_PROMPTS = (
    'text, {"prompt": text}, {"prompt_token_ids": list of token ids}, a list of token ids, or a list of such '
    "prompts"
)
_CHATS = "a list of messages, or a list of such chats"
_MESSAGE = "ChatMessage, or a dict with role and content"
_KEYS = ("prompt", "prompt_token_ids", "cache_salt")
_MESSAGE_KEYS = (
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "reasoning_content",
    "reasoning",
    "thinking",
)


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """One prompt for the engine. `text` None: token ids were given."""

    tokens: tuple[int, ...]
    text: str | None
    cache_salt: str = ""

    def cut_to(self, most: int | None, room: int) -> ReadPrompt:
        """The last `most` tokens of a prompt; None: all, -1: as many as fit into `room`."""
        most = room if most == -1 else most
        return self if most is None else replace(self, tokens=self.tokens[-most:])


def listed_prompts(given: object) -> list[object]:
    """A list of prompts, from a list or a single prompt. Raises InvalidRequest."""
    if isinstance(given, str | Mapping):
        return [given]
    if isinstance(given, bytes) or not isinstance(given, Collection):
        raise InvalidRequest(f"prompts is {shown(given)}; allowed: {_PROMPTS}", param="prompt")
    prompts = list(given)
    return [prompts] if prompts and is_number(prompts[0]) else prompts


def read_prompt(given: object, tokenizer: Tokenizer, *, add_special_tokens: bool = True) -> ReadPrompt:
    """Convert a prompt. Raises InvalidRequest."""
    if isinstance(given, str):
        return ReadPrompt(tuple(tokenizer.encode(given, add_special_tokens)), given)
    if not isinstance(given, Mapping):
        return ReadPrompt(_ids(given), None)
    _check_keys(given)
    salt, text, tokens = given.get("cache_salt"), given.get("prompt"), given.get("prompt_token_ids")
    if not isinstance(salt, str | None):
        raise InvalidRequest(f"cache_salt is {shown(salt)}; allowed: text", param="cache_salt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequest(f'a prompt\'s "prompt" is {shown(text)}; allowed: text', param="prompt")
    if tokens is not None:
        return ReadPrompt(_ids(tokens), text, salt or "")
    if text is None:
        raise InvalidRequest(f"a prompt is {shown(given)}; allowed: {_PROMPTS}", param="prompt")
    return ReadPrompt(tuple(tokenizer.encode(text, add_special_tokens)), text, salt or "")


def _check_keys(given: Mapping[object, object]) -> None:
    for key, value in given.items():
        if key not in _KEYS and value is not None:
            raise InvalidRequest(
                f"a prompt has {shown(key)}, which is not supported: models here read text alone; allowed: "
                f"{', '.join(_KEYS)}",
                param=str(key)[:80],
            )


def _ids(given: object) -> tuple[int, ...]:
    if isinstance(given, bytes) or not isinstance(given, Collection):
        raise InvalidRequest(f"a prompt is {shown(given)}; allowed: {_PROMPTS}", param="prompt")
    return as_tokens("a prompt", given, TOKENS_MAX, of="tokens of a prompt")


def listed_chats(given: object) -> list[list[ChatMessage]]:
    """A list of chats, from one or several; text is a user's message. Raises InvalidRequest."""
    if isinstance(given, str):
        return [[ChatMessage("user", given)]]
    if not isinstance(given, list | tuple):
        raise InvalidRequest(f"messages is {shown(given)}; allowed: {_CHATS}", param="messages")
    chats = [given] if given and isinstance(given[0], ChatMessage | Mapping) else given
    return [_chat(chat) for chat in chats]


def _chat(given: object) -> list[ChatMessage]:
    if isinstance(given, str):
        return [ChatMessage("user", given)]
    if not isinstance(given, list | tuple):
        raise InvalidRequest(f"a chat is {shown(given)}; allowed: {_CHATS}", param="messages")
    return [_message(message, index) for index, message in enumerate(given)]


def _message(given: object, index: int) -> ChatMessage:
    if isinstance(given, ChatMessage):
        return given
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"a chat message is {shown(given)}; allowed: {_MESSAGE}; chat() takes {_CHATS}", param="messages"
        )
    for key, value in given.items():
        if key not in _MESSAGE_KEYS and value:
            raise InvalidRequest(
                f"messages[{index}] has {shown(key)}, which is not supported; allowed: "
                f"{', '.join(_MESSAGE_KEYS)}",
                param="messages",
            )
    return read_message(dict(given), f"messages[{index}]")


def chat_options(
    add_generation_prompt: bool,
    continue_final_message: bool,
    template_kwargs: Mapping[str, object] | None,
    tools: Sequence[Mapping[str, object]] | None,
) -> ChatOptions:
    """The chat options. Raises InvalidRequest for contradictory ones."""
    if continue_final_message and add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both True; allowed: one of them (a message "
            "that goes on has no beginning)",
            param="continue_final_message",
        )
    return ChatOptions(
        add_generation_prompt,
        continue_final_message,
        dict(template_kwargs or {}),
        tools=tuple(tool.given for tool in tools_of(tools)),
    )


def read_chat(messages: Sequence[ChatMessage], options: ChatOptions, tokenizer: Tokenizer) -> ReadPrompt:
    """One chat, rendered by the model's own template. Raises InvalidRequest."""
    rendered = render_chat(tokenizer, messages, options)
    return ReadPrompt(tuple(encode_rendered(tokenizer, rendered)), rendered.text)
