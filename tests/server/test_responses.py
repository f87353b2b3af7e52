"""POST /v1/responses over a double: what its fields mean, and what an answer is, whole and streamed."""

from __future__ import annotations

import json

import pytest
from tests.server.response_shapes import checked, events_of, rebuilt

from octavo.grammar import ThinkingState
from octavo.server.dialects.responses_items import messages_of
from octavo.tools.formats import HERMES
from octavo.types import ToolCall

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
NOW = {"type": "function", "name": "now"}
CALLS = [ToolCall("get_weather", '{"city": "Köln"}'), ToolCall("now", "{}")]
THOUGHT = "\nhm, so\n</think>\n\nYes."


def ask(edge, given="hi", **fields):
    answer = edge.post("/v1/responses", {"input": given, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def whole(edge, given="hi", **fields):
    return checked(ask(edge, given, **fields).json())


def streamed(edge, given="hi", **fields):
    return events_of(ask(edge, given, stream=True, **fields))


def text_of(response):
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def prompt_of(edge):
    return edge.model.encodings[-1].text


def without_ids(items):
    return [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in items]


def test_an_answer_has_the_client_s_own_shape_and_repeats_what_was_asked(edge):
    told = whole(edge, instructions="be brief", temperature=0.5, max_output_tokens=100, metadata={"a": "b"})
    assert told["id"].startswith("resp_")
    assert (told["status"], told["error"], told["incomplete_details"]) == ("completed", None, None)
    [message] = told["output"]
    assert (message["role"], message["content"][0]["text"]) == ("assistant", "Hello wörld!")
    assert (told["temperature"], told["max_output_tokens"], told["metadata"]) == (0.5, 100, {"a": "b"})
    assert told["instructions"] == "be brief"
    assert prompt_of(edge) == "system:be brief\nuser:hi\n"
    usage = told["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (24, 13, 37)
    assert usage["input_tokens_details"]["cached_tokens"] == 12


def test_the_events_of_a_stream_are_typed_numbered_and_join_to_the_whole(edge):
    events = streamed(edge)
    [message] = rebuilt(events)
    assert message["content"][0]["text"] == "Hello wörld!"
    last = checked(events[-1]["response"])
    assert events[-1]["type"] == "response.completed"
    assert (events[0]["response"]["status"], last["status"]) == ("in_progress", "completed")
    assert without_ids(last["output"]) == without_ids(whole(edge)["output"])


@pytest.mark.parametrize("before", ["", "I will look.\n"])
def test_calls_are_items_of_their_own_whole_and_streamed(edge, before):
    edge.model.answer = before + HERMES.written(CALLS)
    told = whole(edge, tools=[TOOL, NOW])
    calls = [item for item in told["output"] if item["type"] == "function_call"]
    assert [(call["name"], call["arguments"]) for call in calls] == [(c.name, c.arguments) for c in CALLS]
    assert len({call["call_id"] for call in calls} | {call["id"] for call in calls}) == 4
    assert text_of(told).strip() == before.strip()
    assert len(told["output"]) == 2 + bool(before)
    assert [(tool["name"], tool["strict"]) for tool in told["tools"]] == [
        ("get_weather", None),
        ("now", None),
    ]
    items = rebuilt(streamed(edge, tools=[TOOL, NOW]))
    assert without_ids(items) == without_ids(told["output"])


def test_an_answer_that_is_cut_is_incomplete_and_so_is_its_last_item(edge):
    told = whole(edge, max_output_tokens=5)
    assert (told["status"], told["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert (told["output"][0]["status"], text_of(told)) == ("incomplete", "Hello")
    edge.model.answer = HERMES.written(CALLS)
    events = streamed(edge, tools=[TOOL], max_output_tokens=60)
    assert events[-1]["type"] == "response.incomplete"
    [call] = rebuilt(events)
    assert (call["status"], call["name"]) == ("incomplete", "get_weather")
    assert call["arguments"].startswith('{"city"')


def test_what_was_thought_is_an_item_before_the_message(edge):
    edge.model.answers.thinks, edge.model.answer = True, THOUGHT
    edge.model.answers.thinking_state = lambda prompt: ThinkingState.INSIDE
    told = whole(edge, reasoning={"effort": "low", "summary": "auto"})
    thought, message = told["output"]
    assert (thought["type"], thought["summary"]) == ("reasoning", [])
    assert thought["content"] == [{"type": "reasoning_text", "text": "hm, so"}]
    assert message["content"][0]["text"] == "Yes."
    assert told["reasoning"] == {"effort": "low", "summary": "auto"}
    assert edge.model.encodings[-1].options.template_kwargs == {"reasoning_effort": "low"}
    num_thought = told["usage"]["output_tokens_details"]["reasoning_tokens"]
    assert len("hm, so") <= num_thought <= len(THOUGHT) - len("Yes.")
    assert without_ids(rebuilt(streamed(edge))) == without_ids(told["output"])


def test_logprobs_are_reported_where_include_asks_for_them(edge):
    told = whole(edge, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = told["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(one["bytes"]) for one in logprobs).decode() == "Hello wörld!"
    assert {len(one["top_logprobs"]) for one in logprobs} == {2}
    events = streamed(edge, include=["message.output_text.logprobs"], top_logprobs=2)
    assert rebuilt(events)[0]["content"][0]["logprobs"] == logprobs
    assert whole(edge)["output"][0]["content"][0]["logprobs"] == []


def test_formats_lead_the_answer_and_are_reported_again(edge):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    form = {"type": "json_schema", "name": "n", "schema": schema, "strict": True}
    told = whole(edge, text={"format": form, "verbosity": "medium"})
    assert told["text"]["format"] | form == told["text"]["format"]
    assert json.loads(edge.model.submitted[-1].params.grammar.text) == schema
    whole(edge, text={"format": {"type": "json_object"}})
    assert edge.model.submitted[-1].params.grammar is not None
    whole(edge, text={"format": {"type": "text"}})
    assert edge.model.submitted[-1].params.grammar is None


def test_tools_are_given_to_the_template_and_choices_lead_the_answer(edge):
    def grammar(choice, **fields):
        whole(edge, tools=[TOOL, NOW], tool_choice=choice, **fields)
        return edge.model.submitted[-1].params.grammar

    assert grammar("none") is None
    assert edge.model.encodings[-1].options.tools[1] == {"type": "function", "function": {"name": "now"}}
    assert grammar("auto").triggers == ("<tool_call>",)
    assert grammar("required").triggers == ()
    assert "{0,15}" not in grammar("required", parallel_tool_calls=False).text
    named = grammar({"type": "function", "name": "now"})
    assert "get_weather" not in named.text
    allowed = grammar({"type": "allowed_tools", "mode": "required", "tools": [NOW]})
    assert ("get_weather" in allowed.text, "now" in allowed.text) == (False, True)


def test_what_samples_a_chat_samples_a_response(edge):
    whole(edge, seed=7, top_k=3, min_p=0.1, top_p=0.5, stop=["!"], presence_penalty=1.0, ignore_eos=True)
    params = edge.model.submitted[-1].params
    assert (params.seed, params.top_k, params.min_p, params.top_p) == (7, 3, 0.1, 0.5)
    assert (params.stop, params.presence_penalty, params.ignore_eos) == (("!",), 1.0, True)


def test_items_become_the_messages_of_a_template(edge):
    items = [
        {"role": "developer", "content": "short"},
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}],
        },
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {
            "type": "message",
            "role": "assistant",
            "status": "completed",
            "content": [
                {"type": "output_text", "text": "c", "annotations": []},
                {"type": "refusal", "refusal": "d"},
            ],
        },
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}", "id": "fc_1"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "2", "output": "e"},
        {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "f"}]},
        {"role": "assistant", "content": "g"},
        {"role": "assistant", "content": "h"},
        {"role": "user", "content": "i"},
    ]
    whole(edge, items)
    wanted = "system:short\nuser:ab\nassistant:cd\ntool:e\ntool:f\nassistant:g\nassistant:h\nuser:i\n"
    assert prompt_of(edge) == wanted


def test_thinking_and_calls_of_one_answer_are_one_message(edge):
    told = [
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "hm"}], "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a"}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call", "call_id": "2", "name": "g", "arguments": ""},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
        {"type": "function_call_output", "call_id": "1", "output": "x"},
        {"type": "reasoning", "content": [], "summary": [{"type": "summary_text", "text": "so"}]},
        {"type": "function_call", "call_id": "3", "name": "f", "arguments": "{}"},
    ]
    first, tool, second = messages_of(told, None)
    assert (first.content, first.reasoning, first.tool_calls) == (
        "ab",
        "hm",
        (ToolCall("f", "{}", "1"), ToolCall("g", "{}", "2")),
    )
    assert (tool.role, tool.content, tool.tool_call_id) == ("tool", "x", "1")
    assert (second.content, second.reasoning, second.tool_calls) == (
        "",
        "so",
        (ToolCall("f", "{}", "3"),),
    )


def test_a_response_goes_on_from_another_and_inherits_no_instructions(edge):
    first = whole(edge, "one", instructions="be brief")
    second = whole(edge, "two", previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert prompt_of(edge) == "user:one\nassistant:Hello wörld!\nuser:two\n"
    assert "do not extend" in second["usage"]["fallback"]
    third = whole(edge, "three", previous_response_id=second["id"])
    assert "fallback" not in third["usage"]
    assert third["usage"]["reused_tokens"] == second["usage"]["input_tokens"]
    assert prompt_of(edge).count("assistant:") == 2


def test_calls_are_answered_by_going_on_from_them(edge):
    edge.model.answer = HERMES.written(CALLS[1:])
    first = whole(edge, "what time", tools=[NOW])
    [call] = first["output"]
    edge.model.answer = "noon"
    output = {"type": "function_call_output", "call_id": call["call_id"], "output": "12:00"}
    second = whole(edge, [output], previous_response_id=first["id"], tools=[NOW])
    assert text_of(second) == "noon"
    assert prompt_of(edge) == "user:what time\nassistant:\ntool:12:00\n"


def test_an_item_is_referred_to_by_its_id(edge):
    first = whole(edge, "one")
    reference = {"type": "item_reference", "id": first["output"][0]["id"]}
    whole(edge, [reference, {"role": "user", "content": "two"}])
    assert prompt_of(edge) == "assistant:Hello wörld!\nuser:two\n"
    whole(edge, [{"id": first["id"].replace("resp_", "msg_") + "_0"}], store=False)
    assert prompt_of(edge) == "user:one\n"


def test_without_store_nothing_is_kept(edge):
    first = whole(edge, "one")
    for fields in ({}, {"previous_response_id": first["id"]}):
        told = whole(edge, "two", store=False, **fields)
        assert told["store"] is False
        assert edge.get(f"/v1/responses/{told['id']}").status_code == 404
        assert streamed(edge, "two", store=False, **fields)[-1]["type"] == "response.completed"
    assert [one.response_id for one in edge.model.sessions.responses.all()] == [first["id"]]
    assert told["usage"]["reused_tokens"] == first["usage"]["input_tokens"]
    assert "session" not in edge.post("/v1/responses", {"input": "x"}).headers


@pytest.mark.parametrize("max_output", [None, 400])
def test_truncation_leaves_out_the_oldest_messages_with_few_renderings(edge, max_output):
    items = [{"role": "developer", "content": "stay"}]
    for turn in range(40):
        items += [
            {"role": "user", "content": f"q{turn:02}" + "." * 40},
            {"role": "assistant", "content": "a" * 20},
        ]
    items.append({"role": "user", "content": "last"})
    refused = edge.post("/v1/responses", {"input": items})
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    before = len(edge.model.encodings)
    told = whole(edge, items, truncation="auto", **({"max_output_tokens": max_output} if max_output else {}))
    assert len(edge.model.encodings) - before <= 8
    prompt, room = prompt_of(edge), 1000 - (max_output or 125)
    assert prompt.startswith("system:stay\nuser:q")
    assert prompt.endswith("user:last\n")
    assert room - len("user:q00\nassistant:\n") - 60 <= len(prompt) <= room, (
        "one turn more would not have fitted"
    )
    assert told["truncation"] == "auto"


def test_truncation_refuses_what_does_not_fit_alone(edge):
    answer = edge.post("/v1/responses", {"input": "x" * 2000, "truncation": "auto"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
    assert edge.model.sessions.responses.all() == []


def test_a_response_that_fails_says_so_in_its_status_and_keeps_nothing_else_from_running(edge):
    edge.model.failure = "its logits were NaN"
    answer = edge.post("/v1/responses", {"input": "hi"})
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "its logits were NaN")
    [stored] = edge.model.sessions.responses.all()
    failed = checked(edge.get(f"/v1/responses/{stored.response_id}").json())
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": "server_error", "message": "its logits were NaN"}
    events = streamed(edge)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["message"] == "its logits were NaN"
    edge.model.failure = ""
    assert whole(edge, "again", previous_response_id=stored.response_id)["status"] == "completed"


def test_a_response_whose_time_is_over_has_failed_and_keeps_what_it_said(edge):
    edge.model.times_out_after = 3
    told = whole(edge, timeout=1.0)
    assert (told["status"], text_of(told)) == ("failed", "Hel")
    assert "timeout passed" in told["error"]["message"]


def test_an_empty_answer_is_an_empty_message(edge):
    told = whole(edge, stop=["H"])
    assert [item["type"] for item in told["output"]] == ["message"]
    assert text_of(told) == ""


def test_fields_that_change_no_answer_are_let_through(edge):
    told = whole(
        edge,
        user="u",
        safety_identifier="s",
        prompt_cache_key="k",
        service_tier="auto",
        max_tool_calls=3,
        background=False,
        include=["reasoning.encrypted_content"],
        reasoning=None,
        text=None,
        tools=[],
        tool_choice="auto",
        made_up={"by": "a client"},
    )
    assert (told["user"], told["safety_identifier"], told["prompt_cache_key"]) == ("u", "s", "k")
    streamed(edge, stream_options={"include_obfuscation": True})
