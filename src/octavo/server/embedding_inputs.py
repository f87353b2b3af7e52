"""`input` of POST /v1/embeddings, in every form that OpenAI allows, as token ids.

Each input fits the context, or is cut to fit if the client requests it. The form of all inputs is checked
before the first is encoded.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from octavo.errors import InvalidRequest
from octavo.server.dialects.common import rename_fields
from octavo.server.openai_schema import ModelBounds
from octavo.server.prompts import token_ids, too_long
from octavo.serving.client import EngineClient

INPUTS_MAX = 2048  # OpenAI's limit
_FORMS = "a string, a list of strings, token ids, or a list of lists of them"


@dataclass(frozen=True, slots=True)
class Truncation:
    """A cut of longer inputs: to the first `keep` tokens, or with `from_left` to the last."""

    keep: int
    from_left: bool = False

    def apply(self, tokens: list[object]) -> list[object]:
        """The tokens that remain."""
        return tokens[-self.keep :] if self.from_left else tokens[: self.keep]


async def read_inputs(
    raw: object,
    model: EngineClient,
    *,
    tenant: str,
    cut: Truncation | None = None,
    add_special_tokens: bool = True,
) -> list[tuple[int, ...]]:
    """The token ids of each input, at least one. Raises InvalidRequest, RequestTooLarge and QueueFull."""
    inputs = _check_forms(raw)
    found = []
    for index, item in enumerate(inputs):
        where = _place(index, inputs)
        if isinstance(item, str):
            with rename_fields({"prompt": "input"}):
                item = await model.encode(item, tenant=tenant, add_special_tokens=add_special_tokens)
            if not item:
                raise _wrong_input(f"{where} has no tokens")
        else:
            await asyncio.sleep(0)  # a body may hold millions of ids: other streams run between inputs
        found.append(_ids(item, where, model, cut))
    return found


def check_inputs(raw: object, model: ModelBounds, cut: Truncation | None) -> None:
    """Raise InvalidRequest for inputs that are wrong whatever their texts are."""
    inputs = _check_forms(raw)
    for index, item in enumerate(inputs):
        if isinstance(item, list):
            _ids(item, _place(index, inputs), model, cut)


def _place(index: int, inputs: list[object]) -> str:
    return f"input[{index}]" if len(inputs) > 1 else "input"


def _check_forms(raw: object) -> list[object]:
    """The inputs as a list. Raises InvalidRequest for one of a wrong form."""
    inputs = _as_list(raw)
    for index, item in enumerate(inputs):
        if not isinstance(item, str | list) or not item:
            raise _wrong_input(f"input[{index}] is empty, or neither text nor token ids")
    return inputs


def _as_list(raw: object) -> list[object]:
    if isinstance(raw, str):
        return [raw]
    if not isinstance(raw, list) or not raw:
        raise _wrong_input("it is missing or empty")
    if isinstance(raw[0], int):
        return [raw]
    if len(raw) > INPUTS_MAX:
        raise InvalidRequest(f"input has {len(raw):,} inputs; allowed: 1 to {INPUTS_MAX:,}", param="input")
    return raw


def _ids(given: object, where: str, model: ModelBounds, cut: Truncation | None) -> tuple[int, ...]:
    assert isinstance(given, list)
    tokens = given if cut is None else cut.apply(given)
    if len(tokens) > model.context_length:
        raise too_long(f"{where} has {len(tokens):,} tokens", "input", model.context_length)
    return token_ids(tokens, "input", model)


def _wrong_input(reason: str) -> InvalidRequest:
    return InvalidRequest(f"input is wrong: {reason}; allowed: {_FORMS}", param="input")
