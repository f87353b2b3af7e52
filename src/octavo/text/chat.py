"""Chat templates: a model's own Jinja text, which comes from a stranger, rendered in Jinja2's sandbox.

The sandbox refuses attributes that lead into the interpreter, changes to what it is given, and ranges beyond
100,000; the output is capped besides. What a template refuses (`raise_exception`), and what goes wrong in it,
is InvalidRequest.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, NoReturn

from octavo.errors import InvalidRequest
from octavo.types import ChatMessage

if TYPE_CHECKING:
    import jinja2

TEMPLATE_CHARS_MAX = 1 << 20
OUTPUT_CHARS_MAX = 4 << 20
# What expressions of a template can raise by themselves, beside Jinja2's own errors.
_TEMPLATE_ERRORS = (
    ArithmeticError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


class ChatTemplate:
    """A template and the special tokens it may write. Compiled, and Jinja2 imported, when first used."""

    def __init__(self, source: str, bos: str = "", eos: str = "") -> None:
        self.source = source
        self.bos = bos
        self.eos = eos

    def render(self, messages: Sequence[ChatMessage], add_generation_prompt: bool = True) -> str:
        """The prompt, ending where the assistant begins. Raises InvalidRequest, in the template's words."""
        import jinja2

        values = [
            {"role": message.role, "content": message.content}
            | ({"name": message.name} if message.name else {})
            for message in messages
        ]
        template = self._template
        try:
            pieces = template.generate(
                messages=values,
                add_generation_prompt=add_generation_prompt,
                bos_token=self.bos,
                eos_token=self.eos,
                tools=None,
                documents=None,
            )
            return _joined(pieces)
        except InvalidRequest:
            raise
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as error:
            raise _refused(error) from error

    @cached_property
    def _template(self) -> jinja2.Template:
        import jinja2

        if len(self.source) > TEMPLATE_CHARS_MAX:
            raise InvalidRequest(
                f"the model's chat template has {len(self.source):,} characters;"
                f" allowed: {TEMPLATE_CHARS_MAX:,}",
                param="messages",
            )
        try:
            return _environment().from_string(self.source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise _refused(error) from error


def _environment() -> jinja2.Environment:
    """The sandbox, with what Hugging Face's templates expect to find in it."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks what an assistant said, for training; here its inside is all that counts."""

        tags = {"generation"}  # noqa: RUF012  the base class has it so

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _joined(pieces: Iterator[str]) -> str:
    """The pieces as one text, unless they become too many."""
    parts: list[str] = []
    length = 0
    for piece in pieces:
        parts.append(piece)
        length += len(piece)
        if length > OUTPUT_CHARS_MAX:
            raise InvalidRequest(
                f"the rendered chat has more than {OUTPUT_CHARS_MAX:,} characters, which is the most allowed",
                param="messages",
            )
    return "".join(parts)


def _refused(error: BaseException) -> InvalidRequest:
    return InvalidRequest(f"the model's chat template refuses these messages: {error}", param="messages")


def _raise_exception(message: str) -> NoReturn:
    raise InvalidRequest(f"the model's chat template refuses these messages: {message}", param="messages")


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As transformers does it: plain JSON, not the HTML-safe kind that Jinja2 has by default."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
