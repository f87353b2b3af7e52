"""What an output must follow: a JSON schema, a regular expression, one of some texts, a grammar. A value, not
yet understood: `octavo.sampling.grammars` compiles it."""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from octavo.errors import InvalidRequest, as_items, require_range, shown

GRAMMAR_CHARS_MAX = 256 * 1024
CHOICES_MAX = 1024


class GrammarKind(enum.StrEnum):
    """How its text is written."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"  # Rust's syntax, the whole output
    LARK = "lark"  # llguidance's variant of Lark
    GBNF = "gbnf"  # llama.cpp's


@dataclass(frozen=True, slots=True)
class Grammar:
    """What the whole output must follow. Equal values are compiled once."""

    kind: GrammarKind
    text: str  # JSON of a schema has sorted keys but for `properties`, whose order is the output's
    param: str = "grammar"  # the client's name for it, for errors

    def __post_init__(self) -> None:
        require_range(f"length of {self.param}", len(self.text), 1, GRAMMAR_CHARS_MAX, param=self.param)


ANY_OBJECT: Mapping[str, object] = {"type": "object"}


def of_schema(schema: object, param: str = "json_schema") -> Grammar:
    """JSON that a schema describes; `schema` is one, or its JSON text. Raises InvalidRequest."""
    if isinstance(schema, str):
        try:
            schema = json.loads(schema)
        except ValueError as error:
            raise InvalidRequest(f"{param} is not JSON: {error}", param=param) from None
    if not isinstance(schema, Mapping | bool):
        raise InvalidRequest(
            f"{param} is {shown(schema)}; allowed: a JSON schema, which is an object", param=param
        )
    try:
        text = json.dumps(schema, allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidRequest(f"{param} is no JSON: {error}", param=param) from None
    return Grammar(GrammarKind.JSON_SCHEMA, text, param)


def of_choices(choices: object, param: str = "choice") -> Grammar:
    """One of these texts, whole. Raises InvalidRequest."""
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
