"""The constraint of an output: a JSON schema, a regular expression, a choice of texts, a grammar; and the
budget of thinking before it. Unparsed values: `octavo.sampling.grammars` compiles them."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import cast

from octavo.errors import InvalidRequest, as_items, require_range, shown
from octavo.schemas import limit_keys, without_effect

GRAMMAR_CHARS_MAX = 256 * 1024  # of a client's grammar
TOOLS_GRAMMAR_CHARS_MAX = 4 * 1024 * 1024  # of a grammar made from tools
CHOICES_MAX = 1024
TOO_SLOW = "grammar_too_slow"  # the error code of a grammar whose trial takes too long
DEPTH_MAX = 128  # levels of a schema
VALUES_MAX = 1 << 19  # nested values
# The library's options of JSON: a space after commas and colons and no other white space; any escape of RFC
# 8259 in strings without a pattern and a format.
JSON_OPTIONS: Mapping[str, object] = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
    "json_allow_general_unicode_escapes": True,
}


class GrammarKind(enum.StrEnum):
    """The language of a grammar's text."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # Rust's syntax, the whole output
    LARK = "lark"  # llguidance's variant of Lark
    GBNF = "gbnf"  # llama.cpp's


@dataclass(frozen=True, slots=True)
class Grammar:
    """The grammar that an output must follow. Equal values are compiled once.

    Without `triggers` it applies to the whole output, or to the output after the thinking. With them the
    output is free until it contains one of these texts (`at_start`: begins with it); the grammar applies from
    the token with the first character of that text, and must itself allow the token's characters before it.
    """

    kind: GrammarKind
    text: str  # JSON of a schema has sorted keys, except in `properties`, whose order is the output's
    param: str = "grammar"  # the client's name for it, for errors
    triggers: tuple[str, ...] = ()
    at_start: bool = False
    tenant: str = ""  # whose requests share the compiled grammar
    # The parts of its schemas that are not followed: for users; not part of its identity.
    not_enforced: tuple[str, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        most = TOOLS_GRAMMAR_CHARS_MAX if self.param.startswith("tools") else GRAMMAR_CHARS_MAX
        require_range(f"length of {self.param}", len(self.text), 1, most, param=self.param)

    @property
    def is_json(self) -> bool:
        """Whether its texts are JSON, or calls with arguments in JSON."""
        return self.kind is GrammarKind.JSON_SCHEMA or self.param.startswith("tools")

    def of_tenant(self, tenant: str) -> Grammar:
        """This grammar, compiled for a tenant."""
        return self if self.tenant == tenant else replace(self, tenant=tenant)


class ThinkingState(enum.StrEnum):
    """The state at the beginning of an output."""

    INSIDE = "inside"  # the prompt has opened the thinking
    MAYBE = "maybe"  # the model may open it
    NONE = "none"  # the prompt has closed it, or the model does not think


@dataclass(frozen=True, slots=True)
class Thinking:
    """Thinking before an answer. `max_tokens`: thinking ends there, as if the model had written `end`.
    `separator`: the text between `end` and an answer that follows a grammar. `always`: there is always
    thinking before such an answer, so `begin` is forced."""

    state: ThinkingState | None = None  # None: the end of the prompt decides
    max_tokens: int | None = None
    begin: str = "<think>"
    end: str = "</think>"
    separator: str = "\n\n"
    always: bool = False

    def __post_init__(self) -> None:
        if self.max_tokens is not None:
            require_range("max_thinking_tokens", self.max_tokens, 0, 2**31 - 1, whole=True)

    def state_after(self, tail: bytes) -> ThinkingState:
        """The state at the beginning of an output; `tail`: the last bytes of its prompt."""
        end = tail.rstrip()
        if end.endswith(self.begin.encode()):
            return ThinkingState.INSIDE
        return ThinkingState.NONE if end.endswith(self.end.encode()) else ThinkingState.MAYBE


ANY_OBJECT: Mapping[str, object] = {"type": "object"}


def of_schema(schema: object, param: str = "json_schema") -> Grammar:
    """JSON that follows a schema; `schema` is an object or its JSON text. Raises InvalidRequest."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(
            f"{param} is {shown(schema)}; allowed: a JSON schema, which is an object", param=param
        )
    check_depth(schema, param)
    if schema is False:
        raise InvalidRequest(
            f"{param} cannot be followed: not supported: false (at #), which no value follows",
            param=param,
            code="unsupported_grammar",
        )
    found = without_effect({} if schema is True else schema)
    try:
        text = json.dumps(found.schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    return Grammar(GrammarKind.JSON_SCHEMA, text, param, not_enforced=limit_keys(found.not_enforced))


def check_depth(value: object, param: str) -> None:
    """Raise InvalidRequest for JSON that is nested too deeply, or has too many values. O(value), up to these
    limits."""
    level, left = [value], VALUES_MAX
    for _ in range(DEPTH_MAX):
        level = list(islice((inner for one in level for inner in _inside(one)), left + 1))
        left -= len(level)
        if left < 0:
            raise InvalidRequest(f"{param} has more than {VALUES_MAX:,} values", param=param)
        if not level:
            return
    raise InvalidRequest(
        f"{param} is nested deeper than {DEPTH_MAX} levels, which is the most allowed", param=param
    )


def _inside(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def of_choices(choices: object, param: str = "choice") -> Grammar:
    """A grammar of which each output is one of these texts. Raises InvalidRequest."""
    words = "a list of strings that are not empty"
    items = as_items(param, choices, words, CHOICES_MAX, of=f"number of {param}")
    if not items or not all(isinstance(item, str) and item for item in items):
        raise InvalidRequest(f"{param} is {shown(choices)}; allowed: {words}", param=param)
    texts = cast(tuple[str, ...], items)
    return Grammar(GrammarKind.LARK, "start: " + " | ".join(map(json.dumps, texts)), param)


def of_text(kind: GrammarKind, text: object, param: str) -> Grammar:
    """A regular expression or a grammar. Raises InvalidRequest."""
    if not isinstance(text, str) or not text:
        raise InvalidRequest(f"{param} is {shown(text)}; allowed: a string that is not empty", param=param)
    return Grammar(kind, text, param)
