"""Views and changes of the ledger for clients: pool, requests, and pins. Asynchronous, on any event loop.

The engine's thread makes every answer between two steps, so the numbers of one answer belong together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from octavo.engine.port import (
    DropPin,
    FindPin,
    RenewPin,
    Resize,
    SetTarget,
    SetTenants,
    Unpin,
    ViewGlimpse,
    ViewKv,
    ViewPins,
    ViewRequests,
)
from octavo.engine.submitter import Submitter
from octavo.errors import PinRefused, RequestFailed, ResizeRefused, require_range
from octavo.inspect.views import Glimpse, MapView, PinView, PoolView, RequestView, draw_map
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.retention.client_pins import NOT_FILLED, PREEMPTED_LATE, PinRequest
from octavo.types import Request

FILLING = SamplerParams(max_tokens=1, temperature=0.0)
_FILL_ATTEMPTS = 3
_BLOCKS_MAX = 2**40
_RESIZE_ATTEMPTS, _RESIZE_PAUSE_S = 500, 0.02  # blocks in transfer cannot move


class Control:
    """The API of `EngineClient.control`. Raises EngineStopped when the engine is gone."""

    def __init__(self, submitter: Submitter) -> None:
        self._submitter = submitter

    async def kv(self, tenant: str | None = None) -> PoolView:
        """Pool, pins, and recent events, or the tenant's part of them."""
        return await self._submitter.send(ViewKv(tenant))

    async def map(self, tenant: str | None = None) -> MapView:
        """Every block and its owners; or only the tenant's. Drawn here, not on the engine's thread."""
        return draw_map(await self.glimpse(0, tenant))

    async def glimpse(self, offloaded_from: int, tenant: str | None = None) -> Glimpse:
        """All data of the live map, or the tenant's part; see `octavo.inspect.inspector`."""
        return await self._submitter.send(ViewGlimpse(offloaded_from, tenant))

    async def requests(self, tenant: str | None = None) -> list[RequestView]:
        """All unfinished requests, or the tenant's, in order of arrival, without their block tables."""
        return await self._submitter.send(ViewRequests(tenant))

    async def request(self, request_id: int, tenant: str | None = None) -> RequestView | None:
        """An unfinished request, with its block tables, or one of the last that have ended; None if it is
        neither, or another tenant's."""
        views = await self._submitter.send(ViewRequests(tenant, request_id))
        return views[0] if views else None

    async def set_tenants(self, policies: Sequence[TenantPolicy]) -> None:
        """Replace all tenants' bounds from the next step on.

        Raises TenantsRefused, and then changes nothing.
        """
        await self._submitter.send(SetTenants(tuple(policies)))

    async def resize(self, num_blocks: int) -> PoolView:
        """Make the pool larger or smaller while it serves; returns when that is done.

        Raises InvalidRequest or ResizeRefused.
        """
        require_range("blocks", num_blocks, 1, _BLOCKS_MAX)
        for _ in range(_RESIZE_ATTEMPTS):
            if await self._submitter.send(Resize(num_blocks)):
                return await self.kv()
            await asyncio.sleep(_RESIZE_PAUSE_S)
        raise ResizeRefused(
            "blocks that would have to move have been in transfer to or from an offload tier for too long"
        )

    async def set_target(self, seconds: float | None) -> PoolView:
        """Set the target between two tokens, None: none. Raises InvalidRequest."""
        if seconds is not None:
            require_range("target_itl", seconds, 0.001, 60.0)
        await self._submitter.send(SetTarget(seconds))
        return await self.kv()

    async def pins(self, tenant: str | None = None) -> list[PinView]:
        """All pins that clients named, or the tenant's, oldest first."""
        return await self._submitter.send(ViewPins(tenant))

    async def pin(self, order: PinRequest) -> PinView:
        """Compute the uncached part of the prompt and keep its full blocks; returns when they are held.

        Raises InvalidRequest, PinRefused or QueueFull before anything is computed. Raises PinRefused also if
        the pin was deleted, expired or lost its room while it filled, and RequestFailed if its request
        failed. Cancelling the call cancels the pin.
        """
        reason = ""
        for _ in range(_FILL_ATTEMPTS):
            fills = Request(
                prompt=order.tokens, params=FILLING, tenant=order.tenant, fills_pin=order.pin_name
            )
            stream = await self._submitter.submit(fills, pin=order)
            try:
                async for delta in stream:
                    reason = delta.error
            except BaseException:
                stream.cancel()
                # in case it was filled meanwhile
                self._submitter.post(DropPin(order, stream.request_id))
                raise
            found = await self._submitter.send(FindPin(order, stream.request_id))
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

    async def renew_pin(self, tenant: str, name: str, ttl_s: float) -> PinView:
        """Make it expire `ttl_s` seconds from now. Raises UnknownPin or InvalidRequest."""
        return await self._submitter.send(RenewPin(tenant, name, ttl_s))

    async def unpin(self, tenant: str, name: str) -> PinView:
        """Remove it; its blocks stay cached until they are taken. Raises UnknownPin."""
        return await self._submitter.send(Unpin(tenant, name))
