"""POST /v1/embeddings: from inputs to vectors in OpenAI's shape, as floats or in base64.

`embed_inputs` serves every dialect: token ids in, vectors and usage out, unless the client disconnects.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from starlette.requests import Request
from starlette.responses import Response

from octavo.errors import InvalidRequest, RequestFailed, TimedOut, require_range, wrong_value
from octavo.params import Pooling
from octavo.server.body import read_json, validate
from octavo.server.dialects.common import rename_fields
from octavo.server.embedding_inputs import INPUTS_MAX, Truncation, check_inputs, read_inputs
from octavo.server.errors import JsonObject
from octavo.server.field_list import done, texts_or_tokens
from octavo.server.generation import ClientGone, Edge, until_disconnect
from octavo.server.metrics import RequestWatch
from octavo.server.openai_schema import ModelBody, ModelBounds, TermsBody
from octavo.server.sse import encode_json
from octavo.server.tenant import engine_request
from octavo.serving.embedding import Embedding, EmbeddingOptions, embed_all
from octavo.types import Request as EngineRequest

_FORMATS = ("float", "base64")
_SIDES = ("right", "left")


class EmbeddingsBody(ModelBody, TermsBody, json_schema_extra={"required": ["input"]}):
    """POST /v1/embeddings."""

    input: Annotated[object, texts_or_tokens(INPUTS_MAX)] = done(
        f"up to {INPUTS_MAX:,} texts, or token ids of so many, each up to the context", "OVLS"
    )
    encoding_format: str | None = done("float, the default, or base64: float32, little-endian", "OVLS")
    dimensions: int | None = done(
        "the number of dimensions to keep; the vector is normalised after the cut", "OVS"
    )
    truncate_prompt_tokens: int | None = done("so many of each input are taken; -1: the context", "V")
    truncation_side: str | None = done("right keeps the beginning (the default), left the end", "V")
    add_special_tokens: bool | None = done("default true", "V")
    normalize: bool | None = done("default true", "V")
    use_activation: bool | None = done("another name of normalize", "V")
    pooling: str | None = done("last or mean; default: the setting pooling", "X")

    @property
    def wants_base64(self) -> bool:
        """Whether vectors are bytes in base64. Raises InvalidRequest."""
        return _one_of("encoding_format", self.encoding_format, _FORMATS) == "base64"

    def truncation(self, context_length: int) -> Truncation | None:
        """The cut of longer inputs. Raises InvalidRequest."""
        from_left = _one_of("truncation_side", self.truncation_side, _SIDES) == "left"
        keep = self.truncate_prompt_tokens
        if keep is None:
            return None
        hint = "the context; -1 stands for all of it"
        require_range(
            "truncate_prompt_tokens", context_length if keep == -1 else keep, 1, context_length, hint=hint
        )
        return Truncation(context_length if keep == -1 else keep, from_left)

    @property
    def embedding_options(self) -> EmbeddingOptions:
        """How the inputs become vectors. Raises InvalidRequest."""
        words = tuple(map(str, Pooling))
        pooling = None if self.pooling is None else Pooling(_one_of("pooling", self.pooling, words))
        if None not in (self.normalize, self.use_activation) and self.normalize != self.use_activation:
            raise InvalidRequest(
                "normalize and use_activation differ; allowed: one of them, which are two names of one thing",
                param="use_activation",
            )
        normalize = False not in (self.normalize, self.use_activation)
        return EmbeddingOptions(pooling, self.dimensions, normalize)


@dataclass(frozen=True, slots=True)
class EmbeddingsResult:
    """The inputs' vectors in order, with the usage of each."""

    embedded: Sequence[Embedding]

    @property
    def num_prompt(self) -> int:
        """Tokens of all inputs."""
        return sum(one.usage.num_prompt for one in self.embedded)

    @property
    def num_cached(self) -> int:
        """The prompt tokens that were cached."""
        return sum(one.usage.num_cached for one in self.embedded)

    def usage(self) -> JsonObject:
        """OpenAI's usage."""
        return {
            "prompt_tokens": self.num_prompt,
            "total_tokens": self.num_prompt,
            "prompt_tokens_details": {"cached_tokens": self.num_cached},
            # Octavo's fields: the cost in memory.
            "cached_tokens": self.num_cached,
            "preemptions": sum(one.usage.preemptions for one in self.embedded),
        }


async def embeddings(edge: Edge, request: Request) -> Response:
    """Answer one request; raises the errors of `octavo.errors`, which the application turns into answers."""
    watch = edge.metrics.watch(request.scope)
    body = validate(EmbeddingsBody, await read_json(edge, request))
    edge.check_model(body.model)
    wanted, options, as_base64 = engine_request(request, body), body.embedding_options, body.wants_base64
    prompts = await read_inputs(
        body.input,
        edge.model,
        tenant=wanted.tenant,
        cut=body.truncation(edge.model.context_length),
        add_special_tokens=body.add_special_tokens is not False,
    )
    made = await embed_inputs(edge, request, prompts, options, wanted, watch)
    return await _answer(edge, made, as_base64=as_base64)


def check_embeddings(raw: JsonObject, model: ModelBounds) -> None:
    """Raise what `embeddings` would for this body alone."""
    body = validate(EmbeddingsBody, raw)
    check_inputs(body.input, model, body.truncation(model.context_length))


async def embed_inputs(
    edge: Edge,
    request: Request,
    prompts: Sequence[Sequence[int]],
    options: EmbeddingOptions,
    wanted: EngineRequest,
    watch: RequestWatch,
) -> EmbeddingsResult:
    """The vectors of these prompts. Raises ClientGone when the client disconnects, and what `embed_all`
    raises, with the field `input`. Nothing runs after it returns or raises."""
    try:
        with rename_fields({"prompt": "input"}):
            embedding = embed_all(edge.model, prompts, options, wanted, watch.record)
            embedded = await until_disconnect(request, embedding)
    except (ClientGone, RequestFailed, TimedOut):
        watch.cancel_rest(len(prompts))
        raise
    watch.finish()
    return EmbeddingsResult(embedded)


async def _answer(edge: Edge, made: EmbeddingsResult, *, as_base64: bool) -> Response:
    """Encode the vectors one by one: a thousand of them are a million numbers, and other streams run in
    between."""
    pieces = []
    for index, one in enumerate(made.embedded):
        vector = one.vector.astype("<f4")
        if as_base64:
            encoded = f'"{base64.b64encode(vector.tobytes()).decode()}"'
        else:
            encoded = json.dumps(vector.tolist(), allow_nan=False, separators=(",", ":"))
        pieces.append(f'{{"object":"embedding","index":{index},"embedding":{encoded}}}')
        await asyncio.sleep(0)
    model, usage = json.dumps(edge.model.name), encode_json(made.usage()).decode()
    text = f'{{"object":"list","data":[{",".join(pieces)}],"model":{model},"usage":{usage}}}'
    return Response(text.encode(), media_type="application/json")


def _one_of(name: str, given: str | None, allowed: Sequence[str]) -> str:
    """The given value, by default the first. Raises InvalidRequest for one that is not allowed."""
    if given is not None and given not in allowed:
        raise wrong_value(name, given, ", ".join(allowed))
    return given or allowed[0]
