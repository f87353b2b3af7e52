"""A chat's answer in Ollama's shapes: one object, or lines of JSON, one a piece, the last with figures.

    {"model", "created_at", "message": {"role", "content", "thinking", "tool_calls"}, "done": false}
    {..., "done": true, "done_reason", "total_duration", "prompt_eval_count", ..., "eval_duration"}

/api/generate has `response` and `thinking` instead of a message. Calls are sent whole, with arguments as an
object. A call whose arguments do not parse (a truncated answer) becomes text at the end of the content.

Durations are nanoseconds, measured here. `load_duration` is 0: requests load nothing. `prompt_eval_duration`
lasts from the request's arrival to the first token, and includes the time in the queue.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, NoReturn

from octavo.engine.outputs import Delta, TokenInfo
from octavo.errors import OctavoError
from octavo.server.answer_driver import AnswerCodec, Framing
from octavo.server.chat_run import ChatRun, Step, new_call_id
from octavo.server.dialects.error_shapes import ollama_error
from octavo.server.errors import JsonObject
from octavo.server.logprobs import chat_logprobs
from octavo.server.metrics import RequestWatch
from octavo.server.sse import encode_json
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat

MEDIA_TYPE: Final = "application/x-ndjson"
# White space before a line's JSON keeps the connection open; readers of lines ignore it.
_KEEP_ALIVE: Final = b" "
_NANOSECONDS: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class AnswerPart:
    """The text and calls of one step, or of the whole answer; `calls` are in Ollama's shape."""

    content: str = ""
    thinking: str = ""
    calls: tuple[JsonObject, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.content or self.thinking or self.calls)


@dataclass(frozen=True, slots=True)
class OllamaShape:
    """How a request's answer is written."""

    model: str  # the name that the client sent
    is_chat: bool
    has_logprobs: bool = False

    def part(self, part: AnswerPart, tokens: Iterable[TokenInfo] = ()) -> JsonObject:
        """A part of the answer."""
        written: JsonObject = {"model": self.model, "created_at": now()}
        thinking: JsonObject = {"thinking": part.thinking} if part.thinking else {}
        if self.is_chat:
            calls: JsonObject = {"tool_calls": list(part.calls)} if part.calls else {}
            written["message"] = {"role": "assistant", "content": part.content, **thinking, **calls}
        else:
            written |= {"response": part.content, **thinking}
        written["done"] = False
        entries = chat_logprobs(tokens)["content"] if self.has_logprobs else None
        return written | ({"logprobs": entries} if entries else {})

    def loaded(self, reason: str) -> JsonObject:
        """The answer to a request without a prompt. `reason` is "load" or "unload"."""
        return self.part(AnswerPart()) | {"done": True, "done_reason": reason}


class PartReader:
    """Reads one choice's events. A call is complete when the next event that is not of it comes."""

    def __init__(self, form: ToolFormat | None) -> None:
        self._form = form
        self._name: str | None = None  # of the call that is being read
        self._arguments: list[str] = []
        self._num_calls = 0
        self._broken = ""  # calls that do not parse, as text

    def push(self, events: Iterable[AnswerEvent], is_last: bool) -> AnswerPart:
        """The text and the completed calls of these events."""
        content, thinking, calls = "", "", list[JsonObject]()
        for event in events:
            match event:
                case Content(text):
                    calls += self._finish_call()
                    content += text
                case ThinkingText(text):
                    thinking += text
                case CallStart(_, name):
                    calls += self._finish_call()
                    self._name = name
                case ArgumentsText(_, text):
                    self._arguments.append(text)
        if is_last:
            calls += self._finish_call()
            content, self._broken = content + self._broken, ""
        return AnswerPart(content, thinking, tuple(calls))

    def _finish_call(self) -> list[JsonObject]:
        """The open call, if there is one and it parses."""
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


def _line(body: JsonObject) -> bytes:
    return encode_json(body) + b"\n"


class OllamaCodec(AnswerCodec[Step]):
    """One answer. `watch` measures its durations."""

    framing = Framing(_line, keep_alive=_KEEP_ALIVE, media_type=MEDIA_TYPE)

    def __init__(self, run: ChatRun, shape: OllamaShape, watch: RequestWatch, *, is_stream: bool) -> None:
        self._run = run
        self._shape = shape
        self._watch = watch
        self._is_stream = is_stream
        self._reader = PartReader(run.kind.form)
        self._figures: JsonObject = {}
        # Only if the answer is not streamed.
        self._parts: list[AnswerPart] = []
        self._tokens: list[TokenInfo] = []

    def step(self, step: Step) -> list[JsonObject]:
        """A line for a step with text or calls; after the last step, one with the figures."""
        delta, lines = step.delta, list[JsonObject]()
        is_last = delta.finish is not None
        part = self._reader.push(step.events, is_last)
        if not self._is_stream:
            self._parts.append(part)
            self._tokens += delta.tokens
        elif part or (self._shape.has_logprobs and delta.tokens):
            lines.append(self._shape.part(part, delta.tokens))
        if is_last:
            self._figures = self._figures_of(delta)
            lines.append(self._shape.part(AnswerPart()) | self._figures)
        return lines

    def error(self, error: OctavoError) -> Sequence[JsonObject]:
        """A line with the error."""
        return (ollama_error(error),)

    def whole(self) -> JsonObject:
        """All parts as one, with the figures."""
        part = AnswerPart(
            "".join(part.content for part in self._parts),
            "".join(part.thinking for part in self._parts),
            tuple(call for part in self._parts for call in part.calls),
        )
        return self._shape.part(part, self._tokens) | self._figures

    def _figures_of(self, delta: Delta) -> JsonObject:
        """The fields that only the last object has."""
        total_s = self._watch.age_s
        first_s = self._watch.first_token_s
        prompt_s = total_s if first_s is None else first_s
        return {
            "done": True,
            "done_reason": delta.finish,
            "total_duration": nanoseconds(total_s),
            "load_duration": 0,
            "prompt_eval_count": delta.usage.num_prompt,
            "prompt_eval_duration": nanoseconds(prompt_s),
            "eval_count": delta.usage.num_output,
            "eval_duration": nanoseconds(total_s - prompt_s),
            **self._run.generation.cut_field(),
        }


def now() -> str:
    """The time, in RFC 3339."""
    return rfc3339(datetime.now(UTC))


def rfc3339(moment: datetime) -> str:
    """A time in UTC, in RFC 3339."""
    return moment.isoformat().replace("+00:00", "Z")


def nanoseconds(seconds: float) -> int:
    """A duration in Ollama's unit; at least 1, since clients divide by it."""
    return max(1, round(seconds * _NANOSECONDS))


def _object_of(text: str) -> JsonObject | None:
    """A call's arguments; None if they are no object that can be encoded again (a number may be too large, a
    text half a surrogate pair)."""
    try:
        value = json.loads(text, parse_constant=_refuse)
        encode_json({"": value})
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)
