"""The formats of thinking, by family of models, and how thinking is split from the answer.

    begin  thinking  end   answer[0]  the answer  answer[1]

A format is found by rendering the model's chat template, or given (`--reasoning-parser`, which accepts vLLM's
names too).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from octavo.grammar import Thinking, ThinkingState

FINAL: Final = "<|channel|>final<|message|>"  # precedes the answer of a model with channels


@dataclass(frozen=True, slots=True)
class ThinkingFormat:
    """The texts around thinking; `answer`: those that some models write around the answer. `is_channels`: an
    answer is a list of messages in channels (`octavo.tools.channels`)."""

    name: str
    begin: str
    end: str
    answer: tuple[str, str] = ("", "")
    is_channels: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """Texts that are special tokens in some vocabularies."""
        more = ("<|channel|>", "<|message|>", "<|start|>") if self.is_channels else ()
        return tuple(mark for mark in (self.begin, self.end, *self.answer, *more) if mark)

    def state_after(self, tail: bytes) -> ThinkingState:
        """The state at the beginning of an answer; `tail`: the last bytes of its prompt."""
        return self.leading().state_after(tail)

    def leading(self, max_tokens: int | None = None, *, has_calls: bool = False) -> Thinking:
        """The text before an output of such a model. `has_calls`: its grammar begins before its channel."""
        if not self.is_channels:
            return Thinking(None, max_tokens, self.begin, self.end)
        behind = "<|start|>assistant" if has_calls else "<|start|>assistant" + FINAL
        return Thinking(None, max_tokens, self.begin, self.end, behind, always=True)


THINK: Final = ThinkingFormat(
    "think",
    "<think>",
    "</think>",
    aliases=(
        "deepseek_r1",
        "deepseek_v3",
        "qwen3",
        "glm45",
        "minimax_m2",
        "minimax_m2_append_think",
        "nemotron_v3",
        "olmo3",
        "ernie45",
        "step3",
        "step3p5",
        "kimi_k2",
        "holo2",
    ),
)
BRACKETS: Final = ThinkingFormat("mistral", "[THINK]", "[/THINK]")
RESPONSE: Final = ThinkingFormat("granite33", "<think>", "</think>", ("<response>", "</response>"))
GRANITE_32: Final = ThinkingFormat("granite", "Here is my thought process:", "Here is my response:")
HUNYUAN: Final = ThinkingFormat("hunyuan_a13b", "<think>", "</think>", ("<answer>", "</answer>"))
COMMAND: Final = ThinkingFormat(
    "cohere_command3",
    "<|START_THINKING|>",
    "<|END_THINKING|>",
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)
SEED: Final = ThinkingFormat("seed_oss", "<seed:think>", "</seed:think>")
HARMONY: Final = ThinkingFormat(
    "openai_gptoss",
    "<|channel|>analysis<|message|>",
    "<|end|>",
    is_channels=True,
    aliases=("gpt_oss", "openai", "harmony"),
)
THINKING_FORMATS: Final[Mapping[str, ThinkingFormat]] = {
    one.name: one for one in (HARMONY, THINK, RESPONSE, HUNYUAN, BRACKETS, COMMAND, SEED, GRANITE_32)
}
THINKING_NAMES: Final[Mapping[str, ThinkingFormat]] = {
    **THINKING_FORMATS,
    **{alias: one for one in THINKING_FORMATS.values() for alias in one.aliases},
}


class ThinkingSplitter:
    """Splits thinking from the answer. White space around the marks belongs to neither."""

    def __init__(self, form: ThinkingFormat, state: ThinkingState) -> None:
        self._form = form
        self._text = ""  # not emitted yet
        self._is_opened = state is ThinkingState.NONE  # the opening mark was read, or is not expected
        self._has_thought = self._has_answered = False
        self._thinks = state is ThinkingState.INSIDE
        self._answer = _AnswerWrapper(*form.answer)

    def push(self, text: str, is_last: bool = False) -> tuple[str, str]:
        """More text: the thinking in it, and the answer in it."""
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
        return thought, self._answer.push(answer, is_last)

    def _open(self, is_last: bool) -> None:
        """Whether it begins with the opening mark; a model may repeat the prompt's."""
        rest, begin = self._text.lstrip(), self._form.begin
        if rest.startswith(begin):
            self._text, self._thinks, self._is_opened = rest[len(begin) :], True, True
        elif is_last or not begin.startswith(rest):
            self._is_opened = True

    def _thought(self, is_last: bool) -> str:
        """The thinking that can be emitted now; detects its end."""
        end = self._form.end
        before, found, after = self._text.partition(end)
        if found or is_last:
            self._thinks, self._text, kept = False, after, before.rstrip()
            if is_last and not found:
                self._text = ""
        else:
            held = next((n for n in range(len(end) - 1, 0, -1) if before.endswith(end[:n])), 0)
            kept = before[: len(before) - held].rstrip()
            self._text = before[len(kept) :]
        if not self._has_thought:
            stripped = kept.lstrip()
            if not stripped and not (found or is_last):
                return ""
            kept = stripped
        self._has_thought = self._has_thought or bool(kept) or bool(found)
        return kept


class _AnswerWrapper:
    """Removes the texts around an answer, if it begins with the first of them."""

    def __init__(self, begin: str, end: str) -> None:
        self._begin, self._end = begin, end
        self._text = ""
        self._is_wrapped: bool | None = None if begin else False
        self._is_new = False  # skip line breaks after `begin`
        self._is_behind = False  # skip white space after `end`

    def push(self, text: str, is_last: bool) -> str:
        """More text: the part of the answer that can be emitted."""
        self._text += text
        if self._is_wrapped is None:
            rest = self._text.lstrip()
            if rest.startswith(self._begin):
                self._text, self._is_wrapped, self._is_new = rest[len(self._begin) :], True, True
            elif is_last or not self._begin.startswith(rest):
                self._is_wrapped = False
            else:
                return ""
        if self._is_new:
            self._text = self._text.lstrip("\n")
            self._is_new = not self._text
        place = self._text.find(self._end) if self._is_wrapped else -1
        if place >= 0:
            given, self._text = self._text[:place].rstrip("\n"), self._text[place + len(self._end) :]
            self._is_wrapped, self._is_behind = False, True
            return given + self.push("", is_last)
        if self._is_behind:
            self._text = self._text.lstrip()
            self._is_behind = not self._text
        held = 0
        if self._is_wrapped and not is_last:
            kept = self._text.rstrip("\n")
            partial = (n for n in range(len(self._end) - 1, 0, -1) if kept.endswith(self._end[:n]))
            held = next(partial, 0) + len(self._text) - len(kept)
            held = len(self._text) - len(self._text[: len(self._text) - held].rstrip("\n"))
        given = self._text[: len(self._text) - held]
        self._text = self._text[len(given) :]
        return given
