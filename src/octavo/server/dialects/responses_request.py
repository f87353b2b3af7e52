"""A request for a response: its checked fields, as a `ChatBody`, and those that the answer repeats.

    max_output_tokens     max_completion_tokens
    tools, tool_choice    the same, as functions: `responses_tools`
    text.format           response_format
    reasoning.effort      reasoning_effort
    include, top_logprobs logprobs, top_logprobs

Other fields mean the same as in a chat, and a field that a chat refuses is refused here too. No engine here.
Sources: openai-python's `types/responses/response_create_params.py` and what it names, vLLM's
`entrypoints/openai/responses/protocol.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Final

from octavo.errors import InvalidRequest, as_items, require_range, shown, wrong_value
from octavo.server.body import validate
from octavo.server.dialects.common import rename_fields
from octavo.server.dialects.responses_tools import (
    LEFT_OUT,
    OfferedTools,
    joined_name,
    left_out_metadata,
    read_tools,
)
from octavo.server.errors import JsonObject
from octavo.server.field_list import Body, SchemaOf, done, field_list
from octavo.server.openai_schema import ChatBody
from octavo.tools.definitions import TOOLS_MAX

METADATA_MAX = 16
METADATA_KEY_CHARS_MAX, METADATA_VALUE_CHARS_MAX = 64, 512
ECHOED_CHARS_MAX = 512  # of user, safety_identifier and prompt_cache_key
FORMAT_NAME_CHARS_MAX = 64
LOGPROBS: Final = "message.output_text.logprobs"
INCLUDES: Final = (
    LOGPROBS,
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
)
# Fields that are passed unchanged to the chat path.
CHAT_FIELDS: Final[tuple[str, ...]] = (
    *("temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty", "frequency_penalty"),
    *("repetition_penalty", "repeat_penalty", "logit_bias", "min_tokens", "ignore_eos", "stop"),
    *("stop_token_ids", "include_stop_str_in_output", "skip_special_tokens", "allowed_token_ids"),
    *("bad_words", "speculate", "priority", "timeout", "queue_timeout", "ttft_timeout"),
    *("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    *("chat_template_kwargs", "allow_control_tokens", "enable_thinking", "max_thinking_tokens"),
    *("thinking_token_budget", "reasoning_budget_tokens", "cache_salt"),
)
_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_SUMMARIES: Final = ("auto", "concise", "detailed")

# The chat path's fields, and this API's names for them in errors.
_NAMES: Final[Mapping[str, str]] = {
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "messages": "input",
    "prompt": "input",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
    "session": "previous_response_id",
}


class ResponsesText(Body):
    """`text`."""

    format: object = done("text, json_object, json_schema")


class ResponsesReasoning(Body):
    """`reasoning`."""

    effort: str | None = done("passed to the template; none: enable_thinking false too")
    summary: str | None = done("the reasoning item has the full text as its content")
    generate_summary: str | None = done("the older name of summary")


class ResponsesBody(Body):
    """POST /v1/responses."""

    model: str | None = done("the served model's name; optional")
    input: object = done("text, or items: message, calls and their outputs, reasoning, item_reference")
    instructions: str | None = done("the first system message")
    previous_response_id: str | None = done("a stored response that has ended")
    truncation: str | None = done(
        "disabled; auto: the oldest messages, except system messages, are left out until it fits"
    )
    max_output_tokens: int | None = done("includes reasoning; bounded by the context")
    text: Annotated[dict[str, object] | None, SchemaOf(ResponsesText | None)] = done()
    reasoning: Annotated[dict[str, object] | None, SchemaOf(ResponsesReasoning | None)] = done()
    tools: object = done("up to 512: function, custom, namespace; some hosted tools are left out")
    tool_choice: object = done("none, auto, required, a function, a custom tool, or allowed_tools")
    parallel_tool_calls: bool | None = done("default true: up to 16 calls in an answer")
    include: object = done("message.output_text.logprobs; the others add nothing")
    top_logprobs: int | None = done("0 to 20, with include message.output_text.logprobs")
    stream: bool | None = done()
    stream_options: dict[str, object] | None = done(
        "with stream; include_obfuscation is ignored, events are not padded"
    )
    store: bool | None = done("default true")
    metadata: dict[str, object] | None = done("up to 16 pairs of strings, of 64 and 512 characters")
    user: str | None = done("repeated in the answer; tenants are identified by their keys")
    safety_identifier: str | None = done("repeated in the answer; tenants are identified by their keys")
    prompt_cache_key: str | None = done("repeated in the answer; equal prefixes are always reused")


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A checked request. `echoed_fields`: the answer's fields that repeat it."""

    body: ResponsesBody
    chat: ChatBody
    echoed_fields: JsonObject
    tools: OfferedTools

    @property
    def is_stored(self) -> bool:
        """Whether the response is stored."""
        return self.body.store is not False

    @property
    def may_be_truncated(self) -> bool:
        """Whether the oldest items may be left out."""
        return self.body.truncation == "auto"


@contextmanager
def rename_chat_fields() -> Iterator[None]:
    """Raise errors of the chat path again with this API's field names."""
    try:
        with rename_fields(_NAMES):
            yield
    except InvalidRequest as error:
        if error.param != "tools":
            raise
        raise type(error)(str(error).replace("].function.", "]."), param="tools", code=error.code) from None


def read_request(raw: JsonObject) -> ParsedRequest:
    """The request of a body. Raises InvalidRequest."""
    body, own = validate(ResponsesBody, raw), field_list(ResponsesBody)
    listed = {*ResponsesBody.model_fields, *own.refused, *own.ignored}
    field_list(ChatBody).check({name: value for name, value in raw.items() if name not in listed})
    field_list(ResponsesText).check(body.text or {}, "text.")
    field_list(ResponsesReasoning).check(body.reasoning or {}, "reasoning.")
    _check(body)
    form, effort = _format(body.text or {}), _effort(body.reasoning or {})
    wants_logprobs = LOGPROBS in includes_of(body.include, "include")
    if body.top_logprobs and not wants_logprobs:
        raise InvalidRequest(f"top_logprobs is only allowed with include {LOGPROBS}", param="top_logprobs")
    offered = read_tools(body.tools)
    fields: JsonObject = {name: raw[name] for name in CHAT_FIELDS if name in raw} | {
        "model": body.model,
        "stream": body.stream,
        "max_completion_tokens": body.max_output_tokens,
        "logprobs": wants_logprobs,
        "top_logprobs": body.top_logprobs if wants_logprobs else None,
        "tools": offered.functions,
        "tool_choice": _choice(body.tool_choice),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _chat_format(form),
        "reasoning_effort": effort,
    }
    with rename_chat_fields():
        chat = validate(ChatBody, fields)
    return ParsedRequest(body, chat, _echoed_fields(body, chat, form, offered), offered)


def includes_of(given: object, param: str) -> tuple[str, ...]:
    """The values of `include`. Raises InvalidRequest."""
    if given is None:
        return ()
    allowed = f"a list of {', '.join(INCLUDES)}"
    items = as_items(param, given, allowed, len(INCLUDES), of="number of values of include")
    for item in items:
        if item not in INCLUDES:
            raise InvalidRequest(f"{param} holds {shown(item)}; allowed: {allowed}", param=param)
    return tuple(map(str, items))


def _check(body: ResponsesBody) -> None:
    """Check fields that the chat path does not get. Raises InvalidRequest."""
    if body.truncation not in (None, "auto", "disabled"):
        raise wrong_value("truncation", body.truncation, "auto, disabled")
    if body.stream_options is not None and not body.stream:
        raise InvalidRequest("stream_options is only allowed when stream is true", param="stream_options")
    if body.previous_response_id == "":
        raise wrong_value("previous_response_id", "", "the id of a stored response, or none of it")
    for name in ("user", "safety_identifier", "prompt_cache_key"):
        text = getattr(body, name)
        if text is not None:
            require_range(f"length of {name}", len(text), 0, ECHOED_CHARS_MAX, param=name)
    metadata = body.metadata or {}
    require_range("number of pairs of metadata", len(metadata), 0, METADATA_MAX, param="metadata")
    for key, value in metadata.items():
        if len(key) > METADATA_KEY_CHARS_MAX:
            raise wrong_value(
                "metadata's key", key, f"up to {METADATA_KEY_CHARS_MAX} characters", param="metadata"
            )
        if not isinstance(value, str) or len(value) > METADATA_VALUE_CHARS_MAX:
            allowed = f"a string of up to {METADATA_VALUE_CHARS_MAX} characters"
            raise wrong_value(f"metadata.{key}", value, allowed)


def _format(text: Mapping[str, object]) -> JsonObject:
    """`text.format`, checked, as the answer repeats it."""
    given = text.get("format")
    if given is None:
        return {"type": "text"}
    kind = given.get("type") if isinstance(given, Mapping) else None
    if kind in ("text", "json_object"):
        return {"type": kind}
    if not isinstance(given, Mapping) or kind != "json_schema":
        raise _wrong_part(
            "text.format", given, 'an object of the type "text", "json_object" or "json_schema"'
        )
    name, schema, strict = given.get("name"), given.get("schema"), given.get("strict")
    if not isinstance(name, str) or not 1 <= len(name) <= FORMAT_NAME_CHARS_MAX:
        raise _wrong_part("text.format.name", name, f"a string of 1 to {FORMAT_NAME_CHARS_MAX} characters")
    if not isinstance(schema, Mapping):
        raise _wrong_part("text.format.schema", schema, "a JSON schema, which is an object")
    if strict not in (None, True, False):
        raise _wrong_part("text.format.strict", strict, "true or false")
    if not isinstance(given.get("description"), str | None):
        raise _wrong_part("text.format.description", given.get("description"), "a string")
    return {
        "type": kind,
        "name": name,
        "description": given.get("description"),
        "schema": schema,
        "strict": strict,
    }


def _chat_format(form: JsonObject) -> JsonObject:
    if form["type"] != "json_schema":
        return form
    return {"type": "json_schema", "json_schema": {name: form[name] for name in ("name", "schema", "strict")}}


def _effort(reasoning: Mapping[str, object]) -> str | None:
    for name, allowed in (
        ("effort", _EFFORTS),
        ("summary", _SUMMARIES),
        ("generate_summary", _SUMMARIES),
    ):
        if reasoning.get(name) not in (None, *allowed):
            raise _wrong_part(f"reasoning.{name}", reasoning[name], ", ".join(allowed))
    effort = reasoning.get("effort")
    return None if effort is None else str(effort)


_CALLABLE: Final = ("function", "custom")


def _choice(given: object) -> object:
    """`tool_choice` in the chat path's form. Raises InvalidRequest."""
    if given is None or isinstance(given, str):
        return given
    if isinstance(given, Mapping):
        if given.get("type") in _CALLABLE:
            return _function(given)
        if given.get("type") in LEFT_OUT:
            return "auto"
        listed, mode = given.get("tools"), given.get("mode")
        if given.get("type") == "allowed_tools" and isinstance(listed, list) and len(listed) <= TOOLS_MAX:
            offered = [item for item in listed if not _is_left_out(item)]
            allowed = {"mode": mode, "tools": [_function(item) for item in offered]}
            return {"type": "allowed_tools", "allowed_tools": allowed}
    raise wrong_value(
        "tool_choice",
        given,
        'none, auto, required, {"type": "function", "name": ...} or {"type": "allowed_tools", "mode": ..., '
        '"tools": [...]}, with functions alone',
    )


def _is_left_out(given: object) -> bool:
    return isinstance(given, Mapping) and given.get("type") in LEFT_OUT


def _function(given: object) -> JsonObject:
    name = given.get("name") if isinstance(given, Mapping) else None
    if not isinstance(given, Mapping) or given.get("type") not in _CALLABLE or not isinstance(name, str):
        raise wrong_value(
            "tool_choice's tool", given, '{"type": "function", "name": ...}', param="tool_choice"
        )
    namespace = given.get("namespace")
    if isinstance(namespace, str) and namespace:
        name = joined_name(namespace, name)
    return {"type": "function", "function": {"name": name}}


def _echoed_fields(
    body: ResponsesBody, chat: ChatBody, form: JsonObject, offered: OfferedTools
) -> JsonObject:
    """The fields of the answer that repeat the request."""
    reasoning = body.reasoning or {}
    return {
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.get("effort"), "summary": reasoning.get("summary")},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": 1.0 if chat.temperature is None else chat.temperature,
        "text": {"format": form, "verbosity": "medium"},
        "tool_choice": "auto" if body.tool_choice is None else body.tool_choice,
        "tools": offered.echoed,
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if chat.top_p is None else chat.top_p,
        "truncation": body.truncation or "disabled",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
        "metadata": left_out_metadata(offered, body.metadata or {}),
        "background": False,
    }


def _wrong_part(what: str, given: object, allowed: str) -> InvalidRequest:
    """The refusal of an object's field; `param` is the full path."""
    return wrong_value(what, given, allowed, param=what)
