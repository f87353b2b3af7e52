"""Embeddings for clients of an engine: prompts in, vectors out.

Each prompt is an ordinary request without output tokens, batched with all others. At most `IN_FLIGHT_MAX`
requests of one call are open at a time: enough to keep the engine busy, without filling the queue. If the
queue is full, the call waits for one of its own requests to end; it is refused only if none is open.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from octavo.engine.outputs import Delta
from octavo.engine.stream import DeltaStream
from octavo.errors import EngineStopped, QueueFull, RequestFailed, TimedOut, require_range
from octavo.kernels.contract import Floats
from octavo.params import Pooling, SamplerParams
from octavo.serving.client import EngineClient
from octavo.types import FinishReason, Request, Usage

IN_FLIGHT_MAX = 128
_PLAIN = Request()


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How prompts become vectors."""

    pooling: Pooling | None = None  # None: the served model's default
    dimensions: int | None = None  # None: all dimensions of the model
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class Embedding:
    """One prompt's vector (`dimensions`,), and its usage."""

    vector: Floats
    usage: Usage


def pooling_params(pooling: Pooling) -> SamplerParams:
    """The parameters of a request for its prompt's embedding."""
    return SamplerParams(max_tokens=1, temperature=0.0, pooling=pooling)


def vector_of(embedding: bytes, dimensions: int | None = None, *, normalize: bool = True) -> Floats:
    """(`dimensions`,): the first numbers of the engine's embedding, normalised on request."""
    vector = np.frombuffer(embedding, np.float32)[:dimensions]
    return normalised(vector) if normalize else vector


def normalised(vector: Floats) -> Floats:
    """(E,) with length one, computed in float64; a zero vector stays zero."""
    wide = vector.astype(np.float64)
    length = np.sqrt(np.sum(wide * wide))
    return (wide / length).astype(np.float32) if length > 0.0 else vector


async def embed_all(
    model: EngineClient,
    prompts: Sequence[Sequence[int]],
    options: EmbeddingOptions,
    terms: Request = _PLAIN,
    seen: Callable[[int, Delta], None] = lambda index, delta: None,
) -> list[Embedding]:
    """The prompts' vectors, in their order; `seen` gets every delta with its prompt's index. `terms`: the
    tenant, priority, timeouts and salt of each prompt's request.

    If one prompt fails, the call fails. Raises the errors of `submit`, InvalidRequest for `dimensions`,
    TimedOut, RequestFailed and EngineStopped; its open requests are cancelled then, and when the call is
    cancelled.
    """
    if options.dimensions is not None:
        most = model.card.hidden_size
        require_range("dimensions", options.dimensions, 1, most, whole=True, hint="the model's hidden size")
    params = pooling_params(options.pooling or model.card.pooling)
    return await _Batch(model, options, replace(terms, params=params), seen).run(prompts)


class _Batch:
    """The requests of one call."""

    def __init__(
        self,
        model: EngineClient,
        options: EmbeddingOptions,
        terms: Request,
        seen: Callable[[int, Delta], None],
    ) -> None:
        self._model, self._options, self._terms, self._seen = model, options, terms, seen
        self._num_open = 0  # requests that were submitted and have not ended
        self._num_ended = 0
        self._ended = asyncio.Event()  # set when a request ends

    async def run(self, prompts: Sequence[Sequence[int]]) -> list[Embedding]:
        """The embeddings of all prompts."""
        found: dict[int, Embedding] = {}
        rest = iter(enumerate(prompts))  # shared by the workers

        async def work() -> None:
            for index, prompt in rest:
                found[index] = await self._one(index, prompt)

        workers = [asyncio.create_task(work()) for _ in range(min(IN_FLIGHT_MAX, len(prompts)))]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)  # each cancels its request
        return [found[index] for index in range(len(prompts))]

    async def _one(self, index: int, prompt: Sequence[int]) -> Embedding:
        """The vector of one prompt; waits while the queue is full."""
        while True:
            before = self._num_ended
            self._num_open += 1
            try:
                return await self._follow(index, await self._submit(prompt))
            except QueueFull:
                # Requests of this call that filled the queue may have ended since it was refused.
                if self._num_open == 1 and self._num_ended == before:
                    raise
            finally:
                self._num_open -= 1
            if self._num_ended == before:
                self._ended.clear()
                await self._ended.wait()

    async def _follow(self, index: int, stream: DeltaStream) -> Embedding:
        try:
            async for delta in stream:
                self._seen(index, delta)
                if delta.finish is not None:
                    return self._embedding_of(delta)
            raise RequestFailed("the request ended without an end")
        finally:
            stream.cancel()
            self._num_ended += 1
            self._ended.set()

    async def _submit(self, prompt: Sequence[int]) -> DeltaStream:
        return await self._model.submit(replace(self._terms, prompt=tuple(prompt)))

    def _embedding_of(self, delta: Delta) -> Embedding:
        if delta.finish is FinishReason.TIMEOUT:
            raise TimedOut(delta.error)
        if delta.finish is FinishReason.CANCELLED:
            raise EngineStopped("the request was cancelled because the server is stopping")
        if delta.finish is FinishReason.ERROR or not delta.embedding:
            raise RequestFailed(delta.error or "the request failed")
        options = self._options
        vector = vector_of(delta.embedding, options.dimensions, normalize=options.normalize)
        return Embedding(vector, delta.usage)
