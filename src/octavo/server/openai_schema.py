"""The bodies of chat, completion and tokenizer requests, and their conversion to the engine's parameters.

Names and defaults are OpenAI's; extensions have vLLM's names and meanings. `SamplerParams` checks the bounds
of values; bounds that depend on the model (the vocabulary) are checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol

from pydantic import BeforeValidator, FailFast, Field

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
from octavo.server.field_list import Body, SchemaOf, TokenIds, done, texts_or_tokens
from octavo.server.output_format import FormatBody
from octavo.server.tool_fields import AnswerBody, ToolsBody
from octavo.tools.definitions import tools_of
from octavo.types import ChatOptions

# Bounds that the engine does not check.
PROMPTS_MAX = 256
TEMPLATE_KWARGS_MAX = 64

# Fields of beam search, with the values that are ignored without it.
_BEAM_FIELDS: Final[Mapping[str, tuple[object, ...]]] = {
    "beam_width": (None,),
    "length_penalty": (None, 1.0),
    "early_stopping": (None, False),
}

# The client's field for what `SamplerParams` checks under another name.
_FIELD_OF = {
    "length of a stop string": "stop",
    "length of a bad word": "bad_words",
    "number of allowed_token_ids": "allowed_token_ids",
    "banned_sequences": "bad_words",
}


class ModelBounds(Protocol):
    """The model's limits that a request is checked against."""

    @property
    def context_length(self) -> int:
        """Tokens of prompt and output together, at most."""

    @property
    def vocab_size(self) -> int:
        """Token ids are in [0, vocab_size)."""

    def bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """The `banned_sequences` that keep these words out of an answer."""


def _at_most(limit: int) -> BeforeValidator:
    """Refuse a long list or object before its items are checked: each wrong item would make an error."""

    def check(given: object) -> object:
        if isinstance(given, (list, dict)) and len(given) > limit:
            raise ValueError(f"{len(given):,} entries; allowed: up to {limit:,}")
        return given

    return BeforeValidator(check)


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Which chunks of a stream have the usage: a last one, and every one with the usage so far."""

    last: bool = False
    every: bool = False


class StreamOptions(Body):
    """`stream_options`."""

    include_usage: bool | None = done("a last chunk with the usage", "OVLS")
    continuous_usage_stats: bool | None = done("the usage so far in every chunk", "VS")


class MessagePart(Body):
    """A part of the content of a message."""

    type: Literal["text", "input_text", "output_text", "refusal", "thinking"]
    text: str | None = None


class MessageCall(Body):
    """A call of an assistant's message."""

    function: dict[str, object]


class OpenAIMessage(Body):
    """`messages[]`."""

    role: Literal["system", "developer", "user", "assistant", "tool"] = done(
        "system, developer (as system), user, assistant, tool", "OVLS", ...
    )
    content: str | list[MessagePart] | None = done("text, or text parts", "OVLS")
    name: str | None = done("passed to the chat template", "OVLS")
    tool_calls: list[MessageCall] | None = done("of an assistant", "OVLS")
    tool_call_id: str | None = done("of a tool", "OVLS")
    reasoning_content: str | None = done("of an assistant: passed to the chat template", "VLS")
    reasoning: str | None = done("another name of reasoning_content", "V")


# Parsed in prompts.py.
Messages = Annotated[object, SchemaOf(Annotated[list[OpenAIMessage], Field(min_length=1)])]
Prompts = Annotated[object, texts_or_tokens(PROMPTS_MAX)]
Tokens = Annotated[object, SchemaOf(TokenIds)]


class ModelBody(Body):
    """The requested model."""

    model: str | None = done("the served model's name; optional", "OVLSX")


class TermsBody(Body):
    """Priority, timeouts and cache salt of a request; null means the default."""

    cache_salt: str | None = done(
        "1 to 256 characters; joins the tenant's; not with a session or a pin", "VS"
    )
    priority: int | None = done("lower runs earlier, as in vLLM", "VS")
    timeout: float | None = done("seconds until the last token", "X")
    queue_timeout: float | None = done("seconds until it is admitted", "X")
    ttft_timeout: float | None = done("seconds until the first token", "X")

    @property
    def engine_priority(self) -> int:
        """The engine's priority: higher runs earlier, where vLLM's `priority` runs lower values earlier."""
        given = self.priority or 0
        require_range("priority", given, -PRIORITY_MAX, PRIORITY_MAX)
        return -given

    @property
    def timeouts(self) -> Timeouts:
        """The client's timeouts."""
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


class GenerationBody(ModelBody, FormatBody, TermsBody):
    """The fields that chats and completions share; null means the default."""

    n: int | None = done("up to max_seqs, 64 at most", "OVLS")
    stream: bool | None = done("", "OVLS")
    stream_options: StreamOptions | None = done("with stream", "OVLS")
    max_tokens: int | None = done(
        "cut to the context; completions: default 16, 0 with echo scores the prompt", "OVLS"
    )
    temperature: float | None = done("default 1; 0 is greedy", "OVLS")
    top_p: float | None = done("0 takes the likeliest token", "OVLS")
    stop: Annotated[str | list[str] | None, _at_most(STOP_STRINGS_MAX)] = done(
        "up to 16 strings of 256 characters", "OVLS"
    )
    presence_penalty: float | None = done("", "OVLS")
    frequency_penalty: float | None = done("", "OVLS")
    logit_bias: Annotated[dict[str, float] | None, _at_most(LOGIT_BIAS_MAX)] = done(
        "token id -> -100 to 100", "OVLS"
    )
    seed: int | None = done("", "OVLS")
    top_k: int | None = done("0 or -1 keeps all", "VLS")
    min_p: float | None = done("", "VLS")
    repetition_penalty: float | None = done("", "VS")
    repeat_penalty: float | None = done("another name of repetition_penalty, over prompt and output", "L")
    min_tokens: int | None = done("not where a grammar leads the whole answer", "VS")
    ignore_eos: bool | None = done("", "VLS")
    stop_token_ids: Annotated[list[int] | None, _at_most(STOP_TOKENS_MAX)] = done("up to 64", "VS")
    include_stop_str_in_output: bool | None = done("", "V")
    skip_special_tokens: bool | None = done("default true", "VS")
    allowed_token_ids: Annotated[list[int] | None, FailFast()] = done(
        "not where a grammar leads the whole answer", "V"
    )
    bad_words: Annotated[list[str] | None, _at_most(BAD_WORDS_MAX)] = done(
        "up to 64 words of 256 characters; a grammar has the last word", "V"
    )
    prompt_logprobs: int | None = done("0 to 20, without stream", "V")
    return_token_ids: bool | None = done("prompt_token_ids and token_ids, in vLLM's places", "VS")
    speculate: bool | None = done("false: no token of it is guessed; the answer is the same", "X")
    use_beam_search: bool | None = done("", "V")
    beam_width: int | None = done("with use_beam_search; default n, at least 2", "X")
    length_penalty: float | None = done("with use_beam_search", "V")
    early_stopping: bool | str | None = done('with use_beam_search: false, true or "never"', "X")

    @property
    def num_choices(self) -> int:
        """`n`, checked against its bounds."""
        count = 1 if self.n is None else self.n
        require_range("n", count, 1, CHOICES_MAX)
        return count

    @property
    def beams(self) -> BeamParams | None:
        """The requested beam search, None without one. `beam_width` defaults to `n`, at least 2."""
        if not self.use_beam_search:
            for name, harmless in _BEAM_FIELDS.items():
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
        """The usage that the client wants in a stream."""
        options = self.stream_options or StreamOptions()
        is_wanted = bool(options.include_usage)
        return UsageOptions(is_wanted, is_wanted and bool(options.continuous_usage_stats))


class ChatOptionsBody(ToolsBody):
    """How messages become a prompt."""

    messages: Messages = done("text only", "OVLS")
    add_generation_prompt: bool | None = done("default true, without continue_final_message", "V")
    continue_final_message: bool | None = done("the answer goes on with the last message", "VLS")
    chat_template_kwargs: Annotated[dict[str, object] | None, _at_most(TEMPLATE_KWARGS_MAX)] = done(
        "up to 64 variables for the template", "VLS"
    )
    allow_control_tokens: bool | None = done(
        "operators only: text of messages may become control tokens", "X"
    )

    @property
    def chat_options(self) -> ChatOptions:
        """The template's options. Raises InvalidRequest if they contradict each other."""
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


class ChatBody(GenerationBody, ChatOptionsBody, AnswerBody, json_schema_extra={"required": ["messages"]}):
    """POST /v1/chat/completions."""

    max_completion_tokens: int | None = done("the newer name of max_tokens, which wins", "OVLS")
    logprobs: bool | None = done("true or false", "OVLS")
    top_logprobs: int | None = done("0 to 20, with logprobs true", "OVLS")
    session: str | None = done('"new", or the id of one', "X")


class TokenizeBody(ModelBody, ChatOptionsBody):
    """POST /tokenize, of text or of a chat."""

    prompt: str | None = done("text", "V")
    add_special_tokens: bool | None = done(
        "default true; with messages false, the template writes its own", "V"
    )
    return_token_strs: bool | None = done("the text of each token", "V")


class DetokenizeBody(ModelBody):
    """POST /detokenize."""

    tokens: Tokens = done("up to the context", "V")


class CompletionBody(GenerationBody, json_schema_extra={"required": ["prompt"]}):
    """POST /v1/completions."""

    prompt: Prompts = done("text, token ids, or a list of either", "OVLS")
    suffix: str | None = done("text after the answer, if the model has fill-in-the-middle tokens", "OVS")
    echo: bool | None = done("the prompt comes before the text", "OVS")
    best_of: int | None = done(
        "so many choices are made, the n likeliest per token returned; no stream", "OVS"
    )
    logprobs: int | None = done("0 to 20", "OVLS")


def check_stream_options(body: GenerationBody) -> None:
    """Raise InvalidRequest for fields that need, or exclude, `stream`."""
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    if body.stream and body.prompt_logprobs is not None:
        raise InvalidRequest("prompt_logprobs is only allowed when stream is false", param="prompt_logprobs")


def check_options(body: ChatOptionsBody) -> None:
    """Raise InvalidRequest for template options that are too long or contradict each other."""
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
    """The engine's parameters. Raises InvalidRequest, which names the client's field."""
    vocab_size = model.vocab_size
    beams, is_greedy = body.beams, body.top_p == 0  # top_p 0 keeps only the likeliest token
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
    """The penalty under either name."""
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
    """Pairs of token id and bias; a JSON object's keys are strings, here decimal token ids."""
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
    """One string or a list; an empty string, which would stop every answer, is dropped."""
    listed = [given] if isinstance(given, str) else given or []
    return tuple(text for text in listed if text)


def _stop_tokens(given: list[int], vocab_size: int) -> tuple[int, ...]:
    for token in given:
        check_token("stop_token_ids", token, vocab_size)
    return tuple(given)
