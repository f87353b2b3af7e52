"""Anthropic's request, /v1/messages, as a `ChatBody` and messages: names and bounds are Anthropic's, the
meaning is that of the chat path.

    system, messages     -> messages, by `anthropic_messages`
    tools, tool_choice   -> tools, tool_choice, parallel_tool_calls, by `anthropic_tools`
    thinking             -> enable_thinking, max_thinking_tokens, include_reasoning
    output_config        -> response_format, reasoning_effort; output_format is the older name of its format

No engine and no answer here. Source: anthropic-sdk-python's `types/message_create_params.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import Field

from octavo.errors import InvalidRequest, as_items, require_range, shown, unsupported, wrong_value
from octavo.params import STOP_STRING_CHARS_MAX, STOP_STRINGS_MAX, TOKENS_MAX
from octavo.server.body import validate
from octavo.server.dialects.anthropic_messages import AnthropicMessage, read_messages
from octavo.server.dialects.anthropic_tools import AnthropicTool, choice_fields, openai_tools
from octavo.server.errors import JsonObject
from octavo.server.field_list import Body, SchemaOf, done, field_list
from octavo.server.openai_schema import ChatBody
from octavo.types import ChatMessage

EFFORTS: Final = ("low", "medium", "high", "xhigh", "max")
_CLEAR_THINKING: Final = "clear_thinking_20251015"
_DISPLAYS: Final = (None, "summarized", "omitted")

# The chat path's fields, and Anthropic's names for them in errors.
NAMES: Final[Mapping[str, str]] = {
    "stop": "stop_sequences",
    "response_format": "output_config.format",
    "reasoning_effort": "output_config.effort",
    "max_thinking_tokens": "thinking.budget_tokens",
    "continue_final_message": "messages",
}


class AnthropicOutput(Body):
    """`output_config`."""

    effort: str | None = done("passed to the template as reasoning_effort")
    format: object = done("json_schema; keywords that cannot be enforced are refused")


class CountTokensBody(Body, json_schema_extra={"required": ["messages"]}):
    """POST /v1/messages/count_tokens: the fields that make the prompt."""

    model: str | None = done("the served model's name; optional")
    messages: Annotated[object, SchemaOf(Annotated[list[AnthropicMessage], Field(min_length=1)])] = done(
        "of the roles user, assistant, system"
    )
    system: object = done("text, or text blocks")
    tools: Annotated[object, SchemaOf(list[AnthropicTool] | None)] = done(
        "up to 512, of the type custom; other types are refused by name"
    )
    tool_choice: object = done("auto, any, tool, none; disable_parallel_tool_use")
    thinking: object = done("enabled with budget_tokens, adaptive, disabled; display summarized or omitted")
    output_config: Annotated[object, SchemaOf(AnthropicOutput | None)] = done("effort, format")
    output_format: object = done("the older name of output_config.format")
    context_management: object = done(
        "edits that change nothing: clear_thinking, keep all; others are refused"
    )


class MessagesBody(CountTokensBody, json_schema_extra={"required": ["max_tokens", "messages"]}):
    """POST /v1/messages."""

    max_tokens: int | None = done("required; an answer also ends at the end of the context")
    stop_sequences: object = done("up to 16, of up to 256 characters")
    stream: bool | None = done()
    temperature: float | None = done("0 to 1; default 1")
    top_p: float | None = done()
    top_k: int | None = done()


@dataclass(frozen=True, slots=True)
class TranslatedChat:
    """A request in the chat path's form."""

    body: ChatBody
    messages: list[ChatMessage]


def translate(body: CountTokensBody, context_length: int) -> TranslatedChat:
    """The request in the chat path's form. Raises InvalidRequest with Anthropic's field names."""
    limit = _max_tokens(body) if isinstance(body, MessagesBody) else None
    _check_edits(body.context_management)
    tools = openai_tools(body.tools)
    read = read_messages(body.system, body.messages, context_length)
    fields: JsonObject = {
        "model": body.model,
        "tools": tools,
        "continue_final_message": read.is_prefilled,
        **choice_fields(body.tool_choice, tools),
        **_thinking_fields(body.thinking, limit),
        **_output_fields(body),
    }
    if isinstance(body, MessagesBody):
        if body.temperature is not None:
            require_range("temperature", body.temperature, 0.0, 1.0)
        fields |= {
            "max_tokens": limit,
            "stop": _stop_sequences(body.stop_sequences),
            "stream": body.stream,
            "temperature": body.temperature,
            "top_p": body.top_p,
            "top_k": body.top_k,
        }
    return TranslatedChat(validate(ChatBody, fields), read.messages)


def _check_edits(given: object) -> None:
    """Raise InvalidRequest for edits that would change the context: none is supported. All thinking is kept
    in any case."""
    edits = given.get("edits", []) if isinstance(given, Mapping) else given
    if edits is None:
        return
    if not isinstance(edits, list):
        raise wrong_value("context_management", given, '{"edits": [...]}')
    for index, edit in enumerate(edits):
        if not isinstance(edit, Mapping) or (edit.get("type"), edit.get("keep")) != (_CLEAR_THINKING, "all"):
            raise unsupported(
                f"context_management.edits[{index}] is {shown(edit)}, which is not supported by this server; "
                f'allowed: {{"type": "{_CLEAR_THINKING}", "keep": "all"}}; shorten messages in the client',
                "context_management",
            )


def _max_tokens(body: MessagesBody) -> int:
    if body.max_tokens is None:
        raise InvalidRequest(
            "max_tokens is missing; allowed: 1 or more, the most tokens of an answer", param="max_tokens"
        )
    hint = "POST /v1/kv/pins computes a prompt without an answer" if body.max_tokens == 0 else ""
    require_range("max_tokens", body.max_tokens, 1, TOKENS_MAX, hint=hint)
    return body.max_tokens


def _stop_sequences(given: object) -> list[str]:
    words = "a list of strings that are not empty"
    items = as_items(
        "stop_sequences",
        () if given is None else given,
        words,
        STOP_STRINGS_MAX,
        of="number of stop_sequences",
    )
    texts = [item for item in items if isinstance(item, str)]
    if len(texts) != len(items):
        raise wrong_value("stop_sequences", given, words)
    for index, text in enumerate(texts):
        what = f"length of stop_sequences[{index}]"
        require_range(what, len(text), 1, STOP_STRING_CHARS_MAX, param="stop_sequences")
    return texts


def _thinking_fields(given: object, max_tokens: int | None) -> JsonObject:
    """Thinking is off by default: Anthropic's clients expect it only if they requested it."""
    off: JsonObject = {"enable_thinking": False, "include_reasoning": False}
    if given is None:
        return off
    if not isinstance(given, Mapping):
        raise wrong_value("thinking", given, "an object with a type")
    kind = given.get("type")
    if kind == "disabled":
        return off
    if kind not in ("enabled", "adaptive"):
        raise wrong_value("thinking.type", kind, "enabled, adaptive, disabled")
    display = given.get("display")
    if display not in _DISPLAYS:
        raise wrong_value("thinking.display", display, "summarized (returned in full), omitted")
    fields: JsonObject = {"enable_thinking": True, "include_reasoning": display != "omitted"}
    return fields | ({"max_thinking_tokens": _budget(given, max_tokens)} if kind == "enabled" else {})


def _budget(thinking: Mapping[str, object], max_tokens: int | None) -> int:
    budget = thinking.get("budget_tokens")
    most = TOKENS_MAX if max_tokens is None else max_tokens - 1
    if not isinstance(budget, int) or isinstance(budget, bool) or not 1 <= budget <= most:
        raise wrong_value("thinking.budget_tokens", budget, "1 or more, and less than max_tokens")
    return budget


def _output_fields(body: CountTokensBody) -> JsonObject:
    """The output's schema, and the reasoning effort."""
    config: object = {} if body.output_config is None else body.output_config
    if not isinstance(config, Mapping):
        raise wrong_value("output_config", config, "an object with effort and format")
    field_list(AnthropicOutput).check(config, "output_config.")
    effort, shape = config.get("effort"), config.get("format")
    if effort is not None and effort not in EFFORTS:
        raise wrong_value("output_config.effort", effort, ", ".join(EFFORTS))
    if shape is not None and body.output_format is not None:
        raise InvalidRequest(
            "output_format and output_config.format are given together; allowed: one of them, which are two "
            "names of one thing",
            param="output_format",
        )
    name = "output_config.format" if body.output_format is None else "output_format"
    shape = body.output_format if shape is None else shape
    fields: JsonObject = {"reasoning_effort": effort}
    if shape is not None:
        schema = shape.get("schema") if isinstance(shape, Mapping) else None
        if not isinstance(shape, Mapping) or shape.get("type") != "json_schema" or schema is None:
            raise wrong_value(name, shape, '{"type": "json_schema", "schema": ...}')
        fields["response_format"] = {"type": "json_schema", "json_schema": {"schema": schema}}
    return fields
