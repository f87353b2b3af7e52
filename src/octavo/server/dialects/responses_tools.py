"""Tools of the Responses API, as functions of a chat: what each type becomes, and what its calls look like.

    function    itself
    custom      a function of one string, `input`; a call is a custom_tool_call
    namespace   its functions, offered as NAMESPACE__NAME; a call has both names
    others      hosted tools that agents always offer are left out, and listed in the answer's metadata

Source of the shapes: openai-python's `types/responses/tool_param.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pydantic_core

from octavo.errors import as_items, shown, unsupported, wrong_value
from octavo.server.errors import JsonObject
from octavo.tools.definitions import TOOLS_MAX

# Clients work without these: they have other tools for the purpose, or offer them to every model.
LEFT_OUT: Final = (
    *("web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11"),
    *("tool_search", "local_shell", "image_generation"),
)
LEFT_OUT_KEY: Final = "tools_left_out"  # in the answer's metadata
_FUNCTION_FIELDS: Final = ("name", "description", "parameters", "strict")
_BETWEEN_NAMES: Final = "__"
_INPUT: Final = "input"


@dataclass(frozen=True, slots=True)
class OfferedTools:
    """The tools of a request. Keys are the names of functions in the prompt."""

    functions: list[JsonObject] | None = None  # in the chat path's form; None: the field was not given
    echoed: list[JsonObject] = field(default_factory=list)  # as the answer repeats them
    custom: frozenset[str] = frozenset()
    namespaces: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # a namespace, and its own name
    left_out: tuple[str, ...] = ()  # types


def read_tools(given: object) -> OfferedTools:
    """The offered tools. Raises InvalidRequest for a type that is neither supported nor safe to leave out."""
    if given is None:
        return OfferedTools()
    items = as_items("tools", given, "a list of tools", TOOLS_MAX, of="number of tools")
    functions, echoed, left_out = list[JsonObject](), list[JsonObject](), list[str]()
    custom, namespaces = set[str](), dict[str, tuple[str, str]]()
    for index, item in enumerate(items):
        where = f"tools[{index}]"
        kind = item.get("type") if isinstance(item, Mapping) else None
        if not isinstance(item, Mapping) or not isinstance(kind, str):
            raise wrong_value(where, item, '{"type": "function", "name": ..., "parameters": ...}')
        match kind:
            case "function":
                functions.append(_function(item, where))
                echoed.append({"type": "function"} | {name: item.get(name) for name in _FUNCTION_FIELDS})
            case "custom":
                functions.append(_custom(item, where))
                custom.add(str(item["name"]))
                echoed.append({name: item.get(name) for name in ("type", "name", "description", "format")})
            case "namespace":
                for function, name in _of_namespace(item, where):
                    functions.append(function)
                    namespaces[joined_name(str(item["name"]), name)] = str(item["name"]), name
                echoed.append({name: item.get(name) for name in ("type", "name", "description", "tools")})
            case _ if kind in LEFT_OUT:
                left_out.append(kind)
            case _:
                raise unsupported(
                    f"{where} is of type {shown(kind)}, which is not supported by this server: hosted tools "
                    "are not run here; use functions",
                    "tools",
                )
    return OfferedTools(functions, echoed, frozenset(custom), namespaces, tuple(dict.fromkeys(left_out)))


def joined_name(namespace: str, name: str) -> str:
    """The name of a namespace's function in the prompt."""
    return f"{namespace}{_BETWEEN_NAMES}{name}"


def custom_input(arguments: str) -> str:
    """The text of a custom tool's call; of a truncated call, the part that was generated."""
    try:
        read = pydantic_core.from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = read.get(_INPUT, "") if isinstance(read, dict) else ""
    return text if isinstance(text, str) else arguments


def custom_arguments(text: str) -> JsonObject:
    """The arguments of the function that stands for a custom tool."""
    return {_INPUT: text}


def left_out_metadata(offered: OfferedTools, metadata: Mapping[str, object]) -> JsonObject:
    """The metadata of the answer: the client's, and the types of tools that were left out."""
    return {**metadata} | ({LEFT_OUT_KEY: ", ".join(offered.left_out)} if offered.left_out else {})


def _function(given: Mapping[str, object], where: str) -> JsonObject:
    for name, harmless in (("async", (None, False)), ("allowed_callers", (None, ["direct"]))):
        if given.get(name) not in harmless:
            raise unsupported(
                f"{where}.{name} is not supported by this server: the client alone runs functions",
                "tools",
            )
    return {
        "type": "function",
        "function": {name: given[name] for name in _FUNCTION_FIELDS if given.get(name) is not None},
    }


def _custom(given: Mapping[str, object], where: str) -> JsonObject:
    """A function of one string; its `format`, a grammar, is part of the description and not enforced."""
    name, description, form = given.get("name"), given.get("description"), given.get("format")
    if not isinstance(name, str):
        raise wrong_value(f"{where}.name", name, "a string")
    if not isinstance(description, str | None):
        raise wrong_value(f"{where}.description", description, "a string")
    if not isinstance(form, Mapping | None):
        raise wrong_value(f"{where}.format", form, '{"type": "text"}, or {"type": "grammar", ...}')
    definition = form.get("definition") if form is not None else None
    syntax = f"It must follow this {form.get('syntax')} grammar:\n{definition}" if form and definition else ""
    text: JsonObject = {"type": "string", "description": syntax or "What the tool is given."}
    parameters = {"type": "object", "properties": {_INPUT: text}, "required": [_INPUT]}
    function: JsonObject = {
        "name": name,
        "parameters": parameters | {"additionalProperties": False},
    }
    return {"type": "function", "function": function | ({"description": description} if description else {})}


def _of_namespace(given: Mapping[str, object], where: str) -> Sequence[tuple[JsonObject, str]]:
    """The namespace's functions, and their own names."""
    name, tools = given.get("name"), given.get("tools")
    if not isinstance(name, str) or not name:
        raise wrong_value(f"{where}.name", name, "a string that is not empty")
    found = []
    items = as_items(f"{where}.tools", tools, "a list of functions", TOOLS_MAX, of="number of its tools")
    for index, item in enumerate(items):
        inner = f"{where}.tools[{index}]"
        if (
            not isinstance(item, Mapping)
            or item.get("type") != "function"
            or not isinstance(item.get("name"), str)
        ):
            raise wrong_value(inner, item, '{"type": "function", "name": ..., "parameters": ...}')
        function = _function({**item, "name": joined_name(name, str(item["name"]))}, inner)
        found.append((function, str(item["name"])))
    return found
