"""Drops keywords of a JSON schema: those without effect, and, if leniency is allowed, those that cannot be
followed. It compiles nothing: `octavo.tools.schemas` finds the rest by trials.

    without_effect   every value that follows the result follows the schema: for `response_format`
    readable         also drops keys that the library does not know, or that are no schema: for tools

Dropped keys that might matter are reported as the keyword and its place: "format (at #/items)".
Source: JSON Schema, draft 2020-12; which keywords and formats are followed is llguidance's choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from octavo.errors import is_number, shown

_KEYS_MAX = 64  # reported keys of one request
_KEY_CHARS_MAX = 200  # of each of them

Schema = Mapping[str, object]
Change = Callable[[object, str], object]  # of one schema, or a value in place of one, and its place

OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
OF_ONE = ("items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains")
OF_MANY = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_WITH_SCHEMAS = frozenset((*OF_NAMES, *OF_ONE, *OF_MANY))
FOLLOWED_FORMATS = frozenset(
    ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown")
)
# JSON Schema's own formats that are not followed. Any other one is an annotation.
_OWN_FORMATS = frozenset(
    (
        *("idn-email", "idn-hostname", "uri-reference", "iri", "iri-reference", "uri-template"),
        *("json-pointer", "relative-json-pointer", "regex"),
    )
)
# The dialects that the library supports. Any other one is read as the first.
_DIALECTS = (
    *(f"https://json-schema.org/draft/{date}/schema" for date in ("2020-12", "2019-09")),
    *(f"http://json-schema.org/draft-0{number}/schema" for number in (7, 6, 4)),
)
_TYPES = frozenset(("null", "boolean", "integer", "number", "string", "array", "object"))
_ANNOTATIONS = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
# Keywords that are not followed, and the only type that each applies to.
_UNFOLLOWED: Mapping[str, str] = {
    **dict.fromkeys(("propertyNames", "dependentRequired", "dependentSchemas", "dependencies"), "object"),
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("not", "if", "then", "else", "$dynamicRef", "$dynamicAnchor"), ""),
    **dict.fromkeys(("$recursiveRef", "$recursiveAnchor"), ""),
    "unevaluatedProperties": "object",
}


_NOTHING = object()


@dataclass(frozen=True, slots=True)
class LooseSchema:
    """A schema, and the dropped keys of the original."""

    schema: Schema
    not_enforced: tuple[str, ...] = ()  # each: a keyword and its place


def without_effect(schema: Schema) -> LooseSchema:
    """The schema without keywords that no value can violate, and formats that only annotate. O(schema)."""
    not_enforced: list[str] = []

    def change(one: object, at: str) -> object:
        if not isinstance(one, Mapping):
            return one
        kept = {key: value for key, value in one.items() if not _changes_nothing(key, one)}
        if _annotates(kept):
            not_enforced.append(named("format", at))
            del kept["format"]
        return kept

    return LooseSchema(rebuilt(schema, change), tuple(not_enforced))


def readable(schema: Schema) -> LooseSchema:
    """The readable part of the schema, key by key; dropping a key only allows more values. O(schema)."""
    not_enforced: list[str] = []

    def change(one: object, at: str) -> object:
        if isinstance(one, bool):
            return one
        if not isinstance(one, Mapping):
            not_enforced.append(named("null" if one is None else shown(one), at))
            return {}
        kept: dict[str, object] = {}
        for key, value in one.items():
            if _changes_nothing(key, one):
                continue
            is_format = key == "format" and _may_be(one, "string") and value not in FOLLOWED_FORMATS
            read = _NOTHING if key in _UNFOLLOWED or is_format else _read(key, value)
            if read != value:
                not_enforced.append(named(key, at))
            if read is not _NOTHING:
                kept[key] = read
        return _with_possible_names(kept, at, not_enforced)

    return LooseSchema(rebuilt(schema, change), tuple(not_enforced))


def named(key: str, at: str) -> str:
    """A keyword and its place, in the form that is reported."""
    return f"{key} (at {at})"


def limit_keys(not_enforced: Sequence[str]) -> tuple[str, ...]:
    """The reported form: the first keys, each shortened."""
    most, more = _KEY_CHARS_MAX, len(not_enforced) - _KEYS_MAX
    cut = [one if len(one) <= most else one[: most - 3] + "..." for one in not_enforced[:_KEYS_MAX]]
    return (*cut, f"{more:,} more") if more > 0 else tuple(cut)


def rebuilt(schema: Schema, change: Change) -> dict[str, object]:
    """A copy with every subschema changed, from the outside in. O(schema)."""
    changed = _rebuilt(schema, change, "#")
    assert isinstance(changed, dict)
    return changed


def subschemas(schema: Schema) -> Iterator[tuple[dict[str, object], tuple[str, ...]]]:
    """The schemas directly inside one, each with the rest of its pointer."""
    if _WITH_SCHEMAS.isdisjoint(schema):
        return
    for key in OF_NAMES:
        if isinstance(names := schema.get(key), dict):
            yield from ((one, (key, name)) for name, one in names.items() if isinstance(one, dict))
    for key in OF_ONE:
        if isinstance(one := schema.get(key), dict):
            yield one, (key,)
    for key in OF_MANY:
        if isinstance(listed := schema.get(key), list):
            yield from ((one, (key, str(index))) for index, one in enumerate(listed) if isinstance(one, dict))


def _rebuilt(schema: object, change: Change, at: str) -> object:
    changed = change(schema, at)
    if not isinstance(changed, Mapping):
        return changed
    return {key: _rebuilt_value(key, value, change, f"{at}/{key}") for key, value in changed.items()}


def _rebuilt_value(key: str, value: object, change: Change, at: str) -> object:
    if key in OF_NAMES and isinstance(value, Mapping):
        return {name: _rebuilt(one, change, f"{at}/{_escaped(name)}") for name, one in value.items()}
    if key in OF_MANY and isinstance(value, list):
        return [_rebuilt(one, change, f"{at}/{index}") for index, one in enumerate(value)]
    return _rebuilt(value, change, at) if key in OF_ONE else value


def _escaped(name: str) -> str:
    """The name as a part of a JSON pointer."""
    return name.replace("~", "~0").replace("/", "~1")


def _may_be(one: Schema, kind: str) -> bool:
    """Whether a value of this type may follow the schema."""
    types = one.get("type")
    if isinstance(types, str):
        types = [types]
    return not kind or not isinstance(types, list) or kind in types or not _TYPES.issuperset(map(str, types))


def _annotates(one: Schema) -> bool:
    """Whether its format is not one of JSON Schema's: then it asserts nothing."""
    given = one.get("format")
    return isinstance(given, str) and _may_be(one, "string") and given not in FOLLOWED_FORMATS | _OWN_FORMATS


def _changes_nothing(key: str, one: Schema) -> bool:
    """Whether the same values follow the schema without this key."""
    value = one[key]
    if key == "$schema":
        return not isinstance(value, str) or value.rstrip("#") not in _DIALECTS
    if key not in _UNFOLLOWED:
        return False
    if not _may_be(one, _UNFOLLOWED[key]):
        return True
    match key:
        case "propertyNames":
            return _is_any(value) or _bare(value) == {"type": "string"}
        case "uniqueItems":
            most = one.get("maxItems")
            return value is False or (isinstance(most, int) and most <= 1)
        case "contains":
            return one.get("minContains") == 0 and "maxContains" not in one
        case "minContains" | "maxContains":
            return "contains" not in one or (one.get("minContains") == 0 and "maxContains" not in one)
        case "if":
            return all(_is_any(one.get(name, True)) for name in ("then", "else"))
        case "then" | "else":
            return "if" not in one or _is_any(value)
        case "dependentRequired" | "dependentSchemas" | "dependencies":
            return isinstance(value, Mapping) and all(one == [] or _is_any(one) for one in value.values())
        case "unevaluatedItems" | "unevaluatedProperties":
            return _is_any(value)
        case "$dynamicAnchor" | "$recursiveAnchor":
            return True  # its references are checked where they are used
    return key == "not" and value is False


def _bare(schema: object) -> object:
    """The schema without annotations."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key not in _ANNOTATIONS}


def _is_any(schema: object) -> bool:
    """Whether every value follows it."""
    return schema is True or _bare(schema) == {}


def _read(key: str, value: object) -> object:
    """The keyword's value, or its readable part, possibly `_NOTHING`."""
    match key:
        case "type":
            types = value if isinstance(value, list) else [value]
            known = [one for one in types if isinstance(one, str) and one in _TYPES]
            return value if len(known) == len(types) and known else known or _NOTHING
        case "required":
            return [one for one in value if isinstance(one, str)] if isinstance(value, list) else _NOTHING
        case "enum" | "anyOf" | "oneOf" | "allOf" | "prefixItems":
            return value if isinstance(value, list) and value else _NOTHING
        case "properties" | "patternProperties" | "$defs" | "definitions":
            return value if isinstance(value, Mapping) else _NOTHING
        case "pattern" | "format" | "$ref" | "$schema" | "$id":
            return value if isinstance(value, str) else _NOTHING
        case "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties":
            whole = int(value) if isinstance(value, float) and value.is_integer() else value
            return (
                whole if isinstance(whole, int) and not isinstance(whole, bool) and whole >= 0 else _NOTHING
            )
        case "minimum" | "maximum" | "multipleOf":
            return value if is_number(value) else _NOTHING
        case "exclusiveMinimum" | "exclusiveMaximum":
            return value if is_number(value) or isinstance(value, bool) else _NOTHING
    return value


def _with_possible_names(one: dict[str, object], at: str, not_enforced: list[str]) -> Schema:
    """The schema without required names that are not allowed."""
    required, properties = one.get("required"), one.get("properties", {})
    if one.get("additionalProperties") is not False or "patternProperties" in one:
        return one
    assert isinstance(properties, Mapping)  # it was read
    possible = [name for name in _strings(required) if name in properties]
    if possible != required and required is not None:
        not_enforced.append(named("required", at))
        one["required"] = possible
    return one


def _strings(value: object) -> Iterable[str]:
    return value if isinstance(value, list) else ()
