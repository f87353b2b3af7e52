"""The text of an answer in OpenAI's shapes: content, thinking and calls, whole or as deltas. Both are made of
the same events, so the deltas of a stream join to the whole."""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

from octavo.engine.client import EngineClient
from octavo.grammar import Thinking, ThinkingState
from octavo.params import SamplerParams
from octavo.server.errors import JsonObject
from octavo.server.tool_fields import ThinkingWish
from octavo.tools.answer import AnswerEvent, AnswerReader, Thought
from octavo.tools.definitions import ToolMode, ToolUse
from octavo.tools.formats import ToolFormat
from octavo.tools.parser import ArgumentsText, CallBegun, Content
from octavo.types import FinishReason


@dataclass(frozen=True, slots=True)
class AnswerKind:
    """How the text of an answer is read. `thinking` None: it is not split; `form` None: it has no calls."""

    thinking: ThinkingState | None
    form: ToolFormat | None
    tells_thoughts: bool = True


async def led_params(
    params: SamplerParams, use: ToolUse | None, wish: ThinkingWish, model: EngineClient, tenant: str
) -> SamplerParams:
    """The parameters with what leads an answer with tools, or thinking. Raises InvalidRequest."""
    answers = model.answers
    grammar = params.grammar
    if use is not None and not (params.beams is not None and use.mode is not ToolMode.REQUIRED):
        grammar = await answers.grammar(use, params.grammar, tenant)
    banned = params.banned_sequences
    if use is not None and use.mode is ToolMode.NONE and not answers.form.at_start:
        banned += model.bad_word_ids(answers.form.begins)
    is_led = answers.thinks and (grammar is not None or wish.max_tokens is not None)
    has_calls = use is not None and use.mode is not ToolMode.NONE
    shows = wish.is_split and answers.is_hidden(calls=has_calls)
    return replace(
        params,
        grammar=grammar,
        banned_sequences=banned,
        thinking=Thinking(None, wish.max_tokens) if is_led else None,
        skip_special_tokens=params.skip_special_tokens and not shows,
    )


def answer_kind(
    use: ToolUse | None, wish: ThinkingWish, model: EngineClient, prompt: Sequence[int]
) -> AnswerKind:
    """How an answer to this prompt is read."""
    answers = model.answers
    form = answers.form if use is not None and use.mode is not ToolMode.NONE else None
    state = answers.thinking_state(prompt) if answers.thinks and wish.is_split else None
    return AnswerKind(state, form, wish.is_told)


def new_call_id(form: ToolFormat | None) -> str:
    """An id for a call, of so many characters as the model's template wants."""
    letters, chars = string.ascii_letters + string.digits, 0 if form is None else form.id_chars
    return "".join(secrets.choice(letters) for _ in range(chars)) or f"call_{uuid.uuid4().hex[:24]}"


class ChoiceWriter:
    """Writes one choice."""

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self._reader = AnswerReader(kind.thinking, kind.form)

    def deltas(self, text: str, is_last: bool) -> list[JsonObject]:
        """More of the text, as deltas of a stream."""
        shaped = (self._delta(event) for event in self._reader.push(text, is_last))
        return [delta for delta in shaped if delta]

    def message(self, text: str) -> JsonObject:
        """All of the text, as a message."""
        content, thought, functions = "", "", list[dict[str, str]]()
        for event in self._reader.push(text, is_last=True):
            match event:
                case Content(more):
                    content += more
                case Thought(more):
                    thought += more
                case CallBegun(_, name):
                    functions.append({"name": name, "arguments": ""})
                case ArgumentsText(index, more):
                    functions[index]["arguments"] += more
        calls = [{"id": self._new_id(), "type": "function", "function": one} for one in functions]
        message: JsonObject = {
            "role": "assistant",
            "content": content if content or not calls else None,
            "refusal": None,
        }
        if thought and self._kind.tells_thoughts:
            message |= {"reasoning_content": thought, "reasoning": thought}
        return message | ({"tool_calls": calls} if calls else {})

    def finish_reason(self, finish: FinishReason | None) -> str | None:
        """As OpenAI names the end of an answer that may have called."""
        return "tool_calls" if finish is FinishReason.STOP and self._reader.num_calls else finish

    def _delta(self, event: AnswerEvent) -> JsonObject:
        match event:
            case Content(text):
                return {"content": text}
            case Thought(text) if self._kind.tells_thoughts:
                return {"reasoning_content": text, "reasoning": text}
            case CallBegun(index, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": self._new_id(), "type": "function", "function": function}
                return {"tool_calls": [call]}
            case ArgumentsText(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        return {}

    def _new_id(self) -> str:
        return new_call_id(self._kind.form)
