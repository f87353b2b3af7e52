"""The grammar of calls: the format's own text around names, and the schema of each function's arguments.

    start: OPEN call (BETWEEN call){0,15} CLOSE          call: call_0 | call_1 | ...
    call_0: CALL_OPEN "get_weather" TO_ARGUMENTS args_0 CALL_CLOSE          args_0: %json {...}

`octavo.tools.schemas` decides which part of a schema is followed. Source: llguidance's Lark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from octavo.errors import InvalidRequest
from octavo.grammar import JSON_OPTIONS, Grammar, GrammarKind
from octavo.schemas import limit_keys
from octavo.tools.definitions import Tool, ToolMode, ToolUse
from octavo.tools.formats import ID, Body, ToolFormat
from octavo.tools.rules import CallWriter, SpecialId
from octavo.tools.schemas import Check, SchemaTrials, arguments_schema
from octavo.tools.thinking import FINAL

CALLS_MAX = 16  # per answer
_OBJECT: Mapping[str, object] = {"type": "object"}


def calls_grammar(
    use: ToolUse, form: ToolFormat, output: Grammar | None, special_id: SpecialId, check: Check
) -> Grammar | None:
    """The grammar of an answer with tools. It applies from the first token on if calls are required or
    content must follow `output`; otherwise from the beginning of a call. Compiles; may take long. Raises
    InvalidRequest for a strict function whose schema cannot be followed."""
    if use.mode is ToolMode.NONE:
        return output
    tools = use.callable_tools
    found = [arguments_schema(tool) for tool in tools]
    whole = _calls_grammar(use, form, output, special_id, [one.schema for one in found])
    try:
        check(whole)
    except InvalidRequest:  # of one tool, or of all together
        trials = SchemaTrials(check)
        found = [trials.followed(tool, one) for tool, one in zip(tools, found, strict=True)]
        whole = _calls_grammar(use, form, output, special_id, [one.schema for one in found])
    not_enforced = [
        f"{tool.name}: {key}" for tool, one in zip(tools, found, strict=True) for key in one.not_enforced
    ]
    return replace(
        whole, not_enforced=(*(() if output is None else output.not_enforced), *limit_keys(not_enforced))
    )


def _calls_grammar(
    use: ToolUse,
    form: ToolFormat,
    output: Grammar | None,
    special_id: SpecialId,
    schemas: Sequence[Mapping[str, object]],
) -> Grammar:
    """As `calls_grammar`, with these schemas of the tools that may be called."""
    tools, writer = use.callable_tools, CallWriter(form, special_id)
    rules = [f"call: {' | '.join(f'call_{index}' for index in range(len(tools)))}"]
    for index, (tool, schema) in enumerate(zip(tools, schemas, strict=True)):
        rules += writer.call(index, tool.name, schema)
    between = writer.loose(form.between) or r"/[ \t\r\n]{0,2}/"
    more = f" ({between} call){{0,{CALLS_MAX - 1}}}" if use.is_parallel else ""
    calls = f"{writer.loose(form.open)} call{more} {writer.loose(form.close)}"
    if use.mode is ToolMode.REQUIRED:
        return Grammar(GrammarKind.LARK, "\n".join([f"start: {calls}", *rules]), "tools")
    if output is not None:
        final = f"{writer.text(FINAL)} " if form.body is Body.CHANNELS else ""
        rules.append(f"content: {final}%json {json.dumps(_content_schema(output))}")
        return Grammar(
            GrammarKind.LARK, "\n".join([f"start: calls | content\ncalls: {calls}", *rules]), "tools"
        )
    if form.at_start:
        triggers = tuple(_beginning(form, tool) for tool in tools)
        junk = ["JUNK: /[ \\t\\r\\n]+/"]
    else:
        triggers = form.begins
        junk = [f"JUNK: /[^{_in_class(triggers[0][0])}]+/"]
    before = f"({writer.text(form.between)})? " if form.body is Body.CHANNELS else ""
    start = f"start: {before}{calls}" if writer.starts_with_special else f"start: JUNK? {before}{calls}"
    text = "\n".join([start, *([] if writer.starts_with_special else junk), *rules])
    return Grammar(GrammarKind.LARK, text, "tools", triggers, form.at_start)


def _content_schema(output: Grammar) -> Mapping[str, object]:
    if output.kind is not GrammarKind.JSON_SCHEMA:
        raise InvalidRequest(
            f"{output.param} is given with tools that may be called; allowed: a JSON schema, or tool_choice "
            "none or required",
            param=output.param,
        )
    schema = json.loads(output.text)
    return {**(schema if isinstance(schema, dict) else {}), "x-guidance": JSON_OPTIONS}


def _beginning(form: ToolFormat, tool: Tool) -> str:
    """The beginning of an answer that calls this function."""
    return (form.open + form.call_open + tool.name + form.to_arguments[:1]).partition(ID)[0]


def _in_class(letter: str) -> str:
    return "\\" + letter if letter in "\\]^-[/" else letter
