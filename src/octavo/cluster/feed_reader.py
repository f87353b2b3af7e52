"""Follows what every replica reports of itself, and tells the router.

    Fleet.replicas() --> a task for each --> GET /replica/feed --> FrameReader --> Router.on_...()

A feed that ends, breaks or is silent takes its replica out of the router until it is read again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

import aiohttp
import msgspec

from octavo.cluster.fleet import Fleet, Replica
from octavo.cluster.upstream import NotSent, Outgoing, ReplicaLost, Upstream
from octavo.errors import InvalidRequest
from octavo.routing.reports import Changes, FrameReader, Hello, Load, Report
from octavo.routing.router import Router

FEED_PATH = "/replica/feed"
_LOOK_S = 0.1  # between two looks at which replicas there are
_PAUSE_S = 0.2  # before a feed that broke is read again
_SILENT_S = 10.0  # a replica reports each second

_log = logging.getLogger("octavo.cluster")


class FeedReader:
    """On one event loop."""

    def __init__(self, router: Router, fleet: Fleet, upstream: Upstream) -> None:
        self._router = router
        self._fleet = fleet
        self._upstream = upstream
        self._following: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.known: set[str] = set()  # replicas that have reported since their feed was opened

    def begin(self) -> None:
        """Follow the fleet from now on."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Follow nothing more."""
        tasks = [task for task in (self._watching, *self._following.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                self._look(self._fleet.replicas())
            except Exception:  # noqa: BLE001 - new replicas must be seen, whatever it was
                _log.exception("the fleet was not looked at")
            await asyncio.sleep(_LOOK_S)

    def _look(self, replicas: Mapping[str, Replica]) -> None:
        for replica_id, replica in replicas.items():
            if replica.base_url and replica_id not in self._following:
                self._following[replica_id] = asyncio.create_task(self._follow(replica))
        for replica_id in self._following.keys() - replicas.keys():
            self._following.pop(replica_id).cancel()
            self.known.discard(replica_id)

    async def _follow(self, replica: Replica) -> None:
        while True:
            try:
                await self._read(replica)
                why = "it ended"
            except (NotSent, ReplicaLost, aiohttp.ClientError, OSError, InvalidRequest) as error:
                why = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - its next reports may be read, whatever it was
                _log.exception("a report of %s was not read", replica.name)
                why = type(error).__name__
            finally:
                self._router.on_gone(replica.replica_id)
            if replica.replica_id in self.known:
                _log.warning("the reports of %s ended: %s", replica.name, why)
                self.known.discard(replica.replica_id)
            await asyncio.sleep(_PAUSE_S)

    async def _read(self, replica: Replica) -> None:
        """Apply reports until the feed ends. Raises what it breaks with."""
        reader = FrameReader()
        async with await self._upstream.send(replica, Outgoing("GET", FEED_PATH, {}), _SILENT_S) as received:
            if received.status != 200:
                raise InvalidRequest(f"it answers {received.status}")
            while data := await received.content.readany():
                for report in reader.feed(data):
                    self._apply(replica, report)

    def _apply(self, replica: Replica, report: Report) -> None:
        match report:
            case Hello():
                self.known.add(replica.replica_id)
                hello = msgspec.structs.replace(report, http_url=replica.base_url)
                self._router.on_hello(replica.replica_id, hello)
            case Changes():
                self._router.on_changes(replica.replica_id, report)
            case Load():
                self._router.on_load(replica.replica_id, report, time.monotonic())
