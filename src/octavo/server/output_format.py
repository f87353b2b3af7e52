"""The fields of every dialect that constrain the output, and the grammar they stand for.

A request may have one constraint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from octavo.errors import InvalidRequest, unsupported, wrong_value
from octavo.grammar import ANY_OBJECT, Grammar, GrammarKind, of_choices, of_schema, of_text
from octavo.server.field_list import Body, done


class FormatBody(Body):
    """The constraints of the output, as the client gave them."""

    response_format: object = done("text, json_object, json_schema; llama-server's `schema` too", "OVLS")
    structured_outputs: object = done("one of json, json_object, regex, choice, grammar", "V")
    guided_json: object = done("", "V")
    guided_regex: object = done("", "V")
    guided_choice: object = done("", "V")
    guided_grammar: object = done("EBNF as llama.cpp writes it, or Lark", "V")
    json_schema: object = done("", "LS")
    grammar: object = done("GBNF", "L")
    regex: object = done("", "S")
    ebnf: object = done("", "S")

    @property
    def output_grammar(self) -> Grammar | None:
        """The requested grammar; None: any text. Raises InvalidRequest."""
        found: dict[str, Grammar] = {}
        for name, read in _READERS.items():
            given = getattr(self, name)
            grammar = None if given in (None, "", {}) else read(given, name)
            if grammar is not None:
                found[name] = grammar
        if len(found) > 1:
            names = " and ".join(found)
            raise InvalidRequest(
                f"{names} are given together; allowed: one of them, because the output follows one",
                param=names,
            )
        return next(iter(found.values()), None)


def _response_format(given: object, name: str) -> Grammar | None:
    kinds = (
        '{"type": "text"}, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": ...}}'
    )
    if isinstance(given, Mapping):
        schema = given.get("schema")
        match given.get("type"):
            case "text":
                return None
            case "json_object":
                return of_schema(ANY_OBJECT if schema is None else schema, name)
            case "json_schema":
                described = given.get("json_schema")
                if isinstance(described, Mapping):
                    schema = described.get("schema", schema)
                if schema is not None:
                    return of_schema(schema, name)
    raise wrong_value(name, given, kinds)


def _structured_outputs(given: object, name: str) -> Grammar | None:
    if not isinstance(given, Mapping):
        raise wrong_value(name, given, "an object")
    for missing in ("structural_tag", "whitespace_pattern"):
        if given.get(missing) is not None:
            raise unsupported(f"{name}.{missing} is not supported by this server", f"{name}.{missing}")
    found = [
        read(given[key], f"{name}.{key}")
        for key, read in _OF_STRUCTURED.items()
        if given.get(key) not in (None, False)
    ]
    if len(found) != 1:
        keys = ", ".join(_OF_STRUCTURED)
        raise InvalidRequest(f"{name} has {len(found)} constraints; allowed: one of {keys}", param=name)
    return found[0]


def _grammar(given: object, name: str) -> Grammar:
    """EBNF as llama.cpp writes it, or Lark."""
    is_gbnf = isinstance(given, str) and "::=" in given
    return of_text(GrammarKind.GBNF if is_gbnf else GrammarKind.LARK, given, name)


def _regex(given: object, name: str) -> Grammar:
    return of_text(GrammarKind.REGEX, given, name)


def _gbnf(given: object, name: str) -> Grammar:
    return of_text(GrammarKind.GBNF, given, name)


_OF_STRUCTURED: Mapping[str, Callable[[object, str], Grammar]] = {
    "json": of_schema,
    "json_object": lambda given, name: of_schema(ANY_OBJECT, name),
    "regex": _regex,
    "choice": of_choices,
    "grammar": _grammar,
}
_READERS: Mapping[str, Callable[[object, str], Grammar | None]] = {
    "response_format": _response_format,
    "structured_outputs": _structured_outputs,
    "guided_json": of_schema,
    "guided_regex": _regex,
    "guided_choice": of_choices,
    "guided_grammar": _grammar,
    "json_schema": of_schema,
    "grammar": _gbnf,
    "regex": _regex,
    "ebnf": _gbnf,
}
