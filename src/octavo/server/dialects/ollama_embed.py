"""POST /api/embed, and the older /api/embeddings: the vectors of /v1/embeddings in Ollama's shapes.

Inputs longer than the context, or than `options.num_ctx`, are truncated, unless `truncate` is false. As in
Ollama, vectors of /api/embed are normalised and those of /api/embeddings are not.
"""

from __future__ import annotations

import asyncio
import json

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import wrong_value
from octavo.server.body import read_json, validate
from octavo.server.dialects.common import rename_fields
from octavo.server.dialects.ollama import NAMES, OllamaNamedBody, check_name, requested_context
from octavo.server.dialects.ollama_answer import nanoseconds
from octavo.server.embedding_inputs import Truncation, check_inputs, read_inputs
from octavo.server.embeddings import EmbeddingsResult, embed_inputs
from octavo.server.errors import JsonObject, json_response
from octavo.server.field_list import done
from octavo.server.generation import Edge
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ModelBounds, TermsBody
from octavo.server.tenant import engine_request
from octavo.serving.embedding import EmbeddingOptions


class OllamaVectorsBody(OllamaNamedBody):
    """The fields of both routes."""

    options: dict[str, object] | None = done("num_ctx; other options change no vector")


class OllamaEmbedBody(OllamaVectorsBody):
    """POST /api/embed."""

    input: object = done("a string, or up to 2,048; without it there are no vectors")
    truncate: bool | None = done(
        "default true: inputs are cut to the context, or to `options.num_ctx` if that is less"
    )
    dimensions: int | None = done("keep the first so many numbers, normalised again")


class OllamaEmbeddingsBody(OllamaVectorsBody):
    """POST /api/embeddings."""

    prompt: str | None = done("without it the vector is empty; vectors are not normalised")


async def ollama_embed(edge: Edge, request: Request) -> Response:
    """Answer one request; without input, with no vectors. Raises the errors of `octavo.errors`."""
    watch = edge.metrics.watch(request.scope)
    body = validate(OllamaEmbedBody, await read_json(edge, request))
    name, texts = check_name(body.model, edge.model), _texts(body.input)
    with rename_fields(NAMES):
        keep = requested_context(body.options or {}, edge.model.context_length)
    cut = None if body.truncate is False else Truncation(keep)
    options = EmbeddingOptions(dimensions=body.dimensions or None)  # 0 is Ollama's word for all
    made = await _embed(edge, request, texts, cut, options, watch) if texts else EmbeddingsResult(())
    return await _answer(name, made, watch)


def check_ollama_embed(raw: JsonObject, model: ModelBounds) -> None:
    """Raise the errors of `ollama_embed` that depend on the body alone."""
    texts = _texts(validate(OllamaEmbedBody, raw).input)
    if texts:
        check_inputs(texts, model, None)


async def ollama_embeddings(edge: Edge, request: Request) -> Response:
    """Answer one prompt; it is not truncated."""
    watch = edge.metrics.watch(request.scope)
    body = validate(OllamaEmbeddingsBody, await read_json(edge, request))
    check_name(body.model, edge.model)
    with rename_fields(NAMES):
        requested_context(body.options or {}, edge.model.context_length)
    if not body.prompt:
        return json_response({"embedding": []})
    options = EmbeddingOptions(normalize=False)
    with rename_fields({"input": "prompt"}):
        made = await _embed(edge, request, [body.prompt], None, options, watch)
    return json_response({"embedding": made.embedded[0].vector.tolist()})


async def _embed(
    edge: Edge,
    request: Request,
    texts: list[str],
    cut: Truncation | None,
    options: EmbeddingOptions,
    watch: RequestWatch,
) -> EmbeddingsResult:
    """The vectors, computed for the request's tenant."""
    terms = engine_request(request, TermsBody())
    prompts = await read_inputs(texts, edge.model, tenant=terms.tenant, cut=cut)
    return await embed_inputs(edge, request, prompts, options, terms, watch)


def _texts(given: object) -> list[str]:
    listed = [] if given in (None, "") else [given] if isinstance(given, str) else given
    if not isinstance(listed, list) or not all(isinstance(text, str) for text in listed):
        raise wrong_value("input", given, "a string, or a list of strings")
    return listed


async def _answer(name: str, made: EmbeddingsResult, watch: RequestWatch) -> Response:
    """Encode vector by vector: a thousand vectors are a million numbers, and other requests' streams must run
    in between."""
    vectors = []
    for one in made.embedded:
        vectors.append(json.dumps(one.vector.tolist(), allow_nan=False, separators=(",", ":")))
        await asyncio.sleep(0)
    text = (
        f'{{"model":{json.dumps(name)},"embeddings":[{",".join(vectors)}],'
        f'"total_duration":{nanoseconds(watch.age_s)},"load_duration":0,"prompt_eval_count":{made.num_prompt}}}'
    )
    return Response(text.encode(), media_type="application/json")
