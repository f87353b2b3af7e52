"""Reasons to refuse a grammar: a part that is not supported, or not safe to compile, and its place."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain

from octavo.errors import InvalidRequest
from octavo.grammar import Grammar, GrammarKind
from octavo.schemas import subschemas

INTEGER_MAX = 2**62  # in magnitude: the library's arithmetic overflows beyond
REFS_DEEP_MAX = 100  # of a chain of $refs; the library follows it by recursion
RULES_DEEP_MAX = 250  # of a chain of rules

# Keywords of JSON Schema that the library may refuse.
_KEYWORDS = frozenset(
    (
        *("oneOf", "not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems"),
        *("patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired"),
        *("dependentSchemas", "dependencies", "unevaluatedItems", "unevaluatedProperties", "$anchor"),
        *(
            "$ref",
            "$dynamicRef",
            "$dynamicAnchor",
            "$recursiveRef",
            "$id",
            "format",
            "multipleOf",
            "additionalItems",
        ),
    )
)
# The library's errors for a value of the keyword that it does not support.
_ERRORS_OF = {
    "oneOf": "oneOf constraints are not supported",
    "format": "Unknown format",
    "$ref": "URI reference|not present in a registry|[Uu]nresolvable|Pointer",
}
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
# The parts of a grammar without names of rules. Each alternative is possessive, closed or not, so a text is
# scanned once.
_QUOTED = {
    GrammarKind.LARK: re.compile(r'//.*|#.*|"(?:\\.|[^"\\\n])*+"?|/(?:\\.|[^/\\])*+/?|<[^<>\s]*+>?'),
    GrammarKind.GBNF: re.compile(r'#[^\r\n]*|"(?:\\.|[^"\\])*+"?|\[(?:\\.|[^\]\\])*+\]?'),
}
_RULE = re.compile(r"\s*[?!]?([A-Za-z_][\w-]*)(?:\.-?\d+|\[[^\]\n]*\]|\{[^}\n]*\})*\s*(?:::=|:)")
_NAME = re.compile(r"[A-Za-z_][\w-]*")


def unknown_keywords(message: str) -> list[str]:
    """The schema's keywords that the library does not support, as its error names them."""
    found = re.fullmatch(r"Unimplemented keys: (\[.*\])", message.strip())
    if found is not None:
        return [str(key) for key in json.loads(found.group(1))]
    return [keyword for keyword, error in _ERRORS_OF.items() if re.search(error, message)][:1]


def counted(keywords: list[str]) -> list[str]:
    """The keywords as labels of metrics: "other" for one that is not in `_KEYWORDS`."""
    return [key if key in _KEYWORDS else "other" for key in keywords] or ["other"]


def describe_refusal(grammar: Grammar, message: str, keywords: list[str]) -> str:
    """The library's error, with the places of a schema's keywords that it does not support."""
    if not keywords or grammar.kind is not GrammarKind.JSON_SCHEMA:
        return message
    schema = json.loads(grammar.text)
    places = [place_of(schema, key) for key in keywords]
    named = ", ".join(
        f"{key} (at {place})" if place else key for key, place in zip(keywords, places, strict=True)
    )
    detail = "" if message.startswith("Unimplemented") else f": {message.splitlines()[0]}"
    return f"not supported: {named}{detail}"


def refusal(grammar: Grammar, why: str) -> InvalidRequest:
    """The error of a grammar that cannot be followed."""
    return InvalidRequest(
        f"{grammar.param} cannot be followed: {why}", param=grammar.param, code="unsupported_grammar"
    )


def refuse_unsafe(grammar: Grammar) -> None:
    """Raise InvalidRequest for problems that are visible without compiling: numbers and chains that are not
    safe to compile, and a `minProperties` that repeated names could satisfy (no grammar knows which names
    were written). O(text)."""
    if grammar.kind is GrammarKind.REGEX:
        return
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        _refuse_unsafe_schema(grammar, json.loads(grammar.text))
        return
    rule = _too_deep(_rules(grammar), RULES_DEEP_MAX)
    if rule is not None:
        raise refusal(
            grammar,
            f"the rule {rule[:80]} ends a chain of more than {RULES_DEEP_MAX} rules; "
            f"allowed: chains of up to {RULES_DEEP_MAX} rules",
        )


def _refuse_unsafe_schema(grammar: Grammar, schema: object) -> None:
    def repeats(one: Mapping[str, object]) -> bool:
        least, named = one.get("minProperties"), one.get("required")
        count = len(named) if isinstance(named, list) else 0
        return isinstance(least, int) and least > count + 1

    place = find_place(schema, repeats)
    if place is not None:
        raise refusal(
            grammar,
            f"not supported: minProperties (at {place}); "
            "allowed: up to one more than the number of required properties",
        )
    large: list[str] = []

    def has_large(one: Mapping[str, object]) -> bool:
        large[:] = [key for key in _NUMBERS if isinstance(n := one.get(key), int) and abs(n) > INTEGER_MAX]
        return bool(large)

    place = find_place(schema, has_large)
    if place is not None:
        raise refusal(
            grammar,
            f"{large[0]} (at {place}) is beyond 2^62 in size; allowed: integers from -2^62 to 2^62",
        )
    deep = _too_deep(_references(schema), REFS_DEEP_MAX)
    if deep is not None:
        raise refusal(
            grammar,
            f"$ref to {deep[:80]} ends a chain of more than {REFS_DEEP_MAX} $refs; "
            f"allowed: chains of up to {REFS_DEEP_MAX} $refs",
        )


def _references(schema: object) -> dict[str, list[str]]:
    """The references of a schema: the $refs inside each definition, and inside the schema itself, ""."""
    found: dict[str, list[str]] = {}
    left: list[tuple[object, str]] = [(schema, "")]
    while left:
        value, owner = left.pop()
        if isinstance(value, list):
            left += [(one, owner) for one in value]
        if not isinstance(value, dict):
            continue
        for key, inner in value.items():
            if key == "$ref" and isinstance(inner, str):
                found.setdefault(owner, []).append(inner)
            elif key in ("$defs", "definitions") and isinstance(inner, dict):
                left += [(one, f"#/{key}/{name}") for name, one in inner.items()]
            else:
                left.append((inner, owner))
    return found


def _rules(grammar: Grammar) -> dict[str, list[str]]:
    """The references in a grammar of rules, Lark's or GBNF's: names after each rule's colon, except in texts,
    expressions, character classes, special tokens and comments. O(text)."""
    found: dict[str, list[str]] = {}
    owner = ""
    for line in _QUOTED[grammar.kind].sub(" ", grammar.text).splitlines():
        rule = _RULE.match(line)
        if rule is not None:
            owner, line = rule[1], line[rule.end() :]
            found.setdefault(owner, [])
        found.setdefault(owner, []).extend(_NAME.findall(line))
    first = "root" if "root" in found and "start" not in found else "start"
    found[""] = [first]
    return found


def _too_deep(graph: Mapping[str, list[str]], deep_max: int) -> str | None:
    """The first name that ends a chain of more than `deep_max`: depth-first, each visited once. O(graph)."""
    seen = {""}
    path: list[Iterable[str]] = [iter(graph.get("", ()))]
    while path:
        name = next(iter(path[-1]), None)
        if name is None:
            path.pop()
        elif name not in seen and name in graph:
            if len(path) > deep_max:
                return name
            seen.add(name)
            path.append(iter(graph[name]))
    return None


def place_of(schema: object, keyword: str, at: str = "#") -> str | None:
    """The first use of this keyword in a schema, as a JSON pointer; names of properties and values do not
    count. O(schema)."""
    return find_place(schema, lambda one: keyword in one, at)


def find_place(schema: object, matches: Callable[[Mapping[str, object]], bool], at: str = "#") -> str | None:
    """The JSON pointer of the first schema, depth-first, for which `matches` is true. O(schema) time,
    O(levels) memory: a pointer is written only for the schema that is found."""
    if not isinstance(schema, dict):
        return None
    levels: list[Iterator[tuple[dict[str, object], tuple[str, ...]]]] = [iter([(schema, ())])]
    path: list[tuple[str, ...]] = []  # one shorter than `levels`
    while levels:
        schema, steps = next(levels[-1], (None, ()))
        if schema is None:
            levels.pop()
            del path[-1:]
            continue
        path.append(steps)
        if matches(schema):
            return "/".join([at, *chain.from_iterable(path)])
        levels.append(subschemas(schema))
    return None
