"""Threads that compile what answers must follow, which tenants share: each waits for the trial in a process,
and compiles what passed it. Tokenising has threads of its own, and never waits for these."""

from __future__ import annotations

import asyncio
import threading
from asyncio import wrap_future
from collections.abc import Callable
from concurrent.futures import Future
from threading import Event
from typing import TypeVar

from octavo.engine.fair_threads import FairThreads
from octavo.engine.requests import ModelFacts, compile_grammar
from octavo.params import SamplerParams
from octavo.sampling.grammars import CompiledGrammar

THREADS = 4
AT_ONCE_MAX = 2  # of one tenant
GRAMMARS_WAIT = (
    "{:,} grammars wait to be compiled; allowed: {:,} (settings max_queue and max_seqs); try again shortly"
)

ResultT = TypeVar("ResultT")


class Compilers:
    """Of one served model. `waiting_max`: grammars of a tenant."""

    def __init__(self, facts: ModelFacts, waiting_max: int) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._stops: set[Event] = set()  # guarded by _lock: of what runs, or waits
        self._threads = FairThreads(THREADS, waiting_max, "octavo-compiler", GRAMMARS_WAIT, AT_ONCE_MAX)

    async def compiled(self, params: SamplerParams, tenant: str) -> CompiledGrammar | None:
        """The compiled grammar that an answer must follow, if any; at once where it is known. Raises
        InvalidRequest and QueueFull."""
        facts = self._facts
        if params.grammar is None or facts.grammars is None:
            return None  # `checked` refuses what cannot be led
        known = facts.grammars.known(params.grammar.of_tenant(tenant))
        if known is not None:
            return known
        return await self.run(tenant, lambda stop: compile_grammar(params, facts, tenant, stop))

    async def run(self, tenant: str, work: Callable[[Event], ResultT]) -> ResultT:
        """What `work` returns, on a thread. When this is cancelled, its event is set: it shall end soon."""
        stop = Event()
        try:
            return await wrap_future(self.start(tenant, lambda: work(stop), stop))
        except asyncio.CancelledError:
            stop.set()
            raise

    def start(self, tenant: str, work: Callable[[], ResultT], stop: Event) -> Future[ResultT]:
        """The same for any thread: `work` shall end soon after `stop` was set. Raises QueueFull or
        EngineStopped."""
        future = self._threads.submit(tenant, work)
        with self._lock:
            self._stops.add(stop)
        future.add_done_callback(lambda _: self._forget(stop))
        return future

    def _forget(self, stop: Event) -> None:
        with self._lock:
            self._stops.discard(stop)

    def close(self) -> None:
        """Compile nothing any more."""
        self._threads.close()
        with self._lock:
            stops = list(self._stops)
        for stop in stops:
            stop.set()
        if self._facts.grammars is not None:
            self._facts.grammars.close()
