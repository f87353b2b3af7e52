"""The text of an answer in OpenAI's shapes: content, thinking and calls, whole or as deltas. Both are made of
the same events, so the deltas of a stream join to the whole."""

from __future__ import annotations

import secrets
import string
import uuid
from collections.abc import Sequence
from dataclasses import replace

from octavo.engine.client import EngineClient
from octavo.params import SamplerParams
from octavo.server.errors import JsonObject
from octavo.server.tool_fields import ThinkingWish
from octavo.tools.answer import AnswerKind, AnswerReader
from octavo.tools.definitions import ToolMode, ToolUse
from octavo.tools.events import AnswerEvent, ArgumentsText, CallBegun, Content, Thought
from octavo.tools.formats import ToolFormat
from octavo.tools.thinking import THINK
from octavo.types import FinishReason


async def led_params(
    params: SamplerParams, use: ToolUse | None, wish: ThinkingWish, model: EngineClient, tenant: str
) -> SamplerParams:
    """The parameters with what leads an answer with tools, or thinking. Raises InvalidRequest."""
    answers = model.answers
    grammar = params.grammar
    if use is not None and not (params.beams is not None and use.mode is not ToolMode.REQUIRED):
        grammar = await answers.grammar(use, params.grammar, tenant)
    banned = params.banned_sequences
    # What follows a grammar calls nothing anyway, and a search knows no bans.
    is_free = grammar is None and params.beams is None
    if use is not None and use.mode is ToolMode.NONE and is_free and not answers.form.at_start:
        banned += model.bad_word_ids(answers.form.begins)
    thinking = answers.thinking_format
    is_led = thinking is not None and (grammar is not None or wish.max_tokens is not None)
    has_calls = use is not None and use.mode is not ToolMode.NONE
    is_read = wish.is_split or (thinking is not None and thinking.is_channels)
    shows = is_read and answers.is_hidden(calls=has_calls)
    return replace(
        params,
        grammar=grammar,
        banned_sequences=banned,
        thinking=thinking.leading(wish.max_tokens, has_calls=has_calls) if thinking and is_led else None,
        skip_special_tokens=params.skip_special_tokens and not shows,
    )


def answer_kind(
    use: ToolUse | None, wish: ThinkingWish, model: EngineClient, prompt: Sequence[int]
) -> AnswerKind:
    """How an answer to this prompt is read."""
    answers = model.answers
    has_calls = use is not None and use.mode is not ToolMode.NONE
    thinking = answers.thinking_format
    return AnswerKind(
        answers.thinking_state(prompt) if thinking is not None and wish.is_split else None,
        answers.form if has_calls else None,
        wish.is_told,
        thinking or THINK,
        use.tools if use is not None and has_calls else (),
    )


def new_call_id(form: ToolFormat | None, name: str, index: int) -> str:
    """An id for the answer's call number `index`, as the model's template wants it."""
    if form is not None and form.id_form:
        return form.id_form.format(name=name, index=index)
    letters, chars = string.ascii_letters + string.digits, 0 if form is None else form.id_chars
    return "".join(secrets.choice(letters) for _ in range(chars)) or f"call_{uuid.uuid4().hex[:24]}"


class ChoiceWriter:
    """Writes one choice."""

    def __init__(self, kind: AnswerKind) -> None:
        self._kind = kind
        self._reader = AnswerReader(kind)

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
        calls = [
            {"id": new_call_id(self._kind.form, one["name"], index), "type": "function", "function": one}
            for index, one in enumerate(functions)
        ]
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
                call_id = new_call_id(self._kind.form, name, index)
                call = {"index": index, "id": call_id, "type": "function", "function": function}
                return {"tool_calls": [call]}
            case ArgumentsText(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
        return {}
