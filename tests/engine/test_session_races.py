"""Turns that are refused, and sessions to which something happens while something else is under way."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest import mock

import pytest
from tests.doubles.faults import FaultKind, FaultyFiles, seeded
from tests.engine.chats import BLOCK_BYTES, open_chat, plain
from tests.engine.peek import ask
from tests.engine.served import Turnstile, read
from tests.engine.test_session_store import Clock
from tests.engine.test_sessions import HELLO, run
from tests.wanted import request_for

from octavo.config import StartOptions
from octavo.conversations.file import SESSIONS_FILE, longest_ttl
from octavo.conversations.record import TTL_S_MAX
from octavo.conversations.store import ConversationStore, needed_s
from octavo.engine.offload import open_disk
from octavo.engine.port import Port
from octavo.engine.steady_clock import ClockReading, Sources, SteadyClock
from octavo.errors import (
    InvalidRequest,
    SessionBusy,
    UnknownSession,
)
from octavo.files import Files
from octavo.inspect.views import SessionBlocks
from octavo.memory.quota import TenantPolicy
from octavo.params import BeamParams, SamplerParams
from octavo.retention.session_table import SessionState
from octavo.types import ChatMessage, FinishReason


def test_a_turn_in_beams_is_refused_and_the_session_stays_usable() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            more = [*chat.messages, ChatMessage("user", "more")]
            beams = SamplerParams(max_tokens=8, temperature=0.0, beams=BeamParams(2, 1.0, False))
            with pytest.raises(
                InvalidRequest, match="allowed with a session: use_beam_search false"
            ) as error:
                await chat.llm.sessions.turn(request_for((), beams, session=chat.session_id), more)
            assert error.value.param == "use_beam_search"
            turn, told = await chat.say("more")
            plain(turn.prompt, told)
        finally:
            chat.close()

    run(work())


def test_a_turn_without_max_tokens_gets_what_its_tenant_has_room_for() -> None:
    async def work() -> None:
        chat = open_chat()
        sessions, messages = chat.llm.sessions, [ChatMessage("user", HELLO)]
        params = SamplerParams(temperature=1.0, seed=7, ignore_eos=True)
        try:
            policies = [TenantPolicy("bob", maximum=7)]
            await chat.llm.control.set_tenants(policies)
            first = await sessions.turn(
                request_for((), replace(params, max_tokens=3), tenant="bob", session="new"), messages
            )
            [told] = await read(first.stream)
            view = await sessions.find("bob", first.session_id)
            assert view.blocks.held > 2  # of its maximum; they are its own
            messages += [ChatMessage("assistant", told.text), ChatMessage("user", "go on")]
            turn = await sessions.turn(
                request_for((), params, tenant="bob", session=first.session_id), messages
            )
            [told] = await read(turn.stream)
            assert told.finishes == [FinishReason.LENGTH]
            assert len(turn.prompt) + len(told.answer.tokens) == 7 * 16 + 1
        finally:
            chat.close()

    run(work())


@pytest.mark.parametrize("act", ["turn", "suspend"])
def test_a_session_deleted_while_something_is_prepared_leaves_nothing_behind(
    tmp_path: Path, act: str
) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        sessions = chat.llm.sessions
        find = sessions._store.find
        try:
            await chat.say(HELLO)
            more = [*chat.messages, ChatMessage("user", "more")]
            wanted = request_for((), SamplerParams(max_tokens=5), session=chat.session_id)
            record = find("", chat.session_id)
            await sessions.delete("", chat.session_id)
            # As if it had been deleted just after it was looked up.
            with (
                mock.patch.object(sessions._store, "find", side_effect=[record, UnknownSession("gone")]),
                pytest.raises(UnknownSession),
            ):
                await (
                    sessions.turn(wanted, more) if act == "turn" else sessions.suspend("", chat.session_id)
                )
            assert await ask(chat.llm, lambda s, now: (len(s.session_table), s.live.live_requests())) == (
                0,
                [],
            )
        finally:
            chat.close()

    run(work())


def test_blocks_of_a_session_outlive_a_shorter_age_of_the_disk_cache_and_a_clock_that_is_wrong(
    tmp_path: Path,
) -> None:
    day = 86_400.0
    store = ConversationStore.open(tmp_path / SESSIONS_FILE, clock=lambda: 1000.0)
    store.create("", 3 * day)
    store.create("", 5 * day)
    store.close()
    assert longest_ttl(tmp_path / SESSIONS_FILE, 1000.0) == 5 * day
    assert longest_ttl(tmp_path / SESSIONS_FILE, 1000.0 + 6 * day) == 0.0
    assert longest_ttl(tmp_path / "nothing", 0.0) == 0.0
    (tmp_path / "damaged").write_bytes(b"no database at all" * 100)
    assert longest_ttl(tmp_path / "damaged", 0.0) == TTL_S_MAX

    async def work() -> None:
        chat = open_chat(tmp_path)
        await chat.say(HELLO)
        record = chat.llm.sessions._store.find("", chat.session_id)
        chat.llm.sessions._store._records[chat.session_id] = replace(record, ttl_s=3 * day)
        view = await chat.llm.sessions.suspend("", chat.session_id)
        chat.close()
        assert chat.store is not None
        folder, size = chat.store.namespace.parent, 200 * (BLOCK_BYTES + 4096)
        options = StartOptions(disk_cache=str(folder), disk_size_bytes=size, disk_max_age_days=1)
        began = time.time()
        for days, passed, left in ((4, 0, view.blocks.kept), (2, 2, view.blocks.kept), (4, 4, 0)):
            sources = Sources(
                partial(float, began + days * day), partial(float, passed * day), partial(str, "boot")
            )
            clock = SteadyClock(ClockReading("boot", 0.0, began), sources)
            store = open_disk(options, BLOCK_BYTES, b"f" * 32, day, clock, needed_s)
            assert store is not None
            assert len(store.entries()) == left
            store.close()

    run(work())


@pytest.mark.parametrize("when", ["blocks", "sync", "record"])
def test_a_session_deleted_while_it_is_suspended_is_unknown(tmp_path: Path, when: str) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        sessions = chat.llm.sessions
        try:
            await chat.say(HELLO)
            delete = partial(sessions.delete, "", chat.session_id)
            if when == "blocks":

                async def pause(seconds: float) -> None:
                    await delete()

                busy = SessionBlocks(state=SessionState.SUSPENDING)
                with (
                    mock.patch.object(Port, "_suspend", return_value=busy),
                    mock.patch("octavo.conversations.sessions.asyncio.sleep", pause),
                    pytest.raises(UnknownSession),
                ):
                    await sessions.suspend("", chat.session_id)
                return
            done: Future[object] = Future()
            asked = asyncio.Event()

            def wait(*given: object) -> Future[object]:
                asked.set()
                return done

            target = (sessions, "_sync") if when == "sync" else (sessions._store, "sync")
            with mock.patch.object(*target, side_effect=wait):
                suspending = asyncio.ensure_future(sessions.suspend("", chat.session_id))
                await asked.wait()
                await delete()
                done.set_result([b"a name"] if when == "sync" else False)
                with pytest.raises(UnknownSession):
                    await suspending
        finally:
            chat.close()

    run(work())


def test_a_suspension_that_no_one_waits_for_leaves_no_session_busy_where_the_disk_fails(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        faults, armed = seeded(1, 1.0, [FaultKind.ENOSPC]), False
        chat = open_chat(
            tmp_path, files=FaultyFiles(Files(), lambda call, kind: faults(call, kind) if armed else None)
        )
        slept = asyncio.Event()

        async def pause(seconds: float) -> None:
            slept.set()
            await asyncio.Event().wait()

        try:
            armed = True
            await chat.say(HELLO)
            busy = SessionBlocks(state=SessionState.SUSPENDING)

            def suspend(port: Port, tenant: str, session_id: str) -> SessionBlocks:
                port._scheduler.session_holds.suspend(tenant, session_id)
                return busy  # as it is before its store has failed

            with (
                mock.patch.object(Port, "_suspend", suspend),
                mock.patch("octavo.conversations.sessions.asyncio.sleep", pause),
            ):
                suspending = asyncio.ensure_future(chat.llm.sessions.suspend("", chat.session_id))
                await slept.wait()
                suspending.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await suspending
            state = (await chat.llm.sessions.find("", chat.session_id)).blocks.state
            assert state is SessionState.IDLE
            await chat.say("more")
        finally:
            armed = False
            chat.close()

    run(work())


@pytest.mark.parametrize("act", ["create", "turn", "fork"])
def test_a_new_session_for_which_no_one_waits_any_more_is_not_there(act: str) -> None:
    async def work() -> None:
        chat = open_chat()
        llm, sessions, answer_to = chat.llm, chat.llm.sessions, chat.llm.submitter._reply_to

        async def leave_when_it_is_made(answer: Future[object], **timeout: object) -> object:
            await answer_to(answer)
            raise asyncio.CancelledError

        say = [ChatMessage("user", HELLO)]
        turn = partial(sessions.turn, request_for((), SamplerParams(max_tokens=5), session="new"), say)
        try:
            if act == "fork":
                await chat.say(HELLO)
            before = sessions.count()
            acts = {
                "create": sessions.create,
                "turn": turn,
                "fork": partial(sessions.fork, "", chat.session_id),
            }
            with (
                mock.patch.object(llm.submitter, "_reply_to", leave_when_it_is_made),
                pytest.raises(asyncio.CancelledError),
            ):
                await acts[act]()
            left = await ask(llm, lambda s, now: (len(s.session_table), s.live.live_requests()))
            assert left == (before, [])
            assert sessions.count() == before
        finally:
            chat.close()

    run(work())


def test_a_turn_whose_session_the_store_has_lost_takes_it_from_the_engine_too() -> None:
    async def work() -> None:
        chat = open_chat()
        store = chat.llm.sessions._store
        say = store.say

        def lose_and_say(session_id: str, said: Sequence[int], num_shared: int) -> bool:
            store.delete(store.find("", session_id))
            return say(session_id, said, num_shared)

        try:
            with mock.patch.object(store, "say", lose_and_say):
                await chat.say(HELLO)
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0
        finally:
            chat.close()

    run(work())


@pytest.mark.parametrize("ends_well", [True, False])
def test_a_session_is_not_forgotten_during_its_turn(ends_well: bool) -> None:
    async def work() -> None:
        clock = Clock()
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        sessions = chat.llm.sessions
        sessions._store._clock = clock
        try:
            view = await sessions.create("", 10.0)
            clock.now += 9.0
            message = [ChatMessage("user", HELLO)]
            params = SamplerParams(max_tokens=300, ignore_eos=True, temperature=0.0)
            gate.permits = threading.Semaphore(0)
            turn = await gate.stepping(
                sessions.turn(request_for((), params, session=view.session_id), message)
            )
            assert (await gate.stepping(sessions.find("", view.session_id))).seconds_left == 10.0
            clock.now += 50.0
            await gate.stepping(sessions.create("somebody", 10.0))  # whoever has expired is forgotten now
            assert [v.session_id for v in await gate.stepping(sessions.all())] == [view.session_id]
            if not ends_well:
                turn.stream.cancel()
            gate.permits.release(1000)
            await read(turn.stream)
            assert (await sessions.find("", view.session_id)).seconds_left == 10.0
            assert bool(sessions.tokens("", view.session_id)) is ends_well
            clock.now += 11.0
            assert await sessions.all() == []
        finally:
            chat.close()

    run(work())


def test_a_turn_that_is_refused_does_not_keep_its_session_alive() -> None:
    async def work() -> None:
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        store = chat.llm.sessions._store
        try:
            await chat.say(HELLO)
            more = [*chat.messages, ChatMessage("user", "more")]
            params = SamplerParams(max_tokens=300, ignore_eos=True)
            gate.permits = threading.Semaphore(0)
            turn = await gate.stepping(
                chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
            )
            with pytest.raises(SessionBusy):
                await gate.stepping(
                    chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
                )
            assert list(store._turns.values()) == [chat.session_id]
            turn.stream.cancel()
            gate.permits.release(1000)
            await read(turn.stream)
            assert store._turns == {}
        finally:
            chat.close()

    run(work())


def test_a_session_that_is_deleted_while_it_is_viewed_is_not_reported_as_idle() -> None:
    async def work() -> None:
        chat = open_chat()
        submitter, sessions = chat.llm.submitter, chat.llm.sessions
        send = submitter.send
        try:
            await chat.say(HELLO)
            left = await sessions.create("")

            async def send_when_it_is_deleted(command):  # type: ignore[no-untyped-def]
                submitter.send = send  # type: ignore[method-assign]
                await sessions.delete("", gone)
                return await send(command)

            gone = chat.session_id
            submitter.send = send_when_it_is_deleted  # type: ignore[method-assign]
            assert [view.session_id for view in await sessions.all()] == [left.session_id]
            gone = left.session_id
            submitter.send = send_when_it_is_deleted  # type: ignore[method-assign]
            with pytest.raises(UnknownSession):
                await sessions.find("", left.session_id)
        finally:
            chat.close()

    run(work())


def test_of_many_sessions_those_at_work_are_listed_then_those_that_were_used_last() -> None:
    async def work() -> None:
        clock = Clock()
        chat = open_chat()
        sessions, store = chat.llm.sessions, chat.llm.sessions._store
        store._clock = clock
        try:
            ids = []
            for _ in range(40):  # more than are viewed at once
                clock.now += 0.1
                ids.append((await sessions.create("", 60.0)).session_id)
            await sessions.create("somebody", 60.0)
            store.begin_turn(store.find("", ids[0]), turn := "turn")
            store.use(ids[0])
            clock.now += 0.1
            store.say(ids[7], [1, 2, 3])
            clock.now += 0.1
            await sessions.create("", 60.0)
            await sessions.delete("", (await sessions.all(""))[-1].session_id)
            listed = {n: [view.session_id for view in await sessions.all("", n)] for n in (1, 2, 4, 100)}
            assert listed == {1: ids[:1], 2: [ids[0], ids[7]], 4: [ids[0], ids[7], *ids[38:]], 100: ids}
            assert (sessions.count(""), sessions.count(None)) == (40, 41)
            store.end_turn(turn)
        finally:
            chat.close()

    run(work())
