"""The render routes: tokens and parameters of generation, in vLLM's shape, and generation's errors."""

import pytest
from tests.engine.served import LetterTokenizer, serve_tiny
from tests.server.conftest import Edge
from tests.server.tenants import ALICE, NOBODY, TENANTS, by
from tests.text.families import FAMILIES
from tests.tiny import VOCAB

from octavo.server.app import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.text.chat import ChatTemplate

COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
HI = {"messages": [{"role": "user", "content": "hi"}]}
KEYS = {
    "request_id", "token_ids", "token_offsets", "features", "content_parts", "sampling_params", "model",
    "reasoning_ended", "reasoning_parser_kwargs", "return_token_ids", "output_mode", "parse_context",
    "stream", "stream_options", "cache_salt", "priority", "kv_transfer_params", "ec_transfer_params",
}  # fmt: skip
TOOL = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "number"}}}},
}


class TemplateTokenizer(LetterTokenizer):
    """A token for each byte, and a chat template."""

    infill = None

    def __init__(self, source):
        self.chat_template = ChatTemplate(source, "<s>", "</s>")

    def encode(self, text, add_bos=True):
        return [2 + byte % (VOCAB - 2) for byte in text.encode()]

    def close(self):
        self.chat_template.close()


# -- the tokens are those of generation ----------------------------------------------------------------------
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_rendered_tokens_are_those_that_generation_counts(family):
    served = serve_tiny(tokenizer=TemplateTokenizer(family.template), rows=1)
    edge = Edge(served.llm, ServerSettings())
    try:
        for fields in ({}, {"tools": [TOOL], "tool_choice": "none"}, {"add_generation_prompt": False}):
            if "tools" in fields and family.calls is None:
                continue
            body = {**HI, **fields}
            rendered = edge.post(f"{CHAT}/render", body)
            answer = edge.post(CHAT, {**body, "max_tokens": 1, "return_token_ids": True})
            if fields and rendered.status_code != 200:  # the template refuses it, or it is too long, for both
                assert (rendered.status_code, rendered.json()) == (answer.status_code, answer.json())
                continue
            tokens = rendered.json()["token_ids"]
            assert tokens == answer.json()["prompt_token_ids"]
            assert len(tokens) == answer.json()["usage"]["prompt_tokens"]
    finally:
        served.llm.close()


def test_prompts_of_a_completion_are_an_array_in_their_order(edge, model):
    rendered = edge.post(f"{COMPLETION}/render", {"prompt": ["hi", "you"]}).json()
    assert [bytes(one["token_ids"]) for one in rendered] == [b"hi", b"you"]
    assert [one["request_id"][-2:] for one in rendered] == ["-0", "-1"]
    assert [set(one) for one in rendered] == [KEYS, KEYS]
    assert model.submitted == []
    edge.post(COMPLETION, {"prompt": ["hi", "you"]})
    assert [list(stream.prompt) for stream in model.submitted] == [one["token_ids"] for one in rendered]


def test_a_chat_is_one_object(edge, model):
    rendered = edge.post(f"{CHAT}/render", HI, headers={"X-Request-Id": "mine"}).json()
    assert set(rendered) == KEYS
    assert (rendered["request_id"], rendered["model"]) == ("chatcmpl-mine", "fake-model")
    assert rendered["output_mode"] == "tokens"
    edge.post(CHAT, HI)
    assert list(model.submitted[0].prompt) == rendered["token_ids"]


# -- parameters, by vLLM's names -----------------------------------------------------------------------------
def test_parameters_with_their_default_are_left_out_but_max_tokens(edge):
    [one] = edge.post(f"{COMPLETION}/render", {"prompt": "hi", "top_k": -1, "temperature": 1}).json()
    assert one["sampling_params"] == {"max_tokens": 16}
    assert edge.post(f"{CHAT}/render", HI).json()["sampling_params"] == {
        "max_tokens": 1000 - len("user:hi\n")
    }


def test_parameters_have_vllms_names(edge):
    fields = {
        "n": 2, "max_tokens": 5000, "temperature": 0.5, "stop": "x", "stop_token_ids": [7], "seed": 3,
        "include_stop_str_in_output": True, "skip_special_tokens": False, "bad_words": ["no"], "logprobs": 2,
        "logit_bias": {"5": -1.0}, "allowed_token_ids": [1, 2], "repeat_penalty": 1.5, "ignore_eos": True,
    }  # fmt: skip
    [one] = edge.post(f"{COMPLETION}/render", {"prompt": "hi", **fields}).json()
    assert one["sampling_params"] == {
        **{name: value for name, value in fields.items() if name != "repeat_penalty"},
        "max_tokens": 998, "repetition_penalty": 1.5, "stop": ["x"],
    }  # fmt: skip


@pytest.mark.parametrize(
    "fields, structured",
    [
        ({"response_format": {"type": "json_object"}}, {"json": {"type": "object"}}),
        ({"guided_regex": "a+"}, {"regex": "a+"}),
        ({"grammar": 'root ::= "a"'}, {"grammar": 'root ::= "a"'}),
    ],
)
def test_what_the_output_follows_is_reported(edge, fields, structured):
    assert edge.post(f"{CHAT}/render", {**HI, **fields}).json()["sampling_params"]["structured_outputs"] == (
        structured
    )


def test_what_reads_the_answer_gets_what_it_needs(edge, model):
    fields = {"tools": [TOOL], "chat_template_kwargs": {"a": 1}, "include_reasoning": False}
    told = edge.post(f"{CHAT}/render", {**HI, **fields}).json()
    assert told["parse_context"] == {
        "tools": [TOOL],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "include_reasoning": False,
        "chat_template_kwargs": {"a": 1},
        "history_tool_call_cnt": 0,
    }
    assert told["reasoning_ended"] is None
    model.answers.thinks = True
    assert edge.post(f"{CHAT}/render", HI).json()["reasoning_ended"] is False
    closed = {"messages": [*HI["messages"], {"role": "assistant", "content": "<think>a</think>"}]}
    told = edge.post(f"{CHAT}/render", {**closed, "continue_final_message": True}).json()
    assert told["reasoning_ended"] is True


def test_terms_of_the_request_are_reported(edge):
    fields = {
        "priority": 3,
        "cache_salt": "pepper",
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    told = edge.post(f"{CHAT}/render", {**HI, **fields}).json()
    assert {name: told[name] for name in fields} == fields


# -- errors, keys and tenants are those of the route ---------------------------------------------------------
@pytest.mark.parametrize(
    "path, fields",
    [
        (COMPLETION, {}),
        (COMPLETION, {"prompt": ""}),
        (COMPLETION, {"prompt": [300]}),
        (COMPLETION, {"prompt": "a" * 1000}),
        (COMPLETION, {"prompt": "a" * 20_000}),
        (COMPLETION, {"prompt": ["a"] * 257}),
        (COMPLETION, {"prompt": "hi", "max_tokens": 0}),
        (COMPLETION, {"prompt": "hi", "temperature": 3}),
        (COMPLETION, {"prompt": "hi", "model": "gpt-17"}),
        (COMPLETION, {"prompt": "hi", "suffix": "b"}),
        (COMPLETION, {"prompt": "hi", "stream_options": {}}),
        (COMPLETION, {"prompt": "hi", "best_of": 65}),
        (COMPLETION, {"prompt": "hi", "typical_p": 0.5}),
        (CHAT, {}),
        (CHAT, {**HI, "messages": []}),
        (CHAT, {**HI, "messages": [{"role": "robot", "content": "a"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "a" * 1000}]}),
        (CHAT, {**HI, "n": 0}),
        (CHAT, {**HI, "model": "gpt-17"}),
        (CHAT, {**HI, "top_logprobs": 1}),
        (CHAT, {**HI, "tools": 3}),
        (CHAT, {**HI, "tool_choice": "required"}),
        (CHAT, {**HI, "cache_salt": ""}),
        (CHAT, {**HI, "response_format": {"type": "xml"}}),
        (CHAT, {**HI, "continue_final_message": True, "add_generation_prompt": True}),
        (CHAT, {**HI, "logit_bias": {str(token): 1 for token in range(20_000)}}),  # another process reads it
    ],
)
def test_what_the_route_refuses_is_refused_in_the_same_words(edge, path, fields):
    wanted, found = edge.post(path, fields), edge.post(f"{path}/render", fields)
    assert wanted.status_code in (400, 404)
    assert (found.status_code, found.json()) == (wanted.status_code, wanted.json())


def test_what_only_a_real_model_refuses_is_refused_in_the_same_words():
    served = serve_tiny()
    edge = Edge(served.llm, ServerSettings())
    try:
        for fields in ({"prompt": "a" * 512}, {"prompt": "a", "guided_regex": "a"}, {"prompt": [97]}):
            wanted, found = edge.post(COMPLETION, fields), edge.post(f"{COMPLETION}/render", fields)
            assert (found.status_code, found.json()) == (wanted.status_code, wanted.json())
            assert wanted.status_code == 400
    finally:
        served.llm.close()


@pytest.mark.parametrize(
    "path, fields, param",
    [
        (CHAT, {**HI, "session": "new"}, "session"),
        (CHAT, {**HI, "use_beam_search": True}, "use_beam_search"),
        (COMPLETION, {"prompt": "hi", "use_beam_search": True}, "use_beam_search"),
    ],
)
def test_what_no_rendered_request_could_say_is_refused_by_name(edge, path, fields, param):
    answer = edge.post(f"{path}/render", fields)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_keys_and_tenants_are_those_of_the_route(model, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    house = Edge(model, ServerSettings(roster=TenantRegistry(path)))
    body = {"prompt": "hi"}
    assert house.post(f"{COMPLETION}/render", body, **by(NOBODY)).status_code == 401
    assert house.post(f"{COMPLETION}/render", body, **by(ALICE)).status_code == 200
    assert [one.tenant for one in model.encodings] == ["alice"]
    for fields in ({"priority": -900}, {"allow_control_tokens": True}):
        wanted, found = (house.post(one, {**HI, **fields}, **by(ALICE)) for one in (CHAT, f"{CHAT}/render"))
        assert wanted.status_code in (400, 403)
        assert (found.status_code, found.json()) == (wanted.status_code, wanted.json())


# -- KV events -----------------------------------------------------------------------------------------------
def test_no_source_of_events_is_reported_while_none_are_sent(edge):
    assert edge.get("/kv_event_sources").json() == {}
