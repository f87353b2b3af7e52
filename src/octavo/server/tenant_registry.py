"""The tenants in force on a server, and how others take their place while it serves.

    SIGHUP -> read and check the file -> the engine takes the bounds, or refuses -> keys and defaults change

Nothing changes before everything is known to be right: a file with a mistake, or guarantees that do not fit,
leave the old tenants as they were, and the log says why. Requests that run go on; those of a tenant that is
gone end as they would have, within its last bounds, while its keys stop at once. Its pins stay until they
expire, or an operator deletes them.
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
    """`tenants` is replaced whole, on the event loop, so every request sees one file's tenants."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError."""
        self.path = path
        self.tenants = read_tenants(path)
        self._wanted = False
        self._reloading: asyncio.Task[None] | None = None

    async def begin(self, control: Control | None) -> None:
        """Give the engine everybody's bounds. Raises ConfigError, or what the engine refuses with."""
        await _enforce(self.tenants, control)

    async def reload(self, control: Control | None) -> bool:
        """Read the file again and let it hold; False, with the reason in the log, when the old one stays."""
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
        """The same for a signal: however many come while one reload runs, one more follows it."""
        self._wanted = True
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.create_task(self._reload_while_wanted(control))

    async def _reload_while_wanted(self, control: Control | None) -> None:
        while self._wanted:
            self._wanted = False
            await self.reload(control)


async def _enforce(tenants: Tenants, control: Control | None) -> None:
    if control is None:  # there is no engine, whose memory they would bound
        return
    policies = tenants.policies((await control.kv()).bytes_per_block)
    await control.set_tenants(policies)
