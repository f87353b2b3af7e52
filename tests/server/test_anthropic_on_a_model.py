"""Anthropic's routes over the default model and real blocks, beside the same chats in OpenAI's words."""

import json

import pytest
from tests.server.conftest import Edge

from octavo.config import StartOptions
from octavo.server.settings import ServerSettings
from octavo.serving.start import start_engine

pytestmark = pytest.mark.real_model

CONTEXT = 512
QUESTION = {"role": "user", "content": "How many days are in a week?"}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "get_weather", "description": "The weather in a city", "strict": True, "input_schema": SCHEMA}
FUNCTION = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": SCHEMA,
        "strict": True,
    },
}


@pytest.fixture(scope="module")
def house():
    options = StartOptions(
        context_length=CONTEXT, kv_memory_bytes=96 * 360 * 1024, max_seqs=4, step_tokens=128
    )
    llm = start_engine(None, options, lambda text: None)
    yield Edge(llm, ServerSettings())
    llm.close()


def ask(house, path="/v1/messages", **fields):
    answer = house.post(path, {"max_tokens": 40, "temperature": 0, "messages": [QUESTION]} | fields)
    assert answer.status_code == 200, answer.text
    return answer


def prompt_of(message):
    usage = message["usage"]
    return usage["input_tokens"] + usage["cache_read_input_tokens"]


def test_a_chat_is_answered_as_in_openais_words(house):
    message = ask(house, system="Be brief.").json()
    same = [{"role": "system", "content": "Be brief."}, QUESTION]
    other = ask(house, "/v1/chat/completions", messages=same).json()
    assert message["content"] == [{"type": "text", "text": other["choices"][0]["message"]["content"]}]
    assert prompt_of(message) == other["usage"]["prompt_tokens"]
    assert message["usage"]["output_tokens"] == other["usage"]["completion_tokens"]
    events = [
        json.loads(line.removeprefix("data: "))
        for line in ask(house, system="Be brief.", stream=True).text.splitlines()
        if line.startswith("data: ")
    ]
    text = "".join(e["delta"]["text"] for e in events if e["type"] == "content_block_delta")
    assert text == message["content"][0]["text"]
    assert events[-2]["usage"]["output_tokens"] == message["usage"]["output_tokens"]


def test_a_call_and_its_result_are_reported_and_counted_as_in_openais_words(house):
    weather = {"role": "user", "content": "What is the weather in Paris?"}
    one = {"tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 200}
    called = ask(house, messages=[weather], tools=[TOOL], **one).json()
    assert called["stop_reason"] == "tool_use"
    call = called["content"][0]
    assert (call["name"], set(call["input"])) == ("get_weather", {"city"})
    result = {"type": "tool_result", "tool_use_id": call["id"], "content": "22 degrees"}
    history = {
        "tools": [TOOL],
        "messages": [
            weather,
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [result, {"type": "text", "text": "In one word?"}]},
        ],
    }
    answer = ask(house, tool_choice={"type": "none"}, **history).json()
    function = {"name": call["name"], "arguments": json.dumps(call["input"])}
    same = {
        "tools": [FUNCTION],
        "messages": [
            weather,
            {
                "role": "assistant",
                "tool_calls": [{"id": call["id"], "type": "function", "function": function}],
            },
            {"role": "tool", "tool_call_id": call["id"], "name": call["name"], "content": "22 degrees"},
            {"role": "user", "content": "In one word?"},
        ],
    }
    other = ask(house, "/v1/chat/completions", tool_choice="none", **same).json()
    assert answer["content"] == [{"type": "text", "text": other["choices"][0]["message"]["content"]}]
    assert prompt_of(answer) == other["usage"]["prompt_tokens"]
    counted = house.post("/v1/messages/count_tokens", history).json()["input_tokens"]
    assert counted == prompt_of(answer) == len(house.post("/tokenize", same).json()["tokens"])


def test_a_beginning_is_gone_on_with_as_if_the_model_had_written_it(house):
    whole = ask(house).json()["content"][0]["text"]
    begun = whole[: whole.index(" ", len(whole) // 2)]
    messages = [QUESTION, {"role": "assistant", "content": begun}]
    assert begun + ask(house, messages=messages).json()["content"][0]["text"] == whole


def test_what_was_computed_before_is_reported_as_read_from_the_cache(house):
    words = {"role": "user", "content": "Tell me of rivers. " * 20}
    first = ask(house, messages=[words]).json()
    assert first["usage"]["cache_creation_input_tokens"] == 0
    after = ask(house, messages=[words, {"role": "assistant", "content": first["content"]}, QUESTION]).json()
    assert after["usage"]["cache_read_input_tokens"] >= prompt_of(first) - 16
    assert after["usage"]["input_tokens"] < 80


def test_a_structured_output_follows_its_schema(house):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    message = ask(house, output_config=form).json()
    assert set(json.loads(message["content"][0]["text"])) == {"city"}


def test_an_answer_that_meets_the_end_of_the_context_says_so(house):
    words = [{"role": "user", "content": "word " * 400}]
    endless = {"type": "array", "items": {"type": "integer"}, "minItems": 1000}
    form = {"format": {"type": "json_schema", "schema": endless}}
    message = ask(house, messages=words, output_config=form, max_tokens=32_000).json()
    assert message["stop_reason"] == "model_context_window_exceeded"
    assert prompt_of(message) + message["usage"]["output_tokens"] == CONTEXT
    refused = house.post(
        "/v1/messages", {"max_tokens": 5, "messages": [{"role": "user", "content": "a " * 600}]}
    )
    assert refused.json()["error"]["message"].startswith("prompt is too long: ")
