"""From the streamed text of an answer to the client's events: thinking, content, calls.

text --ThinkingSplitter--> thinking
                 +-------> answer --CallParser--> content, calls
text --ChannelReader-----> all of them (gpt-oss)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from octavo.grammar import ThinkingState
from octavo.tools.channels import ChannelReader
from octavo.tools.definitions import Tool
from octavo.tools.events import AnswerEvent, Content, ThinkingText
from octavo.tools.formats import Body, ToolFormat
from octavo.tools.parser import CallParser
from octavo.tools.thinking import THINK, ThinkingFormat, ThinkingSplitter


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """How the text of an answer is parsed. `thinking` None: thinking is not split from it. `form` None:
    nothing in it is a call; otherwise calls are of one of these tools, if the tools are known."""

    thinking: ThinkingState | None
    form: ToolFormat | None
    tells_thoughts: bool = True
    thinking_format: ThinkingFormat = THINK
    tools: tuple[Tool, ...] = ()


class AnswerReader:
    """Reads one choice."""

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self._channels: ChannelReader | None = None
        self._splitter: ThinkingSplitter | None = None
        self._parser: CallParser | None = None
        if kind.thinking_format.is_channels or (kind.form is not None and kind.form.body is Body.CHANNELS):
            self._channels = ChannelReader(kind.thinking, kind.form is not None)
            return
        if kind.thinking is not None:
            self._splitter = ThinkingSplitter(kind.thinking_format, kind.thinking)
        if kind.form is not None:
            self._parser = CallParser(kind.form, kind.tools)

    def push(self, text: str, is_last: bool = False) -> Sequence[AnswerEvent]:
        """More of the answer; `is_last`: there will be no more."""
        return self._read(text, is_last) if self._channels is None else self._messages(text, is_last)

    def _messages(self, text: str, is_last: bool) -> list[AnswerEvent]:
        assert self._channels is not None
        events = self._channels.push(text, is_last)
        if self._kind.thinking is not None:
            return events
        return [Content(event.text) if isinstance(event, ThinkingText) else event for event in events]

    def _read(self, text: str, is_last: bool) -> list[AnswerEvent]:
        events: list[AnswerEvent] = []
        if self._splitter is not None:
            thought, text = self._splitter.push(text, is_last)
            if thought:
                events.append(ThinkingText(thought))
        if self._parser is None:
            return [*events, Content(text)] if text else events
        events += self._parser.push(text) if text else []
        return events + (self._parser.finish() if is_last else [])
