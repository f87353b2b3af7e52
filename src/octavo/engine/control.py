"""The ledger as others may see and change it: views of pool and requests, and pins. Asynchronous, on any
event loop.

Every answer is made by the engine's thread between two steps, so the numbers of one answer belong together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from octavo.engine.stream import DeltaStream
from octavo.errors import PinRefused, RequestFailed, ResizeRefused, require_range
from octavo.inspect.glimpse import Glimpse
from octavo.inspect.inspector import Inspector
from octavo.inspect.own_views import OwnKvView
from octavo.inspect.views import KvView, MapView, PinView, RequestView, view_pin
from octavo.memory.quota import TenantPolicy
from octavo.retention.client_pins import NOT_FILLED, PREEMPTED_LATE, PinOrder
from octavo.scheduler.scheduler import Scheduler

AnswerT = TypeVar("AnswerT")
_FILL_ATTEMPTS = 3
_BLOCKS_MAX = 2**40
_RESIZE_ATTEMPTS, _RESIZE_PAUSE_S = 500, 0.02  # blocks in transfer cannot move


class Asks(Protocol):
    """The client through which the engine's thread is asked; see `EngineClient`."""

    async def ask(self, question: Callable[[Scheduler, float], AnswerT]) -> AnswerT:
        """What the scheduler answers between two steps."""

    async def look(self, question: Callable[[Inspector, float], AnswerT]) -> AnswerT:
        """The same of one that only reads."""

    def tell(self, change: Callable[[Scheduler, float], object]) -> None:
        """Ask, and wait for no answer."""

    async def submit_pin(self, order: PinOrder) -> DeltaStream:
        """Queue the request that fills a pin."""


class Control:
    """What `EngineClient.control` offers. Raises EngineStopped when the engine is gone."""

    def __init__(self, llm: Asks) -> None:
        self._llm = llm

    async def kv(self) -> KvView:
        """Pool, pins, and what happened lately."""
        return await self._llm.look(lambda inspector, now: inspector.kv(now))

    async def own_kv(self, tenant: str) -> OwnKvView:
        """What of it is the tenant's."""
        return await self._llm.look(lambda inspector, now: inspector.own_kv(tenant, now))

    async def map(self, tenant: str | None = None) -> MapView:
        """Every block and its owners; or only the tenant's."""
        return await self._llm.look(lambda inspector, now: inspector.map(tenant))

    async def glimpse(self, below_from: int, tenant: str | None = None) -> Glimpse:
        """All that the live map shows, or what of it is the tenant's; see `octavo.inspect.glimpse`."""
        return await self._llm.look(lambda inspector, now: inspector.glimpse(now, below_from, tenant))

    async def requests(self, tenant: str | None = None) -> list[RequestView]:
        """All that have not ended, or the tenant's, in order of arrival."""
        return await self._llm.look(lambda inspector, now: inspector.requests(now, tenant))

    async def request(self, request_id: int, tenant: str | None = None) -> RequestView | None:
        """One of them; None when it has ended, or never was, or is not the tenant's."""
        return await self._llm.look(lambda inspector, now: inspector.request(request_id, now, tenant))

    async def set_tenants(self, policies: Sequence[TenantPolicy]) -> None:
        """Let these bounds hold from the next step on, and none of before.

        Raises TenantsRefused; then nothing has changed.
        """
        await self._llm.ask(lambda s, now: s.tenants.set_policies(policies))

    async def resize(self, num_blocks: int) -> KvView:
        """Make the pool larger or smaller while it serves; returns when that is done.

        Raises InvalidRequest or ResizeRefused.
        """
        require_range("blocks", num_blocks, 1, _BLOCKS_MAX)
        for _ in range(_RESIZE_ATTEMPTS):
            if await self._llm.ask(lambda scheduler, now: scheduler.resizing.resize(num_blocks)):
                return await self.kv()
            await asyncio.sleep(_RESIZE_PAUSE_S)
        raise ResizeRefused(
            "blocks that would have to move have been on their way to or from the tier below for too long"
        )

    async def pins(self, tenant: str | None = None) -> list[PinView]:
        """All pins that clients have named, or the tenant's of them, oldest first."""
        return await self._llm.look(lambda inspector, now: inspector.all_pins(now, tenant))

    async def pin(self, order: PinOrder) -> PinView:
        """Compute the prompt, where it is not cached, and keep its full blocks; returns when they are held.

        Raises InvalidRequest, PinRefused or QueueFull before anything is computed; PinRefused also when the
        pin was deleted, expired or lost its room while it filled; RequestFailed when its request failed.
        Cancelling the call cancels the pin.
        """
        reason = ""
        for _ in range(_FILL_ATTEMPTS):
            stream = await self._llm.submit_pin(order)
            try:
                async for delta in stream:
                    reason = delta.error
            except BaseException:
                stream.cancel()
                self._withdraw(order, stream.request_id)  # should it have been filled meanwhile
                raise
            found = await self._llm.ask(lambda s, now, i=stream.request_id: _find(s, order, i, now))  # type: ignore[misc]
            if found is not None and not found.filling:
                return found
            if reason != PREEMPTED_LATE:
                break
        if not reason:
            raise PinRefused(
                f"pin {order.name} was filled, and is not there any more: it was deleted, or expired "
                f"{order.ttl_s:g} s after it was asked for; pin it again, with a longer ttl if need be"
            )
        error = PinRefused if reason in NOT_FILLED else RequestFailed
        raise error(f"pin {order.name} could not be filled: {reason}")

    def _withdraw(self, order: PinOrder, filler: int) -> None:
        self._llm.tell(lambda s, now: s.client_pins.drop(order, filler))

    async def renew_pin(self, tenant: str, name: str, ttl_s: float) -> PinView:
        """Let it expire `ttl_s` seconds from now. Raises UnknownPin or InvalidRequest."""
        return await self._llm.ask(
            lambda s, now: view_pin(s.client_pins.renew(tenant, name, ttl_s, now), now)
        )

    async def unpin(self, tenant: str, name: str) -> PinView:
        """Let it go; its blocks stay cached until they are taken. Raises UnknownPin."""
        return await self._llm.ask(lambda s, now: _release(s, tenant, name, now))


def _find(scheduler: Scheduler, order: PinOrder, filler: int, now: float) -> PinView | None:
    """The pin that this request filled, unless its time has passed: not another one that has its name by
    now."""
    pin = scheduler.client_pins.of_order(order)
    return None if pin is None or pin.filler != filler or pin.expires <= now else view_pin(pin, now)


def _release(scheduler: Scheduler, tenant: str, name: str, now: float) -> PinView:
    view = view_pin(scheduler.client_pins.find(tenant, name), now)
    scheduler.client_pins.release(tenant, name)
    return view
