"""What a template renders of an assistant's turn, read back, is the turn: whole, cut at every character, and
as the grammar of calls writes it. For every family, except for what its template loses."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import llguidance
import pytest
from families import FAMILIES, Family, renders

from octavo.errors import OctavoError
from octavo.text.turn_format import (
    REASONING_NAMES,
    Message,
    TemplateTurn,
    ToolsPlace,
    TurnFormat,
    find_turn_format,
    own_text,
    read_turn,
    thinking_turn,
    with_tools_in_system,
)
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import ToolMode, ToolUse, tools_of
from octavo.tools.events import ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import FORMATS, HERMES, Body, ToolFormat
from octavo.tools.grammars import calls_grammar
from octavo.tools.thinking import THINK, THINKING_FORMATS
from octavo.types import ToolCall

PLACE = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
}
OFFERED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "What it does.",
            "parameters": {"type": "object", "properties": properties},
        },
    }
    for name, properties in {
        "get_weather": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "exact": {"type": "boolean"},
            "place": PLACE,
        },
        "send_mail": {"to": {"type": "string"}, "text": {"type": "string"}},
        "now": {},
    }.items()
]
TOOLS = tools_of(OFFERED)
Call = tuple[str, dict[str, object]]
ONE: list[Call] = [("get_weather", {"city": "Rome", "days": 3})]
TWO: list[Call] = [*ONE, ("send_mail", {"to": "a@b.c", "text": "Hi"})]
NESTED: list[Call] = [
    ("get_weather", {"city": "R", "exact": True, "place": {"lat": 41.5, "tags": ["a", 'b "c"']}})
]
UNICODE: list[Call] = [
    ("send_mail", {"to": "köln 你好 \U0001f600", "text": 'two\nlines, "quoted", {x} [y] </b> 5'})
]
EMPTY: list[Call] = [("now", {})]
TEXT, THOUGHT = "I will look.", "They ask.\nA tool, then."
TURNS: dict[str, tuple[str, str, list[Call]]] = {
    "text": ("", TEXT, []),
    "thinking and text": (THOUGHT, TEXT, []),
    "one call": ("", "", ONE),
    "two calls": ("", "", TWO),
    "nested": ("", "", NESTED),
    "unicode": ("", "", UNICODE),
    "empty": ("", "", EMPTY),
    "text and a call": ("", TEXT, ONE),
    "thinking and a call": (THOUGHT, "", ONE),
    "thinking and two calls": (THOUGHT, "", TWO),
}
KNOWN = [family for family in FAMILIES if family.calls is not None]


@cache
def found_of(family: Family) -> TurnFormat:
    return find_turn_format(renders(family.template))


def is_lost(family: Family, thought: str, text: str, calls: Sequence[Call]) -> bool:
    """Whether the template loses a part of this turn."""
    return (
        (bool(calls) and "calls" in family.loses)
        or (len(calls) > 1 and "a second call" in family.loses)
        or (bool(thought) and "thinking" in family.loses)
        or (bool(text and calls) and "text with calls" in family.loses)
    )


def message_of(thought: str, text: str, calls: Sequence[Call], found: TurnFormat) -> Message:
    """The turn as a template gets it."""
    message: Message = {"role": "assistant", "content": text}
    if thought:
        message = thinking_turn(thought, text, found.thinks_in_parts)
    if calls:
        ids = (found.calls.id_form if found.calls else "") or "call0000{index}"
        message["tool_calls"] = [
            {
                "type": "function",
                "id": ids.format(name=name, index=index),
                "function": {
                    "name": name,
                    "arguments": arguments
                    if found.takes_objects
                    else json.dumps(arguments, ensure_ascii=False),
                },
            }
            for index, (name, arguments) in enumerate(calls)
        ]
    return message


def rendered(family: Family, message: Message, found: TurnFormat) -> tuple[str, str]:
    """The prompt, and the turn's text behind it up to the token that ends it."""
    render, user = renders(family.template), {"role": "user", "content": "Why?"}

    def written(messages: list[Message], is_followed: bool) -> str:
        tools: Sequence[object] = OFFERED
        if found.tools in (ToolsPlace.SYSTEM_LIST, ToolsPlace.SYSTEM_TEXT):
            messages, tools = with_tools_in_system(messages, OFFERED, found.tools), ()
        return render(messages, tools, is_followed, {})

    before, prompt, whole = written([user], False), written([user], True), written([user, message], False)
    start, text = own_text(before, prompt, whole)
    return start, text.partition(family.end)[0]


def kind_of(family: Family, found: TurnFormat, before: str, form: ToolFormat | None = None) -> AnswerKind:
    thinking = found.thinking if form is None or form.body is not Body.OBJECT else THINK
    state = None if thinking is None else thinking.state_after(before[-200:].encode())
    return AnswerKind(state, form or found.calls, thinking_format=thinking or THINK, tools=TOOLS)


def read_cut(text: str, kind: AnswerKind) -> TemplateTurn:
    """Character by character."""
    reader, thought, content, calls = AnswerReader(kind), "", "", list[ToolCall]()
    for event in itertools.chain(*(reader.push(letter) for letter in text), reader.push("", is_last=True)):
        match event:
            case ThinkingText(more):
                thought += more
            case Content(more):
                content += more
            case CallStart(_, name):
                calls.append(ToolCall(name, ""))
            case ArgumentsText(_, more):
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + more)
    return TemplateTurn(thought, content, tuple(calls))


def differs(family: Family, turn: str, form: ToolFormat | None = None) -> str:
    """What comes back otherwise of this turn; "" where it is the turn."""
    thought, text, calls = TURNS[turn]
    found = found_of(family)
    before, written = rendered(family, message_of(thought, text, calls, found), found)
    kind = kind_of(family, found, before, form)
    read = read_turn(written, kind)
    if read_cut(written, kind) != read:
        return f"cut at every character, {written!r} reads otherwise"
    try:
        got = [(call.name, json.loads(call.arguments)) for call in read.calls]
    except ValueError:
        return f"{written!r} has arguments that are no JSON: {read.calls}"
    if (read.thought, read.content.strip(), got) != (thought, text, calls):
        return f"{written!r} is read as {read}"
    return ""


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_the_format_is_found_by_what_the_template_renders(family: Family) -> None:
    found = found_of(family)
    assert (found.calls and found.calls.name, found.thinking and found.thinking.name) == (
        family.calls,
        family.thinking,
    )


@pytest.mark.parametrize("turn", TURNS)
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_a_rendered_turn_reads_back_as_the_turn(family: Family, turn: str) -> None:
    if not is_lost(family, *TURNS[turn]):
        assert differs(family, turn) == ""


class _Bytes:
    """A vocabulary of bytes, as llguidance asks for one."""

    eos_token_id, bos_token_id, special_token_ids = 256, None, [256]
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]  # noqa: RUF012

    def __call__(self, text: str | bytes) -> list[int]:
        return list(text if isinstance(text, bytes) else text.encode())


def refused_part(
    form: ToolFormat,
    text: str,
    tools: tuple[str, ...] = ("get_weather", "send_mail", "now"),
    use: ToolUse | None = None,
) -> str:
    """The rest of the text from where the grammar of required calls does not allow it."""
    use = use or ToolUse(TOOLS, ToolMode.REQUIRED, tools)
    grammar = calls_grammar(use, form, None, lambda text: None, lambda grammar: None)
    assert grammar is not None
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar.text))
    assert not matcher.is_error(), matcher.get_error()
    data = text.encode()
    taken = matcher.try_consume_tokens(list(data))
    rest = data[taken:].decode(errors="replace")
    return rest or ("" if matcher.is_accepting() else "more is to come")


@pytest.mark.parametrize("turn", ["one call", "two calls", "nested", "unicode", "empty"])
@pytest.mark.parametrize("family", KNOWN, ids=lambda family: family.name)
def test_the_grammar_of_calls_accepts_what_the_template_renders(family: Family, turn: str) -> None:
    calls, found = TURNS[turn][2], found_of(family)
    assert found.calls is not None
    if is_lost(family, "", "", calls):
        written = found.calls.written(
            [ToolCall(name, json.dumps(given, ensure_ascii=False)) for name, given in calls]
        )
    else:
        written = rendered(family, message_of("", "", calls, found), found)[1].rstrip().lstrip("\n")
        written = written.removeprefix("</think>")
    names = tuple({name: None for name, _ in calls})
    assert refused_part(found.calls, written) == ""
    if len(names) == 1:
        assert refused_part(found.calls, written, names) == ""


@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "deepseek_v32", "olmo3", "pythonic"])
def test_a_function_that_declares_no_arguments_may_have_any(name: str) -> None:
    function = {"name": "f", "parameters": {"type": "object"}}
    use = ToolUse(tools_of([{"type": "function", "function": function}]), ToolMode.REQUIRED, ("f",))
    text = FORMATS[name].written([ToolCall("f", '{"a": "x", "b": "two words"}')])
    assert refused_part(FORMATS[name], text, use=use) == ""
    assert refused_part(FORMATS[name], FORMATS[name].written([ToolCall("f", "{}")]), use=use) == ""
    assert refused_part(FORMATS[name], FORMATS[name].written([ToolCall("g", "{}")]), use=use) != ""


def test_references_to_other_parts_of_a_schema_refuse_nothing() -> None:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}}
    function = {"name": "f", "parameters": parameters | {"required": ["b"]}}
    use = ToolUse(tools_of([{"type": "function", "function": function}]), ToolMode.REQUIRED, ("f",))
    for name in ("qwen3_coder", "olmo3", "hermes"):
        assert refused_part(FORMATS[name], FORMATS[name].written([ToolCall("f", '{"b": 3}')]), use=use) == ""


@pytest.mark.parametrize(
    "name", ["openai", "qwen3_coder", "seed_oss", "hermes", "glm45", "mistral", "kimi_k2"]
)
def test_a_call_is_led_from_each_text_that_begins_one(name: str) -> None:
    """With `auto` the grammar takes over at a trigger, which it must accept."""
    form = FORMATS[name]
    grammar = calls_grammar(
        ToolUse(TOOLS, ToolMode.AUTO, ("now",)), form, None, lambda t: None, lambda g: None
    )
    assert grammar is not None
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()))
    for trigger in grammar.triggers:
        matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_lark(grammar.text))
        assert matcher.try_consume_tokens(list(trigger.encode())) == len(trigger.encode())


def test_a_template_that_writes_very_much_is_tried_in_time() -> None:
    many = "{% for m in messages %}{{ '<function_calls>\\nf(a=' * 9000 }}{% endfor %}"
    assert find_turn_format(renders(many)).thinking is None


@pytest.mark.parametrize("family", KNOWN, ids=lambda family: family.name)
def test_a_mistake_in_a_format_is_caught(family: Family) -> None:
    """What begins calls, and what stands between name and arguments, spelled otherwise."""
    if "calls" in family.loses:
        pytest.skip("the template renders no calls")
    form = found_of(family).calls
    assert form is not None
    if form.body is Body.CHANNELS:
        assert differs(family, "one call", HERMES)
        return
    wrong = [replace(form, begins=("<wrong>",), at_start=False, next_begins=("<wrong>",))]
    if form.body in (Body.NAMED, Body.TAGGED):
        wrong.append(replace(form, to_arguments="<wrong>"))
    if form.tags is not None:
        wrong.append(replace(form, tags=replace(form.tags, param_close="</wrong>")))
        wrong.append(replace(form, tags=replace(form.tags, param_open="<wrong ")))
    for mistaken in wrong:
        assert differs(family, "one call", mistaken)


def test_every_format_is_found_in_a_family() -> None:
    assert {family.calls for family in KNOWN} | {"cohere_command_r"} == set(FORMATS)
    assert {family.thinking for family in FAMILIES if family.thinking} | {"hunyuan_a13b", "granite"} == set(
        THINKING_FORMATS
    )


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_thinking_of_an_earlier_turn_reaches_a_template_under_every_name(name: str) -> None:
    render = renders("{% for m in messages %}{{ m." + name + " }}{% endfor %}")
    assert render([thinking_turn("hm", "Yes.", in_parts=False)], (), False, {}) == "hm"


def test_a_template_that_refuses_everything_has_no_format() -> None:
    def refuses(*given: object) -> str:
        raise OctavoError("no")

    assert find_turn_format(refuses) == TurnFormat(tools=ToolsPlace.NOWHERE)


def test_the_page_has_every_family() -> None:
    page = (Path(__file__).parents[2] / "docs/chat.md").read_text()
    for family in FAMILIES:
        calls, thinking = (
            f"`{family.calls}`" if family.calls else "none",
            f"`{family.thinking}`" if family.thinking else "none",
        )
        assert f"| {family.name} | {calls} | {thinking} | {', '.join(family.loses) or 'nothing'} |" in page
