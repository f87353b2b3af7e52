"""The one path of a chat through the server, whatever API it came by: a checked `ChatBody` and its messages
in, a running answer out, read as content, thinking and calls.

    body, messages --> begin_chat --> ChatRun --> steps()   as it comes: what each delta says, in events
                                          +-----> whole()   in the end, of one choice

An API's own shapes are made of these by `chat` and by `dialects`. `ChatBody` is what they all translate to,
so a field that one of them has in common with another means, and is bounded by, the same.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace

from starlette.requests import Request

from octavo.conversations.responses import Responses, UnstoredTurns
from octavo.engine.outputs import ChatMessage, TokenInfo
from octavo.errors import InvalidRequest
from octavo.params import SamplerParams
from octavo.server.chat_answer import answer_kind, led_params
from octavo.server.generation import (
    Choice,
    Edge,
    Generation,
    Piece,
    cut_to,
    gather_for,
    held_grammar,
    submit_all,
    until_disconnect,
)
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ChatBody, ModelBounds, check_options, sampling_params
from octavo.server.prompts import chat_options
from octavo.server.tenant import engine_request
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.events import AnswerEvent, ArgumentsText, CallBegun, Content, Thought
from octavo.types import FinishReason, ToolCall, Usage


@dataclass(frozen=True, slots=True)
class Step:
    """What a delta of one choice says; `piece.delta` has its tokens, and at the end its finish."""

    piece: Piece
    events: tuple[AnswerEvent, ...]


@dataclass(frozen=True, slots=True)
class WholeAnswer:
    """One choice, complete. Calls have no ids yet."""

    content: str
    thought: str
    calls: tuple[ToolCall, ...]
    finish: FinishReason | None
    stop: str | int | None
    tokens: tuple[TokenInfo, ...]
    usage: Usage

    @property
    def has_called(self) -> bool:
        """It ended because it has called."""
        return bool(self.calls) and self.finish is FinishReason.STOP


@dataclass(frozen=True, slots=True)
class ChatRun:
    """A chat that is being answered. Whoever holds it sees to it that `generation.cancel` is called."""

    generation: Generation
    prompt: tuple[int, ...]
    params: SamplerParams
    kind: AnswerKind

    async def steps(self) -> AsyncGenerator[Step, None]:
        """What each delta says, as it comes; raises as `Generation.pieces`."""
        readers: dict[int, AnswerReader] = {}
        async with aclosing(self.generation.pieces()) as pieces:
            async for piece in pieces:
                reader = readers.setdefault(piece.index, AnswerReader(self.kind))
                events = reader.push(piece.delta.text, piece.delta.finish is not None)
                yield Step(piece, tuple(event for event in events if self._is_told(event)))

    async def whole(self, request: Request) -> WholeAnswer:
        """The first choice; raises ClientGone when the client leaves. Cancels what is left."""
        choices = await gather_for(request, self.generation)
        return self.read(choices[0], 0)

    def read(self, choice: Choice, index: int) -> WholeAnswer:
        """A gathered choice, read as what it says."""
        reader = AnswerReader(self.kind)
        events = [e for e in reader.push(choice.text, is_last=True) if self._is_told(e)]
        usage = self.generation.usage_of(index)
        return whole_answer(events, choice.finish, choice.stop, choice.tokens, usage)

    def _is_told(self, event: AnswerEvent) -> bool:
        return self.kind.tells_thoughts or not isinstance(event, Thought)


def whole_answer(
    events: Sequence[AnswerEvent],
    finish: FinishReason | None,
    stop: str | int | None,
    tokens: tuple[TokenInfo, ...],
    usage: Usage,
) -> WholeAnswer:
    """The events of one choice, joined."""
    content, thought, names, arguments = "", "", list[str](), list[str]()
    for event in events:
        match event:
            case Content(more):
                content += more
            case Thought(more):
                thought += more
            case CallBegun(_, name):
                names.append(name)
                arguments.append("")
            case ArgumentsText(index, more):
                arguments[index] += more
    calls = tuple(map(ToolCall, names, arguments))
    return WholeAnswer(content, thought, calls, finish, stop, tokens, usage)


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
    """Encode the chat and queue it, as the next turn of a session where one is named, which `sessions` take:
    by default the model's. Raises the errors of `octavo.errors`; then nothing was queued."""
    edge.check_model(body.model)
    wanted = replace(engine_request(request, body), n=body.num_choices)
    params = chat_params(body, edge.model)
    options, use, wish = chat_options(request, body), body.tool_use, body.thinking_wish
    led = led_params(params, use, wish, edge.model, wanted.tenant)
    params = await (led if use is None else until_disconnect(request, led))
    wanted = replace(wanted, params=params)
    async with held_grammar(edge, request, params, wanted.tenant):
        if session is None:
            prompt = tuple(await edge.model.encode_chat(messages, options, tenant=wanted.tenant))
            generation = await submit_all(edge, [prompt], wanted, watch)
            return ChatRun(generation, prompt, params, answer_kind(use, wish, edge.model, prompt))
        watch.note_wanted(params, 1)
        taker = sessions or edge.model.sessions
        turn = await taker.turn(replace(wanted, session=session), messages, options)
    first = TokenInfo(turn.prompt[0], edge.model.token_bytes(turn.prompt[0]))
    cut = cut_to(params, len(turn.prompt), edge.model.context_length)
    generation = Generation([turn.stream], [first], 1, watch, turn, grammar=params.grammar, cut_to=cut)
    return ChatRun(generation, turn.prompt, params, answer_kind(use, wish, edge.model, turn.prompt))


def check_chat(body: ChatBody, model: ModelBounds) -> None:
    """Raise InvalidRequest for what `begin_chat` would refuse of this body alone."""
    chat_params(body, model)
    check_options(body)
    body.tool_use  # noqa: B018  it raises
    body.thinking_wish  # noqa: B018  it raises


def chat_params(body: ChatBody, model: ModelBounds) -> SamplerParams:
    """`max_completion_tokens` is the newer name of `max_tokens`, and wins. Raises InvalidRequest."""
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
        # Chat asks for logprobs with two fields; the number is in the second.
        param = "top_logprobs" if error.param == "logprobs" else error.param
        raise InvalidRequest(str(error), param=param, code=error.code) from None
