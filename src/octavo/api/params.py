"""The parameters of a request, in vLLM's names and with vLLM's defaults, and their conversion for the engine.

    SamplingParams --order_of(tokenizer)--> RequestOrder(SamplerParams, n, ...)

Unlike the engine's parameters, these values are mutable until they are used. So they are checked when they
are made, and again when they are used.
"""

from __future__ import annotations

import copy
import enum
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Self, cast

from octavo.engine.bad_words import bad_word_ids
from octavo.errors import InvalidRequest, as_items, require_range, shown
from octavo.grammar import ANY_OBJECT, Grammar, GrammarKind, Thinking, of_choices, of_schema, of_text
from octavo.params import BEAM_WIDTH_MAX, CHOICES_MAX, TOKENS_MAX, BeamParams, Pooling, SamplerParams
from octavo.serving.embedding import pooling_params
from octavo.text.tokenizer import Tokenizer


class RequestOutputKind(enum.Enum):
    """The outputs that `AsyncLLM.generate` yields."""

    CUMULATIVE = 0  # all so far, repeatedly
    DELTA = 1  # the new part since the last output
    FINAL_ONLY = 2  # one complete output


@dataclass(slots=True)
class StructuredOutputsParams:
    """A constraint of the output: exactly one of the first five."""

    json: str | Mapping[str, object] | None = None  # a JSON schema
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None  # EBNF as llama.cpp writes it, or Lark
    json_object: bool | None = None
    disable_any_whitespace: bool = False  # JSON has a space after commas and colons, and no other, either way
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    structural_tag: str | None = None

    def __post_init__(self) -> None:
        self.as_grammar()

    def as_grammar(self) -> Grammar:
        """The grammar for the engine. Raises InvalidRequest."""
        for name, instead in _UNBUILT_OUTPUTS.items():
            if _plain(getattr(self, name)) not in (None, False):
                raise _unsupported(f"structured_outputs.{name}", getattr(self, name), instead)
        names = ("json", "regex", "choice", "grammar", "json_object")
        given = {name: _plain(getattr(self, name)) for name in names}
        found = [name for name, value in given.items() if value is not None and value is not False]
        if len(found) != 1:
            raise InvalidRequest(
                f"structured_outputs has {' and '.join(found) or 'none'} of {', '.join(given)}; allowed: one",
                param="structured_outputs",
            )
        (name,) = found
        value, param = given[name], f"structured_outputs.{name}"
        match name:
            case "json":
                return of_schema(value, param)
            case "json_object":
                return of_schema(ANY_OBJECT, param)
            case "choice":
                return of_choices(value, param)
            case "regex":
                return of_text(GrammarKind.REGEX, value, param)
        is_gbnf = isinstance(value, str) and "::=" in value
        return of_text(GrammarKind.GBNF if is_gbnf else GrammarKind.LARK, value, param)


_UNBUILT_OUTPUTS = {
    "disable_additional_properties": 'write "additionalProperties": false into the schema',
    "whitespace_pattern": "JSON has a space behind commas and colons, and no other",
    "structural_tag": "chat's tools, or a grammar",
}


@dataclass(slots=True)
class BeamSearchParams:
    """A search for the likeliest outputs, for `LLM.beam_search`. The ranking of hypotheses and the end of the
    search are those of transformers."""

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    structured_outputs: StructuredOutputsParams | None = None

    def __post_init__(self) -> None:
        self.order()

    def order(self) -> RequestOrder:
        """The order for the engine. Raises InvalidRequest."""
        require_range("beam_width", self.beam_width, 1, BEAM_WIDTH_MAX, whole=True)
        require_range("max_tokens", self.max_tokens, 1, TOKENS_MAX, whole=True)
        if self.structured_outputs is not None:
            raise _unsupported("structured_outputs", "given", "SamplingParams, without a search")
        params = SamplerParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            ignore_eos=self.ignore_eos,
            include_stop=self.include_stop_str_in_output,
            logprobs=0,
            beams=BeamParams(self.beam_width, self.length_penalty),
        )
        return RequestOrder(params, n=self.beam_width)


@dataclass(slots=True)
class PoolingParams:
    """The vectors of `LLM.embed`. `pooling`: "last" or "mean"; None: the served model's default.
    `dimensions`: keep so many leading numbers. `normalize`: to length one."""

    dimensions: int | None = None
    normalize: bool = True
    pooling: str | None = None
    task: str | None = None

    def __post_init__(self) -> None:
        self.check()

    def check(self) -> None:
        """Raise InvalidRequest for values that no model supports."""
        if self.dimensions is not None:
            require_range("dimensions", self.dimensions, 1, TOKENS_MAX, whole=True)
        for name, allowed in (
            ("normalize", (True, False)),
            ("pooling", (None, *map(str, Pooling))),
            ("task", (None, "embed")),
        ):
            if _plain(getattr(self, name)) not in allowed:
                words = ", ".join(map(str, allowed))
                raise InvalidRequest(f"{name} is {shown(getattr(self, name))}; allowed: {words}", param=name)

    def order(self, served: Pooling) -> RequestOrder:
        """The order for the engine. Raises InvalidRequest."""
        self.check()
        return RequestOrder(pooling_params(served if self.pooling is None else Pooling(self.pooling)))


@dataclass(frozen=True, slots=True)
class RequestOrder:
    """The order of one request for the engine, and the form of its output."""

    params: SamplerParams
    n: int = 1
    detokenize: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    truncate_prompt_tokens: int | None = None  # keep the last so many tokens of the prompt; -1: all that fit

    def with_seed(self, seed: int) -> RequestOrder:
        """The order with this seed, unless it has one already."""
        if self.params.seed is not None:
            return self
        return replace(self, params=replace(self.params, seed=seed))

    def params_for(self, num_prompt: int, context_length: int) -> SamplerParams:
        """The parameters for a prompt of so many tokens. As in vLLM, an output that would exceed the context
        ends at its end; a prompt that fills the context is left to be refused."""
        params, room = self.params, context_length - num_prompt
        if params.pooling is not None or params.max_tokens is None or not 1 <= room < params.max_tokens:
            return params
        return replace(params, max_tokens=None, min_tokens=min(params.min_tokens, room))


@dataclass(slots=True, repr=False)
class SamplingParams:
    """The sampling of a request's outputs, and their ends. Raises InvalidRequest when it is made, or when it
    is used.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all. `max_tokens` None continues to the end of the
    context. `logprobs` k requests the logprob of each token and of the k likeliest, up to 20.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    _: KW_ONLY
    detokenize: bool = True  # False: outputs have no text
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    structured_outputs: StructuredOutputsParams | None = None
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: Sequence[str] | None = None
    thinking_token_budget: int | None = None  # ends the thinking; no effect on other models
    truncate_prompt_tokens: int | None = None
    # Octavo's own; see `SamplerParams`.
    banned_sequences: Sequence[Sequence[int]] = ()
    beams: BeamParams | None = None  # search instead of sampling; returns the n best, ranked
    grammar: Grammar | None = None  # like `structured_outputs`, ready made
    thinking: Thinking | None = None
    speculate: bool = True
    # vLLM's fields that Octavo does not have: refused by name, unless they have their default.
    best_of: int | None = None
    use_beam_search: bool = False
    length_penalty: float = 1.0
    early_stopping: bool | str = False
    logits_processors: Sequence[object] | None = None
    guided_decoding: object = None
    logprob_token_ids: Sequence[int] | None = None
    prompt_logprob_token_ids: Sequence[int] | None = None
    prompt_logprob_start: int | None = None
    flat_logprobs: bool = False
    stream_interval: int | None = None
    repetition_detection: object = None
    extra_args: Mapping[str, object] | None = None
    skip_clone: bool = False  # nothing is cloned either way
    skip_reading_prefix_cache: bool | None = None
    routed_experts_prompt_start: int = 0
    trace_decode_token_ids: Sequence[int] | None = None

    def __post_init__(self) -> None:
        self._take_plain()
        if self.seed == -1:
            self.seed = None  # as in vLLM: none
        if self.stop is None:
            self.stop = []
        elif isinstance(self.stop, str):
            self.stop = [self.stop]
        self.check()

    def __repr__(self) -> str:
        """The values that differ from the defaults."""
        values = ((own, _plain(getattr(self, own.name))) for own in fields(self))
        changed = [f"{own.name}={value!r}" for own, value in values if value not in (own.default, [])]
        return f"SamplingParams({', '.join(changed)})"

    def check(self) -> None:
        """Raise InvalidRequest for values that no model supports."""
        self._sampler_params()

    def clone(self) -> Self:
        """An independent copy."""
        return copy.copy(self)

    def order_of(self, tokenizer: Tokenizer) -> RequestOrder:
        """The order for the engine. Raises InvalidRequest."""
        params = self._sampler_params()
        if words := self._words():
            banned = bad_word_ids(lambda text: tokenizer.encode(text, add_bos=False), words)
            params = replace(params, banned_sequences=params.banned_sequences + banned)
        template, budget = tokenizer.chat_template, self.thinking_token_budget
        if budget not in (None, -1) and self.thinking is None and template is not None:
            form = template.thinking_format
            params = params if form is None else replace(params, thinking=form.leading(budget))
        return RequestOrder(params, self.n, self.detokenize, self.output_kind, self.truncate_prompt_tokens)

    def _take_plain(self) -> None:
        """Convert arrays to lists, and their items to plain numbers."""
        for own in fields(self):
            setattr(self, own.name, _plain(getattr(self, own.name)))

    def _sampler_params(self) -> SamplerParams:
        self._take_plain()  # fields may have been set since it was made
        self._check()
        grammar = self.grammar if self.structured_outputs is None else self.structured_outputs.as_grammar()
        return SamplerParams(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            logit_bias=cast(
                "tuple[tuple[int, float], ...]", () if self.logit_bias is None else self.logit_bias
            ),
            min_tokens=self.min_tokens,
            stop=cast("tuple[str, ...]", () if self.stop is None else self.stop),
            stop_token_ids=cast(
                "tuple[int, ...]", () if self.stop_token_ids is None else self.stop_token_ids
            ),
            ignore_eos=self.ignore_eos,
            allowed_token_ids=cast("tuple[int, ...] | None", self.allowed_token_ids),
            banned_sequences=cast("tuple[tuple[int, ...], ...]", self.banned_sequences),
            logprobs=_count(self.logprobs),
            prompt_logprobs=_count(self.prompt_logprobs),
            seed=None if self.seed == -1 else self.seed,
            include_stop=self.include_stop_str_in_output,
            skip_special_tokens=self.skip_special_tokens,
            beams=self.beams,
            grammar=grammar,
            thinking=self.thinking,
            speculate=self.speculate,
        )

    def _check(self) -> None:
        require_range("n", self.n, 1, CHOICES_MAX, whole=True)
        for name, refusal in _REFUSED.items():
            if getattr(self, name) not in refusal.harmless:
                raise _unsupported(name, getattr(self, name), refusal.instead)
        for name in ("detokenize", "include_stop_str_in_output"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(
                    f"{name} is {shown(getattr(self, name))}; allowed: True or False", param=name
                )
        if self.stop and not self.detokenize:
            raise InvalidRequest(
                "detokenize is False; allowed with stop strings, which are found in the text: True",
                param="detokenize",
            )
        for name, kind in (
            ("structured_outputs", StructuredOutputsParams),
            ("grammar", Grammar),
            ("thinking", Thinking),
        ):
            if not isinstance(getattr(self, name), kind | None):
                raise InvalidRequest(
                    f"{name} is {shown(getattr(self, name))}; allowed: None, or {kind.__name__}", param=name
                )
        if self.structured_outputs is not None and self.grammar is not None:
            raise InvalidRequest(
                "structured_outputs and grammar are given together; allowed: one of them", param="grammar"
            )
        if not isinstance(self.output_kind, RequestOutputKind):
            raise InvalidRequest(
                f"output_kind is {shown(self.output_kind)}; allowed: RequestOutputKind", param="output_kind"
            )
        for name in ("thinking_token_budget", "truncate_prompt_tokens"):
            if getattr(self, name) not in (None, -1):
                least = 1 if name == "truncate_prompt_tokens" else 0
                require_range(name, getattr(self, name), least, TOKENS_MAX, whole=True)
        self._words()

    def _words(self) -> list[str]:
        """`bad_words`, checked."""
        words = "a list of words"
        given = () if self.bad_words is None else self.bad_words
        items = as_items("bad_words", given, words, TOKENS_MAX, of="number of bad_words")
        for item in items:
            if not isinstance(item, str):
                raise InvalidRequest(f"bad_words holds {shown(item)}; allowed: {words}", param="bad_words")
        return list(cast("tuple[str, ...]", items))


@dataclass(frozen=True, slots=True)
class _Refusal:
    """The allowed values of an unsupported field, and what to use instead."""

    instead: str
    harmless: tuple[object, ...] = field(default=(None,))


_REFUSED: Mapping[str, _Refusal] = {
    "spaces_between_special_tokens": _Refusal("True; tokens are written as they are", (True,)),
    "best_of": _Refusal("n, and choose by cumulative_logprob", (None, 1)),
    "use_beam_search": _Refusal("LLM.beam_search, or beams=BeamParams(...)", (False, None)),
    "length_penalty": _Refusal("LLM.beam_search, or beams=BeamParams(...)", (1.0, None)),
    "early_stopping": _Refusal("LLM.beam_search, or beams=BeamParams(...)", (False, None)),
    "logits_processors": _Refusal(
        "logit_bias, allowed_token_ids, bad_words or structured_outputs", (None, [], ())
    ),
    "guided_decoding": _Refusal("structured_outputs=StructuredOutputsParams(...)"),
    "logprob_token_ids": _Refusal("logprobs"),
    "prompt_logprob_token_ids": _Refusal("prompt_logprobs"),
    "prompt_logprob_start": _Refusal("prompt_logprobs, of which any can be left out", (None, 0)),
    "flat_logprobs": _Refusal("False; logprobs are a list of dicts", (False,)),
    "stream_interval": _Refusal("output_kind; outputs come as the engine makes them", (None, 1)),
    "repetition_detection": _Refusal("repetition_penalty, or stop"),
    "extra_args": _Refusal("nothing: there are no plugins", (None, {})),
    "skip_reading_prefix_cache": _Refusal("prompt_logprobs, which reads none, or cache_salt", (None, False)),
    "routed_experts_prompt_start": _Refusal("0", (0,)),
    "trace_decode_token_ids": _Refusal("prompt_logprobs of a prompt with these tokens"),
}


def order_of(given: SamplingParams | SamplerParams, tokenizer: Tokenizer) -> RequestOrder:
    """The order for the engine; `SamplerParams` pass unchanged. Raises InvalidRequest."""
    return RequestOrder(given) if isinstance(given, SamplerParams) else given.order_of(tokenizer)


def _plain(given: object) -> object:
    """A list for an array, a number for an array's item: arrays compare item by item, so they cannot be
    tested for equality."""
    tolist = getattr(given, "tolist", None)
    plain: object = tolist() if callable(tolist) else given
    return plain


def _count(given: int | None) -> int | None:
    """True counts as one, as in vLLM."""
    return 1 if given is True else given


def _unsupported(name: str, given: object, instead: str) -> InvalidRequest:
    return InvalidRequest(
        f"{name} is {shown(given)}, which is not supported; use instead: {instead}",
        param=name,
        code="unsupported_parameter",
    )
