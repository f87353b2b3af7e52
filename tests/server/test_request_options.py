"""Fields beyond OpenAI's: what reaches the engine, and what the answers then say."""

import json
from dataclasses import replace
from itertools import chain

import pytest
from tests.server.conftest import Edge
from tests.server.test_tenant_keys import BOB, BOSS, by, entry

from octavo.params import SamplerParams
from octavo.server.app import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.text.infill import InfillTokens
from octavo.types import ChatOptions

PLAIN = SamplerParams(max_tokens=16)


def events_of(answer):
    """The JSON events of a stream."""
    lines = [line for line in answer.text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# -- what the engine is asked for ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields, expected",
    [
        ({"allowed_token_ids": [7, 5]}, {"allowed_token_ids": (7, 5)}),
        ({"bad_words": ["ab", "c"]}, {"banned_sequences": ((97, 98), (99,))}),
        ({"bad_words": []}, {}),
        ({"skip_special_tokens": False}, {"skip_special_tokens": False}),
        ({"skip_special_tokens": True}, {}),
        ({"repeat_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"repeat_penalty": 1.2, "repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"top_k": -1}, {}),
    ],
)
def test_fields_become_the_engines_parameters(edge, fields, expected):
    assert edge.complete(max_tokens=16, **fields).status_code == 200
    assert edge.chat(max_tokens=16, **fields).status_code == 200
    for stream in edge.model.submitted:
        assert stream.params == SamplerParams(max_tokens=16, **expected)


def test_a_cache_salt_goes_with_every_prompt(edge):
    edge.complete(prompt=["a", "b"], cache_salt="pepper")
    edge.chat(cache_salt="pepper")
    edge.chat()
    assert [stream.cache_salt for stream in edge.model.submitted] == ["pepper"] * 3 + [""]


# -- how messages become a prompt ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    "fields, options",
    [
        ({}, ChatOptions()),
        ({"add_generation_prompt": False}, ChatOptions(add_generation_prompt=False)),
        (
            {"continue_final_message": True},
            ChatOptions(add_generation_prompt=False, continue_final_message=True),
        ),
        (
            {"continue_final_message": True, "add_generation_prompt": False},
            ChatOptions(add_generation_prompt=False, continue_final_message=True),
        ),
        ({"chat_template_kwargs": {"deep": [1]}}, ChatOptions(template_kwargs={"deep": [1]})),
        ({"allow_control_tokens": True}, ChatOptions(allow_control_tokens=True)),
    ],
)
def test_the_template_gets_what_the_client_asked_for(edge, fields, options):
    assert edge.chat(**fields).status_code == 200
    assert edge.chat(session="new", **fields).status_code == 200
    chat = {"messages": [{"role": "user", "content": "hi"}], **fields}
    assert edge.post("/tokenize", chat).status_code == 200
    assert [encoding.options for encoding in edge.model.encodings] == [options] * 3


def test_control_tokens_are_an_operators(model, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(entry("bob", BOB) + entry("boss", BOSS, lines="operator = true"))
    house = Edge(model, ServerSettings(roster=TenantRegistry(path)))
    chat = {"messages": [{"role": "user", "content": "hi"}], "allow_control_tokens": True}
    refused = house.post("/v1/chat/completions", chat, **by(BOB))
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operators_only")
    assert "allow_control_tokens" in refused.json()["error"]["message"]
    assert model.encodings == []
    for route in ("/v1/chat/completions", "/tokenize"):
        assert house.post(route, chat, **by(BOSS)).status_code == 200
    assert [encoding.options.allow_control_tokens for encoding in model.encodings] == [True, True]


def test_texts_are_encoded_for_their_tenant(model, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(entry("bob", BOB))
    house = Edge(model, ServerSettings(roster=TenantRegistry(path)))
    chat = {"messages": [{"role": "user", "content": "hi"}]}
    for route, body in [
        ("/v1/completions", {"prompt": ["a", "b"]}),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", chat | {"session": "new"}),
        ("/v1/kv/pins", {"name": "p", "prompt": "a"}),
        ("/v1/kv/pins", {"name": "q"} | chat),
    ]:
        assert house.post(route, body, **by(BOB)).status_code in (200, 201)
    assert [encoding.tenant for encoding in model.encodings] == ["bob"] * 6


def test_nothing_is_encoded_where_one_prompt_is_wrong(edge):
    for wrong in ([1] * 1001, [300], "b" * 20_000):
        assert edge.complete(prompt=["a", [1], wrong]).status_code == 400
    assert edge.model.encodings == []


def test_texts_and_token_ids_keep_their_order(edge):
    edge.complete(prompt=[[1], "a", [2], "b"], max_tokens=1)
    assert [stream.prompt for stream in edge.model.submitted] == [(1,), (97,), (2,), (98,)]


# -- a prompt alone ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("answer", ["Hello", "", "ö"])
def test_no_tokens_with_echo_scores_the_prompt_and_nothing_else(edge, answer):
    edge.model.answer = answer or "!"
    body = edge.complete(prompt="abc", max_tokens=0, echo=True, logprobs=1).json()
    [choice] = body["choices"]
    assert choice["text"] == "abc"
    assert choice["finish_reason"] == "length"
    assert choice["stop_reason"] is None
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5]
    assert body["usage"]["completion_tokens"] == 0
    assert body["usage"]["total_tokens"] == 3
    assert edge.model.submitted[0].params.max_tokens == 1


def test_a_streamed_score_says_what_the_whole_one_says(edge):
    fields = {"prompt": ["abc", "de"], "max_tokens": 0, "echo": True, "logprobs": 0, "return_token_ids": True}
    whole = edge.complete(**fields).json()
    *events, last = events_of(edge.complete(**fields, stream=True, stream_options={"include_usage": True}))
    assert len(events) == 2
    for event in events:
        [choice] = event["choices"]
        of_whole = whole["choices"][choice["index"]]
        assert {name: of_whole[name] for name in choice} == choice
        assert choice["token_ids"] == []
    assert last["usage"]["completion_tokens"] == 0


# -- the best of many ----------------------------------------------------------------------------------------
class Told:
    """The double, whose choices have made-up logprobs: `means[c]` for each token of choice c."""

    def __init__(self, model, means):
        self._submit, self.means = model.submit, means
        model.submit = self.submit

    async def submit(self, *args, **options):
        return ToldStream(await self._submit(*args, **options), self.means)


class ToldStream:
    def __init__(self, stream, means):
        self.stream, self.means = stream, means
        self.request_id, self.cancel = stream.request_id, stream.cancel

    async def __aiter__(self):
        async for delta in self.stream:
            mean = self.means[delta.choice]
            yield replace(
                delta,
                text=f"{delta.choice}" if delta.finish else "",
                tokens=tuple(replace(info, logprob=mean) for info in delta.tokens) if mean else (),
            )


def test_the_likeliest_per_token_are_returned_and_all_are_counted(edge):
    Told(edge.model, [-3.0, -1.0, -2.0, -1.0])
    body = edge.complete(prompt=["a", "b"], n=2, best_of=4, max_tokens=3).json()
    assert [choice["text"] for choice in body["choices"]] == ["1", "3"] * 2, "of equals the lower index"
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert body["usage"]["completion_tokens"] == 2 * 4 * 3
    assert {choice["logprobs"] for choice in body["choices"]} == {None}, "the client did not ask for them"
    assert [stream.n for stream in edge.model.submitted] == [4, 4]
    assert [stream.params.logprobs for stream in edge.model.submitted] == [0, 0]


def test_logprobs_that_were_asked_for_are_reported_of_the_best(edge):
    Told(edge.model, [-3.0, -1.0])
    [choice] = edge.complete(best_of=2, max_tokens=2, logprobs=2).json()["choices"]
    assert choice["logprobs"]["token_logprobs"] == [-1.0, -1.0]
    assert edge.model.submitted[0].params.logprobs == 2


def test_a_choice_without_a_token_is_the_last_to_be_chosen(edge):
    Told(edge.model, [None, -9.0])
    assert edge.complete(best_of=2, max_tokens=2).json()["choices"][0]["text"] == "1"


def test_as_many_as_are_made_come_in_their_own_order(edge):
    edge.complete(n=3, best_of=3, stream=True)
    assert edge.model.submitted[0].n == 3
    assert edge.model.submitted[0].params == PLAIN


# -- token ids -----------------------------------------------------------------------------------------------
def test_token_ids_are_reported_where_vllm_shows_them(edge):
    completion = edge.complete(prompt=["a", "bc"], max_tokens=2, return_token_ids=True).json()
    assert [choice["prompt_token_ids"] for choice in completion["choices"]] == [[97], [98, 99]]
    assert [choice["token_ids"] for choice in completion["choices"]] == [[72, 101]] * 2
    chat = edge.chat(max_tokens=2, return_token_ids=True).json()
    assert chat["prompt_token_ids"] == list(b"user:hi\n")
    assert chat["choices"][0]["token_ids"] == [72, 101]
    for plain in (edge.complete().json(), edge.chat().json()):
        assert "token_ids" not in plain["choices"][0]
        assert "prompt_token_ids" not in plain["choices"][0] | plain


def test_streamed_token_ids_add_up_to_the_whole_ones(edge):
    whole = list("Hello wörld!".encode())
    choices = [event["choices"][0] for event in events_of(edge.complete(return_token_ids=True, stream=True))]
    assert list(chain.from_iterable(choice["token_ids"] for choice in choices)) == whole
    assert choices[0]["prompt_token_ids"] == [104, 105]
    assert not any("prompt_token_ids" in choice for choice in choices[1:])
    events = events_of(edge.chat(return_token_ids=True, stream=True))
    told = [event["choices"][0].get("token_ids", []) for event in events]
    assert list(chain.from_iterable(told)) == whole
    assert [event.get("prompt_token_ids") for event in events] == [list(b"user:hi\n")] + [None] * (
        len(events) - 1
    )


def test_a_session_shows_the_token_ids_of_its_prompt(edge):
    answer = edge.chat(session="new", return_token_ids=True).json()
    assert answer["prompt_token_ids"] == list(b"user:hi\n")


# -- the usage so far ----------------------------------------------------------------------------------------
def test_usage_in_chunks_needs_the_usage_at_the_end_too(edge):
    for options in (
        {"continuous_usage_stats": True},
        {"continuous_usage_stats": True, "include_usage": False},
    ):
        for answer in (
            edge.complete(max_tokens=3, stream=True, stream_options=options),
            edge.chat(max_tokens=3, stream=True, stream_options=options),
        ):
            assert not any(event.get("usage") for event in events_of(answer))


def test_every_chunk_shows_the_usage_so_far(edge):
    options = {"continuous_usage_stats": True, "include_usage": True}
    for answer in (
        edge.complete(max_tokens=3, stream=True, stream_options=options),
        edge.chat(max_tokens=3, stream=True, stream_options=options),
    ):
        events = events_of(answer)
        made = [event["usage"]["completion_tokens"] for event in events]
        assert made == sorted(made)
        assert made[0] == 1
        assert made[-1] == 3
        assert events[-1]["choices"] == []


def test_a_suffix_is_filled_in_before_where_the_model_can(edge):
    refused = edge.complete(prompt="a", suffix="b")
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "suffix")
    edge.model.answers.infill = InfillTokens(297, 298, 299)
    assert edge.complete(prompt=["a", [98]], suffix="c").status_code == 200
    prompts = [list(stream.prompt) for stream in edge.model.submitted[-2:]]
    assert prompts == [[297, 97, 298, 99, 299], [297, 98, 298, 99, 299]]
    asked = {"model": edge.model.name, "prompt": "a", "suffix": "c", "stream": False}
    assert edge.post("/api/generate", asked).status_code == 200
    assert list(edge.model.submitted[-1].prompt) == [297, 97, 298, 99, 299]


def test_a_top_p_of_zero_takes_the_likeliest(edge):
    for answer in (edge.complete(top_p=0), edge.chat(top_p=0, temperature=2.0)):
        assert answer.status_code == 200
        assert edge.model.submitted[-1].params.temperature == 0.0
