"""POST /v1/completions: from prompts to OpenAI's completion shapes, whole or as chunks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import TokenInfo
from octavo.errors import InvalidRequest, OctavoError, require_range
from octavo.params import CHOICES_MAX, SamplerParams
from octavo.server.answer_driver import AnswerCodec, Framing, answer
from octavo.server.body import read_json, validate
from octavo.server.errors import JsonObject, error_body
from octavo.server.generation import (
    CHAT_HAS_SESSIONS,
    ChoiceDelta,
    Edge,
    Generation,
    answer_head,
    hold_grammar,
    refuse_session,
    submit_all,
)
from octavo.server.logprobs import characters_begun, completion_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import CompletionBody, ModelBounds, check_stream_options, sampling_params
from octavo.server.prompts import Prompt, check_prompts, encode_prompts
from octavo.server.sse import DONE, event
from octavo.server.tenant import engine_request
from octavo.serving.client import EngineClient
from octavo.types import FinishReason
from octavo.types import Request as EngineRequest

# OpenAI's default on this route.
_MAX_TOKENS = 16
_TOTAL_CHOICES_MAX = 1024


async def completions(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    prepared = await prepare_completion(edge, request)
    body, wanted, prompts = prepared.body, prepared.wanted, prepared.prompts
    echoes = tuple(_text_of(prompt, edge.model) if body.echo else "" for prompt in prompts)
    async with hold_grammar(edge, request, wanted.params, wanted.tenant):
        tokens = [prompt.tokens for prompt in prompts]
        generation = await submit_all(edge, tokens, wanted, watch, scores_only=prepared.scores_only)
    codec = CompletionCodec(generation, edge.model.name, body, prompts, echoes)
    return await answer(request, generation, codec, is_stream=bool(body.stream))


@dataclass(frozen=True, slots=True)
class PreparedCompletion:
    """A completion before it is submitted. `wanted` is common to all prompts, and has none itself."""

    body: CompletionBody
    wanted: EngineRequest
    prompts: tuple[Prompt, ...]
    scores_only: bool  # no output is requested


async def prepare_completion(edge: Edge, request: Request) -> PreparedCompletion:
    """Read a body and encode its prompts. Raises the errors of `octavo.errors`."""
    body = validate(CompletionBody, await read_json(edge, request))
    refuse_session(request, CHAT_HAS_SESSIONS)
    edge.check_model(body.model)
    check_stream_options(body)
    n, wanted = body.num_choices, engine_request(request, body)
    num_made = _num_made(body, n)
    scores_only = _scores_only(body)
    wanted = replace(wanted, n=num_made, params=_params(body, edge.model, is_ranked=num_made > n))

    prompts = tuple(await encode_prompts(body.prompt, edge.model, wanted.tenant, body.suffix or ""))
    _check_total(num_made * len(prompts))
    return PreparedCompletion(body, wanted, prompts, scores_only)


def check_completion(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `completions` would for this body alone."""
    body = validate(CompletionBody, raw)
    check_stream_options(body)
    _params(body, model, is_ranked=False)
    check_prompts(body.prompt, model)


def _check_total(choices: int) -> None:
    if choices > _TOTAL_CHOICES_MAX:
        raise InvalidRequest(
            f"n times the number of prompts is {choices:,}; allowed: up to {_TOTAL_CHOICES_MAX:,}", param="n"
        )


def _num_made(body: CompletionBody, n: int) -> int:
    """`best_of`: the choices generated for each prompt, of which `n` are returned."""
    made = n if body.best_of is None else body.best_of
    require_range("best_of", made, n, CHOICES_MAX, hint="from n on")
    if made > n and (body.stream or body.use_beam_search):
        option = "stream" if body.stream else "use_beam_search"
        raise InvalidRequest(
            f"best_of is {made} and n {n}; allowed with {option}: best_of equal to n, or none",
            param="best_of",
        )
    return made


def _scores_only(body: CompletionBody) -> bool:
    """Whether only the prompt's own logprobs are requested. Raises InvalidRequest."""
    if body.max_tokens != 0:
        return False
    if not body.echo:
        raise InvalidRequest(
            "max_tokens is 0; allowed: 1 or more, or 0 with echo true (with logprobs it scores the prompt)",
            param="max_tokens",
        )
    if body.min_tokens:
        raise InvalidRequest(
            f"min_tokens is {body.min_tokens} and max_tokens 0; allowed: no more than max_tokens",
            param="min_tokens",
        )
    return True


def _params(body: CompletionBody, model: ModelBounds, *, is_ranked: bool) -> SamplerParams:
    """`echo` with `logprobs` returns the prompt's logprobs too, so the engine computes them. Ranking choices
    needs the logprobs of their tokens."""
    prompt_logprobs = body.prompt_logprobs
    if body.echo and body.logprobs is not None:
        prompt_logprobs = max(prompt_logprobs or 0, body.logprobs)
    return sampling_params(
        body,
        model,
        # The engine generates at least one token; if none is requested, it is dropped.
        max_tokens=_MAX_TOKENS if body.max_tokens is None else body.max_tokens or 1,
        logprobs=0 if is_ranked and body.logprobs is None else body.logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def _text_of(prompt: Prompt, model: EngineClient) -> str:
    """The prompt as the client wrote it, or the text of the tokens that it sent."""
    if prompt.text is not None:
        return prompt.text
    return b"".join(model.token_bytes(token) for token in prompt.tokens).decode(errors="replace")


@dataclass(slots=True)
class _TextChoice:
    """One choice so far. Only a whole answer collects texts and tokens."""

    prompt: int
    texts: list[str] = field(default_factory=list)
    tokens: list[TokenInfo] = field(default_factory=list)  # of the output
    finish: FinishReason | None = None
    stop: str | int | None = None
    offset: int = 0  # in a stream: the offset of the next token in the text

    @property
    def mean_logprob(self) -> float:
        """Per token; -inf for a choice without tokens."""
        logprobs = [info.logprob for info in self.tokens if info.logprob is not None]
        return sum(logprobs) / len(logprobs) if logprobs else -math.inf


class CompletionCodec(AnswerCodec[ChoiceDelta]):
    """One answer to `body`. `echoes` are the texts of the prompts, or "" without echo."""

    framing = Framing(event, DONE)

    def __init__(
        self,
        generation: Generation,
        model: str,
        body: CompletionBody,
        prompts: Sequence[Prompt],
        echoes: Sequence[str],
    ) -> None:
        self._generation = generation
        self._body = body
        self._prompts, self._echoes = prompts, echoes
        self._usage = body.usage_options
        self._choices: dict[int, _TextChoice] = {}  # those that have begun
        self._head = answer_head("cmpl", "text_completion", model)

    def step(self, step: ChoiceDelta) -> Sequence[JsonObject]:
        """A chunk, of which the first contains an echoed prompt; none for a delta without content."""
        delta, text, tokens = step.delta, step.delta.text, step.delta.tokens
        choice = self._choices.get(step.index)
        is_first = choice is None
        if choice is None:
            if not tokens and delta.finish is None:
                return ()  # the prompt is still being computed
            choice = self._choices[step.index] = _TextChoice(step.prompt)
            if self._body.echo:
                text = self._echoes[step.prompt] + text
        choice.finish, choice.stop = delta.finish, delta.stop
        if not self._body.stream:
            choice.texts.append(text)
            choice.tokens += tokens
            return ()
        if is_first and self._body.echo:
            tokens = (*self._generation.prompt_infos(step.prompt), *tokens)
        has_logprobs = self._body.logprobs is not None and bool(tokens)
        has_ids = bool(self._body.return_token_ids) and (is_first or bool(tokens))
        if not (text or has_logprobs or has_ids or delta.finish is not None):
            return ()
        chunk: JsonObject = {
            "index": step.index,
            "text": text,
            "logprobs": completion_logprobs(tokens, choice.offset) if has_logprobs else None,
            "finish_reason": delta.finish,
        }
        choice.offset += sum(characters_begun(info.data) for info in tokens)
        if delta.finish is not None:
            chunk["stop_reason"] = delta.stop
        if self._body.return_token_ids:
            chunk["token_ids"] = ids_of(delta.tokens)
            if is_first:
                chunk["prompt_token_ids"] = self._prompts[step.prompt].tokens
        return ({**self._head, "choices": [chunk], **self._generation.usage_field(self._usage)},)

    def end(self) -> Sequence[JsonObject]:
        """The usage, if requested."""
        return self._generation.usage_chunk(self._head, self._usage)

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """The error object."""
        return (error_body(error),)

    def whole(self) -> JsonObject:
        """The best choices of each prompt, and the usage of all."""
        choices = [self._whole_choice(index, choice) for index, choice in enumerate(self._best_choices())]
        return {**self._head, "choices": choices, "usage": self._generation.usage()}

    def _best_choices(self) -> list[_TextChoice]:
        """The `n` choices of each prompt with the highest mean logprob per token, highest first; ties go to
        the lower index."""
        choices = [self._choices[index] for index in sorted(self._choices)]
        n, num_made = self._body.num_choices, self._generation.num_choices // len(self._prompts)
        if num_made == n:
            return choices
        groups = [choices[start : start + num_made] for start in range(0, len(choices), num_made)]
        return [
            best
            for group in groups
            for best in sorted(group, key=lambda choice: choice.mean_logprob, reverse=True)[:n]
        ]

    def _whole_choice(self, index: int, choice: _TextChoice) -> JsonObject:
        prompt = self._generation.prompt_infos(choice.prompt)
        tokens = (*prompt, *choice.tokens) if self._body.echo else choice.tokens
        whole: JsonObject = {
            "index": index,
            "text": "".join(choice.texts),
            "logprobs": None if self._body.logprobs is None else completion_logprobs(tokens, 0),
            "finish_reason": choice.finish,
            "stop_reason": choice.stop,
        }
        if self._body.prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprobs(prompt)
        if self._body.return_token_ids:
            whole["prompt_token_ids"] = self._prompts[choice.prompt].tokens
            whole["token_ids"] = ids_of(choice.tokens)
        return whole
