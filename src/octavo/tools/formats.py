"""The formats of calls, by family of models: data for prompts, grammars and the parser.

    open  call_open NAME to_arguments ARGUMENTS call_close  between  call_open ...  close

A format is found by rendering the model's chat template (`octavo.text.turn_format`), or given
(`--tool-parser`, which accepts vLLM's names too). Sources: the published formats of these families.
"""

from __future__ import annotations

import enum
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from octavo.types import ToolCall

ID: Final = "\x00"  # placeholder of the call's id in a format's words


class Body(enum.Enum):
    """The layout of a call's name and arguments."""

    OBJECT = enum.auto()  # {"name": NAME, "arguments": {...}}
    NAMED = enum.auto()  # NAME, then a JSON object
    TAGGED = enum.auto()  # NAME, then each argument in tags of its own, a string without quotes
    PYTHON = enum.auto()  # NAME(key=value)
    CHANNELS = enum.auto()  # a message of gpt-oss to the function NAME: `octavo.tools.channels`


@dataclass(frozen=True, slots=True)
class Tags:
    """The texts around one argument: param_open KEY to_value VALUE param_close. `to_json` replaces `to_value`
    if VALUE is JSON; otherwise the function's schema decides the type of VALUE."""

    param_open: str
    to_value: str
    param_close: str
    to_json: str = ""


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """The texts around names and arguments. `begins`: one of these texts begins calls; `at_start`: only at
    the start of the answer. `next_begins`: begins another call; if empty, `begins` does. `markers` are texts
    that are special tokens in some vocabularies."""

    name: str
    body: Body
    begins: tuple[str, ...]
    call_open: str
    to_arguments: str
    call_close: str
    open: str = ""
    between: str = ""
    close: str = ""
    next_begins: tuple[str, ...] = ()
    at_start: bool = False
    markers: tuple[str, ...] = ()
    tags: Tags | None = None
    id_open: str = ""  # begins a call's id, between its name and its arguments
    id_chars: int = 0  # of a call's id, if the template needs a fixed number; 0: any
    aliases: tuple[str, ...] = ()  # vLLM's other names of it
    id_form: str = ""  # of a call's id, if the template writes that instead of the name
    hints: tuple[str, ...] = ()  # phrases by which a template requests it
    is_spaced: bool = False  # arguments have line breaks, or other unusual white space
    is_quoted: bool = False  # strings are in Python's single quotes

    def written(self, calls: Sequence[ToolCall]) -> str:
        """These calls, as a model of this family writes them."""
        each = [self._written(call, index) for index, call in enumerate(calls)]
        return (self.open + self.between.join(each) + self.close).replace(ID, "call00000")

    def _written(self, call: ToolCall, index: int) -> str:
        name = f"{call.name}{self.id_open}{index}" if self.id_form else call.name
        return self.call_open + name + self.to_arguments + self._arguments(call) + self.call_close

    def _arguments(self, call: ToolCall) -> str:
        if self.body is Body.TAGGED:
            assert self.tags is not None
            return "".join(self._tagged(self.tags, key, value) for key, value in _parsed(call).items())
        if self.body is Body.PYTHON:
            return ", ".join(
                f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in _parsed(call).items()
            )
        return call.arguments

    @staticmethod
    def _tagged(tags: Tags, key: str, value: object) -> str:
        is_text = isinstance(value, str)
        to_value = tags.to_value if is_text or not tags.to_json else tags.to_json
        text = str(value) if is_text else json.dumps(value, ensure_ascii=False)
        return tags.param_open + key + to_value + text + tags.param_close


def _parsed(call: ToolCall) -> dict[str, object]:
    found = json.loads(call.arguments)
    return found if isinstance(found, dict) else {}


def _objects(
    name: str, before: str, after: str = "", between: str = ", ", key: str = "arguments", **more: object
) -> ToolFormat:
    """A list of objects between `before` and `after`."""
    fields: dict[str, object] = {"begins": (before.removesuffix("["),), "next_begins": ("{",)} | more
    return ToolFormat(
        name,
        Body.OBJECT,
        call_open='{"name": "',
        to_arguments=f'", "{key}": ',
        call_close="}",
        open=before,
        between=between,
        close=after,
        **fields,  # type: ignore[arg-type]
    )


def _functions(name: str, before: str, after: str, is_broken: bool, **more: object) -> ToolFormat:
    """<function=NAME> with <parameter=KEY> in it; `is_broken`: values are on separate lines."""
    line = "\n" if is_broken else ""
    return ToolFormat(
        name,
        Body.TAGGED,
        begins=(before, "<function="),
        call_open=f"{before}\n<function=",
        to_arguments=">\n",
        call_close=f"</function>\n{after}",
        between="\n",
        tags=Tags("<parameter=", f">{line}", f"{line}</parameter>\n"),
        markers=(before, after),
        **more,  # type: ignore[arg-type]
    )


HERMES: Final = ToolFormat(
    "hermes",
    Body.OBJECT,
    call_open='<tool_call>\n{"name": "',
    to_arguments='", "arguments": ',
    call_close="}\n</tool_call>",
    begins=("<tool_call>",),
    between="\n",
    markers=("<tool_call>", "</tool_call>"),
    aliases=("granite4", "qwen", "qwen25", "longcat", "ernie45", "smollm3"),
)
LLAMA3_JSON: Final = _objects(
    "llama3_json",
    "",
    between="; ",
    key="parameters",
    begins=("<|python_tag|>", "<|python_start|><|python_end|>", "<|python_start|>", "{"),
    at_start=True,
    markers=("<|python_tag|>", "<|python_start|>", "<|python_end|>"),
    aliases=("llama4_json",),
    hints=('"parameters": dictionary of argument',),
)
JSON: Final = _objects("json", "[", "]", begins=("[", "{"), at_start=True, aliases=("xlam",))
MISTRAL: Final = _objects(
    "mistral", "[TOOL_CALLS][", "]", begins=("[TOOL_CALLS]",), markers=("[TOOL_CALLS]",), id_chars=9
)
GRANITE: Final = _objects(
    "granite",
    "<|tool_call|>[",
    "]",
    begins=("<|tool_call|>", "<tool_call>["),
    markers=("<|tool_call|>",),
    hints=("<|start_of_role|>available_tools<|end_of_role|>",),
)
PHI4_MINI: Final = _objects(
    "phi4_mini_json",
    "<|tool_call|>[",
    "]<|/tool_call|>",
    begins=("<|tool_call|>", "functools["),
    markers=("<|tool_call|>", "<|/tool_call|>"),
    hints=("<|tool|>",),
)
NEMOTRON: Final = _objects(
    "nemotron_json",
    "<TOOLCALL>[",
    "]</TOOLCALL>",
    markers=("<TOOLCALL>", "</TOOLCALL>"),
)
TOOL_CALLS: Final = _objects(
    "jamba", "<tool_calls>[", "]</tool_calls>", aliases=("hunyuan_a13b", "minimax"), markers=("<tool_calls>",)
)
GRANITE_20B: Final = _objects(
    "granite-20b-fc", "<function_call>", between="<function_call>", next_begins=("<function_call>",)
)
COMMAND: Final = ToolFormat(
    "cohere_command3",
    Body.OBJECT,
    begins=("<|START_ACTION|>",),
    open="<|START_ACTION|>[\n    ",
    call_open=f'{{"tool_call_id": "{ID}", "tool_name": "',
    to_arguments='", "parameters": ',
    call_close="}",
    between=",\n    ",
    close="\n]<|END_ACTION|>",
    next_begins=("{",),
    markers=("<|START_ACTION|>", "<|END_ACTION|>"),
)
COMMAND_R: Final = ToolFormat(
    "cohere_command_r",
    Body.OBJECT,
    begins=("Action:```json", "Action: ```json"),
    open="Action: ```json\n[\n    ",
    call_open='{\n        "tool_name": "',
    to_arguments='",\n        "parameters": ',
    call_close="\n    }",
    between=",\n    ",
    close="\n]```",
    next_begins=("{",),
)
MISTRAL_ARGS: Final = ToolFormat(
    "mistral_args",
    Body.NAMED,
    call_open="[TOOL_CALLS]",
    to_arguments="[ARGS]",
    call_close="",
    begins=("[TOOL_CALLS]",),
    markers=("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    id_open="[CALL_ID]",
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
    Body.NAMED,
    call_open="<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
    to_arguments="\n```json\n",
    call_close="\n```<｜tool▁call▁end｜>",
    begins=("<｜tool▁calls▁begin｜>",),
    next_begins=("<｜tool▁call▁begin｜>",),
    open="<｜tool▁calls▁begin｜>",
    between="\n",
    close="<｜tool▁calls▁end｜>",
    markers=_DEEPSEEK_MARKERS,
)
DEEPSEEK_V31: Final = ToolFormat(
    "deepseek_v31",
    Body.NAMED,
    call_open="<｜tool▁call▁begin｜>",
    to_arguments="<｜tool▁sep｜>",
    call_close="<｜tool▁call▁end｜>",
    begins=("<｜tool▁calls▁begin｜>",),
    next_begins=("<｜tool▁call▁begin｜>",),
    open="<｜tool▁calls▁begin｜>",
    close="<｜tool▁calls▁end｜>",
    markers=_DEEPSEEK_MARKERS,
)
KIMI_K2: Final = ToolFormat(
    "kimi_k2",
    Body.NAMED,
    call_open="<|tool_call_begin|>functions.",
    to_arguments="<|tool_call_argument_begin|>",
    call_close="<|tool_call_end|>",
    begins=("<|tool_calls_section_begin|>",),
    next_begins=("<|tool_call_begin|>",),
    open="<|tool_calls_section_begin|>",
    close="<|tool_calls_section_end|>",
    id_open=":",
    id_form="functions.{name}:{index}",
    markers=(
        "<|tool_calls_section_begin|>",
        "<|tool_calls_section_end|>",
        "<|tool_call_begin|>",
        "<|tool_call_end|>",
        "<|tool_call_argument_begin|>",
    ),
)
GLM4: Final = ToolFormat(
    "glm4",
    Body.NAMED,
    begins=("",),
    call_open="",
    to_arguments="\n",
    call_close="",
    at_start=True,
    hints=("在调用上述函数时",),
)
FUNCTION_TAG: Final = ToolFormat(
    "function_tag",
    Body.NAMED,
    begins=("<function=",),
    call_open="<function=",
    to_arguments=">",
    call_close="</function>",
)
INTERNLM: Final = _objects(
    "internlm",
    "<|action_start|><|plugin|>",
    "<|action_end|>",
    key="parameters",
    begins=("<|action_start|>",),
    markers=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
)
QWEN3_CODER: Final = _functions(
    "qwen3_coder", "<tool_call>", "</tool_call>", True, aliases=("qwen3_xml", "step3p5", "nemotron_v3")
)
SEED_OSS: Final = _functions("seed_oss", "<seed:tool_call>", "</seed:tool_call>", False)
GLM45: Final = ToolFormat(
    "glm45",
    Body.TAGGED,
    begins=("<tool_call>",),
    call_open="<tool_call>",
    to_arguments="\n",
    call_close="</tool_call>",
    between="\n",
    tags=Tags("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n"),
    markers=("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    aliases=("glm47",),
)
MINIMAX_M2: Final = ToolFormat(
    "minimax_m2",
    Body.TAGGED,
    begins=("<minimax:tool_call>",),
    next_begins=("<invoke",),
    open="<minimax:tool_call>\n",
    call_open='<invoke name="',
    to_arguments='">\n',
    call_close="</invoke>\n",
    close="</minimax:tool_call>",
    tags=Tags('<parameter name="', '">', "</parameter>\n"),
    markers=("<minimax:tool_call>", "</minimax:tool_call>"),
)
DEEPSEEK_V32: Final = ToolFormat(
    "deepseek_v32",
    Body.TAGGED,
    begins=("<｜DSML｜function_calls>",),
    next_begins=("<｜DSML｜invoke",),
    open="<｜DSML｜function_calls>\n",
    call_open='<｜DSML｜invoke name="',
    to_arguments='">\n',
    call_close="</｜DSML｜invoke>\n",
    close="</｜DSML｜function_calls>",
    tags=Tags(
        '<｜DSML｜parameter name="', '" string="true">', "</｜DSML｜parameter>\n", to_json='" string="false">'
    ),
    markers=("｜DSML｜",),
)


def _python(name: str, before: str, after: str, between: str = ", ", **more: object) -> ToolFormat:
    """Python's calls between `before` and `after`."""
    return ToolFormat(
        name,
        Body.PYTHON,
        call_open="",
        to_arguments="(",
        call_close=")",
        open=before,
        between=between,
        close=after,
        **more,  # type: ignore[arg-type]
    )


PYTHONIC: Final = _python(
    "pythonic",
    "[",
    "]",
    begins=("<|python_start|>", "["),
    at_start=True,
    markers=("<|python_start|>", "<|python_end|>"),
    aliases=("llama4_pythonic",),
    hints=("func_name1(", "[func1("),
)
OLMO3: Final = _python(
    "olmo3", "<function_calls>\n", "\n</function_calls>", "\n", begins=("<function_calls>",)
)
LFM2: Final = _python(
    "lfm2",
    "<|tool_call_start|>[",
    "]<|tool_call_end|>",
    begins=("<|tool_call_start|>",),
    hints=("<|tool_list_start|>",),
    markers=("<|tool_call_start|>", "<|tool_call_end|>"),
)
HARMONY: Final = ToolFormat(
    "openai",
    Body.CHANNELS,
    begins=("<|channel|>commentary to=functions.", "<|start|>assistant to=functions."),
    call_open="<|channel|>commentary to=functions.",
    to_arguments=" <|constrain|>json<|message|>",
    call_close="<|call|>",
    between="<|start|>assistant",
    markers=("<|channel|>", "<|constrain|>", "<|message|>", "<|call|>", "<|start|>"),
    aliases=("gpt_oss", "harmony"),
    hints=("Valid channels: analysis",),
)
FORMATS: Final[Mapping[str, ToolFormat]] = {
    one.name: one
    for one in (
        HARMONY,
        HERMES,
        LLAMA3_JSON,
        PYTHONIC,
        MISTRAL,
        MISTRAL_ARGS,
        GRANITE,
        PHI4_MINI,
        QWEN3_CODER,
        OLMO3,
        DEEPSEEK_V3,
        DEEPSEEK_V31,
        DEEPSEEK_V32,
        KIMI_K2,
        GLM45,
        GLM4,
        MINIMAX_M2,
        NEMOTRON,
        LFM2,
        COMMAND,
        COMMAND_R,
        SEED_OSS,
        TOOL_CALLS,
        GRANITE_20B,
        FUNCTION_TAG,
        INTERNLM,
        JSON,
    )
}
FORMAT_NAMES: Final[Mapping[str, ToolFormat]] = {
    **FORMATS,
    **{alias: form for form in FORMATS.values() for alias in form.aliases},
}
