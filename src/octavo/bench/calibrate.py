"""Starts a server and loads it for two minutes with steps of all shapes, for `calibration.fit`.

The server is a process of its own, with its usual settings, and records its scheduler. Clients send requests
of random lengths in short phases, each with more requests at once, in several rounds.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import httpx2

from octavo.bench.calibration import Calibration, fit
from octavo.bench.endpoint import Client, Endpoint
from octavo.bench.load import first_token_s
from octavo.bench.workloads import FIRST_TOKEN
from octavo.config import StartOptions
from octavo.errors import RequestFailed

Serve = Callable[[StartOptions, int], None]  # serves with these settings on this port until it is killed
PROMPT_MIN, SHORT, LONGEST = 8, 64, 1024  # tokens of prompts
OUTPUT_MIN, OUTPUT_MAX = 8, 256
PHASE_S = 4.0  # short, in several rounds: a slow period of the machine affects all phases alike
MOVED_PROMPT, MOVED_OUTPUT = 512, 8  # tokens of a request whose blocks are stored in a tier and loaded
MOVED_MAX, MOVED_S = 64, 20.0  # the most such requests, and seconds to send them once
MOVED_POOL = 4  # of their prompts fit into the pool meanwhile
_READY_S = 600.0
_END_S = 30.0


def calibrate(
    serve: Serve, options: StartOptions, seconds: float, show: Callable[[str], None]
) -> Calibration:
    """Start the server, load it for so long, end it, and fit its recording. Raises RequestFailed if it does
    not start or answer."""
    with tempfile.TemporaryDirectory(prefix="octavo-calibrate-") as folder:
        recording = Path(folder) / "recording"
        port = _free_port()
        own = replace(options, record=recording)
        # A fork inherits the command's settings; no thread runs yet.
        process = multiprocessing.get_context("fork").Process(target=serve, args=(own, port), daemon=True)
        process.start()
        try:
            first = asyncio.run(_load(process, f"http://127.0.0.1:{port}/v1", options, seconds, show))
        finally:
            process.terminate()
            process.join(_END_S)
            if process.is_alive():
                process.kill()
                process.join()
        show("fitting the recording")
        return fit(recording, first)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _load(
    process: multiprocessing.process.BaseProcess,
    url: str,
    options: StartOptions,
    seconds: float,
    show: Callable[[str], None],
) -> list[float]:
    """Seconds to the first token of each request."""
    client = await _connected(process, Endpoint(url, ""), show)
    first = list[float]()
    async with client:
        at_once = [count for count in (1, 2, 4, 8, 16, 32, 64, 128, 256) if count <= options.max_seqs]
        rounds = max(1, int(seconds / (len(at_once) * PHASE_S)))
        ends = time.perf_counter()
        for index, count in enumerate(at_once * rounds):
            ends += seconds / (len(at_once) * rounds)
            show(f"calibrating: {count} requests at once, phase {index + 1} of {len(at_once) * rounds}")
            phase = _Phase(client, ends, max(SHORT, (options.context_length or LONGEST) // 2), first)
            is_last = count == at_once[-1]
            short = [is_last or number % 2 == 1 for number in range(count)]
            await asyncio.gather(
                *(phase.run_client(index, number, is_short=short[number]) for number in range(count))
            )
        if options.host_cache_bytes or options.disk_cache is not None:
            show("calibrating: transfers of blocks to a tier and back")
            await _move_blocks(client, url, options, first)
    return first


async def _move_blocks(client: Client, url: str, options: StartOptions, first_s: list[float]) -> None:
    """Send more prompts than the pool holds, twice, so that their blocks are stored and loaded. The pool is
    made small, so that few prompts suffice."""
    length = min(MOVED_PROMPT, (options.context_length or LONGEST) - MOVED_OUTPUT - 1)
    blocks = MOVED_POOL * -(-length // options.block_size)
    async with httpx2.AsyncClient(timeout=_READY_S) as pool:
        resized = await pool.patch(f"{url}/kv", json={"blocks": blocks})
    if resized.status_code != 200:
        raise RequestFailed(f"the server's pool did not shrink to {blocks} blocks: {resized.text}")
    r, sent = random.Random("moved"), list[list[int]]()
    ends = time.perf_counter() + MOVED_S
    while len(sent) < MOVED_MAX and time.perf_counter() < ends:
        sent.append([r.randrange(FIRST_TOKEN, 1000) for _ in range(length)])
        await _complete(client, sent[-1], first_s)
    for prompt in reversed(sent):  # the oldest may have been dropped from the tier
        await _complete(client, prompt, first_s)


async def _complete(client: Client, prompt: list[int], first_s: list[float]) -> None:
    answer = await client.complete(prompt, MOVED_OUTPUT)
    if answer.error:
        raise RequestFailed(f"the server did not answer: {answer.error} {answer.detail}")
    first_s.append(first_token_s(answer))


async def _connected(
    process: multiprocessing.process.BaseProcess, endpoint: Endpoint, show: Callable[[str], None]
) -> Client:
    until = time.perf_counter() + _READY_S
    while time.perf_counter() < until:
        if not process.is_alive():
            raise RequestFailed(f"the server ended with status {process.exitcode} before it was ready")
        client = Client(endpoint)
        try:
            return await client.__aenter__()
        except RequestFailed:
            await client.__aexit__(None, None, None)
            show("starting the server")
            await asyncio.sleep(0.2)
    raise RequestFailed(f"the server was not ready after {_READY_S:.0f} s")


@dataclass(slots=True)
class _Phase:
    """The shared state of a phase's clients."""

    client: Client
    ends: float
    longest: int  # tokens of a prompt
    first_s: list[float]

    async def run_client(self, phase: int, number: int, *, is_short: bool) -> None:
        """One client: requests one after another until the end; an unfinished one is cancelled. Short prompts
        let many sequences decode at once: every second client sends them, in the last phase all."""
        r = random.Random(f"{phase} {number}")
        longest = SHORT if is_short else min(LONGEST, self.longest)
        while time.perf_counter() < self.ends:
            prompt = [r.randrange(FIRST_TOKEN, 1000) for _ in range(_log_uniform(r, PROMPT_MIN, longest))]
            output = _log_uniform(r, OUTPUT_MIN, OUTPUT_MAX)
            try:
                async with asyncio.timeout(max(0.1, self.ends - time.perf_counter())):
                    answer = await self.client.complete(prompt, output)
            except TimeoutError:
                return
            if answer.error:
                raise RequestFailed(f"the server did not answer: {answer.error} {answer.detail}")
            self.first_s.append(first_token_s(answer))


def _log_uniform(r: random.Random, low: int, high: int) -> int:
    factor: float = (high / low) ** r.random()
    return round(low * factor)
