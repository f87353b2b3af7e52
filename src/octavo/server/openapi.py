"""The server's description of itself, made from the table of routes: /openapi.json, and /docs as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from http import HTTPStatus

from octavo import __version__
from octavo.server.dialects.error_shapes import is_anthropics
from octavo.server.errors import JsonObject
from octavo.server.route import Access, Route

_REF = "#/components/schemas/{model}"
_ERROR: JsonObject = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_ANTHROPIC_ERROR: JsonObject = {
    "type": "object",
    "required": ["type", "error", "request_id"],
    "properties": {
        "type": {"const": "error"},
        "error": {
            "type": "object",
            "required": ["type", "message"],
            "properties": {"type": {"type": "string"}, "message": {"type": "string"}},
        },
        "request_id": {"type": ["string", "null"]},
    },
}
_OLLAMA_ERROR: JsonObject = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}},
}
_TEXT_PARTS = ["text", "input_text", "output_text", "refusal", "thinking"]
_MESSAGES: JsonObject = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "required": ["role"],
        "properties": {
            "role": {"enum": ["system", "developer", "user", "assistant", "tool"]},
            "content": {
                "anyOf": [
                    {"type": "string"},
                    {"type": "null"},
                    {
                        "type": "array",
                        "minItems": 1,
                        "items": {
                            "type": "object",
                            "required": ["type"],
                            "properties": {"type": {"enum": _TEXT_PARTS}, "text": {"type": "string"}},
                        },
                    },
                ]
            },
            "name": {"type": "string"},
            "reasoning_content": {"type": "string"},
            "tool_call_id": {"type": "string"},
            "tool_calls": {"type": "array", "items": {"type": "object", "required": ["function"]}},
        },
    },
}
_TOKENS: JsonObject = {"type": "array", "minItems": 1, "items": {"type": "integer", "minimum": 0}}
_PROMPT: JsonObject = {
    "anyOf": [
        {"type": "string", "minLength": 1},
        {"type": "array", "minItems": 1, "maxItems": 256, "items": {"type": "string", "minLength": 1}},
        _TOKENS,
        {"type": "array", "minItems": 1, "maxItems": 256, "items": _TOKENS},
    ]
}
# Fields that are read by hand, because they explain themselves better so; their models know them as anything.
_BY_HAND: dict[str, JsonObject] = {"messages": _MESSAGES, "prompt": _PROMPT, "tokens": _TOKENS}


def describe(routes: Sequence[Route]) -> JsonObject:
    """OpenAPI 3.1 of the routes."""
    schemas: JsonObject = {
        "Error": _ERROR,
        "AnthropicError": _ANTHROPIC_ERROR,
        "OllamaError": _OLLAMA_ERROR,
    }
    paths: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": "OpenAI's HTTP API, and its own."},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(route: Route, schemas: JsonObject) -> JsonObject:
    operation: JsonObject = {
        "summary": route.summary,
        "operationId": route.handler.__name__ if route.path != "/ping" else "ping",
        "parameters": [*_parameters(route)],
        "responses": {str(status): _answer(route, status) for status in route.statuses},
        "security": [] if route.access is Access.OPEN else [{"bearer": []}, {"x-api-key": []}, {}],
    }
    if route.body is not None:
        name = route.body.__name__
        schemas[name] = _schema_of(route, schemas)
        schema = {"$ref": _REF.format(model=name)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _schema_of(route: Route, schemas: JsonObject) -> JsonObject:
    """The body's JSON schema; what its model nests goes beside it."""
    assert route.body is not None
    schema: JsonObject = route.body.model_json_schema(ref_template=_REF)
    nested = schema.pop("$defs", {})
    assert isinstance(nested, dict)
    schemas.update(nested)
    properties = schema["properties"]
    assert isinstance(properties, dict)
    for field, own in _BY_HAND.items():
        if isinstance(known := properties.get(field), dict) and not {"type", "anyOf"} & known.keys():
            properties[field] = own
    needed = [field for field in ("messages", "prompt") if field in properties]
    if len(needed) == 1:  # with both, one of them
        schema["required"] = [*_listed(schema.get("required")), *needed]
    return schema


def _parameters(route: Route) -> Iterable[JsonObject]:
    for name in re.findall(r"\{(\w+)\}", route.template):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name in route.query:
        kind = "integer" if name == "limit" else "string"
        yield {"name": name, "in": "query", "required": False, "schema": {"type": kind}}


def _answer(route: Route, status: int) -> JsonObject:
    if status != route.success:
        name = "OllamaError" if route.path.startswith("/api/") else "Error"
        name = "AnthropicError" if is_anthropics(route.path) else name
        schema: JsonObject = {"$ref": _REF.format(model=name)}
        return {
            "description": HTTPStatus(status).phrase,
            "content": {"application/json": {"schema": schema}},
        }
    json = route.content_type == "application/json"
    content: JsonObject = {route.content_type: {"schema": {"type": "object" if json else "string"}}}
    if route.streams:
        content[route.stream_type] = {"schema": {"type": "string"}}
    return {"description": HTTPStatus(status).phrase, "content": content}


def _listed(value: object) -> list[object]:
    return value if isinstance(value, list) else []


def render_docs(routes: Sequence[Route]) -> bytes:
    """One page that needs nothing but itself."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><title>Octavo: routes</title><style>",
        "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}",
        "h2{font:600 1rem ui-monospace,monospace;margin:2rem 0 0;border-top:1px solid #ddd;padding-top:1rem}",
        "table{border-collapse:collapse}td{padding:.1rem 1.5rem .1rem 0;vertical-align:top}",
        "code{font-family:ui-monospace,monospace}p{margin:.3rem 0}</style>",
        f"<h1>Octavo {escape(__version__)}</h1><p>For programs: <a href=openapi.json>openapi.json</a>. ",
        "Errors have OpenAI's shape: <code>{&quot;error&quot;: {message, type, param, code}}</code>; ",
        "those of /v1/messages have Anthropic's, those of /api Ollama's.</p>",
    ]
    for route in routes:
        parts.append(f"<h2>{route.method} {escape(route.template)}</h2><p>{escape(route.summary)}.")
        parts.append(f" Key: {route.access.value}. Answers: {', '.join(map(str, route.statuses))}.</p>")
        if route.body is not None:
            parts.append("<table>" + "".join(_rows(route)) + "</table>")
    return "".join(parts).encode()


def _rows(route: Route) -> Iterable[str]:
    assert route.body is not None
    for name, field in route.body.model_fields.items():
        kind = re.sub(r"typing\.|<class '|'>", "", str(field.annotation))
        yield f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}</tr>"
