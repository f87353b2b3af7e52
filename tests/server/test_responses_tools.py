"""Tools of the Responses API that are no plain functions: custom ones, namespaces, and those left out."""

from __future__ import annotations

import json

import pytest
from test_responses import rebuilt, streamed, whole, without_ids

from octavo.tools.formats import HERMES
from octavo.types import ToolCall

PATCH = '*** Begin Patch\n+ "quoted" \\ \u00fc\n*** End Patch'
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": 'start: "x"'},
}
READ = {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}}
SPACE = {"type": "namespace", "name": "mcp__files", "description": "Files", "tools": [READ]}


def test_a_custom_tool_is_a_function_of_one_string_and_its_call_comes_back_as_its_own(edge):
    call = ToolCall("apply_patch", json.dumps({"input": PATCH}))
    edge.model.answer = HERMES.written([call])
    told = whole(edge, tools=[CUSTOM])
    [item] = told["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "apply_patch", PATCH)
    assert item["id"].startswith("ctc_")
    assert told["tools"] == [CUSTOM]
    [function] = [tool["function"] for tool in edge.model.encodings[-1].options.tools]
    assert list(function["parameters"]["properties"]) == ["input"]
    assert 'start: "x"' in json.dumps(function["parameters"]["properties"]).encode().decode("unicode-escape")
    events = streamed(edge, tools=[CUSTOM])
    kinds = [event["type"] for event in events if "custom_tool_call_input" in event["type"]]
    assert kinds == [f"response.custom_tool_call_input.{kind}" for kind in ("delta", "done")]
    assert without_ids([events[-1]["response"]["output"][0]]) == without_ids([item])


def test_a_custom_call_that_is_cut_has_what_came(edge):
    edge.model.answer = HERMES.written([ToolCall("apply_patch", '{"input": "abcdef"}')])
    cut = edge.model.answer.index("def")
    [item] = whole(edge, tools=[CUSTOM], max_output_tokens=cut)["output"]
    assert item["status"] == "incomplete"
    assert item["input"] == "abc"


def test_custom_calls_and_their_outputs_are_taken_as_input(edge):
    history = [
        {"role": "user", "content": "Edit."},
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": PATCH},
        {
            "type": "custom_tool_call_output",
            "call_id": "c1",
            "output": [
                {"type": "input_text", "text": "ok "},
                {"type": "input_image", "image_url": "data:,"},
            ],
        },
    ]
    whole(edge, input=history)
    user, called, result = edge.model.chats[-1]
    assert (user.content, called.tool_calls[0].name) == ("Edit.", "apply_patch")
    assert json.loads(called.tool_calls[0].arguments) == {"input": PATCH}
    assert result.content == "ok [An image was here. It cannot be shown: only text is read.]"


def test_functions_of_a_namespace_are_offered_with_both_names_and_distinguished_again(edge):
    edge.model.answer = HERMES.written([ToolCall("mcp__files__read", "{}")])
    told = whole(edge, tools=[SPACE])
    [item] = told["output"]
    assert (item["type"], item["namespace"], item["name"]) == ("function_call", "mcp__files", "read")
    assert [tool["function"]["name"] for tool in edge.model.encodings[-1].options.tools] == [
        "mcp__files__read"
    ]
    assert rebuilt(streamed(edge, tools=[SPACE]))[0]["namespace"] == "mcp__files"
    output = {"type": "function_call_output", "call_id": item["call_id"], "output": "ok"}
    whole(edge, previous_response_id=told["id"], input=[output])
    assert edge.model.chats[-1][1].tool_calls[0].name == "mcp__files__read"


@pytest.mark.parametrize("kind", ["web_search", "tool_search", "local_shell", "image_generation"])
def test_what_agents_offer_alongside_is_left_out_and_named(edge, kind):
    told = whole(edge, tools=[{**READ}, {"type": kind}], metadata={"a": "b"})
    assert told["metadata"] == {"a": "b", "tools_left_out": kind}
    assert [tool["name"] for tool in told["tools"]] == ["read"]
    assert whole(edge, tools=[READ], metadata={"a": "b"})["metadata"] == {"a": "b"}
