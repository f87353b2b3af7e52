"""Chat templates: a model's own Jinja text, which comes from a stranger, rendered in a process of its own
(`template_helpers`, `template_worker`): in Jinja2's sandbox, with bounded memory, time and output.

What a client may give to it is checked here. Every chat is rendered twice, so that the control tokens that a
client wrote are told apart from the template's own (`control`).
What a template refuses (`raise_exception`), and what goes wrong in it, is InvalidRequest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from octavo.errors import InvalidRequest
from octavo.text.control import ControlTokens, Neutraliser, Rendered, new_mark
from octavo.text.template_helpers import TemplateHelpers
from octavo.types import DEFAULT_CHAT, ChatMessage, ChatOptions

TEMPLATE_CHARS_MAX = 1 << 20
OUTPUT_CHARS_MAX = 4 << 20
KWARGS_MAX = 64
KWARGS_JSON_CHARS_MAX = 64 << 10
KWARGS_DEPTH_MAX = 16
# Written into a template's text as they are; any other role is text of a client.
_ROLES = frozenset(("system", "developer", "user", "assistant", "tool", "function"))
# What a template always gets, or finds in the sandbox: not a client's to set.
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
    """A template and the special tokens it may write. The process that renders it begins with the first
    chat."""

    def __init__(
        self, source: str, bos: str = "", eos: str = "", controls: ControlTokens | None = None
    ) -> None:
        self.source = source
        self.bos = bos
        self.eos = eos
        self._controls = controls or ControlTokens()
        self._helpers = TemplateHelpers(source, OUTPUT_CHARS_MAX)
        self._neutraliser: Neutraliser | None = None  # made with the first chat

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT) -> Rendered:
        """The prompt, ending where the assistant begins, or as `options` say. Raises InvalidRequest, in the
        template's words where it refuses, and where control tokens of clients and template cannot be told
        apart."""
        self._check_size()
        _check_options(messages, options)
        tag = ""
        if options.continue_final_message:
            tag = new_mark([self.source, *(message.content for message in messages)])
        values = [_message_value(message) for message in messages]
        text = self._written(values, options.template_kwargs, options, tag)
        if options.allow_control_tokens or not self._controls:
            return Rendered(text)
        if self._neutraliser is None:
            self._neutraliser = Neutraliser(self._controls, *self._helpers.words())
        neutral = self._neutraliser
        values = [
            {name: neutral.of_text(text) for name, text in value.items()}
            | {"role": value["role"] if value["role"] in _ROLES else neutral.of_word(value["role"])}
            for value in values
        ]
        given = {name: neutral.of_value(value) for name, value in options.template_kwargs.items()}
        return self._controls.told_apart(text, self._written(values, given, options, tag))

    def _written(
        self,
        messages: list[dict[str, str]],
        given: Mapping[str, object],
        options: ChatOptions,
        tag: str,
    ) -> str:
        """The template's text; `tag` is put behind the message to be gone on with, where there is one."""
        if tag:
            last = messages[-1]
            messages = [*messages[:-1], last | {"content": last["content"] + tag + " "}]
        text = self._helpers.render(
            {
                **given,
                "messages": messages,
                "add_generation_prompt": options.add_generation_prompt and not tag,
                "bos_token": self.bos,
                "eos_token": self.eos,
                "tools": None,
                "documents": None,
            }
        )
        return _up_to_tag(text, messages[-1]["content"], tag) if tag else text

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


def _message_value(message: ChatMessage) -> dict[str, str]:
    """As a template sees it."""
    value = {"role": message.role, "content": message.content}
    return value | ({"name": message.name} if message.name else {})


def _up_to_tag(text: str, content: str, tag: str) -> str:
    """The rendered text up to the end of the last message, as transformers cuts it: behind its content, with
    the blanks at its end where the template leaves them."""
    place, said = text.rfind(tag), content[: -len(tag) - 1].strip()
    if place < 0 or said not in text:
        raise InvalidRequest(
            "continue_final_message: this model's chat template does not write the last message's text as it "
            "is; allowed: a last message whose text it keeps",
            param="continue_final_message",
        )
    return text[:place] if text.startswith(tag + " ", place) else text[:place].rstrip()


def _check_options(messages: Sequence[ChatMessage], options: ChatOptions) -> None:
    """Raise InvalidRequest for what no template can do."""
    if options.continue_final_message and options.add_generation_prompt:
        raise InvalidRequest(
            "continue_final_message and add_generation_prompt are both true; allowed: one of them, for a "
            "message that is gone on with is not followed by a new one",
            param="continue_final_message",
        )
    if options.continue_final_message and not messages:
        raise InvalidRequest("continue_final_message: there is no message", param="messages")
    num_chars = sum(len(message.content) for message in messages)
    if num_chars > OUTPUT_CHARS_MAX:
        raise InvalidRequest(
            f"the messages have {num_chars:,} characters; allowed: {OUTPUT_CHARS_MAX:,}", param="messages"
        )
    if options.template_kwargs:
        _check_kwargs(options.template_kwargs)


def _check_kwargs(given: Mapping[str, object]) -> None:
    """Bounded JSON values, under names that the server does not use itself."""
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
    if size > KWARGS_JSON_CHARS_MAX:
        raise InvalidRequest(
            f"{param} has {size:,} characters as JSON; allowed: {KWARGS_JSON_CHARS_MAX:,}", param=param
        )


def _items(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list | tuple) else ()
