"""What a program gets back, in vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.types import Usage


@dataclass(frozen=True, slots=True)
class Logprob:
    """Of one token at one place, under the raw logits. `rank` 1 is the likeliest; None where it is not among
    the tokens that `logprobs` asked for: the engine tells no rank beyond them."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Logprobs = list[dict[int, Logprob]]  # a place each: the token that stands there first, then the likeliest
PromptLogprobs = list[dict[int, Logprob] | None]  # None for the first token, which nothing predicts


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One output of a request. `finish_reason`: "stop", "length", "abort" (cancelled), "timeout", or None
    while it goes on. `stop_reason`: the stop string or token of `stop_token_ids` that ended it.
    `cumulative_logprob` and `logprobs` are there where `logprobs` was asked for."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))  # Octavo's own: what it has cost

    def finished(self) -> bool:
        """True once it goes on no more."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """When things happened, in seconds of the epoch; None: not yet."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its outputs. `prompt` is its text, of a chat as the template wrote it; None where token
    ids were given. `prompt_token_ids` is as the engine had it."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0  # of the prompt, that did not have to be computed


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """One vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """How many numbers."""
        return len(self.embedding)


@dataclass(frozen=True, slots=True)
class EmbeddingRequestOutput:
    """A prompt and its embedding."""

    request_id: str
    outputs: EmbeddingOutput
    prompt_token_ids: list[int]
    finished: bool = True
    num_cached_tokens: int = 0


@dataclass(frozen=True, slots=True)
class BeamSearchSequence:
    """One hypothesis. `tokens` and `text` begin with the prompt, as vLLM's do; `logprobs` are of the output
    alone, and `cum_logprob` is their sum."""

    tokens: list[int]
    logprobs: Logprobs
    cum_logprob: float
    text: str
    finish_reason: str | None = None
    stop_reason: int | str | None = None


@dataclass(frozen=True, slots=True)
class BeamSearchOutput:
    """The hypotheses of one prompt, best first."""

    sequences: list[BeamSearchSequence]
