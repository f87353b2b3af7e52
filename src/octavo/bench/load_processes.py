"""Load from several processes: one Python process reads about ten thousand events a second, and would be the
bottleneck in place of a fast server.

    parent --job, JSON--> worker 0 ... worker N-1     each has every N-th script, and a part of the clients
           <--- ready --- all
           ----- go ----> all at once
           <-- answers -- as they end; all on one clock (time.perf_counter is the machine's)
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace

import msgspec

from octavo.bench.endpoint import Answer, Client, Endpoint
from octavo.bench.load import Arrival, LoadReport, Progress, report_of, scripts_of, send
from octavo.bench.workloads import LoadProfile, WorkloadTargets
from octavo.errors import RequestFailed

_LINE_BYTES_MAX = 1 << 26
_READY, _GO = b"ready\n", b"go\n"


@dataclass(frozen=True, slots=True)
class Job:
    """One worker's job."""

    endpoint: Endpoint
    load: LoadProfile
    num_requests: int  # of all workers
    arrival: Arrival  # its own part
    index: int
    num_workers: int


def parts_of(arrival: Arrival, count: int) -> list[Arrival]:
    """The load divided over `count` processes, or fewer if there are fewer clients."""
    if arrival.rate_per_s is not None:
        return [replace(arrival, rate_per_s=arrival.rate_per_s / count)] * count
    count = min(count, arrival.concurrency)
    whole, more = divmod(arrival.concurrency, count)
    return [Arrival(whole + (index < more)) for index in range(count)]


async def apply_from_processes(
    endpoint: Endpoint,
    load: LoadProfile,
    num_requests: int,
    arrival: Arrival,
    targets: WorkloadTargets,
    count: int,
    show: Callable[[str], None] = lambda text: None,
) -> LoadReport:
    """Like `load.apply`, from up to `count` processes. Raises RequestFailed if one of them ends early."""
    parts = parts_of(arrival, count)
    progress = Progress(sum(map(len, scripts_of(load, num_requests))), show)
    jobs = [Job(endpoint, load, num_requests, part, index, len(parts)) for index, part in enumerate(parts)]
    async with contextlib.AsyncExitStack() as stack:
        workers = [await stack.enter_async_context(_worker(job)) for job in jobs]
        for worker in workers:
            if await _line(worker) != _READY:
                raise RequestFailed("a load process did not start")
        started = time.perf_counter()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write(_GO)
        await asyncio.gather(*(_collect(worker, progress) for worker in workers))
        seconds = time.perf_counter() - started
    if len(progress.answers) != progress.total:
        raise RequestFailed("a load process ended before all answers had arrived")
    return report_of(load.kind, arrival.in_words(), progress, targets, seconds)


@contextlib.asynccontextmanager
async def _worker(job: Job) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process with its job; killed at the end of the block."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        __name__,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        limit=_LINE_BYTES_MAX,
    )
    try:
        assert worker.stdin is not None
        worker.stdin.write(msgspec.json.encode(job) + b"\n")
        yield worker
    finally:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


async def _line(worker: asyncio.subprocess.Process) -> bytes:
    assert worker.stdout is not None
    return await worker.stdout.readline()


async def _collect(worker: asyncio.subprocess.Process, progress: Progress) -> None:
    while line := await _line(worker):
        progress.add(msgspec.json.decode(line, type=Answer))


async def work() -> None:
    """A worker: reads its job from standard input, writes its answers to standard output."""
    job = msgspec.json.decode(sys.stdin.buffer.readline(), type=Job)
    scripts = scripts_of(job.load, job.num_requests)[job.index :: job.num_workers]
    seed = f"{job.load.seed} of {job.index}" if job.num_workers > 1 else str(job.load.seed)

    def write(data: bytes) -> None:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def add(answer: Answer) -> None:
        write(msgspec.json.encode(answer) + b"\n")

    async with Client(job.endpoint) as client:
        write(_READY)
        await asyncio.to_thread(sys.stdin.buffer.readline)
        await send(client, scripts, job.arrival, seed, add)


if __name__ == "__main__":
    asyncio.run(work())
