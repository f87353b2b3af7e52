"""What the two generating routes take, and how it becomes the engine's own parameters.

Names and defaults are OpenAI's; extensions are named, and mean, what they do in vLLM. What becomes of any
other field is in `request_fields`. Bounds on values live in `SamplerParams`; what depends on the model (the
vocabulary) is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from pydantic import BaseModel, BeforeValidator, ConfigDict, FailFast

from octavo.engine.bad_words import BAD_WORDS_MAX
from octavo.errors import InvalidRequest, require_range
from octavo.params import (
    CACHE_SALT_CHARS_MAX,
    CHOICES_MAX,
    LOGIT_BIAS_MAX,
    PRIORITY_MAX,
    STOP_STRINGS_MAX,
    STOP_TOKENS_MAX,
    TEMPLATE_KWARGS_CHARS_MAX,
    BeamParams,
    SamplerParams,
    Timeouts,
)
from octavo.server.output_format import FormatBody
from octavo.server.tool_fields import AnswerBody, ToolsBody
from octavo.tools.definitions import tools_of
from octavo.types import ChatOptions

# Bounds on what the engine does not bound itself.
TEMPLATE_KWARGS_MAX = 64

# Fields of beam search, with the values that mean nothing without it.
_OF_BEAMS: Final[Mapping[str, tuple[object, ...]]] = {
    "beam_width": (None,),
    "length_penalty": (None, 1.0),
    "early_stopping": (None, False),
}

# `SamplerParams` measures; a client knows fields.
_FIELD_OF = {
    "length of a stop string": "stop",
    "length of a bad word": "bad_words",
    "number of allowed_token_ids": "allowed_token_ids",
    "banned_sequences": "bad_words",
}


class ModelBounds(Protocol):
    """What a request is checked against."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together, at most."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The `banned_sequences` that keep these words out of an answer."""


def _at_most(limit: int) -> BeforeValidator:
    """Refuse a long list or object before its items are looked at: each wrong item would make an error of
    its own.
    """

    def check(given: object) -> object:
        if isinstance(given, (list, dict)) and len(given) > limit:
            raise ValueError(f"{len(given):,} entries; allowed: up to {limit:,}")
        return given

    return BeforeValidator(check)


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """What the chunks of a stream tell of the usage: the whole in a last chunk, the usage so far in each."""

    last: bool = False
    every: bool = False


class StreamOptions(BaseModel):
    """`stream_options`."""

    model_config = ConfigDict(strict=True, extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TermsBody(BaseModel):
    """On which terms a request runs, and with whom it shares blocks; null means the default."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    cache_salt: str | None = None
    priority: int | None = None
    # Our own: seconds.
    timeout: float | None = None
    queue_timeout: float | None = None
    ttft_timeout: float | None = None

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
    def salt(self) -> str:
        """`cache_salt`, "" for none."""
        if self.cache_salt is not None and not 1 <= len(self.cache_salt) <= CACHE_SALT_CHARS_MAX:
            raise InvalidRequest(
                f"cache_salt has {len(self.cache_salt):,} characters; allowed: 1 to {CACHE_SALT_CHARS_MAX:,}",
                param="cache_salt",
            )
        return self.cache_salt or ""


class GenerationBody(FormatBody, TermsBody):
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
    repeat_penalty: float | None = None  # llama-server's name of it
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    stop_token_ids: Annotated[list[int] | None, _at_most(STOP_TOKENS_MAX)] = None
    include_stop_str_in_output: bool | None = None
    skip_special_tokens: bool | None = None
    allowed_token_ids: Annotated[list[int] | None, FailFast()] = None
    bad_words: Annotated[list[str] | None, _at_most(BAD_WORDS_MAX)] = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    speculate: bool | None = None
    use_beam_search: bool | None = None
    beam_width: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None

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
    def usage_options(self) -> UsageOptions:
        """What the chunks of a stream shall tell."""
        options = self.stream_options or StreamOptions()
        is_wanted = bool(options.include_usage)
        return UsageOptions(is_wanted, is_wanted and bool(options.continuous_usage_stats))


class ChatOptionsBody(ToolsBody):
    """How messages become a prompt."""

    model_config = ConfigDict(strict=True, extra="ignore", allow_inf_nan=False)

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, object] | None, _at_most(TEMPLATE_KWARGS_MAX)] = None
    allow_control_tokens: bool | None = None

    @property
    def chat_options(self) -> ChatOptions:
        """As the template is told. Raises InvalidRequest for options that contradict each other."""
        if self.continue_final_message and self.add_generation_prompt:
            raise InvalidRequest(
                "continue_final_message and add_generation_prompt are both true; allowed: one of them (a "
                "message that goes on has no beginning)",
                param="continue_final_message",
            )
        begins, goes_on = self.add_generation_prompt, bool(self.continue_final_message)
        return ChatOptions(
            add_generation_prompt=not goes_on if begins is None else begins,
            continue_final_message=goes_on,
            template_kwargs=self.thinking_kwargs | (self.chat_template_kwargs or {}),
            tools=tuple(tool.given for tool in tools_of(self.tools)),
            allow_control_tokens=bool(self.allow_control_tokens),
        )


class ChatBody(GenerationBody, ChatOptionsBody, AnswerBody):
    """POST /v1/chat/completions. `messages` is read by `chat_messages`, which explains itself better."""

    messages: object = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    session: str | None = None  # our own: "new", or the id of one


class TokenizeBody(ChatOptionsBody):
    """POST /tokenize, of text or of a chat."""

    model: str | None = None
    prompt: str | None = None
    messages: object = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None


class DetokenizeBody(BaseModel):
    """POST /detokenize. `tokens` is read by the route, before its items are looked at."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    tokens: object = None


class CompletionBody(GenerationBody):
    """POST /v1/completions. `prompt` is read by `prompts_of`."""

    prompt: object = None
    suffix: str | None = None
    echo: bool | None = None
    best_of: int | None = None
    logprobs: int | None = None


def check_stream_options(body: GenerationBody) -> None:
    """Raise InvalidRequest for combinations that mean nothing."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is only allowed when stream is false", param="prompt_logprobs")


def check_options(body: ChatOptionsBody) -> None:
    """Raise InvalidRequest for options that no template is given."""
    size = len(json.dumps(body.chat_options.template_kwargs, ensure_ascii=False))
    if size > TEMPLATE_KWARGS_CHARS_MAX:
        raise InvalidRequest(
            f"chat_template_kwargs has {size:,} characters as JSON; allowed: {TEMPLATE_KWARGS_CHARS_MAX:,}",
            param="chat_template_kwargs",
        )


def sampling_params(
    body: GenerationBody,
    model: ModelBounds,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None,
) -> SamplerParams:
    """The engine's parameters; raises InvalidRequest that names the client's field."""
    vocab_size = model.vocab_size
    beams, is_greedy = body.beams, body.top_p == 0  # of which the likeliest token alone is left
    try:
        return SamplerParams(
            max_tokens=max_tokens,
            temperature=0.0 if is_greedy else _or(body.temperature, 1.0 if beams is None else 0.0),
            top_k=body.top_k or 0,
            top_p=1.0 if is_greedy else _or(body.top_p, 1.0),
            min_p=_or(body.min_p, 0.0),
            repetition_penalty=_or(_repetition_penalty(body), 1.0),
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
            skip_special_tokens=body.skip_special_tokens is not False,
            allowed_token_ids=_allowed_tokens(body.allowed_token_ids, vocab_size),
            banned_sequences=model.bad_word_ids(body.bad_words) if body.bad_words else (),
            beams=beams,
            grammar=body.output_grammar,
            speculate=body.speculate is not False,
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


def _repetition_penalty(body: GenerationBody) -> float | None:
    """By either name."""
    ours, theirs = body.repetition_penalty, body.repeat_penalty
    if ours is not None and theirs is not None and ours != theirs:
        raise InvalidRequest(
            f"repeat_penalty is {theirs!r} and repetition_penalty {ours!r}; allowed: one of them, which are "
            "two names of one thing",
            param="repeat_penalty",
        )
    return theirs if ours is None else ours


def _allowed_tokens(given: list[int] | None, vocab_size: int) -> tuple[int, ...] | None:
    if given is None:
        return None
    require_range("number of allowed_token_ids", len(given), 1, vocab_size)
    for token in given:
        check_token("allowed_token_ids", token, vocab_size)
    return tuple(given)


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
