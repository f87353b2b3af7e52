"""From updates to deltas: tokens become text, stop strings end a choice. One assembler per request, on the
client's side.

The engine only knows tokens. A stop string is found here, in the text. The rest of the choice is then
dropped, and when all choices have ended the request can be cancelled in the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from msgspec.structs import replace

from octavo.engine.outputs import Delta, TokenInfo
from octavo.sampling.grammars import CompiledGrammar
from octavo.text.detokenizer import IncrementalDetokenizer
from octavo.text.stops import StopMatcher
from octavo.types import FinishReason, Request, SampledToken, Update, Usage


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The assembler's view of a tokenizer: the bytes of each token, and the tokens that are not text unless a
    client requests them."""

    token_bytes: Callable[[int], bytes]
    special: frozenset[int]


@dataclass(slots=True)
class _Choice:
    detokenizer: IncrementalDetokenizer
    stops: StopMatcher
    num_output: int = 0
    finished: bool = False


class Assembler:
    """Turns the updates of one request into deltas, choice by choice."""

    def __init__(
        self, request: Request, vocabulary: Vocabulary, compiled: CompiledGrammar | None = None
    ) -> None:
        self._params = request.params
        self._compiled = compiled  # held until the request ends, for its rows
        self._vocabulary = vocabulary
        skip = vocabulary.special if request.params.skip_special_tokens else frozenset[int]()
        self._choices = [
            _Choice(
                IncrementalDetokenizer(vocabulary.token_bytes, skip),
                StopMatcher(request.params.stop, request.params.include_stop),
            )
            for _ in range(request.n)
        ]

    @property
    def num_choices(self) -> int:
        """n of the request."""
        return len(self._choices)

    @property
    def finished(self) -> bool:
        """True when every choice has had its final delta: later updates are ignored."""
        return all(choice.finished for choice in self._choices)

    def take(self, update: Update) -> Delta | None:
        """The delta of an update; None once the choice is over. Exactly one delta per choice has `finish`."""
        choice = self._choices[update.choice]
        if choice.finished:
            return None
        text, infos = "", []
        for sampled in update.tokens:
            choice.num_output += 1
            infos.append(self._info(sampled, asked=self._params.logprobs is not None))
            if sampled.token == update.stop_token and not self._params.include_stop:
                break  # the token that ended it is not text
            emitted, stop = self._push(choice, sampled.token)
            text += emitted
            if stop is not None:
                usage = self._usage(update.usage, choice)
                choice.finished = True
                return Delta(update.choice, text, tuple(infos), usage, FinishReason.STOP, stop)
        if update.finish is not None:
            choice.finished = True
            tail, stop = choice.stops.push(choice.detokenizer.finish())
            text += tail + ("" if stop is not None else choice.stops.finish())
        return Delta(
            update.choice,
            text,
            tuple(infos),
            self._usage(update.usage, choice),
            update.finish,
            update.stop_token,
            update.error,
            self._prompt_logprobs(update),
            update.embedding,
        )

    def _push(self, choice: _Choice, token: int) -> tuple[str, str | None]:
        text = choice.detokenizer.push(token)
        if not self._params.stop or choice.num_output <= self._params.min_tokens:  # or too early to stop
            return text, None
        return choice.stops.push(text)

    def _usage(self, usage: Usage, choice: _Choice) -> Usage:
        if usage.num_output == choice.num_output:
            return usage
        num_accepted = min(usage.num_accepted, choice.num_output)  # a stop string may lie within drafts
        return replace(usage, num_output=choice.num_output, num_accepted=num_accepted)

    def _info(self, sampled: SampledToken, asked: bool) -> TokenInfo:
        data = self._vocabulary.token_bytes
        if not asked:
            return TokenInfo(sampled.token, data(sampled.token))
        top = tuple((token, data(token), logprob) for token, logprob in sampled.top)
        return TokenInfo(sampled.token, data(sampled.token), sampled.logprob, top)

    def _prompt_logprobs(self, update: Update) -> tuple[TokenInfo, ...]:
        return tuple(self._info(sampled, asked=True) for sampled in update.prompt_logprobs)
