"""What the text of an answer says, in the order in which it comes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model thought before it answered."""

    text: str


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


AnswerEvent = Thought | Content | CallBegun | ArgumentsText
