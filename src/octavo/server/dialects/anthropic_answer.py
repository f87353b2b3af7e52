"""Anthropic's answer: a message of blocks, whole or as the events of a stream. Both are made of the same
events of an answer, so the deltas of a stream join to the whole.

    Thought -> thinking block     Content -> text block     CallBegun, ArgumentsText -> tool_use block

    message_start, ping, {content_block_start, content_block_delta..., content_block_stop}...,
    message_delta (why it ended, what it cost), message_stop; or an error at any place
"""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import pydantic_core

from octavo.errors import OctavoError
from octavo.server.chat_answer import new_call_id
from octavo.server.chat_run import ChatRun
from octavo.server.dialects.error_shapes import anthropic_error
from octavo.server.errors import JsonObject
from octavo.server.generation import Choice
from octavo.server.sse import encode_json
from octavo.tools.answer import AnswerReader
from octavo.tools.events import AnswerEvent, ArgumentsText, CallBegun, Content, Thought
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason, Usage

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
            case Thought(text):
                yield from self._say("thinking", text)
            case Content(text):
                yield from self._say("text", text)
            case CallBegun(index, name):
                yield from self.close()
                call = {"id": _call_id(self._form, name, index), "name": name, "input": {}}
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


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """How this request's answer is written."""

    run: ChatRun
    model: str
    max_tokens: int  # that the client asked for
    message_id: str = field(default_factory=lambda: f"msg_{uuid.uuid4().hex}")

    def writer(self) -> MessageWriter:
        """Of its message."""
        return MessageWriter(self.run.kind.form)

    def end(self, writer: MessageWriter, finish: FinishReason | None, stop: str | int | None) -> JsonObject:
        """Why it ended; a stop that is a number is a token of the model's own."""
        if isinstance(stop, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": stop}
        reason = "tool_use" if writer.has_called else "end_turn"
        if finish is not None:
            reason = _ENDS.get(finish, reason)
        is_full = self.run.generation.usage_of(0).num_output < self.max_tokens
        if reason == "max_tokens" and is_full:
            reason = "model_context_window_exceeded"
        return {"stop_reason": reason, "stop_sequence": None}

    def message(self, content: list[JsonObject], end: JsonObject) -> JsonObject:
        """The message object."""
        return {
            "id": self.message_id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            **end,
            "usage": usage_of(self.run.generation.usage_of(0)) | self.run.generation.told_cut(),
        }


def whole_message(plan: MessagePlan, choice: Choice) -> JsonObject:
    """The answer, complete."""
    writer, kind = plan.writer(), plan.run.kind
    for said in AnswerReader(kind).push(choice.text, is_last=True):
        if kind.tells_thoughts or not isinstance(said, Thought):
            list(writer.push(said))
    return plan.message(writer.content, plan.end(writer, choice.finish, choice.stop))


async def message_events(plan: MessagePlan, request_id: str) -> AsyncGenerator[bytes, None]:
    """The answer as the events of a stream; an error ends it in order."""
    writer, open_end = plan.writer(), dict[str, object](stop_reason=None, stop_sequence=None)
    end, has_begun = open_end, False
    try:
        async with aclosing(plan.run.steps()) as steps:
            async for step in steps:
                if not has_begun:
                    has_begun = True
                    yield named_event({"type": "message_start", "message": plan.message([], open_end)})
                    yield PING
                for said in step.events:
                    for told in writer.push(said):
                        yield named_event(told)
                delta = step.piece.delta
                if delta.finish is not None:
                    end = plan.end(writer, delta.finish, delta.stop)
        for told in writer.close():
            yield named_event(told)
        usage = usage_of(plan.run.generation.usage_of(0)) | plan.run.generation.told_cut()
        yield named_event({"type": "message_delta", "delta": end, "usage": usage})
        yield named_event({"type": "message_stop"})
    except OctavoError as error:
        yield named_event(anthropic_error(error, request_id))


def named_event(body: JsonObject) -> bytes:
    """One event, whose name is its type."""
    return f"event: {body['type']}\n".encode() + b"data: " + encode_json(body) + b"\n\n"


PING: Final = named_event({"type": "ping"})


def usage_of(usage: Usage) -> JsonObject:
    """What it cost: input is what was computed of it."""
    return {
        "input_tokens": usage.num_prompt - usage.num_cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.num_cached,
        "output_tokens": usage.num_output,
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


def _call_id(form: ToolFormat | None, name: str, index: int) -> str:
    """Some templates want ids of their own, without a prefix."""
    wants_own = form is not None and (form.id_chars or form.id_form)
    return new_call_id(form, name, index) if wants_own else f"toolu_{uuid.uuid4().hex[:24]}"
