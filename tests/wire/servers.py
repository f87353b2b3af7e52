"""Real servers over scripted engines: uvicorn as `octavo serve` runs it, on loopback, in one thread.

Each scenario has an engine and a server of its own, so ids, caches and counts start from nothing. A `Gate` in
front of the executor lets a scenario hold the engine between two steps: what clients then send meets a known
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.server.tenants import TENANTS
from tests.waiting import turns
from tests.wire.scripted import STEP_S, build_scripted, new_tokenizer

from octavo.config import StartOptions
from octavo.engine.inbox import Envelope, Inbox
from octavo.errors import EngineStopped
from octavo.executor.executor import Executor, PendingResult
from octavo.server.run import bind, build_server
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.serving.client import EngineClient
from octavo.serving.front_end_link import FrontEnds
from octavo.serving.remote_host import RemoteHost, client_over
from octavo.serving.start import StartedEngine, client_of
from octavo.types import StepPlan

WAIT_S: Final = 60.0  # for what comes at once, unless something is broken
KEY: Final = "sk-golden"
BODY_BYTES_MAX: Final = 20_000
_LOOP_TURNS: Final = 16  # more than a delta needs on its way from the engine to the socket
_FOLDER: Final = "disk"


class Gate:
    """An executor that lets a given number of steps pass, each when the event loop has sent on what the one
    before it gave: so threads race nowhere. It is also the engine's clock."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self._settle = settle
        self._inner: Executor | None = None
        self._changed = threading.Condition()
        self._allowed: int | None = None  # None: any number
        self._num_steps = 0
        self._is_before = False  # the engine's thread is before a step

    def over(self, inner: Executor) -> Executor:
        """In front of that executor."""
        self._inner = inner
        return self

    def clock(self) -> float:
        """Seconds: each step takes the same."""
        return self._num_steps * STEP_S

    def submit(self, plan: StepPlan) -> PendingResult:
        """Start a plan, once it may."""
        assert self._inner is not None
        self._settle()
        with self._changed:
            self._is_before = True
            self._changed.notify_all()
            passed = self._changed.wait_for(
                lambda: self._allowed is None or self._num_steps < self._allowed, WAIT_S
            )
            assert passed, "the engine was held too long"
            self._is_before = False
            self._num_steps += 1
        return self._inner.submit(plan)

    def allow(self, more: int | None) -> None:
        """Let so many more steps pass, or all."""
        with self._changed:
            self._allowed = None if more is None else self._limit + more
            self._changed.notify_all()

    def wait_held(self) -> None:
        """Until the engine has done what it may, and would do more."""
        with self._changed:
            held = self._changed.wait_for(
                lambda: self._is_before and self._num_steps == self._allowed, WAIT_S
            )
            assert held, "the engine has nothing to do"

    @property
    def _limit(self) -> int:
        return self._num_steps if self._allowed is None else self._allowed

    def close(self) -> None:
        """Let go of what the executor has."""
        assert self._inner is not None
        self._inner.close()


class GatheringInbox:
    """In the place of an inbox's `_put`: tells when commands have come, and may hand several over at once."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._put = inbox._put
        self._came = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._gathered: list[Envelope[object]] = []
        self._wanted = 1
        inbox._put = self.put  # type: ignore[method-assign]

    def put(self, command: Envelope[object]) -> None:
        """Append, and wake the engine, or wait for others."""
        with self._lock:
            if self._wanted > 1:
                self._gathered.append(command)
                if len(self._gathered) == self._wanted:
                    self._wanted = 1
                    self._inbox.put_back(self._gathered)
                    self._gathered = []
            else:
                self._put(command)
        self._came.release()

    def gather(self, count: int) -> None:
        """Hand over the next so many together."""
        with self._lock:
            self._wanted = count

    def forget(self) -> None:
        """What has come so far is not waited for."""
        while self._came.acquire(blocking=False):
            pass

    def wait(self) -> None:
        """Until one more has come."""
        assert self._came.acquire(timeout=WAIT_S), "no command came"


@dataclass(frozen=True, slots=True)
class Served:
    """One scenario's server."""

    port: int
    client: EngineClient
    gate: Gate
    inbox: GatheringInbox


def _open(folder: Path) -> ServerSettings:
    return ServerSettings(body_bytes_max=BODY_BYTES_MAX)


def _keys(folder: Path) -> ServerSettings:
    return ServerSettings(
        api_keys=(KEY,), allowed_origins=("https://app.example",), body_bytes_max=BODY_BYTES_MAX
    )


def _tenants(folder: Path) -> ServerSettings:
    path = folder / "tenants.toml"
    path.write_text(TENANTS)
    return ServerSettings(roster=TenantRegistry(path), body_bytes_max=BODY_BYTES_MAX)


_KINDS: Final[dict[str, Callable[[Path], ServerSettings]]] = {
    "open": _open,
    "keys": _keys,
    "tenants": _tenants,
    _FOLDER: _open,
}


class ServerThread:
    """An event loop in a thread, and the servers on it. `is_front_end`: each has its engine at the other end
    of a channel, as front ends have."""

    def __init__(self, folder: Path, *, is_front_end: bool = False) -> None:
        self._folder = folder
        self._is_front_end = is_front_end
        self._arrive: Callable[[], object] = lambda: None  # returns when what the engine sent has come
        self._numbers = itertools.count()
        self._tokenizer = new_tokenizer()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="wire-servers", daemon=True)
        self._thread.start()
        self._open: list[tuple[EngineClient, Callable[[], None], Future[None]]] = []

    def run(self, work: Coroutine[None, None, None]) -> Future[None]:
        """Start it on the loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    @contextmanager
    def serve(self, kind: str) -> Iterator[Served]:
        """A server of a kind. It ends on its own time; the next ones look whether it has."""
        self._close_ended()
        folder = self._folder / str(next(self._numbers))
        folder.mkdir()
        gate, settings = Gate(self._settle), _KINDS[kind](folder)
        disk = folder / "blocks" if kind == _FOLDER else None
        policies_of = None if settings.roster is None else settings.roster.tenants.policies
        started, options = build_scripted(self._tokenizer, gate.over, gate.clock, disk, policies_of)
        inbox = GatheringInbox(started.engine.inbox)
        if self._is_front_end:
            client, close = self._at_the_other_end(started, options, gate)
        else:
            client = client_of(started, options)
            close = client.close
        listener = bind("127.0.0.1", 0)
        ready = threading.Event()
        server = build_server(client, settings, lambda url: ready.set())
        running = self.run(server.serve(sockets=[listener]))
        self._open.append((client, close, running))
        assert ready.wait(WAIT_S)
        try:
            yield Served(listener.getsockname()[1], client, gate, inbox)
        finally:
            gate.allow(None)
            server.should_exit = True

    def _at_the_other_end(
        self, started: StartedEngine, options: StartOptions, gate: Gate
    ) -> tuple[EngineClient, Callable[[], None]]:
        """A client over a channel, and what ends the engine."""
        front_ends = FrontEnds(started, options, 1, lambda reason: None)
        ours, theirs = socket.socketpair()
        front_ends.add(ours, 0)
        host = RemoteHost(theirs)
        host.clock = gate.clock  # type: ignore[method-assign]
        self._arrive = host.store.num_recoveries
        return client_over(host, self._tokenizer), front_ends.close

    def _settle(self) -> None:
        with contextlib.suppress(EngineStopped):  # the client has closed
            self._arrive()
        self.run(turns(_LOOP_TURNS)).result(WAIT_S)

    def _close_ended(self) -> None:
        for client, close, running in self._open:
            if running.done():
                client.close()
                close()  # the engine: again, where it is the client's
        self._open = [one for one in self._open if not one[-1].done()]

    def close(self) -> None:
        """End everything."""
        for *_, running in self._open:
            running.result(WAIT_S)
        self._close_ended()
        self._tokenizer.end()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(WAIT_S)
        self._loop.close()
