"""What is refused without compiling: numbers and chains, by name and place."""

from __future__ import annotations

import json
import subprocess
import sys
import tracemalloc
from collections.abc import Callable

import pytest

from octavo.errors import InvalidRequest
from octavo.grammar import GRAMMAR_CHARS_MAX, GrammarKind, of_schema, of_text
from octavo.sampling.grammar_refusals import (
    REFS_DEEP_MAX,
    RULES_DEEP_MAX,
    find_place,
    place_of,
    refuse_unsafe,
)


def refs(num: int) -> dict[str, object]:
    defs = {f"d{i}": {"items": {"$ref": f"#/$defs/d{i + 1}"}} for i in range(num)}
    return {"$defs": {**defs, f"d{num}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def lark(num: int) -> str:
    return "start: r0\n" + "".join(f'r{i}: "a" r{i + 1}\n' for i in range(num)) + f'r{num}: "x"\n'


def gbnf(num: int) -> str:
    return "root ::= r0\n" + "".join(f"r{i} ::= [a-z] r{i + 1}\n" for i in range(num)) + f'r{num} ::= "x"\n'


@pytest.mark.parametrize(
    "keyword", ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]
)
@pytest.mark.parametrize("value", [2**62 + 1, -(2**63), 10**40])
def test_an_integer_beyond_2_to_the_62_is_refused_by_name_and_place(keyword: str, value: int) -> None:
    schema = {"properties": {"a": {"type": "integer", keyword: value}}}
    words = (
        rf"{keyword} \(at #/properties/a\) is beyond 2\^62 in size; allowed: integers from -2\^62 to 2\^62$"
    )
    with pytest.raises(InvalidRequest, match=words) as refused:
        refuse_unsafe(of_schema(schema))
    assert refused.value.code == "unsupported_grammar"


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": -(2**62), "maximum": 2**62},
        {"const": 2**80, "type": "number", "maximum": 1e300},
        {"properties": {"minimum": {"const": 2**80}}},
        refs(REFS_DEEP_MAX - 2),
        {"$defs": {"tree": {"items": {"$ref": "#/$defs/tree"}}}, "$ref": "#/$defs/tree"},
        # As wide as it is long, and not deep.
        {
            "$defs": {f"d{i}": {"type": "null"} for i in range(500)},
            "anyOf": [{"$ref": f"#/$defs/d{i}"} for i in range(500)],
        },
    ],
)
def test_what_is_safe_is_not_refused(schema: object) -> None:
    refuse_unsafe(of_schema(schema))


def test_a_chain_of_refs_is_refused_by_the_name_that_it_comes_to() -> None:
    words = (
        r"\$ref to #/\$defs/d100 ends a chain of more than 100 \$refs; allowed: chains of up to 100 \$refs$"
    )
    with pytest.raises(InvalidRequest, match=words):
        refuse_unsafe(of_schema(refs(REFS_DEEP_MAX + 1)))


def test_more_properties_than_the_required_ones_and_one_are_refused() -> None:
    refuse_unsafe(of_schema({"required": ["a"], "minProperties": 2}))
    words = r"minProperties \(at #\); allowed: up to one more than the number of required properties$"
    with pytest.raises(InvalidRequest, match=words):
        refuse_unsafe(of_schema({"required": ["a"], "minProperties": 3}))


@pytest.mark.parametrize(("kind", "write"), [(GrammarKind.LARK, lark), (GrammarKind.GBNF, gbnf)])
def test_a_chain_of_rules_is_refused_by_the_rule_that_it_comes_to(kind: GrammarKind, write) -> None:
    refuse_unsafe(of_text(kind, write(RULES_DEEP_MAX - 2), "grammar"))
    words = "the rule r249 ends a chain of more than 250 rules; allowed: chains of up to 250 rules$"
    with pytest.raises(InvalidRequest, match=words):
        refuse_unsafe(of_text(kind, write(RULES_DEEP_MAX - 1), "grammar"))


def test_names_in_quotes_are_no_rules() -> None:
    text = (
        "start: "
        + " | ".join(f'"r{i}"' for i in range(400))
        + "\n"
        + "".join(f'r{i}: "r{i + 1}"\n' for i in range(400))
    )
    refuse_unsafe(of_text(GrammarKind.LARK, text, "grammar"))


@pytest.mark.parametrize("before", ["", r'"\""', r'"\\"', r'"\\\""'])
@pytest.mark.parametrize(
    ("write", "first"),
    [
        (lark, "start: {} [r0]"),  # brackets of Lark hold what is optional
        (lark, "start: {} /a\n\\/b/ r0"),
        (lark, "start: {} </s> r0 </s>"),
        (lark, 'start: {} "/" r0 "/"'),
        (lark, 'start: {} // "\n  | r0'),
        (lark, 'start: {} # "\n  | r0'),
        (gbnf, 'root ::= {} "a\nb" r0'),
        (gbnf, 'root ::= {} [a\n"] r0 [^"]'),
        (gbnf, 'root ::= {} "/" r0 "/"'),
        (gbnf, 'root ::= {} "a" | # "\n  r0'),
    ],
)
def test_a_rule_next_to_what_is_quoted_counts(write: Callable[[int], str], first: str, before: str) -> None:
    kind = GrammarKind.LARK if write is lark else GrammarKind.GBNF
    text = first.format(before) + "\n" + write(RULES_DEEP_MAX + 1).partition("\n")[2]
    with pytest.raises(InvalidRequest, match="ends a chain"):
        refuse_unsafe(of_text(kind, text, "grammar"))


# Work that grows with the square of the text takes hours at this size; linear work, a fraction of a second.
# The kernel ends a program that uses more processor time than its limit.
CHECK_LARGE = """
import json, resource, sys
from octavo.grammar import Grammar, GrammarKind
from octavo.sampling.grammar_refusals import refuse_unsafe
for case in sys.stdin:
    used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime)
    resource.setrlimit(resource.RLIMIT_CPU, (used + 5, resource.RLIM_INFINITY))
    print(case[:100], flush=True)
    kind, text = json.loads(case)
    refuse_unsafe(Grammar(GrammarKind(kind), text))
"""
OPENERS = ["[", '"', "/", "#", "<", '"\\', "/\\", "[\\", '\\"', '"\\"', '["/', '"/[\\#<', "<a", '"\n', "/\n"]
OF_RULES = ["a", "aa ", "1", "-", "-1", "?", "!", ".", ".1", ".1[", " ", "[", "{", "[]", "{}", "[]{"]
OF_RULES += [":", "a:", "a:b\n", "\n"]
SCHEMAS = [
    ('{"anyOf": [', "1, ", "1]}"),
    ('{"anyOf": [', "{}, ", "1]}"),
    ('{"anyOf": [', "[], ", "1]}"),
    ('{"anyOf": [', '{"$ref": "#"}, ', "1]}"),
    ('{"anyOf": [', '{"$ref": "#/$defs/@"}, ', '1], "$defs": {"1": {"$ref": "#"}}}'),
    ('{"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [', '{"$ref": "#/$defs/a"}, ', "1]}}}"),
    ('{"$ref": "#/$defs/0", "$defs": {', '"@": {}, ', '"": {}}}'),
    ('{"$ref": "#/$defs/0", "$defs": {', '"@": {"items": {"$ref": "#/$defs/@"}}, ', '"": {}}}'),
    ('{"required": [', '"a", ', '""], "minProperties": 1}'),
    ('{"$ref": "#/$defs/', "a", '"}'),
]
RULES = [("start: ", unit, "") for unit in ("a ", "aa ", "r@ ", "start ")]
RULES += [
    ("start: r0\n", unit, "") for unit in ("r@: r0\n", "r@: r@ start\n", "r@:\nstart:r@\n", "r0: r0\n", "r0:")
]


def repeated(head: str, unit: str, tail: str, num_chars: int) -> str:
    """Almost this many characters; each @ of `unit` is its number."""
    num = (num_chars - len(head) - len(tail)) // (len(unit) + 5 * unit.count("@"))
    return head + "".join(unit.replace("@", str(i)) for i in range(num)) + tail


def check_with_little_processor_time(cases: list[tuple[GrammarKind, str]]) -> None:
    lines = "\n".join(map(json.dumps, cases))
    run = subprocess.run([sys.executable, "-c", CHECK_LARGE], input=lines, capture_output=True, text=True)
    assert run.returncode == 0, (run.stdout.splitlines()[-1:], run.stderr)
    assert len(run.stdout.splitlines()) >= len(cases)


@pytest.mark.parametrize("kind", [GrammarKind.LARK, GrammarKind.GBNF])
def test_large_grammars_of_rules_are_checked_in_linear_time(kind: GrammarKind) -> None:
    parts = [("", unit, "") for unit in OPENERS] + RULES
    parts += [(head, unit, "") for head in ("", "a") for unit in OF_RULES]
    check_with_little_processor_time([(kind, repeated(*part, GRAMMAR_CHARS_MAX)) for part in parts])


def test_large_schemas_are_checked_in_linear_time() -> None:
    check_with_little_processor_time(
        [(GrammarKind.JSON_SCHEMA, repeated(*parts, GRAMMAR_CHARS_MAX)) for parts in SCHEMAS]
    )


def peak_bytes(work: Callable[[], object]) -> int:
    """The most memory that is in use while it runs, beyond what was before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("kind", "parts"),
    [(GrammarKind.JSON_SCHEMA, parts) for parts in SCHEMAS] + [(GrammarKind.LARK, parts) for parts in RULES],
)
def test_a_check_takes_memory_in_proportion_to_the_text(
    kind: GrammarKind, parts: tuple[str, str, str]
) -> None:
    text = repeated(*parts, GRAMMAR_CHARS_MAX // 4)
    assert peak_bytes(lambda: refuse_unsafe(of_text(kind, text, "grammar"))) < 64 * len(text)


@pytest.mark.parametrize("entry", [{}, 1])
@pytest.mark.parametrize("key", ["anyOf", "properties"])
def test_a_search_takes_no_memory_for_schemas_that_do_not_match(entry: object, key: str) -> None:
    schema: dict[str, object] = {
        key: {str(i): entry for i in range(5_000)} if key == "properties" else [entry] * 5_000
    }
    for i in range(40):
        schema = {"properties": {f"{i:0500}": schema}}
    assert place_of(schema, "not") is None
    assert peak_bytes(lambda: place_of(schema, "not")) < 64 << 10  # paths of all entries take 100 MB


def test_places_are_found_in_the_order_of_the_schema() -> None:
    schema = {
        "anyOf": [{"title": "7"}, 0, {"items": {"title": "8"}}],
        "not": {"title": "5"},
        "items": {"title": "4"},
        "$defs": {"b/c": {"title": "3"}, "none": []},
        "properties": {"a": {"title": "1", "items": {"title": "2"}}, "none": None},
        "prefixItems": [True, {"title": "9"}],
        "else": {"additionalProperties": {"title": "6"}, "then": False},
        "title": "0",
    }
    places = [find_place(schema, lambda one, n=n: one.get("title") == str(n)) for n in range(11)]
    assert places == [
        "#",
        "#/properties/a",
        "#/properties/a/items",
        "#/$defs/b/c",
        "#/items",
        "#/not",
        "#/else/additionalProperties",
        "#/anyOf/0",
        "#/anyOf/2/items",
        "#/prefixItems/1",
        None,
    ]
    assert place_of({"items": {"not": {}}}, "not", "#/tools") == "#/tools/items"
    assert place_of(["not"], "not") is None


def test_a_schema_may_be_nested_deeper_than_the_interpreters_stack() -> None:
    schema: dict[str, object] = {"not": {}}
    for _ in range(5_000):
        schema = {"items": schema}
    assert place_of(schema, "not") == "#" + "/items" * 5_000


def test_an_expression_is_not_looked_at() -> None:
    refuse_unsafe(of_text(GrammarKind.REGEX, "start: r0", "regex"))
