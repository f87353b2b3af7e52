"""Routes about the server itself: health, version, model, metrics, the cluster and the API description."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.errors import EngineStopped
from octavo.server.errors import JsonObject, json_response
from octavo.server.generation import Edge
from octavo.server.metrics import CONTENT_TYPE
from octavo.server.tenant import tag_of


async def health(edge: Edge, request: Request) -> Response:
    """200 while the engine serves; 503 with the reason after it has failed."""
    if edge.model.gave_up is not None:
        raise EngineStopped(edge.model.gave_up)
    return json_response({"status": "ok"})


async def version(edge: Edge, request: Request) -> Response:
    """Octavo's version."""
    return json_response({"version": __version__})


async def metrics(edge: Edge, request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    text = edge.metrics.render(await edge.model.stats())
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def kv_event_sources(edge: Edge, request: Request) -> Response:
    """The endpoint of each rank's KV events, in vLLM's shape."""
    source = edge.model.event_source
    return json_response({} if source is None else {"0": source})


async def show_cluster(edge: Edge, request: Request) -> Response:
    """GET /cluster; only a cluster's relay has it."""
    assert edge.cluster is not None
    return json_response(edge.cluster())


async def list_models(edge: Edge, request: Request) -> Response:
    """The served model as a list, with the fields of OpenAI's and of Anthropic's API."""
    name = edge.model.name
    page = {"has_more": False, "first_id": name, "last_id": name}
    return json_response({"object": "list", "data": [_model_object(edge, request)], **page})


async def show_model(edge: Edge, request: Request) -> Response:
    """The served model."""
    edge.check_model(request.path_params["model_id"])
    return json_response(_model_object(edge, request))


async def openapi(edge: Edge, request: Request) -> Response:
    """The API description in OpenAPI's format."""
    return Response(await asyncio.to_thread(edge.openapi), media_type="application/json")


async def docs(edge: Edge, request: Request) -> Response:
    """The API description as HTML; it loads no external resources."""
    return Response(
        edge.docs(),
        media_type="text/html",
        headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"},
    )


def _model_object(edge: Edge, request: Request) -> JsonObject:
    tag = tag_of(request)
    return {
        "id": edge.model.name,
        "object": "model",
        "created": edge.started_at,
        "owned_by": "octavo",
        "max_model_len": edge.model.context_length,
        # Anthropic's fields.
        "type": "model",
        "display_name": edge.model.name,
        "created_at": datetime.fromtimestamp(edge.started_at, UTC).isoformat().replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": edge.model.context_length,
        "max_tokens": edge.model.context_length,
        # The beginning of the client's `cache_salt`: by it routers that read KV events identify its blocks.
        **({"kv_tag": tag} if tag else {}),
    }
