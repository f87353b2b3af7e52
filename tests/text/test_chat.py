"""Chat templates render as transformers renders them, in a sandbox that a hostile template cannot leave."""

from __future__ import annotations

import re

import pytest

from octavo.engine.outputs import ChatMessage
from octavo.errors import InvalidRequest
from octavo.text.chat import OUTPUT_CHARS_MAX, ChatTemplate
from octavo.types import ChatOptions

# The formats of three well-known families.
CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by "
    "Hugging Face<|im_end|>\n' }}"
    "{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
HEADERS = """{{ bos_token }}
{%- for message in messages %}
    {%- if message.role not in ['system', 'user', 'assistant'] %}
        {{- raise_exception('unknown role ' ~ message.role) }}
    {%- endif %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}
    {{- message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""
TURNS = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}
{{ raise_exception('System role not supported') }}
{% endif %}
{% for message in messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {% endif %}
    {% set role = 'model' if message['role'] == 'assistant' else message['role'] %}
{{ '<start_of_turn>' + role + '
' + message['content'] | trim + '<end_of_turn>
' }}
{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model
'}}{% endif %}
"""
FEATURES = """{% for message in messages %}{% if loop.index > 2 %}{% break %}{% endif -%}
    {{ message | tojson }} {{ {'b': 1, 'a': '<é>'} | tojson(indent=2) }}
{% generation %}{{ message.content }}{% endgeneration %}
{% endfor %}"""

SINGLE = [ChatMessage("user", "  Hi {{ 7 * 7 }} <b>\n")]
LONGER = [ChatMessage("user", "a"), ChatMessage("assistant", "b\n"), ChatMessage("user", "c 世界")]


@pytest.mark.full
@pytest.mark.parametrize("template", [CHATML, HEADERS, TURNS, FEATURES])
@pytest.mark.parametrize("messages", [SINGLE, LONGER])
@pytest.mark.parametrize("generation", [True, False])
def test_rendering_equals_transformers(template, messages, generation):
    from transformers.utils.chat_template_utils import render_jinja_template

    plain = [{"role": message.role, "content": message.content} for message in messages]
    expected, _ = render_jinja_template(
        conversations=[plain],
        chat_template=template,
        add_generation_prompt=generation,
        bos_token="<s>",
        eos_token="</s>",
    )
    assert ChatTemplate(template, "<s>", "</s>").render(messages, ChatOptions(generation)).text == expected[0]


@pytest.mark.parametrize(
    "template,messages,said",
    [
        (TURNS, [ChatMessage("system", "x")], "System role not supported"),
        (TURNS, [ChatMessage("assistant", "x")], "must alternate"),
        (HEADERS, [ChatMessage("wizard", "x")], "unknown role wizard"),
    ],
)
def test_what_a_template_refuses_is_reported_in_its_own_words(template, messages, said):
    with pytest.raises(InvalidRequest, match=said) as caught:
        ChatTemplate(template).render(messages)
    assert caught.value.param == "messages"


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ messages[0].update({'role': 'x'}) }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{% for i in range(10000000) %}x{% endfor %}",
        "{{ 1 / 0 }}",
        "{{ nothing.at.all }}",
        "{{ messages[5].content }}",
        "{% if %}",
        "{% include 'other' %}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ 'a' + 1 }}",
    ],
)
def test_a_hostile_or_broken_template_is_an_invalid_request(template):
    with pytest.raises(InvalidRequest, match="chat template"):
        ChatTemplate(template).render(SINGLE)


def test_output_is_capped():
    with pytest.raises(InvalidRequest, match=re.escape(f"{OUTPUT_CHARS_MAX:,}")):
        ChatTemplate("{% for i in range(90000) %}{{ messages[0].content }}{% endfor %}").render(
            [ChatMessage("user", "x" * 1000)]
        )


def test_a_name_is_passed_only_when_there_is_one():
    template = ChatTemplate("{% for m in messages %}{{ m.name if 'name' in m else '-' }}{% endfor %}")
    assert template.render([ChatMessage("user", "x"), ChatMessage("user", "x", "Ann")]).text == "-Ann"


def test_a_template_that_is_too_long_is_not_compiled():
    with pytest.raises(InvalidRequest, match=r"1,048,577 characters; allowed: 1,048,576"):
        ChatTemplate("x" * ((1 << 20) + 1)).render(SINGLE)
