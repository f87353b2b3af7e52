"""POST /v1/messages over HTTP, in Anthropic's shapes: whole, streamed, counted; errors; who may ask."""

import json

import pytest
from tests.server.conftest import Edge

from octavo.errors import EngineStopped, QueueFull
from octavo.grammar import ThinkingState
from octavo.server.dialects.anthropic_answer import input_of
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of
from octavo.tools.formats import HERMES, MISTRAL
from octavo.types import ToolCall

MESSAGES, COUNT = "/v1/messages", "/v1/messages/count_tokens"
HI = [{"role": "user", "content": "hi"}]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"name": "get_weather", "input_schema": SCHEMA}, {"name": "now", "input_schema": {}}]
CALLS = [ToolCall("get_weather", '{"city": "Köln"}'), ToolCall("now", "{}")]
THINKS = {"thinking": {"type": "enabled", "budget_tokens": 90}}
USAGE = {"input_tokens": 4, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4}


def ask(edge, **fields):
    answer = edge.post(MESSAGES, {"max_tokens": 200, "messages": HI, **fields})
    assert answer.status_code == 200, answer.text
    return answer


def events_of(answer):
    """The events of a stream; each is named by its type."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = []
    for block in answer.text.split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


def joined(events):
    """The message that the events of a stream make, put together as Anthropic's documentation says."""
    assert [event["type"] for event in events[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in events[-2:]] == ["message_delta", "message_stop"]
    message, is_open = events[0]["message"], False
    assert (message["content"], message["stop_reason"]) == ([], None)
    for event in events[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(message["content"])
                message["content"].append(dict(event["content_block"]))
                is_open, pieces = True, ""
            case "content_block_delta":
                assert is_open
                [(kind, more)] = [item for item in event["delta"].items() if item[0] != "type"]
                if kind == "partial_json":
                    assert event["delta"]["type"] == "input_json_delta"
                    pieces += more
                else:
                    assert event["delta"]["type"] == f"{kind}_delta"
                    message["content"][-1][kind] += more
            case "content_block_stop":
                is_open = False
                if message["content"][-1]["type"] == "tool_use":
                    message["content"][-1]["input"] = json.loads(pieces)
    assert not is_open
    return message | events[-2]["delta"] | {"usage": message["usage"] | events[-2]["usage"]}


def without_ids(message):
    content = [{name: value for name, value in block.items() if name != "id"} for block in message["content"]]
    return message | {"id": None, "content": content}


def both(edge, **fields):
    """The whole message, which is what the streamed one joins to."""
    whole = ask(edge, **fields).json()
    assert without_ids(joined(events_of(ask(edge, stream=True, **fields)))) == without_ids(whole)
    return whole


# -- shapes --------------------------------------------------------------------------------------------------
def test_a_message_has_anthropics_shape(edge):
    message = both(edge, model="fake-model")
    assert message.pop("id").startswith("msg_")
    assert message == {
        "type": "message",
        "role": "assistant",
        "model": "fake-model",
        "content": [{"type": "text", "text": "Hello wörld!"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": USAGE | {"output_tokens": 13},
    }


def test_an_answer_without_text_has_no_block(edge):
    edge.model.answer = " "
    assert both(edge, stop_sequences=["l"])["content"] == [{"type": "text", "text": " "}]
    edge.model.answers.thinks, edge.model.answer = True, "hm"
    edge.model.answers.thinking_state = lambda prompt: ThinkingState.INSIDE
    assert both(edge)["content"] == []


@pytest.mark.parametrize(
    ("fields", "reason", "stop"),
    [
        ({}, "end_turn", None),
        ({"max_tokens": 3}, "max_tokens", None),
        ({"stop_sequences": ["x", "wö"]}, "stop_sequence", "wö"),
    ],
)
def test_stop_reasons(edge, fields, reason, stop):
    message = both(edge, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, stop)


def test_an_answer_ends_with_the_context_where_max_tokens_is_more(edge):
    edge.model.answer = "x" * 40
    assert both(edge, max_tokens=100_000)["stop_reason"] == "end_turn"
    edge.model.answer = "x" * 1000
    assert both(edge, max_tokens=100_000)["stop_reason"] == "model_context_window_exceeded"
    assert both(edge, max_tokens=900)["stop_reason"] == "max_tokens"
    answer = ask(edge, max_tokens=993)
    assert answer.headers["X-Octavo-Max-Tokens-Cut-To"] == "992"
    assert answer.json()["usage"]["max_tokens_cut_to"] == 992


def test_a_deadline_pauses_the_turn_and_what_was_made_stands(edge):
    edge.model.times_out_after = 5
    message = both(edge)
    assert (message["stop_reason"], message["content"][0]["text"]) == ("pause_turn", "Hello")


# -- tools, thinking -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("before", ["", "I will look.\n"])
def test_calls_are_blocks_behind_the_text(edge, before):
    edge.model.answer = before + HERMES.written(CALLS)
    message = both(edge, tools=TOOLS)
    assert message["stop_reason"] == "tool_use"
    *said, first, second = message["content"]
    assert said == ([{"type": "text", "text": before.strip()}] if before else [])
    assert first.pop("id").startswith("toolu_")
    assert first == {"type": "tool_use", "name": "get_weather", "input": {"city": "Köln"}}
    assert (second["name"], second["input"]) == ("now", {})


def test_ids_of_calls_are_as_long_as_the_template_wants_them(edge):
    edge.model.answers.form = MISTRAL
    edge.model.answer = MISTRAL.written(CALLS)
    assert [len(block["id"]) for block in both(edge, tools=TOOLS)["content"]] == [9, 9]


def test_a_call_that_is_cut_has_what_was_complete(edge):
    call = HERMES.written([ToolCall("get_weather", '{"city": "Köln", "days": [1, 2, 3]}')])
    edge.model.answer = call
    message = ask(edge, tools=TOOLS, max_tokens=call.encode().index(b", 3]")).json()
    assert message["stop_reason"] == "max_tokens"
    assert [block["input"] for block in message["content"]] == [{"city": "Köln", "days": [1, 2]}]


def test_a_stop_sequence_within_a_call_is_no_use_of_a_tool(edge):
    edge.model.answer = HERMES.written(CALLS)
    message = ask(edge, tools=TOOLS, stop_sequences=["Köln"]).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("stop_sequence", "Köln")
    assert [(block["name"], block["input"]) for block in message["content"]] == [("get_weather", {})]


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ('{"a": 1}', {"a": 1}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": 1, "b": "cut', {"a": 1}),
        ("", {}),
        ("{", {}),
        ("[1, 2]", {}),
        ('{"a" 3}', {}),
        ('{"a": NaN}', {}),
        ('{"a": 1e999}', {}),
        ('{"a": "\\ud83d"}', {}),
        ('{"a": ' + "[" * 5000, {}),
    ],
)
def test_arguments_that_are_no_object_are_reported_as_an_empty_one(arguments, found):
    assert input_of(arguments) == found


def test_without_tools_or_with_choice_none_calls_are_text_of_a_message(edge):
    edge.model.answer = text = HERMES.written(CALLS)
    assert both(edge)["content"] == [{"type": "text", "text": text}]
    message = both(edge, tools=TOOLS, tool_choice={"type": "none"})
    assert (message["content"], message["stop_reason"]) == ([{"type": "text", "text": text}], "end_turn")


def test_choices_of_tools_and_schemas_lead_the_answer(edge):
    ask(edge, tools=TOOLS, tool_choice={"type": "tool", "name": "now"})
    grammar = edge.model.submitted[-1].params.grammar
    assert (grammar.triggers, "get_weather" in grammar.text) == ((), False)
    ask(edge, output_config={"format": {"type": "json_schema", "schema": SCHEMA}})
    assert json.loads(edge.model.submitted[-1].params.grammar.text) == SCHEMA


def test_thinking_is_a_signed_block_before_the_text_where_it_was_asked_for(edge):
    edge.model.answers.thinks, edge.model.answer = True, "\nhm, so\n</think>\n\nYes." + HERMES.written(CALLS)
    edge.model.answers.thinking_state = lambda prompt: ThinkingState.INSIDE
    thought, said, *calls = both(edge, tools=TOOLS, **THINKS)["content"]
    assert thought == {"type": "thinking", "thinking": "hm, so", "signature": "unsigned"}
    assert said == {"type": "text", "text": "Yes."}
    assert [call["name"] for call in calls] == ["get_weather", "now"]
    assert edge.model.submitted[-1].params.thinking.max_tokens == 90
    assert [block["type"] for block in both(edge)["content"]] == ["text"]


def test_a_beginning_is_gone_on_with(edge):
    messages = [*HI, {"role": "assistant", "content": "The answer is ("}]
    both(edge, messages=messages)
    assert bytes(edge.model.submitted[-1].prompt).endswith(b"assistant:The answer is (")
    assert edge.model.encodings[-1].options.continue_final_message


def test_what_is_asked_of_the_sampler_reaches_it(edge):
    ask(edge, temperature=0.5, top_p=0.25, top_k=7, stop_sequences=["a", "b"], max_tokens=9)
    params = edge.model.submitted[-1].params
    assert (params.temperature, params.top_p, params.top_k, params.max_tokens) == (0.5, 0.25, 7, 9)
    assert params.stop == ("a", "b")
    ask(edge)
    assert edge.model.submitted[-1].params.temperature == 1.0


# -- counting, models ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"system": "Be brief.", "tools": TOOLS, **THINKS},
        {"messages": [*HI, {"role": "assistant", "content": "The answer"}]},
        {"output_config": {"effort": "low"}, "tools": TOOLS, "tool_choice": {"type": "any"}},
    ],
)
def test_tokens_are_counted_as_the_prompt_of_the_same_request_has_them(edge, fields):
    usage = ask(edge, **fields).json()["usage"]
    encoded = edge.model.encodings[-1]
    told = edge.post(COUNT, {"messages": HI, "model": "fake-model", **fields}).json()
    assert told == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"]}
    assert edge.model.encodings[-1] == encoded
    assert len(edge.model.submitted) == 1


def test_models_are_listed_for_anthropics_clients_too(edge):
    listed = edge.get("/v1/models").json()
    assert (listed["has_more"], listed["first_id"], listed["last_id"]) == (False, "fake-model", "fake-model")
    shown = edge.get("/v1/models/fake-model").json()
    assert (shown["type"], shown["display_name"]) == ("model", "fake-model")
    assert shown["created_at"].endswith("Z")
    assert shown["max_input_tokens"] == 1000


# -- errors, keys --------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("refusal", "status", "kind"),
    [
        (QueueFull("1,024 requests are waiting"), 429, "rate_limit_error"),
        (EngineStopped("the engine is draining"), 503, "overloaded_error"),
        (ZeroDivisionError("secret"), 500, "api_error"),
    ],
)
def test_errors_name_their_type_and_their_request(edge, refusal, status, kind):
    edge.model.refusal = refusal
    answer = edge.post(MESSAGES, {"max_tokens": 5, "messages": HI}, headers={"X-Request-Id": "mine-1"})
    assert answer.status_code == status
    assert answer.headers["request-id"] == "mine-1"
    body = answer.json()
    assert (body["type"], body["error"]["type"], body["request_id"]) == ("error", kind, "mine-1")
    assert "secret" not in answer.text


def test_a_stream_that_fails_ends_with_an_error_event(edge):
    edge.model.failure = "its logits were NaN"
    events = events_of(ask(edge, stream=True))
    assert events[0]["type"] == "message_start"
    assert (events[-1]["type"], events[-1]["error"]["type"]) == ("error", "api_error")
    assert "NaN" in events[-1]["error"]["message"]
    assert events[-1]["request_id"].startswith("req-")
    assert "message_stop" not in [event["type"] for event in events]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", MESSAGES, 405), ("POST", "/v1/messages/batches", 404)]
)
def test_what_is_no_route_of_its_has_anthropics_shape_too(edge, method, path, status):
    answer = edge.request(method, path)
    assert (answer.status_code, answer.json()["type"]) == (status, "error")


def test_a_stored_thread_is_refused_so_that_the_sdk_sends_all_messages(edge):
    error = edge.post(MESSAGES, {"max_tokens": 5, "messages": HI, "thread": {"type": "new"}}).json()["error"]
    assert error["details"] == {"error_code": "thread_unsupported_request"}


def test_a_session_is_refused_by_the_name_of_its_header(edge):
    answer = edge.post(MESSAGES, {"max_tokens": 5, "messages": HI}, headers={"X-Octavo-Session": "new"})
    assert answer.status_code == 400
    assert "X-Octavo-Session" in answer.json()["error"]["message"]


def test_a_key_opens_messages_by_either_header(make_edge):
    edge = make_edge(api_keys=("a-key-of-mine",))
    for path in (MESSAGES, COUNT):
        body = {"max_tokens": 5, "messages": HI}
        refused = edge.post(path, body, headers={"x-api-key": "another"})
        assert (refused.status_code, refused.json()["error"]["type"]) == (401, "authentication_error")
        for headers in ({"x-api-key": "a-key-of-mine"}, {"Authorization": "Bearer a-key-of-mine"}):
            assert edge.post(path, body, headers=headers).status_code == 200


def test_a_message_is_its_tenants(model, tmp_path):
    roster = tmp_path / "tenants.toml"
    roster.write_text(f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("octavo-alice").hex()}"\n')
    house = Edge(model, ServerSettings(roster=TenantRegistry(roster)))
    body, headers = {"max_tokens": 5, "messages": HI}, {"x-api-key": "octavo-alice"}
    assert house.post(MESSAGES, body, headers=headers).status_code == 200
    assert house.post(COUNT, body, headers=headers).status_code == 200
    assert [one.tenant for one in house.model.encodings] == ["alice", "alice"]
    assert house.model.submitted[0].tenant == "alice"
    forbidden = house.get("/v1/messages/all", headers=headers)
    assert (forbidden.status_code, forbidden.json()["error"]["type"]) == (403, "permission_error")
