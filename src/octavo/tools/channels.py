"""Answers of gpt-oss: lists of messages, each with a header of its channel and recipient.

    <|channel|>analysis<|message|>...<|end|>                                            thinking
    <|start|>assistant<|channel|>final<|message|>...<|return|>                            content
    <|start|>assistant<|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>

A message in commentary without a recipient is content: text before calls. Source: OpenAI's Harmony format.
"""

from __future__ import annotations

import re
from collections.abc import Generator

from octavo.grammar import ThinkingState
from octavo.tools.cursor import Reading, TextCursor, TextEnded
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content, ThinkingText

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_MARKS = (START, CHANNEL, *_ENDS)
_LONGEST = max(map(len, _MARKS))
_CHANNEL = re.compile(r"<\|channel\|>(\w+)")
_RECIPIENT = re.compile(r"to=([A-Za-z0-9_.\-]{1,128})")
_HEADER_CHARS_MAX = 512
_BETWEEN = "\n\n"  # between two messages of one channel


class ChannelReader(TextCursor):
    """Reads one answer. `has_calls`: messages to functions are calls; else they are content."""

    def __init__(self, state: ThinkingState | None, has_calls: bool) -> None:
        super().__init__()
        self._is_inside = state is ThinkingState.INSIDE
        self._has_calls = has_calls
        self._events: list[AnswerEvent] = []
        self._num_calls = 0
        self._kinds: set[type] = set()  # of emitted events
        self._reading = self._messages()

    def push(self, text: str, is_last: bool) -> list[AnswerEvent]:
        """More of the answer."""
        self._text += text
        self._is_over = is_last
        self._events = []
        next(self._reading, None)
        return self._events

    def _messages(self) -> Reading:
        if self._is_inside:
            yield from self._body(ThinkingText)
        while not (self._is_over and not self._text):
            header = yield from self._header()
            if header is None:
                yield from self._body(Content)
                continue
            recipient, channel = _RECIPIENT.search(header), _CHANNEL.search(header)
            kind = ThinkingText if channel is not None and channel[1] == "analysis" else Content
            if recipient is not None and self._has_calls:
                yield from self._call(recipient[1].removeprefix("functions."), kind)
            else:
                yield from self._body(kind)

    def _header(self) -> Generator[None, None, str | None]:
        """A message's header, read up to its body; None if the text has none: it is all body."""
        while True:
            rest = self._text.lstrip()
            ends = [end for end in _ENDS if rest.startswith(end)]
            if ends:
                self._text = rest[len(ends[0]) :]
                continue
            begins = (START, CHANNEL, "to=")
            if rest and not any(rest.startswith(one) or one.startswith(rest) for one in (*begins, *_ENDS)):
                return None
            header, found, body = self._text.partition(MESSAGE)
            if found and len(header) <= _HEADER_CHARS_MAX:
                self._text = body
                return header
            if len(header) > _HEADER_CHARS_MAX:
                self._events.append(Content(rest[:1]))
                self._text = rest[1:]
                return None
            if self._is_over and not rest and not self._kinds and not self._num_calls:
                return None
            if self._is_over:
                self._text = ""  # a header alone has no content
                return ""
            yield

    def _body(self, kind: type[Content] | type[ThinkingText]) -> Reading:
        """Stream a message's text."""
        is_first = True
        while True:
            place = min((at for mark in _MARKS if (at := self._text.find(mark)) >= 0), default=-1)
            held = 0 if self._is_over else _held(self._text)
            length = place if place >= 0 else len(self._text) - held
            if is_first and place == 0 and self._text.startswith((START, CHANNEL)) and kind is Content:
                length = 0
            if length:
                between = _BETWEEN if is_first and kind in self._kinds else ""
                self._events.append(kind(between + self._text[:length]))
                self._kinds.add(kind)
                self._text, is_first = self._text[length:], False
            if place >= 0:
                ends = [end for end in _ENDS if self._text.startswith(end)]
                self._text = self._text[len(ends[0]) if ends else 0 :]
                return
            if self._is_over:
                return
            yield

    def _call(self, name: str, kind: type[Content] | type[ThinkingText]) -> Reading:
        """Stream the arguments of a message to a function; its text if it has none."""
        while not self._text.lstrip() and not self._is_over:
            yield
        self._text = self._text.lstrip()
        if not self._text.startswith(("{", *_ENDS)):
            yield from self._body(kind)
            return
        index, self._num_calls = self._num_calls, self._num_calls + 1
        self._events.append(CallStart(index, name))
        if not self._text.startswith("{"):
            self._events.append(ArgumentsText(index, "{}"))
            self._text = self._text[len(next(end for end in _ENDS if self._text.startswith(end))) :]
            return
        yield from self._arguments(index)

    def _arguments(self, index: int) -> Reading:
        try:
            yield from self._stream_object(lambda text: self._events.append(ArgumentsText(index, text)))
        except TextEnded:
            self._text = ""


def _held(text: str) -> int:
    """How many characters at the end of the text may be the beginning of a mark."""
    tail = text[-_LONGEST:]
    return next((size for size in range(len(tail), 0, -1) if _begins_mark(tail[-size:])), 0)


def _begins_mark(text: str) -> bool:
    return any(mark.startswith(text) for mark in _MARKS)
