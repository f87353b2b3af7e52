"""The results for programs, in vLLM's names."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.types import Usage


@dataclass(frozen=True, slots=True)
class Logprob:
    """One token at one position, under the raw logits. `rank` 1 is the likeliest; None for a token that is
    not among the `logprobs` likeliest: the engine reports no rank beyond them."""

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None


Logprobs = list[dict[int, Logprob]]  # per position: first the actual token, then the likeliest
PromptLogprobs = list[dict[int, Logprob] | None]  # None for the first token, which nothing predicts


@dataclass(frozen=True, slots=True)
class CompletionOutput:
    """One output of a request. `finish_reason`: "stop", "length", "abort" (cancelled), "timeout", or None
    while it is unfinished. `stop_reason`: the stop string or token of `stop_token_ids` that ended it.
    `cumulative_logprob` and `logprobs` are present if `logprobs` was requested."""

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: Logprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))  # Octavo's own: its cost

    def finished(self) -> bool:
        """True after its end."""
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class RequestMetrics:
    """Times of events, in seconds of the epoch; None: not yet."""

    arrival_time: float
    first_token_time: float | None = None
    finished_time: float | None = None

    @property
    def first_token_latency(self) -> float | None:
        """Seconds from arrival to the first token."""
        return None if self.first_token_time is None else self.first_token_time - self.arrival_time


@dataclass(frozen=True, slots=True)
class RequestOutput:
    """A prompt and its outputs. `prompt` is its text, for a chat as the template wrote it; None if token ids
    were given. `prompt_token_ids`: the engine's token ids."""

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    metrics: RequestMetrics
    prompt_logprobs: PromptLogprobs | None = None
    num_cached_tokens: int = 0  # cached tokens of the prompt


@dataclass(frozen=True, slots=True)
class EmbeddingOutput:
    """One vector."""

    embedding: list[float]

    @property
    def hidden_size(self) -> int:
        """The length of the vector."""
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
    only, and `cum_logprob` is their sum."""

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
