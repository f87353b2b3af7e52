"""Every kind of wrong request to Anthropic's routes gets a 4xx in its shape, quickly, while others go on."""

import asyncio
import json

import httpx
import pytest
from tests.waiting import until

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = {"role": "user", "content": "hi"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}
CALL = {"type": "tool_use", "id": "t1", "name": "f", "input": {}}


def body(**fields):
    return json.dumps({"max_tokens": 50, "messages": [HI], **fields})


def messages(*items):
    return body(messages=list(items))


def user(*blocks):
    return messages({"role": "user", "content": list(blocks)})


def assistant(*blocks):
    return messages(HI, {"role": "assistant", "content": list(blocks)}, HI)


def nested(depth):
    return json.loads("[" * depth + "]" * depth)


# name: (raw body, what the message names)
PROMPTS = {
    "not JSON": ("hello", "JSON"),
    "an empty body": ("", "JSON"),
    "a list": ("[]", "JSON"),
    "not UTF-8": (b'{"messages": "\xff\xfe"}', "UTF-8"),
    "half a surrogate pair": ('{"system": "\\ud83d"}', "surrogate"),
    "nested 100,000 deep": ('{"messages":' + "[" * 100_000 + "]" * 100_000 + "}", "nested"),
    "a model of a wrong type": (body(model=5), "model"),
    "no messages": ('{"max_tokens": 5}', "messages"),
    "empty messages": (messages(), "messages"),
    "messages of a wrong type": (body(messages="hi"), "messages"),
    "a message that is a string": (messages("hi"), "messages[0]"),
    "an unknown role": (messages({"role": "tool", "content": "x"}), "messages[0].role"),
    "a role that is nested": (messages({"role": nested(800), "content": "x"}), "messages[0].role"),
    "no content": (messages({"role": "user"}), "messages[0].content"),
    "empty content": (user(), "messages[0].content"),
    "content that is a number": (messages({"role": "user", "content": 7}), "messages[0].content"),
    "a block that is a string": (user("hi"), "messages[0].content[0]"),
    "a block without a type": (user({"text": "hi"}), "messages[0].content[0]"),
    "an image": (user({"type": "image", "source": {}}), "messages[0].content[0].type is 'image'"),
    "a document": (user({"type": "document", "source": {}}), "'document'"),
    "a search result": (user({"type": "search_result", "content": []}), "'search_result'"),
    "a text that is a number": (user({"type": "text", "text": 7}), "messages[0].content[0].text"),
    "thinking of a user": (user({"type": "thinking", "thinking": "a"}), "'thinking'"),
    "a result of no call": (user({"type": "tool_result", "tool_use_id": "x"}), "tool_use_id is 'x'"),
    "a result without an id": (user({"type": "tool_result"}), "tool_use_id"),
    "a result with audio": (
        messages(
            {"role": "assistant", "content": [CALL]},
            {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "audio"}]}],
            },
        ),
        "messages[1].content[0].content[0].type is 'audio'",
    ),
    "an error that is a word": (
        messages(
            {"role": "assistant", "content": [CALL]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "is_error": "yes"}]},
        ),
        "is_error",
    ),
    "a call whose input is text": (assistant(CALL | {"input": "{}"}), "messages[1].content[0].input"),
    "a call whose input is nested 900 deep": (assistant(CALL | {"input": {"a": nested(900)}}), "nested"),
    "a call without a name": (assistant({"type": "tool_use", "id": "t1", "input": {}}), ".name"),
    "a call of a hosted tool": (assistant(CALL | {"type": "server_tool_use"}), "'server_tool_use'"),
    "two hundred calls": (assistant(*[CALL] * 200), "128"),
    "a chat that ends with a call": (messages(HI, {"role": "assistant", "content": [CALL]}), "tool_use"),
    "a chat that ends with thinking": (
        messages(HI, {"role": "assistant", "content": [{"type": "thinking", "thinking": "a"}]}),
        "thinking alone",
    ),
    "nothing but an empty beginning": (
        messages({"role": "assistant", "content": ""}),
        "messages[0] is empty",
    ),
    "a system that is a number": (body(system=7), "system"),
    "a system with an image": (body(system=[{"type": "image"}]), "system[0].type is 'image'"),
    "more messages than the context": (messages(*[HI] * 1001), "prompt is too long"),
    "more blocks than the context": (user(*[{"type": "text", "text": ""}] * 1001), "prompt is too long"),
    "a text beyond the context": (user({"type": "text", "text": "a" * 20_000}), "prompt is too long"),
    "tools that are an object": (body(tools={}), "tools"),
    "a hosted tool": (body(tools=[{"type": "web_search_20250305", "name": "web_search"}]), "tools[0].type"),
    "a shell": (body(tools=[{"type": "bash_20250124", "name": "bash"}]), "'bash_20250124'"),
    "a tool without a schema": (body(tools=[{"name": "f"}]), "tools[0].input_schema"),
    "a tool with an odd name": (body(tools=[TOOL | {"name": "a b"}]), "tools[0].name"),
    "a tool without a name": (body(tools=[{"input_schema": {}}]), "tools[0].name"),
    "a description that is a number": (body(tools=[TOOL | {"description": 7}]), "tools[0].description"),
    "strict that is a word": (body(tools=[TOOL | {"strict": "yes"}]), "tools[0].strict"),
    "two tools of one name": (body(tools=[TOOL, TOOL]), "two functions named f"),
    "a schema nested 900 deep": (body(tools=[TOOL | {"input_schema": {"a": nested(900)}}]), "nested"),
    "many tools": (body(tools=[TOOL] * 513), "number of tools"),
    "a choice that is a word": (body(tools=[TOOL], tool_choice="any"), "tool_choice"),
    "an unknown choice": (body(tools=[TOOL], tool_choice={"type": "required"}), "tool_choice"),
    "a choice of no tool": (
        body(tools=[TOOL], tool_choice={"type": "tool", "name": "g"}),
        "tool_choice.name",
    ),
    "a choice without tools": (body(tool_choice={"type": "any"}), "there are no tools"),
    "parallel that is a word": (
        body(tools=[TOOL], tool_choice={"type": "auto", "disable_parallel_tool_use": "no"}),
        "disable_parallel_tool_use",
    ),
    "thinking that is true": (body(thinking=True), "thinking"),
    "an unknown thinking": (body(thinking={"type": "between_tools"}), "thinking.type"),
    "thinking without a budget": (body(thinking={"type": "enabled"}), "thinking.budget_tokens"),
    "a budget of true": (body(thinking={"type": "enabled", "budget_tokens": True}), "thinking.budget_tokens"),
    "thinking displayed oddly": (body(thinking={"type": "adaptive", "display": "loud"}), "thinking.display"),
    "an unknown effort": (body(output_config={"effort": "none"}), "output_config.effort"),
    "an output_config that is a list": (body(output_config=[]), "output_config"),
    "a format without a schema": (
        body(output_config={"format": {"type": "json_schema"}}),
        "output_config.format",
    ),
    "a format of text": (body(output_format={"type": "text"}), "output_format"),
    "two formats": (
        body(
            output_format={"type": "json_schema", "schema": {}},
            output_config={"format": {"type": "json_schema", "schema": {}}},
        ),
        "output_format and output_config.format",
    ),
    "a format that nothing follows": (
        body(output_config={"format": {"type": "json_schema", "schema": False}}),
        "output_config.format",
    ),
    "MCP servers": (body(mcp_servers=[{"url": "http://a"}]), "mcp_servers"),
    "a container": (body(container="c1"), "container"),
}
ANSWERS = {
    "no max_tokens": ('{"messages": [{"role": "user", "content": "hi"}]}', "max_tokens is missing"),
    "max_tokens of zero": (body(max_tokens=0), "max_tokens"),
    "max_tokens of a million digits": ('{"max_tokens": ' + "9" * 4000 + "}", "max_tokens"),
    "max_tokens with a fraction": (body(max_tokens=1.5), "max_tokens"),
    "a temperature above 1": (body(temperature=1.1), "temperature"),
    "a negative temperature": (body(temperature=-0.1), "temperature"),
    "a temperature beyond float64": ('{"max_tokens": 5, "temperature": 1e999}', "temperature"),
    "a top_p below zero": (body(top_p=-0.1), "top_p"),
    "a top_k below -1": (body(top_k=-2), "top_k"),
    "a stream of a word": (body(stream="yes"), "stream"),
    "a stop sequence that is a string": (body(stop_sequences="a"), "stop_sequences"),
    "an empty stop sequence": (body(stop_sequences=[""]), "stop_sequences[0]"),
    "a long stop sequence": (body(stop_sequences=["a", "b" * 257]), "stop_sequences[1]"),
    "many stop sequences": (body(stop_sequences=["a"] * 17), "stop_sequences"),
    "a stop sequence that is a number": (body(stop_sequences=[7]), "stop_sequences"),
    "a budget as large as max_tokens": (
        body(thinking={"type": "enabled", "budget_tokens": 50}),
        "thinking.budget_tokens",
    ),
}
CASES = {f"{path} {name}": (path, *case) for path in (MESSAGES, COUNT) for name, case in PROMPTS.items()}
CASES |= {f"{MESSAGES} {name}": (MESSAGES, *case) for name, case in ANSWERS.items()}


def check_refusal(answer, names, status=400, kind="invalid_request_error"):
    assert answer.status_code == status, answer.text
    told = answer.json()
    assert set(told) == {"type", "error", "request_id"}
    assert set(told["error"]) == {"type", "message"}
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert 10 < len(told["error"]["message"]) < 700
    assert names in told["error"]["message"]
    assert answer.headers["request-id"] == told["request_id"]


@pytest.mark.parametrize("name", CASES)
def test_wrong_input_is_refused_in_anthropics_shape(edge, name):
    path, raw, names = CASES[name]
    answer = edge.request("POST", path, content=raw)
    check_refusal(answer, names)
    assert edge.model.submitted == []


def test_other_statuses_have_anthropics_shape_too(edge):
    for path in (MESSAGES, COUNT):
        answer = edge.request("POST", path, content=body(model="gpt-17"))
        check_refusal(answer, "gpt-17", 404, "not_found_error")
        answer = edge.request("POST", path, content=" " * 400_001)
        check_refusal(answer, "400,000 bytes", 413, "request_too_large")


def test_a_stream_goes_on_unharmed_alongside_every_wrong_request(edge):
    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            stream = asyncio.create_task(client.post(MESSAGES, content=body(stream=True)))
            await until(lambda: edge.model.submitted)
            for path, raw, names in CASES.values():
                check_refusal(await client.post(path, content=raw), names)
            assert not stream.done()
            edge.model.hold.set()
            return await stream

    answer = asyncio.run(scenario())
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    events = [json.loads(line) for line in lines]
    pieces = [event["delta"].get("text", "") for event in events if event["type"] == "content_block_delta"]
    assert "".join(pieces) == "Hello wörld!"
    assert events[-1] == {"type": "message_stop"}
    assert [stream.cancelled for stream in edge.model.submitted] == [False]


def test_there_are_at_least_forty_kinds_of_wrong_input():
    assert len(PROMPTS) + len(ANSWERS) >= 40
