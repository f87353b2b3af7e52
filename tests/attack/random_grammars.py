"""Random schemas, expressions and grammars as clients might send them: good, odd, broken, bombs."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

Fields = dict[str, object]
_NAMES = ["name", "age", "items", "kind", "value", "ünï", "a b", "$ref", "type", "0"]
_FORMATS = ["date-time", "email", "uuid", "ipv4", "uri", "frog", "regex"]
_PIECES = ["a", "[a-z]", "\\d", ".", "\\w", "(x|y)", "[^b]", "é", "\\p{L}", "$", "^", "\\b"]


def fields(rng: random.Random) -> Fields:
    """The fields of a completion that make it follow something."""
    match rng.randrange(10):
        case 0 | 1 | 2 | 3:
            return {"guided_json": _broken(rng, schema(rng, 4))}
        case 4 | 5:
            return {"guided_regex": regex(rng, 4)}
        case 6:
            return {"guided_grammar": lark(rng)}
        case 7:
            return {"grammar": gbnf(rng)}
        case 8:
            return {"guided_choice": [_text(rng) for _ in range(rng.randrange(1, 30))]}
        case _:
            return rng.choice(BOMBS)(rng)


def schema(rng: random.Random, depth: int) -> object:
    if depth == 0 or rng.random() < 0.3:
        return _leaf(rng)
    match rng.randrange(6):
        case 0 | 1:
            names = rng.sample(_NAMES, rng.randrange(1, 6))
            made: Fields = {"type": "object", "properties": {name: schema(rng, depth - 1) for name in names}}
            if rng.random() < 0.6:
                made["required"] = rng.sample(names, rng.randrange(len(names) + 1))
            if rng.random() < 0.4:
                made["additionalProperties"] = rng.choice([True, False, schema(rng, 0)])
            return made
        case 2:
            made = {"type": "array", "items": schema(rng, depth - 1)}
            if rng.random() < 0.5:
                made["minItems"] = rng.randrange(4)
                made["maxItems"] = rng.choice([0, 3, 100, 10_000])
            return made
        case 3:
            key = rng.choice(["anyOf", "oneOf", "allOf", "prefixItems"])
            return {key: [schema(rng, depth - 1) for _ in range(rng.randrange(1, 4))]}
        case 4:
            count = rng.randrange(1, 12)
            refs = [f"#/$defs/d{rng.randrange(count)}" for _ in range(count)]
            defs = {f"d{i}": rng.choice([{"items": {"$ref": to}}, _leaf(rng)]) for i, to in enumerate(refs)}
            return {"$defs": defs, "$ref": "#/$defs/d0"}
        case _:
            key = rng.choice(["not", "if", "patternProperties", "contains", "uniqueItems", "x-guidance"])
            return {"type": "object", key: rng.choice([{}, True, {"a": {}}, schema(rng, depth - 1)])}


def _leaf(rng: random.Random) -> object:
    number = rng.choice(
        [0, 1, -1, 7, 255, 10**6, 2**31, 2**53, 2**62, -(2**62), 2**63, -(2**63), 10**30, 0.1, 1e300]
    )
    return rng.choice(
        [
            {"type": "string"},
            {"type": "string", "minLength": rng.randrange(9), "maxLength": rng.choice([0, 5, 300, 20_000])},
            {"type": "string", "pattern": regex(rng, 3)},
            {"type": "string", "format": rng.choice(_FORMATS)},
            {"type": "integer", rng.choice(["minimum", "maximum", "exclusiveMinimum"]): number},
            {"type": "integer", "minimum": number, "maximum": number},
            {"type": "number", "multipleOf": rng.choice([1, 3, 0.01, 7919, number])},
            {"type": rng.choice(["boolean", "null", "number", "frog", ["string", "null"]])},
            {
                "enum": [
                    rng.choice([_text(rng), number, None, [1], {"a": 1}]) for _ in range(rng.randrange(1, 9))
                ]
            },
            {"const": rng.choice([_text(rng), number])},
            {},
            True,
        ]
    )


def _broken(rng: random.Random, value: object) -> object:
    """Now and then another type than a schema has there."""
    if rng.random() > 0.1 or not isinstance(value, dict) or not value:
        return value
    key = rng.choice(sorted(value))
    return value | {key: rng.choice([None, -1, [], {}, "x", [[]], 1e9])}


def regex(rng: random.Random, depth: int) -> str:
    if depth == 0:
        return rng.choice(_PIECES)
    parts = [regex(rng, depth - 1) for _ in range(rng.randrange(1, 4))]
    match rng.randrange(5):
        case 0:
            return "(" + "|".join(parts) + ")"
        case 1:
            low = rng.randrange(4)
            return f"({''.join(parts)}){{{low},{low + rng.choice([0, 3, 60, 2000])}}}"
        case 2:
            return "(" + "".join(parts) + ")" + rng.choice("*+?")
        case 3 if rng.random() < 0.1:
            return "".join(parts) + rng.choice("([{\\")
        case _:
            return "".join(parts)


def lark(rng: random.Random) -> str:
    count = rng.randrange(1, 30)
    rules = [f"r{i}: {_alternatives(rng, count, '/')}" for i in range(count)]
    if rng.random() < 0.2:
        rules.append(f"T: /{regex(rng, 2)}/ & /{regex(rng, 2)}/")
    if rng.random() < 0.2:
        rules.append(f"r0: %json {json.dumps(schema(rng, 2))}")
    return "\n".join(["start: r0", *rules]) + rng.choice(["\n", "", "\nstart: (", "\n%ignore / /\n"])


def gbnf(rng: random.Random) -> str:
    count = rng.randrange(1, 30)
    rules = [f"r{i} ::= {_alternatives(rng, count, '')}" for i in range(count)]
    return "\n".join(["root ::= r0", *rules]) + rng.choice(["\n", "", "\nroot ::= ("])


def _alternatives(rng: random.Random, count: int, slash: str) -> str:
    def term() -> str:
        kind = rng.randrange(4)
        if kind == 0:
            return f"r{rng.randrange(count)}"
        if kind == 1 and slash:
            return f"/{regex(rng, 2)}/"
        return json.dumps(_text(rng)) + rng.choice(["", "", "*", "?", "+"])

    return " | ".join(
        " ".join(term() for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(1, 4))
    )


def _text(rng: random.Random) -> str:
    return "".join(rng.choice('abcxyz 019é"\\\n😀') for _ in range(rng.randrange(1, 12)))


def _chain(rng: random.Random) -> Fields:
    count = rng.choice([90, 130, 900, 2500])
    defs = {f"d{i}": {"anyOf": [{"$ref": f"#/$defs/d{i + 1}"}, {"type": "null"}]} for i in range(count)}
    return {"guided_json": {"$defs": {**defs, f"d{count}": {"type": "string"}}, "$ref": "#/$defs/d0"}}


def _rules(rng: random.Random) -> Fields:
    count = rng.choice([200, 300, 3000])
    rules = "".join(f'r{i}: "a" r{i + 1} | r{i + 1} "b"\n' for i in range(count))
    return {"guided_grammar": f'start: r0\n{rules}r{count}: "x"\n'}


def _primes(rng: random.Random) -> Fields:
    primes = rng.sample([3, 5, 7, 11, 13, 17, 19, 23, 29], rng.randrange(2, 9))
    return {"guided_grammar": "start: T\nT: " + " & ".join(f"/(.{{{p}}})*/" for p in primes) + "\n"}


def _multiple(rng: random.Random) -> Fields:
    return {"guided_json": {"type": "integer", "multipleOf": rng.choice([16777213, 104729, 1299709, 65537])}}


def _least(rng: random.Random) -> Fields:
    bound = rng.choice([2**63, 2**63 - 1, 2**62 + 1])
    return {"guided_json": {"type": "integer", "minimum": -bound, "maximum": -bound}}


def _brackets(rng: random.Random) -> Fields:
    count = rng.choice([50, 500, 50_000])
    return rng.choice(
        [
            {"guided_regex": "(" * count + "a" + ")" * count},
            {"guided_regex": "(a" * count + ")?" * count},
            {"grammar": "root ::= " + "(" * count + '"a"' + ")" * count},
        ]
    )


def _lexer(rng: random.Random) -> Fields:
    parts = [f"(.|\\n)*[a-{chr(98 + i)}](.|\\n){{{6 + i}}}" for i in range(rng.randrange(2, 9))]
    return {"guided_grammar": "start: T\nT: " + " & ".join(f"/{part}/" for part in parts) + "\n"}


BOMBS: list[Callable[[random.Random], Fields]] = [
    _chain,
    _rules,
    _primes,
    _multiple,
    _least,
    _brackets,
    _lexer,
]
