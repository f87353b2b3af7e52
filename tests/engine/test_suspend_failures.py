"""A suspension that failed is none: it is not told as one, nor is the next one taken for done; and a folder
that has vanished under the server is told."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import sqlite3
from collections.abc import Coroutine, Iterable, Sequence
from pathlib import Path

import pytest
from tests.engine.chats import Chat, open_chat, plain
from tests.engine.peek import ask
from tests.engine.test_sessions import HELLO, _copy_as_killed, clear_pool

from octavo.database import SqlValue
from octavo.engine.outputs import SessionView
from octavo.errors import RequestFailed, SessionRefused
from octavo.files import Files
from octavo.retention.session_table import SessionState


class _Failing(Files):
    """A disk of which a part fails, while it is in `failing`: data, full, index, record."""

    def __init__(self) -> None:
        self.failing: set[str] = set()

    def pwrite(self, fd: int, data: memoryview, offset: int) -> int:
        if "full" in self.failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        if "data" in self.failing:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().fdatasync(fd)

    def connect(self, path: Path) -> sqlite3.Connection:
        part = {"index.sqlite": "index", "sessions.sqlite": "record"}[path.name]
        return _FailingDatabase(super().connect(path), part, self.failing)


class _FailingDatabase:
    def __init__(self, inner: sqlite3.Connection, part: str, failing: set[str]) -> None:
        self._inner = inner
        self._part = part
        self._failing = failing

    @property
    def in_transaction(self) -> bool:
        return self._inner.in_transaction

    def execute(self, sql: str, parameters: Sequence[SqlValue] = (), /) -> sqlite3.Cursor:
        if sql == "COMMIT" and self._part in self._failing:
            raise sqlite3.OperationalError("disk I/O error")
        return self._inner.execute(sql, parameters)

    def executemany(self, sql: str, rows: Iterable[Sequence[SqlValue]], /) -> sqlite3.Cursor:
        return self._inner.executemany(sql, rows)

    def rollback(self) -> None:
        self._inner.rollback()

    def close(self) -> None:
        self._inner.close()


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


async def suspend(chat: Chat) -> SessionView:
    return await chat.llm.sessions.suspend("", chat.session_id)


async def check_not_suspended(chat: Chat) -> None:
    """Whoever looks at it is told so, and a restart is promised nothing."""
    [listed] = await chat.llm.sessions.all("")
    found = await chat.llm.sessions.find("", chat.session_id)
    assert [listed.blocks.state, found.blocks.state] == [SessionState.IDLE] * 2
    assert chat.llm.sessions._store.find("", chat.session_id).num_suspended == 0


async def check_suspended(chat: Chat, view: SessionView, copy: Path) -> None:
    """All of it is there, also for a server that is started after this one was killed."""
    blocks = view.blocks
    assert (blocks.state, blocks.offloaded, blocks.kept) == (SessionState.SUSPENDED, *[blocks.num_blocks] * 2)
    assert blocks.num_blocks > 2
    assert chat.store is not None
    slots = await ask(chat.llm, lambda s, now: s.session_holds.slots(chat.session_id))
    assert len(slots) == blocks.num_blocks
    assert all(chat.store.is_listed(*pair) for pair in slots)
    _copy_as_killed(chat, copy)
    again = open_chat(copy)
    try:
        kept = (await again.llm.sessions.find("", chat.session_id)).blocks.kept
        assert kept == again.llm.sessions._store.find("", chat.session_id).num_suspended == blocks.num_blocks
    finally:
        again.close()


@pytest.mark.parametrize("part", ["data", "full", "index", "record"])
def test_what_failed_is_not_suspended_and_the_next_try_is_a_real_one(tmp_path: Path, part: str) -> None:
    async def work() -> None:
        files = _Failing()
        chat = open_chat(tmp_path / "kv", files=files)
        try:
            files.failing.add(part)
            await chat.say(HELLO, 60)
            for _ in range(2):
                with pytest.raises(RequestFailed):
                    await suspend(chat)
                await check_not_suspended(chat)
            files.failing.clear()
            await check_suspended(chat, await suspend(chat), tmp_path / "copy")
            turn, told = await chat.say("and then", 20)
            plain(turn.prompt, told)
        finally:
            files.failing.clear()
            chat.close()

    run(work())


def test_what_is_nowhere_any_more_is_not_suspended_until_it_was_computed_again(tmp_path: Path) -> None:
    async def work() -> None:
        files = _Failing()
        chat = open_chat(tmp_path / "kv", files=files)
        try:
            files.failing.add("data")
            await chat.say(HELLO, 60)
            with pytest.raises(RequestFailed, match="could not be synced to disk; it is not suspended"):
                await suspend(chat)
            files.failing.clear()
            clear_pool(chat)
            with pytest.raises(SessionRefused, match="are neither in memory nor on disk; resume it"):
                await suspend(chat)
            await check_not_suspended(chat)
            await chat.llm.sessions.resume("", chat.session_id)
            await check_suspended(chat, await suspend(chat), tmp_path / "copy")
        finally:
            chat.close()

    run(work())


def test_a_client_that_leaves_while_the_disk_syncs_takes_no_earlier_suspension_back(tmp_path: Path) -> None:
    async def leave(chat: Chat) -> None:
        begun, sync = asyncio.Event(), chat.llm.sessions._sync
        assert sync is not None

        def begin(slots):  # type: ignore[no-untyped-def]
            begun.set()
            return sync(slots)

        chat.llm.sessions._sync = begin
        suspending = asyncio.ensure_future(suspend(chat))
        await begun.wait()
        suspending.cancel()
        await asyncio.wait({suspending})
        assert suspending.cancelled()
        chat.llm.sessions._sync = sync

    async def work() -> None:
        chat = open_chat(tmp_path / "kv")
        try:
            await chat.say(HELLO, 60)
            await leave(chat)
            await check_not_suspended(chat)
            await suspend(chat)
            await leave(chat)
            await check_suspended(chat, await chat.llm.sessions.find("", chat.session_id), tmp_path / "copy")
        finally:
            chat.close()

    run(work())


def test_one_of_two_clients_that_leaves_takes_no_suspension_of_the_other_back(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path / "kv")
        try:
            await chat.say(HELLO, 60)
            begun, sync_record = asyncio.Event(), chat.llm.sessions._sync_record

            async def never(record: object) -> None:
                begun.set()
                await asyncio.Event().wait()

            chat.llm.sessions._sync_record = never  # type: ignore[method-assign]
            leaving = asyncio.ensure_future(suspend(chat))
            await begun.wait()
            chat.llm.sessions._sync_record = sync_record  # type: ignore[method-assign]
            view = await suspend(chat)
            leaving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await leaving
            found = await chat.llm.sessions.find("", chat.session_id)
            assert found.blocks.state is SessionState.SUSPENDED
            await check_suspended(chat, view, tmp_path / "copy")
        finally:
            chat.close()

    run(work())


GONE = ("", "blocks", "index.sqlite", "index.sqlite-wal", "sessions.sqlite", "sessions.sqlite-wal", "lock")


@pytest.mark.parametrize("gone", GONE)
def test_a_folder_that_vanished_is_reported_and_the_server_goes_on(
    tmp_path: Path, gone: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path / "kv")
        assert chat.store is not None
        path, aside = chat.store.namespace / gone, tmp_path / "aside"
        try:
            await chat.say(HELLO, 60)
            await suspend(chat)
            path.rename(aside)
            for _ in range(2):
                await chat.say("and then", 20)
                with pytest.raises(SessionRefused, match="vanished") as refused:
                    await suspend(chat)
                assert str(path) in str(refused.value)
                assert "put it back, or start the server again" in str(refused.value)
                await check_not_suspended(chat)
            assert len([r for r in caplog.records if "vanished" in r.message]) == 1
            turn, told = await chat.say("Why", 20)
            plain(turn.prompt, told)
            aside.rename(path)
            await check_suspended(chat, await suspend(chat), tmp_path / "copy")
        finally:
            chat.close()

    with caplog.at_level(logging.ERROR):
        run(work())


def test_another_folder_in_its_place_is_not_taken_for_it_and_stays_as_it_is(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path / "kv")
        await chat.say(HELLO, 60)
        (tmp_path / "kv").rename(tmp_path / "aside")
        other = open_chat(tmp_path / "kv")  # another server's
        try:
            await other.say("Why", 60)
            await suspend(other)
            with pytest.raises(SessionRefused, match="vanished"):
                await suspend(chat)
        finally:
            chat.close()
            other.close()
        again = open_chat(tmp_path / "kv")
        found = await again.llm.sessions.find("", other.session_id)
        assert found.blocks.kept == found.blocks.num_blocks > 0
        again.close()

    run(work())
