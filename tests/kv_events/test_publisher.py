"""The sockets, with a SUB and a DEALER as vLLM's clients have them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

zmq = pytest.importorskip("zmq", reason="pyzmq is not installed: pip install 'octavo[events]'")

from tests.kv_events.readers import Dynamo, LlmD  # noqa: E402
from tests.kv_events.sockets import client  # noqa: E402
from tests.kv_events.sockets import replay_of as topical_replay_of  # noqa: E402
from tests.waiting import wait_until  # noqa: E402

from octavo.config import StartOptions  # noqa: E402
from octavo.errors import ConfigError  # noqa: E402
from octavo.kv_events.identity import Identity  # noqa: E402
from octavo.kv_events.publisher import ChangeQueue, Publisher  # noqa: E402
from octavo.kv_events.publisher_config import publishing_of  # noqa: E402
from octavo.kv_events.stream import Stream  # noqa: E402
from octavo.kv_events.wire import Form  # noqa: E402
from octavo.memory.changes import ChangeRecord, Content, Place  # noqa: E402

TOPIC = "kv@host:5557@model"
SIZE = 2


def add(record: ChangeRecord, number: int, place: Place = Place.POOL) -> None:
    """A prompt of one block comes."""
    name = number.to_bytes(32, "big")
    block = record._blocks.get(name)
    record.add(name, place)
    if block is None:
        record._blocks[name].content = Content(None, number.to_bytes(4, "little") + bytes(4))
        record._blocks[name].users = ("",)
        record._blocks[name].where = 0
        record.add(name, place)


@contextmanager
def publishing(record: ChangeRecord, queue_max: int = 1000) -> Iterator[Publisher]:
    stream = Stream(Identity(), Form.MAP, lambda: 1.5, replays=True)
    publisher = Publisher(stream, TOPIC, "tcp://127.0.0.1:*", "tcp://127.0.0.1:*", queue_max)
    try:
        publisher.begin(record)
        yield publisher
    finally:
        publisher.close()


def replay_of(socket: zmq.Socket[bytes], start: int) -> list[tuple[int, bytes]]:
    return topical_replay_of(socket, start, TOPIC)


def test_a_late_subscriber_gets_a_whole_story_then_what_changes() -> None:
    record = ChangeRecord()
    add(record, 1)
    with publishing(record) as publisher, client(zmq.SUB, publisher.endpoint) as sub:
        reader = Dynamo()

        def read() -> bool:
            topic, number, payload = sub.recv_multipart()
            assert topic == TOPIC.encode()
            assert len(number) == 8
            reader.receive(topic, int.from_bytes(number, "big"), payload)
            return True

        while not reader.find([1, 0], SIZE, ""):
            read()
        add(record, 2, Place.DISK)
        assert publisher.hand_over(record) == 0
        while not reader.find([2, 0], SIZE, ""):
            read()
        assert reader.find([2, 0], SIZE, "") == [{"disk"}]


def test_replay_answers_from_a_number_on_and_ends_with_a_marker() -> None:
    record = ChangeRecord()
    with publishing(record) as publisher, client(zmq.DEALER, publisher.replay_endpoint) as dealer:
        for number in range(1, 4):
            add(record, number)
            publisher.hand_over(record)
        wait_until(lambda: b"\x03\x00" in b"".join(payload for _, payload in replay_of(dealer, 0)))
        whole = replay_of(dealer, 0)
        assert [number for number, _ in whole] == [*range(len(whole))]
        assert replay_of(dealer, 2) == whole[2:]
        assert replay_of(dealer, len(whole)) == []
        assert replay_of(dealer, 2**64 - 1) == []
        reader = LlmD(lambda start: replay_of(dealer, start))
        assert all(reader.find([number, 0], SIZE, "") == [{"gpu"}] for number in range(1, 4))


def test_a_replay_that_is_malformed_is_refused_and_the_next_one_answered(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with publishing(ChangeRecord()) as publisher, client(zmq.DEALER, publisher.replay_endpoint) as dealer:
        for wrong in ([bytes(8)], [b"", b"1"], [b"x", bytes(8)], [b"", bytes(8), b""]):
            dealer.send_multipart(wrong)
        wait_until(lambda: replay_of(dealer, 0))
        assert caplog.text.count("a replay was asked for") == 4


def test_a_full_queue_is_a_gap_that_is_counted_and_the_whole_takes_its_place() -> None:
    record, queue = ChangeRecord(), ChangeQueue(3)
    for number in (1, 2):
        add(record, number)
        assert queue.put(record) == (number == 1)
    assert not queue.put(record)  # nothing has changed
    add(record, 3)
    add(record, 4)
    assert not queue.put(record)
    assert (queue.num_gaps, queue.num_lost) == (1, 4)
    work = queue.pop()
    assert work is not None
    assert work.is_whole
    assert len(work.changes) == 4
    assert queue.pop() is None
    add(record, 5)
    assert queue.put(record)


def test_a_gap_is_reported_in_the_log_and_routers_learn_the_rest(caplog: pytest.LogCaptureFixture) -> None:
    record = ChangeRecord()
    with (
        caplog.at_level(logging.WARNING),
        publishing(record, queue_max=2) as publisher,
        client(zmq.DEALER, publisher.replay_endpoint) as dealer,
    ):
        for number in range(1, 10):
            add(record, number)
        assert publisher.hand_over(record) == 9
        wait_until(lambda: "faster than they could be published" in caplog.text)
        reader = LlmD(lambda start: replay_of(dealer, start))
        assert all(reader.find([number, 0], SIZE, "") for number in range(1, 10))


def test_what_waits_is_published_before_the_end_and_a_second_close_does_nothing() -> None:
    record = ChangeRecord()
    with publishing(record) as publisher:
        stream = publisher._stream
        add(record, 1)
        publisher.hand_over(record)
        publisher.close()
        publisher.close()
        assert len(stream.since(0)) == 2


def test_an_endpoint_that_is_taken_is_refused_and_nothing_stays_open() -> None:
    with publishing(ChangeRecord()) as publisher:
        for endpoints in ((publisher.endpoint,), ("tcp://127.0.0.1:*", publisher.endpoint)):
            with pytest.raises(ConfigError, match="cannot be bound"):
                Publisher(Stream(Identity(), Form.MAP, lambda: 1.5, replays=True), TOPIC, *endpoints)


def test_names_and_addresses_of_loopback_and_files_can_be_bound(tmp_path: Path) -> None:
    for endpoint in ("tcp://localhost:*", "tcp://127.0.0.2:*", f"ipc://{tmp_path}/s"):
        publisher = Publisher(Stream(Identity(), Form.MAP, lambda: 1.5, replays=False), TOPIC, endpoint)
        publisher.close()
        assert publisher.endpoint.startswith(endpoint[:6])


LOCAL = "tcp://127.0.0.1:5557"


@pytest.mark.parametrize(
    "endpoint",
    ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://10.0.0.1:5557", "tcp://host.example:1", "tcp://[::]:5557"],
)
def test_endpoints_that_others_reach_want_a_flag(endpoint: str) -> None:
    for given in ({"kv_events": endpoint}, {"kv_events": LOCAL, "kv_events_replay": endpoint}):
        with pytest.raises(ConfigError, match="kv-events-remote"):
            publishing_of(StartOptions(**given), has_tenants=False)  # type: ignore[arg-type]
        assert publishing_of(StartOptions(**given, kv_events_remote=True), has_tenants=False)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "endpoint",
    ["5557", "tcp://127.0.0.1", "tcp://127.0.0.1:70000", "udp://127.0.0.1:1", "ipc://", "inproc://x"],
)
def test_what_is_no_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="allowed: tcp"):
        publishing_of(StartOptions(kv_events=endpoint), has_tenants=False)


def test_settings_that_do_not_go_together_are_refused(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_bytes(b"x" * 32)
    with pytest.raises(ConfigError, match="kv_events is not"):
        publishing_of(StartOptions(kv_events_replay=LOCAL), has_tenants=False)
    with pytest.raises(ConfigError, match="kv-events-key-file"):
        publishing_of(StartOptions(kv_events=LOCAL), has_tenants=True)
    with pytest.raises(ConfigError, match="no tenants"):
        publishing_of(StartOptions(kv_events=LOCAL, kv_events_key_file=key), has_tenants=False)
    both = publishing_of(StartOptions(kv_events=LOCAL, kv_events_key_file=key), has_tenants=True)
    assert both is not None
    assert both.identity.tenant_tag("a")
    with pytest.raises(ConfigError, match="no room for a name with @"):
        both.open("a@b")
    assert publishing_of(StartOptions(), has_tenants=True) is None


def test_without_the_package_the_flag_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "zmq", None)
    with pytest.raises(ConfigError, match=r"octavo\[events\]"):
        publishing_of(StartOptions(kv_events=LOCAL), has_tenants=False)


def test_where_events_are_read_is_reported_in_vllms_words() -> None:
    publishing = publishing_of(StartOptions(kv_events="tcp://127.0.0.1:5557"), has_tenants=False)
    assert publishing is not None
    source = publishing.source("model")
    assert source["endpoint"] == "tcp://127.0.0.1:5557"
    assert source["replay_endpoint"] is None
    assert str(source["topic"]).startswith("kv@")
    assert str(source["topic"]).endswith(":5557@model")
