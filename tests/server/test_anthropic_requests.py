"""Anthropic's requests in the words of the chat path: messages, tools, thinking, what is refused by name."""

import json

import pytest

from octavo.errors import InvalidRequest
from octavo.server.dialects.anthropic import MessagesBody, translate
from octavo.server.dialects.anthropic_messages import read_messages
from octavo.types import ChatMessage, ToolCall

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
TOOL = {"name": "get_weather", "description": "The weather", "input_schema": SCHEMA}
HI = {"role": "user", "content": "hi"}
CALL = {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"city": "Köln", "days": [1, 2]}}


def text(words, **fields):
    return {"type": "text", "text": words, **fields}


def result(words, call_id="toolu_1", **fields):
    return {"type": "tool_result", "tool_use_id": call_id, "content": words, **fields}


def read(*messages, system=None):
    return read_messages(system, list(messages), 1000)


def body_of(**fields):
    """What the chat path is told."""
    return translate(MessagesBody(max_tokens=50, messages=[HI], **fields), 1000).body


# -- messages ------------------------------------------------------------------------------------------------
def test_strings_and_text_blocks_are_the_same():
    plain = read(HI, system="Be brief.")
    assert plain == read(
        {"role": "user", "content": [text("h"), text("i")]}, system=[text("Be "), text("brief.")]
    )
    assert plain.messages == [ChatMessage("system", "Be brief."), ChatMessage("user", "hi")]
    assert not plain.is_prefilled
    assert read(HI, system="") == read(HI)


def test_messages_of_one_role_that_follow_each_other_are_one_turn():
    said = [("user", "a"), ("user", ""), ("user", "b"), ("assistant", "c"), ("assistant", "d"), ("user", "e")]
    messages = read(*({"role": role, "content": words} for role, words in said)).messages
    assert [(one.role, one.content) for one in messages] == [
        ("user", "a\n\nb"),
        ("assistant", "c\n\nd"),
        ("user", "e"),
    ]


def test_a_system_message_stays_where_it_is():
    messages = read(HI, {"role": "system", "content": "Now in French."}, HI, system="Be brief.").messages
    assert [one.role for one in messages] == ["system", "user", "system", "user"]


def test_results_become_a_message_each_and_text_behind_them_the_users():
    messages = read(
        HI,
        {"role": "assistant", "content": [CALL, CALL | {"id": "toolu_2", "name": "now", "input": {}}]},
        {
            "role": "user",
            "content": [
                result([text("22"), text(" C")]),
                result("no clock", "toolu_2", is_error=True),
                text("And "),
                text("now?"),
            ],
        },
    ).messages
    calls = (
        ToolCall("get_weather", '{"city": "Köln", "days": [1, 2]}', "toolu_1"),
        ToolCall("now", "{}", "toolu_2"),
    )
    assert messages == [
        ChatMessage("user", "hi"),
        ChatMessage("assistant", "", None, calls),
        ChatMessage("tool", "22 C", "get_weather", tool_call_id="toolu_1"),
        ChatMessage("tool", "Error: no clock", "now", tool_call_id="toolu_2"),
        ChatMessage("user", "And now?"),
    ]


def test_a_result_may_be_empty_and_is_not_joined_with_text_before_it():
    messages = read(
        {"role": "assistant", "content": [CALL]},
        {"role": "user", "content": [text("Here:"), {"type": "tool_result", "tool_use_id": "toolu_1"}]},
    ).messages
    assert [(one.role, one.content) for one in messages[1:]] == [("user", "Here:"), ("tool", "")]


def test_thinking_of_earlier_turns_is_reasoning_and_what_is_redacted_is_left_out():
    thought = {"type": "thinking", "thinking": "hm", "signature": "x"}
    redacted = {"type": "redacted_thinking", "data": "abc"}
    [_, said, _] = read(
        HI, {"role": "assistant", "content": [redacted, thought, text("Yes."), CALL]}, HI
    ).messages
    assert (said.reasoning, said.content) == ("hm", "Yes.")
    assert [call.name for call in said.tool_calls] == ["get_weather"]


@pytest.mark.parametrize(
    ("last", "messages", "is_prefilled"),
    [
        ("The answer is (", [("user", "hi"), ("assistant", "The answer is (")], True),
        ([text("The "), text("answer")], [("user", "hi"), ("assistant", "The answer")], True),
        ("", [("user", "hi")], False),
        ([], [("user", "hi")], False),
    ],
)
def test_a_last_message_of_the_assistant_is_begun_unless_it_is_empty(last, messages, is_prefilled):
    found = read(HI, {"role": "assistant", "content": last})
    assert [(one.role, one.content) for one in found.messages] == messages
    assert found.is_prefilled is is_prefilled
    body = MessagesBody(max_tokens=5, messages=[HI, {"role": "assistant", "content": last}])
    options = translate(body, 1000).body.chat_options
    assert (options.continue_final_message, options.add_generation_prompt) == (is_prefilled, not is_prefilled)


@pytest.mark.timeout(30)  # linear time is a second; copies of all messages before it would take minutes
def test_a_turn_of_many_messages_and_blocks_takes_linear_time():
    words, count = "word " * 1000, 10_000
    messages = [{"role": "user", "content": words}] * count
    read_messages(None, messages, count)
    read_messages(None, [{"role": "user", "content": [text(words)] * count}], count)


def test_more_blocks_than_the_context_has_tokens_are_refused_before_they_are_read():
    with pytest.raises(InvalidRequest, match=r"1,001 blocks in 1 messages; .* 1,000 tokens"):
        read({"role": "user", "content": [7] * 1001})


# -- tools, thinking, output ---------------------------------------------------------------------------------
def test_tools_are_given_to_the_template_as_functions():
    [given] = body_of(
        tools=[TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}}]
    ).chat_options.tools
    function = {"name": "get_weather", "description": "The weather", "parameters": SCHEMA}
    assert given == {"type": "function", "function": function}
    [strict] = body_of(tools=[{"name": "f", "input_schema": {}, "strict": True}]).tool_use.tools
    assert strict.is_strict


@pytest.mark.parametrize(
    ("choice", "mode", "names", "is_parallel"),
    [
        (None, "auto", ("get_weather", "now"), True),
        ({"type": "auto"}, "auto", ("get_weather", "now"), True),
        ({"type": "auto", "disable_parallel_tool_use": True}, "auto", ("get_weather", "now"), False),
        ({"type": "any"}, "required", ("get_weather", "now"), True),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", ("get_weather", "now"), False),
        ({"type": "tool", "name": "now"}, "required", ("now",), False),
        ({"type": "none"}, "none", ("get_weather", "now"), True),
    ],
)
def test_tool_choice(choice, mode, names, is_parallel):
    use = body_of(tools=[TOOL, {"name": "now", "input_schema": {}}], tool_choice=choice).tool_use
    assert (use.mode, use.names, use.is_parallel) == (mode, names, is_parallel)


@pytest.mark.parametrize(
    ("thinking", "enable", "budget", "is_told"),
    [
        (None, False, None, False),
        ({"type": "disabled"}, False, None, False),
        ({"type": "enabled", "budget_tokens": 49}, True, 49, True),
        ({"type": "enabled", "budget_tokens": 1, "display": "omitted"}, True, 1, False),
        ({"type": "adaptive"}, True, None, True),
        ({"type": "adaptive", "display": "summarized"}, True, None, True),
    ],
)
def test_thinking_is_reported_where_it_was_asked_for(thinking, enable, budget, is_told):
    body = body_of(thinking=thinking)
    assert body.chat_options.template_kwargs == {"enable_thinking": enable}
    assert (body.thinking_options.max_tokens, body.thinking_options.is_shown) == (budget, is_told)


@pytest.mark.parametrize("field", ["output_config", "output_format"])
def test_a_schema_by_either_name(field):
    given = {"type": "json_schema", "schema": SCHEMA}
    body = body_of(**{field: {"format": given} if field == "output_config" else given})
    assert json.loads(body.output_grammar.text) == SCHEMA


def test_effort_is_given_to_the_template():
    body = body_of(output_config={"effort": "low"}, thinking={"type": "adaptive"})
    assert body.chat_options.template_kwargs == {"reasoning_effort": "low", "enable_thinking": True}
