"""Finds the format of an assistant's turn in a chat template, by rendering turns and parsing them.

A template is a program: only running it shows its output, not words in its source. A turn is the text after
the prompt that the template writes for the same chat. If a template drops the calls of earlier turns, the
format is found by the instructions in its prompt.
"""

from __future__ import annotations

import enum
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from octavo.errors import OctavoError
from octavo.grammar import ThinkingState
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import tools_of
from octavo.tools.events import ArgumentsText, CallStart, Content, ThinkingText
from octavo.tools.formats import FORMATS, HARMONY, ID, Body, ToolFormat
from octavo.tools.pythonic import read_call
from octavo.tools.thinking import THINKING_FORMATS, ThinkingFormat
from octavo.types import ToolCall

Message = dict[str, object]
# Messages, tools, whether a turn follows, and the client's other values.
Render = Callable[[Sequence[Message], Sequence[object], bool, Mapping[str, object]], str]
REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")  # that templates read

_CHARS_MAX, _TURN_CHARS_MAX = 1 << 18, 1 << 13  # of a rendered text, and of a turn in it
_SECONDS_MAX = 5.0  # of all trials; after that, the findings so far count
_ARGUMENTS = {"place": "Rome", "days": 3}
_NAMES = ("probe_weather", "probe_stations")
_PARAMETERS = {
    "type": "object",
    "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["place"],
}
_OFFERED = [
    {"type": "function", "function": {"name": name, "description": "It.", "parameters": _PARAMETERS}}
    for name in _NAMES
]
_IDS = ("call0000{index}", "functions.{name}:{index}")  # nine letters for Mistral, the call itself for Kimi
_CALL_ID = re.compile("call0000[01]")
_USER: Message = {"role": "user", "content": "Why?"}
_SWITCHES = ("thinking", "enable_thinking", "reasoning")  # of thinking, that templates read
_THOUGHT, _TEXT = "Because.", "Yes."
_MARGIN = 200  # characters of a turn's beginning in which it may open the thinking


class ToolsPlace(enum.Enum):
    """Where a template reads tools."""

    ARGUMENT = enum.auto()  # an argument of its own
    SYSTEM_TEXT = enum.auto()  # JSON in the system message
    SYSTEM_LIST = enum.auto()  # a list in the system message
    NOWHERE = enum.auto()


@dataclass(frozen=True, slots=True)
class TurnFormat:
    """`calls` None: no known format matches the template's output."""

    calls: ToolFormat | None = None
    thinking: ThinkingFormat | None = None  # None: the model does not think
    takes_objects: bool = True  # a call's arguments as an object, else as JSON's text
    thinks_in_parts: bool = False  # a turn's thinking is a part of its content
    refuses_text: bool = False  # in addition to thinking, in a turn with calls
    tools: ToolsPlace = ToolsPlace.ARGUMENT


@dataclass(frozen=True, slots=True)
class TemplateTurn:
    """The parsed text of a turn."""

    thought: str
    content: str
    calls: tuple[ToolCall, ...]


def find_turn_format(render: Render) -> TurnFormat:
    """The format, found by trials. `render` raises OctavoError if the template refuses."""
    return _Trial(render).found()


def read_turn(text: str, kind: AnswerKind) -> TemplateTurn:
    """Parse the text of a turn."""
    thought, content, calls = "", "", list[ToolCall]()
    for event in AnswerReader(kind).push(text, is_last=True):
        match event:
            case ThinkingText(more):
                thought += more
            case Content(more):
                content += more
            case CallStart(_, name):
                calls.append(ToolCall(name, ""))
            case ArgumentsText(_, more):
                calls[-1] = replace(calls[-1], arguments=calls[-1].arguments + more)
    return TemplateTurn(thought, content, tuple(calls))


class _Trial:
    """The renderings of one template."""

    def __init__(self, render: Render) -> None:
        self._render = render
        self._stop = math.inf  # until the process that renders has started
        self._tools = tools_of(_OFFERED)
        self._tools_place = ToolsPlace.ARGUMENT

    def found(self) -> TurnFormat:
        """The complete format."""
        self._tried([_USER], has_tools=False)
        self._stop = time.monotonic() + _SECONDS_MAX
        self._tools_place = self._find_tools()
        takes_objects = self._takes_objects()
        calls = self._calls(takes_objects)
        thinking, in_parts = self._thinking(calls)
        refuses = thinking is not None and self._refuses_text(takes_objects)
        return TurnFormat(calls, thinking, takes_objects, in_parts, refuses, self._tools_place)

    # --- renderings ---

    def _tried(
        self,
        messages: Sequence[Message],
        is_followed: bool = False,
        has_tools: bool = True,
        given: Mapping[str, object] = MappingProxyType({}),
    ) -> str:
        """The template's output; "" if it refuses, or the time is used up."""
        if time.monotonic() > self._stop:
            return ""
        if has_tools and self._tools_place in (ToolsPlace.SYSTEM_LIST, ToolsPlace.SYSTEM_TEXT):
            messages, has_tools = with_tools_in_system(messages, _OFFERED, self._tools_place), False
        try:
            text = self._render(messages, _OFFERED if has_tools else (), is_followed, given)
        except OctavoError:
            return ""
        return text if len(text) <= _CHARS_MAX else ""

    def _turn(self, message: Message, has_tools: bool = True) -> tuple[str, str]:
        """The text before a turn's own, up to the end of the prompt, and the turn's."""
        before = self._tried([_USER], has_tools=has_tools)
        prompt = self._tried([_USER], is_followed=True, has_tools=has_tools)
        whole = self._tried([_USER, message], has_tools=has_tools)
        start, text = own_text(before, prompt, whole)
        return start, text[:_TURN_CHARS_MAX]

    # --- calls ---

    def _find_tools(self) -> ToolsPlace:
        """Where the template reads tools."""
        for place in ToolsPlace:
            self._tools_place = place
            if _NAMES[0] in self._tried([_USER], is_followed=True):
                return place
        return ToolsPlace.NOWHERE

    def _takes_objects(self) -> bool:
        """Whether it writes arguments as JSON if they are given as an object, as in transformers."""
        as_object = self._turn(_calling(1, True))[1]
        if '"place":' in as_object or "place=" in as_object:
            return True
        return json.dumps(_ARGUMENTS) not in self._turn(_calling(1, False))[1]

    def _calls(self, takes_objects: bool) -> ToolFormat | None:
        for count, ids in itertools.product((2, 1), _IDS):
            _, text = self._turn(_calling(count, takes_objects, ids))
            wanted = [(name, _ARGUMENTS) for name in _NAMES[:count]]
            forms = [form for form in FORMATS.values() if self._reads(text, form, wanted)]
            if forms:
                found = max(forms, key=lambda form: _likeness(form, text, count))
                is_lost = found.at_start and found.written(_probed(count)) not in text
                asked = _asked_for(self._tried([_USER], is_followed=True)) if is_lost else None
                if asked is not None and not asked.at_start:  # a turn of an earlier call lost its first words
                    return asked
                return tuned(found, text, count)
        is_shown = any(_NAMES[0] in self._turn(_calling(1, takes_objects, ids))[1] for ids in _IDS)
        return _asked_for(self._tried([_USER], is_followed=True), in_words=is_shown)

    def _reads(self, text: str, form: ToolFormat, wanted: list[tuple[str, dict[str, object]]]) -> bool:
        if time.monotonic() > self._stop:
            return False
        turn = read_turn(text, self._kind(form, None, ThinkingState.NONE))
        try:
            return [(call.name, json.loads(call.arguments)) for call in turn.calls] == wanted
        except ValueError:
            return False

    def _kind(
        self, form: ToolFormat | None, thinking: ThinkingFormat | None, state: ThinkingState | None
    ) -> AnswerKind:
        thinking = THINKING_FORMATS["openai_gptoss"] if form is HARMONY else thinking
        if thinking is None:
            return AnswerKind(None, form, tools=self._tools)
        return AnswerKind(state, form, thinking_format=thinking, tools=self._tools)

    # --- thinking ---

    def _thinking(self, calls: ToolFormat | None) -> tuple[ThinkingFormat | None, bool]:
        """The format, and whether thinking is a part of the content."""
        if calls is HARMONY:
            return THINKING_FORMATS["openai_gptoss"], False
        for in_parts in (False, True):
            before, text = self._turn(thinking_turn(_THOUGHT, _TEXT, in_parts), has_tools=False)
            found = [one for one in THINKING_FORMATS.values() if self._reads_thought(one, before, text)]
            if found:
                return max(found, key=lambda one: sum(mark in before + text for mark in one.marks)), in_parts
        for given in ({}, dict.fromkeys(_SWITCHES, True), dict.fromkeys(_SWITCHES, False)):
            prompt = self._tried([_USER], is_followed=True, has_tools=False, given=given)
            text = self._turn({"role": "assistant", "content": _TEXT}, has_tools=False)[1]
            found = [one for one in THINKING_FORMATS.values() if _shows(one, prompt, text)]
            if found:
                return max(found, key=lambda one: sum(mark in prompt + text for mark in one.marks)), False
        return next((one for one in THINKING_FORMATS.values() if self._drops(one)), None), False

    def _reads_thought(self, form: ThinkingFormat, before: str, text: str) -> bool:
        state = form.state_after(before[-_MARGIN:].encode())
        turn = read_turn(text, self._kind(None, form, state))
        return turn.thought == _THOUGHT and turn.content.startswith(_TEXT)

    def _drops(self, form: ThinkingFormat) -> bool:
        """Whether a turn's thinking is removed from its text."""
        if form.is_channels:
            return False
        said = f"{form.begin}{_THOUGHT}{form.end}{_TEXT}"
        _, text = self._turn({"role": "assistant", "content": said}, has_tools=False)
        return _TEXT in text and _THOUGHT not in text

    def _refuses_text(self, takes_objects: bool) -> bool:
        calling = _calling(1, takes_objects)
        thinking = thinking_turn(_THOUGHT, "", in_parts=False)
        alone = self._tried([_USER, calling | thinking])
        return bool(alone) and not self._tried([_USER, calling | thinking | {"content": _TEXT}])


def thinking_turn(thought: str, text: str, in_parts: bool) -> Message:
    """An assistant's turn with thinking, under every name that templates read."""
    names: Message = dict.fromkeys(REASONING_NAMES, thought)
    content: object = text
    if in_parts:
        content = [
            {"type": "thinking", "thinking": thought},
            *([{"type": "text", "text": text}] if text else []),
        ]
    return {"role": "assistant", "content": content, **names}


def own_text(before: str, prompt: str, whole: str) -> tuple[str, str]:
    """Split a chat that ends with an assistant's turn: the text before the turn's own, up to the end of
    `prompt`, and the turn's own. `before`: the chat without the turn and without the text that begins it."""
    own = len(_common(whole, before))
    shared = _common(whole[own:], prompt[own:])
    if len(shared) < len(prompt) - own:  # the turn differs from the prompt's end, perhaps inside a mark
        shared = _whole_marks(shared)
    return whole[: own + len(shared)], whole[own + len(shared) :]


def with_tools_in_system(
    messages: Sequence[Message], tools: Sequence[object], place: ToolsPlace
) -> list[Message]:
    """The chat with the tools in a system message, if the template reads them there."""
    value: object = (
        json.dumps(list(tools), ensure_ascii=False) if place is ToolsPlace.SYSTEM_TEXT else list(tools)
    )
    if messages and messages[0].get("role") == "system":
        return [messages[0] | {"tools": value}, *messages[1:]]
    return [{"role": "system", "content": "", "tools": value}, *messages]


def tuned(form: ToolFormat, text: str, count: int) -> ToolFormat:
    """The format with the words that this text has around its calls, which are the trial's."""
    places = [] if form.body in (Body.CHANNELS, Body.TAGGED) else _places(form, text, count)
    if not places or form.written(_probed(count)) in text:
        return form
    begin = min((at for one in form.begins if one and (at := text.find(one)) >= 0), default=0)
    (name, name_end, first, last), *others = places
    head, to_arguments = text[begin:name], text[name_end:first]
    left = len(read_turn(text[begin:], AnswerKind(None, form)).content)
    tail = text[(others or places)[-1][-1] : len(text) - left].rstrip()
    head, to_arguments, tail, gap = (
        _CALL_ID.sub(ID, one)
        for one in (head, to_arguments, tail, text[last : others[0][0]] if others else "")
    )
    if form.body is Body.NAMED and ID in head + to_arguments + tail:
        return form
    if form.body is Body.PYTHON:
        form = replace(form, is_quoted="'Rome'" in text)
    else:
        form = replace(form, is_spaced=text[first:last] != json.dumps(_ARGUMENTS))
    if not others:
        return replace(form, open="", close="", call_open=head, to_arguments=to_arguments, call_close=tail)
    call_open = _common(head[::-1], gap[::-1])[::-1]
    call_open = call_open[_after_half_mark(call_open) :]
    if form.body is Body.OBJECT and "{" not in call_open:
        return form
    between = gap[: len(gap) - len(call_open)]
    call_close = _whole_marks(_common(between, tail))
    return replace(
        form,
        open=head[: len(head) - len(call_open)],
        call_open=call_open,
        to_arguments=to_arguments,
        call_close=call_close,
        between=between[len(call_close) :],
        close=tail[len(call_close) :],
    )


def _shows(form: ThinkingFormat, prompt: str, text: str) -> bool:
    """Whether a prompt requests or opens such thinking, or a turn without thinking has its marks."""
    is_marked = all(mark in prompt for mark in form.marks) or (form.begin in text and form.end in text)
    return is_marked or prompt.rstrip().endswith(form.begin)


def _whole_marks(text: str) -> str:
    """The text without a truncated mark, <...> or [...], at its end."""
    opening = max(text.rfind("<"), text.rfind("["))
    return text[:opening] if opening >= 0 and not re.search(r"[>\]]", text[opening:]) else text


def _after_half_mark(text: str) -> int:
    """The place after a truncated mark at the beginning of the text."""
    found = re.match(r"[^<\[{\n]*[>\]]", text)
    return 0 if found is None else found.end()


def _common(one: str, other: str) -> str:
    """The common prefix."""
    length = next(
        (at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )
    return one[:length]


def _places(form: ToolFormat, text: str, count: int) -> list[tuple[int, int, int, int]]:
    """The places of each call's name and arguments: begin and end of both."""
    found, at = list[tuple[int, int, int, int]](), 0
    for name in _NAMES[:count]:
        place = text.find(name, at)
        arguments = None if place < 0 else _arguments_at(form, text, place + len(name))
        if arguments is None:
            return []
        found.append((place, place + len(name), *arguments))
        at = arguments[1]
    return found


def _arguments_at(form: ToolFormat, text: str, name_end: int) -> tuple[int, int] | None:
    """Begin and end of the arguments after a name."""
    if form.body is Body.PYTHON:
        call = read_call(text, text.rfind(_NAMES[0][:5], 0, name_end))
        return (name_end + 1, call.end - 1) if call.call is not None else None
    first = text.find("{", name_end)
    try:
        value, last = json.JSONDecoder().raw_decode(text, max(first, 0))
    except ValueError:
        return None
    return (first, last) if value == _ARGUMENTS else None


def _likeness(form: ToolFormat, text: str, count: int) -> tuple[int, int]:
    """How much of the text matches the format's spelling of these calls, and how many of its marks it has."""
    written = form.written(_probed(count))
    squeezed, written = "".join(text.split()), "".join(written.split())
    return len(written) if written in squeezed else 0, sum(mark in text for mark in form.markers)


def _probed(count: int) -> list[ToolCall]:
    return [ToolCall(name, json.dumps(_ARGUMENTS)) for name in _NAMES[:count]]


def _asked_for(prompt: str, in_words: bool = False) -> ToolFormat | None:
    """The format whose marks are in the prompt, for a turn that shows no calls. `in_words`: the format of an
    example in the prompt, for a turn whose calls cannot be parsed."""
    found: list[tuple[int, ToolFormat]] = []
    for form in FORMATS.values():
        words = {word for word in (*form.begins, *form.markers, *form.hints) if len(word) > 1}
        if form.tags is not None:
            words.add(form.tags.param_open)
        has = {word for word in words if word in prompt}
        if has & {*(() if in_words else form.begins), *form.hints}:
            found.append((len(has), form))
    return max(found, key=lambda one: one[0])[1] if found else None


def _calling(count: int, takes_objects: bool, ids: str = _IDS[0]) -> Message:
    """A turn that calls the first of the functions."""
    arguments: object = _ARGUMENTS if takes_objects else json.dumps(_ARGUMENTS)
    calls = [
        {
            "type": "function",
            "id": ids.format(name=name, index=index),
            "function": {"name": name, "arguments": arguments},
        }
        for index, name in enumerate(_NAMES[:count])
    ]
    return {"role": "assistant", "content": "", "tool_calls": calls}
