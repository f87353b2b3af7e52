"""A reader of a replica's feed, which knows names by place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from tests.waiting import LIMIT_S

from octavo.cluster.child import ReplicaChild
from octavo.memory.changes import Place
from octavo.routing.reports import NAME_BYTES, Changes, Hello, Load, Report, ReportSplitter, Shared


class FeedFollower:
    """Takes reports as a router does."""

    def __init__(self) -> None:
        self.known: dict[Place, set[bytes]] = {place: set() for place in Place}
        self.shared = set[bytes]()
        self.hello: Hello | None = None
        self.loads: list[Load] = []
        self.num_clears = 0
        self._frames = ReportSplitter()

    def feed(self, data: bytes) -> None:
        for report in self._frames.feed(data):
            self.take(report)

    def take(self, report: Report) -> None:
        match report:
            case Hello():
                assert self.hello is None
                self.hello = report
            case Load():
                self.loads.append(report)
            case Shared(names):
                self.shared = set(_names(names))
            case Changes(place, added, removed, cleared):
                if cleared:
                    self.num_clears += 1
                    self.known = {place: set() for place in Place}
                self.known[place].difference_update(_names(removed))
                self.known[place].update(_names(added))


@contextmanager
def following(child: ReplicaChild) -> Iterator[Iterator[FeedFollower]]:
    """The follower, again after each piece of the feed."""
    url, follower = f"{child.base_url}/replica/feed", FeedFollower()

    def pieces(response: httpx.Response) -> Iterator[FeedFollower]:
        for data in response.iter_raw():
            follower.feed(data)
            yield follower

    with httpx.stream("GET", url, headers=child.replica.headers, timeout=LIMIT_S) as response:
        assert response.status_code == 200
        yield pieces(response)


def _names(data: bytes) -> list[bytes]:
    return [data[at : at + NAME_BYTES] for at in range(0, len(data), NAME_BYTES)]
