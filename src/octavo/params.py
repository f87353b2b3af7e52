"""A request's sampling parameters and timeouts: values that validate themselves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from octavo.errors import InvalidRequest, as_items, as_tokens, is_number, require_range, shown
from octavo.grammar import Grammar, Thinking

# Bounds of a request's values, checked before anything is allocated.
CHOICES_MAX = 64
LOGPROBS_MAX = 20
STOP_STRINGS_MAX = 16
STOP_STRING_CHARS_MAX = 256
STOP_TOKENS_MAX = 64
LOGIT_BIAS_MAX = 1024
SEED_MAX = 2**63 - 1
TOKENS_MAX = 2**31 - 1
PRIORITY_MAX = 1000
TIMEOUT_S_MAX = 86_400.0
BEAM_WIDTH_MAX = 16
LENGTH_PENALTY_MAX = 10.0
ALLOWED_TOKENS_MAX = 65_536
BANNED_SEQUENCES_MAX = 128
BANNED_SEQUENCE_TOKENS_MAX = 64
CACHE_SALT_CHARS_MAX = 256
TEMPLATE_KWARGS_CHARS_MAX = 64 << 10  # of chat_template_kwargs as JSON


class Pooling(enum.StrEnum):
    """How an embedding is pooled from a prompt's hidden rows (after the last norm)."""

    LAST = "last"  # that of the last token, which attends to all others
    MEAN = "mean"  # the mean of all


@dataclass(frozen=True, slots=True)
class BeamParams:
    """Beam search instead of sampling: the `width` likeliest continuations are kept at every step. Validates
    itself.

    A hypothesis that has ended scores the sum of its logprobs / (output tokens ** `length_penalty`): above 0
    favours long ones. `early_stopping` True: the search ends when `width` have ended; False: when the best
    running beam, at its length, does not beat the worst of them; "never": when no continuation of it could.
    The rules are those of transformers.
    """

    width: int = 2
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False

    def __post_init__(self) -> None:
        require_range("beam_width", self.width, 1, BEAM_WIDTH_MAX, whole=True)
        require_range("length_penalty", self.length_penalty, -LENGTH_PENALTY_MAX, LENGTH_PENALTY_MAX)
        if not isinstance(self.early_stopping, bool) and self.early_stopping != "never":
            raise InvalidRequest(
                f'early_stopping is {shown(self.early_stopping)}; allowed: false, true or "never"',
                param="early_stopping",
            )

    def num_candidates(self, num_ends: int) -> int:
        """Continuations to rank in each step: enough that `width` go on if any of `num_ends` tokens end
        beams."""
        return max(2, 1 + num_ends) * self.width


# Parameters that beam search does not support, with their neutral values. A seed is accepted: it does not
# change the answer.
_NOT_WITH_BEAMS: Mapping[str, tuple[object, ...]] = {
    "temperature": (0.0,),
    "top_k": (0,),
    "top_p": (1.0,),
    "min_p": (0.0,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "logit_bias": ((),),
    "min_tokens": (0,),
    "stop": ((),),
    "allowed_token_ids": (None,),
    "banned_sequences": ((),),
    "logprobs": (None, 0),
    "prompt_logprobs": (None,),
    "grammar": (None,),
    "thinking": (None,),
}
# Parameters that an output with a grammar from first to last token cannot have, and why: the two may
# contradict each other at an unpredictable token.
_NOT_WITH_WHOLE_GRAMMAR: Mapping[str, tuple[tuple[object, ...], str]] = {
    "min_tokens": ((0,), "the answer ends where its grammar ends"),
    "allowed_token_ids": ((None,), "its grammar determines the allowed tokens"),
}
# A request for its prompt's embedding samples nothing.
_NOT_WITH_POOLING: Mapping[str, tuple[object, ...]] = {
    **_NOT_WITH_BEAMS,
    "max_tokens": (None, 1),
    "temperature": (0.0, 1.0),
    "logprobs": (None,),
    "stop_token_ids": ((),),
    "ignore_eos": (False,),
    "include_stop": (False,),
    "skip_special_tokens": (True,),
    "beams": (None,),
}


@dataclass(frozen=True, slots=True)
class SamplerParams:
    """The client's sampling parameters. Validates itself; values that depend on the model are checked at
    submission. Lists, sets and arrays become tuples, and one stop string a list of it.

    `temperature` 0 is greedy. `top_k` 0 or -1 keeps all. `max_tokens` None means up to the end of the
    context. `logprobs` k requests the sampled token's logprob and the k likeliest (0: the sampled one alone).

    `allowed_token_ids`: no other token is sampled, not even an end token. `banned_sequences`: the last token
    of one is not sampled if the output ends with the tokens before it. With a grammar, or a budget for
    thinking, `min_tokens` and both of these apply to the tokens that it allows; if they forbid all of these,
    the grammar takes precedence.
    """

    max_tokens: int | None = None
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    allowed_token_ids: tuple[int, ...] | None = None
    banned_sequences: tuple[tuple[int, ...], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    seed: int | None = None
    include_stop: bool = False  # keep the stop string, or the text of the token that ended it, in the text
    skip_special_tokens: bool = True  # False: special tokens are text, in the vocabulary's spelling
    beams: BeamParams | None = None  # search instead of sampling; most other fields are then refused
    grammar: Grammar | None = None  # the constraint of the output
    thinking: Thinking | None = None  # None: thinking is not split from the output
    speculate: bool = True  # tokens may be guessed if the engine does so: the answer is the same, sooner
    pooling: Pooling | None = None  # return the prompt's embedding, and no token

    def __post_init__(self) -> None:
        self._check_numbers()
        self._convert_lists()
        for name in ("ignore_eos", "include_stop", "skip_special_tokens", "speculate"):
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(
                    f"{name} is {shown(getattr(self, name))}; allowed: true or false", param=name
                )
        if self.beams is not None:
            self._check_beams(self.beams)
        if self.pooling is not None:
            self._check_pooling(self.pooling)
        if self.grammar is not None:
            self._check_grammar(self.grammar)

    def _check_numbers(self) -> None:
        for name, low, high in (
            ("max_tokens", 1, TOKENS_MAX),
            ("top_k", -1, TOKENS_MAX),
            ("min_tokens", 0, TOKENS_MAX),
            ("logprobs", 0, LOGPROBS_MAX),
            ("prompt_logprobs", 0, LOGPROBS_MAX),
            ("seed", -SEED_MAX, SEED_MAX),
        ):
            given = getattr(self, name)
            if given is not None or name in ("top_k", "min_tokens"):
                hint = "-1 and 0 keep all" if name == "top_k" else ""
                require_range(name, given, low, high, whole=True, hint=hint)
        if self.top_k == -1:
            object.__setattr__(self, "top_k", 0)
        require_range("temperature", self.temperature, 0.0, 2.0)
        if not (is_number(self.top_p) and 0.0 < self.top_p <= 1.0):
            raise InvalidRequest(f"top_p is {shown(self.top_p)}; allowed: above 0, up to 1", param="top_p")
        require_range("min_p", self.min_p, 0.0, 1.0)
        require_range("repetition_penalty", self.repetition_penalty, 0.01, 100.0)
        require_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        require_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {self.min_tokens} and max_tokens {self.max_tokens}; allowed: no more than "
                "max_tokens",
                param="min_tokens",
            )

    def _convert_lists(self) -> None:
        """Convert lists to tuples, one stop string to a tuple of it, and a dict to the pairs of
        `logit_bias`."""
        words, given = "a string, or a list of strings", cast(object, self.stop)
        given = (given,) if isinstance(given, str) else given
        stops = as_items("stop", given, words, STOP_STRINGS_MAX, of="number of stop strings")
        for text in stops:
            if not isinstance(text, str):
                raise InvalidRequest(f"stop holds {shown(text)}; allowed: {words}", param="stop")
            require_range("length of a stop string", len(text), 1, STOP_STRING_CHARS_MAX, param="stop")
        tokens = as_tokens(
            "stop_token_ids", self.stop_token_ids, STOP_TOKENS_MAX, of="number of stop_token_ids"
        )
        object.__setattr__(self, "stop", stops)
        object.__setattr__(self, "stop_token_ids", tokens)
        object.__setattr__(self, "logit_bias", _as_biases(self.logit_bias))
        if self.allowed_token_ids is not None:
            name, of = "allowed_token_ids", "number of allowed_token_ids"
            tokens = as_tokens(name, self.allowed_token_ids, ALLOWED_TOKENS_MAX, of=of, least=1)
            object.__setattr__(self, "allowed_token_ids", tokens)
        name, of = "banned_sequences", "tokens of a banned sequence"
        sequences = as_items(
            name, self.banned_sequences, "lists of token ids", BANNED_SEQUENCES_MAX, of=f"number of {name}"
        )
        banned = tuple(as_tokens(name, s, BANNED_SEQUENCE_TOKENS_MAX, of=of, least=1) for s in sequences)
        object.__setattr__(self, name, banned)

    def _check_beams(self, beams: object) -> None:
        if not isinstance(beams, BeamParams):
            raise InvalidRequest(f"beams is {shown(beams)}; allowed: None, or BeamParams", param="beams")
        self._refuse_with("beam search", _NOT_WITH_BEAMS)

    def _check_pooling(self, pooling: object) -> None:
        if pooling not in tuple(Pooling):
            raise InvalidRequest(
                f"pooling is {shown(pooling)}; allowed: {', '.join(Pooling)}", param="pooling"
            )
        self._refuse_with("pooling", _NOT_WITH_POOLING)
        object.__setattr__(self, "pooling", Pooling(str(pooling)))
        object.__setattr__(self, "max_tokens", 1)

    def _check_grammar(self, grammar: Grammar) -> None:
        if self.ignore_eos:
            raise InvalidRequest(
                f"ignore_eos is true; allowed with {grammar.param}: false; it ends with an end token",
                param="ignore_eos",
            )
        if grammar.triggers:
            return  # the output before a trigger is free
        for name, (allowed, why) in _NOT_WITH_WHOLE_GRAMMAR.items():
            given = getattr(self, name)
            if given not in allowed:
                words = "none" if allowed[0] is None else repr(allowed[0])
                raise InvalidRequest(
                    f"{name} is {shown(given)}; allowed with {grammar.param}: {words}, because {why}",
                    param=name,
                )

    def _refuse_with(self, feature: str, meaningless: Mapping[str, tuple[object, ...]]) -> None:
        """Raise InvalidRequest for a field that does not have its neutral value."""
        for name, allowed in meaningless.items():
            if getattr(self, name) not in allowed:
                words = " or ".join("none" if value in (None, ()) else repr(value) for value in allowed)
                raise InvalidRequest(
                    f"{name} is {shown(getattr(self, name))}; allowed with {feature}: {words}", param=name
                )

    def end_ids(self, stop_ids: frozenset[int]) -> frozenset[int]:
        """The tokens that end an output, where `stop_ids` are the model's end-of-sequence tokens."""
        return frozenset(self.stop_token_ids) | (frozenset() if self.ignore_eos else stop_ids)

    @property
    def greedy(self) -> bool:
        """True if the likeliest token is taken, without noise."""
        return self.temperature == 0.0


def _as_biases(given: object) -> tuple[tuple[int, float], ...]:
    """Pairs of a token id and the bias of its logit."""
    allowed = "a dict of token ids to numbers, or a list of such pairs"
    pairs = tuple(given.items()) if isinstance(given, Mapping) else given
    biases: list[tuple[int, float]] = []
    for pair in as_items("logit_bias", pairs, allowed, LOGIT_BIAS_MAX, of="number of logit_bias entries"):
        if not isinstance(pair, tuple | list) or len(pair) != 2 or not is_number(pair[0], whole=True):
            raise InvalidRequest(f"logit_bias holds {shown(pair)}; allowed: {allowed}", param="logit_bias")
        require_range("logit_bias", pair[1], -100.0, 100.0)
        biases.append((int(pair[0]), pair[1]))
    return tuple(biases)


@dataclass(frozen=True, slots=True)
class Timeouts:
    """A client's timeouts, in seconds from submission; None: no limit. Validates itself."""

    total: float | None = None  # until its last token
    queue: float | None = None  # until it is admitted for the first time
    first_token: float | None = None

    def __post_init__(self) -> None:
        for name, given in (
            ("timeout", self.total),
            ("queue_timeout", self.queue),
            ("ttft_timeout", self.first_token),
        ):
            if given is not None and not (is_number(given) and 0.0 < given <= TIMEOUT_S_MAX):
                raise InvalidRequest(
                    f"{name} is {shown(given)}; allowed: above 0, up to {TIMEOUT_S_MAX:,.0f} seconds",
                    param=name,
                )


NO_TIMEOUTS = Timeouts()
