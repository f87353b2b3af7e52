"""Chat templates: a model's own Jinja text, which comes from a stranger, rendered in a process of its own
(`template_helpers`, `template_worker`): in Jinja2's sandbox, with bounded memory, time and output.

What a client may give to it is checked here, and marked where it has the text of control tokens (`control`).
What a template refuses (`raise_exception`), and what goes wrong in it, is InvalidRequest.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from octavo.errors import InvalidRequest
from octavo.text.control import (
    NO_MARKS,
    ControlTokens,
    Marks,
    Rendered,
    new_mark,
)
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

    def render(self, messages: Sequence[ChatMessage], options: ChatOptions = DEFAULT_CHAT) -> Rendered:
        """The prompt, ending where the assistant begins, or as `options` say. Raises InvalidRequest, in the
        template's words where it refuses."""
        self._check_size()
        _check_options(messages, options)
        marks = NO_MARKS
        if not options.allow_control_tokens:
            marks = self._controls.marks([_client_strings(messages), options.template_kwargs])
        values = [_message_value(message, marks) for message in messages]
        tag = ""
        if options.continue_final_message:
            tag = new_mark([self.source, marks.number, *(message.content for message in messages)])
            values[-1]["content"] += tag + " "
        text = self._helpers.render(
            {name: marks.on(value) for name, value in options.template_kwargs.items()}
            | {
                "messages": values,
                "add_generation_prompt": options.add_generation_prompt and not tag,
                "bos_token": self.bos,
                "eos_token": self.eos,
                "tools": None,
                "documents": None,
            }
        )
        if tag:
            text = _up_to_tag(text, values[-1]["content"], tag)
        return self._controls.split(text, marks)

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


def _client_strings(messages: Sequence[ChatMessage]) -> list[str]:
    texts = [message.content for message in messages]
    texts += [message.name for message in messages if message.name]
    return texts + [message.role for message in messages if message.role not in _ROLES]


def _message_value(message: ChatMessage, marks: Marks) -> dict[str, str]:
    """As a template sees it."""
    role = message.role if message.role in _ROLES else marks.on_text(message.role)
    value = {"role": role, "content": marks.on_text(message.content)}
    return value | ({"name": marks.on_text(message.name)} if message.name else {})


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
