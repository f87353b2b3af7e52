"""From the deltas of a request to its `RequestOutput`, whole at the end or as it grows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.api.outputs import (
    CompletionOutput,
    Logprob,
    Logprobs,
    PromptLogprobs,
    RequestMetrics,
    RequestOutput,
)
from octavo.api.params import RequestOrder
from octavo.engine.outputs import Delta, TokenInfo
from octavo.params import SamplerParams
from octavo.types import FinishReason, Usage

_REASONS = {
    None: None,
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TIMEOUT: "timeout",
    FinishReason.CANCELLED: "abort",
    FinishReason.DEAD_END: "error",
    FinishReason.ERROR: "error",
}


@dataclass(slots=True)
class _ChoiceOutput:
    """The parts of one output so far."""

    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: Logprobs = field(default_factory=list)  # of each token, if requested
    cumulative: float = 0.0  # of all its tokens, returned ones included
    finish: FinishReason | None = None
    stop: str | int | None = None
    usage: Usage = field(default_factory=lambda: Usage(0, 0, 0, 0))


class OutputGatherer:
    """The outputs of one request. `request_id` and the prompt's `text` are for the caller."""

    def __init__(
        self, request_id: str, text: str | None, prompt: Sequence[int], order: RequestOrder, arrival: float
    ) -> None:
        self._request_id = request_id
        self._text = text
        self._prompt = list(prompt)
        self._order = order
        self._arrival = arrival
        self._first: float | None = None
        self._finished: float | None = None
        self._choices = [_ChoiceOutput() for _ in range(order.n)]
        self._prompt_logprobs: Logprobs = []  # from its second token on
        self._has_returned_prompt = False  # they have been returned, and are returned once
        self.embedding = b""

    @property
    def finished(self) -> bool:
        """True when every output has ended."""
        return all(choice.finish is not None for choice in self._choices)

    def take(self, delta: Delta, now: float) -> None:
        """Append a delta that came at `now`, in seconds of the epoch."""
        choice = self._choices[delta.choice]
        if delta.tokens and self._first is None:
            self._first = now
        if self._order.detokenize:
            choice.text += delta.text
        choice.token_ids += [info.token for info in delta.tokens]
        if self._order.params.logprobs is not None:
            choice.logprobs += map(self._at, delta.tokens)
            choice.cumulative += sum(info.logprob or 0.0 for info in delta.tokens)
        choice.finish, choice.stop, choice.usage = delta.finish, delta.stop, delta.usage
        self._prompt_logprobs += map(self._at, delta.prompt_logprobs)
        self.embedding = delta.embedding or self.embedding
        if self.finished:
            self._finished = now

    def output(self) -> RequestOutput:
        """All outputs so far. O(tokens)."""
        return self._output(range(len(self._choices)))

    def take_new(self, index: int) -> RequestOutput:
        """The new part of one output since the last call."""
        output = self._output([index])
        self._choices[index].text = ""
        self._choices[index].token_ids.clear()
        self._choices[index].logprobs.clear()
        self._has_returned_prompt |= bool(self._prompt_logprobs)
        self._prompt_logprobs.clear()
        return output

    def _output(self, indices: Sequence[int]) -> RequestOutput:
        return RequestOutput(
            self._request_id,
            self._text,
            self._prompt,
            [self._completion(index) for index in indices],
            self.finished,
            RequestMetrics(self._arrival, self._first, self._finished),
            self._new_prompt_logprobs(),
            self._choices[0].usage.num_cached,
        )

    def _completion(self, index: int) -> CompletionOutput:
        choice, params = self._choices[index], self._order.params
        has_logprobs = params.logprobs is not None
        return CompletionOutput(
            index,
            choice.text,
            list(choice.token_ids),
            choice.cumulative if has_logprobs else None,
            list(choice.logprobs) if has_logprobs else None,
            _REASONS[choice.finish],
            _stop_reason(choice.stop, params),
            choice.usage,
        )

    def _new_prompt_logprobs(self) -> PromptLogprobs | None:
        if self._order.params.prompt_logprobs is None or (
            self._has_returned_prompt and not self._prompt_logprobs
        ):
            return None
        first: PromptLogprobs = [] if self._has_returned_prompt else [None]
        return [*first, *self._prompt_logprobs]

    def _at(self, info: TokenInfo) -> dict[int, Logprob]:
        """The actual token, then the likeliest."""
        ranks = {token: index + 1 for index, (token, _, _) in enumerate(info.top)}
        by_token = {info.token: self._one(info.logprob or 0.0, ranks.get(info.token), info.data)}
        for token, data, logprob in info.top:
            by_token.setdefault(token, self._one(logprob, ranks[token], data))
        return by_token

    def _one(self, logprob: float, rank: int | None, data: bytes) -> Logprob:
        return Logprob(logprob, rank, data.decode("utf-8", "replace") if self._order.detokenize else None)


def _stop_reason(stop: str | int | None, params: SamplerParams) -> str | int | None:
    """As in vLLM: None for an end token of the model."""
    return None if isinstance(stop, int) and stop not in params.stop_token_ids else stop
