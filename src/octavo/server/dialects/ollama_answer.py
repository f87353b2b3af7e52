"""A chat's answer in Ollama's shapes: one object, or lines of JSON, each a piece, the last with figures.

    {"model", "created_at", "message": {"role", "content", "thinking", "tool_calls"}, "done": false}
    {..., "done": true, "done_reason", "total_duration", "prompt_eval_count", ..., "eval_duration"}

/api/generate has `response` and `thinking` instead of a message. Calls come whole, their arguments an object:
one whose arguments are none (an answer that was cut inside them) is text, at the end of the content.

Durations are nanoseconds, measured here. Nothing is loaded for a request, so that takes 0; the prompt's lasts
from the request's arrival to the first token, and includes what it waited.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from http import HTTPStatus
from typing import Final, NoReturn

from starlette.requests import Request
from starlette.responses import Response

from octavo.engine.outputs import TokenInfo
from octavo.errors import OctavoError
from octavo.server.chat_answer import new_call_id
from octavo.server.chat_run import ChatRun
from octavo.server.dialects.error_shapes import ollama_error
from octavo.server.errors import JsonObject, json_response
from octavo.server.logprobs import chat_logprobs
from octavo.server.metrics import RequestWatch
from octavo.server.sse import EventStream, encode_json
from octavo.tools.events import AnswerEvent, ArgumentsText, CallBegun, Content, Thought
from octavo.tools.formats import ToolFormat
from octavo.types import FinishReason, Usage

MEDIA_TYPE: Final = "application/x-ndjson"
# White space before a line's JSON: readers of lines wait on, and connections stay.
_KEEP_ALIVE: Final = b" "
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Said:
    """What a piece, or all, of an answer says; `calls` are in Ollama's shape."""

    content: str = ""
    thought: str = ""
    calls: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.thought or self.calls)


@dataclass(frozen=True, slots=True)
class Shape:
    """How a request's answer is written."""

    model: str  # as the client named it
    is_chat: bool
    tells_logprobs: bool
    watch: RequestWatch

    def piece(self, said: Said, tokens: Iterable[TokenInfo] = ()) -> JsonObject:
        """A part of the answer."""
        told: JsonObject = {"model": self.model, "created_at": now()}
        thinking: JsonObject = {"thinking": said.thought} if said.thought else {}
        if self.is_chat:
            calls: JsonObject = {"tool_calls": list(said.calls)} if said.calls else {}
            told["message"] = {"role": "assistant", "content": said.content, **thinking, **calls}
        else:
            told |= {"response": said.content, **thinking}
        told["done"] = False
        entries = chat_logprobs(tokens)["content"] if self.tells_logprobs else None
        return told | ({"logprobs": entries} if entries else {})

    def end(self, finish: FinishReason | None, usage: Usage, run: ChatRun) -> JsonObject:
        """What the last object tells beside its text."""
        total_s = self.watch.age_s
        first_s = self.watch.first_token_s
        prompt_s = total_s if first_s is None else first_s
        return {
            "done": True,
            "done_reason": finish,
            "total_duration": nanoseconds(total_s),
            "load_duration": 0,
            "prompt_eval_count": usage.num_prompt,
            "prompt_eval_duration": nanoseconds(prompt_s),
            "eval_count": usage.num_output,
            "eval_duration": nanoseconds(total_s - prompt_s),
            **run.generation.told_cut(),
        }

    def loaded(self, reason: str) -> Response:
        """The answer to nothing: the model is there. `reason` is "load" or "unload"."""
        return json_response(self.piece(Said()) | {"done": True, "done_reason": reason})


class Teller:
    """Reads one choice's events; a call is told when what follows it begins."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._name: str | None = None  # of the call that is being read
        self._arguments: list[str] = []
        self._num_calls = 0
        self._broken = ""  # calls that are none

    def push(self, events: Iterable[AnswerEvent], is_last: bool) -> Said:
        """What these say."""
        content, thought, calls = "", "", list[JsonObject]()
        for event in events:
            match event:
                case Content(text):
                    calls += self._ended()
                    content += text
                case Thought(text):
                    thought += text
                case CallBegun(_, name):
                    calls += self._ended()
                    self._name = name
                case ArgumentsText(_, text):
                    self._arguments.append(text)
        if is_last:
            calls += self._ended()
            content, self._broken = content + self._broken, ""
        return Said(content, thought, tuple(calls))

    def _ended(self) -> list[JsonObject]:
        """The call that was being read, if there is one."""
        if self._name is None:
            return []
        name, text = self._name, "".join(self._arguments)
        self._name, self._arguments = None, []
        arguments = _object_of(text)
        if arguments is None:
            self._broken += f'{{"name": {json.dumps(name)}, "arguments": {text}'
            return []
        function = {"index": self._num_calls, "name": name, "arguments": arguments}
        self._num_calls += 1
        return [{"id": new_call_id(self._form, name, self._num_calls - 1), "function": function}]


async def answer(request: Request, run: ChatRun, shape: Shape, is_stream: bool) -> Response:
    """Of one choice, as lines or whole. Raises as `ChatRun.whole`."""
    if is_stream:
        return EventStream(
            _lines(run, shape),
            run.generation.cancel,
            run.generation.headers,
            keep_alive=_KEEP_ALIVE,
            media_type=MEDIA_TYPE,
        )
    whole = await run.whole(request)
    events: list[AnswerEvent] = [Thought(whole.thought), Content(whole.content)]
    for place, call in enumerate(whole.calls):
        events += [CallBegun(place, call.name), ArgumentsText(place, call.arguments)]
    said = Teller(run.kind.form).push(events, is_last=True)
    told = shape.piece(said, whole.tokens) | shape.end(whole.finish, whole.usage, run)
    return json_response(told, status=HTTPStatus.OK, headers=run.generation.headers)


async def _lines(run: ChatRun, shape: Shape) -> AsyncGenerator[bytes, None]:
    """Pieces, then the figures; an error ends them in order."""
    teller = Teller(run.kind.form)
    try:
        async with aclosing(run.steps()) as steps:
            async for step in steps:
                delta = step.piece.delta
                is_last = delta.finish is not None
                said = teller.push(step.events, is_last)
                if said or (shape.tells_logprobs and delta.tokens):
                    yield _line(shape.piece(said, delta.tokens))
                if is_last:
                    yield _line(shape.piece(Said()) | shape.end(delta.finish, delta.usage, run))
    except OctavoError as error:
        yield _line(ollama_error(error))


def now() -> str:
    """The time, as RFC 3339 has it."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    """A time in UTC."""
    return moment.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """As Ollama tells durations. Nothing that happened took none: clients divide by it."""
    return max(1, round(seconds * _NANOSECONDS))


def _line(told: JsonObject) -> bytes:
    return encode_json(told) + b"\n"


def _object_of(text: str) -> JsonObject | None:
    """A call's arguments; None where they are no object that JSON can say again (a number may be too large,
    a text half a surrogate pair)."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        encode_json({"": value})
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
