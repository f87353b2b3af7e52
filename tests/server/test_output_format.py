"""Every dialect's way to say what the output must follow means one grammar."""

from __future__ import annotations

import json

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind, of_choices, of_schema
from octavo.server.output_format import FormatBody

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def grammar_of(**fields: object) -> Grammar | None:
    return FormatBody.model_validate(fields).output_grammar


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "x", "schema": SCHEMA, "strict": True},
            }
        },
        {"response_format": {"type": "json_object", "schema": SCHEMA}},
        {"response_format": {"type": "json_schema", "schema": SCHEMA}},
        {"structured_outputs": {"json": SCHEMA}},
        {"structured_outputs": {"json": json.dumps(SCHEMA), "regex": None}},
        {"guided_json": SCHEMA},
        {"guided_json": json.dumps(SCHEMA)},
        {"json_schema": SCHEMA},
    ],
)
def test_a_schema_in_every_dialect(fields: dict[str, object]) -> None:
    grammar = grammar_of(**fields)
    assert grammar is not None
    assert (grammar.kind, grammar.text) == (GrammarKind.JSON_SCHEMA, of_schema(SCHEMA).text)


def test_the_other_kinds_and_none() -> None:
    for fields, kind, text in [
        ({"response_format": {"type": "json_object"}}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"structured_outputs": {"json_object": True}}, GrammarKind.JSON_SCHEMA, '{"type": "object"}'),
        ({"guided_regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"regex": "a+"}, GrammarKind.REGEX, "a+"),
        ({"guided_choice": ["x", "y"]}, GrammarKind.LARK, of_choices(["x", "y"]).text),
        ({"grammar": 'root ::= "a"'}, GrammarKind.GBNF, 'root ::= "a"'),
        ({"ebnf": 'root ::= "a"'}, GrammarKind.GBNF, 'root ::= "a"'),
        ({"guided_grammar": 'root ::= "a"'}, GrammarKind.GBNF, 'root ::= "a"'),
        ({"guided_grammar": 'start: "a"'}, GrammarKind.LARK, 'start: "a"'),
    ]:
        grammar = grammar_of(**fields)
        assert grammar is not None
        assert (grammar.kind, grammar.text) == (kind, text)
    assert grammar_of() is grammar_of(response_format={"type": "text"}, grammar="", json_schema={}) is None


@pytest.mark.parametrize(
    "fields, param",
    [
        ({"response_format": {"type": "yaml"}}, "response_format"),
        ({"response_format": "json"}, "response_format"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"structured_outputs": {}}, None),
        ({"structured_outputs": {"json": SCHEMA, "regex": "a"}}, "structured_outputs"),
        ({"structured_outputs": {"structural_tag": "x"}}, "structured_outputs.structural_tag"),
        ({"guided_json": "{"}, "guided_json"),
        ({"guided_choice": "abc"}, "guided_choice"),
        ({"guided_regex": 5}, "guided_regex"),
        ({"guided_regex": "a", "grammar": "b"}, "guided_regex and grammar"),
    ],
)
def test_what_means_nothing_is_refused_by_its_name(fields: dict[str, object], param: str | None) -> None:
    if param is None:
        assert grammar_of(**fields) is None
        return
    with pytest.raises(InvalidRequest) as refused:
        grammar_of(**fields)
    assert refused.value.param == param
