"""Anthropic's answer: a message of blocks, whole or as the events of a stream.

ThinkingText -> thinking block     Content -> text block     CallStart, ArgumentsText -> tool_use block

message_start, ping, {content_block_start, content_block_delta..., content_block_stop}...,
message_delta (why it ended, what it cost), message_stop; or an error at any place
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import pydantic_core

from octavo.errors import OctavoError
from octavo.server.answering import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step, new_call_id
from octavo.server.dialects.error_shapes import anthropic_error
from octavo.server.errors import JsonObject
from octavo.server.sse import named_event
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason

# Clients drop thinking that has no signature, and the server asks for none.
SIGNATURE: Final = "unsigned"
_ENDS: Final = {
    FinishReason.LENGTH: "max_tokens",
    FinishReason.TIMEOUT: "pause_turn",  # what was made stands, and can be gone on with
}


@dataclass(slots=True)
class _Block:
    """A block in the making: what it was begun with, and its text so far."""

    kind: str  # thinking, text or tool_use
    begun: JsonObject
    pieces: list[str] = field(default_factory=list)

    def delta(self, text: str) -> JsonObject:
        """More of it."""
        self.pieces.append(text)
        if self.kind == "tool_use":
            return {"type": "input_json_delta", "partial_json": text}
        return {"type": f"{self.kind}_delta", self.kind: text}

    def whole(self) -> JsonObject:
        """All of it."""
        text = "".join(self.pieces)
        if self.kind == "tool_use":
            return self.begun | {"input": input_of(text)}
        return self.begun | {self.kind: text} | ({"signature": SIGNATURE} if self.kind == "thinking" else {})


class MessageWriter:
    """Writes one message. `form`: how the model writes calls, which says how their ids must look."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._blocks: list[_Block] = []
        self._is_open = False  # the last one

    @property
    def has_called(self) -> bool:
        """Whether it has a tool_use block."""
        return any(block.kind == "tool_use" for block in self._blocks)

    @property
    def content(self) -> list[JsonObject]:
        """The blocks so far."""
        return [block.whole() for block in self._blocks]

    def push(self, event: AnswerEvent) -> Iterator[JsonObject]:
        """More of the answer, as events of a stream; it counts when they have been read."""
        match event:
            case ThinkingText(text):
                yield from self._say("thinking", text)
            case Content(text):
                yield from self._say("text", text)
            case CallStart(index, name):
                yield from self.close()
                call = {"id": new_call_id(self._form, name, index, "toolu_"), "name": name, "input": {}}
                yield self._open("tool_use", {"type": "tool_use", **call})
            case ArgumentsText(_, text):
                yield self._delta(text)

    def close(self) -> Iterator[JsonObject]:
        """The end of the open block, if there is one."""
        if self._is_open:
            self._is_open = False
            if self._blocks[-1].kind == "thinking":
                yield self._event("content_block_delta", "delta", _SIGNED)
            yield self._event("content_block_stop")

    def _say(self, kind: str, text: str) -> Iterator[JsonObject]:
        if not text:
            return
        if not self._is_open or self._blocks[-1].kind != kind:
            yield from self.close()
            unsigned = {"signature": ""} if kind == "thinking" else {}
            yield self._open(kind, {"type": kind, kind: "", **unsigned})
        yield self._delta(text)

    def _open(self, kind: str, begun: JsonObject) -> JsonObject:
        self._blocks.append(_Block(kind, begun))
        self._is_open = True
        return self._event("content_block_start", "content_block", begun)

    def _delta(self, text: str) -> JsonObject:
        return self._event("content_block_delta", "delta", self._blocks[-1].delta(text))

    def _event(self, kind: str, name: str = "", value: object = None) -> JsonObject:
        return {"type": kind, "index": len(self._blocks) - 1} | ({name: value} if name else {})


_SIGNED: Final[JsonObject] = {"type": "signature_delta", "signature": SIGNATURE}


_PING: Final[JsonObject] = {"type": "ping"}
_NO_END: Final[JsonObject] = {"stop_reason": None, "stop_sequence": None}


class MessageCodec(AnswerCodec[Step]):
    """One answer. `max_tokens` is what the client asked for; `request_id` is repeated in an error."""

    framing = Framing(named_event, keep_alive=named_event(_PING))

    def __init__(self, run: ChatRun, model: str, max_tokens: int, request_id: str) -> None:
        self._run = run
        self._model = model
        self._max_tokens = max_tokens
        self._request_id = request_id
        self._message_id = f"msg_{uuid.uuid4().hex}"
        self._writer = MessageWriter(run.kind.form)
        self._has_begun = False
        self._end = _NO_END

    def step(self, step: Step) -> list[JsonObject]:
        """Events of its blocks, behind the message's beginning."""
        events: list[JsonObject] = []
        if not self._has_begun:
            self._has_begun = True
            events += [{"type": "message_start", "message": self._message([])}, _PING]
        for event in step.events:
            events += self._writer.push(event)
        if step.delta.finish is not None:
            self._end = self._end_of(step.delta.finish, step.delta.stop)
        return events

    def end(self) -> list[JsonObject]:
        """The last block's end, why the message ended, and what it cost."""
        events = list(self._writer.close())
        events.append({"type": "message_delta", "delta": self._end, "usage": self._usage()})
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
            **self._end,
            "usage": self._usage(),
        }

    def _end_of(self, finish: FinishReason, stop: str | int | None) -> JsonObject:
        """Why it ended; a stop that is a number is a token of the model's own."""
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = _ENDS.get(finish, "tool_use" if self._writer.has_called else "end_turn")
        is_full = self._run.generation.usage_of(0).num_output < self._max_tokens
        if reason == "max_tokens" and is_full:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self) -> JsonObject:
        """What it cost: input is what was computed of it."""
        usage = self._run.generation.usage_of(0)
        return {
            "input_tokens": usage.num_prompt - usage.num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.num_cached,
            "output_tokens": usage.num_output,
            **self._run.generation.cut_field(),
        }


def input_of(arguments: str) -> JsonObject:
    """A call's arguments as an object. Of those that were cut: what is complete, by the parser with which
    Anthropic's SDK reads the pieces of a stream. Of what is no object: {}."""
    try:
        read = pydantic_core.from_json(arguments, allow_partial=True, allow_inf_nan=False)
        json.dumps(read, allow_nan=False)  # 1e999 is read as infinity
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}
