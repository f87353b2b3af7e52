"""Where a cluster's relay sends each route: what is new in the table has to be thought of."""

from __future__ import annotations

from octavo.server.route import Spread
from octavo.server.routes import CLUSTER_ROUTES

EXPECTED = {
    Spread.PREFIX: {
        *("POST /v1/chat/completions", "POST /v1/completions", "POST /v1/responses", "POST /v1/messages"),
        *("POST /api/chat", "POST /api/generate"),
    },
    Spread.LOAD: {
        *("GET /v1/models", "GET /v1/models/{model_id}", "POST /v1/embeddings", "POST /v1/sessions"),
        *("GET /api/tags", "GET /api/ps", "POST /api/show", "POST /api/embed", "POST /api/embeddings"),
    },
    Spread.ID: {
        *("GET /v1/sessions/{session_id}", "DELETE /v1/sessions/{session_id}"),
        *(f"POST /v1/sessions/{{session_id}}/{what}" for what in ("fork", "suspend", "resume")),
        *("GET /v1/responses/{response_id}", "DELETE /v1/responses/{response_id}"),
        *("POST /v1/responses/{response_id}/cancel", "GET /v1/responses/{response_id}/input_items"),
        "GET /v1/requests/{request_id}",
    },
    Spread.ALL: {
        *("GET /metrics", "GET /kv_event_sources", "GET /v1/sessions", "GET /v1/requests"),
        *("GET /v1/kv/pins", "POST /v1/kv/pins", "PATCH /v1/kv/pins/{name}", "DELETE /v1/kv/pins/{name}"),
    },
    Spread.REPLICA: {"GET /v1/kv", "PATCH /v1/kv", "GET /v1/kv/map", "GET /v1/kv/watch"},
    Spread.RELAY: {
        *("GET /", "GET /ui", "GET /ui/{name}", "GET /health", "GET /ping", "GET /version", "GET /cluster"),
        *("GET /openapi.json", "GET /docs", "GET /tokenizer_info", "POST /tokenize", "POST /detokenize"),
        *("POST /v1/chat/completions/render", "POST /v1/completions/render"),
        *("POST /v1/messages/count_tokens", "GET /api/version", "DELETE /api/delete"),
        *(f"POST /api/{what}" for what in ("pull", "push", "create", "copy")),
    },
}


def test_each_route_goes_where_it_was_decided_to_go() -> None:
    found: dict[Spread, set[str]] = {spread: set() for spread in Spread}
    for route in CLUSTER_ROUTES:
        found[route.spread].add(f"{route.method} {route.template}")
    assert found == EXPECTED
