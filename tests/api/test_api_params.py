"""Sampling parameters in vLLM's names: its defaults, what they become, and what is refused by name."""

from __future__ import annotations

import copy
import dataclasses

import numpy as np
import pytest
from tests.api.talking import TalkingTokenizer

from octavo import (
    BeamParams,
    BeamSearchParams,
    PoolingParams,
    RequestOutputKind,
    SamplingParams,
    StructuredOutputsParams,
)
from octavo.api.params import order_of
from octavo.errors import InvalidRequest
from octavo.grammar import Thinking, of_choices, of_schema
from octavo.params import Pooling, SamplerParams

# What `vllm.SamplingParams()` has, written down from vLLM's own source.
VLLM_DEFAULTS = {
    "n": 1,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "seed": None,
    "stop": [],
    "ignore_eos": False,
    "max_tokens": 16,
    "min_tokens": 0,
    "logprobs": None,
    "prompt_logprobs": None,
    "detokenize": True,
    "skip_special_tokens": True,
    "spaces_between_special_tokens": True,
    "include_stop_str_in_output": False,
    "output_kind": RequestOutputKind.CUMULATIVE,
    "structured_outputs": None,
    "logit_bias": None,
    "allowed_token_ids": None,
    "thinking_token_budget": None,
    "flat_logprobs": False,
    "extra_args": None,
    "skip_clone": False,
}


def order(**fields: object) -> SamplerParams:
    return SamplingParams(**fields).order_of(TalkingTokenizer()).params  # type: ignore[arg-type]


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert {name: getattr(params, name) for name in VLLM_DEFAULTS} == VLLM_DEFAULTS
    assert order() == SamplerParams(max_tokens=16)


@pytest.mark.parametrize(
    "given, becomes",
    [
        ({"stop": "abc"}, {"stop": ("abc",)}),
        ({"stop": ["a", "bc"]}, {"stop": ("a", "bc")}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"seed": -1}, {"seed": None}),
        ({"max_tokens": None}, {"max_tokens": None}),
        ({"logit_bias": {5: -100.0, 7: 2}}, {"logit_bias": ((5, -100.0), (7, 2))}),
        ({"logprobs": True}, {"logprobs": 1}),
        ({"include_stop_str_in_output": True}, {"include_stop": True}),
        (
            {"stop_token_ids": [3], "allowed_token_ids": [3, 4]},
            {"stop_token_ids": (3,), "allowed_token_ids": (3, 4)},
        ),
        ({"bad_words": ["ab"]}, {"banned_sequences": ((26, 27),)}),
        (
            {"bad_words": ["ab"], "banned_sequences": [[5]]},
            {"banned_sequences": ((5,), (26, 27))},
        ),
        (
            {"structured_outputs": StructuredOutputsParams(choice=["a", "b"])},
            {"grammar": of_choices(["a", "b"], "structured_outputs.choice")},
        ),
        (
            {"speculate": False, "thinking": Thinking(None, 3)},
            {"speculate": False, "thinking": Thinking(None, 3)},
        ),
        ({"temperature": 0.0, "beams": BeamParams(2)}, {"temperature": 0.0, "beams": BeamParams(2)}),
    ],
)
def test_each_field_becomes_what_it_means(given: dict[str, object], becomes: dict[str, object]) -> None:
    wanted = SamplerParams(**({"max_tokens": 16} | becomes))  # type: ignore[arg-type]
    assert order(**given) == wanted


def test_a_thinking_budget_means_nothing_to_a_model_that_does_not_think() -> None:
    tokenizer = TalkingTokenizer()
    params = SamplingParams(thinking_token_budget=5)
    assert params.order_of(tokenizer).params.thinking is None
    tokenizer.chat_template.thinks = True  # type: ignore[attr-defined]
    assert params.order_of(tokenizer).params.thinking == Thinking(None, 5)
    assert SamplingParams(thinking_token_budget=-1).order_of(tokenizer).params.thinking is None


@pytest.mark.parametrize(
    "given, said",
    [
        ({"temperature": 3.0}, "temperature is 3.0; allowed: 0.0 to 2.0"),
        ({"top_p": 0}, "top_p is 0; allowed: above 0"),
        ({"n": 0}, "n is 0; allowed: 1 to 64"),
        ({"n": "two"}, "n is 'two'"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"logprobs": -1}, "logprobs is -1; allowed: 0 to 20"),
        ({"stop": [5]}, "stop holds 5; allowed: a string, or a list of strings"),
        ({"stop": "a", "detokenize": False}, "detokenize is False; allowed with stop strings.*: True"),
        ({"detokenize": 1}, "detokenize is 1; allowed: True or False"),
        ({"include_stop_str_in_output": "yes"}, "include_stop_str_in_output is 'yes'"),
        ({"bad_words": "abc"}, "bad_words is 'abc'; allowed: a list of words"),
        ({"bad_words": [5]}, "bad_words holds 5"),
        (
            {"structured_outputs": {"json": {}}},
            "structured_outputs is .*; allowed: None, or StructuredOutputs",
        ),
        ({"output_kind": 2}, "output_kind is 2; allowed: RequestOutputKind"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens is 0; allowed: 1 to"),
        ({"thinking_token_budget": -2}, "thinking_token_budget is -2; allowed: 0 to"),
        ({"best_of": 4}, "best_of is 4, which is not supported; use instead: n"),
        ({"use_beam_search": True}, "use_beam_search is True.*LLM.beam_search"),
        ({"logits_processors": [print]}, "logits_processors is .*use instead: logit_bias"),
        ({"guided_decoding": object()}, "guided_decoding is .*use instead: structured_outputs"),
        ({"logprob_token_ids": [4]}, "logprob_token_ids is .*use instead: logprobs"),
        ({"flat_logprobs": True}, "flat_logprobs is True"),
        ({"spaces_between_special_tokens": False}, "spaces_between_special_tokens is False"),
        ({"extra_args": {"a": 1}}, "extra_args is"),
    ],
)
def test_what_is_wrong_is_refused_by_name_when_it_is_made(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said) as refused:
        SamplingParams(**given)  # type: ignore[arg-type]
    assert refused.value.param in given


def test_values_that_ask_for_nothing_are_taken() -> None:
    params = SamplingParams(
        best_of=1, logits_processors=[], extra_args={}, skip_clone=True, stream_interval=1
    )
    assert params.order_of(TalkingTokenizer()).params == SamplerParams(max_tokens=16)


def test_a_field_that_was_changed_later_is_checked_when_it_is_used() -> None:
    params = SamplingParams()
    other = params.clone()
    params.max_tokens = 5
    params.stop = "abc"
    assert params.order_of(TalkingTokenizer()).params == SamplerParams(max_tokens=5, stop=("abc",))
    params.temperature = -1.0
    with pytest.raises(InvalidRequest, match=r"temperature is -1\.0"):
        params.order_of(TalkingTokenizer())
    assert other == SamplingParams() == copy.deepcopy(other)


def test_the_engines_own_parameters_go_as_they_are() -> None:
    params = SamplerParams(max_tokens=3)
    assert order_of(params, TalkingTokenizer()).params is params


def test_every_field_of_the_sampler_can_be_asked_for() -> None:
    """Under its own name, or under vLLM's; what is the engine's own business aside."""
    renamed = {"include_stop": "include_stop_str_in_output", "pooling": "LLM.embed"}
    ours = {renamed.get(field.name, field.name) for field in dataclasses.fields(SamplerParams)}
    assert ours - {field.name for field in dataclasses.fields(SamplingParams)} == {"LLM.embed"}


@pytest.mark.parametrize(
    "given, grammar",
    [
        ({"json": {"type": "object"}}, of_schema({"type": "object"}, "structured_outputs.json")),
        ({"json": '{"type": "object"}'}, of_schema({"type": "object"}, "structured_outputs.json")),
        ({"json_object": True}, of_schema({"type": "object"}, "structured_outputs.json_object")),
    ],
)
def test_what_an_output_must_follow_is_a_grammar(given: dict[str, object], grammar: object) -> None:
    assert StructuredOutputsParams(**given).as_grammar() == grammar  # type: ignore[arg-type]


def test_a_grammar_is_gbnf_where_it_looks_so_and_lark_elsewhere() -> None:
    assert StructuredOutputsParams(grammar='root ::= "a"').as_grammar().kind == "gbnf"
    assert StructuredOutputsParams(grammar='start: "a"').as_grammar().kind == "lark"


@pytest.mark.parametrize(
    "given, said",
    [
        ({}, "structured_outputs has none of json, regex"),
        ({"regex": "a", "choice": ["b"]}, "has regex and choice of .*; allowed: one"),
        ({"json_object": False}, "structured_outputs has none of"),
        ({"choice": []}, "structured_outputs.choice is"),
        ({"json": "{"}, "structured_outputs.json is not JSON"),
        ({"regex": "a", "whitespace_pattern": " "}, "structured_outputs.whitespace_pattern is ' '"),
        ({"structural_tag": "{}"}, "structured_outputs.structural_tag is"),
    ],
)
def test_one_constraint_and_no_more(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        StructuredOutputsParams(**given)  # type: ignore[arg-type]


def test_a_search_is_asked_for_with_as_many_outputs_as_beams() -> None:
    found = BeamSearchParams(4, 9, length_penalty=0.5).order()
    assert found.n == 4
    wanted = SamplerParams(max_tokens=9, temperature=0.0, logprobs=0, beams=BeamParams(4, 0.5))
    assert found.params == wanted
    for given, said in (
        ({"beam_width": 17, "max_tokens": 5}, "beam_width is 17; allowed: 1 to 16"),
        ({"beam_width": 2, "max_tokens": 0}, "max_tokens is 0"),
        (
            {"beam_width": 2, "max_tokens": 5, "temperature": 1.0},
            "temperature is 1.0; allowed with beam search",
        ),
    ):
        with pytest.raises(InvalidRequest, match=said):
            BeamSearchParams(**given)  # type: ignore[arg-type]


def test_pooling_is_the_models_unless_a_program_says_otherwise() -> None:
    assert PoolingParams().order(Pooling.MEAN).params.pooling is Pooling.MEAN
    assert PoolingParams(pooling="last").order(Pooling.MEAN).params.pooling is Pooling.LAST
    for given, said in (
        ({"pooling": "cls"}, "pooling is 'cls'; allowed: None, last, mean"),
        ({"dimensions": 0}, "dimensions is 0"),
        ({"task": "score"}, "task is 'score'; allowed: None, embed"),
    ):
        with pytest.raises(InvalidRequest, match=said):
            PoolingParams(**given)  # type: ignore[arg-type]


NUMPY = {
    "seed": np.int64(1),
    "n": np.int32(2),
    "temperature": np.float64(0.5),
    "stop": np.array(["a", "bc"]),
    "stop_token_ids": np.array([3, 4]),
    "allowed_token_ids": np.array([3, 4, 5]),
    "bad_words": np.array(["ab", "c"]),
    "banned_sequences": np.array([[3, 4], [5, 6]]),
    "logits_processors": np.array([]),
    "truncate_prompt_tokens": np.int64(5),
    "thinking_token_budget": np.int64(5),
}


def test_numbers_and_arrays_of_numpy_mean_what_they_hold() -> None:
    plain = {name: value.tolist() for name, value in NUMPY.items()}
    made, wanted = SamplingParams(**NUMPY), SamplingParams(**plain)  # type: ignore[arg-type]
    assert repr(made) == repr(wanted)
    assert made == wanted
    assert order(**NUMPY) == order(**plain)
    later = SamplingParams()
    for name, value in NUMPY.items():
        setattr(later, name, value)
    assert repr(later) == repr(wanted)
    assert later.order_of(TalkingTokenizer()) == wanted.order_of(TalkingTokenizer())  # type: ignore[arg-type]


def test_repr_of_a_numpy_number_is_that_of_the_number() -> None:
    assert repr(SamplingParams(seed=np.int64(1))) == "SamplingParams(seed=1)"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "name",
    [
        *("seed", "n", "temperature", "max_tokens", "bad_words", "logits_processors", "extra_args"),
        *("truncate_prompt_tokens", "thinking_token_budget", "logit_bias", "detokenize", "output_kind"),
        *("best_of", "early_stopping", "prompt_logprob_start", "stop", "logprobs", "structured_outputs"),
    ],
)
def test_an_array_where_none_belongs_is_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidRequest, match=name):
        SamplingParams(**{name: np.array([1, 2])})  # type: ignore[arg-type]


def test_choices_and_poolings_may_be_arrays_too() -> None:
    choices = StructuredOutputsParams(choice=np.array(["a", "b"]))  # type: ignore[arg-type]
    assert choices.as_grammar() == of_choices(["a", "b"], "structured_outputs.choice")
    with pytest.raises(InvalidRequest, match="pooling is"):
        PoolingParams(pooling=np.array(["last", "mean"]))  # type: ignore[arg-type]
