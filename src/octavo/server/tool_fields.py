"""The fields of every dialect for tools and thinking, and their meaning."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.errors import InvalidRequest, wrong_value
from octavo.server.field_list import Body, done
from octavo.tools.definitions import TOOLS_MAX, ToolUse, tool_use

_FORMATS = {"none": False, "auto": True, "deepseek": True, "deepseek-legacy": True}


@dataclass(frozen=True, slots=True)
class ThinkingOptions:
    """Where an answer's thinking goes, and its limit."""

    max_tokens: int | None
    is_split: bool  # from the text, else it stays in it
    is_shown: bool  # else it is left out


class ToolsBody(Body):
    """The template's fields for tools and thinking."""

    tools: object = done(f"up to {TOOLS_MAX} functions", "OVLS")
    reasoning_effort: str | None = done("passed to the chat template; none: enable_thinking false too", "OVS")
    enable_thinking: bool | None = done("passed to the chat template, as in chat_template_kwargs", "X")

    @property
    def thinking_kwargs(self) -> dict[str, object]:
        """The template's variables for thinking."""
        kwargs: dict[str, object] = {}
        if self.reasoning_effort is not None:
            kwargs["reasoning_effort"] = self.reasoning_effort
        is_off = self.reasoning_effort == "none"
        if self.enable_thinking is not None or is_off:
            kwargs["enable_thinking"] = bool(self.enable_thinking) and not is_off
        return kwargs


class AnswerBody(ToolsBody):
    """The fields for tools and thinking in the answer."""

    tool_choice: object = done("none, auto, required, a function, or allowed_tools", "OVLS")
    parallel_tool_calls: bool | None = done("default true: up to 16 calls in an answer", "OVLS")
    max_thinking_tokens: int | None = done("then the thinking is closed; means nothing to other models", "X")
    thinking_token_budget: int | None = done("another name of max_thinking_tokens; -1: none", "V")
    reasoning_budget_tokens: int | None = done("another name of max_thinking_tokens; -1: none", "L")
    include_reasoning: bool | None = done("default true; false: the thinking is left out", "V")
    separate_reasoning: bool | None = done("default true; false: the thinking stays in the text", "S")
    reasoning_format: str | None = done("none: the thinking stays in the text", "L")

    @property
    def tool_use(self) -> ToolUse | None:
        """The tools of the request, None for none. Raises InvalidRequest."""
        return tool_use(self.tools, self.tool_choice, self.parallel_tool_calls)

    @property
    def thinking_options(self) -> ThinkingOptions:
        """The options for thinking. Raises InvalidRequest."""
        given = self.reasoning_format or "auto"
        if given not in _FORMATS:
            raise wrong_value("reasoning_format", given, ", ".join(_FORMATS))
        is_split = _FORMATS[given] and self.separate_reasoning is not False
        return ThinkingOptions(self._budget, is_split, self.include_reasoning is not False)

    @property
    def _budget(self) -> int | None:
        named = {
            "max_thinking_tokens": self.max_thinking_tokens,
            "thinking_token_budget": self.thinking_token_budget,
            "reasoning_budget_tokens": self.reasoning_budget_tokens,
        }
        budgets = {name: value for name, value in named.items() if value is not None and value != -1}
        if len(set(budgets.values())) > 1:
            names = " and ".join(budgets)
            raise InvalidRequest(f"{names} differ; allowed: one of them, for they mean the same", param=names)
        name, budget = next(iter(budgets.items()), ("", None))
        if budget is not None and not 0 <= budget < 2**31:
            raise InvalidRequest(
                f"{name} is {budget}; allowed: 0 to {2**31 - 1:,}, or -1 for none", param=name
            )
        return budget
