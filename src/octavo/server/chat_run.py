"""The path of every chat through the server, for all APIs: a checked `ChatBody` and its messages in, a
running answer out, parsed into content, thinking and calls.

    body, messages --> begin_chat --> ChatRun --> steps()   the events of each delta, as it arrives

The shapes of each API are a codec of these steps (`answer_driver`): in `chat` and in `dialects`. Every API is
translated to `ChatBody`, so a field that two APIs share has one meaning and the same bounds.
"""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.requests import Request

from octavo.conversations.responses import Responses, UnstoredTurns
from octavo.engine.outputs import ChatMessage, Delta, TokenInfo
from octavo.errors import InvalidRequest
from octavo.params import SamplerParams
from octavo.server.generation import (
    Edge,
    Generation,
    cut_max_tokens,
    hold_grammar,
    submit_all,
    until_disconnect,
)
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ChatBody, ModelBounds, check_options, sampling_params
from octavo.server.prompts import chat_options
from octavo.server.tenant import engine_request
from octavo.server.tool_fields import ThinkingOptions
from octavo.serving.client import EngineClient
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import ToolMode, ToolUse
from octavo.tools.events import AnswerEvent, ThinkingText
from octavo.tools.formats import ToolFormat
from octavo.tools.thinking import THINK
from octavo.types import ChatOptions
from octavo.types import Request as EngineRequest


@dataclass(frozen=True, slots=True)
class Step:
    """The events of a delta of one choice. `delta` has its tokens, and at the end its finish reason."""

    index: int
    delta: Delta
    events: Sequence[AnswerEvent]


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat that is being answered. Its owner calls `cancel` at the end, in every case."""

    generation: Generation
    prompt: tuple[int, ...]
    params: SamplerParams
    kind: AnswerKind

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the response."""
        return self.generation.headers

    def cancel(self) -> None:
        """Stop everything that still runs; idempotent."""
        self.generation.cancel()

    async def steps(self) -> AsyncGenerator[Step, None]:
        """A step for each delta, as it arrives; raises as `Generation.steps`."""
        readers: dict[int, AnswerReader] = {}
        async with aclosing(self.generation.steps()) as steps:
            async for step in steps:
                index, delta = step.index, step.delta
                reader = readers.get(index)
                if reader is None:
                    reader = readers[index] = AnswerReader(self.kind)
                events = reader.push(delta.text, delta.finish is not None)
                if not self.kind.tells_thoughts:
                    events = [event for event in events if not isinstance(event, ThinkingText)]
                yield Step(index, delta, events)


async def begin_chat(
    edge: Edge,
    request: Request,
    body: ChatBody,
    messages: Sequence[ChatMessage],
    watch: RequestWatch,
    *,
    session: str | None = None,
    sessions: Responses | UnstoredTurns | None = None,
) -> ChatRun:
    """Encode the chat and queue it, as the next turn of `session` if given. `sessions` stores that turn, by
    default the model's. Raises the errors of `octavo.errors`; then nothing was queued."""
    chat = await prepare_chat(edge, request, body)
    wanted, options, use, thinking = chat.wanted, chat.options, chat.use, chat.thinking
    params = wanted.params
    async with hold_grammar(edge, request, params, wanted.tenant):
        if session is None:
            prompt = tuple(await edge.model.encode_chat(messages, options, tenant=wanted.tenant))
            generation = await submit_all(edge, [prompt], wanted, watch)
            return ChatRun(generation, prompt, params, answer_kind(use, thinking, edge.model, prompt))
        watch.record_params(params, 1)
        turn = await (sessions or edge.model.sessions).turn(
            replace(wanted, session=session), messages, options
        )
    first = TokenInfo(turn.prompt[0], edge.model.token_bytes(turn.prompt[0]))
    cut = cut_max_tokens(params, len(turn.prompt), edge.model.context_length)
    generation = Generation(
        [turn.stream], [first], 1, watch, turn, grammar=params.grammar, cut_to=cut, named=edge.named
    )
    return ChatRun(generation, turn.prompt, params, answer_kind(use, thinking, edge.model, turn.prompt))


@dataclass(frozen=True, slots=True)
class PreparedChat:
    """A chat before its messages are rendered; `wanted` has no prompt yet."""

    wanted: EngineRequest
    options: ChatOptions
    use: ToolUse | None
    thinking: ThinkingOptions


async def prepare_chat(edge: Edge, request: Request, body: ChatBody) -> PreparedChat:
    """Everything in a body except its messages. Raises the errors of `octavo.errors`."""
    edge.check_model(body.model)
    wanted = replace(engine_request(request, body), n=body.num_choices)
    params = chat_params(body, edge.model)
    options, use, thinking = chat_options(request, body), body.tool_use, body.thinking_options
    constrained = constrain_params(params, use, thinking, edge.model, wanted.tenant)
    params = await (constrained if use is None else until_disconnect(request, constrained))
    return PreparedChat(replace(wanted, params=params), options, use, thinking)


def check_chat(body: ChatBody, model: ModelBounds) -> None:
    """Raise the InvalidRequest that `begin_chat` would raise for this body alone."""
    chat_params(body, model)
    check_options(body)
    body.tool_use  # noqa: B018  it raises
    body.thinking_options  # noqa: B018  it raises


def chat_params(body: ChatBody, model: ModelBounds) -> SamplerParams:
    """`max_completion_tokens` is the newer name of `max_tokens`, and has priority. Raises InvalidRequest."""
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs is only allowed when logprobs is true", param="top_logprobs")
    newer = body.max_completion_tokens
    try:
        return sampling_params(
            body,
            model,
            max_tokens=body.max_tokens if newer is None else newer,
            logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            prompt_logprobs=body.prompt_logprobs,
        )
    except InvalidRequest as error:
        # Chat has two fields for logprobs; the second is the number.
        param = "top_logprobs" if error.param == "logprobs" else error.param
        raise InvalidRequest(str(error), param=param, code=error.code) from None


async def constrain_params(
    params: SamplerParams, use: ToolUse | None, options: ThinkingOptions, model: EngineClient, tenant: str
) -> SamplerParams:
    """The parameters with the constraints of tools and thinking. Raises InvalidRequest."""
    answers = model.answers
    grammar = params.grammar
    if use is not None and not (params.beams is not None and use.mode is not ToolMode.REQUIRED):
        grammar = await answers.grammar(use, params.grammar, tenant)
    banned = params.banned_sequences
    # An answer that follows a grammar makes no calls, and beam search supports no bans.
    is_free = grammar is None and params.beams is None
    if use is not None and use.mode is ToolMode.NONE and is_free and not answers.form.at_start:
        banned += model.bad_word_ids(answers.form.begins)
    thinking = answers.thinking_format
    is_constrained = thinking is not None and (grammar is not None or options.max_tokens is not None)
    has_calls = use is not None and use.mode is not ToolMode.NONE
    is_read = options.is_split or (thinking is not None and thinking.is_channels)
    shows = is_read and answers.is_hidden(calls=has_calls)
    return replace(
        params,
        grammar=grammar,
        banned_sequences=banned,
        thinking=thinking.leading(options.max_tokens, has_calls=has_calls)
        if thinking and is_constrained
        else None,
        skip_special_tokens=params.skip_special_tokens and not shows,
    )


def answer_kind(
    use: ToolUse | None, options: ThinkingOptions, model: EngineClient, prompt: Sequence[int]
) -> AnswerKind:
    """How an answer to this prompt is parsed."""
    answers = model.answers
    has_calls = use is not None and use.mode is not ToolMode.NONE
    thinking = answers.thinking_format
    return AnswerKind(
        answers.thinking_state(prompt) if thinking is not None and options.is_split else None,
        answers.form if has_calls else None,
        options.is_shown,
        thinking or THINK,
        use.tools if use is not None and has_calls else (),
    )


def new_call_id(form: ToolFormat | None, name: str, index: int, prefix: str = "call_") -> str:
    """An id for the answer's call number `index`, of the form that the model's template requires; else a
    random one after `prefix`."""
    if form is not None and form.id_form:
        return form.id_form.format(name=name, index=index)
    letters, chars = string.ascii_letters + string.digits, 0 if form is None else form.id_chars
    return "".join(secrets.choice(letters) for _ in range(chars)) or prefix + uuid.uuid4().hex[:24]
