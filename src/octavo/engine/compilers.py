"""Threads that compile grammars, shared by tenants: each first waits for a trial in a separate process.
Tokenising has threads of its own, and never waits for these."""

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
AT_ONCE_MAX = 2  # per tenant
GRAMMARS_WAIT = (
    "{:,} grammars wait to be compiled; allowed: {:,} (settings max_queue and max_seqs); try again shortly"
)

ResultT = TypeVar("ResultT")


class Compilers:
    """The compiling threads of one served model. `waiting_max`: grammars per tenant."""

    def __init__(self, facts: ModelFacts, waiting_max: int) -> None:
        self._facts = facts
        self._lock = threading.Lock()
        self._stops: set[Event] = set()  # guarded by _lock: of running and waiting work
        self._threads = FairThreads(THREADS, waiting_max, "octavo-compiler", GRAMMARS_WAIT, AT_ONCE_MAX)

    async def compiled(self, params: SamplerParams, tenant: str) -> CompiledGrammar | None:
        """The compiled grammar of an answer, if it has one; immediately if it is known. Raises InvalidRequest
        and QueueFull."""
        facts = self._facts
        if params.grammar is None or facts.grammars is None:
            return None  # `checked` refuses what cannot be constrained
        known = facts.grammars.known(params.grammar.of_tenant(tenant))
        if known is not None:
            return known
        return await self.run(tenant, lambda stop: compile_grammar(params, facts, tenant, stop))

    async def run(self, tenant: str, work: Callable[[Event], ResultT]) -> ResultT:
        """The result of `work`, on a thread. Cancellation sets the event: `work` must end soon."""
        stop = Event()
        try:
            return await wrap_future(self.start(tenant, lambda: work(stop), stop))
        except asyncio.CancelledError:
            stop.set()
            raise

    def start(self, tenant: str, work: Callable[[], ResultT], stop: Event) -> Future[ResultT]:
        """As `run`, for any thread: `work` must end soon after `stop` is set. Raises QueueFull or
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
        """Stop compiling."""
        self._threads.close()
        with self._lock:
            stops = list(self._stops)
        for stop in stops:
            stop.set()
        if self._facts.grammars is not None:
            self._facts.grammars.close()
