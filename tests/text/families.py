# ruff: noqa: E501
"""Chat templates in the manner of public models, short ones, written from their published formats: what each
family writes of an assistant's turn, and what its template loses of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from octavo.errors import InvalidRequest
from octavo.text.template_worker import sandbox
from octavo.text.turn_format import Render


@dataclass(frozen=True, slots=True)
class Family:
    """One template. `loses`: words of what does not come back: text, thinking, calls (with text, a second)."""

    name: str
    calls: str | None
    thinking: str | None
    template: str
    end: str  # the end of a turn
    loses: tuple[str, ...] = ()


CALLS_IN_A_ROW = "{% for c in m.tool_calls or [] %}{% if not loop.first %}SEP{% endif %}CALL{% endfor %}"
JSON_CALL = '{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}'
PARAMETERS_CALL = JSON_CALL.replace('"arguments"', '"parameters"')
VALUE = "{{ v if v is string else v | tojson }}"


def _chatml(calls: str, *, thinks: str = "", tools: str = "", text: str = "{{ m.content or '' }}") -> str:
    """ChatML with calls, and thinking where `thinks` names its field."""
    thinking = (
        f"{{% if m.{thinks} %}}<think>\n{{{{ m.{thinks} }}}}\n</think>\n\n{{% endif %}}" if thinks else ""
    )
    return (
        "{% if tools %}<|im_start|>system\n{% for t in tools %}{{ t | tojson }}\n{% endfor %}"
        + tools
        + "<|im_end|>\n{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
        + thinking
        + text
        + calls
        + "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )


def _each(call: str, between: str = "\n", before: str = "", after: str = "") -> str:
    """All calls of a message."""
    row = CALLS_IN_A_ROW.replace("SEP", between).replace("CALL", call)
    return "{% if m.tool_calls %}" + before + row + after + "{% endif %}" if before or after else row


XML_CALL = (
    "<tool_call>\n<function={{ c.function.name }}>\n{% for k, v in c.function.arguments | items %}"
    "<parameter={{ k }}>\n" + VALUE + "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
)
GLM_CALL = (
    "<tool_call>{{ c.function.name }}\n{% for k, v in c.function.arguments | items %}<arg_key>{{ k }}</arg_key>\n"
    "<arg_value>" + VALUE + "</arg_value>\n{% endfor %}</tool_call>"
)
INVOKE_CALL = (
    '<invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments | items %}<parameter name="{{ k }}">'
    + VALUE
    + "</parameter>\n{% endfor %}</invoke>\n"
)
DSML_CALL = (
    '<｜DSML｜invoke name="{{ c.function.name }}">\n{% for k, v in c.function.arguments | items %}'
    '<｜DSML｜parameter name="{{ k }}" string="{{ "true" if v is string else "false" }}">'
    + VALUE
    + "</｜DSML｜parameter>\n{% endfor %}</｜DSML｜invoke>\n"
)
PYTHON_CALL = (
    "{{ c.function.name }}({% for k, v in c.function.arguments | items %}{% if not loop.first %}, {% endif %}"
    "{{ k }}={{ v | tojson }}{% endfor %})"
)
LLAMA = (
    "{% if tools %}<|start_header_id|>system<|end_header_id|>\n\n{{ tools | tojson }}<|eot_id|>{% endif %}"
    "{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\nTURN<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ONE_CALL = (
    "{% if m.tool_calls %}{% if m.tool_calls | length > 1 %}{{ raise_exception('one call at once') }}{% endif %}"
    "{% set c = m.tool_calls[0] %}CALL{% else %}{{ m.content or '' }}{% endif %}"
)
MISTRAL = (
    "{% for m in messages %}{% if m.role == 'user' %}{% if tools and loop.last %}[AVAILABLE_TOOLS]{{ tools | tojson }}"
    "[/AVAILABLE_TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{% else %}TURN</s>{% endif %}{% endfor %}"
)
MISTRAL_TOOLS = MISTRAL.replace("{% if tools and loop.last %}", "{% if tools and loop.first %}")
DEEPSEEK = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{% if m.role == 'user' %}<｜User｜>"
    "{{ m.content }}{% else %}<｜Assistant｜>TURN<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜>{% endif %}"
)
GRANITE = (
    "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson(indent=4) }}<|end_of_text|>\n"
    "{% endif %}{% if thinking %}Write your thoughts between <think></think> and your answer between "
    "<response></response>.{% endif %}{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>"
    "{{ m.content or '' }}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|># Valid channels: analysis, commentary, final.<|end|>"
    "{% if tools %}<|start|>developer<|message|>{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role != 'assistant' %}<|start|>{{ m.role }}<|message|>{{ m.content }}<|end|>"
    "{% elif m.tool_calls %}{% if m.content and m.thinking %}{{ raise_exception('not both') }}{% endif %}"
    "{% if m.thinking or m.content %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking or m.content }}"
    "<|end|>{% endif %}{% set c = m.tool_calls[0].function %}<|start|>assistant to=functions.{{ c.name }}<|channel|>"
    "commentary json<|message|>{{ c.arguments | tojson }}<|call|>"
    "{% else %}{% if m.thinking %}<|start|>assistant<|channel|>analysis<|message|>{{ m.thinking }}<|end|>{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}<|return|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
COMMAND = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|START_OF_TURN_TOKEN|>{% if m.role == 'user' %}"
    "<|USER_TOKEN|>{{ m.content }}{% else %}<|CHATBOT_TOKEN|>{% if m.reasoning %}<|START_THINKING|>{{ m.reasoning }}"
    "<|END_THINKING|>{% endif %}{% if m.tool_calls %}<|START_ACTION|>[\n{% for c in m.tool_calls %}    "
    '{"tool_call_id": "{{ loop.index0 }}", "tool_name": "{{ c.function.name }}", "parameters": '
    "{{ c.function.arguments | tojson }}}{{ '' if loop.last else ',' }}{{ '\\n' }}{% endfor %}]<|END_ACTION|>"
    "{% elif m.content %}<|START_RESPONSE|>{{ m.content }}<|END_RESPONSE|>{% endif %}{% endif %}<|END_OF_TURN_TOKEN|>"
    "{% endfor %}{% if add_generation_prompt %}<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>{% endif %}"
)
PARTS = (
    "{% if m.content is string %}{{ m.content }}{% else %}{% for b in m.content %}{% if b.type == 'thinking' %}"
    "[THINK]{{ b.thinking }}[/THINK]{% else %}{{ b.text }}{% endif %}{% endfor %}{% endif %}"
)
PHI = (
    "{% for m in messages %}{% if m.role == 'system' and m.tools %}<|system|>{{ m.content }}<|tool|>{{ m.tools }}"
    "<|/tool|><|end|>{% else %}<|{{ m.role }}|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GEMMA = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{{ m.content }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>assistant\n{% endif %}"
)

FAMILIES = [
    Family("gpt-oss", "openai", "openai_gptoss", HARMONY, "<|return|>", ("a second call", "text with calls")),
    Family(
        "Qwen2.5, Hermes",
        "hermes",
        None,
        _chatml("\n" + _each(f"<tool_call>\n{JSON_CALL}\n</tool_call>")),
        "<|im_end|>",
        ("thinking",),
    ),
    Family(
        "Qwen3, SmolLM3",
        "hermes",
        "think",
        _chatml(_each(f"<tool_call>\n{JSON_CALL}\n</tool_call>"), thinks="reasoning_content"),
        "<|im_end|>",
    ),
    Family(
        "Granite 4",
        "hermes",
        None,
        _chatml(_each(f"<tool_call>\n{JSON_CALL}\n</tool_call>"))
        .replace("<|im_start|>", "<|start_of_role|>")
        .replace("<|im_end|>", "<|end_of_text|>"),
        "<|end_of_text|>",
        ("thinking",),
    ),
    Family(
        "Qwen3-Coder, Nemotron 3",
        "qwen3_coder",
        "think",
        _chatml(_each(XML_CALL), thinks="reasoning_content"),
        "<|im_end|>",
    ),
    Family(
        "OLMo 3",
        "olmo3",
        None,
        _chatml(_each(PYTHON_CALL, "\n", "<function_calls>", "</function_calls>")),
        "<|im_end|>",
        ("thinking",),
    ),
    Family(
        "Llama 3.1, 3.2, 3.3",
        "llama3_json",
        None,
        LLAMA.replace("TURN", ONE_CALL.replace("CALL", PARAMETERS_CALL)),
        "<|eot_id|>",
        ("thinking", "a second call", "text with calls"),
    ),
    Family(
        "Llama 3, type first, python tag",
        "llama3_json",
        None,
        LLAMA.replace(
            "TURN",
            ONE_CALL.replace(
                "CALL", "<|python_tag|>" + PARAMETERS_CALL.replace('{"name"', '{"type": "function", "name"')
            ),
        ),
        "<|eot_id|>",
        ("thinking", "a second call", "text with calls"),
    ),
    Family(
        "Llama 3, pretty-printed",
        "llama3_json",
        None,
        LLAMA.replace(
            "TURN",
            ONE_CALL.replace(
                "CALL",
                '{\n  "name": "{{ c.function.name }}",\n  "parameters": {{ c.function.arguments | tojson(indent=4) }}\n}',
            ),
        ),
        "<|eot_id|>",
        ("thinking", "a second call", "text with calls"),
    ),
    Family(
        "Llama 4",
        "llama3_json",
        None,
        LLAMA.replace(
            "TURN",
            "{{ m.content or '' }}" + _each(PARAMETERS_CALL, "", "<|python_start|><|python_end|>", " "),
        ).replace("_id|>", "|>"),
        "<|eot|>",
        ("thinking", "text with calls"),
    ),
    Family(
        "Llama 4, calls in Python",
        "pythonic",
        None,
        LLAMA.replace(
            "TURN",
            "{% if m.tool_calls %}"
            + _each(PYTHON_CALL, ", ", "[", "]")
            + "{% else %}{{ m.content }}{% endif %}",
        ),
        "<|eot_id|>",
        ("thinking", "text with calls"),
    ),
    Family(
        "Mistral 7B, Nemo",
        "mistral",
        None,
        MISTRAL_TOOLS.replace(
            "TURN",
            "{% if m.tool_calls %}"
            + _each(JSON_CALL[:-1] + ', "id": "{{ c.id }}"}', ", ", "[TOOL_CALLS] [", "]")
            + "{% else %}{{ m.content }}{% endif %}",
        ),
        "</s>",
        ("thinking", "text with calls"),
    ),
    Family(
        "Mistral Small 3.2",
        "mistral_args",
        None,
        MISTRAL_TOOLS.replace(
            "TURN",
            "{{ m.content or '' }}"
            + _each(
                "[TOOL_CALLS]{{ c.function.name }}[CALL_ID]{{ c.id }}[ARGS]{{ c.function.arguments | tojson }}",
                "",
            ),
        ),
        "</s>",
        ("thinking",),
    ),
    Family(
        "Ministral 3, Magistral",
        "mistral_args",
        "mistral",
        MISTRAL_TOOLS.replace(
            "TURN",
            PARTS + _each("[TOOL_CALLS]{{ c.function.name }}[ARGS]{{ c.function.arguments | tojson }}", ""),
        ),
        "</s>",
    ),
    Family("Granite 3", "granite", "granite33", GRANITE, "<|end_of_text|>", ("calls", "thinking")),
    Family(
        "DeepSeek R1, V3",
        "deepseek_v3",
        "think",
        DEEPSEEK.replace(
            "TURN",
            "{% set t = m.content or '' %}{% if '</think>' in t %}{% set t = t.split('</think>')[-1] %}{% endif %}{{ t }}"
            + _each(
                "<｜tool▁call▁begin｜>function<｜tool▁sep｜>{{ c.function.name }}\n```json\n{{ c.function.arguments }}\n```<｜tool▁call▁end｜>",
                "\n",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
            ),
        ).replace("<｜Assistant｜>{% endif %}", "<｜Assistant｜><think>\n{% endif %}"),
        "<｜end▁of▁sentence｜>",
        ("thinking",),
    ),
    Family(
        "DeepSeek V3.1",
        "deepseek_v31",
        "think",
        DEEPSEEK.replace(
            "TURN",
            "</think>{{ m.content or '' }}"
            + _each(
                "<｜tool▁call▁begin｜>{{ c.function.name }}<｜tool▁sep｜>{{ c.function.arguments | tojson }}<｜tool▁call▁end｜>",
                "",
                "<｜tool▁calls▁begin｜>",
                "<｜tool▁calls▁end｜>",
            ),
        ).replace(
            "<｜Assistant｜>{% endif %}",
            "<｜Assistant｜>{% if thinking %}<think>{% else %}</think>{% endif %}{% endif %}",
        ),
        "<｜end▁of▁sentence｜>",
        ("thinking",),
    ),
    Family(
        "DeepSeek V3.2",
        "deepseek_v32",
        "think",
        DEEPSEEK.replace(
            "TURN",
            "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content or '' }}"
            + _each(DSML_CALL, "", "\n\n<｜DSML｜function_calls>\n", "</｜DSML｜function_calls>"),
        ),
        "<｜end▁of▁sentence｜>",
    ),
    Family(
        "GLM-4.5",
        "glm45",
        "think",
        _chatml("\n" + _each(GLM_CALL), thinks="reasoning_content")
        .replace("<|im_start|>{{ m.role }}", "<|{{ m.role }}|>")
        .replace("<|im_start|>assistant", "<|assistant|>")
        .replace("<|im_end|>\n{% endfor %}", "{% endfor %}"),
        "<|user|>",
    ),
    Family(
        "GLM-4.7",
        "glm45",
        "think",
        _chatml(_each(GLM_CALL.replace("\n", ""), ""), thinks="reasoning_content"),
        "<|im_end|>",
    ),
    Family(
        "Kimi K2",
        "kimi_k2",
        "think",
        _chatml(
            _each(
                "<|tool_call_begin|>{{ c.id }}<|tool_call_argument_begin|>{{ c.function.arguments | tojson }}<|tool_call_end|>",
                "",
                "<|tool_calls_section_begin|>",
                "<|tool_calls_section_end|>",
            ),
            thinks="reasoning_content",
        ),
        "<|im_end|>",
    ),
    Family(
        "MiniMax M2",
        "minimax_m2",
        "think",
        _chatml(
            _each(INVOKE_CALL, "", "<minimax:tool_call>\n", "</minimax:tool_call>"),
            thinks="reasoning_content",
        ),
        "<|im_end|>",
    ),
    Family("Phi-4-mini", "phi4_mini_json", None, PHI, "<|end|>", ("calls", "thinking")),
    Family("Gemma 3", None, None, GEMMA, "<end_of_turn>", ("calls", "thinking")),
    Family(
        "Command R7B, Command A",
        "cohere_command3",
        "cohere_command3",
        COMMAND,
        "<|END_OF_TURN_TOKEN|>",
        ("text with calls",),
    ),
    Family(
        "Nemotron Nano v2",
        "nemotron_json",
        "think",
        _chatml(_each(JSON_CALL, ", ", "<TOOLCALL>[", "]</TOOLCALL>"), thinks="reasoning_content"),
        "<|im_end|>",
    ),
    Family(
        "LFM2", "lfm2", None, _chatml("", tools="<|tool_list_start|>"), "<|im_end|>", ("calls", "thinking")
    ),
    Family(
        "LFM2.5",
        "lfm2",
        "think",
        _chatml(_each(PYTHON_CALL, ", ", "<|tool_call_start|>[", "]<|tool_call_end|>"), thinks="thinking"),
        "<|im_end|>",
    ),
    Family(
        "Seed-OSS",
        "seed_oss",
        "seed_oss",
        _chatml(
            _each(
                XML_CALL.replace("tool_call>", "seed:tool_call>")
                .replace("{{ k }}>\n", "{{ k }}>")
                .replace("\n</parameter>", "</parameter>")
            ),
            thinks="reasoning_content",
        ).replace("think>", "seed:think>"),
        "<|im_end|>",
    ),
    Family(
        "Jamba, Hunyuan",
        "jamba",
        None,
        _chatml(_each(JSON_CALL, ", ", "<tool_calls>[", "]</tool_calls>")),
        "<|im_end|>",
        ("thinking",),
    ),
    Family(
        "xLAM",
        "json",
        None,
        _chatml(
            "{% if m.tool_calls %}"
            + _each(JSON_CALL, ", ", "[", "]")
            + "{% else %}{{ m.content }}{% endif %}",
            text="",
        ),
        "<|im_end|>",
        ("thinking", "text with calls"),
    ),
    Family(
        "InternLM 2.5",
        "internlm",
        None,
        _chatml(_each(PARAMETERS_CALL, "", "<|action_start|><|plugin|>", "<|action_end|>")),
        "<|im_end|>",
        ("thinking", "a second call"),
    ),
    Family(
        "Granite 20B",
        "granite-20b-fc",
        None,
        _chatml(_each("<function_call> " + JSON_CALL)),
        "<|im_end|>",
        ("thinking",),
    ),
    Family(
        "Functionary 3.1",
        "function_tag",
        None,
        _chatml(_each("<function={{ c.function.name }}>{{ c.function.arguments | tojson }}</function>", "")),
        "<|im_end|>",
        ("thinking",),
    ),
    Family(
        "GLM-4 9B",
        "glm4",
        None,
        _chatml(
            "{% if m.tool_calls %}"
            + _each("{{ c.function.name }}\n{{ c.function.arguments | tojson }}", "<|assistant|>")
            + "{% else %}{{ m.content }}{% endif %}",
            text="",
        ),
        "<|im_end|>",
        ("thinking", "text with calls", "a second call"),
    ),
]


def renders(template: str) -> Render:
    """What renders this template, in this process."""
    compiled = sandbox().from_string(template)

    def render(messages, tools, is_followed, given) -> str:  # type: ignore[no-untyped-def]
        try:
            return compiled.render(
                {
                    **given,
                    "messages": list(messages),
                    "tools": list(tools) or None,
                    "add_generation_prompt": is_followed,
                }
            )
        except Exception as error:
            raise InvalidRequest(f"the template refuses: {error}") from error

    return render


Rendered = Callable[[str], Render]
