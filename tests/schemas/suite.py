"""Five hundred schemas in the manner of the JSON Schema Test Suite (draft 2020-12): all its keywords, alone
and beside others, also what grammars cannot follow. Made from small families, not drawn."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

Schema = dict[str, object] | bool

_TYPES = ("integer", "number", "string", "object", "array", "boolean", "null")
_VALUES: tuple[object, ...] = (
    *(0, 1, -1, 2.5, "", "foo", 'a"b\\c', "日本", None, True, False, [], {}, [1, 2], {"a": 1}),
    *([[]], {"foo": {"bar": []}}, "\n", 1e3, [False], {"a": None}),
)
_NUMBERS = (0, 1, 3, 10, 100, 0.5, 1.1, 3.5, -2)
_SIZES = (0, 1, 2, 3, 5)
_FORMATS = (
    "date",
    "time",
    "date-time",
    "email",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
    "hostname",
    "duration",
    "regex",
    "json-pointer",
)
_PATTERNS = (
    "^a*$",
    "a+",
    "^[a-c]{2,4}$",
    "^x",
    "z$",
    "^(foo|bar)$",
    "^\\d{3}-\\d{4}$",
    "^\\S+$",
    "[0-9]",
    "^.{1,5}$",
)
_INT, _STR, _NULL, _BOOL = {"type": "integer"}, {"type": "string"}, {"type": "null"}, {"type": "boolean"}
_SIMPLE: tuple[dict[str, object], ...] = (
    _INT,
    _STR,
    _NULL,
    _BOOL,
    {"type": "number"},
    {"const": 1},
    {"enum": ["a", "b"]},
)
_PAIRS = list(itertools.combinations(_SIMPLE, 2))


def cases() -> list[tuple[str, Schema]]:
    """The keyword that each is about, and the schema: no two the same."""
    found: dict[str, tuple[str, Schema]] = {}
    for keyword, schema in itertools.chain(
        _of_values(),
        _of_numbers(),
        _of_strings(),
        _of_arrays(),
        _of_objects(),
        _of_choices(),
        _of_references(),
        _of_others(),
    ):
        found.setdefault(repr(schema), (keyword, schema))
    return list(found.values())


def _obj(**properties: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _of_values() -> Iterator[tuple[str, Schema]]:
    for name in _TYPES:
        yield "type", {"type": name}
    for one, two in itertools.pairwise(_TYPES):
        yield "type", {"type": [one, two]}
    for value in _VALUES:
        yield "const", {"const": value}
    for value in _VALUES[:8]:
        yield "const", _obj(foo={"const": value})
    for count in range(2, 9):
        yield "enum", {"enum": list(_VALUES[:count])}
        yield "enum", {"enum": list(_VALUES[count:])}
        yield (
            "enum",
            {"type": "string", "enum": ["a", 1, "bc", None][: count + 1], "description": "x" * count},
        )
    yield "boolean_schema", True
    yield "boolean_schema", False
    for value in _VALUES[:3]:
        yield "default", _obj(foo={"default": value, **_INT})


def _of_numbers() -> Iterator[tuple[str, Schema]]:
    for kind, number in itertools.product(("integer", "number"), _NUMBERS[:6]):
        yield "minimum", {"type": kind, "minimum": number, "maximum": number + 50}
    for number in _NUMBERS:
        yield "maximum", {"maximum": number}
        yield (
            "exclusiveMinimum",
            {"type": "number", "exclusiveMinimum": number, "exclusiveMaximum": number + 7},
        )
    for number in (2, 3, 5, 0.5, 0.01, 1.5):
        yield "multipleOf", {"type": "number", "multipleOf": number}
        yield "multipleOf", {"type": "integer", "multipleOf": number, "maximum": 100, "minimum": 0}


def _of_strings() -> Iterator[tuple[str, Schema]]:
    for low, high in itertools.combinations(_SIZES, 2):
        yield "minLength", {"type": "string", "minLength": low, "maxLength": high}
    for size in _SIZES:
        yield "maxLength", {"maxLength": size}
    for pattern in _PATTERNS:
        yield "pattern", {"type": "string", "pattern": pattern}
        yield "pattern", _obj(foo={"type": "string", "pattern": pattern, "maxLength": 12})
    for name in _FORMATS:
        yield "format", {"type": "string", "format": name}
        yield "format", {"type": "array", "items": {"type": "string", "format": name}, "maxItems": 2}
    for name in ("base64", "quoted-printable"):
        yield "content", {"type": "string", "contentEncoding": name, "maxLength": 20}


def _of_arrays() -> Iterator[tuple[str, Schema]]:
    for item in (*_SIMPLE, True, False, {"items": _INT}, _obj(a=_INT)):
        yield "items", {"type": "array", "items": item, "maxItems": 4}
        yield "items", {"items": item}
    for one, two in _PAIRS[:11]:
        yield "prefixItems", {"type": "array", "prefixItems": [one, two], "items": False}
        yield "prefixItems", {"type": "array", "prefixItems": [one], "items": two, "maxItems": 3}
    for low, high in itertools.combinations(_SIZES, 2):
        yield "minItems", {"type": "array", "minItems": low, "maxItems": high}
    for item in _SIMPLE[:4]:
        yield "uniqueItems", {"type": "array", "items": item, "uniqueItems": True, "maxItems": 4}
        yield "contains", {"type": "array", "contains": item}
        yield "contains", {"type": "array", "contains": item, "minContains": 2, "maxContains": 3}
        yield "unevaluatedItems", {"type": "array", "prefixItems": [item], "unevaluatedItems": False}
        yield "unevaluatedItems", {"type": "array", "unevaluatedItems": item}
        yield "unevaluatedItems", {"allOf": [{"prefixItems": [item]}], "unevaluatedItems": False}


def _of_objects() -> Iterator[tuple[str, Schema]]:
    for one, two in _PAIRS[:14]:
        yield "properties", {"properties": {"foo": one, "bar": two}}
        yield "required", _obj(foo=one, bar=two)
        yield "additionalProperties", {**_obj(foo=one), "additionalProperties": two}
    for name in ('a"b', "a\\b", "日本", "a b", "__proto__", "constructor", ""):
        yield "properties", {**_obj(**{name: _INT}), "additionalProperties": False}
        yield "required", {"type": "object", "required": [name]}
    for pattern, item in itertools.product(("^f", "a+", "^[0-9]{2}$"), _SIMPLE[:4]):
        yield (
            "patternProperties",
            {"type": "object", "patternProperties": {pattern: item}, "additionalProperties": False},
        )
    for size in _SIZES[:4]:
        yield "minProperties", {"type": "object", "minProperties": size, "additionalProperties": _INT}
        yield "maxProperties", {"type": "object", "maxProperties": size, "additionalProperties": _INT}
    for item in _SIMPLE[:4]:
        yield "dependentRequired", {**_obj(foo=item), "dependentRequired": {"foo": ["bar"]}}
        yield "dependentSchemas", {**_obj(foo=item), "dependentSchemas": {"foo": _obj(bar=_INT)}}
        yield (
            "propertyNames",
            {"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": item},
        )
        yield (
            "propertyNames",
            {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": item},
        )
        yield "unevaluatedProperties", {**_obj(foo=item), "unevaluatedProperties": False}
        yield "unevaluatedProperties", {"allOf": [_obj(foo=item)], "unevaluatedProperties": False}
        yield (
            "unevaluatedProperties",
            {"anyOf": [_obj(foo=item), _obj(bar=_INT)], "unevaluatedProperties": False},
        )
        yield "unevaluatedProperties", {**_obj(foo=_INT), "unevaluatedProperties": item}


def _of_choices() -> Iterator[tuple[str, Schema]]:
    for one, two in _PAIRS[:16]:
        yield "anyOf", {"anyOf": [one, two]}
        yield "allOf", {"allOf": [_obj(foo=one), _obj(bar=two)]}
    for one, two in _PAIRS[:10]:
        yield "anyOf", {**_obj(foo=_INT), "anyOf": [_obj(bar=one), _obj(baz=two)]}
    for one, two in _PAIRS[:9]:
        yield "oneOf", {"oneOf": [one, two]}
        yield "oneOf", {"oneOf": [_obj(foo=one), _obj(bar=two)]}
        yield "if-then-else", {"if": one, "then": {"minimum": 3}, "else": two}
        yield "not", {"not": {"anyOf": [one, two]}}
    for one in _SIMPLE[:6]:
        yield "allOf", {"allOf": [one, {"description": "x"}]}
        yield "allOf", {"allOf": [one], "anyOf": [one]}
        yield "not", _obj(foo={"not": one})
    for number in _NUMBERS[:5]:
        yield "allOf", {"allOf": [{"type": "number", "maximum": number + 30}, {"minimum": number}]}


def _of_references() -> Iterator[tuple[str, Schema]]:
    for item in _SIMPLE:
        yield "ref", {"$defs": {"a": item}, "$ref": "#/$defs/a"}
        yield "ref", {"$defs": {"a": item, "b": {"$ref": "#/$defs/a"}}, **_obj(foo={"$ref": "#/$defs/b"})}
        yield "ref", {"properties": {"foo": item, "bar": {"$ref": "#/properties/foo"}}}
    for name in ("a~1b", "a%25b", "a~0b", "a b", "日"):
        key = name.replace("~1", "/").replace("~0", "~").replace("%25", "%")
        yield "ref", {"$defs": {key: _INT}, **_obj(foo={"$ref": f"#/$defs/{name}"})}
    for size in (1, 2):
        node = {**_obj(value=_INT), "additionalProperties": False}
        node["properties"] = {"value": _INT, "next": {"anyOf": [{"$ref": "#/$defs/node"}, _NULL]}}
        yield (
            "ref",
            {"$defs": {"node": node}, "type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": size},
        )
    yield "ref", {"properties": {"foo": {"$ref": "#"}}, "additionalProperties": False}
    for item in _SIMPLE[:3]:
        yield "anchor", {"$defs": {"a": {"$anchor": "x", **item}}, "$ref": "#x"}
        yield "dynamicRef", {"$defs": {"a": {"$dynamicAnchor": "x", **item}}, "$dynamicRef": "#x"}
        yield "refRemote", {"$ref": "http://localhost:1234/integer.json", "$defs": {"a": item}}
        yield "id", {"$id": "http://localhost/root.json", "$defs": {"a": item}, "$ref": "#/$defs/a"}


def _of_others() -> Iterator[tuple[str, Schema]]:
    yield "unknownKeyword", {**_obj(foo=_INT), "title": "a title", "$comment": "a comment", "x-own": 1}
