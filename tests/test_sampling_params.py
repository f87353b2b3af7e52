"""What a caller gives for parameters is understood as it was meant, or refused with what is allowed."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.errors import InvalidRequest
from octavo.params import BeamParams, SamplerParams, Timeouts


def made(**fields: object) -> SamplerParams:
    return SamplerParams(**fields)  # type: ignore[arg-type]


def test_one_stop_string_is_one_and_not_its_letters() -> None:
    assert made(stop="abc").stop == ("abc",)


def test_top_k_of_minus_1_keeps_all() -> None:
    assert made(top_k=-1) == made(top_k=0)
    assert made(top_k=-1, temperature=0.0, beams=BeamParams()).top_k == 0


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"stop": ["a", "b"]}, {"stop": ("a", "b")}),
        ({"stop_token_ids": [5, 6]}, {"stop_token_ids": (5, 6)}),
        ({"stop_token_ids": np.array([5, 6])}, {"stop_token_ids": (5, 6)}),
        ({"allowed_token_ids": [5]}, {"allowed_token_ids": (5,)}),
        ({"allowed_token_ids": range(3)}, {"allowed_token_ids": (0, 1, 2)}),
        ({"banned_sequences": [[5, 6], (7,)]}, {"banned_sequences": ((5, 6), (7,))}),
        ({"logit_bias": {5: 1.0}}, {"logit_bias": ((5, 1.0),)}),
        ({"logit_bias": [[5, 1]]}, {"logit_bias": ((5, 1.0),)}),
    ],
)
def test_lists_are_taken_for_tuples(given: dict[str, object], meant: dict[str, object]) -> None:
    assert made(**given) == made(**meant)
    assert hash(made(**given)) == hash(made(**meant))
    (name,) = meant
    assert repr(getattr(made(**given), name)).replace("1.0", "1") == repr(meant[name]).replace("1.0", "1")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"stop": 5}, "stop is 5; allowed: a string, or a list of strings"),
        ({"stop": None}, "stop is None; allowed: a string, or a list of strings"),
        ({"stop": ["a", 5]}, "stop holds 5; allowed: a string, or a list of strings"),
        ({"stop": [""]}, "length of a stop string is 0; allowed: 1 to 256"),
        ({"stop_token_ids": 5}, "stop_token_ids is 5; allowed: a list of token ids"),
        ({"stop_token_ids": "56"}, "stop_token_ids is '56'; allowed: a list of token ids"),
        ({"stop_token_ids": [5, "6"]}, "stop_token_ids holds '6'; allowed: a list of token ids"),
        ({"stop_token_ids": [True]}, "stop_token_ids holds True; allowed: a list of token ids"),
        ({"allowed_token_ids": []}, "number of allowed_token_ids is 0; allowed: 1 to 65,536"),
        ({"allowed_token_ids": range(65_537)}, "number of allowed_token_ids is 65537; allowed: 1 to 65,536"),
        ({"allowed_token_ids": [5.0]}, "allowed_token_ids holds 5.0; allowed: a list of token ids"),
        ({"banned_sequences": [5]}, "banned_sequences is 5; allowed: a list of token ids"),
        ({"banned_sequences": [[]]}, "tokens of a banned sequence is 0; allowed: 1 to 64"),
        ({"banned_sequences": [[5] * 65]}, "tokens of a banned sequence is 65; allowed: 1 to 64"),
        ({"banned_sequences": [[5]] * 129}, "number of banned_sequences is 129; allowed: 0 to 128"),
        ({"logit_bias": 5}, "logit_bias is 5; allowed: a dict of token ids to numbers"),
        ({"logit_bias": {"a": 1.0}}, "logit_bias holds ('a', 1.0); allowed: a dict of token ids"),
        ({"logit_bias": {5: "1"}}, "logit_bias is '1'; allowed: -100.0 to 100.0"),
        ({"temperature": "hot"}, "temperature is 'hot'; allowed: 0.0 to 2.0"),
        ({"temperature": None}, "temperature is None; allowed: 0.0 to 2.0"),
        ({"temperature": True}, "temperature is True; allowed: 0.0 to 2.0"),
        ({"top_p": "1"}, "top_p is '1'; allowed: above 0, up to 1"),
        ({"top_k": -2}, "top_k is -2; allowed: -1 to 2,147,483,647 (-1 and 0 keep all)"),
        ({"top_k": None}, "top_k is None; allowed: -1 to"),
        ({"max_tokens": 16.5}, "max_tokens is 16.5; allowed: 1 to 2,147,483,647 (a whole number)"),
        ({"max_tokens": "16"}, "max_tokens is '16'; allowed: 1 to 2,147,483,647"),
        ({"seed": "x"}, "seed is 'x'; allowed: -9,2"),
        ({"ignore_eos": "no"}, "ignore_eos is 'no'; allowed: true or false"),
        ({"skip_special_tokens": None}, "skip_special_tokens is None; allowed: true or false"),
        ({"beams": 4}, "beams is 4; allowed: None, or BeamParams"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_is_allowed(fields: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        made(**fields)
    assert said in str(refused.value)


def test_beams_and_timeouts_say_what_is_allowed() -> None:
    with pytest.raises(InvalidRequest, match=r"beam_width is 2.5; allowed: 1 to 16 \(a whole number\)"):
        BeamParams(2.5)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="timeout is '3'; allowed: above 0, up to 86,400 seconds"):
        Timeouts("3")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": ["a" * 257]}, "stop"),
        ({"stop_token_ids": [5] * 65}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"banned_sequences": [[]]}, "banned_sequences"),
        ({"logit_bias": {5: 101}}, "logit_bias"),
    ],
)
def test_a_refusal_names_the_field(fields: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        made(**fields)
    assert refused.value.param == param
