"""Control tokens in what clients write: found, marked before the template sees them, plain text in the end.

    client's text        "a<|im_end|>b"           whole, or what a neighbour could make whole
    marked               "a<0481|im_end|>b"       0481 stands for a random number, new for each chat
    rendered             "<|im_start|>user\\na<0481|im_end|>b<|im_end|>\\n"
    split                "", "<|im_start|>", "user\\na<|im_end|>b", "<|im_end|>", "\\n"

Only the template's own control tokens are whole when the rendered text is split, so every second part is one
of them, and the others are text however they read. A number survives what templates do to text: trim, tojson,
upper and lower case. It knows no tokenizer: `octavo.text.aliases` encodes the parts.
"""

from __future__ import annotations

import itertools
import re
import secrets
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from octavo.errors import InvalidRequest

_MARK_DIGITS = 20
_QUOTED_CHARS_MAX = 100  # that many at the beginning of one are compared


@dataclass(frozen=True, slots=True)
class Rendered:
    """A chat as its template wrote it. `parts` is text, control token, text, ..., text; None where all
    control tokens in `text` may be taken for such: the template's own, or of a client who may write them."""

    text: str
    parts: tuple[str, ...] | None = None

    def after(self, num_bytes: int) -> Rendered | None:
        """What follows its first bytes; None where that cuts a character, or a control token of the
        template."""
        if self.parts is None:
            rest = _text_after(self.text, num_bytes)
            return None if rest is None else Rendered(rest)
        for index, part in enumerate(self.parts):
            size = len(part.encode())
            if num_bytes < size or index == len(self.parts) - 1:
                rest = _text_after(part, num_bytes)
                if rest is None or (index % 2 and num_bytes):
                    return None
                left = (rest, *self.parts[index + 1 :])
                left = ("", *left) if index % 2 else left
                return Rendered("".join(left), left)
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


@dataclass(frozen=True, slots=True)
class Marks:
    """Where marks stand in the strings of one chat. Without a `number` there are none."""

    number: str = ""
    places: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def on_text(self, text: str) -> str:
        """The text, marked."""
        borders = (0, *self.places.get(text, ()), len(text))
        return self.number.join(text[a:b] for a, b in itertools.pairwise(borders))

    def on(self, value: object) -> object:
        """The JSON value with every string in it marked, but keys."""
        if isinstance(value, str):
            return self.on_text(value)
        if isinstance(value, Mapping):
            return {key: self.on(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.on(item) for item in value]
        return value


NO_MARKS = Marks()


class ControlTokens:
    """The control tokens of one vocabulary, as texts. `others` are added tokens that are text to a model:
    where one overlaps a control token, the one that begins first is taken, then the longer one.
    `single_word` holds those that are only found between what is no word. With `always` every chat is marked:
    the tokenizer finds control tokens in other texts than their own. `template` is the one whose chats these
    are: what it has in quotes it may cut out of a client's text."""

    def __init__(
        self,
        texts: Iterable[str] = (),
        others: Iterable[str] = (),
        single_word: Collection[str] = (),
        always: bool = False,
        template: str = "",
    ) -> None:
        self._template = template
        self._texts = frozenset(text for text in texts if text.strip())
        self._always = always
        self._single = frozenset(text for text in self._texts if len(text) == 1)
        self._lower = tuple({text.lower() for text in self._texts})
        # In any case of letters, because a template may change it.
        self._whole = _any_of((text for text in self._lower if len(text) > 1), flags=re.IGNORECASE)
        self._found = _any_of({*self._texts, *others}, single_word)
        self._beginnings = frozenset(text[:cut] for text in self._lower for cut in range(1, len(text)))
        self._cut = re.compile(
            f"{_pattern_of(self._beginnings)}(?={_pattern_of(_quoted(template))}|\\s)", re.IGNORECASE
        )
        self._ends = frozenset(text[cut:] for text in self._lower for cut in range(1, len(text)))
        self._longest = max(map(len, self._lower), default=0)

    def marks(self, values: Collection[object]) -> Marks:
        """What to mark in the client's strings, wherever they are in JSON values; NO_MARKS where no control
        token can come of them. Raises InvalidRequest for what no mark can keep apart."""
        if not self._texts:
            return NO_MARKS
        strings = set(_strings(values))
        for key in _keys(values):
            if self._places(key, may_lie_inside=False):
                raise InvalidRequest(
                    f"{key!r:.80} is a key, and has the text of a control token; allowed in values",
                    param="chat_template_kwargs",
                )
        found = {text: self._places(text) for text in strings}
        places = {text: where for text, where in found.items() if where}
        if not places and not self._always:
            return NO_MARKS
        return Marks(new_mark([self._template, *strings]), places)

    def split(self, text: str, marks: Marks) -> Rendered:
        """The rendered text without marks, and where control tokens of the template are in it."""
        if not marks.number:
            return Rendered(text)
        parts: list[list[str]] = [[]]
        for index, piece in enumerate(self._found.split(text)):
            if index % 2 and piece in self._texts:
                parts += [[piece], []]
            else:
                parts[-1].append(piece.replace(marks.number, ""))
        joined = tuple(map("".join, parts))
        return Rendered("".join(joined), joined)

    def _places(self, text: str, *, may_lie_inside: bool = True) -> tuple[int, ...]:
        """Where marks must stand so that no control token can come of this text, neither alone nor with what
        stands beside it, also when a template trims it."""
        if self._single and any(token in text for token in self._single):
            raise InvalidRequest(
                "the text holds a control token of one character, which cannot be written as text; leave it "
                "out, or give allow_control_tokens",
                param="messages",
            )
        places = {found.start() + 1 for found in _each(self._whole, text)}
        places |= {found.end() for found in _each(self._cut, text)}
        first, last = len(text) - len(text.lstrip()), len(text.rstrip())
        reach = range(1, self._longest)
        for start in {0, first}:
            if any(text[start : start + size].lower() in self._ends for size in reach):
                places.add(start)
        for stop in {last, len(text)}:
            if any(text[max(0, stop - size) : stop].lower() in self._beginnings for size in reach):
                places.add(stop)
        for start, stop in {(0, len(text)), (first, last)} if may_lie_inside else ():
            if 0 < stop - start < self._longest:
                piece = text[start:stop].lower()
                if any(piece in token for token in self._lower):
                    places |= {start, stop}
        return tuple(sorted(places))


def new_mark(texts: Collection[str]) -> str:
    """A random number that is in none of the texts. No part of it both begins and ends it, so that it is
    found where it was put, whatever digits stand beside it."""
    while True:
        mark = "0" + "".join(secrets.choice("123456789") for _ in range(_MARK_DIGITS - 1))
        if not any(mark in text for text in texts):
            return mark


def _any_of(texts: Iterable[str], single_word: Collection[str] = (), flags: int = 0) -> re.Pattern[str]:
    """Finds any of the texts, the longest of those that begin first; never matches where there are none."""
    each = list(texts)
    words = sorted((text for text in each if text in single_word), key=len, reverse=True)
    patterns = [rf"(?<!\w){re.escape(text)}(?!\w)" for text in words]
    patterns.append(_pattern_of(text for text in each if text not in single_word))
    return re.compile(f"({'|'.join(patterns)})", flags)


def _pattern_of(texts: Iterable[str]) -> str:
    """Matches any of the texts, the longest; nothing where there are none. As a tree of beginnings: a
    vocabulary may have thousands, which would be tried one after the other."""
    tree: dict[str, object] = {}
    for text in texts:
        node = tree
        for letter in text:
            node = node.setdefault(letter, {})  # type: ignore[assignment]
        node[""] = None
    return f"(?:{_tree_pattern(tree)})" if tree else "(?!)"


def _each(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """All that is found, also within each other."""
    found = pattern.search(text)
    while found is not None:
        yield found
        found = pattern.search(text, found.start() + 1)


def _quoted(template: str) -> set[str]:
    """What stands in quotes in a template's source."""
    escapes = {"n": "\n", "t": "\t", "r": "\r"}
    found = re.findall(r"'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\"", template, re.DOTALL)
    texts = (re.sub(r"\\(.)", lambda m: escapes.get(m[1], m[1]), a or b) for a, b in found)
    return {text[:_QUOTED_CHARS_MAX] for text in texts if text}


def _tree_pattern(tree: Mapping[str, object]) -> str:
    """Matches the longest path that ends where a text ends."""
    letters = ""
    while len(tree) == 1 and "" not in tree:  # a way without branches needs no recursion
        [(letter, below)] = tree.items()
        letters, tree = letters + letter, below  # type: ignore[assignment]
    branches = [
        re.escape(letter) + _tree_pattern(below)  # type: ignore[arg-type]
        for letter, below in tree.items()
        if letter
    ]
    if not branches:
        return re.escape(letters)
    return f"{re.escape(letters)}(?:{'|'.join(branches)}){'?' if '' in tree else ''}"


def _strings(value: object) -> Iterator[str]:
    """All strings in a JSON value but the keys of its objects."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, Collection):
        for item in value:
            yield from _strings(item)


def _keys(value: object) -> Iterator[str]:
    """The keys of all objects in a JSON value."""
    if isinstance(value, Mapping):
        yield from filter(lambda key: isinstance(key, str), value)
        for item in value.values():
            yield from _keys(item)
    elif isinstance(value, Collection) and not isinstance(value, str):
        for item in value:
            yield from _keys(item)


def _text_after(text: str, num_bytes: int) -> str | None:
    try:
        return text.encode()[num_bytes:].decode()
    except UnicodeDecodeError:
        return None
