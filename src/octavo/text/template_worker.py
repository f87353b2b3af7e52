"""A process of its own that renders one chat template, in Jinja2's sandbox, with bounded memory and time.

    stdin    {"source", "memory_bytes", "seconds", "chars_max"}    then {values}, until it is closed
    stdout   {"words", "names"}, in quotes and not                 then {"text"} or {"error", "kind"} each

Each is a frame: its length in four bytes, then JSON.

It is run by its path and imports only those modules of Octavo that every helper process imports. The sandbox
cannot bound everything (a string times a billion, one doubled in a loop, nested loops); the system does:
RLIMIT_AS bounds address space; the server bounds time by ending the process, and SIGALRM does if the server
is gone.
"""

from __future__ import annotations

import contextlib
import datetime
import gc
import json
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import jinja2

_PATHS_FROM = 1  # of sys.argv: the paths of Octavo, Jinja2 and its dependencies
_ERROR_CHARS_MAX = 2000
_WORDS_MAX, _WORD_CHARS_MAX = 1000, 100


class TemplateRefused(Exception):
    """The template refuses, in its own words."""


def main() -> None:
    """Read values and write rendered texts, until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-c is for the server, which finishes its answers
    sys.path += sys.argv[_PATHS_FROM:]
    from octavo.helper_worker import bound_memory, read_frame, write_frame

    def answer_with(answer: dict[str, str] | dict[str, list[str]]) -> None:
        write_frame(1, json.dumps(answer).encode())

    settings = json.loads(read_frame(0))
    environment = sandbox()
    bound_memory(settings["memory_bytes"])
    template: jinja2.Template | None = None

    def render(values: dict[str, object]) -> str:
        nonlocal template
        template = template or environment.from_string(settings["source"])
        return _rendered(template, values, settings["chars_max"])

    answer_with(_words(environment, settings["source"]))
    while request := read_frame(0):
        signal.alarm(settings["seconds"])
        answer = _answer(render, request)
        answer_with(answer)
        if "error" in answer:
            gc.collect()  # an error keeps its frames alive in a reference cycle
        signal.alarm(0)


def _answer(render: Callable[[dict[str, object]], str], request: bytes) -> dict[str, str]:
    """The answer to a request's values; any error is an answer too."""
    try:
        return {"text": render(json.loads(request))}
    except MemoryError:
        return {"kind": "memory", "error": ""}
    except OverflowError as error:  # usually of a length
        return {"kind": "refused", "error": f"a number is too large: {error}"[:_ERROR_CHARS_MAX]}
    except Exception as error:  # noqa: BLE001  a template can raise anything; the server goes on
        kind = "length" if isinstance(error, _TooLong) else "refused"
        return {"kind": kind, "error": str(error)[:_ERROR_CHARS_MAX]}


class _TooLong(Exception):
    """The text is longer than allowed."""


def _rendered(template: jinja2.Template, values: dict[str, object], chars_max: int) -> str:
    """The text. Raises _TooLong."""
    parts: list[str] = []
    length = 0
    for piece in template.generate(values):
        parts.append(piece)
        length += len(piece)
        if length > chars_max:
            raise _TooLong
    return "".join(parts)


def _words(environment: jinja2.Environment, source: str) -> dict[str, list[str]]:
    """The quoted strings and the names in the template's expressions; of a malformed template, those before
    the error."""
    import jinja2

    words, names = set[str](), set[str]()
    with contextlib.suppress(jinja2.TemplateError, UnicodeDecodeError):
        for _, kind, text in environment.lex(source):
            if len(text) > _WORD_CHARS_MAX:
                continue
            if kind == "string" and len(words) < _WORDS_MAX:
                # The way Jinja2 reads it.
                words.add(text[1:-1].encode("ascii", "backslashreplace").decode("unicode-escape"))
            elif kind == "name" and len(names) < _WORDS_MAX:
                names.add(text)
    return {"words": sorted(words), "names": sorted(names)}


def sandbox() -> jinja2.Environment:
    """The sandbox, with the functions that Hugging Face's templates expect."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """{% generation %} marks an assistant's text for training; here only its content counts."""

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


def _raise_exception(message: object) -> NoReturn:
    raise TemplateRefused(message)


def _strftime_now(layout: str) -> str:
    return datetime.datetime.now().strftime(layout)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As in transformers: plain JSON, not Jinja2's default HTML-safe kind."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


if __name__ == "__main__":
    main()
