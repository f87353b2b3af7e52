"""A request's tools and tool choice: values read from JSON, checked and bounded. Source of the shapes:
OpenAI's chat completions."""

from __future__ import annotations

import enum
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import InvalidRequest, as_items, require_range, shown
from octavo.grammar import check_depth

TOOLS_MAX = 512
TOOLS_JSON_CHARS_MAX = 1024 * 1024
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
NO_PARAMETERS: Mapping[str, object] = {"type": "object", "properties": {}}


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that the model may call. `given` is the client's own JSON, for a template."""

    name: str
    description: str
    parameters: Mapping[str, object]  # a JSON schema of an object
    is_strict: bool  # its arguments must follow the whole schema, or the request is refused
    given: Mapping[str, object]


class ToolMode(enum.StrEnum):
    """Whether the answer may, or must, be calls."""

    NONE = "none"
    AUTO = "auto"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools and the tool choice of one request."""

    tools: tuple[Tool, ...]  # the template lists all of them
    mode: ToolMode
    names: tuple[str, ...]  # of the callable ones
    is_parallel: bool = True  # more than one call in an answer

    @property
    def callable_tools(self) -> tuple[Tool, ...]:
        """The callable tools."""
        return tuple(tool for tool in self.tools if tool.name in self.names)


def tool_use(tools: object, choice: object, parallel: bool | None) -> ToolUse | None:
    """From the fields of a request; None if it has no tools. Raises InvalidRequest."""
    offered = tools_of(tools)
    if not offered:
        if choice not in (None, "none", "auto"):
            raise InvalidRequest(
                f"tool_choice is {shown(choice)}, and there are no tools; allowed: none, auto",
                param="tool_choice",
            )
        return None
    mode, names, is_one = _choice_of(choice, tuple(tool.name for tool in offered))
    return ToolUse(offered, mode, names, parallel is not False and not is_one)


def tools_of(given: object) -> tuple[Tool, ...]:
    """The offered functions. Raises InvalidRequest."""
    if given is None:
        return ()
    items = as_items("tools", given, "a list of functions", TOOLS_MAX, of="number of tools")
    tools = tuple(_tool(item, f"tools[{index}]") for index, item in enumerate(items))
    names = Counter(tool.name for tool in tools)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise InvalidRequest(f"tools has two functions named {twice}; allowed: one", param="tools")
    check_depth([tool.given for tool in tools], "tools")
    try:
        size = len(json.dumps([tool.given for tool in tools], allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"tools is no JSON: {error}", param="tools") from None
    require_range("length of tools as JSON", size, 0, TOOLS_JSON_CHARS_MAX, param="tools")
    return tools


def _tool(given: object, where: str) -> Tool:
    function = given.get("function") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or given.get("type") != "function" or not isinstance(function, Mapping):
        raise _wrong(where, given, '{"type": "function", "function": {"name": ..., "parameters": ...}}')
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
        raise _wrong(f"{where}.function.name", name, "1 to 128 letters, digits, _ and -")
    description, is_strict = function.get("description"), function.get("strict")
    if description is not None and not isinstance(description, str):
        raise _wrong(f"{where}.function.description", description, "a string")
    if is_strict not in (None, True, False):
        raise _wrong(f"{where}.function.strict", is_strict, "true or false")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise _wrong(f"{where}.function.parameters", parameters, "a JSON schema, which is an object")
    return Tool(name, description or "", parameters or NO_PARAMETERS, is_strict is True, given)


def _choice_of(given: object, offered: tuple[str, ...]) -> tuple[ToolMode, tuple[str, ...], bool]:
    """The mode, the callable functions, and whether it is one call."""
    if given is None:
        return ToolMode.AUTO, offered, False
    if isinstance(given, str) and given in list(ToolMode):
        return ToolMode(given), offered, False
    if isinstance(given, Mapping) and given.get("type") == "function":
        return ToolMode.REQUIRED, (_offered_name(given, offered),), True
    if isinstance(given, Mapping) and given.get("type") == "allowed_tools":
        allowed = given.get("allowed_tools")
        if isinstance(allowed, Mapping) and allowed.get("mode") in ("auto", "required"):
            listed = as_items("tool_choice", allowed.get("tools"), "functions", TOOLS_MAX, of="its functions")
            names = tuple(_offered_name(item, offered) for item in listed)
            if names:
                return ToolMode(allowed["mode"]), names, False
    raise _wrong(
        "tool_choice",
        given,
        'none, auto, required, {"type": "function", "function": {"name": ...}} or {"type": "allowed_tools"}',
        param="tool_choice",
    )


def _offered_name(given: object, offered: tuple[str, ...]) -> str:
    function = given.get("function") if isinstance(given, Mapping) else None
    name = function.get("name") if isinstance(function, Mapping) else None
    if name not in offered:
        raise _wrong("tool_choice's function", name, ", ".join(offered), param="tool_choice")
    return str(name)


def _wrong(what: str, given: object, allowed: str, param: str = "tools") -> InvalidRequest:
    return InvalidRequest(f"{what} is {shown(given)}; allowed: {allowed}", param=param)
