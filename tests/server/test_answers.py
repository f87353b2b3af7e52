"""The shapes of whole and streamed answers, and what reaches the engine."""

import json

import pytest

from octavo.params import SamplerParams


def events_of(answer):
    """The JSON events of a stream, whose last line must be [DONE]."""
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n") if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


# -- models, health ------------------------------------------------------------------------------------------
def test_models_are_listed_and_shown(edge):
    [listed] = edge.get("/v1/models").json()["data"]
    assert listed["id"] == "fake-model"
    assert listed["max_model_len"] == 1000
    assert edge.get("/v1/models/fake-model").json() == listed


def test_health_answers(edge):
    assert edge.get("/health").status_code == 200


# -- chat ----------------------------------------------------------------------------------------------------
def test_a_chat_answer_has_openais_shape(edge):
    body = edge.chat(model="fake-model").json()
    [choice] = body["choices"]
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert choice["message"] == {"role": "assistant", "content": "Hello wörld!", "refusal": None}
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    assert body["usage"] == {
        "prompt_tokens": 8,
        "completion_tokens": 13,
        "total_tokens": 21,
        "prompt_tokens_details": {"cached_tokens": 4},
        "cached_tokens": 4,
        "draft_tokens": 0,
        "accepted_draft_tokens": 0,
        "preemptions": 0,
        "blocks_peak": 0,
        "block_seconds": 0.0,
    }


def test_a_streamed_chat_says_what_the_whole_one_says(edge):
    events = events_of(edge.chat(stream=True))
    assert all(event["object"] == "chat.completion.chunk" for event in events)
    assert len({event["id"] for event in events}) == 1
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == "Hello wörld!"
    reasons = [event["choices"][0]["finish_reason"] for event in events]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert all("usage" not in event for event in events)


def test_usage_comes_last_with_no_choices(edge):
    *others, last = events_of(edge.chat(stream=True, stream_options={"include_usage": True}))
    assert all(event["usage"] is None for event in others)
    assert last["choices"] == []
    assert last["usage"]["total_tokens"] == 21


def test_chat_logprobs_carry_the_bytes_of_every_token(edge):
    plain = edge.chat(logprobs=True, top_logprobs=2).json()["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in plain for byte in entry["bytes"]).decode() == "Hello wörld!"
    assert plain[0]["token"] == "H"
    assert [top["token"] for top in plain[0]["top_logprobs"]] == ["H", "I"]
    assert plain[7]["token"] == "bytes:\\xc3"  # half of an ö
    streamed = [
        entry
        for event in events_of(edge.chat(logprobs=True, top_logprobs=2, stream=True))
        if event["choices"][0]["logprobs"]
        for entry in event["choices"][0]["logprobs"]["content"]
    ]
    assert streamed == plain


def test_roles_and_text_parts_are_reduced_to_text(edge):
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    edge.post(
        "/v1/chat/completions",
        {"messages": [{"role": "developer", "content": "be brief"}, {"role": "user", "content": parts}]},
    )
    assert bytes(edge.model.submitted[0].prompt) == b"system:be brief\nuser:ab\n"


# -- completions ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize("prompt", ["hi", ["hi"], [104, 105], [[104, 105]]])
def test_a_prompt_may_be_text_or_tokens(edge, prompt):
    body = edge.complete(prompt=prompt, max_tokens=50).json()
    assert [stream.prompt for stream in edge.model.submitted] == [(104, 105)]
    assert [choice["text"] for choice in body["choices"]] == ["Hello wörld!"]


def test_choices_are_numbered_over_prompts(edge):
    body = edge.complete(prompt=["a", "bc"], n=2, max_tokens=50, echo=True).json()
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2, 3]
    assert [choice["text"][:2] for choice in body["choices"]] == ["aH", "aH", "bc", "bc"]
    assert body["usage"]["prompt_tokens"] == 3
    assert body["usage"]["completion_tokens"] == 4 * 13


def test_streamed_choices_of_several_prompts_say_what_the_whole_ones_say(edge):
    fields = {"prompt": ["a", "bc"], "n": 2, "max_tokens": 50, "echo": True, "logprobs": 1}
    whole = edge.complete(**fields).json()["choices"]
    texts, offsets = [""] * 4, [[], [], [], []]
    for event in events_of(edge.complete(**fields, stream=True)):
        [choice] = event["choices"]
        texts[choice["index"]] += choice["text"]
        offsets[choice["index"]] += (choice["logprobs"] or {"text_offset": []})["text_offset"]
    assert texts == [choice["text"] for choice in whole]
    assert offsets == [choice["logprobs"]["text_offset"] for choice in whole]


def test_completion_logprobs_have_openais_shape(edge):
    logprobs = edge.complete(max_tokens=3, logprobs=2).json()["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["H", "e", "l"]
    assert logprobs["token_logprobs"] == [-0.5] * 3
    assert logprobs["top_logprobs"][0] == {"H": -0.5, "I": -1.5}
    assert logprobs["text_offset"] == [0, 1, 2]


def test_echo_with_logprobs_shows_the_prompt_too(edge):
    choice = edge.complete(prompt="ab", max_tokens=2, logprobs=0, echo=True).json()["choices"][0]
    assert choice["text"] == "abHe"
    assert choice["logprobs"]["tokens"] == ["a", "b", "H", "e"]
    assert choice["logprobs"]["token_logprobs"] == [None, -0.5, -0.5, -0.5]
    assert choice["logprobs"]["top_logprobs"][0] is None
    assert choice["logprobs"]["text_offset"] == [0, 1, 2, 3]


def test_text_offsets_count_characters_where_tokens_are_bytes(edge):
    edge.model.answer = "aöb"
    logprobs = edge.complete(max_tokens=9, logprobs=0).json()["choices"][0]["logprobs"]
    assert logprobs["text_offset"] == [0, 1, 2, 2]


def test_prompt_logprobs_have_vllms_shape(edge):
    told = edge.complete(prompt="ab", prompt_logprobs=1).json()["choices"][0]["prompt_logprobs"]
    assert told == [None, {"98": {"logprob": -0.5, "rank": 1, "decoded_token": "b"}}]
    assert edge.chat(prompt_logprobs=1).json()["prompt_logprobs"][0] is None


def test_a_cut_answer_says_length(edge):
    assert edge.complete(max_tokens=2).json()["choices"][0]["finish_reason"] == "length"


# -- what reaches the engine ---------------------------------------------------------------------------------
def test_every_parameter_reaches_the_engine(edge):
    edge.complete(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=-0.4, logit_bias={"5": 2}, seed=-3, stop=["x", "y"], stop_token_ids=[9],
        ignore_eos=True, min_tokens=2, max_tokens=6, n=3, best_of=3, priority=-4,
        include_stop_str_in_output=True, logprobs=2, prompt_logprobs=1,
    )  # fmt: skip
    [stream] = edge.model.submitted
    assert stream.n == 3
    assert stream.priority == 4, "vLLM runs lower priorities earlier, the engine higher ones"
    assert stream.params == SamplerParams(
        temperature=0.5, top_p=0.9, top_k=7, min_p=0.1, repetition_penalty=1.2, presence_penalty=0.3,
        frequency_penalty=-0.4, logit_bias=((5, 2.0),), seed=-3, stop=("x", "y"), stop_token_ids=(9,),
        ignore_eos=True, min_tokens=2, max_tokens=6, include_stop=True, logprobs=2, prompt_logprobs=1,
    )  # fmt: skip


def test_defaults_are_openais(edge):
    edge.chat()
    edge.complete()
    chat, completion = edge.model.submitted
    assert chat.params == SamplerParams()
    assert completion.params == SamplerParams(max_tokens=16)


@pytest.mark.parametrize("top_k", [-1, 0])
def test_both_words_for_no_top_k_are_known(edge, top_k):
    edge.complete(top_k=top_k)
    assert edge.model.submitted[0].params.top_k == 0


def test_the_newer_name_of_max_tokens_wins(edge):
    edge.chat(max_tokens=5, max_completion_tokens=3)
    assert edge.model.submitted[0].params.max_tokens == 3


# -- failures while running ----------------------------------------------------------------------------------
def test_a_request_that_fails_is_a_server_error(edge):
    edge.model.failure = "its logits were NaN"
    answer = edge.chat()
    assert answer.status_code == 500
    assert "NaN" in answer.json()["error"]["message"]


def test_a_failure_inside_a_stream_is_an_event_and_then_done(edge):
    edge.model.failure = "its logits were NaN"
    for answer in (edge.chat(stream=True), edge.complete(stream=True, prompt=["a", "b"])):
        *_, last = events_of(answer)
        assert last["error"]["type"] == "server_error"
        assert "NaN" in last["error"]["message"]


# -- metrics -------------------------------------------------------------------------------------------------
def test_metrics_show_engine_latencies_and_answers(edge):
    edge.chat(n=2)
    edge.chat(stream=True)
    edge.chat(n=0)
    edge.get("/made/up/by/a/client")
    text = edge.get("/metrics").text
    for line in [
        'octavo_blocks{model_name="fake-model",state="held"} 3.0',
        'octavo_blocks{model_name="fake-model",state="cached"} 2.0',
        'octavo_blocks{model_name="fake-model",state="free"} 5.0',
        'octavo_http_requests_total{route="/v1/chat/completions",status="200"} 2.0',
        'octavo_http_requests_total{route="/v1/chat/completions",status="400"} 1.0',
        'octavo_http_requests_total{route="other",status="404"} 1.0',
        'octavo_time_to_first_token_seconds_count{model_name="fake-model"} 2.0',
        'octavo_request_seconds_count{model_name="fake-model"} 2.0',
        f'octavo_inter_token_seconds_count{{model_name="fake-model"}} {float(3 * 12)}',
        'octavo_choices_finished_total{finish_reason="stop",model_name="fake-model"} 3.0',
        'octavo_sequences_waiting{model_name="fake-model"} 0.0',
        'octavo_output_tokens_total{model_name="fake-model"} 0.0',
    ]:
        assert line in text, line
