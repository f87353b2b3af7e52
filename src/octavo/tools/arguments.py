"""Arguments that a model writes without JSON's quotes, converted to JSON: the function's schema decides the
type of each."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from octavo.tools.definitions import Tool
from octavo.tools.pythonic import value_of

_NUMBERS = frozenset(("integer", "number"))
_ALL = frozenset(("string", "integer", "number", "boolean", "null", "object", "array"))
_DEPTH_MAX = 8  # of nested schemas that are read


class ArgumentTypes:
    """The types that the tools of one request allow for each argument."""

    def __init__(self, tools: Sequence[Tool]) -> None:
        self._parameters = {tool.name: tool.parameters for tool in tools}

    def knows(self, name: str) -> bool:
        """Whether there is such a function."""
        return name in self._parameters

    def is_text(self, name: str, key: str) -> bool:
        """Whether the argument is always a string, so that any text is valid."""
        return self._types(name, key) == {"string"}

    def as_json(self, name: str, key: str, text: str) -> str:
        """The text as JSON: of a type that the schema allows if it parses as such, else as a string."""
        types = self._types(name, key)
        try:
            value = value_of(text.strip())
            written = json.dumps(value, ensure_ascii=False, allow_nan=False)
            written.encode()  # half of a surrogate pair is not text
        except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
            return json.dumps(text, ensure_ascii=False)
        kind = type_of(value)
        is_allowed = kind in types or (kind == "integer" and "number" in types)
        return written if is_allowed or "string" not in types else json.dumps(text, ensure_ascii=False)

    def _types(self, name: str, key: str) -> frozenset[str] | set[str]:
        parameters = self._parameters.get(name, {})
        properties = parameters.get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        if schema is None:
            schema = parameters.get("additionalProperties", {})
        return types_of(schema, parameters)


def types_of(schema: object, root: Mapping[str, object], depth: int = 0) -> frozenset[str] | set[str]:
    """The types of JSON values that a schema allows, as far as it specifies them."""
    if not isinstance(schema, Mapping) or depth > _DEPTH_MAX:
        return _ALL
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {type_of(value) for value in values} if isinstance(values, list) else _ALL
    given = schema.get("type")
    if isinstance(given, str):
        return {given}
    if isinstance(given, list):
        return {one for one in given if isinstance(one, str)}
    reference = schema.get("$ref")
    if isinstance(reference, str):
        return types_of(_referred(reference, root), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        choices = schema.get(word)
        if isinstance(choices, list):
            return {one for choice in choices for one in types_of(choice, root, depth + 1)}
    parts = schema.get("allOf")
    if isinstance(parts, list):
        return set.intersection(set(_ALL), *(set(types_of(part, root, depth + 1)) for part in parts))
    return _ALL


def type_of(value: object) -> str:
    """JSON Schema's name of a value's type."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list() | tuple():
            return "array"
        case _:
            return "object"


def escaped(text: str) -> str:
    """A part of a JSON string, without its quotes."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _referred(reference: str, root: Mapping[str, object]) -> object:
    """The schema that "#/$defs/name" refers to."""
    found: object = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
