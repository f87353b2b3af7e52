"""The events of an answer's text, in order."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ThinkingText:
    """Text of the model's thinking, before the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """Text for the reader."""

    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    """A call of this function begins; `index` counts the answer's calls."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class ArgumentsText:
    """More of a call's arguments: JSON, in pieces."""

    index: int
    text: str


AnswerEvent = ThinkingText | Content | CallStart | ArgumentsText
