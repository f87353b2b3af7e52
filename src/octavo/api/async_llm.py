"""The asynchronous API, for programs with an event loop, as vLLM's `AsyncLLM`: a thread runs the engine, and
each request is an async iterator of outputs.

    llm = AsyncLLM("smollm2-135m")
    async for output in llm.generate("Once upon a time", SamplingParams(max_tokens=32), "request-1"):
        print(output.outputs[0].text)
    llm.shutdown()
"""

from __future__ import annotations

import asyncio
import atexit
import itertools
import os
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Self, Unpack

from octavo.api.gather import OutputGatherer
from octavo.api.outputs import EmbeddingOutput, EmbeddingRequestOutput, RequestOutput
from octavo.api.params import PoolingParams, RequestOrder, RequestOutputKind, SamplingParams, order_of
from octavo.api.per_prompt import each_params, each_priority, refuse_lora
from octavo.api.prompts import Chat, Prompt, ReadPrompt, chat_options, listed_chats, read_chat, read_prompt
from octavo.api.settings import EngineArgs, Settings, resolve_settings
from octavo.api.tokenizer import TokenizerView
from octavo.config import StartOptions
from octavo.conversations.sessions import Sessions
from octavo.engine.control import Control
from octavo.engine.outputs import Delta, EngineStats
from octavo.engine.stream import DeltaStream
from octavo.errors import EngineStopped, InvalidRequest, RequestFailed, shown
from octavo.params import Pooling
from octavo.serving.client import EngineClient
from octavo.serving.embedding import EmbeddingOptions, embed_all
from octavo.serving.start import start_engine
from octavo.types import FinishReason, Request


@dataclass(slots=True)
class _RunningRequest:
    """A request, from its call to its end."""

    name: str
    is_aborted: bool = False
    cancel: Callable[[], object] | None = None  # None: nothing to cancel yet

    def abort(self) -> None:
        """End it now, or as soon as it can be cancelled."""
        self.is_aborted = True
        if self.cancel is not None:
            self.cancel()

    def started(self, cancel: Callable[[], object]) -> None:
        """`cancel` ends it from now on."""
        self.cancel = cancel
        if self.is_aborted:
            cancel()


class AsyncLLM:
    """A model in this process, and a thread that runs its engine; `model` and `settings` are as for `LLM`.

    Loading takes a while and blocks the event loop. Shut it down, or use it in a `with` or `async with`
    statement; afterwards it raises EngineStopped. It is shut down at the end of the program at the latest.
    Raises ConfigError or ModelError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        options: StartOptions | None = None,
        progress: Callable[[str], None] = lambda text: None,
        **settings: Unpack[Settings],
    ) -> None:
        name = None if model is None else os.fspath(model)
        resolved = resolve_settings(name, options, settings)
        self._client: EngineClient = start_engine(name, resolved.options, progress)
        self._seeds = None if resolved.seed is None else random.Random(resolved.seed)
        self._numbers = itertools.count()  # for requests without an id of the caller
        self._is_closed = False
        self._running: dict[str, _RunningRequest] = {}  # by the caller's id
        # The exit handler holds only the client, as does the client's own thread. Not closed when this object
        # is collected: that may happen on any thread, even on one that holds the client's lock.
        atexit.register(self._client.close)

    @classmethod
    def from_engine_args(cls, engine_args: EngineArgs) -> Self:
        """An engine from settings as a value."""
        return cls(engine_args.model, **engine_args.settings)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.shutdown()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        self.shutdown()

    @property
    def sessions(self) -> Sessions:
        """Chats whose blocks are kept between their turns."""
        return self._client.sessions

    @property
    def control(self) -> Control:
        """Views of pool and requests, pins, and the pool's size."""
        return self._client.control

    async def stats(self) -> EngineStats:
        """Counts and times, computed between two steps."""
        return await self._client.stats()

    def get_tokenizer(self) -> TokenizerView:
        """The model's tokenizer, by the names of transformers."""
        return TokenizerView(self._client.tokenizer)

    def generate(
        self,
        prompt: Prompt,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        lora_request: object = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Complete one prompt: its outputs as they grow, or as `sampling_params.output_kind` says; the last
        one is `finished`. Lower `priority` runs earlier. Leaving the iteration cancels the request.

        The iterator raises InvalidRequest, RequestTooLarge, QueueFull or EngineStopped before the first
        output, RequestFailed at any time.
        """
        refuse_lora(lora_request)

        def read() -> ReadPrompt:
            return read_prompt(prompt, self._client.tokenizer)

        return self._outputs(read, sampling_params, request_id, priority)

    def chat(
        self,
        messages: Chat | str,
        sampling_params: SamplingParams | None = None,
        request_id: str | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        tools: Sequence[Mapping[str, object]] | None = None,
        chat_template_kwargs: Mapping[str, object] | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Answer one chat, rendered with the model's own template; as `generate`, and as `LLM.chat`."""

        def read() -> ReadPrompt:
            chats = listed_chats(messages)
            if len(chats) != 1:
                raise InvalidRequest(f"messages is {len(chats)} chats; allowed: one", param="messages")
            options = chat_options(add_generation_prompt, continue_final_message, chat_template_kwargs, tools)
            return read_chat(chats[0], options, self._client.tokenizer)

        return self._outputs(read, sampling_params, request_id, priority)

    async def embed(
        self,
        prompt: Prompt,
        pooling_params: PoolingParams | None = None,
        request_id: str | None = None,
        *,
        priority: int = 0,
    ) -> EmbeddingRequestOutput:
        """The vector of one prompt. Raises as the iterator of `generate`, and RequestFailed when it is
        aborted."""
        self._check_open()
        params = pooling_params or PoolingParams()
        params.check()
        (rank,) = each_priority(priority, 1)
        pooling = None if params.pooling is None else Pooling(params.pooling)
        options = EmbeddingOptions(pooling, params.dimensions, params.normalize)
        with self._registered(request_id) as running:
            work = asyncio.ensure_future(self._embedded(running.name, prompt, options, -rank))
            running.started(work.cancel)
            try:
                await asyncio.wait([work])
            finally:
                if not work.done():  # the caller was cancelled
                    work.cancel()
                    await asyncio.wait([work])
            if work.cancelled():
                raise RequestFailed(f"the request {shown(running.name)} was aborted")
            return work.result()

    async def _embedded(
        self, name: str, prompt: Prompt, options: EmbeddingOptions, priority: int
    ) -> EmbeddingRequestOutput:
        read = await asyncio.to_thread(read_prompt, prompt, self._client.tokenizer)
        wanted = Request(priority=priority, cache_salt=read.cache_salt)
        (found,) = await embed_all(self._client, [read.tokens], options, wanted)
        vector = EmbeddingOutput(found.vector.tolist())
        return EmbeddingRequestOutput(
            name, vector, list(read.tokens), num_cached_tokens=found.usage.num_cached
        )

    async def abort(self, request_id: str | Iterable[str]) -> None:
        """End requests, including those whose prompts are being read; their last outputs have reason "abort".
        Unknown ids are ignored, because they may have just finished."""
        for name in [request_id] if isinstance(request_id, str) else request_id:
            running = self._running.get(name)
            if running is not None:
                running.abort()

    def shutdown(self) -> None:
        """Stop the engine after the current step; open requests fail. Idempotent."""
        self._is_closed = True
        self._client.close()
        atexit.unregister(self._client.close)

    def _check_open(self) -> None:
        if self._is_closed:
            raise EngineStopped("this AsyncLLM was shut down; make another one to go on")

    async def _outputs(
        self,
        read: Callable[[], ReadPrompt],
        params: SamplingParams | None,
        request_id: str | None,
        priority: int,
    ) -> AsyncGenerator[RequestOutput, None]:
        self._check_open()
        arrival = time.time()
        with self._registered(request_id) as running:
            (given,), (rank,) = each_params(params, 1), each_priority(priority, 1)
            order = order_of(given, self._client.tokenizer)
            order = order if self._seeds is None else order.with_seed(self._seeds.getrandbits(63))
            prompt = (await asyncio.to_thread(read)).cut_to(
                order.truncate_prompt_tokens, self._client.context_length - 1
            )
            fitted = order.params_for(len(prompt.tokens), self._client.context_length)
            stream = await self._client.submit(
                Request(
                    prompt=tuple(prompt.tokens),
                    params=fitted,
                    n=order.n,
                    priority=-rank,
                    cache_salt=prompt.cache_salt,
                )
            )
            running.started(stream.cancel)
            gathered = OutputGatherer(running.name, prompt.text, prompt.tokens, order, arrival)
            async with aclosing(_outputs_of(stream, gathered, order)) as outputs:
                async for output in outputs:
                    yield output

    @contextmanager
    def _registered(self, request_id: str | None) -> Iterator[_RunningRequest]:
        """A request that `abort` finds by its id. Raises InvalidRequest if the id is in use."""
        name = self._named(request_id)
        if name in self._running:
            raise InvalidRequest(
                f"request_id is {name!r:.80}, and such a request runs; allowed: one that none has",
                param="request_id",
            )
        running = self._running[name] = _RunningRequest(name)
        try:
            yield running
        finally:
            del self._running[name]

    def _named(self, request_id: str | None) -> str:
        if request_id is None:
            return f"octavo-{next(self._numbers)}"
        if not isinstance(request_id, str):
            raise InvalidRequest(f"request_id is {request_id!r:.80}; allowed: text", param="request_id")
        return request_id


async def _outputs_of(
    stream: DeltaStream, gathered: OutputGatherer, order: RequestOrder
) -> AsyncGenerator[RequestOutput, None]:
    """The outputs of a request. However the iteration ends, the request is cancelled."""
    kind = order.output_kind
    try:
        async for delta in stream:
            _check(delta)
            gathered.take(delta, time.time())
            if kind is RequestOutputKind.DELTA:
                yield gathered.take_new(delta.choice)
            elif kind is RequestOutputKind.CUMULATIVE or gathered.finished:
                yield gathered.output()
    finally:
        stream.cancel()


def _check(delta: Delta) -> None:
    """Raise RequestFailed for a failed choice."""
    if delta.finish in (FinishReason.ERROR, FinishReason.DEAD_END):
        raise RequestFailed(delta.error or "the request failed")
