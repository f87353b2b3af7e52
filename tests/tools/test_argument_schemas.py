"""What of a function's schema cannot be followed is let go alone: the rest is followed all the same."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar import JSON_OPTIONS, TOO_SLOW, Grammar, of_schema
from octavo.sampling.grammars import Grammars, Words
from octavo.schemas import limit_keys
from octavo.tools import schemas as module
from octavo.tools.definitions import Tool, tool_use
from octavo.tools.formats import FORMATS, HERMES
from octavo.tools.grammars import calls_grammar
from octavo.tools.schemas import SchemaTrials, arguments_schema

END = 256
LOOK_AHEAD = "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"


@pytest.fixture(scope="module")
def grammars() -> Iterator[Grammars]:
    pieces = [bytes([i]) for i in range(256)] + [b"<end>"]
    made = Grammars(lambda: Words(pieces, [END], [END], lambda text: list(text.encode())))
    yield made
    made.close()


def tool_of(parameters: dict[str, object], *, strict: bool = False) -> Tool:
    return Tool("set_price", "", parameters, strict, {})


def followed(grammars: Grammars, parameters: dict[str, object]) -> tuple[dict[str, object], list[str]]:
    tool = tool_of(parameters)
    found = SchemaTrials(grammars.check).followed(tool, arguments_schema(tool))
    schema = dict(found.schema)
    loose = {"coerce_one_of": True} if any("oneOf" in key for key in found.not_enforced) else {}
    assert schema.pop("x-guidance") == {**JSON_OPTIONS, **loose}
    return schema, list(found.not_enforced)


def closed(properties: dict[str, object], **more: object) -> dict[str, object]:
    return {"type": "object", "properties": properties, **more, "additionalProperties": False}


def test_a_pattern_with_a_look_ahead_goes_alone(grammars: Grammars) -> None:
    """As pydantic writes a Decimal."""
    price = {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 6, "pattern": LOOK_AHEAD}]}
    properties = {"sku": {"enum": ["a1", "b2"]}, "price": price}
    schema, not_enforced = followed(
        grammars, {"type": "object", "properties": properties, "required": ["sku", "price"]}
    )
    assert not_enforced == ["pattern (at #/properties/price/anyOf/1)"]
    left = {"anyOf": [{"type": "number"}, {"type": "string", "maxLength": 6}]}
    assert schema == closed({"sku": {"enum": ["a1", "b2"]}, "price": left}, required=["sku", "price"])


BAD: list[tuple[dict[str, object], list[str]]] = [
    ({"type": "string", "pattern": LOOK_AHEAD}, ["pattern"]),
    ({"type": "string", "pattern": "("}, ["pattern"]),
    ({"type": "string", "format": "cron", "uniqueItems": True}, ["format"]),
    ({"type": "array", "uniqueItems": True, "items": {"type": "string"}}, ["uniqueItems"]),
    ({"type": "object", "required": None}, ["required"]),
    ({"type": "object", "propertyNames": {"pattern": "^a"}}, ["propertyNames"]),
    ({"type": "string", "minLength": 9, "maxLength": 3}, ["maxLength"]),
    ({"type": "string", "enum": [1]}, ["enum"]),
    ({"$ref": "#/$defs/nowhere"}, ["$ref"]),
    ({"$ref": "https://example.com/schema.json"}, ["$ref"]),
    ({"type": "integer", "multipleOf": 0}, ["multipleOf"]),
    ({"type": "integer", "minimum": 2**63}, ["minimum"]),
    ({"oneOf": [{"minimum": 1}, {"maximum": 2}]}, ["oneOf, taken as anyOf"]),
    ({"type": "object", "properties": {"a": {}, "b": {}}, "minProperties": 1}, ["minProperties"]),
    ({"type": "object", "patternProperties": {"^a": {"type": "null"}, "^ab": True}}, ["patternProperties"]),
    (
        {"type": "object", "properties": {"a": {}}, "required": ["z"], "additionalProperties": False},
        ["required"],
    ),
    ({"type": "str"}, ["type"]),
]


@pytest.mark.parametrize(("part", "not_enforced"), BAD)
def test_one_bad_key_takes_nothing_else_with_it(
    grammars: Grammars, part: dict[str, object], not_enforced: list[str]
) -> None:
    """Wherever it is: in a property, an item, a definition; what stands beside it stays."""
    beside = {"n": {"type": "integer", "maximum": 9}, "of": {"$ref": "#/$defs/own"}}
    listed = {"type": "array", "items": part, "minItems": 1}
    for place, properties, own in (
        ("#/properties/x", {"x": part, **beside}, {"type": "boolean"}),
        ("#/properties/x/items", {"x": listed, **beside}, {"type": "boolean"}),
        ("#/$defs/own", beside, part),
    ):
        given = {
            "type": "object",
            "properties": properties,
            "required": list(properties),
            "$defs": {"own": own},
        }
        schema, said = followed(grammars, copy.deepcopy(given))
        assert said == [f"{key} (at {place})" for key in not_enforced]
        kept = schema
        for step in place.split("/")[1:]:
            kept = kept[step]  # type: ignore[assignment]
        loose = ("required", "oneOf")
        gone = {key.split(",")[0] for key in not_enforced} | ({"uniqueItems"} & set(part))
        assert set(part) - gone - set(loose) == set(kept) - set(loose)
        assert schema["properties"]["n"] == beside["n"]  # type: ignore[index]
        assert schema["required"] == list(properties)


def test_names_that_are_required_and_not_declared_may_be_anything(grammars: Grammars) -> None:
    given = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a", "b"]}
    schema, not_enforced = followed(grammars, given)
    assert (schema, not_enforced) == (closed({"a": {"type": "string"}, "b": {}}, required=["a", "b"]), [])


@pytest.mark.parametrize(
    "given", [{}, {"type": "string"}, {"type": None}, {"properties": {}}, {"type": ["object", "null"]}]
)
def test_arguments_are_an_object_whatever_the_schema_says(
    grammars: Grammars, given: dict[str, object]
) -> None:
    schema, _ = followed(grammars, given)
    assert schema["type"] == "object"


@pytest.mark.parametrize("required", [{}, {"required": ["q"]}])
def test_names_stay_possible_where_what_named_them_is_let_go(
    grammars: Grammars, required: dict[str, object]
) -> None:
    pattern = {"^(?!x)": {"type": "string"}}
    given = {"type": "object", "patternProperties": pattern, "additionalProperties": False, **required}
    schema, not_enforced = followed(grammars, given)
    assert schema == {"type": "object", **required}
    assert not_enforced == ["patternProperties (at #)", "additionalProperties (at #)"]


def test_names_that_only_a_condition_declares_stay_possible(grammars: Grammars) -> None:
    given = {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "if": {"properties": {"a": {"const": "x"}}},
        "then": {"properties": {"b": {"type": "integer"}}, "required": ["b"]},
    }
    schema, not_enforced = followed(grammars, given)
    assert not_enforced == ["if (at #)", "then (at #)"]
    assert "additionalProperties" not in schema


def test_a_schema_that_can_be_followed_is_left_as_it_is(grammars: Grammars) -> None:
    given = closed({"a": {"$ref": "#/$defs/b"}}, required=["a"], **{"$defs": {"b": {"enum": ["x", 1, None]}}})
    assert followed(grammars, given) == (given, [])


@pytest.mark.parametrize("part", [{"type": "string", "pattern": LOOK_AHEAD}, {"required": None}, {"not": {}}])
def test_a_strict_function_is_all_or_refused(grammars: Grammars, part: dict[str, object]) -> None:
    tool = tool_of({"type": "object", "properties": {"x": part}}, strict=True)
    with pytest.raises(InvalidRequest, match="parameters of the function set_price cannot be followed"):
        SchemaTrials(grammars.check).followed(tool, arguments_schema(tool))


def test_a_strict_function_loses_what_changes_nothing() -> None:
    record = {
        "type": "object",
        "propertyNames": {"type": "string"},
        "additionalProperties": {"type": "integer"},
    }
    found = arguments_schema(tool_of(record, strict=True))
    assert "propertyNames" not in found.schema
    assert found.not_enforced == ()


def test_random_bad_keys_are_found_in_few_trials_and_nothing_else_is_lost(grammars: Grammars) -> None:
    rng = random.Random(5)
    for _ in range(12):
        properties: dict[str, object] = {
            f"f{i}": {"type": "string", "maxLength": i + 1, "description": "d", "pattern": "^[a-c]*$"}
            for i in range(12)
        }
        wanted = []
        for name in sorted(
            rng.sample(sorted(properties), rng.randrange(1, 4)), key=lambda name: int(name[1:])
        ):
            properties[name]["pattern"] = LOOK_AHEAD  # type: ignore[index]
            wanted.append(f"pattern (at #/properties/{name})")
        tried = []
        trials = SchemaTrials(lambda grammar, tried=tried: (tried.append(grammar), grammars.check(grammar)))  # type: ignore[misc]
        tool = tool_of({"type": "object", "properties": properties, "required": list(properties)})
        found = trials.followed(tool, arguments_schema(tool))
        assert list(found.not_enforced) == wanted
        bare = {name: {k: v for k, v in one.items() if v != LOOK_AHEAD} for name, one in properties.items()}  # type: ignore[attr-defined]
        assert found.schema["properties"] == bare
        assert len(tried) <= 5 + 10 * len(wanted)


def test_trials_are_bounded_and_then_all_of_it_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Grammar] = []

    def refuse(grammar: Grammar) -> None:
        tried.append(grammar)
        if "pattern" in grammar.text:
            raise InvalidRequest("no", code="unsupported_grammar")

    monkeypatch.setattr(module, "TRIALS_MAX", 20)
    trials = SchemaTrials(refuse)
    properties = {f"f{i}": {"type": "string", "pattern": "("} for i in range(50)}
    tool = tool_of({"type": "object", "properties": properties})
    found = trials.followed(tool, arguments_schema(tool))
    assert found.not_enforced == ("all of it (at #)",)
    assert found.schema["type"] == "object"
    assert len(tried) <= 22
    again = trials.followed(tool, arguments_schema(tool))
    assert again.not_enforced == ("all of it (at #)",)
    assert len(tried) <= 24


def test_a_schema_that_takes_too_long_to_try_is_refused() -> None:
    def slow(grammar: Grammar) -> None:
        raise InvalidRequest("slow", code=TOO_SLOW)

    tool = tool_of({"type": "object"})
    with pytest.raises(InvalidRequest, match="slow"):
        SchemaTrials(slow).followed(tool, arguments_schema(tool))


def test_the_content_alongside_tools_shows_what_it_lost_too(grammars: Grammars) -> None:
    properties = {"a": {"type": "string", "pattern": LOOK_AHEAD}}
    function = {"name": "f", "parameters": {"type": "object", "properties": properties}}
    use = tool_use([{"type": "function", "function": function}], "auto", None)
    assert use is not None
    output = of_schema({"type": "string", "format": "password"}, "response_format")
    grammar = calls_grammar(use, HERMES, output, lambda text: None, grammars.check)
    assert grammar is not None
    assert grammar.not_enforced == ("format (at #)", "f: pattern (at #/properties/a)")


def test_many_keys_are_reported_in_few_words() -> None:
    assert limit_keys(["a" * 300, *"b" * 80]) == ("a" * 197 + "...", *"b" * 63, "17 more")


def test_a_name_that_is_not_declared_may_be_any_value_of_a_pythonic_call_too(grammars: Grammars) -> None:
    function = {
        "name": "f",
        "parameters": {"type": "object", "properties": {"a": None}, "required": ["a", "b"]},
    }
    use = tool_use([{"type": "function", "function": function}], "required", False)
    assert use is not None
    grammar = calls_grammar(use, FORMATS["pythonic"], None, lambda text: None, grammars.check)
    assert grammar is not None
    held = grammars.compile(grammar)
    matcher = grammars.begin(held.grammar, [])
    for token in b'[f(a=5, b="x")]':
        assert matcher.accept(token) == ""
