"""Tools and thinking over HTTP, in OpenAI's shapes: what the fields mean, and what an answer becomes."""

from __future__ import annotations

import json

import pytest

from octavo.grammar import ThinkingState
from octavo.tools.formats import FORMATS, HERMES, MISTRAL
from octavo.types import ToolCall

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
NOW = {"type": "function", "function": {"name": "now"}}
CALLS = [ToolCall("get_weather", '{"city": "Köln"}'), ToolCall("now", "{}")]


def joined(body):
    """The deltas of a stream as one message, and the finish reason."""
    message, calls, finish = {"content": ""}, [], None
    for line in body.decode().splitlines():
        if not line.startswith("data: {"):
            continue
        [choice] = json.loads(line[6:])["choices"]
        finish = choice["finish_reason"] or finish
        for name, value in choice["delta"].items():
            if name != "tool_calls":
                message[name] = message.get(name, "") + value
                continue
            for call in value:
                if "id" in call:
                    assert call["index"] == len(calls)
                    calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
                else:
                    calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return message | ({"tool_calls": calls} if calls else {}), finish


def functions(message):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in message["tool_calls"]]


@pytest.mark.parametrize("before", ["", "I will look.\n"])
def test_calls_are_reported_whole_and_as_deltas_that_join_to_the_same(edge, before):
    edge.model.answer = before + HERMES.written(CALLS)
    whole = edge.chat(tools=[TOOL, NOW]).json()["choices"][0]
    assert whole["finish_reason"] == "tool_calls"
    assert whole["message"]["content"] == (before.strip() or None)
    assert functions(whole["message"]) == [(call.name, call.arguments) for call in CALLS]
    assert all(call["id"].startswith("call_") for call in whole["message"]["tool_calls"])
    message, finish = joined(edge.chat(tools=[TOOL, NOW], stream=True).content)
    assert finish == "tool_calls"
    assert message["content"] == before.strip()
    assert functions(message) == functions(whole["message"])


def test_a_call_that_is_cut_says_length(edge):
    edge.model.answer = HERMES.written(CALLS)
    [choice] = edge.chat(tools=[TOOL], max_tokens=60).json()["choices"]
    assert choice["finish_reason"] == "length"
    [(name, arguments)] = functions(choice["message"])
    assert name == "get_weather"
    assert CALLS[0].arguments.startswith(arguments)
    assert arguments.startswith('{"city"')


def test_ids_are_as_long_as_the_template_wants_them(edge):
    edge.model.answers.form = MISTRAL
    edge.model.answer = MISTRAL.written(CALLS)
    calls = edge.chat(tools=[TOOL]).json()["choices"][0]["message"]["tool_calls"]
    assert [len(call["id"]) for call in calls] == [9, 9]


def test_ids_are_the_calls_themselves_where_the_template_writes_them(edge):
    edge.model.answers.form = FORMATS["kimi_k2"]
    edge.model.answer = FORMATS["kimi_k2"].written(CALLS)
    calls = edge.chat(tools=[TOOL]).json()["choices"][0]["message"]["tool_calls"]
    assert [call["id"] for call in calls] == [f"functions.{c.name}:{n}" for n, c in enumerate(CALLS)]


def test_arguments_without_quotes_are_of_the_types_that_the_schema_says(edge):
    form = edge.model.answers.form = FORMATS["qwen3_coder"]
    properties = {"zip": {"type": "string"}, "days": {"type": ["integer", "null"]}, "any": {}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}
    edge.model.answer = form.written([ToolCall("f", '{"zip": "00501", "days": 3, "any": [1], "more": "x"}')])
    whole = edge.chat(tools=[tool]).json()["choices"][0]["message"]
    [(_, arguments)] = functions(whole)
    assert json.loads(arguments) == {"zip": "00501", "days": 3, "any": [1], "more": "x"}


def test_without_tools_or_with_choice_none_calls_are_text(edge):
    edge.model.answer = text = HERMES.written(CALLS)
    assert edge.chat().json()["choices"][0]["message"]["content"] == text
    answer = edge.chat(tools=[TOOL], tool_choice="none").json()["choices"][0]
    assert (answer["message"]["content"], answer["finish_reason"]) == (text, "stop")
    assert edge.model.submitted[-1].params.banned_sequences[0] == tuple(b"<tool_call>")
    assert edge.model.submitted[-1].params.grammar is None


def test_what_leads_the_answer(edge):
    def grammar(**fields):
        assert edge.chat(tools=[TOOL, NOW], **fields).status_code == 200
        return edge.model.submitted[-1].params.grammar

    lazy = grammar()
    assert lazy.triggers == ("<tool_call>",)
    required = grammar(tool_choice="required")
    assert required.triggers == ()
    assert "get_weather" in required.text
    assert "now" in required.text
    named = grammar(tool_choice={"type": "function", "function": {"name": "now"}})
    assert "get_weather" not in named.text
    one = grammar(tool_choice="required", parallel_tool_calls=False)
    assert ["{0,15}" in made.text for made in (required, one, named)] == [True, False, False]
    either = grammar(response_format={"type": "json_object"})
    assert either.triggers == ()
    assert "content: %json" in either.text
    calls = grammar(response_format={"type": "json_object"}, tool_choice="required")
    assert "content: %json" not in calls.text


def test_the_template_gets_the_tools_and_how_to_think(edge):
    edge.chat(tools=[TOOL], reasoning_effort="low", chat_template_kwargs={"x": 1})
    assert edge.model.encodings[-1].options.tools == (TOOL,)
    assert edge.model.encodings[-1].options.template_kwargs == {"reasoning_effort": "low", "x": 1}
    edge.chat(reasoning_effort="none")
    assert edge.model.encodings[-1].options.template_kwargs == {
        "reasoning_effort": "none",
        "enable_thinking": False,
    }
    edge.chat(enable_thinking=True)
    assert edge.model.encodings[-1].options.template_kwargs == {"enable_thinking": True}


@pytest.mark.parametrize(
    ("fields", "param", "says"),
    [
        ({"tools": [{"type": "function"}]}, "tools", "tools[0]"),
        ({"tools": [TOOL], "tool_choice": "x"}, "tool_choice", "required"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [TOOL], "guided_regex": "a+"}, "guided_regex", "tool_choice none or required"),
        ({"tools": [TOOL], "tool_choice": "required", "use_beam_search": True}, "grammar", "beam search"),
        ({"max_thinking_tokens": -2}, "max_thinking_tokens", "-1 for none"),
        ({"max_thinking_tokens": 1, "thinking_token_budget": 2}, "max_thinking_tokens and", "differ"),
        ({"reasoning_format": "x"}, "reasoning_format", "none, auto"),
    ],
)
def test_what_cannot_be_done_is_said(edge, fields, param, says):
    answer = edge.chat(**fields)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith(param)
    assert says in answer.json()["error"]["message"]
    assert edge.model.submitted == []


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ([{"id": "1", "function": {"name": "f"}}], "messages[0].tool_calls[0]"),
        ([{"id": "1", "function": {"name": "f", "arguments": {}}}], "arguments a string of JSON"),
        ("x", "messages[0].tool_calls"),
        ([1] * 200, "up to 128"),
    ],
)
def test_calls_in_messages_that_are_none_are_refused(edge, calls, says):
    message = {"role": "assistant", "content": None, "tool_calls": calls}
    answer = edge.post("/v1/chat/completions", {"messages": [message]})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


def test_calls_and_results_of_earlier_turns_are_taken(edge):
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "1", "content": [{"type": "text", "text": "12 C"}]},
    ]
    assert edge.post("/v1/chat/completions", {"messages": messages}).status_code == 200


THOUGHT = "\nhm, so\n</think>\n\nYes."


@pytest.mark.parametrize(
    ("fields", "thought", "content"),
    [
        ({}, "hm, so", "Yes."),
        ({"include_reasoning": False}, None, "Yes."),
        ({"separate_reasoning": False}, None, THOUGHT),
        ({"reasoning_format": "none"}, None, THOUGHT),
        ({"tools": [TOOL]}, "hm, so", "Yes."),
    ],
)
def test_thinking_is_distinguished_whole_and_streamed(edge, fields, thought, content):
    edge.model.answers.thinks, edge.model.answer = True, THOUGHT
    edge.model.answers.thinking_state = lambda prompt: ThinkingState.INSIDE
    message = edge.chat(**fields).json()["choices"][0]["message"]
    assert (message.get("reasoning_content"), message["content"]) == (thought, content)
    assert message.get("reasoning") == thought
    streamed, _ = joined(edge.chat(**fields, stream=True).content)
    assert (streamed.get("reasoning_content"), streamed["content"]) == (thought, content)


def test_a_budget_and_a_grammar_are_given_to_the_engine_of_a_model_that_thinks(edge):
    edge.model.answers.thinks = True
    edge.chat(max_thinking_tokens=7)
    assert edge.model.submitted[-1].params.thinking.max_tokens == 7
    edge.chat(thinking_token_budget=-1)
    assert edge.model.submitted[-1].params.thinking is None
    edge.chat(response_format={"type": "json_object"}, reasoning_budget_tokens=3)
    assert edge.model.submitted[-1].params.thinking.max_tokens == 3
    edge.model.answers.thinks = False
    edge.chat(max_thinking_tokens=7)
    assert edge.model.submitted[-1].params.thinking is None


def test_tokens_of_tools_can_be_counted(edge):
    messages = [{"role": "user", "content": "hi"}]
    assert edge.post("/tokenize", {"messages": messages, "tools": [TOOL]}).status_code == 200
    assert edge.model.encodings[-1].options.tools == (TOOL,)
