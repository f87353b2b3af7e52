"""What is wrong with a request for a response is said in OpenAI's shape, by this API's own names, and leaves
nothing behind."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from unittest import mock

import httpx
import pytest
from tests.server.response_shapes import events_of
from tests.waiting import until

from octavo.errors import EngineStopped, QueueFull
from octavo.server.dialects.responses import Lookup
from octavo.server.dialects.responses_request import CHAT_FIELDS, ResponsesBody
from octavo.server.dialects.responses_run import Document
from octavo.server.field_list import field_list
from octavo.server.openai_schema import ChatBody

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
OTHER = {"type": "function", "name": "g"}
RAW = {
    "not JSON": ("hello", None),
    "a list": ("[]", None),
    "nested 100,000 deep": ('{"input":' + "[" * 100_000 + "]" * 100_000 + "}", None),
    "nested 500 deep": ('{"input":' + "[" * 500 + "]" * 500 + "}", "input"),
    "half a surrogate pair": ('{"input": "\\ud83d"}', None),
    "NaN": ('{"input": "a", "temperature": NaN}', None),
}
# name: (fields beside or in place of the input, param, words)
CASES = {
    "no input": ({"input": None}, "input", "text, or a list"),
    "an input of no items": ({"input": []}, "input", "at least one item"),
    "an input of a wrong type": ({"input": 5}, "input", "text, or a list"),
    "more items than the context": ({"input": [USER] * 1001}, "input", "1,001 items"),
    "an item that is text": ({"input": ["hi"]}, "input", "input[0]"),
    "an item of an unknown type": ({"input": [{"type": "song"}]}, "input", "item_reference"),
    "a hosted call": ({"input": [{"type": "web_search_call", "id": "x"}]}, "input", "web_search_call"),
    "an unknown role": ({"input": [{"role": "tool", "content": "x"}]}, "input", "input[0].role"),
    "no content": ({"input": [USER, {"role": "user"}]}, "input", "input[1].content"),
    "a part that is text": ({"input": [{"role": "user", "content": ["x"]}]}, "input", "content[0]"),
    "a part of a chat": (
        {"input": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]},
        "input",
        "input_text, output_text, refusal",
    ),
    "an image": (
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://a"}]}]},
        "input",
        "input_image, which is not supported",
    ),
    "a file": (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "a"}]}]},
        "input",
        "input_file, which is not supported",
    ),
    "a part whose type is a list": (
        {"input": [{"role": "user", "content": [{"type": [], "text": "x"}]}]},
        "input",
        "content[0].type is []",
    ),
    "a part of an output whose type is an object": (
        {"input": [{"type": "function_call_output", "call_id": "1", "output": [{"type": {}}]}]},
        "input",
        "output[0].type is {}",
    ),
    "a type, a role and an id that are no text": (
        {"input": [{"type": "item_reference", "id": {}}, {"role": []}, {"type": []}]},
        "input",
        "input[0].id",
    ),
    "a role that is an object": ({"input": [{"role": {}, "content": "x"}]}, "input", "input[0].role"),
    "an item whose type is a list": ({"input": [{"type": []}]}, "input", "input[0].type is []"),
    "includes that are no text": ({"include": [{}, []]}, "include", "include holds {}"),
    "an effort that is a list": ({"reasoning": {"effort": []}}, "reasoning.effort", "effort is []"),
    "a format whose type is a list": ({"text": {"format": {"type": []}}}, "text.format", "text.format"),
    "a part without text": (
        {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
        "input",
        "content[0].text",
    ),
    "a call without a name": (
        {"input": [{"type": "function_call", "call_id": "1", "arguments": "{}"}]},
        "input",
        "input[0].name",
    ),
    "a call whose arguments are no text": (
        {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": {}}]},
        "input",
        "a string of JSON",
    ),
    "an output of no call": (
        {"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]},
        "input",
        "no function_call with the call_id '1'",
    ),
    "an output without call_id": (
        {"input": [{"type": "function_call_output", "output": "x"}]},
        "input",
        "input[0].call_id",
    ),
    "a call_id of 300 characters": (
        {"input": [{"type": "function_call_output", "call_id": "1" * 300, "output": "x"}]},
        "input",
        "1 to 256 characters",
    ),
    "thinking that is text": ({"input": [{"type": "reasoning", "summary": "x"}]}, "input", "summary"),
    "thinking of wrong parts": (
        {"input": [{"type": "reasoning", "summary": [], "content": [{"type": "text", "text": "x"}]}]},
        "input",
        "reasoning_text",
    ),
    "a reference to another server's item": (
        {"input": [{"type": "item_reference", "id": "msg_123"}]},
        "input",
        "ids of this server's items",
    ),
    "a reference to what is not stored": (
        {"input": [{"type": "item_reference", "id": "msg_" + "a" * 24 + "_0"}]},
        "input",
        "an item of a stored response",
    ),
    "instructions that are no text": ({"instructions": ["x"]}, "instructions", "string"),
    "an empty previous_response_id": ({"previous_response_id": ""}, "previous_response_id", "none of it"),
    "a temperature of 9": ({"temperature": 9}, "temperature", "temperature is 9"),
    "no tokens": ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
    "tokens as text": ({"max_output_tokens": "5"}, "max_output_tokens", "integer"),
    "text that is a string": ({"text": "json"}, "text", "dictionary"),
    "a format that is none": ({"text": {"format": {"type": "xml"}}}, "text.format", "json_schema"),
    "a schema without a name": (
        {"text": {"format": {"type": "json_schema", "schema": {}}}},
        "text.format.name",
        "1 to 64",
    ),
    "a format without a schema": (
        {"text": {"format": {"type": "json_schema", "name": "n"}}},
        "text.format.schema",
        "an object",
    ),
    "a strictness of a wrong type": (
        {"text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": "yes"}}},
        "text.format.strict",
        "true or false",
    ),
    "two formats": (
        {"text": {"format": {"type": "json_object"}}, "guided_regex": "a+"},
        "text.format and guided_regex",
        "given together",
    ),
    "an unknown effort": ({"reasoning": {"effort": "heroic"}}, "reasoning.effort", "minimal"),
    "an unknown summary": ({"reasoning": {"summary": "long"}}, "reasoning.summary", "concise"),
    "an unknown truncation": ({"truncation": "middle"}, "truncation", "auto, disabled"),
    "an unknown include": ({"include": ["everything"]}, "include", "message.output_text.logprobs"),
    "an include that is text": ({"include": "message.output_text.logprobs"}, "include", "a list"),
    "top_logprobs alone": ({"top_logprobs": 3}, "top_logprobs", "only allowed with include"),
    "21 top_logprobs": (
        {"top_logprobs": 21, "include": ["message.output_text.logprobs"]},
        "top_logprobs",
        "0 to 20",
    ),
    "17 pairs of metadata": ({"metadata": {str(i): "x" for i in range(17)}}, "metadata", "0 to 16"),
    "a long key of metadata": ({"metadata": {"k" * 65: "x"}}, "metadata", "up to 64"),
    "a long value of metadata": ({"metadata": {"k": "x" * 513}}, "metadata", "up to 512"),
    "a number in metadata": ({"metadata": {"k": 1}}, "metadata", "a string"),
    "a user of 600 characters": ({"user": "x" * 600}, "user", "0 to 512"),
    "stream_options without stream": (
        {"stream_options": {}, "stream": False},
        "stream_options",
        "when stream is true",
    ),
    "a hosted tool": ({"tools": [{"type": "file_search"}]}, "tools", "hosted tools"),
    "a custom tool without a name": ({"tools": [{"type": "custom"}]}, "tools", "name"),
    "a tool of a chat": (
        {"tools": [{"type": "function", "function": {"name": "f"}}]},
        "tools",
        "tools[0].name",
    ),
    "a tool that is text": ({"tools": ["f"]}, "tools", "tools[0]"),
    "two tools of one name": ({"tools": [TOOL, TOOL]}, "tools", "two functions named f"),
    "513 tools": ({"tools": [TOOL | {"name": f"f{i}"} for i in range(513)]}, "tools", "512"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
    "a choice of another tool": ({"tools": [TOOL], "tool_choice": OTHER}, "tool_choice", "allowed: f"),
    "a hosted choice": (
        {"tools": [TOOL], "tool_choice": {"type": "file_search"}},
        "tool_choice",
        "functions alone",
    ),
    "a choice of a chat": (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        "tool_choice",
        '"name"',
    ),
    "a salt for what is stored": ({"cache_salt": "x"}, "cache_salt", "store false"),
    "a number as model": ({"model": 5}, "model", "string"),
}
MADE_UP = {"asked": "for"}


def is_an_error(answer, param, words=""):
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert words in error["message"]
    return error


@pytest.mark.parametrize("name", CASES)
def test_what_is_wrong_is_said_and_leaves_nothing_behind(edge, name):
    fields, param, words = CASES[name]
    is_an_error(edge.post("/v1/responses", {"input": "hi", **fields}), param, words)
    is_an_error(edge.post("/v1/responses", {"input": "hi", "stream": True, **fields}), param, words)
    assert edge.model.sessions.responses.all() == []
    assert edge.model.submitted == []


@pytest.mark.parametrize("name", RAW)
def test_bodies_that_are_none_are_refused(edge, name):
    body, param = RAW[name]
    is_an_error(edge.request("POST", "/v1/responses", content=body), param)


def test_a_stream_runs_on_while_all_that_is_wrong_is_refused(edge):
    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            body = {"input": "hi", "stream": True}
            running = asyncio.ensure_future(client.post("/v1/responses", json=body))
            await until(lambda: edge.model.submitted)
            for fields, _, _ in CASES.values():
                answer = await client.post("/v1/responses", json={"input": "hi", **fields})
                assert 400 <= answer.status_code < 500
            assert not edge.model.submitted[0].cancelled
            edge.model.hold.set()
            return await running

    events = events_of(asyncio.run(scenario()))
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == "Hello wörld!"
    assert len(edge.model.submitted) == 1


@pytest.mark.parametrize("name", ["mirostat", "n_predict", "functions", "audio"])
def test_what_a_chat_refuses_is_refused_here_too(edge, name):
    assert is_an_error(edge.post("/v1/responses", {"input": "hi", name: MADE_UP}), name)["code"] == (
        "unsupported_parameter"
    )


def test_fields_of_a_chat_are_those_that_it_has_and_this_api_has_not():
    own = {
        *ResponsesBody.model_fields,
        *field_list(ResponsesBody).refused,
        *field_list(ResponsesBody).ignored,
    }
    assert set(CHAT_FIELDS) == set(ChatBody.model_fields) - own


def test_another_model_is_not_found(edge):
    answer = edge.post("/v1/responses", {"input": "hi", "model": "gpt-17"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("error, status", [(QueueFull("full"), 429), (EngineStopped("stops"), 503)])
def test_what_the_engine_refuses_leaves_nothing_behind(edge, error, status):
    edge.model.refusal = error
    for stream in (False, True):
        answer = edge.post("/v1/responses", {"input": "hi", "stream": stream})
        assert answer.status_code == status
    responses = edge.model.sessions.responses
    assert (responses.all(), len(responses.dropped)) == ([], 2)


def test_a_session_is_no_response_and_a_response_no_session(edge):
    session = edge.chat(session="new").json()["session"]["id"]
    answer = edge.post("/v1/responses", {"input": "hi", "previous_response_id": session})
    assert is_an_error(answer, "previous_response_id")["code"] == "previous_response_not_found"
    response = edge.post("/v1/responses", {"input": "hi"}).json()["id"]
    assert edge.chat(session=response).status_code == 404
    assert edge.get(f"/v1/sessions/{response}").status_code == 404
    headers = {"X-Octavo-Session": "new"}
    is_an_error(edge.post("/v1/responses", {"input": "hi"}, headers=headers), "session")


def test_one_that_runs_cannot_be_gone_on_from(edge):
    async def scenario():
        edge.model.hold = asyncio.Event()
        transport = httpx.ASGITransport(edge.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
            running = asyncio.ensure_future(client.post("/v1/responses", json={"input": "hi"}))
            await until(lambda: edge.model.submitted)
            [stored] = edge.model.sessions.responses.all()
            body = {"input": "more", "previous_response_id": stored.response_id}
            refused = await client.post("/v1/responses", json=body)
            edge.model.hold.set()
            await running
            return refused, await client.post("/v1/responses", json=body)

    refused, after = asyncio.run(scenario())
    assert refused.status_code == 409
    assert is_an_error(refused, "previous_response_id")["code"] == "session_busy"
    assert "is in progress; allowed: to go on from one that has ended" in refused.json()["error"]["message"]
    assert after.status_code == 200
    assert after.json()["status"] == "completed"


@pytest.mark.parametrize("store", [True, False])
def test_references_to_more_text_than_a_context_holds_are_refused_before_anything_is_made(edge, store):
    item = edge.post("/v1/responses", {"input": "a" * 900}).json()["id"].replace("resp_", "msg_") + "_0"
    responses = edge.model.sessions.responses
    encodings, stored = len(edge.model.encodings), responses.all()
    with mock.patch.object(responses, "create", side_effect=AssertionError("it is refused before")):
        body = {"input": [{"type": "item_reference", "id": item}] * 200, "store": store}
        error = is_an_error(edge.post("/v1/responses", body), "input", "characters; allowed: 128,000")
    assert (error["code"], responses.all()) == ("context_length_exceeded", stored)
    assert len(edge.model.encodings) == encodings


def test_what_was_said_before_counts_too(edge):
    with mock.patch("octavo.server.dialects.responses.DOCUMENTS_BYTES_MAX", 1000):
        first = edge.post("/v1/responses", {"input": "a" * 500}).json()
        body = {"input": "b" * 500, "previous_response_id": first["id"]}
        is_an_error(edge.post("/v1/responses", body), "input", "characters; allowed: 1,000")


def test_logprobs_of_an_item_that_is_referred_to_are_not_stored_again(edge):
    fields = {"include": ["message.output_text.logprobs"], "top_logprobs": 5}
    [item] = edge.post("/v1/responses", {"input": "one", **fields}).json()["output"]
    assert item["content"][0]["logprobs"]
    more = edge.post("/v1/responses", {"input": [{"id": item["id"]}, USER]}).json()
    [told, _] = edge.get(f"/v1/responses/{more['id']}/input_items?order=asc").json()["data"]
    assert told["content"] == [{"type": "output_text", "text": "Hello wörld!", "annotations": []}]


class Counted(dict):
    """An item that counts how often it is looked at."""

    looks = 0

    def __getitem__(self, key):
        Counted.looks += 1
        return super().__getitem__(key)


def test_each_stored_item_is_looked_at_a_few_times_however_many_refer_to_it(edge, monkeypatch):
    items = [Counted(id=f"msg_{'a' * 24}_{n}", type="message", content=[]) for n in range(300)]
    said = Document({"output": []}, items)
    monkeypatch.setattr("octavo.server.dialects.responses.parse_document", lambda document: said)
    monkeypatch.setattr(edge.model.sessions.responses, "find", lambda *of: b"")
    lookup = Lookup(SimpleNamespace(model=edge.model), "")
    Counted.looks = 0
    found = [lookup.item(item.get("id"), "input") for item in items for _ in range(3)]
    assert [item["id"] for item in found[::3]] == [item.get("id") for item in items]
    assert Counted.looks <= 5 * len(items)
