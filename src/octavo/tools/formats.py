"""How each family of models writes calls: as data, from which prompts, grammars and the parser are made.

    open  call_open NAME to_arguments {"a": 1} call_close  between  call_open ...  close

A format is told by the model's chat template, or given (`--tool-parser`). Sources: the templates of these
families, and vLLM's names of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from octavo.types import ToolCall


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """What stands around names and arguments. `begins`: one of these texts begins calls; `at_start`: only
    where the answer does. `next_begins`: another call, behind one. `markers` are texts that are special
    tokens in some vocabularies."""

    name: str
    call_open: str
    to_arguments: str
    call_close: str
    begins: tuple[str, ...]
    next_begins: str
    open: str = ""
    between: str = ""
    close: str = ""
    at_start: bool = False
    markers: tuple[str, ...] = ()
    is_pythonic: bool = False  # arguments are Python's, name=value
    id_chars: int = 0  # of a call's id, where the template wants so many; 0: any

    def written(self, calls: Sequence[ToolCall]) -> str:
        """These calls, as a model of this family writes them."""
        each = [
            self.call_open + call.name + self.to_arguments + call.arguments + self.call_close
            for call in calls
        ]
        return self.open + self.between.join(each) + self.close


HERMES: Final = ToolFormat(
    "hermes",
    call_open='<tool_call>\n{"name": "',
    to_arguments='", "arguments": ',
    call_close="}\n</tool_call>",
    begins=("<tool_call>",),
    next_begins="<tool_call>",
    between="\n",
    markers=("<tool_call>", "</tool_call>"),
)
LLAMA3_JSON: Final = ToolFormat(
    "llama3_json",
    call_open='{"name": "',
    to_arguments='", "parameters": ',
    call_close="}",
    begins=("<|python_tag|>", "{"),
    next_begins="{",
    between="; ",
    at_start=True,
    markers=("<|python_tag|>",),
)
JSON: Final = ToolFormat(
    "json",
    call_open='{"name": "',
    to_arguments='", "arguments": ',
    call_close="}",
    begins=("[", "{"),
    next_begins="{",
    open="[",
    between=", ",
    close="]",
    at_start=True,
)
MISTRAL: Final = ToolFormat(
    "mistral",
    call_open='{"name": "',
    to_arguments='", "arguments": ',
    call_close="}",
    begins=("[TOOL_CALLS]",),
    next_begins="{",
    open="[TOOL_CALLS][",
    between=", ",
    close="]",
    markers=("[TOOL_CALLS]",),
    id_chars=9,
)
MISTRAL_ARGS: Final = ToolFormat(
    "mistral_args",
    call_open="[TOOL_CALLS]",
    to_arguments="[ARGS]",
    call_close="",
    begins=("[TOOL_CALLS]",),
    next_begins="[TOOL_CALLS]",
    markers=("[TOOL_CALLS]", "[ARGS]"),
    id_chars=9,
)
_DEEPSEEK_MARKERS = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
DEEPSEEK_V3: Final = ToolFormat(
    "deepseek_v3",
    call_open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    to_arguments="\n```json\n",
    call_close="\n```<｜tool▁call▁end｜>",
    begins=("<｜tool▁calls▁begin｜>",),
    next_begins="<｜tool▁call▁begin｜>",
    open="<｜tool▁calls▁begin｜>",
    between="\n",
    close="<｜tool▁calls▁end｜>",
    markers=_DEEPSEEK_MARKERS,
)
DEEPSEEK_V31: Final = ToolFormat(
    "deepseek_v31",
    call_open="<｜tool▁call▁begin｜>",
    to_arguments="<｜tool▁sep｜>",
    call_close="<｜tool▁call▁end｜>",
    begins=("<｜tool▁calls▁begin｜>",),
    next_begins="<｜tool▁call▁begin｜>",
    open="<｜tool▁calls▁begin｜>",
    close="<｜tool▁calls▁end｜>",
    markers=_DEEPSEEK_MARKERS,
)
PYTHONIC: Final = ToolFormat(
    "pythonic",
    call_open="",
    to_arguments="(",
    call_close=")",
    begins=("[",),
    next_begins="",
    open="[",
    between=", ",
    close="]",
    at_start=True,
    is_pythonic=True,
)
FORMATS: Final[Mapping[str, ToolFormat]] = {
    one.name: one
    for one in (HERMES, LLAMA3_JSON, JSON, MISTRAL, MISTRAL_ARGS, DEEPSEEK_V3, DEEPSEEK_V31, PYTHONIC)
}


def format_of_template(source: str) -> ToolFormat | None:
    """The format that a chat template writes; None where it tells none."""
    if "tool▁calls▁begin" in source:
        return DEEPSEEK_V3 if "```json" in source else DEEPSEEK_V31
    if "[TOOL_CALLS]" in source:
        return MISTRAL_ARGS if "[ARGS]" in source else MISTRAL
    if "<tool_call>" in source:
        return HERMES
    if "func_name1(" in source:
        return PYTHONIC
    if "<|python_tag|>" in source or '"parameters": ' in source:
        return LLAMA3_JSON
    return None
