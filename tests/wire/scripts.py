"""What the scripted model says, by name, and the words and the template of its tokenizer."""

from __future__ import annotations

from typing import Final

_CALL: Final = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
_TIME: Final = '<tool_call>\n{"name": "time", "arguments": {"zone": "CET"}}\n</tool_call>'

SCRIPTS: Final = {
    "hello": "Hello world!",
    "more": "The answer is forty-two.",
    "count": "one, two, three, four, five",
    "accents": "Grüße 漢字 🙂.",
    "think": "<think>\nThe answer is small.\n</think>\n\nHello world!",
    "endless-thought": "<think>\nThe answer is the answer is the answer is the answer.\n</think>\n\nHello!",
    "call": _CALL,
    "text-and-call": f"The answer is here.\n{_CALL}",
    "two-calls": f"{_CALL}\n{_TIME}",
    "thought-and-call": f"<think>\nThe answer is a call.\n</think>\n\n{_CALL}",
    "thought-and-object": '<think>\nThe answer.\n</think>\n\n{"city": "Rome", "size": 3}',
    "cut-call": '<tool_call>\n{"name": "weather", "arguments": {"city": "Ro',
    "object": '{"city": "Rome", "size": 3}',
    "any-object": '{"answer": "Hello", "list": [1, 2]}',
    "number": "1729",
    "yes": "yes",
    "broken": "Hello",
    "long": "the answer is " * 60,
}

WORDS: Final = (
    *("Hello", " world", "The", " answer", " is", " forty", "one", " two", " three", " four", " five"),
    *("the", " the", " small", " call", " here", "name", "weather", "arguments", "city", "Rome", "time"),
    *("zone", '{"', '":', ' "', '"}', '",', " {", "\n\n", "assistant", "user", "system", "SAY"),
)

# ChatML, as Qwen's models write it.
TEMPLATE: Final = (
    "{%- if tools %}<|im_start|>system\n"
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}\n{% endif %}"
    "Tools:{% for tool in tools %} {{ tool.function.name }}{% endfor %}. "
    "Write <tool_call>.<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n"
    "{% endif %}"
    "{%- for m in messages %}"
    "{% if m.role == 'tool' %}<|im_start|>user\n<tool_response>{{ m.content }}</tool_response><|im_end|>\n"
    "{% elif m.role == 'assistant' %}<|im_start|>assistant\n{{ m.content }}"
    "{% for call in m.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}'
    "\n</tool_call>{% endfor %}<|im_end|>\n"
    "{% elif m.role != 'system' or not loop.first %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
    "{% endif %}"
)
