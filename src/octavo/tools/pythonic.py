"""Parses a call in Python's syntax, f(a=1, b="x"), as Llama 4, OLMo 3 and others write it, to JSON.

Values are Python's or JSON's: True and true, None and null.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from octavo.types import ToolCall

_CALL = re.compile(r"\s*([A-Za-z0-9_.-]{1,128})\s*\(")
_HALF_CALL = re.compile(r"\s*([A-Za-z0-9_.-]{1,128}\s*)?")
_NAME = re.compile(r"([^=,()\[\]{}\"'\s](?:[^=,()\[\]{}\"']{0,126}[^=,()\[\]{}\"'\s])?)\s*=")
_BLANKS = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None}
_CALL_CHARS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class FoundCall:
    """What a text has at some place: a whole call, which ends at `end`; or, with `call` None and nothing
    wrong, the beginning of one."""

    call: ToolCall | None = None
    end: int = 0
    is_wrong: bool = False


class CallReader:
    """Reads the call that begins at a place of a growing text. Each letter is scanned once."""

    def __init__(self, place: int) -> None:
        self._begin = self._place = place
        self._name = ""
        self._arguments = 0  # where they begin; 0: still in the name
        self._depth, self._quote, self._is_escaped = 0, "", False

    def read(self, text: str) -> FoundCall:
        """More of the text."""
        if not self._arguments:
            found = _CALL.match(text, self._begin)
            if found is None:
                return FoundCall(is_wrong=_HALF_CALL.fullmatch(text, self._begin) is None)
            self._name, self._arguments = found[1], found.end()
            self._place = self._arguments
        close = self._closing(text)
        if close is None:
            return FoundCall(is_wrong=len(text) - self._begin > _CALL_CHARS_MAX)
        arguments = _as_json(text[self._arguments : close])
        if arguments is None:
            return FoundCall(is_wrong=True)
        return FoundCall(ToolCall(self._name, arguments), close + 1)

    def _closing(self, text: str) -> int | None:
        """The place of the closing parenthesis."""
        for place in range(self._place, len(text)):
            letter = text[place]
            if self._is_escaped:
                self._is_escaped = False
            elif self._quote:
                self._is_escaped = letter == "\\"
                self._quote = "" if letter == self._quote else self._quote
            elif letter in "\"'":
                self._quote = letter
            else:
                self._depth += (letter in "([{") - (letter in ")]}")
                if self._depth < 0:
                    return place
        self._place = len(text)
        return None


def read_call(text: str, place: int) -> FoundCall:
    """The call that begins there, in a complete text."""
    return CallReader(place).read(text)


def value_of(text: str) -> object:
    """A value in JSON or Python. Raises what `json` and `ast` raise."""
    try:
        return json.loads(text, parse_constant=refuse_constant)
    except ValueError:
        if text[:1] in ("'", '"'):  # models write raw line breaks into strings
            text = text.replace("\r", "\\r").replace("\n", "\\n")
        return _literal(ast.parse(text, mode="eval").body)


def refuse_constant(word: str) -> object:
    """Refuse NaN and infinities: the `parse_constant` of `json.loads`."""
    raise ValueError(f"{word} is no JSON")


def _past(text: str, place: int, pattern: re.Pattern[str]) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _value_end(text: str, start: int) -> int:
    """The end of a value: the next comma outside brackets, or the end of the text."""
    commas = (place for place, letter, depth in _outside_quotes(text, start) if letter == "," and depth == 0)
    return next(commas, len(text))


def _outside_quotes(text: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Each letter outside strings: its place, itself, and how many brackets are open after it."""
    depth, quote, is_escaped = 0, "", False
    for place in range(start, len(text)):
        letter = text[place]
        if is_escaped:
            is_escaped = False
        elif quote:
            is_escaped = letter == "\\"
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        else:
            depth += (letter in "([{") - (letter in ")]}")
            yield place, letter, depth


def _as_json(arguments: str) -> str | None:
    """`a=1, b="x"` as a JSON object; None if it is something else."""
    values: dict[str, object] = {}
    place = _past(arguments, 0, _BLANKS)
    try:
        while place < len(arguments):
            name = _NAME.match(arguments, place)
            if name is None:
                return None
            stop = _value_end(arguments, name.end())
            values[name[1]] = value_of(arguments[name.end() : stop].strip())
            place = _past(arguments, stop + 1, _BLANKS)
        written = json.dumps(values, ensure_ascii=False, allow_nan=False)
        written.encode()
        return written
    except UnicodeEncodeError:  # half of a surrogate pair can only be escaped
        return json.dumps(values, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _literal(node: ast.expr) -> object:
    match node:
        case ast.Name(id=name) if name in _WORDS:
            return _WORDS[name]
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_literal(item) for item in items]
        case ast.Dict(keys=keys, values=values):
            pairs = zip(keys, values, strict=True)
            return {str(_literal(key)): _literal(value) for key, value in pairs if key is not None}
        case _:
            return ast.literal_eval(node)
