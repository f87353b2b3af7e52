"""Ollama's routes about models: version, lists and details. Routes that would change the set of models are
refused: one model is served. Figures come from `ModelCard`; unknown ones are left out.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

from octavo import __version__
from octavo.errors import InvalidRequest, unsupported
from octavo.server.body import read_json, validate
from octavo.server.dialects.ollama import OllamaNamedBody, check_name, tagged
from octavo.server.dialects.ollama_answer import rfc3339
from octavo.server.errors import JsonObject, json_response
from octavo.server.field_list import done
from octavo.server.generation import Edge
from octavo.serving.client import EngineClient

# The model is never unloaded: the last second that clients can parse.
_NEVER: Final = "9999-12-31T23:59:59Z"
_UNITS: Final = ((10**9, "B"), (10**6, "M"), (10**3, "K"))
API_VERSION: Final = "0.13.0"  # of the Ollama that these routes follow
_SERVED: Final = "give the model to `octavo serve` instead"


class OllamaShowBody(OllamaNamedBody):
    """POST /api/show."""

    name: str | None = done("the older name of model")


async def ollama_version(edge: Edge, request: Request) -> Response:
    """GET /api/version: the version of Ollama's API, since clients may require a minimum; and Octavo's."""
    return json_response({"version": API_VERSION, "octavo": __version__})


async def ollama_tags(edge: Edge, request: Request) -> Response:
    """GET /api/tags: the served model, as a list."""
    listed = _names(edge.model) | {"modified_at": _start_time(edge)} | _details(edge.model)
    return json_response({"models": [listed]})


async def ollama_ps(edge: Edge, request: Request) -> Response:
    """GET /api/ps: the served model, which is always loaded."""
    more = {
        "expires_at": _NEVER,
        "size_vram": edge.model.card.device_bytes,
        "context_length": edge.model.context_length,
    }
    return json_response({"models": [_names(edge.model) | more | _details(edge.model)]})


async def ollama_show(edge: Edge, request: Request) -> Response:
    """POST /api/show: the model's details."""
    body = validate(OllamaShowBody, await read_json(edge, request))
    check_name(body.model or body.name, edge.model)
    card = edge.model.card
    template: JsonObject = {"template": card.chat_template} if card.chat_template else {}
    return json_response(
        template
        | _details(edge.model)
        | {
            "model_info": _info(edge.model),
            "capabilities": _capabilities(edge.model),
            "modified_at": _start_time(edge),
        }
    )


async def ollama_pull(edge: Edge, request: Request) -> Response:
    """POST /api/pull."""
    raise _unbuilt("pull", _SERVED)


async def ollama_push(edge: Edge, request: Request) -> Response:
    """POST /api/push."""
    raise _unbuilt("push", "copy the model's files")


async def ollama_create(edge: Edge, request: Request) -> Response:
    """POST /api/create."""
    raise _unbuilt("create", f"{_SERVED}, and system, options and messages to each request")


async def ollama_copy(edge: Edge, request: Request) -> Response:
    """POST /api/copy."""
    raise _unbuilt("copy", "name the model by `octavo serve --served-name`")


async def ollama_delete(edge: Edge, request: Request) -> Response:
    """DELETE /api/delete."""
    raise _unbuilt("delete", "end the server, and delete the model's files")


def _unbuilt(name: str, instead: str) -> InvalidRequest:
    return unsupported(
        f"/api/{name} is not supported by this server, which has one model: {instead}",
    )


def _names(model: EngineClient) -> JsonObject:
    name, card = tagged(model.name), model.card
    return _known({"name": name, "model": name, "size": card.weight_bytes, "digest": card.fingerprint})


def _details(model: EngineClient) -> JsonObject:
    card = model.card
    known = {
        "family": card.family,
        "families": [card.family] if card.family else [],
        "parameter_size": in_words(card.num_parameters),
        "quantization_level": card.weight_kind,
        "context_length": model.context_length,
        "embedding_length": card.hidden_size,
    }
    return {"details": {"parent_model": "", **_known(known)}}


def _info(model: EngineClient) -> JsonObject:
    """Figures under the names of a GGUF file's metadata."""
    card = model.card
    own = {
        "context_length": model.context_length,
        "embedding_length": card.hidden_size,
        "block_count": card.num_layers,
        "attention.head_count": card.num_heads,
        "attention.head_count_kv": card.num_kv_heads,
        "vocab_size": card.vocab_size,
    }
    family = card.family or "model"
    return _known(
        {
            "general.architecture": card.family,
            "general.basename": model.name,
            "general.parameter_count": card.num_parameters,
            **{f"{family}.{name}": value for name, value in own.items()},
        }
    )


def _capabilities(model: EngineClient) -> list[str]:
    """The capabilities, by Ollama's names. Every model with a chat template accepts tools."""
    has = {
        "completion": True,
        "tools": model.has_chat_template,
        "thinking": model.answers.thinks,
        "embedding": True,
    }
    return [name for name, is_there in has.items() if is_there]


def _known(figures: JsonObject) -> JsonObject:
    """The figures without unknown ones."""
    return {name: value for name, value in figures.items() if value not in (0, "", [])}


def in_words(count: int) -> str:
    """ "134.52M"; "" for zero."""
    for size, unit in _UNITS:
        if count >= size:
            return f"{count / size:.2f}".rstrip("0").rstrip(".") + unit
    return str(count or "")


def _start_time(edge: Edge) -> str:
    return rfc3339(datetime.fromtimestamp(edge.started_at, UTC))
