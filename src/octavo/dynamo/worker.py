"""A Dynamo worker with an engine in this process: token ids in, token ids out.

    frontend: template, tokens, routing, text  --tcp-->  generate()  -->  EngineClient
    router's index  <--  Dynamo's worker  <--ipc--  KV events of `octavo.kv_events`

Dynamo subscribes to the engine's own events (`ZmqSource`). The alternative, calls of `KvEventPublisher`
(`PushSource`), has no medium, so host memory and disk would count as the pool, and its hashes are signed.
No event before the subscription is lost: the publisher sends all blocks to a new subscriber. The socket is in
a folder that only this user can read, unless `--kv-events` names another endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from dataclasses import replace

from dynamo._core import Context
from dynamo._core.backend import SnapshotPublisher
from dynamo.common.backend.engine import (
    EngineConfig,
    GenerateChunk,
    GenerateRequest,
    LLMEngine,
    LlmRegistration,
)
from dynamo.common.backend.publisher import ComponentSnapshot, KvEventSource, ZmqSource
from dynamo.common.backend.worker import WorkerConfig
from dynamo.llm.exceptions import EngineShutdown, HttpError, InvalidArgument, Unknown

from octavo.dynamo.command import WorkerCommand, read_command
from octavo.dynamo.model_folder import model_folder
from octavo.dynamo.translation import chunk_of, request_of
from octavo.engine.outputs import TokenInfo
from octavo.engine.stream import DeltaStream
from octavo.errors import EngineStopped, InvalidRequest, OctavoError, QueueFull
from octavo.model.hub.paths import cache_folder
from octavo.serving.client import EngineClient
from octavo.serving.start import start_engine, start_renderer

log = logging.getLogger("octavo.dynamo")
LOAD_S = 0.25  # between two reads of the engine's load


class OctavoWorker(LLMEngine):
    """The engine for Dynamo, which calls `from_args`, `start`, `generate` for each request, and `cleanup`."""

    def __init__(self, command: WorkerCommand, folder: str) -> None:
        self._command, self._folder = command, folder
        self._client: EngineClient | None = None
        self._sockets: str | None = None  # the folder of the events' socket
        self._open: dict[DeltaStream, Context] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._load: Future[None] | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[OctavoWorker, WorkerConfig]:
        """From a command line; reads the model's headers. Raises ModelError or ConfigError."""
        command = read_command(argv)
        options = command.worker
        folder, name = await asyncio.to_thread(_folder_of, command)
        config = WorkerConfig(
            namespace=options.namespace,
            component=options.component,
            model_name=folder,
            served_model_name=name,
            endpoint=options.endpoint,
            endpoint_types=options.endpoint_types,
            discovery_backend=options.discovery_backend,
            request_plane=options.request_plane,
            event_plane=options.event_plane,
            tool_call_parser=options.dyn_tool_call_parser,
            reasoning_parser=options.dyn_reasoning_parser,
        )
        return cls(command, folder), config

    async def start(self, worker_id: int) -> EngineConfig:
        """Load the model. Raises ModelError or ConfigError."""
        self._loop = asyncio.get_running_loop()
        options = self._command.engine
        if options.kv_events is None:
            self._sockets = tempfile.mkdtemp(prefix="octavo-dynamo-")
            options = replace(options, kv_events=f"ipc://{self._sockets}/events")
        client = await asyncio.to_thread(start_engine, self._command.model, options, log.info)
        self._client = client
        stats = await client.stats()
        registration = LlmRegistration(
            context_length=client.context_length,
            kv_cache_block_size=client.block_size,
            total_kv_blocks=stats.blocks_total,
            max_num_seqs=options.max_seqs,
            max_num_batched_tokens=options.step_tokens,
        )
        return EngineConfig(self._folder, client.name, llm=registration)

    async def generate(
        self, request: GenerateRequest, context: Context
    ) -> AsyncGenerator[GenerateChunk, None]:
        """Answer a request with a chunk for each delta. Raises Dynamo's exceptions."""
        client = self._started
        with _dynamo_errors():
            template = client.tokenizer.chat_template
            thinking = None if template is None else template.thinking_format
            translated = request_of(request, thinking, client.context_length)
            stream = await client.submit(translated)
            self._open[stream] = context
            try:
                if context.is_stopped():  # while it was queued
                    stream.cancel()
                of_prompt: list[TokenInfo] = []
                async for delta in stream:
                    of_prompt += delta.prompt_logprobs
                    yield chunk_of(delta, translated.params, of_prompt)
            finally:
                del self._open[stream]
                stream.cancel()

    async def abort(self, context: Context) -> None:
        """The client disconnected, or the frontend found a stop string. Ids may be equal: clients set
        them."""
        for stream, own in self._open.items():
            if own.id() == context.id() and own.is_stopped():
                stream.cancel()

    async def kv_event_sources(self) -> list[KvEventSource]:
        """The endpoint to which Dynamo subscribes."""
        source = self._started.event_source
        assert source is not None
        return [ZmqSource(str(source["endpoint"]), str(source["topic"]))]

    def component_metrics_dp_ranks(self) -> list[int]:
        """One rank."""
        return [0]

    def attach_snapshot_publisher(self, publisher: SnapshotPublisher) -> None:
        """Publish the load until `cleanup`."""
        assert self._loop is not None
        self._load = asyncio.run_coroutine_threadsafe(self._publish_load(publisher), self._loop)

    async def cleanup(self) -> None:
        """Close the engine and remove the socket. Idempotent."""
        if self._load is not None:
            self._load.cancel()
        client, self._client = self._client, None
        if client is not None:
            await asyncio.to_thread(client.close)
        sockets, self._sockets = self._sockets, None
        if sockets is not None:
            shutil.rmtree(sockets, ignore_errors=True)

    @property
    def _started(self) -> EngineClient:
        """Raises EngineShutdown before `start` and after `cleanup`."""
        if self._client is None:
            raise EngineShutdown("the engine does not run")
        return self._client

    async def _publish_load(self, publisher: SnapshotPublisher) -> None:
        """Publish the blocks in use when they change. If the engine has given up, end this process in
        order."""
        published: ComponentSnapshot | None = None
        while (client := self._client) is not None:
            if client.gave_up is not None:
                log.error("the worker exits: %s", client.gave_up)
                os.kill(os.getpid(), signal.SIGTERM)
                return
            stats = await client.stats()
            total, found = max(1, stats.blocks_total), stats.cached_tokens
            rate = found / stats.prompt_tokens if stats.prompt_tokens else None
            snapshot = ComponentSnapshot(
                stats.blocks_held, stats.blocks_total, stats.blocks_held / total, 0, rate
            )
            if snapshot != published:
                publisher.publish(0, snapshot)
                published = snapshot
            await asyncio.sleep(LOAD_S)


def _folder_of(command: WorkerCommand) -> tuple[str, str]:
    """The model's folder for Dynamo, and its name."""
    renderer = start_renderer(command.model, command.engine, log.info)
    try:
        return str(model_folder(renderer, cache_folder() / "dynamo")), renderer.name
    finally:
        renderer.close()


@contextlib.contextmanager
def _dynamo_errors() -> Iterator[None]:
    """Raise Octavo's exceptions as Dynamo's, with the same texts."""
    try:
        yield
    except InvalidRequest as error:
        raise InvalidArgument(str(error)) from error
    except QueueFull as error:
        raise HttpError(429, str(error)) from error
    except EngineStopped as error:
        raise EngineShutdown(str(error)) from error
    except OctavoError as error:
        raise Unknown(str(error)) from error
