"""Arguments given once for all prompts or once for each, and arguments that are refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn, cast

from octavo.api.params import RequestOrder, SamplingParams
from octavo.errors import InvalidRequest, is_number, require_range, shown
from octavo.params import PRIORITY_MAX, TOKENS_MAX, SamplerParams

_ID_DIGITS = 19  # no request's number is longer


@dataclass(frozen=True, slots=True)
class Tokenization:
    """Options for tokenising texts."""

    add_special_tokens: bool = True
    truncate_prompt_tokens: int | None = None  # keep the last so many; -1: all that fit

    def applied_to(self, order: RequestOrder) -> RequestOrder:
        """The order with truncation of the prompt, unless it has that already."""
        if self.truncate_prompt_tokens is None or order.truncate_prompt_tokens is not None:
            return order
        return replace(order, truncate_prompt_tokens=self.truncate_prompt_tokens)


def tokenization_of(given: Mapping[str, object] | None, truncate: int | None = None) -> Tokenization:
    """From vLLM's `tokenization_kwargs`, and the separate argument. Raises InvalidRequest."""
    fields = dict(given or {})
    begins = fields.pop("add_special_tokens", True)
    most = fields.pop("truncate_prompt_tokens", truncate)
    if fields or not isinstance(begins, bool):
        raise InvalidRequest(
            f"tokenization_kwargs is {shown(given)}; allowed: add_special_tokens, truncate_prompt_tokens",
            param="tokenization_kwargs",
        )
    if most not in (None, -1):
        require_range("truncate_prompt_tokens", cast(int, most), 1, TOKENS_MAX, whole=True)
    return Tokenization(begins, cast("int | None", most))


def each_params(given: object, count: int) -> list[SamplingParams | SamplerParams]:
    """The parameters of each of `count` prompts. Raises InvalidRequest."""
    if given is None:
        return [SamplingParams()] * count
    if isinstance(given, SamplingParams | SamplerParams):
        return [given] * count
    each: list[SamplingParams | SamplerParams] = []
    for params in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(params, SamplingParams | SamplerParams):
            raise InvalidRequest(
                f"sampling_params holds {shown(params)}; allowed: SamplingParams, or a list with one for "
                "each prompt",
                param="sampling_params",
            )
        each.append(params)
    if len(each) != count:
        raise InvalidRequest(
            f"{len(each)} sampling_params for {count} prompts; allowed: one, or one each",
            param="sampling_params",
        )
    return each


def each_priority(given: int | Sequence[int] | None, count: int) -> list[int]:
    """The priority of each of `count` prompts. Raises InvalidRequest."""
    if given is None:
        return [0] * count
    each = cast("list[int]", [given] * count if is_number(given) else list(cast("Sequence[int]", given)))
    for one in each:
        require_range("priority", one, -PRIORITY_MAX, PRIORITY_MAX, whole=True)
    if len(each) != count:
        raise InvalidRequest(
            f"{len(each)} priorities for {count} prompts; allowed: one, or one each", param="priority"
        )
    return each


def request_numbers(given: object) -> list[int]:
    """Request ids from one or several, each a number or, as in outputs, its text. Raises InvalidRequest."""
    is_one = isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable)
    return [_request_number(one) for one in ([given] if is_one else cast("Iterable[object]", given))]


def _request_number(given: object) -> int:
    is_text = isinstance(given, str) and given.isascii() and given.isdecimal() and len(given) <= _ID_DIGITS
    if not is_text and not is_number(given, whole=True):
        raise InvalidRequest(
            f"a request id is {shown(given)}; allowed: the number that add_request gave, the text of it, or "
            "a list of these",
            param="request_ids",
        )
    return int(cast("int | str", given))


def refuse_lora(given: object) -> None:
    """Raise InvalidRequest if an adapter is given."""
    if given is not None:
        raise InvalidRequest(
            f"lora_request is {shown(given)}, which is not supported; use instead: None, and a model with "
            "the adapter merged into its weights",
            param="lora_request",
            code="unsupported_parameter",
        )


def refuse_task(name: str, instead: str) -> NoReturn:
    """Raise InvalidRequest for a task that the served models do not support."""
    raise InvalidRequest(
        f"{name}() is not supported: models here have no head for it; use instead: {instead}",
        code="unsupported_parameter",
    )
