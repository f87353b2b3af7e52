"""From text, as it comes, to calls: the same whether it comes at once or letter by letter.

    CONTENT --a text that begins calls--> HEAD --name and "{"--> ARGUMENTS --its "}"--> TAIL --> BETWEEN
       ^                                   |                                                     |
       +------------- no call after all ---+            another call: HEAD; other text: CONTENT -+

Arguments are given on as they were written, letter by letter. White space around JSON's punctuation may be
other than the format's; what is no call after all is content.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

from octavo.tools.formats import ToolFormat
from octavo.tools.pythonic import PythonicCalls

# More than any head or tail has, white space included.
_HEAD_CHARS_MAX = 640
_CUT_CHARACTER = "\ufffd"  # what the bytes of half a character become at the end of an answer
_BLANKS = r"\s{0,8}"


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A call of this function; `index` counts the answer's calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsText:
    """More of a call's arguments: JSON, in pieces."""

    index: int
    text: str


Event = Content | CallBegun | ArgumentsText


class _State(enum.Enum):
    CONTENT = enum.auto()
    HEAD = enum.auto()
    ARGUMENTS = enum.auto()
    TAIL = enum.auto()
    BETWEEN = enum.auto()


class CallParser:
    """Reads one answer."""

    def __init__(self, form: ToolFormat) -> None:
        self._form = form
        self._state = _State.CONTENT
        self._text = ""  # not yet decided
        self._is_over = False  # no more will come
        self._num_calls = 0
        self._has_content = False
        self._is_behind_calls = False  # white space that comes now is no content
        self._object = _ObjectScanner()
        first, name = _flexible(form.call_open), r"(?P<name>[A-Za-z0-9_.-]{1,64})"
        to_arguments = _flexible(form.to_arguments).replace("parameters", "arguments")
        to_arguments = to_arguments.replace("arguments", "(?:arguments|parameters)")
        self._head = re.compile(f"{first}{name}{to_arguments}{_BLANKS}(?={{)")
        opening = "|".join(map(re.escape, form.begins))
        self._first_head = re.compile(f"(?:{opening})?{_BLANKS}\\[?{_BLANKS}{self._head.pattern}")
        self._tail = re.compile(_flexible(form.call_close))

    def push(self, text: str) -> list[Event]:
        """More of the answer."""
        self._text += text
        return self._events()

    def finish(self) -> list[Event]:
        """There is no more: what was held back."""
        self._is_over = True
        return self._events()

    def _events(self) -> list[Event]:
        events: list[Event] = []
        step = {
            _State.CONTENT: self._read_content,
            _State.HEAD: self._read_head,
            _State.ARGUMENTS: self._read_arguments,
            _State.TAIL: self._read_tail,
            _State.BETWEEN: self._read_between,
        }
        while step[self._state](events):
            pass
        return events

    def _read_content(self, events: list[Event]) -> bool:
        """True where the state has changed: a call may begin here."""
        begins = self._form.begins
        if self._is_behind_calls:
            self._text = self._text.lstrip()
            self._is_behind_calls = not self._text
        if self._form.at_start:
            rest = self._text.lstrip()
            if self._has_content or (rest and not _may_begin(rest, begins)):
                self._say(self._text, events)
                self._text = ""
                return False
            if rest.startswith(begins):
                self._text, self._state = rest, _State.HEAD
                return True
            self._say_what_is_left(events)
            return False
        place = min((at for one in begins if (at := self._text.find(one)) >= 0), default=-1)
        if place >= 0:
            # White space before a call is no content.
            self._say(self._text[:place].rstrip(), events)
            self._text, self._state = self._text[place:], _State.HEAD
            return True
        # Held back: what may begin calls, and the white space before it.
        held = max((_overlap(self._text, one) for one in begins), default=0)
        kept = len(self._text[: len(self._text) - held].rstrip())
        self._say(self._text[:kept], events)
        self._text = self._text[kept:]
        self._say_what_is_left(events)
        return False

    def _read_head(self, events: list[Event]) -> bool:
        if self._form.is_pythonic:
            return self._read_pythonic(events)
        found = (self._head if self._num_calls else self._first_head).match(self._text)
        if found is not None:
            events.append(CallBegun(self._num_calls, found["name"]))
            self._text, self._state = self._text[found.end() :], _State.ARGUMENTS
            self._object = _ObjectScanner()
            return True
        if self._is_over or len(self._text) > _HEAD_CHARS_MAX:
            self._give_up(events)
            return True
        return False

    def _read_arguments(self, events: list[Event]) -> bool:
        length = self._object.take(self._text)
        if length:
            events.append(ArgumentsText(self._num_calls, self._text[:length]))
            self._text = self._text[length:]
        if self._object.is_whole:
            self._num_calls += 1
            self._state = _State.TAIL
            return True
        return False

    def _read_tail(self, events: list[Event]) -> bool:
        found = self._tail.match(self._text)
        if found is None and not self._is_over and len(self._text) <= _HEAD_CHARS_MAX:
            return False
        if found is not None:
            self._text = self._text[found.end() :]
        elif self._is_over and _squeezed(self._form.call_close).startswith(self._squeezed_rest()):
            self._text = ""  # the rest of the tail was left out, or cut off
        self._state = _State.BETWEEN
        return True

    def _read_between(self, events: list[Event]) -> bool:
        self._text = self._text.lstrip(" \t\r\n,;")
        form = self._form
        if self._text.startswith(form.next_begins):
            self._state = _State.HEAD
            return True
        if form.close and self._text.startswith(form.close):
            self._text = self._text[len(form.close) :]
            self._end_calls()
            return True
        rest = self._text.rstrip(_CUT_CHARACTER)
        may_go_on = form.next_begins.startswith(rest) or form.close.startswith(rest)
        if may_go_on:
            self._text = "" if self._is_over else self._text
            return False
        self._end_calls()
        return True

    def _read_pythonic(self, events: list[Event]) -> bool:
        calls = PythonicCalls(self._text, self._num_calls > 0)
        for call in calls.whole:
            events.append(CallBegun(self._num_calls, call.name))
            events.append(ArgumentsText(self._num_calls, call.arguments))
            self._num_calls += 1
        self._text = self._text[calls.end :]
        if calls.is_over:
            self._end_calls()
            return True
        if calls.is_wrong or self._is_over:
            self._give_up(events)
            return True
        return False

    def _may_become_head(self) -> bool:
        form, text = self._form, self._squeezed_rest()
        head = _squeezed(form.call_open)
        return form.is_pythonic or head.startswith(text) or text.startswith(head)

    def _squeezed_rest(self) -> str:
        return _squeezed(self._text.rstrip(_CUT_CHARACTER))

    def _end_calls(self) -> None:
        self._state, self._has_content, self._is_behind_calls = _State.CONTENT, True, True

    def _give_up(self, events: list[Event]) -> None:
        """What looked like a call is none; behind another, one that is cut before its arguments is
        nothing."""
        self._state = _State.CONTENT
        if self._num_calls and self._is_over and self._may_become_head():
            self._text = ""
            return
        if self._form.at_start:
            self._has_content = True
        else:
            self._say(self._text[:1], events)
            self._text = self._text[1:]

    def _say(self, text: str, events: list[Event]) -> None:
        if text:
            self._has_content = True
            events.append(Content(text))

    def _say_what_is_left(self, events: list[Event]) -> None:
        if self._is_over:
            self._say(self._text, events)
            self._text = ""


class _ObjectScanner:
    """Finds the end of a JSON object that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_whole = False

    def take(self, text: str) -> int:
        """How many of these characters belong to it."""
        for place, letter in enumerate(text):
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = letter == "\\"
                self._in_string = letter != '"'
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                if self._depth == 0:
                    self.is_whole = True
                    return place + 1
        return len(text)


def _flexible(literal: str) -> str:
    """A pattern of this text, with some freedom in its white space."""
    parts = [part for part in re.split(r"(\s+|[{}:,])", literal) if part and not part.isspace()]
    pattern = _BLANKS.join(re.escape(part) for part in parts)
    begins, ends = literal[:1], literal[-1:]
    before = _BLANKS if begins.isspace() or (begins in "{}:," and begins) else ""
    after = _BLANKS if ends.isspace() or (ends in "{}:," and ends) else ""
    return before + pattern + after


def _squeezed(text: str) -> str:
    return "".join(text.split())


def _may_begin(text: str, begins: tuple[str, ...]) -> bool:
    return any(text.startswith(one) or one.startswith(text) for one in begins)


def _overlap(text: str, begin: str) -> int:
    """How many characters at the end of `text` are the beginning of `begin`."""
    return next(
        (size for size in range(min(len(begin) - 1, len(text)), 0, -1) if text.endswith(begin[:size])), 0
    )
