"""The API's description, generated from the table of routes: /openapi.json, and /docs as HTML."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from html import escape
from http import HTTPStatus

from pydantic.json_schema import models_json_schema

from octavo import __version__
from octavo.server.dialects.error_shapes import is_anthropic_path
from octavo.server.errors import JsonObject
from octavo.server.route import Access, Route

_REF = "#/components/schemas/{model}"


def _object(**properties: object) -> JsonObject:
    return {"type": "object", "required": [*properties], "properties": properties}


_STRING, _NULLABLE = {"type": "string"}, {"type": ["string", "null"]}
_ERRORS: JsonObject = {
    "Error": _object(error=_object(message=_STRING, type=_STRING, param=_NULLABLE, code=_NULLABLE)),
    "AnthropicError": _object(
        type={"const": "error"}, error=_object(type=_STRING, message=_STRING), request_id=_NULLABLE
    ),
    "OllamaError": _object(error=_STRING),
}


def describe(routes: Sequence[Route]) -> JsonObject:
    """The routes as an OpenAPI 3.1 document."""
    _, bodies = models_json_schema(
        [(route.body, "validation") for route in routes if route.body is not None], ref_template=_REF
    )
    paths: dict[str, JsonObject] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Octavo", "version": __version__, "description": "OpenAI's HTTP API, and its own."},
        "paths": paths,
        "components": {
            "schemas": _ERRORS | bodies["$defs"],
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
            },
        },
    }


def _operation(route: Route) -> JsonObject:
    operation: JsonObject = {
        "summary": route.summary,
        "operationId": route.handler.__name__ if route.path != "/ping" else "ping",
        "parameters": [*_parameters(route)],
        "responses": {str(status): _answer(route, status) for status in route.statuses},
        "security": [] if route.access is Access.OPEN else [{"bearer": []}, {"x-api-key": []}, {}],
    }
    if route.body is not None:
        schema = {"$ref": _REF.format(model=route.body.__name__)}
        operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    return operation


def _parameters(route: Route) -> Iterable[JsonObject]:
    for name in re.findall(r"\{(\w+)\}", route.template):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
    for name in route.query:
        kind = "integer" if name == "limit" else "string"
        yield {"name": name, "in": "query", "required": False, "schema": {"type": kind}}


def _answer(route: Route, status: int) -> JsonObject:
    if status != route.success:
        name = "OllamaError" if route.path.startswith("/api/") else "Error"
        name = "AnthropicError" if is_anthropic_path(route.path) else name
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


def render_docs(routes: Sequence[Route]) -> bytes:
    """The routes as one self-contained HTML page."""
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
        note = escape(field.description or "")
        yield f"<tr><td><code>{escape(name)}</code><td>{escape(kind)}<td>{note}</tr>"
