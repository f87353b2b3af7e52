"""A grammar over a vocabulary of bytes and some longer tokens: what it allows, forces, refuses."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind, of_choices, of_schema, of_text
from octavo.sampling.grammars import Grammars, Matcher, Words, place_of

LONGER = [b"cat", b"car", b'{"', b'": ', b"ab"]
END = 256 + len(LONGER)


def encode(text: str) -> list[int]:
    """The longest token first."""
    data, tokens = text.encode(), []
    while data:
        longer = next((i for i, piece in enumerate(LONGER) if data.startswith(piece)), None)
        tokens.append(data[0] if longer is None else 256 + longer)
        data = data[1 if longer is None else len(LONGER[longer]) :]
    return tokens


@pytest.fixture
def grammars() -> Grammars:
    pieces = [bytes([i]) for i in range(256)] + LONGER + [b"<end>"]
    return Grammars(lambda: Words(pieces, [END], [END], encode))


def allowed(matcher: Matcher) -> set[int]:
    scores = np.zeros(END + 1, np.float32)
    matcher.mask(scores)
    return set(np.flatnonzero(scores == 0).tolist())


def test_what_is_forced_is_all_that_is_allowed_and_its_end_is_the_end_token(grammars: Grammars) -> None:
    slow = grammars.begin(of_choices(["cats!"]), [])
    fast = slow.copy()
    tokens = []
    while not slow.is_at_end:
        [token] = allowed(slow)
        assert slow.accept(token) == ""
        tokens.append(token)
    assert allowed(slow) == {END}
    assert fast.forced() == [*tokens, END] == [*encode("cats!"), END]


def test_a_copy_goes_its_own_way_and_tokens_put_a_new_matcher_where_an_old_one_was(
    grammars: Grammars,
) -> None:
    grammar = of_choices(["cat", "cow", "dog"])
    one = grammars.begin(grammar, [])
    two = one.copy()
    assert one.accept(ord("c")) == ""
    assert two.accept(ord("d")) == ""
    assert ord("o") in allowed(one) & allowed(two)
    assert ord("a") in allowed(one) - allowed(two)
    again = grammars.begin(grammar, [ord("d")])
    assert allowed(again) == allowed(two)


def test_a_token_that_is_not_allowed_is_told(grammars: Grammars) -> None:
    assert grammars.begin(of_choices(["cat"]), []).accept(ord("x")) != ""


def test_equal_grammars_are_compiled_once(grammars: Grammars) -> None:
    one, two = of_schema({"type": "object"}), of_schema({"type": "object"})
    assert grammars._prototype(one) is grammars._prototype(two)


@pytest.mark.parametrize(
    "grammar, why",
    [
        (of_schema({"type": "object", "properties": {"a": {"not": {}}}}), r"not \(at #/properties/a\)"),
        (of_schema({"anyOf": [{"type": "null"}, {"type": "array", "uniqueItems": True}]}), r"at #/anyOf/1\)"),
        (of_schema({"properties": {"if": {"type": "string", "if": True}}}), r"if \(at #/properties/if\)"),
        (of_schema({"type": "frog"}), "Invalid type: frog"),
        (of_text(GrammarKind.REGEX, "(", "regex"), "unclosed group"),
        (of_text(GrammarKind.LARK, "start: foo", "guided_grammar"), 'unknown name: "foo"'),
        (of_text(GrammarKind.GBNF, "root ::= missing", "grammar"), "'missing' not found"),
    ],
)
def test_a_refusal_names_the_keyword_and_its_place(grammars: Grammars, grammar: Grammar, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why) as refused:
        grammars.check(grammar)
    assert refused.value.param == grammar.param


def test_names_of_properties_and_values_are_no_keywords() -> None:
    schema = {"properties": {"not": {"enum": ["not"], "default": {"not": 1}}}, "items": [{}, {"not": {}}]}
    assert place_of(schema, "not") == "#/items/1"
    assert place_of({"const": {"not": 1}}, "not") is None


@pytest.mark.parametrize("given", [None, [], [""], ["a", 3], "abc", [""] * 2000])
def test_choices_that_are_none_are_refused(given: object) -> None:
    with pytest.raises(InvalidRequest):
        of_choices(given)


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        (
            {"properties": {"a": {"oneOf": [{"minimum": 1}, {"maximum": 2}]}}},
            "oneOf (at #/properties/a): oneOf",
        ),
        ({"items": {"type": "string", "format": "regex"}}, "format (at #/items): Unknown format: regex"),
        ({"$ref": "http://localhost/x.json"}, "$ref (at #)"),
        ({"items": {"minProperties": 3, "required": ["a"]}}, "minProperties (at #/items)"),
        (False, "false (at #)"),
    ],
)
def test_a_keyword_is_named_whatever_the_library_says(grammars: Grammars, schema: object, says: str) -> None:
    with pytest.raises(InvalidRequest) as raised:
        grammars.check(of_schema(schema))
    assert raised.value.code == "unsupported_grammar"
    assert f"not supported: {says}" in str(raised.value)


@pytest.mark.parametrize(
    "schema",
    [
        True,
        {"minProperties": 2, "required": ["a"]},
        {
            "oneOf": [
                {"type": "object", "properties": {"kind": {"const": kind}}, "required": ["kind"]}
                for kind in "ab"
            ]
        },
    ],
)
def test_what_can_be_followed_after_all_is_served(grammars: Grammars, schema: object) -> None:
    """As pydantic writes a union that a field tells apart; `true` allows everything."""
    grammars.check(of_schema(schema))


def test_a_schema_nested_too_deep_is_refused_before_anything_walks_it() -> None:
    schema: dict[str, object] = {"minProperties": 9}
    for _ in range(500):
        schema = {"not": schema}
    with pytest.raises(InvalidRequest, match="nested deeper than 128 levels"):
        of_schema(schema)
