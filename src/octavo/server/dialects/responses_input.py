"""The `input` of a request for a response, as items: checked, reduced to text, in the shape that is stored.
The caller resolves item_references. Source of the shapes: openai-python's
`types/responses/response_input_param.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from octavo.errors import InvalidRequest, shown, unsupported, wrong_value
from octavo.server.dialects.common import media_placeholder, require_string
from octavo.server.dialects.responses_items import CALLS, OUTPUTS, response_of
from octavo.server.errors import JsonObject
from octavo.server.prompts import too_long

CALL_ID_CHARS_MAX = 256
PARTS_MAX = 1024  # of one message
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_TEXT_PARTS: Final = {"input_text": "text", "output_text": "text", "refusal": "refusal"}
_MEDIA_PARTS: Final = ("input_image", "input_file", "input_audio")
_INPUT_ROLES: Final = ("user", "system", "developer")

LookUp = Callable[[str, str], JsonObject]  # from id and place of the reference; raises InvalidRequest


def read_input(raw: object, look_up: LookUp, context_length: int) -> list[JsonObject]:
    """The items of an input, without ids. Raises InvalidRequest that names the item."""
    if isinstance(raw, str):
        return [_message("user", [{"type": "input_text", "text": raw}])]
    if not isinstance(raw, list) or not raw:
        raise wrong_value("input", raw, "text, or a list of at least one item")
    if len(raw) > context_length:  # each takes at least one token
        raise too_long(f"input has {len(raw):,} items", "input", context_length)
    return [_item(item, f"input[{index}]", look_up) for index, item in enumerate(raw)]


def check_outputs(items: Sequence[JsonObject]) -> None:
    """Raise InvalidRequest for an output that no call precedes."""
    call_ids = set[object]()
    for item in items:
        if item["type"] in CALLS:
            call_ids.add(item["call_id"])
        elif item["type"] in OUTPUTS and item["call_id"] not in call_ids:
            raise InvalidRequest(
                f"there is no function_call with the call_id {shown(item['call_id'])} before its output; "
                "allowed: outputs of calls in this input, or in the response that previous_response_id names",
                param="input",
            )


def _item(given: object, where: str, look_up: LookUp) -> JsonObject:
    if not isinstance(given, dict):
        raise wrong_value(where, given, "an object")
    kind = given.get("type")
    if kind is None and "role" not in given and "id" in given:
        kind = "item_reference"  # whose type is optional
    match "message" if kind is None and "role" in given else kind:
        case "message":
            return _any_message(given, where)
        case "function_call":
            return _call(given, where)
        case "custom_tool_call":
            return _custom_call(given, where)
        case "function_call_output" | "custom_tool_call_output":
            return _output(given, where, str(kind))
        case "reasoning":
            return _reasoning(given, where)
        case "item_reference":
            return look_up(require_string(given, "id", where), where)
    allowed = (
        "message, function_call, function_call_output, custom_tool_call, custom_tool_call_output, reasoning, "
        "item_reference"
    )
    raise wrong_value(f"{where}.type", kind, allowed)


def _any_message(given: JsonObject, where: str) -> JsonObject:
    role = given.get("role")
    if role == "assistant":
        text = _text(given.get("content"), f"{where}.content")
        return _message("assistant", [{"type": "output_text", "text": text, "annotations": []}])
    if role not in _INPUT_ROLES:
        raise wrong_value(f"{where}.role", role, f"{', '.join(_INPUT_ROLES)}, assistant")
    text = _text(given.get("content"), f"{where}.content")
    return _message(str(role), [{"type": "input_text", "text": text}])


def _message(role: str, content: list[JsonObject]) -> JsonObject:
    return {"type": "message", "status": "completed", "role": role, "content": content}


def _call(given: JsonObject, where: str) -> JsonObject:
    name = _name(given, where)
    namespace = given.get("namespace")
    if namespace is not None and (not isinstance(namespace, str) or not _NAME.fullmatch(namespace)):
        raise wrong_value(f"{where}.namespace", namespace, "1 to 128 letters, digits, _, . and -")
    arguments = given.get("arguments")
    if not isinstance(arguments, str):
        raise wrong_value(f"{where}.arguments", arguments, "a string of JSON")
    call_id = _call_id(given, where)
    item: JsonObject = {
        "type": "function_call",
        "status": "completed",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }
    return item | ({"namespace": namespace} if namespace else {})


def _name(given: JsonObject, where: str) -> str:
    name = require_string(given, "name", where)
    if not _NAME.fullmatch(name):
        raise wrong_value(f"{where}.name", name, "1 to 128 letters, digits, _, . and -")
    return name


def _custom_call(given: JsonObject, where: str) -> JsonObject:
    return {
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": _call_id(given, where),
        "name": _name(given, where),
        "input": require_string(given, "input", where),
    }


def _output(given: JsonObject, where: str, kind: str) -> JsonObject:
    output = given.get("output")
    text = output if isinstance(output, str) else _text(output, f"{where}.output", has_media=True)
    return {
        "type": kind,
        "status": "completed",
        "call_id": _call_id(given, where),
        "output": text,
    }


def _reasoning(given: JsonObject, where: str) -> JsonObject:
    """Content that another server encrypted is dropped without an error: clients send back all that they
    got."""
    return {
        "type": "reasoning",
        "status": "completed",
        "summary": _parts_of(given.get("summary"), f"{where}.summary", "summary_text"),
        "content": _parts_of(given.get("content"), f"{where}.content", "reasoning_text"),
    }


def _parts_of(given: object, where: str, kind: str) -> list[JsonObject]:
    parts = [] if given is None else given
    if not isinstance(parts, list) or len(parts) > PARTS_MAX:
        raise wrong_value(where, given, f"a list of up to {PARTS_MAX:,} parts")
    for index, part in enumerate(parts):
        is_right = isinstance(part, dict) and part.get("type") == kind and isinstance(part.get("text"), str)
        if not is_right:
            raise wrong_value(f"{where}[{index}]", part, f'{{"type": "{kind}", "text": ...}}')
    return [{"type": kind, "text": part["text"]} for part in parts]


def _text(given: object, where: str, *, has_media: bool = False) -> str:
    """A text, or the joined texts of a list of parts; `has_media`: an image among them becomes a sentence."""
    if isinstance(given, str):
        return given
    if not isinstance(given, list) or not given or len(given) > PARTS_MAX:
        raise wrong_value(where, given, f"text, or a list of 1 to {PARTS_MAX:,} parts")
    return "".join(_part(part, f"{where}[{index}]", has_media) for index, part in enumerate(given))


def _part(part: object, where: str, has_media: bool) -> str:
    kind = part.get("type") if isinstance(part, dict) else None
    if has_media and kind in _MEDIA_PARTS:
        return media_placeholder(str(kind).removeprefix("input_"))
    if not isinstance(part, dict) or not isinstance(kind, str) or kind not in _TEXT_PARTS:
        if kind in _MEDIA_PARTS:
            raise unsupported(
                f"{where} is of type {kind}, which is not supported by this server: it reads text only",
                "input",
            )
        raise wrong_value(f"{where}.type", kind, ", ".join(_TEXT_PARTS))
    text = part.get(_TEXT_PARTS[kind])
    if not isinstance(text, str):
        raise wrong_value(f"{where}.{_TEXT_PARTS[kind]}", text, "a string")
    return text


def _call_id(given: JsonObject, where: str) -> str:
    call_id = require_string(given, "call_id", where)
    if not 1 <= len(call_id) <= CALL_ID_CHARS_MAX:
        raise wrong_value(f"{where}.call_id", call_id, f"1 to {CALL_ID_CHARS_MAX} characters")
    return call_id


def unknown_item(given: str, where: str) -> InvalidRequest:
    """The refusal of a reference to an item that is not stored."""
    hint = "" if response_of(given) else " (ids of this server's items look like msg_..._0)"
    return InvalidRequest(
        f"{where} refers to {shown(given)}; allowed: an item of a stored response{hint}", param="input"
    )
