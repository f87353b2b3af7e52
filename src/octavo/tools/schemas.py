"""The schema of a function's arguments, as far as it can be followed.

    parameters --read, without a trial--> invalid and unknown keys are dropped, one by one
               --a trial refuses the rest--> bisection over the keys, until each failing one is found

A strict function's arguments follow its whole schema, or the request is refused. For other functions only the
keys that cannot be followed are dropped, and reported; the rest of the schema applies. Keys are tried from
the outside in, a few that others need first; of two contradictory keys the later one is dropped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from octavo.errors import InvalidRequest
from octavo.grammar import JSON_OPTIONS, TOO_SLOW, Grammar, GrammarKind
from octavo.schemas import LooseSchema, Schema, named, readable, rebuilt, without_effect
from octavo.tools.definitions import Tool

TRIALS_MAX = 300  # of one request, to find keys that cannot be followed
TRIALS_CHARS_MAX = 8 * 1024 * 1024  # of the schemas in these trials
Check = Callable[[Grammar], object]  # raises InvalidRequest for a grammar that cannot be followed
_OBJECT: Schema = {"type": "object"}
# Together with one of these, `properties` may not list all names.
_NAMES_ELSEWHERE = ("anyOf", "allOf", "oneOf", "$ref", "patternProperties")
_MAY_NAME = ("if", "then", "else", "dependentSchemas", "dependencies", "unevaluatedProperties", "$dynamicRef")
# Keys that others need come first; those that need others come last.
_FIRST = ("$schema", "$id", "$defs", "definitions", "type", "properties")
_LAST = ("required", "additionalProperties")
_DECLARING = ("properties", "patternProperties")
_DEFINED = ("#/$defs/", "#/definitions/")


def arguments_schema(tool: Tool) -> LooseSchema:
    """The schema of a function's arguments for the grammar, before any trial."""
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


class SchemaTrials:
    """Finds the parts of schemas that can be followed; the number of trials is bounded per request."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._num_left, self._chars_left = TRIALS_MAX, TRIALS_CHARS_MAX

    def followed(self, tool: Tool, found: LooseSchema) -> LooseSchema:
        """The part of a function's schema that can be followed. Raises InvalidRequest for a strict function,
        and if the trials take too long."""
        if tool.is_strict:
            text = json.dumps(found.schema)
            self._check(Grammar(GrammarKind.JSON_SCHEMA, text, f"parameters of the function {tool.name}"))
            return found
        if self._can_follow(tool, found.schema):
            return found
        try:
            return self._loosened(tool, found)
        except _SearchFailed:
            return LooseSchema(_written(_OBJECT), (*found.not_enforced, named("all of it", "#")))

    def _loosened(self, tool: Tool, found: LooseSchema) -> LooseSchema:
        # If parts of oneOf do not exclude each other, a value may follow several of them.
        whole = {**found.schema, "x-guidance": {**JSON_OPTIONS, "coerce_one_of": True}}

        def follows(without: Iterable[str]) -> bool:
            schema = _without(whole, frozenset(without))
            self._num_left -= 1
            self._chars_left -= len(json.dumps(schema))
            if min(self._num_left, self._chars_left) < 0:
                raise _SearchFailed
            return self._can_follow(tool, schema)

        gone = _culprits(_keys(whole), follows)
        schema = _without(whole, frozenset(gone))
        also = [key for key in map(_closing, gone) if key not in gone and key in _keys(whole)]
        dropped = [named(key, place) for place, _, key in (one.rpartition("/") for one in [*gone, *also])]
        if "type" not in schema and "$ref" not in schema:
            schema = {**_OBJECT, **schema}
        exact = _written(schema)
        if not self._can_follow(tool, exact):
            dropped += [named("oneOf, taken as anyOf", place) for place in _places_of("oneOf", schema)]
            return LooseSchema(schema, (*found.not_enforced, *dropped))
        return LooseSchema(exact, (*found.not_enforced, *dropped))

    def _can_follow(self, tool: Tool, schema: Schema) -> bool:
        text = f"start: %json {json.dumps(schema)}"
        try:
            self._check(Grammar(GrammarKind.LARK, text, f"tools ({tool.name})"))
        except InvalidRequest as error:
            if error.code == TOO_SLOW:  # each of many tools may take as long
                raise
            return False
        return True


class _SearchFailed(Exception):
    """The trials did not find the failing keys."""


def _written(schema: Schema) -> Schema:
    return {**schema, "x-guidance": dict(JSON_OPTIONS)}


def _with_its_names(schema: Schema, *, is_open: bool) -> dict[str, object]:
    """Allow only the function's parameters: those that it declares, and those that it requires."""
    properties, required = schema["properties"], schema.get("required")
    assert isinstance(properties, Mapping)
    if "additionalProperties" in schema or is_open:
        return dict(schema)
    undeclared = [name for name in required if name not in properties] if isinstance(required, list) else []
    declared = {**properties, **{name: {} for name in undeclared}}
    return {**schema, "properties": declared, "additionalProperties": False}


def _culprits(keys: Sequence[str], follows: Callable[[Iterable[str]], bool]) -> list[str]:
    """The keys that cannot be followed; `follows` returns whether the schema can without these. Each is found
    in log2(keys) trials: the first key whose prefix of keys fails."""
    gone: list[str] = []
    good = 0  # so many of the first keys can be followed, without the dropped ones
    while not follows(gone):
        bad = len(keys)  # so many cannot
        if good >= bad or not follows([*gone, *keys[good:]]):
            raise _SearchFailed
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
    """The place of every key of every schema in it. A key comes after its enclosing keys; a reference's
    target comes before it, and its siblings after it."""
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
    """The schema without these keys; it allows other names if the keys that declare names were dropped."""
    gone |= frozenset(map(_closing, gone))

    def change(one: object, at: str) -> object:
        if not isinstance(one, Mapping):
            return one
        return {key: value for key, value in one.items() if f"{at}/{key}" not in gone}

    return rebuilt(schema, change)


def _closing(key: str) -> str:
    """The place of the key that forbids other names, for a key that declares names; else the same."""
    place, _, last = key.rpartition("/")
    return f"{place}/additionalProperties" if last in _DECLARING else key


def _places_of(key: str, schema: Schema) -> list[str]:
    """The places of this key in a schema."""
    return [place for place, _, last in (one.rpartition("/") for one in _keys(schema)) if last == key]
