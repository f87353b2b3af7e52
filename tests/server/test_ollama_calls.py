"""/api/chat of a model that calls functions or thinks: both in Ollama's shapes."""

import json
import re

import pytest
from tests.server.ollama_asking import CALLS, HI, NOW, TOOL, chat, generate, lines, params, whole

from octavo.grammar import Thinking
from octavo.server.dialects.ollama_answer import PartReader
from octavo.tools.events import ArgumentsText, CallStart, Content
from octavo.tools.formats import HERMES, MISTRAL


# -- calls ---------------------------------------------------------------------------------------------------
def functions(calls):
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


@pytest.mark.parametrize("before", ["", "I will look.\n"])
def test_calls_come_whole_with_an_object_of_arguments(edge, before):
    edge.model.answer = before + HERMES.written(CALLS)
    said = whole(chat(edge, tools=[TOOL, NOW], stream=False))
    expected = [("get_weather", {"city": "Köln"}), ("now", {})]
    assert (said["done_reason"], said["message"]["content"]) == ("stop", before.strip())
    assert functions(said["message"]["tool_calls"]) == expected
    assert [call["function"]["index"] for call in said["message"]["tool_calls"]] == [0, 1]
    pieces = lines(chat(edge, tools=[TOOL, NOW]))
    calls = [call for piece in pieces for call in piece["message"].get("tool_calls", [])]
    assert functions(calls) == expected
    assert len({call["id"] for call in calls}) == 2
    assert "".join(piece["message"]["content"] for piece in pieces) == before.strip()


def test_a_call_is_reported_before_the_next_has_ended(edge):
    edge.model.answer = HERMES.written(CALLS)
    pieces = lines(chat(edge, tools=[TOOL, NOW]))
    told = [place for place, piece in enumerate(pieces) if "tool_calls" in piece["message"]]
    assert len(told) == 2


def test_ids_of_calls_are_those_that_the_models_template_wants(edge):
    edge.model.answers.form, edge.model.answer = MISTRAL, MISTRAL.written(CALLS[:1])
    [call] = whole(chat(edge, tools=[TOOL], stream=False))["message"]["tool_calls"]
    assert re.fullmatch(r"[A-Za-z0-9]{9}", call["id"])


def test_a_call_that_is_cut_is_text_whole_and_streamed(edge):
    edge.model.answer = "Look:\n" + HERMES.written(CALLS[:1])
    options = {"num_predict": edge.model.answer.encode().index("Köln".encode()) + 2}
    said = whole(chat(edge, tools=[TOOL], stream=False, options=options))
    assert said["done_reason"] == "length"
    assert "tool_calls" not in said["message"]
    assert said["message"]["content"].startswith('Look:{"name": "get_weather", "arguments": {"city": "K')
    pieces = lines(chat(edge, tools=[TOOL], options=options))
    assert "".join(piece["message"]["content"] for piece in pieces) == said["message"]["content"]
    assert not [piece for piece in pieces if "tool_calls" in piece["message"]]


@pytest.mark.parametrize(
    "arguments", ['{"a": 1e999}', '{"a": "\\ud83d"}', '{"a": NaN}', "[1]", '{"a": ' + "9" * 5000 + "}", ""]
)
def test_arguments_that_json_cannot_say_again_are_text(arguments):
    reader = PartReader(None)
    said = reader.push([Content("So "), CallStart(0, "f"), ArgumentsText(0, arguments)], is_last=False)
    assert (said.content, said.calls) == ("So ", ())
    said = reader.push([Content("and")], is_last=True)
    assert (said.content, said.calls) == ('and{"name": "f", "arguments": ' + arguments, ())


def test_calls_and_their_results_are_given_to_the_model_with_ids_that_match(edge):
    told = []

    async def encode_chat(messages, options, *, tenant=""):
        told.extend(messages)
        return [1]

    edge.model.encode_chat = encode_chat
    function = {"name": "get_weather", "arguments": {"city": "Köln", "days": [1, 2]}}
    chat(
        edge,
        messages=[
            {"role": "USER", "content": "hi"},
            {
                "role": "assistant",
                "thinking": "hm",
                "tool_calls": [
                    {"function": function},
                    {"function": {"name": "now"}},
                    {"id": "own", "function": {"name": "now"}},
                ],
            },
            {"role": "tool", "content": "later", "tool_name": "now"},
            {"role": "tool", "content": "sunny"},
            {"role": "tool", "content": "soon", "tool_call_id": "own"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "now", "arguments": None}}]},
            {"role": "tool", "content": "again"},
            {"role": "tool", "content": "of nobody"},
        ],
    )  # fmt: skip
    assert [message.role for message in told] == [
        "user",
        "assistant",
        *["tool"] * 3,
        "assistant",
        "tool",
        "tool",
    ]
    first, second, own = told[1].tool_calls
    assert (json.loads(first.arguments), second.arguments) == (function["arguments"], "{}")
    assert told[1].reasoning == "hm"
    assert len({first.call_id, second.call_id, own.call_id}) == 3
    assert [message.tool_call_id for message in told[2:5]] == [second.call_id, first.call_id, "own"]
    assert told[2].name == "now"
    assert told[6].tool_call_id == told[5].tool_calls[0].call_id
    assert told[6].tool_call_id not in {first.call_id, second.call_id}
    assert told[7].tool_call_id == ""


def test_a_last_message_of_the_assistant_is_gone_on_with(edge):
    chat(edge, messages=[*HI, {"role": "assistant", "content": "Well, "}])
    assert edge.model.encodings[-1].options.continue_final_message
    assert edge.model.encodings[-1].text.endswith("assistant:Well, ")
    for last in ({"content": ""}, {"content": "a", "tool_calls": [{"function": {"name": "f"}}]}):
        chat(edge, messages=[*HI, {"role": "assistant", **last}])
        assert not edge.model.encodings[-1].options.continue_final_message


# -- thinking ------------------------------------------------------------------------------------------------
def test_thinking_is_reported_alongside_the_answer_whole_and_streamed(edge):
    edge.model.answers.thinks, edge.model.answer = True, "<think>\nhm, so\n</think>\n\nYes."
    said = whole(chat(edge, think=True, stream=False))["message"]
    assert said == {"role": "assistant", "content": "Yes.", "thinking": "hm, so"}
    pieces = [piece["message"] for piece in lines(chat(edge, think=True))]
    assert "".join(piece.get("thinking", "") for piece in pieces) == "hm, so"
    assert "".join(piece["content"] for piece in pieces) == "Yes."
    made = whole(generate(edge, stream=False))
    assert (made["response"], made["thinking"]) == ("Yes.", "hm, so")
    raw = whole(generate(edge, raw=True, stream=False))
    assert (raw["response"], "thinking" in raw) == (edge.model.answer, False)


@pytest.mark.parametrize(
    "think, told",
    [
        (None, {}),
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("low", {"enable_thinking": True, "reasoning_effort": "low"}),
        ("max", {"enable_thinking": True, "reasoning_effort": "max"}),
    ],
)
def test_how_to_think_is_given_to_the_template(edge, think, told):
    edge.model.answers.thinks = True
    for ask in (chat, generate):
        ask(edge, think=think)
        assert edge.model.encodings[-1].options.template_kwargs == told


def test_a_format_holds_for_what_comes_behind_the_thinking(edge):
    edge.model.answers.thinks = True
    chat(edge, format="json")
    assert params(edge).thinking == Thinking(None, None)


def test_a_model_that_does_not_think_is_not_asked_to(edge):
    for ask in (chat, generate):
        refused = ask(edge, think=True)
        assert (refused.status_code, "does not support thinking" in refused.json()["error"]) == (400, True)
        assert ask(edge, think=False).status_code == 200
