"""The tenants of a server, and their replacement while it serves.

    SIGHUP -> read and check the file -> the engine accepts the bounds, or refuses -> keys and defaults change

A file with a mistake, or guarantees that do not fit, change nothing; the log says why. Running requests go
on, also those of a removed tenant, within its last bounds; its keys are invalid at once. Its pins stay until
they expire or an operator deletes them.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from octavo.engine.control import Control
from octavo.errors import OctavoError
from octavo.tenants import Tenants, read_tenants

_log = logging.getLogger("octavo.server")


class TenantRegistry:
    """`tenants` is replaced as a whole, on the event loop, so that a request sees the tenants of one file."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self.path = path
        self.tenants = read_tenants(path)
        self._is_requested = False
        self._reloading: asyncio.Task[None] | None = None

    async def begin(self, control: Control | None) -> None:
        """Set the tenants' bounds in the engine. Raises ConfigError, or the engine's refusal."""
        await _enforce(self.tenants, control)

    async def reload(self, control: Control | None) -> bool:
        """Read and apply the file again. False, with the reason logged, if the old tenants stay."""
        try:
            tenants = await asyncio.to_thread(read_tenants, self.path)
            await _enforce(tenants, control)
        except OctavoError as error:
            _log.error("the tenants stay as they were: %s", error)
            return False
        self.tenants = tenants
        _log.warning("%s was read again: %d tenants", self.path, len(tenants.all))
        return True

    def reload_soon(self, control: Control | None) -> None:
        """Reload for a signal; all signals during a reload cause one more."""
        self._is_requested = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_while_requested(control))

    async def _reload_while_requested(self, control: Control | None) -> None:
        while self._is_requested:
            self._is_requested = False
            await self.reload(control)


async def _enforce(tenants: Tenants, control: Control | None) -> None:
    if control is None:  # no engine, so no memory to bound
        return
    policies = tenants.policies((await control.kv()).bytes_per_block)
    await control.set_tenants(policies)
