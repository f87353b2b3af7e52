"""The schema of a function's arguments, as far as it can be followed.

    parameters --read, without a trial--> what is no schema, or not known, is gone, key by key
               --a trial refuses the rest--> halves of the keys are tried, until each that fails is found

A strict function's arguments follow all of its schema, or the request is refused. Of others' what cannot be
followed is let go alone, and told; what is left is what the schema says of everything else. Keys are tried
from the outside in, a few that others need first; of two that contradict each other the later one goes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from octavo.errors import InvalidRequest
from octavo.grammar import JSON_OPTIONS, TOO_SLOW, Grammar, GrammarKind
from octavo.schemas import Loosened, Schema, named, readable, rebuilt, without_effect
from octavo.tools.definitions import Tool

TRIALS_MAX = 300  # of one request, to find what cannot be followed
TRIALS_CHARS_MAX = 8 * 1024 * 1024  # of the schemas that they try
Check = Callable[[Grammar], object]  # raises InvalidRequest for one that cannot be followed
_OBJECT: Schema = {"type": "object"}
# With one of these beside them, `properties` may not be all names.
_NAMES_ELSEWHERE = ("anyOf", "allOf", "oneOf", "$ref", "patternProperties")
_MAY_NAME = ("if", "then", "else", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef")
# Keys that others need, before those; and those that need others, behind them.
_FIRST = ("$schema", "$id", "$defs", "definitions", "type", "properties")
_LAST = ("required", "additionalProperties")
_DECLARING = ("properties", "patternProperties")
_DEFINED = ("#/$defs/", "#/definitions/")


def arguments_schema(tool: Tool) -> Loosened:
    """What the grammar says of a function's arguments, as far as that can be told without a trial."""
    if tool.is_strict:
        found = without_effect(tool.parameters)
        return replace(found, schema=_written(found.schema))
    found = readable(tool.parameters)
    schema = dict(found.schema)
    if "$ref" not in schema and schema.get("type") != "object":
        schema = {**_OBJECT, **schema, **_OBJECT}
    if "properties" in schema and not any(name in schema for name in _NAMES_ELSEWHERE):
        schema = _with_its_names(schema, is_open=any(name in tool.parameters for name in _MAY_NAME))
    return replace(found, schema=_written(schema))


class Trials:
    """Finds out what of schemas can be followed; one request has so many trials."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._num_left, self._chars_left = TRIALS_MAX, TRIALS_CHARS_MAX

    def followed(self, tool: Tool, found: Loosened) -> Loosened:
        """As much of a function's schema as can be followed. Raises InvalidRequest for a strict function, and
        for what takes too long to try."""
        if tool.is_strict:
            text = json.dumps(found.schema)
            self._check(Grammar(GrammarKind.JSON_SCHEMA, text, f"parameters of the function {tool.name}"))
            return found
        if self._can_follow(tool, found.schema):
            return found
        try:
            return self._loosened(tool, found)
        except _Unfound:
            return Loosened(_written(_OBJECT), (*found.let_go, named("all of it", "#")))

    def _loosened(self, tool: Tool, found: Loosened) -> Loosened:
        # Where parts of oneOf do not exclude each other, a value may follow several of them.
        whole = {**found.schema, "x-guidance": {**JSON_OPTIONS, "coerce_one_of": True}}

        def follows(without: Iterable[str]) -> bool:
            schema = _without(whole, frozenset(without))
            self._num_left -= 1
            self._chars_left -= len(json.dumps(schema))
            if min(self._num_left, self._chars_left) < 0:
                raise _Unfound
            return self._can_follow(tool, schema)

        gone = _culprits(_keys(whole), follows)
        schema = _without(whole, frozenset(gone))
        also = [key for key in map(_closing, gone) if key not in gone and key in _keys(whole)]
        told = [named(key, place) for place, _, key in (one.rpartition("/") for one in [*gone, *also])]
        if "type" not in schema and "$ref" not in schema:
            schema = {**_OBJECT, **schema}
        exact = _written(schema)
        if not self._can_follow(tool, exact):
            told += [named("oneOf, taken as anyOf", place) for place in _places_of("oneOf", schema)]
            return Loosened(schema, (*found.let_go, *told))
        return Loosened(exact, (*found.let_go, *told))

    def _can_follow(self, tool: Tool, schema: Schema) -> bool:
        text = f"start: %json {json.dumps(schema)}"
        try:
            self._check(Grammar(GrammarKind.LARK, text, f"tools ({tool.name})"))
        except InvalidRequest as error:
            if error.code == TOO_SLOW:  # each of many tools may take as long
                raise
            return False
        return True


class _Unfound(Exception):
    """Trials did not find what cannot be followed."""


def _written(schema: Schema) -> Schema:
    return {**schema, "x-guidance": dict(JSON_OPTIONS)}


def _with_its_names(schema: Schema, *, is_open: bool) -> dict[str, object]:
    """A function has its parameters, and no others: those that it declares, and those that it requires."""
    properties, required = schema["properties"], schema.get("required")
    assert isinstance(properties, Mapping)
    if "additionalProperties" in schema or is_open:
        return dict(schema)
    undeclared = [name for name in required if name not in properties] if isinstance(required, list) else []
    declared = {**properties, **{name: {} for name in undeclared}}
    return {**schema, "properties": declared, "additionalProperties": False}


def _culprits(keys: Sequence[str], follows: Callable[[Iterable[str]], bool]) -> list[str]:
    """The keys that cannot be followed; `follows` says whether the schema can without these. Each is found in
    log2(keys) trials: the first key with which those before it cannot be followed any more."""
    gone: list[str] = []
    good = 0  # so many of the first keys can be followed, without those that are gone
    while not follows(gone):
        bad = len(keys)  # so many cannot
        if good >= bad or not follows([*gone, *keys[good:]]):
            raise _Unfound
        while bad - good > 1:
            middle = (good + bad) // 2
            if follows([*gone, *keys[middle:]]):
                good = middle
            else:
                bad = middle
        gone.append(keys[bad - 1])
        good = bad
    return gone


def _keys(schema: Schema) -> list[str]:
    """The place of every key of every schema in it. A key comes behind those that it is inside of, what a
    reference names before the reference, and what is defined behind it."""
    found: list[str] = []

    def note(one: object, at: str) -> object:
        if isinstance(one, Mapping):
            found.extend(f"{at}/{key}" for key in sorted(one, key=_rank) if key != "x-guidance")
        return one

    rebuilt(schema, note)
    return sorted(found, key=lambda key: 2 if key.startswith(_DEFINED) else key.endswith("/$ref"))


def _rank(key: str) -> int:
    return _FIRST.index(key) if key in _FIRST else len(_FIRST) + (key in _LAST)


def _without(schema: Schema, gone: frozenset[str]) -> dict[str, object]:
    """The schema without these keys, and open for other names where those that name its own are gone."""
    gone |= frozenset(map(_closing, gone))

    def change(one: object, at: str) -> object:
        if not isinstance(one, Mapping):
            return one
        return {key: value for key, value in one.items() if f"{at}/{key}" not in gone}

    return rebuilt(schema, change)


def _closing(key: str) -> str:
    """The place of what closes a schema for names that this key declares; else the same."""
    place, _, last = key.rpartition("/")
    return f"{place}/additionalProperties" if last in _DECLARING else key


def _places_of(key: str, schema: Schema) -> list[str]:
    """Where a schema has this key."""
    return [place for place, _, last in (one.rpartition("/") for one in _keys(schema)) if last == key]
