"""A worker without Dynamo's runtime around it, in Dynamo's environment: a line for each promise kept."""

from __future__ import annotations

import asyncio
import signal

from dynamo._core import Context
from tests.waiting import until

from octavo.dynamo.worker import OctavoWorker
from octavo.errors import ConfigError

FLAGS = ["--kv-memory", "64MiB", "--threads", "1"]
ENDLESS = {"token_ids": [*range(300, 340)], "stop_conditions": {"max_tokens": 2000, "ignore_eos": True}}


class Load:
    """Notes the load that is published."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def publish(self, rank: int, snapshot) -> None:
        assert rank == snapshot.dp_rank == 0
        self.held.append(snapshot.kv_used_blocks)


async def breaks_off_anywhere() -> None:
    worker, _ = await OctavoWorker.from_args(FLAGS)
    await worker.cleanup()  # nothing was begun
    wrong, _ = await OctavoWorker.from_args(["--kv-memory", "64KiB"])
    try:
        await wrong.start(2)
        raise AssertionError("a pool of 64 KiB was taken")
    except ConfigError:
        await wrong.cleanup()
        await wrong.cleanup()


async def answers(worker: OctavoWorker, request: dict, context: Context) -> list[dict]:
    return [chunk async for chunk in worker.generate(request, context)]


async def cancels_the_one_that_was_stopped(worker: OctavoWorker) -> None:
    stopped, other = Context("equal"), Context("equal")
    first, second = (asyncio.create_task(answers(worker, ENDLESS, own)) for own in (stopped, other))
    await until(lambda: len(worker._open) == 2)
    stopped.stop_generating()
    await worker.abort(stopped)
    chunks = await first
    assert chunks[-1]["finish_reason"] == "cancelled"
    assert chunks[-1]["completion_usage"]["completion_tokens"] < 2000
    assert not second.done()
    other.stop_generating()
    await worker.abort(other)
    await second
    early = Context("early")
    early.stop_generating()
    assert (await answers(worker, ENDLESS, early))[-1]["finish_reason"] == "cancelled"
    assert not worker._open


async def publishes_its_load_and_ends_with_its_engine(worker: OctavoWorker) -> None:
    load, ended = Load(), asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    worker.attach_snapshot_publisher(load)
    context = Context("one")
    task = asyncio.create_task(answers(worker, ENDLESS, context))
    await until(lambda: any(load.held))
    context.stop_generating()
    await worker.abort(context)
    await task
    await until(lambda: load.held[-1] == 0)
    worker._client.submitter.gave_up = "it failed again and again"
    await ended.wait()


async def main() -> None:
    await breaks_off_anywhere()
    print("broke off")
    worker, config = await OctavoWorker.from_args(FLAGS)
    begun = await worker.start(1)
    assert (begun.model, begun.served_model_name) == (config.model_name, config.served_model_name)
    assert (begun.llm.kv_cache_block_size, begun.llm.context_length) == (16, 8192)
    await cancels_the_one_that_was_stopped(worker)
    print("cancelled")
    await publishes_its_load_and_ends_with_its_engine(worker)
    print("published")
    await worker.cleanup()
    await worker.cleanup()
    print("cleaned up")


asyncio.run(asyncio.wait_for(main(), 120))
