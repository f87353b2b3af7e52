"""What `suspend` has answered survives a power cut at any later call; what it has not is never half there."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from unittest import mock

import pytest
from tests.doubles.faults import Crashed, Fault, FaultKind, FaultyFiles, scripted, seeded
from tests.engine.chats import Chat, open_chat, plain
from tests.engine.peek import ask, tell
from tests.engine.test_sessions import HELLO, _copy_as_killed
from tests.waiting import until

from octavo.conversations.store import ConversationStore
from octavo.database import SqlValue
from octavo.engine.outputs import SessionView
from octavo.errors import OctavoError, RequestFailed
from octavo.files import Files
from octavo.retention.transfers import Transfers

QUESTIONS = (HELLO, "and then", "Why")


async def live(chat: Chat) -> tuple[int, int]:
    """Turns, each followed by a suspension; the tokens and the turns of the last one that was answered."""
    promised = (0, 0)
    for index, question in enumerate(QUESTIONS):
        await chat.say(question, 20)
        try:
            view = await chat.llm.sessions.suspend("", chat.session_id)
        except (OctavoError, Crashed):
            break
        promised = (view.num_tokens, index + 1)
    return promised


def calls_of_a_whole_life(folder: Path) -> tuple[int, int]:
    """How many calls opening takes, and how many a whole life."""

    async def work() -> tuple[int, int]:
        files = FaultyFiles(Files(), lambda call, operation: None)
        chat = open_chat(folder, files=files)
        opened = len(files.calls)
        assert (await live(chat))[1] == len(QUESTIONS)
        chat.close()
        return opened, len(files.calls)

    return asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("kind", [FaultKind.POWER_CUT, FaultKind.CRASH])
def test_what_was_answered_is_there_after_a_crash_at_any_call(tmp_path: Path, kind: FaultKind) -> None:
    opened, total = calls_of_a_whole_life(tmp_path / "whole")
    points = range(opened, total, max(1, (total - opened) // 16))
    kept = []
    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        for point in points:
            kept.append(asyncio.run(asyncio.wait_for(one_death(tmp_path / str(point), point, kind), 60)))
    assert 0 in kept
    assert max(kept) >= 2


async def one_death(folder: Path, point: int, kind: FaultKind) -> int:
    """Die at that call; how many suspensions had been answered."""
    chat = open_chat(folder, files=FaultyFiles(Files(), scripted({point: Fault(kind)})))
    num_tokens, num_turns = await live(chat)
    copy = folder / "copy"
    _copy_as_killed(chat, copy)
    with contextlib.suppress(Crashed):
        chat.close()
    again = open_chat(copy)
    try:
        if num_turns:
            view = await again.llm.sessions.find("", chat.session_id)
            assert view.num_tokens >= num_tokens
            assert view.blocks.kept >= num_tokens // 16 - 1, "it was answered, and its blocks are not there"
            again.session_id, again.messages = chat.session_id, chat.messages[: 2 * num_turns]
        turn, told = await again.say("go on", 20)
        plain(turn.prompt, told)
        if num_turns and not turn.fallback:
            assert told.answer.cached >= num_tokens - 16
    finally:
        again.close()
    return num_turns


class _Watched:
    """A database that writes down what it is told."""

    def __init__(self, inner: sqlite3.Connection, told: list[str]) -> None:
        self._inner = inner
        self._told = told

    def execute(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> sqlite3.Cursor:
        self._told.append(sql)
        return self._inner.execute(sql, parameters)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)


class _WatchedFiles(Files):
    def __init__(self) -> None:
        self.told: list[str] = []

    def connect(self, path: Path) -> sqlite3.Connection:
        return _Watched(super().connect(path), self.told)  # type: ignore[return-value]


def test_a_deletion_is_on_the_medium_before_it_is_answered(tmp_path: Path) -> None:
    files = _WatchedFiles()
    store = ConversationStore.open(tmp_path / "sessions.sqlite", files)
    record = store.create("", 60.0)
    assert store.sync(record.session_id).result(10)
    store.use(record.session_id)  # not waited for: this one need not be synced
    assert store.delete(record).result(10)
    assert files.told[-4:] == [
        "PRAGMA synchronous=FULL",
        "BEGIN IMMEDIATE",
        "DELETE FROM sessions WHERE id = ?",
        "COMMIT",
    ]
    assert "PRAGMA synchronous=NORMAL" in files.told
    (tmp_path / "copy").mkdir()
    for path in tmp_path.glob("sessions.sqlite*"):  # as a process that dies now leaves them
        (tmp_path / "copy" / path.name).write_bytes(path.read_bytes())
    again = ConversationStore.open(tmp_path / "copy" / "sessions.sqlite")
    assert (again.reset_reason, again.all()) == ("", [])
    again.close()
    store.close()


async def has_no_session(chat: Chat) -> bool:
    """The engine's table is empty."""
    return await ask(chat.llm, lambda s, now: len(s.session_table)) == 0


def test_delete_answers_when_the_row_is_off_the_medium_and_says_so_when_it_is_not(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        store, done = chat.llm.sessions._store, Future[bool]()
        try:
            await chat.say(HELLO)
            with mock.patch.object(store, "delete", return_value=done):
                deleting = asyncio.ensure_future(chat.llm.sessions.delete("", chat.session_id))
                await until(lambda: has_no_session(chat))
                assert not deleting.done()
                done.set_result(False)
                with pytest.raises(RequestFailed, match="after a crash it may be there again"):
                    await deleting
        finally:
            chat.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_deletion_goes_on_when_its_client_goes_away_behind_a_writer_that_is_busy(tmp_path: Path) -> None:
    async def work() -> None:
        chat, go_on = open_chat(tmp_path), threading.Event()
        store = chat.llm.sessions._store
        try:
            await chat.say(HELLO)
            assert await asyncio.wrap_future(store.sync(chat.session_id))
            assert store._file is not None
            assert store._file._writer is not None
            store._file._writer.submit(go_on.wait)
            deleting = asyncio.ensure_future(chat.llm.sessions.delete("", chat.session_id))
            await until(lambda: not store.all())
            await until(lambda: has_no_session(chat))
            deleting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await deleting
        finally:
            go_on.set()
            chat.close()
        again = open_chat(tmp_path)
        assert again.llm.sessions._store.all() == []
        again.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_deletion_goes_on_when_its_client_goes_away_before_the_engine_has_looked() -> None:
    async def work() -> None:
        chat, go_on = open_chat(), threading.Event()
        try:
            await chat.say(HELLO)
            find = chat.llm.sessions.find

            async def find_and_stop(tenant: str, session_id: str) -> SessionView:
                view = await find(tenant, session_id)
                tell(chat.llm, lambda s, now: go_on.wait())
                return view

            with mock.patch.object(chat.llm.sessions, "find", find_and_stop):
                deleting = asyncio.ensure_future(chat.llm.sessions.delete("", chat.session_id))
                await until(lambda: not chat.llm.sessions._store.all())
            deleting.cancel()
            with contextlib.suppress(asyncio.CancelledError):  # it may be through without the engine
                await deleting
            go_on.set()
            left = await ask(chat.llm, lambda s, now: (len(s.session_table), s.pins.num_blocks))
            assert left == (0, 0), "what a deleted session held is held on"
        finally:
            go_on.set()
            chat.close()

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_row_that_could_not_be_deleted_goes_at_the_end(tmp_path: Path) -> None:
    armed = False
    faults = seeded(1, 1.0, [FaultKind.ENOSPC])
    files = FaultyFiles(Files(), lambda call, operation: faults(call, operation) if armed else None)
    store = ConversationStore.open(tmp_path / "sessions.sqlite", files)
    records = [store.create("", 60.0) for _ in range(2)]
    assert store.sync(records[1].session_id).result(10)
    armed = True
    assert not store.delete(records[0]).result(10)
    armed = False
    store.close()
    again = ConversationStore.open(tmp_path / "sessions.sqlite")
    assert [record.session_id for record in again.all()] == [records[1].session_id]
    again.close()
