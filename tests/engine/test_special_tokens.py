"""Special tokens are text where the client wants them; the token that ends an answer only with the stop."""

from __future__ import annotations

import pytest

from octavo.engine.assemble import Assembler, Vocabulary
from octavo.params import BeamParams, SamplerParams
from octavo.types import FinishReason, Request, SampledToken, Update, Usage

PIECES = {1: b"<end>", 2: b"<think>", 5: b"a", 6: b"b"}
VOCABULARY = Vocabulary(PIECES.__getitem__, frozenset({1, 2}))


def text_of(tokens: list[int], stop_token: int | None = None, **params: object) -> str:
    """Told token by token."""
    request = Request(1, (5,), SamplerParams(**params), len(tokens), 0)  # type: ignore[arg-type]
    assembler = Assembler(request, VOCABULARY)
    text = ""
    for place, token in enumerate(tokens):
        last = place == len(tokens) - 1
        finish = (FinishReason.STOP if stop_token else FinishReason.LENGTH) if last else None
        sampled = (SampledToken(token),)
        update = Update(1, 0, sampled, Usage(1, place, 0, 0), finish, stop_token if last else None)
        delta = assembler.take(update)
        text += "" if delta is None else delta.text
    return text


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "ab"),
        ({"include_stop": True}, "ab"),
        ({"skip_special_tokens": False}, "a<think>b"),
        ({"skip_special_tokens": False, "include_stop": True}, "a<think>b<end>"),
        ({"skip_special_tokens": False, "stop": ("<think>",)}, "a"),
        ({"skip_special_tokens": True, "stop": ("<think>",)}, "ab"),
        ({"skip_special_tokens": False, "temperature": 0.0, "beams": BeamParams()}, "a<think>b"),
    ],
)
def test_special_tokens_are_text_only_where_they_are_wanted(fields: dict[str, object], text: str) -> None:
    assert text_of([5, 2, 6, 1], stop_token=1, **fields) == text


def test_an_end_token_that_ends_nothing_is_a_special_token_like_any() -> None:
    assert text_of([5, 1, 6], ignore_eos=True, skip_special_tokens=False) == "a<end>b"
    assert text_of([5, 1, 6], ignore_eos=True) == "ab"
