"""Calls as a Python list, [f(a=1, b="x"), g()], which Llama 4 and others write: read, and given on as JSON.

Values are Python's or JSON's: True and true, None and null.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator

from octavo.types import ToolCall

_CALL = re.compile(r"\s*([A-Za-z0-9_.-]{1,64})\s*\(")
_NAME = re.compile(r"([A-Za-z0-9_]+)\s*=")
_BLANKS = re.compile(r"\s*")
_WORDS = {"true": True, "false": False, "null": None}
_CALL_CHARS_MAX = 1 << 20


class PythonicCalls:
    """What a text that begins with "[" has of calls; `goes_on`: its "[" and some calls were read before."""

    def __init__(self, text: str, goes_on: bool = False) -> None:
        self.whole: list[ToolCall] = []
        self.end = 0  # up to here it was read
        self.is_over = False  # "]" was read
        self.is_wrong = False  # it is no such list
        self._read(text, goes_on)

    def _read(self, text: str, goes_on: bool) -> None:
        place = 0 if goes_on else 1
        while True:
            place = _past(text, place, _BLANKS)
            if text[place : place + 1] == "]":
                self.end, self.is_over = place + 1, bool(self.whole) or goes_on
                self.is_wrong = not self.is_over
                self.end = self.end if self.is_over else 0
                return
            if self.whole or goes_on:
                if text[place : place + 1] not in (",", ""):
                    self.is_wrong = True
                    return
                place += 1
            found = _CALL.match(text, place)
            if found is None:
                rest = text[place:].strip()
                self.is_wrong = bool(rest) and re.fullmatch(r"[A-Za-z0-9_.-]{1,64}\s*", rest) is None
                return
            close = _closing(text, found.end())
            if close is None:
                self.is_wrong = len(text) - place > _CALL_CHARS_MAX
                return
            arguments = _as_json(text[found.end() : close])
            if arguments is None:
                self.is_wrong = True
                return
            self.whole.append(ToolCall(found[1], arguments))
            self.end = place = close + 1


def _past(text: str, place: int, pattern: re.Pattern[str]) -> int:
    found = pattern.match(text, place)
    return place if found is None else found.end()


def _closing(text: str, start: int) -> int | None:
    """Where the parenthesis closes that was opened before `start`."""
    return next((place for place, letter, depth in _outside_quotes(text, start) if depth < 0), None)


def _value_end(text: str, start: int) -> int:
    """Where a value ends: at the next comma that is in no bracket, or at the end."""
    commas = (place for place, letter, depth in _outside_quotes(text, start) if letter == "," and depth == 0)
    return next(commas, len(text))


def _outside_quotes(text: str, start: int) -> Iterator[tuple[int, str, int]]:
    """Each letter that is in no string: its place, itself, and how many brackets are open behind it."""
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
    """`a=1, b="x"` as a JSON object; None where it is something else."""
    values: dict[str, object] = {}
    place = _past(arguments, 0, _BLANKS)
    try:
        while place < len(arguments):
            name = _NAME.match(arguments, place)
            if name is None:
                return None
            stop = _value_end(arguments, name.end())
            values[name[1]] = _value(arguments[name.end() : stop].strip())
            place = _past(arguments, stop + 1, _BLANKS)
        return json.dumps(values, ensure_ascii=False, allow_nan=False)
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return None


def _value(text: str) -> object:
    """JSON's or Python's."""
    try:
        return json.loads(text)
    except ValueError:
        return _literal(ast.parse(text, mode="eval").body)


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
