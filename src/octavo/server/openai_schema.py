"""What the two generating routes take, and how it becomes the engine's own parameters.

Names and defaults are OpenAI's; extensions are named, and mean, what they do in vLLM. Fields that would
change the answer and are not built are refused by name; fields nobody knows are ignored, as OpenAI's clients
expect of a server. Bounds on values live in `SamplingParams`; what depends on the model (the vocabulary) is
checked here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import BaseModel, BeforeValidator, ConfigDict

from octavo.errors import InvalidRequest, require_range
from octavo.server.errors import JsonObject
from octavo.types import (
    CHOICES_MAX,
    LOGIT_BIAS_MAX,
    PRIORITY_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKENS_MAX,
    BeamParams,
    SamplingParams,
    Timeouts,
)

# Fields that change the answer and are not built, with the values under which they change nothing.
UNSUPPORTED: Final[Mapping[str, tuple[object, ...]]] = {
    "tools": (None, []),
    "tool_choice": (None, "none", "auto"),
    "functions": (None, []),
    "function_call": (None, "none", "auto"),
    "response_format": (None, {"type": "text"}),
    "modalities": (None, ["text"]),
    "audio": (None,),
    "web_search_options": (None,),
    "reasoning_effort": (None,),
    "suffix": (None, ""),
    "structured_outputs": (None,),
    "guided_json": (None,),
    "guided_regex": (None,),
    "guided_choice": (None,),
    "guided_grammar": (None,),
    "chat_template": (None,),
    "add_generation_prompt": (None, True),
    "continue_final_message": (None, False),
    "bad_words": (None, []),
    "allowed_token_ids": (None,),
    "truncate_prompt_tokens": (None,),
    "skip_special_tokens": (None, True),
}

# Fields of beam search, with the values that mean nothing without it.
_OF_BEAMS: Final[Mapping[str, tuple[object, ...]]] = {
    "beam_width": (None,),
    "length_penalty": (None, 1.0),
    "early_stopping": (None, False),
}

# `SamplingParams` measures; a client knows fields.
_FIELD_OF = {"length of a stop string": "stop"}


def _at_most(limit: int) -> BeforeValidator:
    """Refuse a long list or object before its items are looked at: each wrong item would make an error of
    its own.
    """

    def check(given: object) -> object:
        if isinstance(given, (list, dict)) and len(given) > limit:
            raise ValueError(f"{len(given):,} entries; allowed: up to {limit:,}")
        return given

    return BeforeValidator(check)


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None


class GenerationBody(BaseModel):
    """The fields that both routes share; null means the default everywhere."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    model: str | None = None
    n: int | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: Annotated[str | list[str] | None, _at_most(STOP_STRINGS_MAX)] = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Annotated[dict[str, float] | None, _at_most(LOGIT_BIAS_MAX)] = None
    seed: int | None = None
    # Extensions, as in vLLM.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int] | None, _at_most(STOP_TOKENS_MAX)] = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = None
    priority: int | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    # Our own: seconds.
    timeout: float | None = None
    queue_timeout: float | None = None
    ttft_timeout: float | None = None

    @property
    def num_choices(self) -> int:
        """`n`, bounded before anything is made of it."""
        count = 1 if self.n is None else self.n
        require_range("n", count, 1, CHOICES_MAX)
        return count

    @property
    def beams(self) -> BeamParams | None:
        """The beam search that is asked for. `beam_width` is by default `n`, and at least 2."""
        if not self.use_beam_search:
            for name, harmless in _OF_BEAMS.items():
                if getattr(self, name) not in harmless:
                    raise InvalidRequest(f"{name} is only allowed with use_beam_search true", param=name)
            return None
        return BeamParams(
            max(2, self.num_choices) if self.beam_width is None else self.beam_width,
            _or(self.length_penalty, 1.0),
            self.early_stopping or False,  # type: ignore[arg-type]  # BeamParams checks the word
        )

    @property
    def engine_priority(self) -> int:
        """vLLM's `priority` runs lower values earlier; the engine runs higher ones earlier."""
        given = self.priority or 0
        require_range("priority", given, -PRIORITY_MAX, PRIORITY_MAX)
        return -given

    @property
    def timeouts(self) -> Timeouts:
        """How long the client wants to wait."""
        return Timeouts(self.timeout, self.queue_timeout, self.ttft_timeout)

    @property
    def wants_usage(self) -> bool:
        """True when a stream shall end with a chunk that tells the usage."""
        return bool(self.stream_options and self.stream_options.include_usage)


class ChatBody(GenerationBody):
    """POST /v1/chat/completions. `messages` is read by `chat_messages`, which explains itself better."""

    messages: object = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    session: str | None = None  # our own: "new", or the id of one


class CompletionBody(GenerationBody):
    """POST /v1/completions. `prompt` is read by `prompts_of`."""

    prompt: object = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


def refuse_unsupported(body: JsonObject) -> None:
    """Raise InvalidRequest for a field that asks for something that is not built."""
    for name, harmless in UNSUPPORTED.items():
        if name in body and body[name] not in harmless:
            raise InvalidRequest(
                f"{name} is not supported by this server; leave it out",
                param=name,
                code="unsupported_parameter",
            )


def check_stream_options(body: GenerationBody) -> None:
    """Raise InvalidRequest for combinations that mean nothing."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is only allowed when stream is false", param="prompt_logprobs")


def sampling_params(
    body: GenerationBody,
    vocab_size: int,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplingParams:
    """The engine's parameters; raises InvalidRequest that names the client's field."""
    beams = body.beams
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            temperature=_or(body.temperature, 1.0 if beams is None else 0.0),
            top_k=0 if body.top_k is None or body.top_k == -1 else body.top_k,
            top_p=_or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            repetition_penalty=_or(body.repetition_penalty, 1.0),
            presence_penalty=_or(body.presence_penalty, 0.0),
            frequency_penalty=_or(body.frequency_penalty, 0.0),
            logit_bias=_logit_bias(body.logit_bias or {}, vocab_size),
            min_tokens=body.min_tokens or 0,
            stop=_stop_strings(body.stop),
            stop_token_ids=_stop_tokens(body.stop_token_ids or [], vocab_size),
            ignore_eos=bool(body.ignore_eos),
            logprobs=logprobs,
            prompt_logprobs=prompt_logprobs,
            seed=body.seed,
            include_stop=bool(body.include_stop_str_in_output),
            beams=beams,
        )
    except InvalidRequest as error:
        field = _FIELD_OF.get(error.param or "", error.param)
        raise InvalidRequest(str(error), param=field, code=error.code) from None


def check_token(name: str, token: int, vocab_size: int) -> None:
    """Raise InvalidRequest unless `token` is in the vocabulary."""
    if not 0 <= token < vocab_size:
        raise InvalidRequest(
            f"{name} holds the token id {token}; allowed: 0 to {vocab_size - 1:,}",
            param=name,
            code="invalid_token_id",
        )


def _or(given: float | None, default: float) -> float:
    return default if given is None else given


def _logit_bias(given: Mapping[str, float], vocab_size: int) -> tuple[tuple[int, float], ...]:
    """JSON object keys are strings; each must be a token id in decimal."""
    pairs = []
    for key, bias in given.items():
        if not (key.isascii() and key.isdecimal() and len(key) <= 10):
            raise InvalidRequest(
                f'logit_bias has the key {key[:40]!r}; allowed: token ids, such as "42"', param="logit_bias"
            )
        check_token("logit_bias", int(key), vocab_size)
        pairs.append((int(key), bias))
    return tuple(pairs)


def _stop_strings(given: str | list[str] | None) -> tuple[str, ...]:
    """OpenAI takes one string or a list; an empty string, which would stop everything, means none."""
    listed = [given] if isinstance(given, str) else given or []
    return tuple(text for text in listed if text)


def _stop_tokens(given: list[int], vocab_size: int) -> tuple[int, ...]:
    for token in given:
        check_token("stop_token_ids", token, vocab_size)
    return tuple(given)
