"""The rules of a grammar for one call: the format's own text around the name, and its arguments.

    call_0: CALL_OPEN "get_weather" TO_ARGUMENTS args_0 CALL_CLOSE
    args_0: %json {...}                                                   in formats that write JSON
    args_0: n_0_0       n_0_0: "<parameter=city>" v_0_0 s_0_1 | n_0_1     arguments one by one, in the
    v_0_0[suffix="</parameter>"]: /(?s:.*)/                               schema's order

Source: llguidance's Lark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping

from octavo.tools.arguments import types_of
from octavo.tools.formats import ID, Body, Tags, ToolFormat

SpecialId = Callable[[str], int | None]  # the id of a text that is one special token
_ANY_TEXT = "/(?s:.*)/"
_BOUND_MAX = 1000  # characters; longer bounds of a string are not enforced
_ID = "/[A-Za-z0-9_.:\\-]{1,64}/"
_QUOTED = r"/'(\\.|[^'\\])*'/"
_WORDS = {"boolean": ("true", "false", "True", "False"), "null": ("null", "None")}


class CallWriter:
    """Writes rules of one format for one vocabulary."""

    def __init__(self, form: ToolFormat, special_id: SpecialId) -> None:
        self._form = form
        self._ids = {text: found for text in form.markers if (found := special_id(text)) is not None}

    @property
    def starts_with_special(self) -> bool:
        """Whether calls begin with a special token, which never merges with preceding text."""
        return self._form.begins[0].startswith(tuple(self._ids)) and not self._form.at_start

    def text(self, literal: str) -> str:
        """A text as terms of a rule: special tokens and ids among letters."""
        for marker, term in [(ID, _ID), *((text, f"<[{number}]>") for text, number in self._ids.items())]:
            before, found, after = literal.partition(marker)
            if found:
                return " ".join(filter(None, [self.text(before), term, self.text(after)]))
        return json.dumps(literal, ensure_ascii=False) if literal else ""

    def loose(self, literal: str) -> str:
        """The rule with optional line breaks, in formats that write tags."""
        if self._form.body is not Body.TAGGED:
            return self.text(literal)
        return r" /\n{0,2}/ ".join(map(self.text, literal.split("\n"))).strip()

    def call(self, index: int, name: str, schema: Mapping[str, object]) -> list[str]:
        """The rules of one function."""
        form, args = self._form, f"args_{index}"
        if form.is_spaced:
            schema = {**schema, "x-guidance": _spaced(schema.get("x-guidance"))}
        if form.body is Body.CHANNELS:
            return [self._message(index, name), f"{args}: %json {json.dumps(schema)}"]
        opening, closing = self._opening(name), self.loose(form.call_close)
        number = f"{self._optional_id()} " if form.id_open else ""
        rule = f"call_{index}: {opening} {number}{self.loose(form.to_arguments)} {args} {closing}"
        match form.body:
            case Body.TAGGED:
                assert form.tags is not None
                return [rule, *self._one_by_one(index, schema, form.tags)]
            case Body.PYTHON:
                return [rule, *self._one_by_one(index, schema, None)]
            case _:
                return [rule, f"{args}: %json {json.dumps(schema)}"]

    def _opening(self, name: str) -> str:
        """The text before a call's arguments; its first word is optional if calls may begin with the
        second."""
        form = self._form
        first, _, second = form.call_open.partition("\n")
        if form.body is Body.TAGGED and second and second in form.begins:
            return f"({self.loose(first + chr(10))})? {self.text(second + name)}"
        return self.loose(form.call_open + name)

    def _optional_id(self) -> str:
        if self._form.id_form:
            return f"{self.text(self._form.id_open)} /[0-9]{{1,4}}/"
        return f"({self.text(self._form.id_open)} {_ID})?"

    def _message(self, index: int, name: str) -> str:
        """A message of gpt-oss to a function: its channel first, or its recipient."""
        channel, json_, message = map(self.text, ("<|channel|>", "<|constrain|>", "<|message|>"))
        recipient = json.dumps(f" to=functions.{name}")
        header = f'{channel} "commentary" {recipient} | {recipient} {channel} "commentary"'
        constrain = f'(" "? {json_} "json" | " json")?'
        return f"call_{index}: ({header}) {constrain} {message} args_{index} {self.text('<|call|>')}"

    def _one_by_one(self, index: int, schema: Mapping[str, object], tags: Tags | None) -> list[str]:
        """Arguments by name, in the schema's order; only required ones must be present. Rules for what may
        follow before the first argument (n), and after some (s)."""
        given, required = schema.get("properties"), schema.get("required")
        properties = given if isinstance(given, Mapping) else {}
        names = required if isinstance(required, list) else []
        if not properties and schema.get("additionalProperties", True) is not False:
            return self._any_arguments(index, tags)
        rules, place = [f"args_{index}: n_{index}_0"], 0
        for place, (name, value) in enumerate(properties.items()):
            own, after = f"v_{index}_{place}", f"s_{index}_{place + 1}"
            if tags is None:
                first, later = json.dumps(f"{name}="), json.dumps(f", {name}=")
                values = [f"{own}: {_python_value(value, schema)}"]
                if self._form.is_quoted and "string" in types_of(value, schema):
                    values = [f"{own}: {own}_json | {_QUOTED}", f"{own}_json: {_python_value(value, schema)}"]
            else:
                values, to_value = self._tagged_value(own, value, schema, tags)
                first = later = f"{self.loose(tags.param_open + name)} {to_value}"
            skip = "" if name in names else f" | n_{index}_{place + 1}"
            rules.append(f"n_{index}_{place}: {first} {own} {after}{skip}")
            skip = "" if name in names else f" | {after}"
            rules.append(f"s_{index}_{place}: {later} {own} {after}{skip}")
            rules += values
        end = place + 1 if properties else 0
        return [*rules, f'n_{index}_{end}: ""', f's_{index}_{end}: ""']

    def _any_arguments(self, index: int, tags: Tags | None) -> list[str]:
        """Arguments of any names, of a function that declares none."""
        own, name = f"any_{index}", "/[A-Za-z0-9_]{1,64}/"
        if tags is None:
            values = [f"{own}_value: %json {{}}"]
            return [f'args_{index}: ({own} (", " {own})*)?', f'{own}: {name} "=" {own}_value', *values]
        values, to_value = self._tagged_value(f"{own}_value", {}, {}, tags)
        rule = f"{own}: {self.loose(tags.param_open)} {name} {to_value} {own}_value"
        return [f"args_{index}: {own}*", rule, *values]

    def _tagged_value(
        self, own: str, value: object, root: Mapping[str, object], tags: Tags
    ) -> tuple[list[str], str]:
        """The rules of a value with its closing text, and the text between name and value. Line breaks around
        a value are those of the format."""
        types = types_of(value, root)
        is_text = "string" in types
        to_value = tags.to_json if tags.to_json and not is_text else tags.to_value
        words = to_value.rstrip("\n")
        before = f"{self.loose(words)} {self.text(to_value[len(words) :])}"
        end = tags.param_close.rstrip("\n")
        after = self.loose(tags.param_close[len(end) :])
        choices = value.get("enum") if isinstance(value, Mapping) else None
        if is_text and isinstance(choices, list):
            if tags.to_json:  # this format marks whether a value is text
                choices = [one for one in choices if isinstance(one, str)]
            texts = [one if isinstance(one, str) else json.dumps(one) for one in choices]
            quoted = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
            return [f"{own}: ({quoted}) {self.text(end)} {after}"], before
        if not is_text:
            return [f"{own}: {_python_value(value, root)} {self.text(end)} {after}"], before
        text = _text_of_length(value)
        if any(marker in end for marker in self._ids):
            return [f"{own}: {own}_text {self.text(end)} {after}", f"{own}_text: {text}"], before
        return [f"{own}: {own}_text {after}", f"{own}_text[suffix={json.dumps(end)}]: {text}"], before


def _text_of_length(value: object) -> str:
    """Any text of a length within the schema's bounds of a string."""
    bounds = value if isinstance(value, Mapping) and value.get("type") == "string" else {}
    least, most = bounds.get("minLength", 0), bounds.get("maxLength", "")
    if not (isinstance(least, int) and least <= _BOUND_MAX):
        return _ANY_TEXT
    if not (most == "" or (isinstance(most, int) and least <= most <= _BOUND_MAX)):
        most = ""
    return f"/(?s:.{{{least},{most}}})/" if least or most != "" else _ANY_TEXT


def _has_other_references(schema: object) -> bool:
    """Whether it refers to a part of its root outside of itself."""
    if isinstance(schema, Mapping):
        pointer = schema.get("$ref")
        if isinstance(pointer, str) and not pointer.startswith(("#/$defs/", "#/definitions/")):
            return True
        return any(map(_has_other_references, schema.values()))
    return isinstance(schema, list) and any(map(_has_other_references, schema))


def _spaced(options: object) -> dict[str, object]:
    """The options, with any white space between the parts of JSON."""
    given = options if isinstance(options, Mapping) else {}
    kept = {key: value for key, value in given.items() if not key.endswith("_separator")}
    return {**kept, "whitespace_flexible": True}


def _python_value(value: object, schema: Mapping[str, object]) -> str:
    """A value as JSON, or as one of Python's words for it."""
    kind = value.get("type") if isinstance(value, Mapping) else None
    if isinstance(kind, str) and kind in _WORDS:
        return f"({' | '.join(map(json.dumps, _WORDS[kind]))})"
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    is_known = isinstance(value, Mapping) and not _has_other_references(value)
    inner = {**value, **shared} if is_known and isinstance(value, Mapping) else shared
    return f"%json {json.dumps(inner)}"
