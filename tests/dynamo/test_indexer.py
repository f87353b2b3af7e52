"""Random lives of the real scheduler, published to Dynamo's own indexer: it finds what the ledger finds."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial

import httpx
import pytest
import zmq
from tests.dynamo.cluster import DYNAMO, skip_unless_alone
from tests.kv_events.published import KEY, PublishedLife
from tests.processes import running
from tests.waiting import wait_until

from octavo.kv_events.stream import Batch
from octavo.types import Request

pytestmark = pytest.mark.dynamo
LOSS = 0.02
CHANGES_MIN = 100_000
TIERS = (
    "gpu",
    "cpu",
    "disk",
)  # it follows a prompt in the first, from where that ends in the next, and so on


@pytest.fixture(scope="module")
def indexer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    skip_unless_alone()
    log = (tmp_path_factory.mktemp("indexer") / "log").open("w")
    with (
        log,
        running([DYNAMO, "-m", "dynamo.indexer", "--port", "18090"], stdout=log, stderr=log),
        httpx.Client(base_url="http://127.0.0.1:18090", timeout=60) as http,
    ):

        def is_ready() -> bool:
            try:
                return http.get("/health").is_success
            except httpx.TransportError:
                return False

        wait_until(is_ready)
        yield http


class Subscribed:
    """A life whose batches go to the indexer too, which loses some and knows each process as an instance."""

    def __init__(self, http: httpx.Client, life: PublishedLife, instance: int) -> None:
        self.http, self.life, self.instance = http, life, instance * 1000
        self.model = f"model-{instance}"
        self._random = random.Random(instance)
        self._context = zmq.Context()
        self._last = -1
        self._socket: zmq.Socket[bytes] | None = None
        self._told, life.channel._send = life.channel._send, self._send  # type: ignore[method-assign]

    def _send(self, batches: list[Batch]) -> None:
        self._told(batches)
        for batch in batches:
            if batch.number <= self._last or self._socket is None:
                self._begin()
            self._last = batch.number
            if self._random.random() >= LOSS:
                self.send(batch)

    def send(self, batch: Batch) -> None:
        assert self._socket is not None
        self._socket.send_multipart([b"kv@host@m", batch.number.to_bytes(8, "big"), batch.payload])

    def _begin(self) -> None:
        """Another process: it has another socket, and Dynamo another worker."""
        self.close()
        self.instance += 1
        self._socket = self._context.socket(zmq.XPUB)
        port = self._socket.bind_to_random_port("tcp://127.0.0.1")
        of_instance = {"instance_id": self.instance, "model_name": self.model}
        of_instance |= {"endpoint": f"tcp://127.0.0.1:{port}", "block_size": self.life.block_size}
        self.http.post("/register", json=of_instance).raise_for_status()
        assert self._socket.poll(20_000)  # it has subscribed
        self._socket.recv()

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close(linger=0)
            gone = {"instance_id": self.instance, "model_name": self.model}
            self.http.post("/unregister", json=gone).raise_for_status()

    def finds(self, request: Request, wanted: list[int]) -> bool:
        """Whether it finds so many tokens by tier."""
        body: dict[str, object] = {"token_ids": request.prompt, "model_name": self.model}
        body["cache_salt"] = KEY.tag_of(request.tenant, request.cache_salt)
        found = self.http.post("/query", json=body).raise_for_status().json()["instances"]
        own = found.get(str(self.instance), {})
        return [own.get(tier, 0) for tier in TIERS] == wanted

    def wanted(self, request: Request) -> list[int]:
        """The same by the ledger."""
        places = self.life._places(self.life.scheduler._chain_of(request), request.tenant)
        ends, count = [], 0
        for tier in TIERS:
            while count < len(places) and tier in places[count]:
                count += 1
            ends.append(count * self.life.block_size)
        return ends


@pytest.mark.timeout(900)
def test_dynamos_indexer_finds_what_the_ledger_finds_by_tier(indexer: httpx.Client) -> None:
    changes = looked = found = 0
    by_tier = set[tuple[int, ...]]()
    seed = 1
    while changes < CHANGES_MIN:
        life = PublishedLife(seed, seed % 3)
        subscribed = Subscribed(indexer, life, seed)
        life.run(300)
        life.publish()
        for batch in life.channel.stream.snapshot():  # what was lost is told once more
            subscribed.send(batch)
        for request in life.books.requests.values():
            if not life._has_two_names:
                wanted = subscribed.wanted(request)
                wait_until(partial(subscribed.finds, request, wanted))
                looked, found = looked + 1, found + any(wanted)
                by_tier.add(tuple(wanted))
        subscribed.close()
        changes += life.channel.num_changes
        seed += 2  # odd ones replay nothing, as a `ZmqSource`
    print(f"{changes:,} changes, {looked:,} prompts, {found:,} found, {len(by_tier)} kinds")
    assert looked > 1_000
    assert found > 300
    assert any(gpu < disk for gpu, _, disk in by_tier)
