"""Parses calls from streamed text: the result is the same for any split of the text.

    content --a text that begins calls--> NAME --> arguments --> what closes the call --> another NAME
       ^                                   |                                                    |
       +---------- no call after all ------+---------------- anything else ---------------------+

It is a generator, written as if all text were present, that pauses when it needs more. A call becomes an
event once its arguments begin, so text that turns out to be no call is content, unchanged. Arguments in JSON
are streamed as written; others are converted to JSON. White space between the words of a format may differ
from the format's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Sequence

from octavo.tools.arguments import ArgumentTypes, escaped
from octavo.tools.cursor import BLANKS, HALF_LETTER, NoCall, Reading, TextCursor, TextEnded
from octavo.tools.definitions import Tool
from octavo.tools.events import AnswerEvent, ArgumentsText, CallStart, Content
from octavo.tools.formats import Body, Tags, ToolFormat
from octavo.tools.pythonic import CallReader, refuse_constant

_KEY_CHARS_MAX = 256  # of an argument's name in tags
_NAME = re.compile(r"[A-Za-z0-9_.\-/]{1,128}")
_ID = re.compile(r"[A-Za-z0-9_.:\-]{0,64}")
_NAME_KEYS = frozenset(("name", "tool_name"))
_ARGUMENT_KEYS = frozenset(("arguments", "parameters"))
_HALF_CALL = re.compile(r"[A-Za-z0-9_.\-]*")
_PYTHON_CALL = re.compile(r"[A-Za-z0-9_.\-]+\(")


class CallParser(TextCursor):
    """Reads one answer, which may call these tools."""

    def __init__(self, form: ToolFormat, tools: Sequence[Tool] = ()) -> None:
        super().__init__()
        self._form = form
        self._types = ArgumentTypes(tools)
        self._num_calls = 0  # started so far
        self._has_content = False
        self._events: list[AnswerEvent] = []
        self._has_said_more = False  # there is content after the last call
        self._blanks = ""  # white space before a possible call
        self._first_heads, self._next_heads = _heads(form)
        self._tail = _tail(form)
        self._reading = self._answer()

    def push(self, text: str) -> list[AnswerEvent]:
        """More of the answer."""
        self._text += text
        return self._resume()

    def finish(self) -> list[AnswerEvent]:
        """The end of the answer: emit the held text."""
        self._is_over = True
        return self._resume()

    def _resume(self) -> list[AnswerEvent]:
        self._events = []
        next(self._reading, None)
        return self._events

    # --- content ---

    def _answer(self) -> Reading:
        while (yield from self._find_calls()):
            yield from self._calls()

    def _find_calls(self) -> Generator[None, None, bool]:
        """Emit content up to where calls may begin; False at the end of the answer."""
        while True:
            if self._form.at_start:
                begins = self._begins_at_start()
            else:
                begins = self._begins_anywhere()
            if begins:
                return True
            if self._is_over:
                self._say(len(self._text))
                return False
            yield

    def _begins_at_start(self) -> bool:
        rest = self._text.lstrip()
        if self._has_content or (rest and not _may_begin(rest, self._form.begins)):
            self._say(len(self._text))
            return False
        if rest and rest.startswith(self._form.begins):
            self._blanks, self._text = self._text[: len(self._text) - len(rest)], rest
            return True
        return False

    def _begins_anywhere(self) -> bool:
        if self._num_calls and not self._has_said_more:
            self._text = self._text.lstrip()  # white space after calls is no content
        begins = self._form.begins
        place = min((at for one in begins if (at := self._text.find(one)) >= 0), default=-1)
        if place >= 0:
            kept = len(self._text[:place].rstrip())
            self._blanks = self._text[kept:place]  # content if this turns out to be no call
            self._say(kept)
            self._text = self._text[place - kept :]
            return True
        # Hold text that may begin calls, and the white space before it.
        held = max((_overlap(self._text, one) for one in begins), default=0)
        self._say(len(self._text[: len(self._text) - held].rstrip()))
        return False

    def _say(self, length: int) -> None:
        """Emit the first characters as content."""
        if length:
            self._has_content = self._has_said_more = True
            self._events.append(Content(self._text[:length]))
            self._text = self._text[length:]

    # --- calls ---

    def _calls(self) -> Reading:
        """Read one call after another, from the text that begins them."""
        heads, num_before = self._first_heads, self._num_calls
        try:
            while True:
                self._at = 0
                yield from self._call(heads)
                self._text = self._text[self._at :]
                heads = self._next_heads
                if not (yield from self._finds_next_call()):
                    break
        except NoCall:
            self._give_up(num_before)
            return
        except TextEnded:  # any later call in it would be truncated too
            self._text = "" if self._num_calls else self._blanks + self._text
            self._say(len(self._text))
            return
        self._has_content, self._has_said_more = True, False

    def _give_up(self, num_before: int) -> None:
        """The text was no call: emit it as content."""
        if self._form.at_start:
            self._has_content = True
            self._text = (self._blanks if self._num_calls == 0 else "") + self._text
        elif self._num_calls == num_before:
            self._text = self._blanks + self._text
            self._say(len(self._blanks) + 1)
        elif self._text:
            self._say(1)

    def _call(self, heads: Sequence[str]) -> Reading:
        yield from self._take_one(heads)
        match self._form.body:
            case Body.OBJECT:
                yield from self._object_call()
            case Body.PYTHON:
                yield from self._python_call()
            case Body.TAGGED:
                yield from self._tagged_call()
            case _:
                yield from self._named_call()
        yield from self._take_optional(self._tail)

    def _finds_next_call(self) -> Generator[None, None, bool]:
        """Skip the text between calls, or the closing text of the last; whether another begins."""
        is_list = False
        while True:
            rest = self._text.lstrip(BLANKS + ",;")
            is_list |= "," in self._text[: len(self._text) - len(rest)]
            self._text = rest
            may_begin, begins = self._may_be_next_call(rest.rstrip(HALF_LETTER), is_list)
            if begins:
                return True
            self._at = 0
            if not may_begin:
                yield from self._take_optional(self._form.close)
                self._text = self._text[self._at :]
                return False
            if self._is_over:
                self._text = ""
                return False
            yield

    def _may_be_next_call(self, rest: str, is_list: bool) -> tuple[bool, bool]:
        """Whether this may be the beginning of another call, and whether it is one; `is_list`: there was a
        comma."""
        form = self._form
        if form.body is Body.PYTHON:
            return _HALF_CALL.fullmatch(rest) is not None, _PYTHON_CALL.match(rest) is not None
        begins = form.next_begins or form.begins
        if is_list and form.body is Body.OBJECT:
            begins = (*begins, "{")
        return any(one.startswith(rest) for one in begins), rest.startswith(begins)

    # --- bodies ---

    def _object_call(self) -> Reading:
        """An object with the call's name and arguments, in any order, nested in "function" or not."""
        num_before = self._num_calls
        try:
            yield from self._members()
        except NoCall:
            if self._num_calls == num_before:
                raise
        if self._num_calls == num_before:
            raise NoCall

    def _members(self) -> Reading:
        """The members of a call's object; the call starts once its name and its first argument are known."""
        yield from self._take_one(("{",))
        name, held, depth, is_begun = "", "", 1, False
        while depth:
            key = yield from self._key()
            if key is None:
                self._at, depth = self._at + 1, depth - 1
                if not depth:
                    return
            elif key == "function" and (yield from self._peek()) == "{":
                self._at, depth = self._at + 1, depth + 1
                continue
            elif key in _NAME_KEYS and not name:
                name = _as_name((yield from self._value()))
            elif key in _ARGUMENT_KEYS and not is_begun and not held:
                if name and (yield from self._peek()) == "{":
                    is_begun = True
                    self._begin(name)
                    yield from self._stream_object(self._emit_arguments)
                else:
                    held = _as_object((yield from self._value()))
            else:
                yield from self._value()
            if name and held and not is_begun:
                is_begun = True
                self._begin(name)
                self._emit_arguments(held)
            yield from self._separator()

    def _named_call(self) -> Reading:
        """NAME, the text before its arguments, a JSON object."""
        name = (yield from self._match(_NAME)).removeprefix("functions.")
        if self._form.id_open and (yield from self._takes(self._form.id_open)):
            yield from self._match(_ID)
        if self._form.begins == ("",) and not self._types.knows(name):
            raise NoCall
        yield from self._take_one((self._form.to_arguments,))
        if (yield from self._peek()) != "{":
            raise NoCall
        self._begin(name)
        yield from self._stream_object(self._emit_arguments)

    def _tagged_call(self) -> Reading:
        """NAME, then arguments in tags of their own."""
        form, tags = self._form, self._form.tags
        assert tags is not None
        name = yield from self._match(_NAME)
        yield from self._take_one((form.to_arguments,))
        last = form.call_close.split()[0]
        if not (yield from self._has_one((tags.param_open, last))):
            raise NoCall
        self._begin(name)
        opening = "{"
        while (yield from self._takes(tags.param_open)):
            key, is_json = yield from self._tag_key(tags)
            self._emit_arguments(f"{opening}{json.dumps(key, ensure_ascii=False)}: ")
            opening = ", "
            yield from self._tag_value(tags, name, key, is_json)
            self._drop_read()
            if not (yield from self._has_one((tags.param_open, last))):
                break
        self._emit_arguments("{}" if opening == "{" else "}")

    def _tag_key(self, tags: Tags) -> Generator[None, None, tuple[str, bool]]:
        """Read an argument's name and the text between it and the value. Returns the name, and whether the
        value is JSON whatever the schema says."""
        separators = [text for text in (tags.to_value, tags.to_json) if text]
        first_char = separators[0].strip()[0]  # of either separator
        while (key_end := self._text.find(first_char, self._at, self._at + _KEY_CHARS_MAX)) < 0:
            if len(self._text) - self._at >= _KEY_CHARS_MAX:
                raise NoCall
            yield from self._more()
        key, self._at = self._text[self._at : key_end].strip(), key_end
        separator = yield from self._take_one([text.rstrip("\n") for text in separators])
        if tags.to_value.endswith("\n") and (yield from self._peek_raw()) == "\n":
            self._at += 1  # the model may omit this newline
        return key, separator == tags.to_json

    def _tag_value(self, tags: Tags, name: str, key: str, is_json: bool) -> Reading:
        """An argument's value, up to its closing text: strings are streamed, other values emitted whole."""
        self._drop_read()
        end = tags.param_close.strip()
        held = max(len(end), 1) + 1
        is_text = bool(tags.to_json and not is_json) or (not is_json and self._types.is_text(name, key))
        if is_text:
            self._emit_arguments('"')
        while (place := self._text.find(end)) < 0:
            if is_text and len(self._text) > held:
                self._emit_arguments(escaped(self._text[:-held]))
                self._text = self._text[-held:]
            if self._is_over:
                raise TextEnded
            yield
        value = self._text[:place]
        if tags.param_close.startswith("\n"):
            value = value.removesuffix("\n")
        self._at = place + len(end)
        if is_text:
            self._emit_arguments(escaped(value) + '"')
        else:
            self._emit_arguments(self._types.as_json(name, key, value))

    def _python_call(self) -> Reading:
        """NAME(key=value, ...)."""
        yield from self._skip_blanks()
        reader = CallReader(self._at)
        while (found := reader.read(self._text)).call is None:
            if found.is_wrong:
                raise NoCall
            if self._is_over:
                raise TextEnded
            yield
        self._at = found.end
        self._begin(found.call.name)
        self._emit_arguments(found.call.arguments)

    def _begin(self, name: str) -> None:
        self._events.append(CallStart(self._num_calls, name))
        self._num_calls += 1
        self._drop_read()

    def _emit_arguments(self, text: str) -> None:
        if text:
            self._events.append(ArgumentsText(self._num_calls - 1, text))


def _heads(form: ToolFormat) -> tuple[list[str], list[str]]:
    """The texts that may precede the first call's body, and the body of another."""
    is_list = form.body in (Body.OBJECT, Body.PYTHON)
    prefix = form.call_open.partition("{")[0] if form.body is Body.OBJECT else form.call_open
    prefixes = [prefix, prefix.removesuffix("functions.")]
    if form.body is Body.TAGGED:  # without its first word, if calls may begin with the second
        prefixes += [word for word in prefix.split(maxsplit=1)[1:] if word in form.begins]
    opens = {"", form.open, form.open.rstrip().removesuffix("["), *form.begins} - {"{"}
    opens |= {one + "[" for one in opens if is_list and not one.endswith("[")}
    if form.body is Body.OBJECT:
        prefixes += ["", prefix + "[", *(one for one in form.next_begins if one != "{")]
    first = {one + prefix for one in opens for prefix in prefixes}
    first |= {one for one in opens if prefix and one.endswith(prefix.rstrip())}
    return sorted(first - {""} if form.body is Body.PYTHON else first), prefixes


def _tail(form: ToolFormat) -> str:
    """The closing text after a call's body, word by word."""
    match form.body:
        case Body.PYTHON:
            return ""
        case Body.OBJECT:
            return form.call_close.rpartition("}")[2]
        case _:
            return form.call_close


def _as_name(text: str) -> str:
    value = json.loads(text)
    if not isinstance(value, str) or not _NAME.fullmatch(value):
        raise NoCall
    return value


def _as_object(text: str) -> str:
    """Arguments as the text of an object, also if they are null, or an object inside a string."""
    value = json.loads(text)
    if isinstance(value, str):
        try:
            text, value = value, json.loads(value or "{}", parse_constant=refuse_constant)
            text.encode()  # half of a surrogate pair is no text
        except (ValueError, RecursionError):
            raise NoCall from None
    if value is None or text == "":
        return "{}"
    if not isinstance(value, dict):
        raise NoCall
    return text


def _may_begin(text: str, begins: tuple[str, ...]) -> bool:
    return any(text.startswith(one) or one.startswith(text) for one in begins)


def _overlap(text: str, begin: str) -> int:
    """How many characters at the end of `text` are the beginning of `begin`."""
    return next(
        (size for size in range(min(len(begin) - 1, len(text)), 0, -1) if text.endswith(begin[:size])), 0
    )
