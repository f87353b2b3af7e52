"""A chat's answer in OpenAI's shapes: choices with content, thinking and calls.

chunks: role, {content | reasoning | tool_calls}..., finish_reason; at last the usage, and [DONE]
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from octavo.engine.outputs import Delta, TokenInfo
from octavo.errors import OctavoError
from octavo.server.answering import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step, new_call_id
from octavo.server.errors import JsonObject, error_body
from octavo.server.generation import answer_head
from octavo.server.logprobs import chat_logprobs, ids_of, prompt_logprobs
from octavo.server.openai_schema import ChatBody
from octavo.server.sse import DONE, event
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason


@dataclass(slots=True)
class _ChatCall:
    """One call so far."""

    call_id: str
    name: str
    arguments: list[str] = field(default_factory=list)

    def whole(self) -> JsonObject:
        """All of it."""
        function = {"name": self.name, "arguments": "".join(self.arguments)}
        return {"id": self.call_id, "type": "function", "function": function}


class _ChatChoice:
    """One choice so far. A stream keeps none of its text and tokens, a whole answer all."""

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

    def keep(self, step: Step) -> None:
        """More of a whole answer."""
        self.tokens += step.delta.tokens
        for said in step.events:
            match said:
                case Content(text):
                    self._content.append(text)
                case ThinkingText(text):
                    self._thoughts.append(text)
                case CallStart(index, name):
                    self._has_called = True
                    self._calls.append(_ChatCall(new_call_id(self._form, name, index), name))
                case ArgumentsText(index, text):
                    self._calls[index].arguments.append(text)

    def shaped(self, said: AnswerEvent) -> JsonObject:
        """More of a stream, as a choice of a chunk."""
        match said:
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
        """Its end, as OpenAI names that of an answer that may have called."""
        self.finish_reason = "tool_calls" if finish is FinishReason.STOP and self._has_called else finish
        self.stop = stop

    def message(self) -> JsonObject:
        """All of it, as a message."""
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
    """One answer to `body`."""

    framing = Framing(event, DONE)

    def __init__(self, run: ChatRun, model: str, body: ChatBody) -> None:
        self._run = run
        self._generation = run.generation
        self._has_logprobs = run.params.logprobs is not None
        self._has_ids = bool(body.return_token_ids)
        self._is_stream = bool(body.stream)
        self._usage = body.usage_options
        self._choices: dict[int, _ChatChoice] = {}  # that have begun
        kind = "chat.completion.chunk" if body.stream else "chat.completion"
        self._head = answer_head("chatcmpl", kind, model)

    def step(self, step: Step) -> Sequence[JsonObject]:
        """Perhaps the role, text or calls, logprobs or token ids, perhaps the end."""
        choice, delta = self._choices.get(step.index), step.delta
        is_first = choice is None
        if choice is None:
            choice = self._choices[step.index] = _ChatChoice(step.index, self._run.kind.form)
        shaped = list[JsonObject]()
        if self._is_stream:
            shaped += map(choice.shaped, step.events)
        else:
            choice.keep(step)
        if delta.finish is not None:
            choice.finish(delta.finish, delta.stop)
        return self._chunks(delta, shaped, choice, is_first=is_first) if self._is_stream else ()

    def end(self) -> Sequence[JsonObject]:
        """The usage, where it is wanted."""
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
        self, delta: Delta, shaped: list[JsonObject], choice: _ChatChoice, *, is_first: bool
    ) -> list[JsonObject]:
        """Chunks of these choices, of which the first has the tokens."""
        chunks, usage = list[JsonObject](), self._generation.usage_field(self._usage)
        if is_first:
            role = choice.chunk({"role": "assistant", "content": ""})
            prompt: JsonObject = {"prompt_token_ids": self._run.prompt} if self._has_ids else {}
            session = self._generation.session_field()
            chunks.append({**self._head, "choices": [role], **prompt, **usage, **session})
        if delta.tokens and (self._has_logprobs or self._has_ids):
            if not shaped:
                shaped.append(choice.chunk({"content": ""}))
            if self._has_logprobs:
                shaped[0]["logprobs"] = chat_logprobs(delta.tokens)
            if self._has_ids:
                shaped[0]["token_ids"] = ids_of(delta.tokens)
        if delta.finish is not None:
            end = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop}
            shaped.append(choice.chunk({}) | end)
        for one in shaped:
            chunks.append({**self._head, "choices": [one], **usage})
        return chunks

    def _whole_choice(self, index: int) -> JsonObject:
        choice = self._choices[index]
        shaped: JsonObject = {
            "index": index,
            "message": choice.message(),
            "logprobs": chat_logprobs(choice.tokens) if self._has_logprobs else None,
            "finish_reason": choice.finish_reason,
            "stop_reason": choice.stop,
        }
        return shaped | ({"token_ids": ids_of(choice.tokens)} if self._has_ids else {})
