"""Embeddings for clients of an engine: prompts in, vectors out.

Each prompt is an ordinary request that wants no token, batched with all others. Many are under way at a time,
and no more than `IN_FLIGHT_MAX` of one call, so that a long list neither fills the queue nor lets the engine
wait. A queue that others fill holds a list up; only where none of its own is under way the list is refused.
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

    pooling: Pooling | None = None  # None: as the model is served
    dimensions: int | None = None  # None: all that the model has
    normalize: bool = True


@dataclass(frozen=True, slots=True)
class Embedded:
    """One prompt's vector (`dimensions`,), and what it cost."""

    vector: Floats
    usage: Usage


def pooling_params(pooling: Pooling) -> SamplerParams:
    """Of a request that wants its prompt's embedding."""
    return SamplerParams(max_tokens=1, temperature=0.0, pooling=pooling)


def vector_of(embedding: bytes, dimensions: int | None = None, *, normalize: bool = True) -> Floats:
    """(`dimensions`,): of an embedding as the engine tells it, the first numbers, made as long as one where
    wanted."""
    vector = np.frombuffer(embedding, np.float32)[:dimensions]
    return normalised(vector) if normalize else vector


def normalised(vector: Floats) -> Floats:
    """(E,) of length one, computed in float64; zeros stay zeros."""
    wide = vector.astype(np.float64)
    length = np.sqrt(np.sum(wide * wide))
    return (wide / length).astype(np.float32) if length > 0.0 else vector


async def embed_all(
    model: EngineClient,
    prompts: Sequence[Sequence[int]],
    options: EmbeddingOptions,
    wanted: Request = _PLAIN,
    seen: Callable[[int, Delta], None] = lambda index, delta: None,
) -> list[Embedded]:
    """The prompts' vectors, in their order; `seen` gets every delta with its prompt's index. `wanted`: the
    tenant, priority, timeouts and salt of each prompt's request.

    One that fails takes all with it. Raises what `submit` raises, InvalidRequest for `dimensions`, TimedOut,
    RequestFailed and EngineStopped; then, and when it is cancelled, nothing of it runs any more.
    """
    if options.dimensions is not None:
        most = model.card.hidden_size
        require_range("dimensions", options.dimensions, 1, most, whole=True, hint="the model's hidden size")
    params = pooling_params(options.pooling or model.card.pooling)
    return await _Batch(model, options, replace(wanted, params=params), seen).run(prompts)


class _Batch:
    """The requests of one call."""

    def __init__(
        self,
        model: EngineClient,
        options: EmbeddingOptions,
        wanted: Request,
        seen: Callable[[int, Delta], None],
    ) -> None:
        self._model, self._options, self._wanted, self._seen = model, options, wanted, seen
        self._num_open = 0  # requests that the engine has taken, or is asked to take, and has not ended
        self._num_ended = 0
        self._ended = asyncio.Event()  # one has ended

    async def run(self, prompts: Sequence[Sequence[int]]) -> list[Embedded]:
        """All of them."""
        found: dict[int, Embedded] = {}
        rest = iter(enumerate(prompts))  # shared by the workers: each takes the next that none has taken

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

    async def _one(self, index: int, prompt: Sequence[int]) -> Embedded:
        """The vector of one prompt, as soon as the queue has room for it."""
        while True:
            before = self._num_ended
            self._num_open += 1
            try:
                return await self._follow(index, await self._submit(prompt))
            except QueueFull:
                # What filled the queue when it was asked may have ended before the answer is read here.
                if self._num_open == 1 and self._num_ended == before:
                    raise
            finally:
                self._num_open -= 1
            if self._num_ended == before:
                self._ended.clear()
                await self._ended.wait()

    async def _follow(self, index: int, stream: DeltaStream) -> Embedded:
        try:
            async for delta in stream:
                self._seen(index, delta)
                if delta.finish is not None:
                    return self._embedded(delta)
            raise RequestFailed("the request ended without an end")
        finally:
            stream.cancel()
            self._num_ended += 1
            self._ended.set()

    async def _submit(self, prompt: Sequence[int]) -> DeltaStream:
        return await self._model.submit(replace(self._wanted, prompt=tuple(prompt)))

    def _embedded(self, delta: Delta) -> Embedded:
        if delta.finish is FinishReason.TIMEOUT:
            raise TimedOut(delta.error)
        if delta.finish is FinishReason.CANCELLED:
            raise EngineStopped("the request was cancelled because the server is stopping")
        if delta.finish is FinishReason.ERROR or not delta.embedding:
            raise RequestFailed(delta.error or "the request failed")
        options = self._options
        vector = vector_of(delta.embedding, options.dimensions, normalize=options.normalize)
        return Embedded(vector, delta.usage)
