"""Answers of every family, whole and in pieces: the same calls, and nothing lost."""

from __future__ import annotations

import itertools
import json
import random

import pytest

from octavo.grammar import ThinkingState
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import tools_of
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import (
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    FORMATS,
    HERMES,
    JSON,
    LLAMA3_JSON,
    MISTRAL,
    MISTRAL_ARGS,
    PYTHONIC,
    Body,
    ToolFormat,
)
from octavo.tools.thinking import THINKING_FORMATS
from octavo.types import ToolCall

Told = tuple[str, str, list[tuple[str, str]]]  # thought, content, calls
TOOLS = tools_of(
    [{"type": "function", "function": {"name": name}} for name in ("get_weather", "now", "send-mail_2")]
)
CALLS = [
    ToolCall("get_weather", '{"city": "Paris \\"}{[", "days": [1, {"a": null}]}'),
    ToolCall("now", "{}"),
    ToolCall("send-mail_2", '{"to": "a@b.c", "text": "</tool_call> <tool_call> ]; \\\\"}'),
]


def told(events: list[AnswerEvent]) -> Told:
    thought = content = ""
    calls: list[tuple[str, str]] = []
    for event in events:
        match event:
            case ThinkingText(text):
                thought += text
            case Content(text):
                content += text
            case CallStart(index, name):
                assert index == len(calls)
                calls.append((name, ""))
            case ArgumentsText(index, text):
                assert index == len(calls) - 1
                calls[-1] = (calls[-1][0], calls[-1][1] + text)
    return thought, content, calls


def read(text: str, form: ToolFormat | None, cuts: list[int], thinking: ThinkingState | None = None) -> Told:
    reader = AnswerReader(AnswerKind(thinking, form, tools=TOOLS))
    events: list[AnswerEvent] = []
    places = [0, *cuts, len(text)]
    for start, stop in itertools.pairwise(places):
        events += reader.push(text[start:stop])
    events += reader.push("", is_last=True)
    return told(events)


def every_way(text: str, form: ToolFormat | None, thinking: ThinkingState | None = None) -> Told:
    """Whole, letter by letter, and cut at random: always the same."""
    whole = read(text, form, [], thinking)
    assert read(text, form, list(range(1, len(text))), thinking) == whole
    chance = random.Random(len(text))
    for _ in range(20):
        cuts = sorted(chance.sample(range(len(text) + 1), min(4, len(text))))
        assert read(text, form, cuts, thinking) == whole
    return whole


def written(form: ToolFormat, calls: list[ToolCall]) -> str:
    """In the format's own form; as Python where that is it."""
    if form.body is not Body.PYTHON:
        return form.written(calls)
    each = [f"{c.name}({', '.join(f'{k}={v!r}' for k, v in json.loads(c.arguments).items())})" for c in calls]
    return f"{form.open}{form.between.join(each)}{form.close}"


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_calls_are_read_as_they_were_written(form: ToolFormat, count: int) -> None:
    calls = CALLS[:count]
    thought, content, found = every_way(written(form, calls), form)
    assert (thought, content) == ("", "")
    assert [(name, json.loads(text)) for name, text in found] == [
        (call.name, json.loads(call.arguments)) for call in calls
    ]
    if form.body not in (Body.PYTHON, Body.TAGGED):
        assert [text for _, text in found] == [call.arguments for call in calls]


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize(
    "text", ["Hello!", "  a < b [1] {x} ", "", "<tool", "[TOOL", "{", "[", '{"a": 1}', "\n"]
)
def test_an_answer_without_calls_is_content_to_the_letter(form: ToolFormat, text: str) -> None:
    assert every_way(text, form) == ("", text, [])


@pytest.mark.parametrize(
    "form", [HERMES, MISTRAL, MISTRAL_ARGS, DEEPSEEK_V3, DEEPSEEK_V31], ids=lambda form: form.name
)
def test_text_before_and_behind_calls_is_content_but_for_the_white_space_between(form: ToolFormat) -> None:
    text = "I will look.\n\n" + form.written(CALLS[:2]) + "\n"
    assert every_way(text, form)[1] == "I will look."
    assert len(every_way(text, form)[2]) == 2
    if form in (HERMES, DEEPSEEK_V3):
        assert every_way(text + "Done.", form)[1] == "I will look.Done."


@pytest.mark.parametrize(
    ("form", "text", "name", "arguments"),
    [
        (HERMES, '<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>', "f", '{"a":1}'),
        (HERMES, '<tool_call>\n{"name": "f", "arguments": {"a": 1}}', "f", '{"a": 1}'),
        (HERMES, '<tool_call> { "name" : "f" , "parameters" : {}}\n\n</tool_call>', "f", "{}"),
        (LLAMA3_JSON, '<|python_tag|>{"name": "f", "parameters": {"a": 1}}', "f", '{"a": 1}'),
        (LLAMA3_JSON, '\n{"name":"f","arguments":{"a": 1}}', "f", '{"a": 1}'),
        (JSON, '{"name": "f", "arguments": {"a": 1}}', "f", '{"a": 1}'),
        (MISTRAL, '[TOOL_CALLS] [{"name": "f", "arguments": {"a": 1}}]', "f", '{"a": 1}'),
        (MISTRAL_ARGS, '[TOOL_CALLS]f[ARGS]{"a": 1}', "f", '{"a": 1}'),
        (PYTHONIC, "[f(a=True, b=None, c='x', d=[1, {'k': false}])]", "f", None),
        (PYTHONIC, "[ f( ) ]", "f", "{}"),
        (
            PYTHONIC,
            '[f(from="a\\/b, c=(", to={"x": [1, "}"]})]',
            "f",
            '{"from": "a/b, c=(", "to": {"x": [1, "}"]}}',
        ),
    ],
)
def test_what_models_write_otherwise_is_understood(
    form: ToolFormat, text: str, name: str, arguments: str | None
) -> None:
    thought, content, [(found, written_arguments)] = every_way(text, form)
    assert (thought, content, found) == ("", "", name)
    assert written_arguments == (arguments or '{"a": true, "b": null, "c": "x", "d": [1, {"k": false}]}')


@pytest.mark.parametrize(
    ("form", "text"),
    [
        (HERMES, "<tool_call>\nnot a call</tool_call>"),
        (HERMES, '<tool_call>\n{"name": "f"}\n</tool_call>'),
        (HERMES, "<tool_call>" + "x" * 2000),
        (LLAMA3_JSON, '{"answer": 42}'),
        (MISTRAL, "[TOOL_CALLS] none"),
        (PYTHONIC, "[1, 2, 3]"),
        (PYTHONIC, "[f(1)]"),
        (PYTHONIC, "[f(a=__import__('os'))]"),
    ],
)
def test_what_is_no_call_after_all_is_content(form: ToolFormat, text: str) -> None:
    assert every_way(text, form) == ("", text, [])


@pytest.mark.parametrize("form", [HERMES, LLAMA3_JSON, MISTRAL, DEEPSEEK_V31], ids=lambda form: form.name)
def test_a_call_that_is_cut_has_the_arguments_that_came(form: ToolFormat) -> None:
    text, arguments = form.written(CALLS[:1]), CALLS[0].arguments
    cut = every_way(text[: text.index("days")], form)
    assert cut[2] == [("get_weather", arguments[: arguments.index("days")])]


def test_a_second_call_that_is_cut_before_its_arguments_is_nothing() -> None:
    text = HERMES.written(CALLS[:2])
    for cut in (text.rindex("<tool_call>") + 5, text.rindex('"name"'), text.rindex('"arguments"')):
        assert every_way(text[:cut], HERMES) == ("", "", [("get_weather", CALLS[0].arguments)])


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_calls_that_are_cut_anywhere_leave_no_markup_behind(form: ToolFormat) -> None:
    """At any byte: half a character is a replacement character at the end of an answer."""
    whole = written(form, CALLS[1:2] * 2).encode()
    begun = min(
        cut for cut in range(len(whole) + 1) if read(whole[:cut].decode(errors="replace"), form, [])[2]
    )
    for cut in range(begun, len(whole) + 1):
        text = whole[:cut].decode(errors="replace")
        assert read(text, form, [])[1] == "", text
        assert read(text, form, list(range(1, len(text))))[1] == "", text


@pytest.mark.parametrize(
    ("state", "text", "thought", "content"),
    [
        (ThinkingState.INSIDE, "\nhm, so\n</think>\n\nYes.\n", "hm, so", "Yes.\n"),
        (ThinkingState.INSIDE, "<think>\nhm</think>Yes", "hm", "Yes"),
        (ThinkingState.INSIDE, "never ends <", "never ends <", ""),
        (ThinkingState.INSIDE, "</think>Yes", "", "Yes"),
        (ThinkingState.MAYBE, "<think>\nhm\n</think>\n\nYes", "hm", "Yes"),
        (ThinkingState.MAYBE, " Yes <think>", "", " Yes <think>"),
        (ThinkingState.MAYBE, "<thin", "", "<thin"),
        (ThinkingState.MAYBE, "<think>\n\n</think>\n\nYes </think>", "", "Yes </think>"),
        (ThinkingState.NONE, " Yes <think>x</think>", "", " Yes <think>x</think>"),
    ],
)
def test_thinking_is_distinguished(state: ThinkingState, text: str, thought: str, content: str) -> None:
    assert every_way(text, None, state) == (thought, content, [])
    assert every_way(text, HERMES, state) == (thought, content, [])


def test_calls_behind_thinking_and_none_within_it() -> None:
    call = HERMES.written(CALLS[:1])
    thought, content, calls = every_way(f"I might {call} it</think>\n{call}", HERMES, ThinkingState.INSIDE)
    assert (thought, content) == (f"I might {call} it", "")
    assert calls == [("get_weather", CALLS[0].arguments)]


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_rubbish_in_any_pieces_reads_the_same(form: ToolFormat, seed: int) -> None:
    chance = random.Random(seed)
    pieces = [*form.begins, form.open, form.call_open, form.to_arguments, form.call_close, form.close]
    pieces += ["f", "{", "}", '"', "\n", " ", "x", "</think>", "<think>", *"[]()", "=1", ","]
    pieces.append(form.written(CALLS[:1]))
    text = "".join(chance.choice(pieces) for _ in range(chance.randrange(1, 14)))
    every_way(text, form, chance.choice([None, *ThinkingState]))


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
def test_blanks_before_what_is_no_call_after_all_are_content(form: ToolFormat) -> None:
    begin = form.begins[0] or "x"
    text = f"It writes  \n{begin} to begin.  {begin}"
    assert every_way(text, form)[1].strip() == text.strip() or form.body is Body.CHANNELS


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("rest", ["\n" * 30_000, "f(a='" + "f(x) " * 6000, "<" * 30_000, '{"name": ' * 3000])
def test_a_long_answer_that_goes_nowhere_is_read_in_time(form: ToolFormat, rest: str) -> None:
    text = form.open + form.call_open + rest
    pieces = list(range(4, len(text), 4))
    assert read(text, form, pieces)[0] == ""


ODD = [
    "...",
    "{1}",
    "1j",
    "b'x'",
    "{'a': ...}",
    "0x" + "f" * 5000,
    "1" * 5000,
    '["\\ud800"]',
    "1e999",
    "[NaN]",
    "-Infinity",
]


@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
@pytest.mark.parametrize("name", ["qwen3_coder", "glm45", "minimax_m2", "seed_oss", "deepseek_v32"])
def test_values_that_are_no_json_are_strings(name: str, text: str) -> None:
    form = FORMATS[name]
    assert form.tags is not None
    to_value = form.tags.to_json or form.tags.to_value
    value = form.tags.param_open + "c" + to_value + text + form.tags.param_close
    call = form.open + form.call_open + "now" + form.to_arguments + value + form.call_close + form.close
    _, _, [(_, arguments)] = every_way(call, form)
    assert json.loads(arguments) == {"c": text}
    arguments.encode()


@pytest.mark.parametrize("text", ["f(a='\\ud800')", "f(größe=1, user-id='x', $filter=2, a b=3)"])
def test_names_and_strings_that_python_would_not_take(text: str) -> None:
    _, content, [(_, arguments)] = every_way(f"[{text}]", PYTHONIC)
    arguments.encode()
    assert content == ""
    assert len(json.loads(arguments)) == text.count("=")


def test_gpt_oss_thinks_in_the_channel_of_that_name_alone() -> None:
    text = "<|channel|>commentary to=functions.run_analysis<|message|>hm<|end|>"
    kind = AnswerKind(ThinkingState.MAYBE, None, thinking_format=THINKING_FORMATS["openai_gptoss"])
    assert told(list(AnswerReader(kind).push(text, is_last=True))) == ("", "hm", [])
