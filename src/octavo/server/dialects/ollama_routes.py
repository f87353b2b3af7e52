"""The routes of Ollama's API: /api."""

from __future__ import annotations

from typing import Final

from octavo.server.dialects import ollama_models as models
from octavo.server.dialects.ollama import OllamaChatBody, OllamaGenerateBody
from octavo.server.dialects.ollama_answer import MEDIA_TYPE
from octavo.server.dialects.ollama_chat import (
    check_ollama_chat,
    check_ollama_prompt,
    ollama_chat,
    ollama_generate,
)
from octavo.server.dialects.ollama_embed import (
    OllamaEmbedBody,
    OllamaEmbeddingsBody,
    check_ollama_embed,
    ollama_embed,
    ollama_embeddings,
)
from octavo.server.route import Access, Route, Spread

_TENANT: Final = Access.TENANT
_GENERATES: Final = (404, 409, 429, 500, 503)

OLLAMA_ROUTES: Final[tuple[Route, ...]] = (
    Route(
        "POST",
        "/api/chat",
        ollama_chat,
        _TENANT,
        "Answer a chat, as Ollama does",
        Spread.PREFIX,
        body=OllamaChatBody,
        check=check_ollama_chat,
        errors=_GENERATES,
        streams=True,
        stream_type=MEDIA_TYPE,
    ),
    Route(
        "POST",
        "/api/generate",
        ollama_generate,
        _TENANT,
        "Answer a prompt, as Ollama does",
        Spread.PREFIX,
        body=OllamaGenerateBody,
        check=check_ollama_prompt,
        errors=_GENERATES,
        streams=True,
        stream_type=MEDIA_TYPE,
    ),
    Route(
        "GET", "/api/tags", models.ollama_tags, _TENANT, "The served model, as Ollama lists it", Spread.LOAD
    ),
    Route(
        "GET",
        "/api/ps",
        models.ollama_ps,
        _TENANT,
        "The served model, as Ollama lists loaded ones",
        Spread.LOAD,
    ),
    Route(
        "GET",
        "/api/version",
        models.ollama_version,
        _TENANT,
        "The version of Ollama's API, and Octavo's",
        Spread.RELAY,
    ),
    Route(
        "POST",
        "/api/show",
        models.ollama_show,
        _TENANT,
        "The served model's details",
        Spread.LOAD,
        body=models.OllamaShowBody,
        errors=(404,),
    ),
    Route(
        "POST",
        "/api/embed",
        ollama_embed,
        _TENANT,
        "The vectors of texts, as Ollama makes them",
        Spread.LOAD,
        body=OllamaEmbedBody,
        check=check_ollama_embed,
        errors=_GENERATES,
    ),
    Route(
        "POST",
        "/api/embeddings",
        ollama_embeddings,
        _TENANT,
        "The vector of one text, as Ollama's older route makes it",
        Spread.LOAD,
        body=OllamaEmbeddingsBody,
        errors=_GENERATES,
    ),
    Route("POST", "/api/pull", models.ollama_pull, _TENANT, "Refused: one model is served", Spread.RELAY),
    Route("POST", "/api/push", models.ollama_push, _TENANT, "Refused: one model is served", Spread.RELAY),
    Route("POST", "/api/create", models.ollama_create, _TENANT, "Refused: one model is served", Spread.RELAY),
    Route("POST", "/api/copy", models.ollama_copy, _TENANT, "Refused: one model is served", Spread.RELAY),
    Route(
        "DELETE", "/api/delete", models.ollama_delete, _TENANT, "Refused: one model is served", Spread.RELAY
    ),
)
