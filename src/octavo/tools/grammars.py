"""The grammar of calls: the format's own text around names, and the schema of each function's arguments.

    start: OPEN call (BETWEEN call){0,15} CLOSE          call: call_0 | call_1 | ...
    call_0: CALL_OPEN "get_weather" TO_ARGUMENTS args_0 CALL_CLOSE          args_0: %json {...}

A strict function's arguments follow all of its schema, or the request is refused. Others' follow what can be
followed of it; of a schema that cannot be read at all, that it is a JSON object. Source: llguidance's Lark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from octavo.errors import InvalidRequest
from octavo.grammar import TOO_SLOW, Grammar, GrammarKind
from octavo.tools.definitions import Tool, ToolMode, ToolUse
from octavo.tools.formats import ToolFormat

CALLS_MAX = 16  # in one answer
_SPACES = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_OBJECT: Mapping[str, object] = {"type": "object"}

SpecialId = Callable[[str], int | None]  # of a text that is one special token of the vocabulary
Check = Callable[[Grammar], object]  # raises InvalidRequest for one that cannot be followed


def calls_grammar(
    use: ToolUse, form: ToolFormat, output: Grammar | None, special_id: SpecialId, check: Check
) -> Grammar | None:
    """What an answer with tools follows: where calls are required, from its first token on; otherwise from
    where a call has begun on, or, where content must follow `output`, either from the first token on.
    Compiles; may take long. Raises InvalidRequest for a strict function whose schema cannot be followed."""
    if use.mode is ToolMode.NONE:
        return output
    whole = _calls_grammar(
        use, form, output, special_id, [_whole_schema(tool) for tool in use.callable_tools]
    )
    try:
        check(whole)
    except InvalidRequest:  # of one tool, or of all together
        found = [_schema_of(tool, check) for tool in use.callable_tools]
        return _calls_grammar(use, form, output, special_id, found)
    return whole


def _calls_grammar(
    use: ToolUse,
    form: ToolFormat,
    output: Grammar | None,
    special_id: SpecialId,
    schemas: Sequence[Mapping[str, object]],
) -> Grammar:
    """The same with these schemas of the tools that may be called."""
    tools, writer = use.callable_tools, _Writer(form, special_id)
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        rules += writer.call(index, tool, schema)
    more = f" ({writer.text(form.between)} call){{0,{CALLS_MAX - 1}}}" if use.is_parallel else ""
    calls = f"{writer.text(form.open)} call{more} {writer.text(form.close)}"
    if use.mode is ToolMode.REQUIRED:
        return Grammar(GrammarKind.LARK, "\n".join([f"start: {calls}", *rules]), "tools")
    if output is not None:
        rules.append(f"content: %json {json.dumps(_content_schema(output))}")
        return Grammar(
            GrammarKind.LARK, "\n".join([f"start: calls | content\ncalls: {calls}", *rules]), "tools"
        )
    if form.at_start:
        triggers = tuple(_beginning(form, tool) for tool in tools)
        junk = ["JUNK: /\\s+/"]
    else:
        triggers = form.begins
        junk = [f"JUNK: /[^{_in_class(triggers[0][0])}]+/"]
    start = f"start: {calls}" if writer.begins_special else f"start: JUNK? {calls}"
    text = "\n".join([start, *([] if writer.begins_special else junk), *rules])
    return Grammar(GrammarKind.LARK, text, "tools", triggers, form.at_start)


class _Writer:
    """Writes rules of one format for one vocabulary."""

    def __init__(self, form: ToolFormat, special_id: SpecialId) -> None:
        self._form = form
        self._ids = {text: found for text in form.markers if (found := special_id(text)) is not None}

    @property
    def begins_special(self) -> bool:
        """Whether calls begin with a special token, so that no text is in the same one."""
        return self._form.begins[0] in self._ids and not self._form.at_start

    def text(self, literal: str) -> str:
        """A text as terms of a rule: special tokens among letters."""
        for marker, number in self._ids.items():
            before, found, after = literal.partition(marker)
            if found:
                return " ".join(filter(None, [self.text(before), f"<[{number}]>", self.text(after)]))
        return json.dumps(literal, ensure_ascii=False) if literal else ""

    def call(self, index: int, tool: Tool, schema: Mapping[str, object]) -> list[str]:
        """The rules of one function."""
        form = self._form
        before, after = self.text(form.call_open + tool.name + form.to_arguments), self.text(form.call_close)
        rule = f"call_{index}: {before} args_{index} {after}"
        if form.is_pythonic:
            return [rule, *_pythonic_arguments(index, schema)]
        return [rule, f"args_{index}: %json {json.dumps(schema)}"]


def _content_schema(output: Grammar) -> Mapping[str, object]:
    if output.kind is not GrammarKind.JSON_SCHEMA:
        raise InvalidRequest(
            f"{output.param} is given with tools that may be called; allowed: a JSON schema, or tool_choice "
            "none or required",
            param=output.param,
        )
    schema = json.loads(output.text)
    return {**(schema if isinstance(schema, dict) else {}), "x-guidance": _SPACES}


def _whole_schema(tool: Tool) -> Mapping[str, object]:
    """What the grammar says of its arguments, where all of it can be followed."""
    schema = dict(tool.parameters)
    if tool.is_strict:
        return schema | {"x-guidance": _SPACES}
    schema["x-guidance"] = _SPACES | {"lenient": True}
    if "properties" in schema and "anyOf" not in schema and "allOf" not in schema:
        schema.setdefault("additionalProperties", False)  # a function has its parameters, and no others
    return schema


def _schema_of(tool: Tool, check: Check) -> Mapping[str, object]:
    """As much of it as can be followed."""
    schema = _whole_schema(tool)
    if tool.is_strict:
        check(Grammar(GrammarKind.JSON_SCHEMA, json.dumps(schema), f"parameters of the function {tool.name}"))
        return schema
    try:
        check(Grammar(GrammarKind.LARK, f"start: %json {json.dumps(schema)}", f"tools ({tool.name})"))
    except InvalidRequest as error:
        if error.code == TOO_SLOW:  # each of many tools may take as long
            raise
        return {**_OBJECT, "x-guidance": _SPACES}
    return schema


def _beginning(form: ToolFormat, tool: Tool) -> str:
    """What an answer begins with that calls this function."""
    return form.open + form.call_open + tool.name + form.to_arguments[:1]


def _in_class(letter: str) -> str:
    return "\\" + letter if letter in "\\]^-[/" else letter


def _pythonic_arguments(index: int, schema: Mapping[str, object]) -> list[str]:
    """Arguments by name, in the schema's order, those that are required and perhaps others: rules for what
    may follow where none was written yet (n), and where some were (s). A value is JSON, but for True, False
    and None."""
    given, required = schema.get("properties"), schema.get("required")
    properties = given if isinstance(given, Mapping) else {}
    names = required if isinstance(required, list) else []
    rules, place = [f"args_{index}: n_{index}_0"], 0
    for place, (name, value) in enumerate(properties.items()):
        own, after = f"v_{index}_{place}", f"s_{index}_{place + 1}"
        first, later = json.dumps(f"{name}="), json.dumps(f", {name}=")
        skip = "" if name in names else f" | n_{index}_{place + 1}"
        rules.append(f"n_{index}_{place}: {first} {own} {after}{skip}")
        skip = "" if name in names else f" | {after}"
        rules.append(f"s_{index}_{place}: {later} {own} {after}{skip}")
        rules.append(f"{own}: {_pythonic_value(value, schema)}")
    end = place + 1 if properties else 0
    return [*rules, f'n_{index}_{end}: ""', f's_{index}_{end}: ""']


def _pythonic_value(value: object, schema: Mapping[str, object]) -> str:
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind == "boolean":
        return '"True" | "False"'
    if kind == "null":
        return '"None"'
    shared = {key: schema[key] for key in ("$defs", "definitions", "x-guidance") if key in schema}
    inner = {**value, **shared} if isinstance(value, Mapping) else {**_OBJECT, **shared}
    return f"%json {json.dumps(inner)}"
