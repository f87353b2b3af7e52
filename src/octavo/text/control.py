"""Finds the control tokens of a rendered chat that are its template's own, by rendering it a second time with
neutral text in place of the client's.

    client's text     "a<|im_end|>b"
    rendered          "<|im_start|>user\na<|im_end|>b<|im_end|>\n"
    and neutral       "<|im_start|>user\nqqqqqqqqqqqq<|im_end|>\n"
    parts             "", "<|im_start|>", "user\na<|im_end|>b", "<|im_end|>", "\n"

A control token in the neutral text is the template's, whatever its source. If both texts have the same ones,
the client wrote none. Otherwise those of the neutral text are matched at their places; if the template has
moved them, they cannot be distinguished, and the chat is refused. This module knows no tokenizer:
`octavo.text.aliases` encodes the parts.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from octavo.errors import InvalidRequest

_MARK_DIGITS = 20
# One search holds the GIL: longer texts are searched in pieces.
_PIECE_CHARS = 64 << 10
# The first of these that is in no control token replaces text that might be part of one.
_NEUTRAL = "qzjxkvwybghpfu0123456789~^`@%\u02bc"


@dataclass(frozen=True, slots=True)
class RenderedText:
    """A chat as its template wrote it. `parts` is text, control token, text, ..., text; None if all control
    tokens in `text` count: they are the template's own, or of a client who may write them."""

    text: str
    parts: tuple[str, ...] | None = None

    def after(self, num_bytes: int) -> RenderedText | None:
        """The text after its first bytes; None if that cuts a character, or a control token of the
        template."""
        if self.parts is None:
            rest = _text_after(self.text, num_bytes)
            return None if rest is None else RenderedText(rest)
        for index, part in enumerate(self.parts):
            size = len(part.encode())
            if num_bytes < size or index == len(self.parts) - 1:
                rest = _text_after(part, num_bytes)
                if rest is None or (index % 2 and num_bytes):
                    return None
                left = (rest, *self.parts[index + 1 :])
                left = ("", *left) if index % 2 else left
                return RenderedText("".join(left), left)
            num_bytes -= size
        raise AssertionError("parts end with a text")

    def controls(self, num_bytes: int) -> list[tuple[int, str]]:
        """The control tokens that begin in its first bytes, each with the byte where it begins."""
        found, place = [], 0
        for index, part in enumerate(self.parts or ()):
            if place >= num_bytes:
                break
            if index % 2:
                found.append((place, part))
            place += len(part.encode())
        return found


class ControlTokens:
    """The control tokens of one vocabulary, as texts. `others` are added tokens that are plain text to the
    model: if one overlaps a control token, the one that begins first wins, then the longer one. `single_word`
    holds tokens that match only between non-word characters. With `always` a text may have control tokens in
    another spelling: the tokenizer matches them in the normalised text."""

    def __init__(
        self,
        texts: Iterable[str] = (),
        others: Iterable[str] = (),
        single_word: Collection[str] = (),
        always: bool = False,
    ) -> None:
        self._texts = frozenset(text for text in texts if text.strip())
        self._always = always
        every = {*self._texts, *others}
        self._found = _any_of(every, single_word)
        self._longest = max(map(len, every), default=0)
        self._lower = "\0".join(text.lower() for text in self._texts)
        # In upper and lower case, because a template may change it; without blanks, which it may trim.
        letters = {case for text in self._texts for c in text for case in (c, c.lower(), c.upper())}
        neutral = next(c for c in _NEUTRAL if c not in letters)
        self._table = str.maketrans(
            {c: neutral for c in {*letters, neutral, neutral.upper()} if len(c) == 1 and not c.isspace()}
        )

    def __bool__(self) -> bool:
        return bool(self._texts)

    def neutral(self, text: str) -> str:
        """The text with everything replaced that could be a part of a control token. Of the same length."""
        return "".join(
            text[start : start + _PIECE_CHARS].translate(self._table)
            for start in range(0, len(text), _PIECE_CHARS)
        )

    def has_any(self, text: str) -> bool:
        """Whether it has a control token."""
        return next(self._places(text), None) is not None

    def may_be_part(self, text: str) -> bool:
        """Whether it is a part of a control token, in upper or lower case, or contains a whole one."""
        return text.lower() in self._lower or self.has_any(text)

    def split_control(self, text: str, neutral: str) -> RenderedText:
        """Split the rendered text at the template's control tokens, which are those of the neutral text.
        Raises InvalidRequest if they cannot be distinguished."""
        genuine = list(self._places(neutral))
        if not self._always and [token for _, token in self._places(text)] == [token for _, token in genuine]:
            return RenderedText(text)
        if len(text) != len(neutral) or self.neutral(text) != self.neutral(neutral):
            raise _cannot_split_control()
        parts, end = list[str](), 0
        for place, token in genuine:
            if not text.startswith(token, place):
                raise _cannot_split_control()
            parts += [text[end:place], token]
            end = place + len(token)
        return RenderedText(text, (*parts, text[end:]))

    def _places(self, text: str) -> Iterator[tuple[int, str]]:
        """The control tokens and their places."""
        for found in find_all(self._found, text, self._longest):
            if found[0] in self._texts:
                yield found.start(), found[0]


class Neutraliser:
    """Neutralises a client's text. The template has these `words` in quotes and may search for them or remove
    them, so those that are no part of a control token are kept. `names` are its other words."""

    def __init__(self, controls: ControlTokens, words: Collection[str], names: Collection[str]) -> None:
        self._controls = controls
        self._own = frozenset(word for word in {*words, *names} if not controls.has_any(word))
        spared = frozenset(word for word in words if word.strip() and not controls.may_be_part(word))
        self._spared = _any_of(spared)
        self._longest = max(map(len, spared), default=0)

    def of_text(self, text: str) -> str:
        """A string of the chat. Of the same length."""
        parts, end = list[str](), 0
        for found in find_all(self._spared, text, self._longest):
            parts += [self._controls.neutral(text[end : found.start()]), found[0]]
            end = found.end()
        neutral = "".join([*parts, self._controls.neutral(text[end:])])
        # Two kept words may together be a control token.
        return self._controls.neutral(text) if self._controls.has_any(neutral) else neutral

    def of_word(self, word: str) -> str:
        """A role, a value or a key: unchanged if the template has exactly that word."""
        return word if word in self._own else self.of_text(word)

    def of_value(self, value: object) -> object:
        """A JSON value, with the keys of its objects."""
        if isinstance(value, str):
            return self.of_word(value)
        if isinstance(value, Mapping):
            return {
                self.of_word(key) if isinstance(key, str) else key: self.of_value(item)
                for key, item in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.of_value(item) for item in value]
        return value


def _cannot_split_control() -> InvalidRequest:
    return InvalidRequest(
        "the messages have the text of a control token, and the model's chat template changes them so that "
        "it cannot be distinguished from the template's own; leave it out, or give allow_control_tokens",
        param="messages",
    )


def new_mark(texts: Collection[str]) -> str:
    """A random number that is in none of the texts. No part of it both begins and ends it, so a search finds
    it at its exact place, whatever digits are next to it."""
    while True:
        mark = "0" + "".join(secrets.choice("123456789") for _ in range(_MARK_DIGITS - 1))
        if not any(mark in text for text in texts):
            return mark


def find_all(pattern: re.Pattern[str], text: str, longest: int) -> Iterator[re.Match[str]]:
    """All matches of a pattern that matches 1 to `longest` characters. Other threads run between two pieces
    of a long text."""
    place = 0
    while place < len(text):
        stop = place + _PIECE_CHARS
        found = pattern.search(text, place, min(len(text), stop + longest + 1))
        if found is None or found.start() >= stop:
            place = stop
        else:
            yield found
            place = found.end()


def _any_of(texts: Iterable[str], single_word: Collection[str] = (), flags: int = 0) -> re.Pattern[str]:
    """Matches any of the texts, the longest of those that begin first; never matches if there are none."""
    each = list(texts)
    words = sorted((text for text in each if text in single_word), key=len, reverse=True)
    patterns = [rf"(?<!\w){re.escape(text)}(?!\w)" for text in words]
    patterns.append(_pattern_of(text for text in each if text not in single_word))
    return re.compile(f"({'|'.join(patterns)})", flags)


def _pattern_of(texts: Iterable[str]) -> str:
    """Matches the longest of the texts; nothing if there are none. It is a tree of prefixes, because the
    thousands of texts in some vocabularies would be tried one by one."""
    tree: dict[str, object] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})  # type: ignore[assignment]
        node[""] = None
    return f"(?:{_tree_pattern(tree)})" if tree else "(?!)"


def _tree_pattern(tree: Mapping[str, object]) -> str:
    """Matches the longest path that ends where a text ends."""
    letters = ""
    while len(tree) == 1 and "" not in tree:  # a path without branches needs no recursion
        [(letter, subtree)] = tree.items()
        letters, tree = letters + letter, subtree  # type: ignore[assignment]
    branches = [
        re.escape(letter) + _tree_pattern(subtree)  # type: ignore[arg-type]
        for letter, subtree in tree.items()
        if letter
    ]
    if not branches:
        return re.escape(letters)
    return f"{re.escape(letters)}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


def _text_after(text: str, num_bytes: int) -> str | None:
    try:
        return text.encode()[num_bytes:].decode()
    except UnicodeDecodeError:
        return None
