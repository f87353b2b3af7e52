"""What is remembered of sessions: in memory, in its file, over crashes, damage and earlier versions."""

from __future__ import annotations

import sqlite3
import sys
import time
import types
from array import array
from pathlib import Path
from unittest import mock

import pytest
from tests.doubles.faults import Fault, FaultKind, FaultyFiles, scripted, seeded
from tests.engine.chats import open_chat

from octavo.conversations.conversations import restore
from octavo.conversations.store import SESSIONS_MAX, ConversationStore, open_sessions
from octavo.conversations.turn_ends import TurnEnds
from octavo.engine.port import Port
from octavo.errors import (
    ConfigError,
    InvalidRequest,
    SessionRefused,
    UnknownSession,
)
from octavo.files import Files
from octavo.inspect.stats import EngineCounters
from octavo.memory.ledger import Ledger
from octavo.memory.names import NameChain, root_name
from octavo.memory.tiers import OffloadTier
from octavo.scheduler.scheduler import Scheduler
from octavo.step.context import SchedulerConfig


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_after_a_restart_what_was_suspended_is_kept_before_what_was_not() -> None:
    root = root_name(b"")
    said, suspended = list(range(100, 108)), list(range(200, 208))  # two blocks each
    names = [name for tokens in (said, suspended) for name in names_of(root, tokens)]
    tier = OffloadTier(4, [(name, slot) for slot, name in enumerate(names)])  # of which three may be kept
    scheduler = Scheduler(Ledger(20, 4), SchedulerConfig(pin_blocks=10), lambda tenant: root, tier)
    clock = Clock()
    store = ConversationStore(clock)
    first, second = store.create("", 60.0).session_id, store.create("", 60.0).session_id
    store.say(second, suspended)
    store.record_suspended(store.find("", second), 2)
    clock.now += 1.0
    store.say(first, said)  # was used last, and comes second all the same
    port = Port(scheduler, EngineCounters())
    restore(types.SimpleNamespace(apply=lambda command: port.answer(command, 0.0)), store)  # type: ignore[arg-type]
    assert [len(scheduler.session_holds.slots(session_id)) for session_id in (first, second)] == [0, 2]


def test_a_session_is_suspended_no_more_when_a_turn_has_ended_well() -> None:
    store = ConversationStore()
    session_id = store.create("", 60.0).session_id
    store.say(session_id, [5, 6])
    suspended = store.find("", session_id)
    store.record_suspended(suspended, 2)
    assert store.find("", session_id).num_suspended == 2
    store.say(session_id, [5])
    assert store.find("", session_id).num_suspended == 0
    store.record_suspended(suspended, 2)  # somebody learns only now that it had been
    assert store.find("", session_id).num_suspended == 0


def names_of(root: bytes, tokens: list[int]) -> list[bytes]:
    chain = NameChain(root, 4)
    chain.extend(array("I", tokens))
    return chain.names


def test_the_store_forgets_whom_no_one_used_for_its_ttl() -> None:
    clock = Clock()
    store = ConversationStore(clock)
    first, second = store.create("", 10.0), store.create("", 20.0)
    clock.now += 9.0
    store.say(first.session_id, [1, 2])
    clock.now += 9.0
    assert store.find("", first.session_id).tokens == array("I", [1, 2])
    clock.now += 2.0
    for record in (first, second):
        with pytest.raises(UnknownSession):
            store.find("", record.session_id)
    assert store.all() == []


def test_the_store_bounds_the_sessions_of_a_tenant() -> None:
    store = ConversationStore()
    for _ in range(SESSIONS_MAX):
        store.create("one", 60.0)
    with pytest.raises(SessionRefused, match="there are 1,024 sessions; allowed: 1,024"):
        store.create("one", 60.0)
    assert store.create("two", 60.0).tenant == "two"
    with pytest.raises(InvalidRequest, match=r"ttl is 0\.5; allowed: 1\.0 to"):
        store.create("two", 0.5)


def test_the_store_finds_again_what_was_said_and_not_what_was_deleted(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    kept, gone = store.create("t", 60.0), store.create("t", 60.0)
    store.say(kept.session_id, [5, 6, 70_000], 2)
    store.record_suspended(store.find("t", kept.session_id), 3)
    store.delete(gone)
    assert store.sync(kept.session_id).result(10)
    store.close()
    again = ConversationStore.open(path)
    [found] = again.all()
    assert (found.session_id, list(found.tokens), found.ttl_s) == (kept.session_id, [5, 6, 70_000], 60.0)
    assert (found.num_shared, found.num_suspended) == (2, 3)
    again.say(kept.session_id, [5, 6])  # another beginning, which nobody shares
    now = again.find("t", kept.session_id)
    assert (now.num_shared, now.num_suspended) == (0, 0)
    again.close()


@pytest.mark.parametrize(
    ("later", "numbers"),
    [
        ("", []),
        (", num_shared DEFAULT 0", [1]),
        (", num_shared DEFAULT 0, num_suspended DEFAULT 0", [1, 0]),
    ],
)
def test_a_file_of_an_earlier_version_is_read_and_written_on(
    tmp_path: Path, later: str, numbers: list[int]
) -> None:
    path = tmp_path / "sessions.sqlite"
    now = int(time.time() * 1000)
    row = ["old", "t", array("I", [5, 6]).tobytes(), 60_000, now, now, *numbers]
    with sqlite3.connect(path) as database:
        database.execute(
            f"CREATE TABLE sessions (id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms{later})"
        )
        database.execute(f"INSERT INTO sessions VALUES ({', '.join('?' * len(row))})", row)
    database.close()
    for wanted, ends in (((sum(numbers), 0), (2,)), ((2, 1), (2, 3))):
        store = ConversationStore.open(path)
        [found] = store.all()
        assert (store.reset_reason, list(found.tokens[:2])) == ("", [5, 6])
        assert (found.num_shared, found.num_suspended) == wanted
        assert found.turn_ends == TurnEnds(0, ends)  # all that an older version heard is one turn
        store.say("old", [5, 6, 7], 2)
        store.record_suspended(store.find("t", "old"), 1)
        store.close()


def test_what_was_said_takes_four_bytes_a_token() -> None:
    store = ConversationStore()
    record = store.create("", 60.0)
    store.say(record.session_id, list(range(100_000)))
    assert sys.getsizeof(store.find("", record.session_id).tokens) < 4.2 * 100_000


@pytest.mark.parametrize("damage", ["garbage", "another schema", "nothing"])
def test_a_damaged_file_is_begun_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "sessions.sqlite"
    if damage == "another schema":
        with sqlite3.connect(path) as database:
            database.execute("CREATE TABLE other (x)")
        database.close()
    else:
        path.write_bytes(b"no database at all" * 100 if damage == "garbage" else b"")
    store = ConversationStore.open(path)
    assert store.reset_reason.startswith("its file was damaged")
    record = store.create("", 60.0)
    assert store.sync(record.session_id).result(10)
    store.close()
    again = ConversationStore.open(path)
    assert [r.session_id for r in again.all()] == [record.session_id]
    again.close()


def test_a_file_that_another_process_has_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    record = store.create("", 60.0)
    store.close()
    other = sqlite3.connect(path)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        ConversationStore.open(path)
    with pytest.raises(ConfigError, match="cannot be used: database is locked"):
        open_sessions(tmp_path)
    other.close()
    again = ConversationStore.open(path)
    assert (again.reset_reason, again.all()[0].session_id) == ("", record.session_id)
    again.close()


def test_a_disk_that_fails_at_start_costs_no_session(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    record = store.create("", 60.0)
    store.close()
    refused = 0
    for point in range(6):
        files = FaultyFiles(Files(), scripted({point: Fault(FaultKind.EIO)}))
        try:
            ConversationStore.open(path, files).close()
        except (OSError, sqlite3.OperationalError):
            refused += 1
        again = ConversationStore.open(path)
        assert [r.session_id for r in again.all()] == [record.session_id]
        again.close()
    assert refused > 2


def test_the_last_words_are_in_the_file_before_the_disk_is_let_go(tmp_path: Path) -> None:
    chat = open_chat(tmp_path)
    assert chat.store is not None
    path, let_go = chat.store.namespace / "sessions.sqlite", chat.store.close
    found: list[tuple[int, ...]] = []

    def close() -> None:
        other = ConversationStore.open(path)
        found.extend(tuple(record.tokens) for record in other.all())
        other.close()
        let_go()

    record = chat.llm._session_support.store.create("", 60.0)
    chat.llm._session_support.store.say(record.session_id, [5, 6])
    with mock.patch.object(chat.store, "close", close):
        chat.close()
    assert found == [(5, 6)]


def test_rows_that_make_no_sense_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    record = store.create("", 60.0)
    store.close()
    with sqlite3.connect(path) as database:
        for row in (
            ("b", 5, b"", 1, 1, 1, 0, 0, b"", b""),
            ("c", "", b"abc", 1, 1, 1, 0, 0, b"", b""),
            ("d", "", b"", -1, 1, 1, 0, 0, b"", b""),
            ("e", "", b"", 1, 1, 1, "x", 0, b"", b""),
            ("f", "", b"1234", 1, 1, 1, 2, 0, b"", b""),
            ("g", "", b"", 1, 1, 1, 0, -1, b"", b""),
            ("h", "", b"1234", 1, 1, 1, 0, 2, b"", b""),
            (7, "", b"", 1, 1, 1, 0, 0, b"", b""),
            ("i", "", b"", 1, 1, 1, 0, 0, b"", "text"),
        ):
            database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    database.close()
    again = ConversationStore.open(path)
    assert [r.session_id for r in again.all()] == [record.session_id]
    again.close()


def test_the_store_finds_again_where_turns_ended_and_forks_there(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    session_id = store.create("t", 60.0).session_id
    for said in ([5, 6], [5, 6, 7, 8], [5, 6, 7, 8, 9]):
        store.say(session_id, said, 1)
    fork = store.fork(store.find("t", session_id), 2)
    store.close()
    again = ConversationStore.open(path)
    assert again.find("t", session_id).turn_ends == TurnEnds(0, (2, 4, 5))
    found = again.find("t", fork.session_id)
    assert (list(found.tokens), found.turn_ends, found.num_shared) == ([5, 6, 7, 8], TurnEnds(0, (2, 4)), 1)
    again.say(fork.session_id, [5, 6, 7, 8, 1])
    assert list(again.find("t", session_id).tokens) == [5, 6, 7, 8, 9]
    again.say(session_id, [5, 7, 7, 8, 9, 1])  # other words
    assert again.find("t", session_id).turn_ends == TurnEnds(3, (6,))
    again.close()


def test_a_damaged_list_of_turns_costs_the_turns_and_not_the_session(tmp_path: Path) -> None:
    path = tmp_path / "sessions.sqlite"
    store = ConversationStore.open(path)
    session_id = store.create("", 60.0).session_id
    for said in ([5, 6], [5, 6, 7]):
        store.say(session_id, said)
    store.close()
    for damaged in (b"abc", array("I", [0, 3, 2]).tobytes(), "text", None):
        with sqlite3.connect(path) as database:
            database.execute("UPDATE sessions SET turn_ends = ?", (damaged,))
        database.close()
        again = ConversationStore.open(path)
        found = again.find("", session_id)
        assert (list(found.tokens), found.turn_ends) == ([5, 6, 7], TurnEnds(0, (3,)))
        with pytest.raises(InvalidRequest, match="turn is 2; allowed: 1 to 1"):
            again.fork(found, 2)
        again.close()


def test_a_write_that_fails_is_reported_and_counted(tmp_path: Path) -> None:
    armed = False
    faults = seeded(1, 1.0, [FaultKind.ENOSPC])
    files = FaultyFiles(Files(), lambda call, operation: faults(call, operation) if armed else None)
    store = ConversationStore.open(tmp_path / "sessions.sqlite", files)
    record = store.create("", 60.0)
    assert store.sync(record.session_id).result(10)
    armed = True
    assert not store.sync(record.session_id).result(10)
    assert store.errors > 0
    armed = False
    assert store.sync(record.session_id).result(10)
    store.close()
