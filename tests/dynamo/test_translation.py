"""Dynamo's requests become the engine's, field by field; what the engine does not do is refused by name."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from octavo.dynamo.translation import chunk_of, request_of
from octavo.engine.outputs import Delta, TokenInfo
from octavo.errors import InvalidRequest, RequestFailed
from octavo.grammar import GrammarKind
from octavo.params import SamplerParams
from octavo.tools.thinking import THINK
from octavo.types import FinishReason, Request, Usage

# As the frontend of Dynamo 1.6.1 sent it, of a body that sets nothing.
PLAIN = {
    "model": "m",
    "token_ids": [28120, 665],
    "stop_conditions": {
        **dict.fromkeys(("max_tokens", "stop", "stop_token_ids", "stop_token_ids_visible", "min_tokens")),
        "stop_token_ids_hidden": [2],
        "ignore_eos": None,
        "max_thinking_tokens": None,
    },
    "sampling_options": {
        **dict.fromkeys(("n", "best_of", "temperature", "top_p", "top_k", "min_p", "seed")),
        **dict.fromkeys(("presence_penalty", "frequency_penalty", "repetition_penalty", "length_penalty")),
        **dict.fromkeys(("use_beam_search", "include_stop_str_in_output", "guided_decoding")),
    },
    "output_options": {
        **dict.fromkeys(("logprobs", "prompt_logprobs", "skip_special_tokens", "formatted_prompt")),
        "return_tokens_as_token_ids": None,
    },
    "eos_token_ids": [2],
    "mdc_sum": "5cf75022",
    "annotations": [],
    "routing": {"dp_rank": 0},
    "router_config_override": None,
}


def asked(changes: Mapping[str, object] | None = None, context: int = 100, **groups: object) -> Request:
    return request_of(PLAIN | dict(changes or {}) | groups, THINK, context)


def test_what_is_not_set_is_the_engines_default():
    request = asked()
    assert request.prompt == (28120, 665)
    assert request.params == SamplerParams(stop_token_ids=(2,))
    assert (request.cache_salt, request.priority) == ("", 0)


def test_every_field_that_the_engine_has_arrives():
    request = asked(
        sampling_options={"top_k": 7, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": -0.5}
        | {"repetition_penalty": 1.5, "min_p": 0.25, "allowed_token_ids": [1, 2]}
        | {"include_stop_str_in_output": True, "bad_words_token_ids": [[3, 4]], "n": 1},
        stop_conditions={"max_tokens": 9, "min_tokens": 3, "stop": ["x"], "ignore_eos": True}
        | {"stop_token_ids": [7], "stop_token_ids_hidden": [2], "max_thinking_tokens": 6},
        output_options={"logprobs": 2, "prompt_logprobs": 1, "skip_special_tokens": False},
    )
    assert request.params == SamplerParams(
        max_tokens=9,
        top_k=7,
        seed=5,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.5,
        min_p=0.25,
        allowed_token_ids=(1, 2),
        include_stop=True,
        banned_sequences=((3, 4),),
        min_tokens=3,
        stop=("x",),
        stop_token_ids=(7, 2),
        ignore_eos=True,
        logprobs=2,
        prompt_logprobs=1,
        skip_special_tokens=False,
        thinking=THINK.leading(6),
    )


def test_floats_are_those_that_the_client_wrote():
    narrow = {name: float(np.float32(0.7)) for name in ("temperature", "top_p", "min_p")}
    assert narrow["temperature"] != 0.7
    params = asked(sampling_options=narrow).params
    assert (params.temperature, params.top_p, params.min_p) == (0.7, 0.7, 0.7)


def test_an_output_that_would_pass_the_context_ends_with_it():
    assert asked(context=12, stop_conditions={"max_tokens": 10}).params.max_tokens == 10
    assert asked(context=11, stop_conditions={"max_tokens": 10}).params.max_tokens is None


def test_a_salt_is_read_from_the_routing_or_from_the_bodys_extension():
    assert asked(routing={"cache_salt": "a"}).cache_salt == "a"
    assert asked({"extra_args": {"nvext": {"cache_salt": "b"}}}).cache_salt == "b"


@pytest.mark.parametrize(
    "guided, kind",
    [
        ({"json": {"type": "object"}}, GrammarKind.JSON_SCHEMA),
        ({"choice": ["a", "b"], "backend": "xgrammar"}, GrammarKind.LARK),
        ({"regex": "[0-9]", "json": None}, GrammarKind.REGEX),
        ({"grammar": 'root ::= "a"'}, GrammarKind.GBNF),
        ({"grammar": 'start: "a"'}, GrammarKind.LARK),
    ],
)
def test_outputs_are_guided_in_four_ways(guided, kind):
    grammar = asked(sampling_options={"guided_decoding": guided}).params.grammar
    assert grammar is not None
    assert grammar.kind is kind
    assert grammar.param.startswith("guided_")


@pytest.mark.parametrize(
    "name, given",
    [
        ("n", {"sampling_options": {"n": 2}}),
        ("best_of", {"sampling_options": {"best_of": 2}}),
        ("use_beam_search", {"sampling_options": {"use_beam_search": True}}),
        ("length_penalty", {"sampling_options": {"length_penalty": 0.5}}),
        ("some_new_field", {"sampling_options": {"some_new_field": 1}}),
        ("structural_tag", {"sampling_options": {"guided_decoding": {"structural_tag": {"a": 1}}}}),
        ("json and regex", {"sampling_options": {"guided_decoding": {"json": {}, "regex": "a"}}}),
        ("logits_processors", {"extra_args": {"sampling_options": {"logits_processors": ["x"]}}}),
        ("lora_name", {"routing": {"lora_name": "adapter"}}),
        ("priority", {"routing": {"priority": 5000}}),
        ("multi_modal_data", {"multi_modal_data": {"image_url": []}}),
        ("prefill_result", {"prefill_result": {"x": 1}}),
        ("routing", {"routing": 5}),
        ("temperature", {"sampling_options": {"temperature": 3.0}}),
        ("logprobs", {"output_options": {"logprobs": 21}}),
    ],
)
def test_what_the_engine_does_not_do_is_refused_by_name(name, given):
    with pytest.raises(InvalidRequest, match=rf"\b{name}\b.*; allowed: "):
        asked(given)


def delta(tokens: tuple[TokenInfo, ...], finish: FinishReason | None = None, error: str = "") -> Delta:
    return Delta(0, "text", tokens, Usage(40, 3, 32, 0), finish, error=error)


A, B = TokenInfo(5, b"a", -0.5, ((5, b"a", -0.5), (6, b"b", -1.5))), TokenInfo(6, b"b", -2.0)


def test_a_chunk_has_the_new_tokens_alone():
    assert chunk_of(delta((A, B)), SamplerParams(), []) == {"token_ids": [5, 6], "index": 0}


def test_logprobs_stand_next_to_their_tokens():
    assert chunk_of(delta((A, B)), SamplerParams(logprobs=0), []) == {
        "token_ids": [5, 6],
        "index": 0,
        "log_probs": [-0.5, -2.0],
    }
    assert chunk_of(delta((A,)), SamplerParams(logprobs=2), [])["top_logprobs"] == [
        [
            {"rank": 1, "token_id": 5, "token": None, "logprob": -0.5},
            {"rank": 2, "token_id": 6, "token": None, "logprob": -1.5},
        ]
    ]


@pytest.mark.parametrize("finish", [FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED])
def test_the_last_chunk_says_why_and_what_it_took(finish):
    chunk = chunk_of(delta((), finish), SamplerParams(prompt_logprobs=1), [B])
    assert chunk["finish_reason"] == finish.value
    assert chunk["completion_usage"] == {
        "prompt_tokens": 40,
        "completion_tokens": 3,
        "total_tokens": 43,
        "prompt_tokens_details": {"cached_tokens": 32},
    }
    assert chunk["engine_data"] == {"prompt_logprobs": [None, {"6": {"logprob": -2.0, "decoded_token": "b"}}]}


def test_what_failed_is_raised():
    with pytest.raises(RequestFailed, match="not numbers"):
        chunk_of(delta((), FinishReason.ERROR, "the logits were not numbers"), SamplerParams(), [])
    with pytest.raises(InvalidRequest, match="no token"):
        chunk_of(delta((), FinishReason.DEAD_END, "the grammar allows no token"), SamplerParams(), [])
