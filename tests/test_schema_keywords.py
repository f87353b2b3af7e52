"""What of a schema changes nothing, only annotates, or is no schema: known without a trial."""

from __future__ import annotations

import pytest

from octavo.schemas import readable, without_effect

ANY = {"type": "string"}


def at_x(part: dict[str, object]) -> dict[str, object]:
    return {"type": "object", "properties": {"x": part}, "required": ["x"]}


NO_EFFECT: list[tuple[dict[str, object], dict[str, object]]] = [
    ({"type": "object", "propertyNames": {"type": "string"}}, {"type": "object"}),
    ({"propertyNames": {"type": "string", "title": "Key"}}, {}),
    ({"propertyNames": True}, {}),
    ({"type": "string", "propertyNames": {"maxLength": 3}}, ANY),
    ({"type": "array", "uniqueItems": False}, {"type": "array"}),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
    ({"type": "integer", "uniqueItems": True}, {"type": "integer"}),
    ({"type": ["string", "null"], "contains": {"const": 1}}, {"type": ["string", "null"]}),
    ({"contains": {"const": 1}, "minContains": 0}, {}),
    ({"minContains": 3}, {}),
    ({"if": {"const": 1}}, {}),
    ({"if": {"const": 1}, "then": {}, "else": True}, {}),
    ({"then": {"const": 1}}, {}),
    ({"not": False}, {}),
    ({"dependentRequired": {"a": []}, "dependentSchemas": {"a": True}, "dependencies": {}}, {}),
    ({"unevaluatedProperties": True, "unevaluatedItems": {}}, {}),
    ({"$dynamicAnchor": "node", "$recursiveAnchor": True}, {}),
    ({"$schema": "https://json-schema.org/draft-07/schema#"}, {}),
]


@pytest.mark.parametrize(("given", "left"), NO_EFFECT)
def test_what_no_value_can_break_is_let_go_without_a_word(
    given: dict[str, object], left: dict[str, object]
) -> None:
    for read in (without_effect, readable):
        assert (read(given).schema, read(given).not_enforced) == (left, ())
    nested = at_x({"anyOf": [given, {"items": given}]})
    assert without_effect(nested).schema == at_x({"anyOf": [left, {"items": left}]})


@pytest.mark.parametrize("name", ["password", "binary", "byte", "int32", "path", "my-own", "json-string"])
def test_a_format_that_json_schema_does_not_know_annotates_and_is_reported(name: str) -> None:
    found = without_effect(at_x({"type": "string", "format": name, "maxLength": 5}))
    assert found.schema == at_x({"type": "string", "maxLength": 5})
    assert found.not_enforced == ("format (at #/properties/x)",)


@pytest.mark.parametrize(
    "part",
    [
        {"type": "array", "uniqueItems": True},
        {"type": "array", "uniqueItems": True, "maxItems": 2},
        {"propertyNames": {"pattern": "^a"}},
        {"propertyNames": {"type": "integer"}},
        {"not": {}},
        {"not": True},
        {"if": {"const": 1}, "then": {"const": 2}},
        {"contains": {"const": 1}},
        {"contains": {"const": 1}, "minContains": 0, "maxContains": 2},
        {"dependentRequired": {"a": ["b"]}},
        {"unevaluatedProperties": False},
        {"type": "string", "format": "regex"},
        {"type": "string", "format": "json-pointer"},
        {"type": "string", "format": "date"},
        {"type": "integer", "format": "int32"},
        {"$schema": "http://json-schema.org/draft-07/schema#"},
        {"enum": [{"uniqueItems": False}], "default": {"propertyNames": True}},
    ],
)
def test_what_constrains_or_is_no_keyword_stays(part: dict[str, object]) -> None:
    assert (without_effect(part).schema, without_effect(part).not_enforced) == (part, ())


def test_names_of_properties_are_no_keywords() -> None:
    schema = {"type": "object", "properties": {"propertyNames": ANY, "not": ANY, "format": ANY}}
    assert without_effect(schema).schema == readable(schema).schema == schema


@pytest.mark.parametrize(
    ("part", "left", "told"),
    [
        ({"type": "object", "required": None}, {"type": "object"}, ["required (at #/properties/x)"]),
        ({"type": "string", "required": True}, ANY, ["required (at #/properties/x)"]),
        ({"required": ["a", 5]}, {"required": ["a"]}, ["required (at #/properties/x)"]),
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, ["uniqueItems (at #/properties/x)"]),
        ({"type": "any", "maxLength": 3}, {"maxLength": 3}, ["type (at #/properties/x)"]),
        ({"type": ["string", "date"]}, {"type": ["string"]}, ["type (at #/properties/x)"]),
        ({"properties": {"a": None}}, {"properties": {"a": {}}}, ["null (at #/properties/x/properties/a)"]),
        ({"items": None}, {"items": {}}, ["null (at #/properties/x/items)"]),
        ({"anyOf": [None, ANY]}, {"anyOf": [{}, ANY]}, ["null (at #/properties/x/anyOf/0)"]),
        ({"enum": "abc"}, {}, ["enum (at #/properties/x)"]),
        ({"const": None, "default": None}, {"const": None, "default": None}, []),
        ({"maxLength": 5.0, "minLength": -1}, {"maxLength": 5}, ["minLength (at #/properties/x)"]),
        ({"minimum": "5", "maximum": 9}, {"maximum": 9}, ["minimum (at #/properties/x)"]),
        ({"type": "string", "format": "iri"}, ANY, ["format (at #/properties/x)"]),
        ({"type": "string", "format": None}, ANY, ["format (at #/properties/x)"]),
        (
            {"properties": {"a": ANY}, "required": ["a", "b"], "additionalProperties": False},
            {"properties": {"a": ANY}, "required": ["a"], "additionalProperties": False},
            ["required (at #/properties/x)"],
        ),
        ({"required": ["b"], "properties": {}}, {"required": ["b"], "properties": {}}, []),
        (
            {"if": {"const": 1}, "then": {"const": 2}, "not": {"const": 3}, "minLength": 2},
            {"minLength": 2},
            [f"{key} (at #/properties/x)" for key in ("if", "then", "not")],
        ),
    ],
)
def test_a_reader_that_is_lenient_lets_single_keys_go_and_shows_each(
    part: dict[str, object], left: dict[str, object], told: list[str]
) -> None:
    found = readable(at_x(part))
    assert found.schema == at_x(left)
    assert list(found.not_enforced) == told


def test_a_place_is_a_json_pointer() -> None:
    schema = {"properties": {"a/b~c": {"type": "string", "format": "x"}}}
    assert without_effect(schema).not_enforced == ("format (at #/properties/a~1b~0c)",)
