"""What a client gives to the template beside its messages: it is there, and it is bounded."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequest
from octavo.text.chat import ChatTemplate
from octavo.types import ChatMessage, ChatOptions


def test_values_of_a_client_reach_the_template():
    template = ChatTemplate("{{ enable_thinking }} {{ tree.leaf[0] }}")
    options = ChatOptions(template_kwargs={"enable_thinking": False, "tree": {"leaf": ["x"]}})
    assert template.render([ChatMessage("user", "x")], options).text == "False x"


def nested(depth):
    value = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize(
    "given,said",
    [
        ({"messages": []}, "'messages', which the server"),
        ({"bos_token": "x"}, "'bos_token', which the server"),
        ({f"k{i}": 1 for i in range(65)}, "65 entries; allowed: 64"),
        ({"a": "x" * 70_000}, "characters as JSON; allowed: 65,536"),
        ({"a": nested(16)}, "deeper than 16"),
        ({"a": nested(100_000)}, "deeper than 16"),
        ({"a": float("nan")}, "not JSON"),
        ({"a": object()}, "not JSON"),
    ],
)
def test_values_of_a_client_are_bounded(given, said):
    with pytest.raises(InvalidRequest, match=said) as caught:
        ChatTemplate("x").render([ChatMessage("user", "x")], ChatOptions(template_kwargs=given))
    assert caught.value.param == "chat_template_kwargs"
