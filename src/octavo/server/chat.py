"""POST /v1/chat/completions: from messages to OpenAI's chat shapes.

chunks: role, {content | reasoning | tool_calls}..., finish_reason; then the usage, and [DONE]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import Delta, TokenInfo
from octavo.errors import OctavoError
from octavo.server.answer_driver import AnswerCodec, Framing, answer
from octavo.server.body import read_json, validate
from octavo.server.chat_run import ChatRun, Step, begin_chat, check_chat, new_call_id
from octavo.server.errors import JsonObject, error_body
from octavo.server.generation import Edge, answer_head
from octavo.server.logprobs import chat_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import ChatBody, ModelBounds, check_stream_options
from octavo.server.prompts import chat_messages
from octavo.server.sessions import session_of
from octavo.server.sse import DONE, event
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason


async def chat_completions(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    body = read_chat_body(await read_json(edge, request))
    messages = chat_messages(body.messages, edge.model.context_length)
    run = await begin_chat(edge, request, body, messages, watch, session=session_of(request, body))
    return await answer(request, run, ChatCodec(run, edge.model.name, body), is_stream=bool(body.stream))


def check_chat_body(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `chat_completions` would for this body alone."""
    body = read_chat_body(raw)
    chat_messages(body.messages, model.context_length)
    check_chat(body, model)


def read_chat_body(raw: JsonObject) -> ChatBody:
    """The validated body. Raises InvalidRequest."""
    body = validate(ChatBody, raw)
    check_stream_options(body)
    return body


@dataclass(slots=True)
class _ChatCall:
    """A tool call, as far as it was generated."""

    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> JsonObject:
        """The complete call."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


class _ChatChoice:
    """One choice so far. A whole answer collects its text and tokens; a stream keeps none."""

    def __init__(self, index: int, form: ToolFormat | None) -> None:
        self._index = index
        self.tokens: list[TokenInfo] = []
        self.finish_reason: str | None = None
        self.stop: str | int | None = None
        self._form = form
        self._content: list[str] = []
        self._thoughts: list[str] = []
        self._calls: list[_ChatCall] = []
        self._has_called = False

    def collect(self, step: Step) -> None:
        """Add a step to a whole answer."""
        self.tokens += step.delta.tokens
        for part in step.events:
            match part:
                case Content(text):
                    self._content.append(text)
                case ThinkingText(text):
                    self._thoughts.append(text)
                case CallStart(index, name):
                    self._has_called = True
                    self._calls.append(_ChatCall(new_call_id(self._form, name, index), name))
                case ArgumentsText(index, text):
                    self._calls[index].arguments.append(text)

    def encode(self, part: AnswerEvent) -> JsonObject:
        """An event of a stream as a choice of a chunk."""
        match part:
            case Content(text):
                return self.chunk({"content": text})
            case ThinkingText(text):
                return self.chunk({"reasoning_content": text, "reasoning": text})
            case CallStart(index, name):
                self._has_called = True
                call_id, function = new_call_id(self._form, name, index), {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return self.chunk({"tool_calls": [call]})
            case ArgumentsText(index, text):
                return self.chunk({"tool_calls": [{"index": index, "function": {"arguments": text}}]})

    def chunk(self, delta: JsonObject) -> JsonObject:
        """A choice of a chunk."""
        return {"index": self._index, "delta": delta, "logprobs": None, "finish_reason": None}

    def finish(self, finish: FinishReason, stop: str | int | None) -> None:
        """Set the finish reason; after a tool call, OpenAI has a reason of its own."""
        self.finish_reason = "tool_calls" if finish is FinishReason.STOP and self._has_called else finish
        self.stop = stop

    def message(self) -> JsonObject:
        """The complete message."""
        content, thought = "".join(self._content), "".join(self._thoughts)
        message: JsonObject = {
            "role": "assistant",
            "content": content if content or not self._calls else None,
            "refusal": None,
        }
        if thought:
            message |= {"reasoning_content": thought, "reasoning": thought}
        return message | ({"tool_calls": [call.whole() for call in self._calls]} if self._calls else {})


class ChatCodec(AnswerCodec[Step]):
    """One answer to `body`, in OpenAI's shapes."""

    framing = Framing(event, DONE)

    def __init__(self, run: ChatRun, model: str, body: ChatBody) -> None:
        self._run = run
        self._generation = run.generation
        self._has_logprobs = run.params.logprobs is not None
        self._has_ids = bool(body.return_token_ids)
        self._is_stream = bool(body.stream)
        self._usage = body.usage_options
        self._choices: dict[int, _ChatChoice] = {}  # those that have begun
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = answer_head("chatcmpl", kind, model)

    def step(self, step: Step) -> Sequence[JsonObject]:
        """The chunks of a step, with what it has of role, text, calls, logprobs, ids, finish reason."""
        choice, delta = self._choices.get(step.index), step.delta
        is_first = choice is None
        if choice is None:
            choice = self._choices[step.index] = _ChatChoice(step.index, self._run.kind.form)
        encoded = list[JsonObject]()
        if self._is_stream:
            encoded += map(choice.encode, step.events)
        else:
            choice.collect(step)
        if delta.finish is not None:
            choice.finish(delta.finish, delta.stop)
        return self._chunks(delta, encoded, choice, is_first=is_first) if self._is_stream else ()

    def end(self) -> Sequence[JsonObject]:
        """The usage, if requested."""
        return self._generation.usage_chunk(self._head, self._usage)

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """The error object."""
        return (error_body(error),)

    def whole(self) -> JsonObject:
        """All choices, and the usage."""
        choices = [self._whole_choice(index) for index in sorted(self._choices)]
        answer = {**self._head, "choices": choices, "usage": self._generation.usage()}
        answer |= self._generation.session_field()
        if self._run.params.prompt_logprobs is not None:
            answer["prompt_logprobs"] = prompt_logprobs(self._generation.prompt_infos(0))
        if self._has_ids:
            answer["prompt_token_ids"] = self._run.prompt
        return answer

    def _chunks(
        self, delta: Delta, encoded: list[JsonObject], choice: _ChatChoice, *, is_first: bool
    ) -> list[JsonObject]:
        """Chunks of these encoded choices; the first gets the tokens' logprobs and ids."""
        chunks, usage = list[JsonObject](), self._generation.usage_field(self._usage)
        if is_first:
            role = choice.chunk({"role": "assistant", "content": ""})
            prompt: JsonObject = {"prompt_token_ids": self._run.prompt} if self._has_ids else {}
            session = self._generation.session_field()
            chunks.append({**self._head, "choices": [role], **prompt, **usage, **session})
        if delta.tokens and (self._has_logprobs or self._has_ids):
            if not encoded:
                encoded.append(choice.chunk({"content": ""}))
            if self._has_logprobs:
                encoded[0]["logprobs"] = chat_logprobs(delta.tokens)
            if self._has_ids:
                encoded[0]["token_ids"] = ids_of(delta.tokens)
        if delta.finish is not None:
            end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop}
            encoded.append(choice.chunk({}) | end)
        for one in encoded:
            chunks.append({**self._head, "choices": [one], **usage})
        return chunks

    def _whole_choice(self, index: int) -> JsonObject:
        choice = self._choices[index]
        whole: JsonObject = {
            "index": index,
            "message": choice.message(),
            "logprobs": chat_logprobs(choice.tokens) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop,
        }
        return whole | ({"token_ids": ids_of(choice.tokens)} if self._has_ids else {})
