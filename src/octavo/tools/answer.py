"""From the text of an answer, as it comes, to what a client is told: thinking, content, calls.

text --ThinkingSplitter--> thinking
                 +-------> answer --CallParser--> content, calls
"""

from __future__ import annotations

from dataclasses import dataclass

from octavo.grammar import ThinkingState
from octavo.tools.formats import ToolFormat
from octavo.tools.parser import ArgumentsText, CallBegun, CallParser, Content

BEGIN, END = "<think>", "</think>"


def state_of_prompt(tail: bytes) -> ThinkingState:
    """Where an answer begins of a model that thinks; `tail`: the last bytes of its prompt."""
    end = tail.rstrip()
    if end.endswith(BEGIN.encode()):
        return ThinkingState.INSIDE
    return ThinkingState.NONE if end.endswith(END.encode()) else ThinkingState.MAYBE


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model thought before it answered."""

    text: str


AnswerEvent = Thought | Content | CallBegun | ArgumentsText


class AnswerReader:
    """Reads one choice. `thinking` None: the text is not split. `form` None: nothing in it is a call."""

    def __init__(self, thinking: ThinkingState | None, form: ToolFormat | None) -> None:
        self._splitter = None if thinking is None else ThinkingSplitter(thinking)
        self._parser = None if form is None else CallParser(form)
        self.num_calls = 0  # begun

    def push(self, text: str, is_last: bool = False) -> list[AnswerEvent]:
        """More of the answer; `is_last`: there will be no more."""
        events: list[AnswerEvent] = []
        if self._splitter is not None:
            thought, text = self._splitter.push(text, is_last)
            if thought:
                events.append(Thought(thought))
        if self._parser is None:
            events += [Content(text)] if text else []
        else:
            events += self._parser.push(text) if text else []
            events += self._parser.finish() if is_last else []
        self.num_calls += sum(isinstance(event, CallBegun) for event in events)
        return events


class ThinkingSplitter:
    """Cuts what was thought from what is answered. White space around the marks belongs to neither."""

    def __init__(self, state: ThinkingState) -> None:
        self._state = state
        self._text = ""  # not yet decided
        self._is_opened = state is ThinkingState.NONE  # what opens it has come, or will not
        self._has_thought = self._has_answered = False
        self._thinks = state is ThinkingState.INSIDE

    def push(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """More text: what was thought, and what is answered."""
        self._text += text
        if not self._is_opened:
            self._open(is_last)
        thought = ""
        if self._is_opened and self._thinks:
            thought = self._thought(is_last)
        if not self._is_opened or self._thinks:
            return thought, ""
        answer = self._text
        if self._has_thought and not self._has_answered:
            answer = answer.lstrip()
        self._has_answered = self._has_answered or bool(answer)
        self._text = ""
        return thought, answer

    def _open(self, is_last: bool) -> None:
        """Whether it begins with what opens thinking; a model may write it though the prompt has."""
        rest = self._text.lstrip()
        if rest.startswith(BEGIN):
            self._text, self._thinks, self._is_opened = rest[len(BEGIN) :], True, True
        elif is_last or not BEGIN.startswith(rest):
            self._is_opened = True

    def _thought(self, is_last: bool) -> str:
        """What can be told of the thinking; ends it where it ends."""
        before, found, after = self._text.partition(END)
        if found or is_last:
            self._thinks, self._text, kept = False, after, before.rstrip()
            if is_last and not found:
                self._text = ""
        else:
            held = next((n for n in range(len(END) - 1, 0, -1) if before.endswith(END[:n])), 0)
            kept = before[: len(before) - held].rstrip()
            self._text = before[len(kept) :]
        if not self._has_thought:
            stripped = kept.lstrip()
            if not stripped and not (found or is_last):
                return ""
            kept = stripped
        self._has_thought = self._has_thought or bool(kept) or bool(found)
        return kept
