"""Anthropic's `tools` and `tool_choice` as OpenAI's, which the chat path reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal

from octavo.errors import InvalidRequest, as_items, shown, unsupported, wrong_value
from octavo.server.errors import JsonObject
from octavo.server.field_list import Body, done, field_list
from octavo.tools.definitions import TOOL_NAME, TOOLS_MAX

_MODES: Final[Mapping[str, str]] = {"auto": "auto", "any": "required", "none": "none"}


class AnthropicTool(Body):
    """`tools[]`."""

    type: Literal["custom"] | None = done("custom")
    name: str = done("1 to 128 letters, digits, _ and -", default=...)
    description: str | None = done()
    input_schema: dict[str, object] = done("a JSON schema; lenient unless strict is true", default=...)
    strict: bool | None = done("keywords of the schema that cannot be enforced are refused")


def openai_tools(given: object) -> list[JsonObject]:
    """The offered functions. Raises InvalidRequest. The chat path checks names and schemas."""
    if given is None:
        return []
    items = as_items("tools", given, "a list of tools", TOOLS_MAX, of="number of tools")
    return [_tool(item, f"tools[{index}]") for index, item in enumerate(items)]


def choice_fields(given: object, tools: Sequence[JsonObject]) -> JsonObject:
    """tool_choice and parallel_tool_calls. Raises InvalidRequest."""
    if given is None:
        return {}
    kind = given.get("type") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or kind not in (*_MODES, "tool"):
        raise wrong_value("tool_choice", given, 'an object whose type is "auto", "any", "tool" or "none"')
    is_serial = given.get("disable_parallel_tool_use")
    if is_serial not in (None, False, True):
        raise wrong_value("tool_choice.disable_parallel_tool_use", is_serial, "true or false")
    if not tools and kind in ("any", "tool"):
        raise InvalidRequest(
            f"tool_choice.type is {shown(kind)}, and there are no tools; allowed: auto, none",
            param="tool_choice",
        )
    choice: object = _MODES.get(str(kind))
    if kind == "tool":
        names = [_function_of(tool)["name"] for tool in tools]
        if given.get("name") not in names:
            raise wrong_value("tool_choice.name", given.get("name"), ", ".join(map(str, names)))
        choice = {"type": "function", "function": {"name": given["name"]}}
    return {"tool_choice": choice, "parallel_tool_calls": None if is_serial is None else not is_serial}


def _tool(given: object, where: str) -> JsonObject:
    if not isinstance(given, Mapping):
        raise wrong_value(where, given, "an object with name and input_schema")
    kind = given.get("type")
    if kind not in (None, "custom"):
        raise unsupported(
            f"{where}.type is {shown(kind)}, which is not supported by this server; allowed: custom, a tool "
            "that the client runs and whose input_schema it gives",
            "tools",
        )
    field_list(AnthropicTool).check(given, f"{where}.")
    name, schema = given.get("name"), given.get("input_schema")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise wrong_value(f"{where}.name", name, "1 to 128 letters, digits, _ and -")
    if not isinstance(schema, Mapping):
        raise wrong_value(f"{where}.input_schema", schema, "a JSON schema, which is an object")
    description, is_strict = given.get("description"), given.get("strict")
    if not isinstance(description, str | None):
        raise wrong_value(f"{where}.description", description, "a string")
    if is_strict not in (None, False, True):
        raise wrong_value(f"{where}.strict", is_strict, "true or false")
    function: JsonObject = {"name": name}
    if description is not None:
        function["description"] = description
    function["parameters"] = schema
    return {"type": "function", "function": function | ({"strict": True} if is_strict else {})}


def _function_of(tool: JsonObject) -> JsonObject:
    function = tool["function"]
    assert isinstance(function, dict)
    return function
