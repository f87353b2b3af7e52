"""Chat templates: a model's own Jinja text, which is untrusted, rendered in a process of its own
(`template_helpers`, `template_worker`): in Jinja2's sandbox, with bounded memory, time and output.

The client's input to it is checked here. Every chat is rendered twice, to distinguish control tokens that a
client wrote from the template's own (`control`). A refusal (`raise_exception`) or an error of the template
becomes InvalidRequest.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Mapping, Sequence

from octavo.errors import InvalidRequest, RequestTooLarge
from octavo.params import TEMPLATE_KWARGS_CHARS_MAX
from octavo.text.control import ControlTokens, Neutraliser, RenderedText, new_mark
from octavo.text.template_helpers import TemplateHelpers
from octavo.text.turn_format import (
    ToolsPlace,
    TurnFormat,
    find_turn_format,
    thinking_turn,
    with_tools_in_system,
)
from octavo.tools.formats import HERMES, ToolFormat
from octavo.tools.prompt import as_messages
from octavo.tools.thinking import ThinkingFormat
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions, ToolCall

TEMPLATE_CHARS_MAX = 1 << 20
OUTPUT_CHARS_MAX = 4 << 20
KWARGS_MAX = 64
KWARGS_DEPTH_MAX = 16
# Trusted as parts of the template's text; any other role is text of a client.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
FITS_NO_FORMAT = (
    "the model's chat template writes tool calls in a form that is not known here: they are read in the form "
    "of hermes; give --tool-parser where the model writes them otherwise"
)
# Names that the server or the sandbox sets for a template: a client may not set them.
_OWN_NAMES = frozenset(
    (
        "messages",
        "add_generation_prompt",
        "continue_final_message",
        "chat_template",
        "bos_token",
        "eos_token",
        "tools",
        "documents",
        "raise_exception",
        "strftime_now",
        "self",
    )
)


class ChatTemplate:
    """A template and the special tokens it may write; `with_tools`, if there is one, renders chats with
    tools. The rendering process starts with the first chat."""

    def __init__(
        self,
        source: str,
        bos: str = "",
        eos: str = "",
        controls: ControlTokens | None = None,
        with_tools: ChatTemplate | None = None,
    ) -> None:
        self.source = source
        self.bos = bos
        self.eos = eos
        self._with_tools = with_tools
        self._given_calls: ToolFormat | None = None
        self._given_thinking: ThinkingFormat | None = None
        self._controls = controls or ControlTokens()
        self._helpers = TemplateHelpers(source, OUTPUT_CHARS_MAX)
        self._neutraliser: Neutraliser | None = None  # created with the first chat

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT) -> RenderedText:
        """The prompt, ending where the assistant begins, or as `options` say. Raises InvalidRequest if the
        template refuses (with its words), and if control tokens of clients and template cannot be
        distinguished."""
        if self._with_tools is not None and options.tools:
            return self._with_tools.render(messages, options)
        self._check_size()
        _check_options(messages, options)
        tag = ""
        if options.continue_final_message:
            tag = new_mark([self.source, *(message.content for message in messages)])
        messages = self._in_its_words(messages, options)
        values = [self._message_value(message) for message in messages]
        tools: list[object] = list(options.tools) if options.tools and self.knows_tools else []
        if tools and self.turn_format.tools is not ToolsPlace.ARGUMENT:
            values, tools = with_tools_in_system(values, tools, self.turn_format.tools), []
        text = self._written(values, options.template_kwargs, options, tag, tools)
        if options.allow_control_tokens or not self._controls:
            return RenderedText(text)
        if self._neutraliser is None:
            self._neutraliser = Neutraliser(self._controls, *self._helpers.words())
        neutral = self._neutraliser
        values = [
            {
                name: neutral.of_text(value) if isinstance(value, str) else neutral.of_value(value)
                for name, value in message.items()
            }
            | {"role": message["role"] if message["role"] in _ROLES else neutral.of_value(message["role"])}
            for message in values
        ]
        given = {name: neutral.of_value(value) for name, value in options.template_kwargs.items()}
        tools = [neutral.of_value(tool) for tool in tools]
        return self._controls.split_control(text, self._written(values, given, options, tag, tools))

    def give_formats(self, calls: ToolFormat | None, thinking: ThinkingFormat | None) -> None:
        """Override the formats that were found."""
        self._given_calls, self._given_thinking = calls, thinking
        if self._with_tools is not None:
            self._with_tools.give_formats(calls, thinking)

    @property
    def tool_format(self) -> ToolFormat:
        """The format of the model's calls."""
        return self._given_calls or self.turn_format.calls or HERMES

    @property
    def thinking_format(self) -> ThinkingFormat | None:
        """The format of the model's thinking; None: it does not think."""
        return self._given_thinking or self.turn_format.thinking

    @property
    def thinks(self) -> bool:
        """Whether the model thinks before it answers."""
        return self.thinking_format is not None

    @property
    def fits_no_format(self) -> bool:
        """Whether it writes tools, and calls in an unknown format."""
        return self._given_calls is None and self.turn_format.calls is None and self.knows_tools

    @property
    def knows_tools(self) -> bool:
        """Whether it writes tools into the prompt."""
        return self.turn_format.tools is not ToolsPlace.NOWHERE

    def in_words(self) -> str:
        """The template's formats of calls and thinking, in words."""
        calls = "its own tool calls" if self.fits_no_format else f"tool calls as {self.tool_format.name}"
        thinking = (
            "no thinking" if self.thinking_format is None else f"thinking as {self.thinking_format.name}"
        )
        return f"a chat template, {calls}, {thinking}"

    @functools.cached_property
    def turn_format(self) -> TurnFormat:
        """The format of an assistant's turn, found once."""
        return find_turn_format(self._tried)

    def _tried(
        self,
        messages: Sequence[dict[str, object]],
        tools: Sequence[object],
        is_followed: bool,
        given: Mapping[str, object],
    ) -> str:
        if tools and self._with_tools is not None:
            return self._with_tools._tried(messages, tools, is_followed, given)
        return self._written(messages, given, ChatOptions(add_generation_prompt=is_followed), "", tools)

    def _in_its_words(self, messages: Sequence[ChatMessage], options: ChatOptions) -> Sequence[ChatMessage]:
        """The messages, with tools, calls and results as text if the template does not support tools."""
        has_tools = options.tools or any(m.tool_calls or m.role == "tool" for m in messages)
        if not has_tools or self.knows_tools:
            return messages
        return as_messages(messages, options.tools, self.tool_format)

    def _message_value(self, message: ChatMessage) -> dict[str, object]:
        """A message in the form that templates read."""
        value: dict[str, object] = {"role": message.role, "content": message.content}
        if message.name:
            value["name"] = message.name
        if message.reasoning:
            value |= self._thinking_value(message)
        if message.tool_call_id:
            value["tool_call_id"] = message.tool_call_id
        if message.tool_calls:
            value["tool_calls"] = [self._call_value(call) for call in message.tool_calls]
        return value

    def _thinking_value(self, message: ChatMessage) -> dict[str, object]:
        """A turn's thinking and text, in the form that the template reads."""
        thought, text, form = message.reasoning, message.content, self.turn_format
        if form.refuses_text and message.tool_calls and text:
            thought, text = f"{thought}\n\n{text}", ""
        return thinking_turn(thought, text, form.thinks_in_parts)

    def _call_value(self, call: ToolCall) -> dict[str, object]:
        arguments: object = call.arguments
        if self.turn_format.takes_objects:
            with contextlib.suppress(ValueError):
                arguments = json.loads(call.arguments)
        function = {"name": call.name, "arguments": arguments}
        return {"type": "function", "id": call.call_id, "function": function}

    def _written(
        self,
        messages: Sequence[dict[str, object]],
        given: Mapping[str, object],
        options: ChatOptions,
        tag: str,
        tools: Sequence[object],
    ) -> str:
        """The template's text; `tag` is appended to the message to continue, if there is one."""
        if tag:
            last = messages[-1]
            messages = [*messages[:-1], last | {"content": f"{last['content']}{tag} "}]
        text = self._helpers.render(
            {
                **given,
                "messages": list(messages),
                "add_generation_prompt": options.add_generation_prompt and not tag,
                "bos_token": self.bos,
                "eos_token": self.eos,
                "tools": list(tools) or None,
                "documents": None,
            }
        )
        return _up_to_tag(text, str(messages[-1]["content"]), tag) if tag else text

    def _check_size(self) -> None:
        if len(self.source) > TEMPLATE_CHARS_MAX:
            raise InvalidRequest(
                f"the model's chat template has {len(self.source):,} characters;"
                f" allowed: {TEMPLATE_CHARS_MAX:,}",
                param="messages",
            )

    def close(self) -> None:
        """End the processes that render it."""
        self._helpers.close()
        if self._with_tools is not None:
            self._with_tools.close()


def _up_to_tag(text: str, content: str, tag: str) -> str:
    """The rendered text up to the end of the last message, as in transformers: after its content, including
    trailing blanks if the template keeps them."""
    place, said = text.rfind(tag), content[: -len(tag) - 1].strip()
    if place < 0 or said not in text:
        raise InvalidRequest(
            "continue_final_message: this model's chat template does not write the last message's text as it "
            "is; allowed: a last message whose text it keeps",
            param="continue_final_message",
        )
    return text[:place] if text.startswith(tag + " ", place) else text[:place].rstrip()


def _check_options(messages: Sequence[ChatMessage], options: ChatOptions) -> None:
    """Raise InvalidRequest for options that no template supports."""
    if options.continue_final_message and options.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both true; allowed: one of them, for a "
            "message that is gone on with is not followed by a new one",
            param="continue_final_message",
        )
    if options.continue_final_message and not messages:
        raise InvalidRequest("continue_final_message: there is no message", param="messages")
    num_chars = sum(
        len(message.content)
        + len(message.reasoning)
        + sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
        for message in messages
    )
    if num_chars > OUTPUT_CHARS_MAX:
        raise RequestTooLarge(
            f"{num_chars:,} characters in messages; allowed: {OUTPUT_CHARS_MAX:,}", param="messages"
        )
    if options.template_kwargs:
        _check_kwargs(options.template_kwargs)


def _check_kwargs(given: Mapping[str, object]) -> None:
    """Raise InvalidRequest unless these are bounded JSON values, under names that the server does not use."""
    param = "chat_template_kwargs"
    taken = sorted(_OWN_NAMES & given.keys())
    if taken:
        raise InvalidRequest(
            f"{param} has {taken[0]!r}, which the server gives to the template itself", param=param
        )
    if len(given) > KWARGS_MAX:
        raise InvalidRequest(f"{param} has {len(given):,} entries; allowed: {KWARGS_MAX}", param=param)
    level: list[object] = [given]
    for _ in range(KWARGS_DEPTH_MAX):
        level = [item for value in level for item in _items(value)]
    if level:
        raise InvalidRequest(f"{param} is nested deeper than {KWARGS_DEPTH_MAX} levels", param=param)
    try:
        size = len(json.dumps(given, ensure_ascii=False, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from error
    if size > TEMPLATE_KWARGS_CHARS_MAX:
        raise InvalidRequest(
            f"{param} has {size:,} characters as JSON; allowed: {TEMPLATE_KWARGS_CHARS_MAX:,}", param=param
        )


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
