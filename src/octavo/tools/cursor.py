"""Reads words of a format, and JSON, from text that comes in pieces. Parsers are generators, written as if
all text were present, that pause when they need more."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Generator, Iterable, Sequence

Reading = Generator[None, None, None]  # pauses until there is more text

BLANKS = " \t\r\n"
_BLANKS_MAX = 64  # between two letters of a format's words
HALF_LETTER = "\ufffd"  # replaces the bytes of an incomplete character at the end of an answer
_WORD = re.compile(r"\]|[^\]\s]+")


class NoCall(Exception):
    """The text is no call."""


class TextEnded(Exception):
    """The answer ended inside a possible call."""


class TextCursor:
    """Text that comes in pieces, and the position of reading."""

    def __init__(self) -> None:
        self._text = ""  # not emitted yet
        self._at = 0  # position of reading
        self._is_over = False  # the answer has ended

    def _drop_read(self) -> None:
        """Drop the text that was read."""
        self._text, self._at = self._text[self._at :], 0

    def _stream_object(self, emit: Callable[[str], None]) -> Reading:
        """Stream a JSON object."""
        scanner = ObjectScanner()
        yield from self._skip_blanks()
        self._drop_read()
        while True:
            length = scanner.take(self._text)
            if length:
                emit(self._text[:length])
            self._text = self._text[length:]
            if scanner.is_whole:
                return
            if self._is_over:
                raise TextEnded
            yield

    def _more(self) -> Reading:
        """Pause until there is more text. Raises TextEnded at the end of the answer."""
        if self._is_over:
            raise TextEnded
        yield

    def _peek_raw(self) -> Generator[None, None, str]:
        while self._at == len(self._text) or self._is_half(self._at):
            yield from self._more()
        return self._text[self._at]

    def _pass_blanks(self) -> None:
        """Skip the present white space, so that it is scanned once."""
        while self._at < len(self._text) and self._text[self._at] in BLANKS:
            self._at += 1

    def _is_half(self, place: int) -> bool:
        """Whether the text ends there with an incomplete character."""
        return place == len(self._text) - 1 and self._text[place] == HALF_LETTER

    def _peek(self) -> Generator[None, None, str]:
        """The next character that is no white space."""
        yield from self._skip_blanks()
        return self._text[self._at]

    def _skip_blanks(self) -> Reading:
        while (yield from self._peek_raw()) in BLANKS:
            self._at += 1

    def _take_one(self, literals: Iterable[str]) -> Generator[None, None, str]:
        """Read the longest of these that matches. Raises NoCall for none."""
        each = sorted(literals, key=len, reverse=True)
        while True:
            self._pass_blanks()
            found = [(one, *_matched(self._text, self._at, one)) for one in each]
            whole = next(((one, end) for one, end, is_whole in found if is_whole), None)
            longer = [one for one, end, is_whole in found if not is_whole and end == len(self._text)]
            if whole is not None and (self._is_over or not any(len(one) > len(whole[0]) for one in longer)):
                self._at = whole[1]
                return whole[0]
            if not longer:
                raise NoCall
            yield from self._more()

    def _takes(self, literal: str) -> Generator[None, None, bool]:
        """Read this if it is next."""
        found = yield from self._has_one((literal,))
        if found:
            self._at = _matched(self._text, self._at, literal)[0]
        return found

    def _has_one(self, literals: Sequence[str]) -> Generator[None, None, bool]:
        """Whether one of these is next."""
        while True:
            self._pass_blanks()
            found = [_matched(self._text, self._at, one) for one in literals]
            if any(is_whole for _, is_whole in found):
                return True
            if not any(end == len(self._text) for end, _ in found):
                return False
            yield from self._more()

    def _take_optional(self, literal: str) -> Reading:
        """Read as many of its words as match."""
        for word in _WORD.findall(literal):
            while True:
                self._pass_blanks()
                end, is_whole = _matched(self._text, self._at, word)
                if is_whole:
                    self._at = end
                if is_whole or end < len(self._text):
                    break
                if self._is_over:
                    self._at = len(self._text)
                    return
                yield

    def _match(self, pattern: re.Pattern[str]) -> Generator[None, None, str]:
        """Read the pattern's match. Raises NoCall if it does not match."""
        while True:
            found = pattern.match(self._text, self._at)
            if found is not None and found.end() < len(self._text):
                self._at = found.end()
                return found[0]
            if found is None and self._at < len(self._text):
                raise NoCall
            yield from self._more()

    # --- JSON ---

    def _key(self) -> Generator[None, None, str | None]:
        """A key of an object, with its colon; None before the object's end."""
        letter = yield from self._peek()
        if letter == "}":
            return None
        if letter != '"':
            raise NoCall
        key = json.loads((yield from self._value()))
        yield from self._take_one((":",))
        return str(key)

    def _separator(self) -> Reading:
        """A comma between an object's members, if there is one."""
        if (yield from self._peek()) == ",":
            self._at += 1

    def _value(self) -> Generator[None, None, str]:
        """Any JSON value, as text. Raises NoCall for any other text."""
        yield from self._skip_blanks()
        scanner, start = ValueScanner(), self._at
        while True:
            self._at += scanner.take(self._text, self._at)
            if scanner.is_whole:
                text = self._text[start : self._at]
                try:
                    json.loads(text)
                except (ValueError, RecursionError):
                    raise NoCall from None
                return text
            if self._is_over:
                raise TextEnded
            yield


class ObjectScanner:
    """Finds the end of a JSON object, a list or a string that comes in pieces."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._is_escaped = False
        self.is_whole = False

    def take(self, text: str, start: int = 0) -> int:
        """How many of these characters, from `start` on, belong to it."""
        for place in range(start, len(text)):
            letter = text[place]
            if self._is_escaped:
                self._is_escaped = False
            elif self._in_string:
                self._is_escaped = letter == "\\"
                self._in_string = letter != '"'
                self.is_whole = not self._in_string and not self._depth
            elif letter == '"':
                self._in_string = True
            elif letter in "{[":
                self._depth += 1
            elif letter in "}]":
                self._depth -= 1
                self.is_whole = not self._depth
            if self.is_whole:
                return place + 1 - start
        return len(text) - start


class ValueScanner(ObjectScanner):
    """Finds the end of any JSON value: a number or a word ends before what follows it."""

    def __init__(self) -> None:
        super().__init__()
        self._is_bare: bool | None = None

    def take(self, text: str, start: int = 0) -> int:
        """How many of these characters, from `start` on, belong to it."""
        if self._is_bare is None and start < len(text):
            self._is_bare = text[start] not in '{["'
        if not self._is_bare:
            return super().take(text, start)
        found = re.search(r"[,}\]\s]", text[start:])
        self.is_whole = found is not None
        return len(text) - start if found is None else found.start()


def _matched(text: str, start: int, literal: str) -> tuple[int, bool]:
    """How far the literal matches, with any white space in it: the end of the match in `text`, and whether it
    is complete. The end is that of the text if the rest may still come."""
    at, letters = start, [letter for letter in literal if not letter.isspace()]
    for letter in letters:
        last = at + _BLANKS_MAX
        while at < len(text) and text[at] in BLANKS and at < last:
            at += 1
        if at == len(text) or (text[at] == HALF_LETTER and at == len(text) - 1):
            return len(text), False
        if text[at] != letter:
            return start - 1, False
        at += 1
    return at, True
