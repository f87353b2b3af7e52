"""What a client offers and wants: read, or refused with what is allowed."""

from __future__ import annotations

import pytest

from octavo.errors import InvalidRequest
from octavo.tools.definitions import TOOLS_MAX, ToolMode, tool_use

WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
NOW = {"type": "function", "function": {"name": "now"}}


def function(**fields: object) -> dict[str, object]:
    return {"type": "function", "function": {"name": "f", **fields}}


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {"minProperties": 9}
    for _ in range(levels):
        schema = {"items": schema}
    return schema


@pytest.mark.parametrize(
    ("choice", "mode", "names", "is_parallel"),
    [
        (None, ToolMode.AUTO, ("get_weather", "now"), True),
        ("auto", ToolMode.AUTO, ("get_weather", "now"), True),
        ("none", ToolMode.NONE, ("get_weather", "now"), True),
        ("required", ToolMode.REQUIRED, ("get_weather", "now"), True),
        ({"type": "function", "function": {"name": "now"}}, ToolMode.REQUIRED, ("now",), False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}},
            ToolMode.AUTO,
            ("now",),
            True,
        ),
    ],
)
def test_every_choice(choice: object, mode: ToolMode, names: tuple[str, ...], is_parallel: bool) -> None:
    use = tool_use([WEATHER, NOW], choice, None)
    assert use is not None
    assert (use.mode, use.names, use.is_parallel) == (mode, names, is_parallel)
    assert [tool.name for tool in use.tools] == ["get_weather", "now"]
    assert [tool.name for tool in use.callable_tools] == list(names)


def test_one_call_where_parallel_ones_are_not_wanted_and_nothing_without_tools() -> None:
    use = tool_use([NOW], "required", False)
    assert use is not None
    assert not use.is_parallel
    assert tool_use(None, None, None) is tool_use([], "auto", True) is tool_use(None, "none", None) is None


@pytest.mark.parametrize(
    ("tools", "choice", "param", "says"),
    [
        (None, "required", "tool_choice", "there are no tools"),
        ("f", None, "tools", "a list of functions"),
        ([{"type": "custom"}], None, "tools", "tools[0]"),
        ([NOW, {"type": "function"}], None, "tools", "tools[1]"),
        ([function(name="a b")], None, "tools", "1 to 128 letters"),
        ([function(name="x" * 129)], None, "tools", "1 to 128 letters"),
        ([function(description=1)], None, "tools", "description"),
        ([function(strict="yes")], None, "tools", "true or false"),
        ([function(parameters=[])], None, "tools", "a JSON schema"),
        ([NOW, NOW], None, "tools", "two functions named now"),
        ([NOW] * (TOOLS_MAX + 1), None, "tools", "512"),
        ([function(description="x" * 1_050_000)], None, "tools", "length of tools"),
        ([function(parameters=deep(200))], None, "tools", "nested deeper than 128 levels"),
        ([function(parameters={"enum": [[]] * 2**19})], None, "tools", "more than 524,288 values"),
        ([NOW], "maybe", "tool_choice", "allowed: none, auto, required"),
        ([NOW], {"type": "function", "function": {"name": "f"}}, "tool_choice", "allowed: now"),
        ([NOW], {"type": "allowed_tools", "allowed_tools": {"mode": "x"}}, "tool_choice", "allowed"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(
    tools: object, choice: object, param: str, says: str
) -> None:
    with pytest.raises(InvalidRequest) as raised:
        tool_use(tools, choice, None)
    assert raised.value.param == param
    assert says in str(raised.value)
