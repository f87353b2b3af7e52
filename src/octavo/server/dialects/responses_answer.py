"""The output of a response as it is generated: its items, and the events of a stream that report them.

    ThinkingText reasoning item      output_item.added, content_part.added, reasoning_text.delta ..., .done,
                                     content_part.done, output_item.done
    Content      message             the same, with output_text
    CallStart    function_call       output_item.added, function_call_arguments.delta ..., .done,
                                     output_item.done
                 custom_tool_call    the same, with custom_tool_call_input

One item is open at a time; beginning another one closes it. `ResponseRun` adds the sequence_number of events.
Source of the shapes: openai-python's `types/responses/*_event.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

from octavo.engine.outputs import TokenInfo
from octavo.server.chat_run import ChatRun, Step, new_call_id
from octavo.server.dialects.responses_items import item_id
from octavo.server.dialects.responses_tools import OfferedTools, custom_input
from octavo.server.errors import JsonObject
from octavo.server.logprobs import chat_logprobs
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import ToolFormat


class _OpenItem(Protocol):
    """An item that has begun and not ended."""

    item: JsonObject

    def begin(self) -> Iterator[JsonObject]: ...

    def more(self, text: str, logprobs: list[JsonObject]) -> JsonObject | None: ...

    def end(self, status: str) -> Iterator[JsonObject]: ...


class OutputWriter:
    """Writes the output of one response, after `num_before` items of its request."""

    def __init__(self, response_id: str, num_before: int, run: ChatRun, tools: OfferedTools) -> None:
        self.output: list[JsonObject] = []  # complete
        self.num_reasoning_tokens = 0
        self._response_id = response_id
        self._num_before = num_before
        self._form: ToolFormat | None = run.kind.form
        self._tools = tools
        self._has_logprobs = run.params.logprobs is not None
        self._open: _OpenItem | None = None
        self._tokens: list[TokenInfo] = []  # whose text has not come yet

    def push(self, step: Step) -> Iterator[JsonObject]:
        """The step as events of the stream."""
        self._tokens += step.delta.tokens
        for event in step.events:
            yield from self._push_event(event)

    def finish(self, status: str) -> Iterator[JsonObject]:
        """End the last item with this status. A completed answer has at least one item."""
        if status == "completed" and self._open is None and not self.output:
            yield from self._begin(_TextItem(_MESSAGE, self._next("message"), 0))
        yield from self._close(status)

    def _push_event(self, event: AnswerEvent) -> Iterator[JsonObject]:
        match event:
            case ThinkingText(text):
                self.num_reasoning_tokens += len(self._take_tokens())
                yield from self._write(_REASONING, "reasoning", text, [])
            case Content(text):
                tokens = self._take_tokens()
                logprobs = chat_logprobs(tokens)["content"] if self._has_logprobs else []
                yield from self._write(_MESSAGE, "message", text, cast("list[JsonObject]", logprobs))
            case CallStart(index, name):
                self._take_tokens()
                yield from self._begin(self._call(name, new_call_id(self._form, name, index)))
            case ArgumentsText(_, text):
                self._take_tokens()
                assert self._open is not None, "arguments come after the start of their call"
                delta = self._open.more(text, [])
                if delta is not None:
                    yield delta

    def _call(self, name: str, call_id: str) -> _OpenItem:
        """The item of a call, by the kind of tool behind the function."""
        if name in self._tools.custom:
            return _CustomCallItem(self._next("custom_tool_call"), self._index(), name, call_id)
        namespace, own_name = self._tools.namespaces.get(name, ("", name))
        return _CallItem(self._next("function_call"), self._index(), own_name, call_id, namespace)

    def _write(
        self, kind: _TextKind, name: str, text: str, logprobs: list[JsonObject]
    ) -> Iterator[JsonObject]:
        """Append text to the open item if it is of that kind, else to a new one."""
        if not (isinstance(self._open, _TextItem) and self._open.kind is kind):
            yield from self._begin(_TextItem(kind, self._next(name), self._index()))
        event = None if self._open is None else self._open.more(text, logprobs)
        assert event is not None, "each piece of an item's text has a delta"
        yield event

    def _take_tokens(self) -> list[TokenInfo]:
        taken, self._tokens = self._tokens, []
        return taken

    def _index(self) -> int:
        """The next item's place in the output."""
        return len(self.output) + (self._open is not None)

    def _next(self, kind: str) -> str:
        return item_id(kind, self._response_id, self._num_before + self._index())

    def _begin(self, item: _OpenItem) -> Iterator[JsonObject]:
        yield from self._close("completed")
        self._open = item
        yield from item.begin()

    def _close(self, status: str) -> Iterator[JsonObject]:
        closed, self._open = self._open, None
        if closed is not None:
            self.output.append(closed.item)
            yield from closed.end(status)


@dataclass(frozen=True, slots=True)
class _TextKind:
    """A kind of item with one part of text."""

    part_type: str
    item: JsonObject
    has_logprobs: bool


_MESSAGE = _TextKind("output_text", {"type": "message", "role": "assistant"}, has_logprobs=True)
_REASONING = _TextKind("reasoning_text", {"type": "reasoning", "summary": []}, has_logprobs=False)


class _TextItem:
    """A message, or the reasoning before it."""

    def __init__(self, kind: _TextKind, item_id: str, index: int) -> None:
        self.kind = kind
        self._id, self._index = item_id, index
        self._texts: list[str] = []
        self._logprobs: list[JsonObject] = []
        self.item: JsonObject = {"id": item_id, **kind.item, "status": "in_progress", "content": []}

    def begin(self) -> Iterator[JsonObject]:
        yield _added(self.item, self._index)
        yield self._event("response.content_part.added", {"part": self._part()})

    def more(self, text: str, logprobs: list[JsonObject]) -> JsonObject:
        self._texts.append(text)
        self._logprobs += logprobs
        fields: JsonObject = {"delta": text} | ({"logprobs": logprobs} if self.kind.has_logprobs else {})
        return self._event(f"response.{self.kind.part_type}.delta", fields)

    def end(self, status: str) -> Iterator[JsonObject]:
        part = self._part()
        self.item |= {"status": status, "content": [part]}
        fields: JsonObject = {name: part[name] for name in ("text", "logprobs") if name in part}
        yield self._event(f"response.{self.kind.part_type}.done", fields)
        yield self._event("response.content_part.done", {"part": part})
        yield _ended(self.item, self._index)

    def _part(self) -> JsonObject:
        part: JsonObject = {"type": self.kind.part_type, "text": "".join(self._texts)}
        return part | ({"annotations": [], "logprobs": [*self._logprobs]} if self.kind.has_logprobs else {})

    def _event(self, kind: str, fields: JsonObject) -> JsonObject:
        place: JsonObject = {"item_id": self._id, "output_index": self._index, "content_index": 0}
        return {"type": kind, **place, **fields}


class _CallItem:
    """A call of a function."""

    def __init__(self, item_id: str, index: int, name: str, call_id: str, namespace: str) -> None:
        self._id, self._index = item_id, index
        self._arguments: list[str] = []
        self.item: JsonObject = {
            "id": item_id,
            "type": "function_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": name,
            "arguments": "",
        }
        if namespace:
            self.item["namespace"] = namespace

    def begin(self) -> Iterator[JsonObject]:
        yield _added(self.item, self._index)

    def more(self, text: str, logprobs: list[JsonObject]) -> JsonObject:
        self._arguments.append(text)
        return self._event("response.function_call_arguments.delta", {"delta": text})

    def end(self, status: str) -> Iterator[JsonObject]:
        arguments = "".join(self._arguments)
        self.item |= {"status": status, "arguments": arguments}
        yield self._event("response.function_call_arguments.done", {"arguments": arguments})
        yield _ended(self.item, self._index)

    def _event(self, kind: str, fields: JsonObject) -> JsonObject:
        return {"type": kind, "item_id": self._id, "output_index": self._index, **fields}


class _CustomCallItem:
    """A call of a custom tool. Its text is a field of the JSON arguments, so it is sent when they end."""

    def __init__(self, item_id: str, index: int, name: str, call_id: str) -> None:
        self._id, self._index = item_id, index
        self._arguments: list[str] = []
        self.item: JsonObject = {
            "id": item_id,
            "type": "custom_tool_call",
            "status": "in_progress",
            "call_id": call_id,
            "name": name,
            "input": "",
        }

    def begin(self) -> Iterator[JsonObject]:
        yield _added(self.item, self._index)

    def more(self, text: str, logprobs: list[JsonObject]) -> None:
        self._arguments.append(text)

    def end(self, status: str) -> Iterator[JsonObject]:
        text = custom_input("".join(self._arguments))
        self.item |= {"status": status, "input": text}
        yield self._event("delta", {"delta": text})
        yield self._event("done", {"input": text})
        yield _ended(self.item, self._index)

    def _event(self, kind: str, fields: JsonObject) -> JsonObject:
        place: JsonObject = {"item_id": self._id, "output_index": self._index}
        return {"type": f"response.custom_tool_call_input.{kind}", **place, **fields}


def _added(item: JsonObject, index: int) -> JsonObject:
    # A copy: the item may change before the event is sent.
    return {"type": "response.output_item.added", "output_index": index, "item": dict(item)}


def _ended(item: JsonObject, index: int) -> JsonObject:
    return {"type": "response.output_item.done", "output_index": index, "item": item}
