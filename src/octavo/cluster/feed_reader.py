"""Reads the feeds in which replicas report their blocks and loads.

    relay     Fleet.replicas() -> a task for each -> GET /replica/feed -> ReportSplitter -> Router.on_...()
    actor     its child's feed, in a thread -> the last load, by which Ray scales replicas

A replica whose feed ends, breaks or is silent leaves the router until its feed is read again.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import threading
import time
from collections.abc import Mapping

import aiohttp
import msgspec

from octavo.cluster.child import ReplicaChild
from octavo.cluster.fleet import Fleet, Replica
from octavo.cluster.upstream import NotSent, OutgoingRequest, ReplicaLost, Upstream
from octavo.errors import InvalidRequest
from octavo.routing.reports import Changes, Hello, Load, Report, ReportSplitter, Shared
from octavo.routing.router import Router

FEED_PATH = "/replica/feed"
_POLL_S = 0.1  # between two reads of the fleet
_RETRY_S, _LOAD_RETRY_S = 0.2, 0.5  # before a broken feed is read again, by a relay and by an actor
_SILENT_S = 10.0  # a replica reports each second
_READ_BYTES = 1 << 16

_log = logging.getLogger("octavo.cluster")


class FeedReader:
    """Feeds a router with the reports of a fleet. On one event loop."""

    def __init__(self, router: Router, fleet: Fleet, upstream: Upstream) -> None:
        self._router = router
        self._fleet = fleet
        self._upstream = upstream
        self._following: dict[str, asyncio.Task[None]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.known: set[str] = set()  # ids of replicas that have reported since their feed was opened

    def begin(self) -> None:
        """Start to follow the fleet."""
        self._watching = asyncio.create_task(self._watch())

    async def close(self) -> None:
        """Close all feeds."""
        tasks = [task for task in (self._watching, *self._following.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            try:
                self._follow_all(self._fleet.replicas())
            except Exception:  # noqa: BLE001 - later replicas must still be found
                _log.exception("the fleet was not read")
            await asyncio.sleep(_POLL_S)

    def _follow_all(self, replicas: Mapping[str, Replica]) -> None:
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
                why = "the feed ended"
            except (NotSent, ReplicaLost, aiohttp.ClientError, OSError, InvalidRequest) as error:
                why = str(error) or type(error).__name__
            except Exception as error:  # noqa: BLE001 - its next reports may be readable
                _log.exception("a report of %s was not read", replica.name)
                why = type(error).__name__
            finally:
                self._router.on_gone(replica.replica_id)
            if replica.replica_id in self.known:
                _log.warning("the reports of %s ended: %s", replica.name, why)
                self.known.discard(replica.replica_id)
            await asyncio.sleep(_RETRY_S)

    async def _read(self, replica: Replica) -> None:
        """Apply reports until the feed ends. Raises the error that breaks it."""
        reader = ReportSplitter()
        async with await self._upstream.send(
            replica, OutgoingRequest("GET", FEED_PATH, {}), _SILENT_S
        ) as received:
            if received.status != 200:
                raise InvalidRequest(f"the feed has status {received.status}")
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
            case Shared():
                self._router.on_shared(replica.replica_id, report)
            case Load():
                self._router.on_load(replica.replica_id, report, time.monotonic())


class LastLoad:
    """The last load that a child reported, read from its feed until it exits. Any thread may read it."""

    def __init__(self, child: ReplicaChild) -> None:
        self._child = child
        self._load: Load | None = None
        threading.Thread(target=self._follow, name="octavo-load", daemon=True).start()

    @property
    def num_requests(self) -> int:
        """Running and waiting requests; 0 while the feed is not read."""
        load = self._load
        return 0 if load is None else load.num_running + load.num_waiting

    def _follow(self) -> None:
        while self._child.is_alive:
            try:
                self._read()
            except (OSError, http.client.HTTPException, InvalidRequest):
                self._load = None
            time.sleep(_LOAD_RETRY_S)

    def _read(self) -> None:
        address = self._child.base_url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=_SILENT_S)
        try:
            connection.request("GET", FEED_PATH, headers=self._child.replica.headers)
            answer, reader = connection.getresponse(), ReportSplitter()
            while answer.status == http.client.OK and (data := answer.read1(_READ_BYTES)):
                for report in reader.feed(data):
                    if isinstance(report, Load):
                        self._load = report
        finally:
            connection.close()
