"""Ollama's requests, /api/chat and /api/generate, as a `ChatBody`: names and defaults are Ollama's, bounds
ours.

    options          num_predict -> max_tokens; temperature, top_k, top_p, min_p, seed, stop, penalties
    format           -> response_format
    think            -> enable_thinking, reasoning_effort
    tools, messages  by `ollama_messages`

No answer here. Source: ollama's `api/types.go` and `server/routes.go`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from octavo.errors import InvalidRequest, UnknownModel, is_number, require_range, shown, wrong_value
from octavo.params import LOGPROBS_MAX, TOKENS_MAX
from octavo.server.body import validate
from octavo.server.dialects.ollama_messages import OllamaMessage
from octavo.server.errors import JsonObject
from octavo.server.field_list import Body, SchemaOf, done, field_list
from octavo.server.openai_schema import ChatBody
from octavo.serving.client import EngineClient

# The chat path's fields, and Ollama's names for them in errors.
NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "response_format": "format",
    "reasoning_effort": "think",
    "continue_final_message": "messages",
} | {
    name: f"options.{name}"
    for name in (
        "num_ctx",
        "num_predict",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "seed",
        "stop",
        "repeat_penalty",
        "presence_penalty",
        "frequency_penalty",
    )
}
# Ollama's sampling defaults.
DEFAULTS: Final[Mapping[str, object]] = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}

_EFFORTS: Final = ("low", "medium", "high", "max")
_PENALTIES: Final[Mapping[str, tuple[object, ...]]] = {
    "repeat_penalty": (None, 1),
    "presence_penalty": (None, 0),
    "frequency_penalty": (None, 0),
}
_PENALTY_OPTIONS: Final = ("penalize_newline",)  # they change nothing without a penalty
_WHOLE: Final = ("num_ctx", "num_predict", "top_k", "seed", "repeat_last_n")
_RANDOM_SEED: Final = -1
_TAG: Final = ":latest"
_UNLOAD_NOW: Final = ("0", "0s", "0m", "0h")


class OllamaOptions(Body):
    """`options`."""

    num_ctx: int | None = done("bounded by the served context; changes nothing")
    num_predict: int | None = done("0 or less: up to the end of the context, which bounds larger values too")
    temperature: float | None = done("0 to 2; default 0.8")
    top_k: int | None = done("default 40; 0 keeps all")
    top_p: float | None = done("default 0.9")
    min_p: float | None = done()
    seed: int | None = done("-1: random")
    # ChatBody bounds the list before it checks the items.
    stop: object = done("a string, or up to 16 of up to 256 characters")
    repeat_last_n: int | None = done("0: no penalties; otherwise they cover all tokens")
    repeat_penalty: float | None = done("over prompt and output")
    presence_penalty: float | None = done()
    frequency_penalty: float | None = done()


class OllamaNamedBody(Body):
    """The field of all these routes."""

    model: str | None = done("the served model's name, with `:latest` or without")


class OllamaBody(OllamaNamedBody):
    """The fields that chats and prompts share."""

    stream: bool | None = done("default true")
    format: object = done("`json`, or a JSON schema; keywords that cannot be enforced are refused")
    options: Annotated[dict[str, object] | None, SchemaOf(OllamaOptions | None)] = done()
    keep_alive: float | str | None = done(
        "0 without messages or prompt: the answer is `unload`, and the model stays"
    )
    think: bool | str | None = done("true, false, low, medium, high, max; passed to the template")
    logprobs: bool | None = done("of the raw distribution")
    top_logprobs: int | None = done("0 to 20, with logprobs")


class OllamaChatBody(OllamaBody):
    """POST /api/chat."""

    messages: Annotated[object, SchemaOf(list[OllamaMessage] | None)] = done(
        "text only; without messages the answer is `load`"
    )
    tools: object = done("up to 512 functions")


class OllamaGenerateBody(OllamaBody):
    """POST /api/generate."""

    prompt: str | None = done("without it the answer is `load`")
    suffix: str | None = done("text after the answer, if the model has fill-in-the-middle tokens")
    system: str | None = done("a system message before the prompt")
    raw: bool | None = done("the prompt is used as it is, without the chat template")


def check_name(given: str | None, model: EngineClient) -> str:
    """The model's name as the client wrote it, with ":latest" or without. Raises UnknownModel, or
    InvalidRequest if it is missing."""
    if not given:
        raise InvalidRequest(f"model is required; this server has: {model.name}", param="model")
    if given.removesuffix(_TAG) != model.name.removesuffix(_TAG):
        raise UnknownModel(f"model '{given[:100]}' not found; this server has: {model.name}", param="model")
    return given


def tagged(name: str) -> str:
    """The name as Ollama lists it: with a tag."""
    return name if ":" in name.rpartition("/")[2] else name + _TAG


def is_unload(keep_alive: float | str | None) -> bool:
    """Whether the client wants the model unloaded now."""
    return keep_alive in _UNLOAD_NOW if isinstance(keep_alive, str) else keep_alive == 0


def chat_body(body: OllamaBody, model: EngineClient, own: Mapping[str, object]) -> ChatBody:
    """The request in the chat path's form, with the route's `own` fields. Raises InvalidRequest."""
    return validate(
        ChatBody, chat_fields(body, model.context_length, own) | _thinking_fields(body.think, model)
    )


def chat_fields(body: OllamaBody, context_length: int, own: Mapping[str, object]) -> JsonObject:
    """The fields of `chat_body` that do not depend on the model. Raises InvalidRequest."""
    options = read_options(body.options or {}, context_length)
    if body.top_logprobs is not None:
        require_range("top_logprobs", body.top_logprobs, 0, LOGPROBS_MAX)
    given = options.model_dump(exclude_none=True, exclude={"num_ctx", "num_predict", "seed", "repeat_last_n"})
    if options.repeat_last_n == 0:  # penalties over no tokens
        given = {name: value for name, value in given.items() if name not in _PENALTIES}
    return {
        **DEFAULTS,
        **given,
        "max_tokens": _max_tokens(options.num_predict),
        "seed": None if options.seed == _RANDOM_SEED else options.seed,
        "response_format": _response_format(body.format),
        "logprobs": body.logprobs,
        "top_logprobs": body.top_logprobs if body.logprobs else None,
        **own,
    }


def read_options(given: Mapping[str, object], context_length: int) -> OllamaOptions:
    """`options`, checked. As in Ollama, a whole number may be written as 40.0. Raises InvalidRequest."""
    has_penalty = any(given.get(name) not in neutral for name, neutral in _PENALTIES.items())
    ignored = () if has_penalty else _PENALTY_OPTIONS
    given = {name: value for name, value in given.items() if not (name in ignored and is_number(value))}
    field_list(OllamaOptions).check(given, "options.")
    requested_context(given, context_length)
    return validate(OllamaOptions, _whole(given))


def requested_context(options: Mapping[str, object], context_length: int) -> int:
    """`num_ctx`, bounded by the served context; that context if it is missing or 0. Raises InvalidRequest."""
    num_ctx = validate(OllamaOptions, _whole({"num_ctx": options.get("num_ctx")})).num_ctx
    if num_ctx is not None:
        require_range("num_ctx", num_ctx, 0, TOKENS_MAX)
    return min(num_ctx or context_length, context_length)


def _whole(options: Mapping[str, object]) -> JsonObject:
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() and name in _WHOLE else value
        for name, value in options.items()
    }


def _max_tokens(given: int | None) -> int | None:
    return None if given is None or given <= 0 else min(given, TOKENS_MAX)


def _response_format(given: object) -> JsonObject | None:
    if given in (None, ""):
        return None
    if given == "json":
        return {"type": "json_object"}
    if isinstance(given, Mapping):
        return {"type": "json_schema", "json_schema": {"schema": given}}
    raise wrong_value("format", given, '"json", or a JSON schema')


def _thinking_fields(think: bool | str | None, model: EngineClient) -> JsonObject:
    """Without `think` the model's template decides."""
    if think is None:
        return {}
    if isinstance(think, str) and think not in _EFFORTS:
        raise wrong_value("think", think, f"true, false, {', '.join(_EFFORTS)}")
    if think is not False and not model.answers.thinks:
        raise InvalidRequest(
            f"think is {shown(think)}, and {model.name} does not support thinking; allowed: false, or none",
            param="think",
        )
    fields: JsonObject = {"enable_thinking": think is not False}
    return fields | ({"reasoning_effort": think} if isinstance(think, str) else {})
