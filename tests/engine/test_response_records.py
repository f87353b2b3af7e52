"""Stored responses in the store and over the engine's client: bounds, who gives way, what a restart finds."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from array import array
from pathlib import Path
from typing import TypeVar, cast
from unittest import mock

import pytest
from tests.engine.chats import Chat, open_chat
from tests.engine.peek import ask
from tests.engine.served import Turnstile, read
from tests.engine.test_session_store import Clock
from tests.waiting import turns
from tests.wanted import request_for

from octavo.conversations.record import ConversationKind
from octavo.conversations.responses import new_response_id
from octavo.conversations.store import ConversationStore, NewResponse
from octavo.errors import InvalidRequest, RequestTooLarge, SessionBusy, SessionRefused, UnknownSession
from octavo.files import Files
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.types import ChatMessage

T = TypeVar("T")
BOUNDS = "octavo.conversations.store.{}"


def stored(store: ConversationStore, size: int = 10, tenant: str = "") -> str:
    response = NewResponse(new_response_id(), b"x" * size)
    store.make_room(tenant, response)
    return store.create(tenant, 60.0, response).session_id


def ids(store: ConversationStore, tenant: str = "") -> set[str]:
    return {
        r.session_id for r in store.records() if r.tenant == tenant and r.kind is ConversationKind.RESPONSE
    }


def test_a_response_is_no_session_and_a_session_no_response() -> None:
    store = ConversationStore()
    session_id, response_id = store.create("", 60.0).session_id, stored(store)
    assert [r.session_id for r in store.all()] == [r.session_id for r in store.latest("", 9)] == [session_id]
    assert store.find("", response_id, ConversationKind.RESPONSE).document == b"x" * 10
    with pytest.raises(UnknownSession, match="there is no session"):
        store.find("", response_id)
    for tenant, other in (("", session_id), ("two", response_id), ("", "resp_")):
        with pytest.raises(UnknownSession, match="there is no response") as caught:
            store.find(tenant, other, ConversationKind.RESPONSE)
        assert caught.value.code == "response_not_found"


def test_the_response_used_longest_ago_gives_way_and_never_one_that_runs_or_is_needed() -> None:
    clock = Clock()
    store, made = ConversationStore(clock), []
    with mock.patch(BOUNDS.format("RESPONSES_MAX"), 3):
        for _ in range(3):
            made.append(stored(store))
            clock.now += 1.0
        store.begin_turn(store._records[made[0]], "turn")
        clock.now += 1.0
        store.use(made[1])
        clock.now += 1.0
        store.end_turn("turn")
        store.begin_turn(store._records[made[2]], "another")
        store._records[made[2]] = store._records[made[2]].__class__(  # used longest ago, and it runs
            made[2], "", 60.0, 0.0, clock.now - 50.0, document=b"x"
        )
        newest = stored(store)
        assert ids(store) == {made[0], made[2], newest}
        store.begin_turn(store._records[made[0]], "third")
        response = NewResponse(new_response_id(), b"x")
        with pytest.raises(SessionRefused, match="which run or are needed; allowed: 3 of"):
            store.make_room("", response, spared=newest)
        assert ids(store) == {made[0], made[2], newest}, "nothing gives way for what finds no room"


def test_documents_of_a_tenant_are_bounded_together_and_sessions_count_apart() -> None:
    store = ConversationStore()
    with mock.patch(BOUNDS.format("DOCUMENTS_BYTES_MAX"), 100), mock.patch(BOUNDS.format("SESSIONS_MAX"), 1):
        first, second = stored(store, 40), stored(store, 40)
        other = stored(store, 100, "two")
        third = stored(store, 40)
        assert ids(store) == {second, third}
        assert ids(store, "two") == {other}
        grown = NewResponse(third, b"y" * 90)
        assert store.attach(grown)
        assert [gone.session_id for gone in store.make_room("", grown)] == [second]
        store.begin_turn(store._records[third], "turn")
        with pytest.raises(SessionRefused, match="130 bytes are left"):
            store.make_room("", NewResponse("resp_new", b"y" * 40))
        store.end_turn("turn")
        with pytest.raises(RequestTooLarge, match=r"takes 101 bytes .* allowed: 100; send less"):
            store.make_room("", NewResponse("resp_new", b"y" * 101))
        assert ids(store) == {third}, "nothing gives way for what never finds room"
        assert not store.attach(NewResponse(first, b"y"))
        store.create("", 60.0)
        with pytest.raises(SessionRefused, match="there are 1 sessions"):
            store.create("", 60.0)


def test_a_response_lives_its_ttl_after_it_was_last_gone_on_from() -> None:
    clock = Clock()
    store = ConversationStore(clock)
    response_id = stored(store)
    clock.now += 59.0
    store.use(response_id)
    clock.now += 59.0
    assert store.find("", response_id, ConversationKind.RESPONSE)
    clock.now += 2.0
    with pytest.raises(UnknownSession):
        store.find("", response_id, ConversationKind.RESPONSE)


def test_a_file_keeps_documents_and_one_of_before_them_is_written_on(tmp_path: Path) -> None:
    path, now = tmp_path / "sessions.sqlite", int(time.time() * 1000)
    with sqlite3.connect(path) as database:
        database.execute(
            "CREATE TABLE sessions (id PRIMARY KEY, tenant, tokens, ttl_ms, created_ms, used_ms, num_shared "
            "DEFAULT 0, num_suspended DEFAULT 0, turn_ends DEFAULT x'')"
        )
        row = ("old", "t", array("I", [5]).tobytes(), 60_000, now, now, 0, 0, b"")
        database.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
    database.close()
    store = ConversationStore.open(path)
    assert [r.session_id for r in store.all("t")] == ["old"]
    response_id = stored(store, tenant="t")
    store.say(response_id, [5, 6])
    assert store.attach(NewResponse(response_id, b"the last"))
    store.close()
    again = ConversationStore.open(path)
    found = again.find("t", response_id, ConversationKind.RESPONSE)
    assert (list(found.tokens), found.document) == ([5, 6], b"the last")
    assert [r.session_id for r in again.all("t")] == ["old"]
    again.delete(again.find("t", response_id, ConversationKind.RESPONSE))
    again.close()
    last = ConversationStore.open(path)
    assert [r.session_id for r in last.records()] == ["old"]
    last.close()


async def turn(
    chat: Chat, text: str, previous: str | None = None, response_id: str = "", max_tokens: int = 20
) -> str:
    """A response, created and ended; its id. The chat has what was said."""
    responses, response_id = chat.llm.sessions.responses, response_id or new_response_id()
    chat.messages.append(ChatMessage("user", text))
    await responses.create("", response_id, b"begun", previous)
    params = SamplerParams(temperature=1.0, seed=7, max_tokens=max_tokens)
    taken = await responses.turn(request_for((), params, session=response_id), chat.messages)
    [told] = await read(taken.stream)  # type: ignore[arg-type]
    chat.messages.append(ChatMessage("assistant", told.text))
    responses.attach("", response_id, b"ended")
    return response_id


def run_with(chat: Chat, work: object) -> None:
    try:
        asyncio.run(asyncio.wait_for(work, 60))  # type: ignore[arg-type]
    finally:
        chat.close()


def test_what_gives_way_gives_its_blocks_back() -> None:
    chat = open_chat()

    async def work() -> None:
        with mock.patch(BOUNDS.format("RESPONSES_MAX"), 2):
            made = [await turn(chat, "tell me of the blocks") for _ in range(2)]
            chat.messages.clear()
            made.append(await turn(chat, "and pages"))
        known = await ask(chat.llm, lambda s, now: {one.session_id for one in s.session_table})
        assert known == ids(chat.llm.sessions._store) == set(made[1:])
        assert chat.llm.sessions.count() == 0
        assert await chat.llm.sessions.all("") == []

    run_with(chat, work())


def test_one_that_is_gone_on_from_holds_its_blocks_for_its_whole_ttl_again() -> None:
    chat = open_chat()

    async def expires(response_id: str) -> float:
        return await ask(chat.llm, lambda s, now: s.session_table.find("", response_id).expires)

    async def work() -> None:
        first = await turn(chat, "tell me of the blocks")
        before = await expires(first)
        await turn(chat, "and pages", first)
        forked = await expires(first)
        assert forked > before
        said = [*chat.messages[:2], ChatMessage("user", "go on")]
        taken = await chat.llm.sessions.responses.unstored.turn(
            request_for((), SamplerParams(max_tokens=2), session=first), said
        )
        await read(taken.stream)  # type: ignore[arg-type]
        assert await expires(first) > forked

    run_with(chat, work())


def test_a_branch_holds_the_blocks_before_its_turn_begins() -> None:
    chat = open_chat()

    async def work() -> None:
        first = await turn(chat, "tell me of the blocks and pages that were bound in leather")
        await chat.llm.sessions.responses.create("", "resp_b", b"x", first)
        await chat.llm.sessions.responses.delete("", first)

        def held(s: Scheduler, now: float) -> int:
            return len({b for pin in s.session_table.find("", "resp_b").pins for b in pin.holder.blocks})

        assert await ask(chat.llm, held) >= 3

    run_with(chat, work())


def test_a_create_that_is_refused_or_left_leaves_nothing_behind() -> None:
    chat = open_chat()

    async def work() -> None:
        responses = chat.llm.sessions.responses
        said = [ChatMessage("user", "hi")]
        for lost in (
            responses.create("", "resp_a", b"x", "resp_none"),  # it has expired since it was looked up
            responses.unstored.turn(request_for((), SamplerParams(), session="resp_none"), said),
        ):
            with pytest.raises(UnknownSession) as caught:
                await lost
            assert (caught.value.param, caught.value.code) == (
                "previous_response_id",
                "previous_response_not_found",
            )
        left = asyncio.ensure_future(responses.create("", "resp_b", b"x"))
        await turns()
        left.cancel()
        with pytest.raises(asyncio.CancelledError):
            await left
        await responses.create("", "resp_c", b"x")
        with pytest.raises((InvalidRequest, RequestTooLarge)):
            await responses.turn(
                request_for((), SamplerParams(), session="resp_c"), [ChatMessage("user", "A" * 600)]
            )
        responses.drop("", "resp_c")
        responses.drop("", "resp_c")
        assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0
        assert ids(chat.llm.sessions._store) == set()

    run_with(chat, work())


def test_one_that_runs_cannot_be_gone_on_from_and_is_never_begun_twice() -> None:
    chat = open_chat()
    gate = chat.engine.executor = Turnstile(chat.engine.executor)

    async def work() -> None:
        responses, said = chat.llm.sessions.responses, [ChatMessage("user", "tell me of the blocks")]
        params = SamplerParams(max_tokens=400, ignore_eos=True)
        await responses.create("", "resp_a", b"x")
        gate.permits = threading.Semaphore(0)
        running = await gate.stepping(responses.turn(request_for((), params, session="resp_a"), said))
        store = chat.llm.sessions._store
        assert store.is_active(store.find("", "resp_a", ConversationKind.RESPONSE))
        with pytest.raises(SessionBusy, match="response resp_a is in progress"):
            await gate.stepping(responses.create("", "resp_b", b"x", "resp_a"))
        with pytest.raises(SessionBusy, match="response resp_a is in progress"):
            await responses.unstored.turn(request_for((), SamplerParams(), session="resp_a"), said)
        with pytest.raises(SessionBusy):
            await gate.stepping(responses.turn(request_for((), SamplerParams(), session="resp_a"), said))
        running.stream.cancel()
        await gate.stepping(read(running.stream))  # type: ignore[arg-type]
        gate.permits.release(1000)
        assert not store.is_active(store.find("", "resp_a", ConversationKind.RESPONSE))
        await responses.create("", "resp_b", b"x", "resp_a")  # nothing was said in it: it begins afresh
        assert not store.find("", "resp_b", ConversationKind.RESPONSE).tokens

    run_with(chat, work())


def test_a_response_that_is_deleted_while_it_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    chat = open_chat(tmp_path)
    gate = chat.engine.executor = Turnstile(chat.engine.executor)

    async def work() -> None:
        responses, said = chat.llm.sessions.responses, [ChatMessage("user", "tell me of the blocks")]
        await responses.create("", "resp_a", b"x")
        gate.permits = threading.Semaphore(0)
        running = await gate.stepping(
            responses.turn(request_for((), SamplerParams(max_tokens=40), session="resp_a"), said)
        )
        await gate.stepping(responses.delete("", "resp_a"))
        gate.permits.release(1000)
        await read(running.stream)  # type: ignore[arg-type]
        assert not responses.attach("", "resp_a", b"y")
        assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0

    run_with(chat, work())
    again = open_chat(tmp_path)
    assert ids(again.llm.sessions._store) == set()
    again.close()


def test_a_document_that_outgrows_the_bound_at_its_end_is_kept() -> None:
    chat = open_chat()

    async def work() -> None:
        responses = chat.llm.sessions.responses
        await responses.create("", "resp_a", b"x")
        with mock.patch(BOUNDS.format("DOCUMENTS_BYTES_MAX"), 10):
            assert responses.attach("", "resp_a", b"y" * 11)
        assert responses.find("", "resp_a") == b"y" * 11

    run_with(chat, work())


class WatchedFiles(Files):
    """Notes what is executed; a statement that begins with `fails` fails."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.fails = "-"

    def connect(self, path: Path) -> sqlite3.Connection:
        database, files = super().connect(path), self

        class Watched:
            def __getattr__(self, name: str) -> object:
                return getattr(database, name)

            def execute(self, sql: str, row: tuple[int | str | bytes, ...] = ()) -> object:
                files.said.append(sql.split()[0])
                if sql.startswith(files.fails):
                    raise sqlite3.OperationalError("disk I/O error")
                return database.execute(sql, row)

        return cast("sqlite3.Connection", Watched())


def test_a_touch_writes_the_time_alone_unless_the_row_was_never_written(tmp_path: Path) -> None:
    path, clock, files = tmp_path / "sessions.sqlite", Clock(), WatchedFiles()
    store = ConversationStore.open(path, files, clock)
    first = stored(store)
    assert store.sync(first).result()
    files.fails = "INSERT"
    second = stored(store)
    assert not store.sync(second).result()  # behind all that was told
    files.fails = "-"
    for response_id, verb in ((first, "UPDATE"), (second, "INSERT"), (second, "UPDATE")):
        files.said.clear()
        clock.now += 7.0
        store.use(response_id)
        store.delete(
            store.find("", stored(store, tenant=""), ConversationKind.RESPONSE)
        ).result()  # behind it
        assert next(word for word in files.said if word in ("UPDATE", "INSERT")) == verb
    wanted = {r.session_id: (r.used, r.document) for r in store.records()}
    store.close()
    again = ConversationStore.open(path, clock=clock)
    assert {r.session_id: (r.used, r.document) for r in again.records()} == wanted
    assert set(wanted) == {first, second}
    again.close()
