"""Anthropic's answer: a message of blocks, whole or as the events of a stream.

ThinkingText -> thinking block     Content -> text block     CallStart, ArgumentsText -> tool_use block

message_start, ping, {content_block_start, content_block_delta..., content_block_stop}...,
message_delta (stop reason and usage), message_stop; or an error at any point
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pydantic_core

from octavo.errors import OctavoError
from octavo.server.answer_driver import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step, new_call_id
from octavo.server.dialects.error_shapes import anthropic_error
from octavo.server.errors import JsonObject
from octavo.server.sse import named_event
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason

# Clients drop thinking without a signature; the server does not check signatures.
SIGNATURE: Final = "unsigned"
_STOP_REASONS: Final = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TIMEOUT: "pause_turn",  # the partial answer is valid and can be continued
}


@dataclass(slots=True)
class _Block:
    """A block of the message: its first fields, and its text so far."""

    kind: str  # thinking, text or tool_use
    start: JsonObject
    pieces: list[str] = field(default_factory=list)

    def delta(self, text: str) -> JsonObject:
        """Append the text, and return the delta for it."""
        self.pieces.append(text)
        if self.kind == "tool_use":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}

    def whole(self) -> JsonObject:
        """The complete block."""
        text = "".join(self.pieces)
        if self.kind == "tool_use":
            return self.start | {"input": input_of(text)}
        return self.start | {self.kind: text} | ({"signature": SIGNATURE} if self.kind == "thinking" else {})


class MessageWriter:
    """Writes one message. `form`: the model's format of calls, which determines how their ids look."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._blocks: list[_Block] = []
        self._is_open = False  # the last block

    @property
    def has_calls(self) -> bool:
        """Whether it has a tool_use block."""
        return any(block.kind == "tool_use" for block in self._blocks)

    @property
    def content(self) -> list[JsonObject]:
        """The blocks so far."""
        return [block.whole() for block in self._blocks]

    def push(self, event: AnswerEvent) -> Iterator[JsonObject]:
        """Events of a stream for more of the answer. A generator: the writer changes as it is read."""
        match event:
            case ThinkingText(text):
                yield from self._write("thinking", text)
            case Content(text):
                yield from self._write("text", text)
            case CallStart(index, name):
                yield from self.close()
                call = {"id": new_call_id(self._form, name, index, "toolu_"), "name": name, "input": {}}
                yield self._open("tool_use", {"type": "tool_use", **call})
            case ArgumentsText(_, text):
                yield self._delta(text)

    def close(self) -> Iterator[JsonObject]:
        """Close the open block, if there is one."""
        if self._is_open:
            self._is_open = False
            if self._blocks[-1].kind == "thinking":
                yield self._event("content_block_delta", "delta", _SIGNATURE_DELTA)
            yield self._event("content_block_stop")

    def _write(self, kind: str, text: str) -> Iterator[JsonObject]:
        if not text:
            return
        if not self._is_open or self._blocks[-1].kind != kind:
            yield from self.close()
            unsigned = {"signature": ""} if kind == "thinking" else {}
            yield self._open(kind, {"type": kind, kind: "", **unsigned})
        yield self._delta(text)

    def _open(self, kind: str, start: JsonObject) -> JsonObject:
        self._blocks.append(_Block(kind, start))
        self._is_open = True
        return self._event("content_block_start", "content_block", start)

    def _delta(self, text: str) -> JsonObject:
        return self._event("content_block_delta", "delta", self._blocks[-1].delta(text))

    def _event(self, kind: str, name: str = "", value: object = None) -> JsonObject:
        return {"type": kind, "index": len(self._blocks) - 1} | ({name: value} if name else {})


_SIGNATURE_DELTA: Final[JsonObject] = {"type": "signature_delta", "signature": SIGNATURE}
_PING: Final[JsonObject] = {"type": "ping"}
_NOT_STOPPED: Final[JsonObject] = {"stop_reason": None, "stop_sequence": None}


class MessageCodec(AnswerCodec[Step]):
    """One answer. `max_tokens` is the request's; `request_id` is repeated in an error."""

    framing = Framing(named_event, keep_alive=named_event(_PING))

    def __init__(self, run: ChatRun, model: str, max_tokens: int, request_id: str) -> None:
        self._run = run
        self._model = model
        self._max_tokens = max_tokens
        self._request_id = request_id
        self._message_id = f"msg_{uuid.uuid4().hex}"
        self._writer = MessageWriter(run.kind.form)
        self._has_begun = False
        self._stop = _NOT_STOPPED

    def step(self, step: Step) -> list[JsonObject]:
        """Events of its blocks; the first step's follow message_start."""
        events: list[JsonObject] = []
        if not self._has_begun:
            self._has_begun = True
            events += [{"type": "message_start", "message": self._message([])}, _PING]
        for event in step.events:
            events += self._writer.push(event)
        if step.delta.finish is not None:
            self._stop = self._stop_of(step.delta.finish, step.delta.stop)
        return events

    def end(self) -> list[JsonObject]:
        """Close the last block, then give the stop reason and the usage."""
        events = list(self._writer.close())
        events.append({"type": "message_delta", "delta": self._stop, "usage": self._usage()})
        events.append({"type": "message_stop"})
        return events

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """The error event."""
        return (anthropic_error(error, self._request_id),)

    def whole(self) -> JsonObject:
        """The message."""
        return self._message(self._writer.content)

    def _message(self, content: list[JsonObject]) -> JsonObject:
        return {
            "id": self._message_id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
            **self._stop,
            "usage": self._usage(),
        }

    def _stop_of(self, finish: FinishReason, stop: str | int | None) -> JsonObject:
        """The stop reason; a `stop` that is a number is one of the model's own stop tokens."""
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = _STOP_REASONS.get(finish, "tool_use" if self._writer.has_calls else "end_turn")
        is_context_full = self._run.generation.usage_of(0).num_output < self._max_tokens
        if reason == "max_tokens" and is_context_full:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> JsonObject:
        """The tokens; cached ones are not among `input_tokens`."""
        usage = self._run.generation.usage_of(0)
        return {
            "input_tokens": usage.num_prompt - usage.num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached,
            "output_tokens": usage.num_output,
            **self._run.generation.cut_field(),
        }


def input_of(arguments: str) -> JsonObject:
    """A call's arguments as an object; {} if they are no object.

    Of truncated arguments it returns the complete part, with the parser that Anthropic's SDK uses for
    streams.
    """
    try:
        read = pydantic_core.from_json(arguments, allow_partial=True, allow_inf_nan=False)
        json.dumps(read, allow_nan=False)  # 1e999 is read as infinity
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
