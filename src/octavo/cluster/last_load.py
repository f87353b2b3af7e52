"""The last load that a child reports, for what scales replicas: read from its feed, in an own thread."""

from __future__ import annotations

import http.client
import threading
import time

from octavo.cluster.child import ReplicaChild
from octavo.cluster.feed_reader import FEED_PATH
from octavo.errors import InvalidRequest
from octavo.routing.reports import FrameReader, Load

_SILENT_S = 10.0  # a child reports each second
_PAUSE_S = 0.5
_READ_BYTES = 1 << 16


class LastLoad:
    """Follows a child that serves, until it ends. Any thread may read it."""

    def __init__(self, child: ReplicaChild) -> None:
        self._child = child
        self._load: Load | None = None
        threading.Thread(target=self._follow, name="octavo-load", daemon=True).start()

    @property
    def num_requests(self) -> int:
        """That run and wait; 0 where the child reports nothing."""
        load = self._load
        return 0 if load is None else load.num_running + load.num_waiting

    def _follow(self) -> None:
        while self._child.is_alive:
            try:
                self._read()
            except (OSError, http.client.HTTPException, InvalidRequest):
                self._load = None
            time.sleep(_PAUSE_S)

    def _read(self) -> None:
        address = self._child.base_url.removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=_SILENT_S)
        try:
            connection.request("GET", FEED_PATH, headers=self._child.replica.headers)
            answer, reader = connection.getresponse(), FrameReader()
            while answer.status == http.client.OK and (data := answer.read1(_READ_BYTES)):
                for report in reader.feed(data):
                    if isinstance(report, Load):
                        self._load = report
        finally:
            connection.close()
