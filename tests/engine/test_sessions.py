"""Sessions: a turn equals its token ids sent as a plain prompt, bit for bit, whatever became of its
blocks."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.doubles.faults import FaultKind, FaultyFiles, seeded
from tests.engine.chats import Chat, PairTokenizer, open_chat, plain
from tests.engine.peek import ask, tell
from tests.engine.served import Turnstile
from tests.waiting import wait_until
from tests.wanted import request_for

from octavo.engine.requests import render_chat
from octavo.errors import (
    InvalidRequest,
    PinRefused,
    RequestFailed,
    SessionBusy,
    SessionRefused,
    UnknownSession,
)
from octavo.files import Files
from octavo.memory.holders import Holder, HolderKind
from octavo.memory.quota import SHARED
from octavo.params import SamplerParams
from octavo.retention.client_pins import PinRequest
from octavo.retention.session_table import SessionState
from octavo.retention.transfers import Transfers
from octavo.text.continuation import compose
from octavo.types import ChatMessage, FinishReason

HELLO = "tell me of the blocks and pages that were bound in leather long ago"


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def clear_pool(chat: Chat) -> None:
    """Nothing that is not held can be found in the pool."""

    def clear(scheduler, now):  # type: ignore[no-untyped-def]
        table = scheduler.ledger.open(Holder(HolderKind.SEQUENCE))
        scheduler.ledger.reserve(table, 0, scheduler.ledger.pool.num_available * 16)
        scheduler.ledger.close(table)
        scheduler.check()

    tell(chat.llm, clear)


@pytest.mark.parametrize("depth", [0, 1])
def test_every_turn_equals_its_tokens_as_a_plain_prompt(depth: int) -> None:
    async def work() -> None:
        chat = open_chat(depth=depth)
        try:
            said = 0
            for question in (HELLO, "and then", "Why", "go on"):
                turn, told = await chat.say(question)
                plain(turn.prompt, told)
                assert (turn.reused_tokens, turn.fallback) == (said, "")
                assert told.answer.cached >= max(0, said - 16)
                said = len(chat.llm.sessions.tokens("", chat.session_id))
                num_ends = told.finishes.count(FinishReason.STOP)  # the end token was not said
                assert said == len(turn.prompt) + len(told.answer.tokens) - num_ends
        finally:
            chat.close()

    run(work())


def test_history_that_is_tokenised_again_would_be_other_tokens() -> None:
    """Else these tests would prove nothing."""

    async def work() -> None:
        chat = open_chat()
        try:
            turn, told = await chat.say(HELLO, 60)
            again = PairTokenizer().encode(told.text)
            assert again != told.answer.tokens
            turn, _ = await chat.say("more")
            pairs: Any = PairTokenizer()
            whole = compose(pairs, (), render_chat(pairs, chat.messages[:-1]))
            assert whole.tokens != turn.prompt
        finally:
            chat.close()

    run(work())


@pytest.mark.parametrize("resumed", [False, True])
@pytest.mark.parametrize("is_shared", [False, True])
def test_suspended_killed_and_started_again_a_turn_is_equal_and_computes_a_block_at_most(
    tmp_path: Path, resumed: bool, is_shared: bool
) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        if is_shared:  # by an operator, until the process ends
            shared = await chat.llm.encode_chat([ChatMessage("user", HELLO)])
            await chat.llm.control.pin(PinRequest("rules", tuple(shared[:32]), 60.0, tenant=SHARED))
        await chat.say(HELLO)
        await chat.say("and then")
        view = await chat.llm.sessions.suspend("", chat.session_id)
        assert (view.blocks.state, view.blocks.held) == (SessionState.SUSPENDED, 0)
        assert view.blocks.kept == view.blocks.num_blocks > 5
        copy = tmp_path / "copy"
        _copy_as_killed(chat, copy)
        chat.close()
        again = open_chat(copy)
        try:
            again.messages, again.session_id = chat.messages, chat.session_id
            found = await again.llm.sessions.find("", chat.session_id)
            assert (found.blocks.state, found.num_tokens) == (SessionState.SUSPENDED, view.num_tokens)
            assert found.blocks.kept == view.blocks.kept
            store = again.llm._session_support.store  # type: ignore[union-attr]
            assert store.find("", chat.session_id).num_suspended == view.blocks.kept
            if resumed:
                held = await again.llm.sessions.resume("", chat.session_id)
                assert (held.blocks.state, held.blocks.held) == (SessionState.IDLE, view.num_tokens // 16)
                assert await again.llm.sessions.resume("", chat.session_id)  # it is there: nothing happens
            turn, told = await again.say("Why")
            plain(turn.prompt, told)
            assert turn.reused_tokens == view.num_tokens
            assert told.answer.cached >= view.num_tokens - 16
        finally:
            again.close()

    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        run(work())


def _copy_as_killed(chat: Chat, target: Path) -> None:
    """What a process that dies now would leave: the files as they are, nothing closed."""
    assert chat.store is not None
    source = chat.store.namespace
    (target / source.name).mkdir(parents=True)
    for path in source.iterdir():
        (target / source.name / path.name).write_bytes(path.read_bytes())


def test_small_budgets_change_no_answer(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path, num_slots=6, num_blocks=20)
        try:
            for question in (HELLO, "and then", "Why"):
                turn, told = await chat.say(question, 20)
                plain(turn.prompt, told)
            view = await chat.llm.sessions.find("", chat.session_id)
            assert view.blocks.kept == 0  # more blocks than three quarters of the slots
            with pytest.raises((SessionRefused, PinRefused)):
                await chat.llm.sessions.suspend("", chat.session_id)
        finally:
            chat.close()

    run(work())


def test_a_disk_that_fails_costs_time_and_no_answer_and_never_claims_what_is_not_there(
    tmp_path: Path,
) -> None:
    async def work() -> None:
        armed = False
        faults = seeded(5, 0.15, [*FaultKind][:6])
        files = FaultyFiles(Files(), lambda call, operation: faults(call, operation) if armed else None)
        chat = open_chat(tmp_path, files=files)
        outcomes = set()
        try:
            armed = True
            for index in range(60):  # which call meets which fault depends on how threads take turns
                if index >= 12 and len(outcomes) == 2:
                    break
                turn, told = await chat.say("more", 20)
                plain(turn.prompt, told)
                try:
                    view = await chat.llm.sessions.suspend("", chat.session_id)
                    assert view.blocks.state is SessionState.SUSPENDED
                    assert chat.store is not None
                    slots = await ask(chat.llm, lambda s, now: s.session_holds.slots(chat.session_id))
                    assert all(chat.store.is_listed(*pair) for pair in slots)
                    outcomes.add("suspended")
                except RequestFailed:
                    outcomes.add("failed")
                clear_pool(chat)
                if index % 5 == 4:
                    with contextlib.suppress(RequestFailed):  # its row is there until the disk works again
                        await chat.llm.sessions.delete("", chat.session_id)
                    chat.messages, chat.session_id = [], "new"
        finally:
            armed = False
            chat.close()
        assert outcomes == {"suspended", "failed"}

    run(work())


def test_messages_that_do_not_extend_what_was_said_fall_back_and_say_so() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            chat.messages[0] = replace(chat.messages[0], content=HELLO.replace("leather", "paper"))
            turn, told = await chat.say("go on")
            plain(turn.prompt, told)
            assert turn.reused_tokens == 0
            assert "they differ after" in turn.fallback
            assert turn.to_json()["fallback"] == turn.fallback
            events = (await chat.llm.control.kv()).events
            assert any("tokenised as a whole" in event.text for event in events)
            turn, _ = await chat.say("and now")  # what was said is the new history
            assert turn.fallback == ""
            assert turn.reused_tokens > 0
        finally:
            chat.close()

    run(work())


def test_a_stop_string_ends_what_was_said_where_the_client_saw_it() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            _, whole = await chat.say(HELLO, 60)
            stop = whole.text[20:22]
            chat.messages, chat.session_id = [], "new"
            turn, told = await chat.say(HELLO, 60, stop=(stop,))
            assert told.finishes == [FinishReason.STOP]
            assert told.text == whole.text.partition(stop)[0]
            said = chat.llm.sessions.tokens("", chat.session_id)
            text = b"".join(map(PairTokenizer().token_bytes, said[len(turn.prompt) :])).decode()
            assert told.text.startswith(text)
            assert len(told.text) - len(text) <= 1
            turn, told = await chat.say("go on")
            assert (turn.reused_tokens, turn.fallback) == (len(said), "")
            plain(turn.prompt, told)
            view = await chat.llm.sessions.find("", chat.session_id)
            assert view.blocks.held > 0
        finally:
            chat.close()

    run(work())


def test_a_turn_that_is_cancelled_changes_nothing_and_one_at_a_time_runs() -> None:
    async def work() -> None:
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        try:
            await chat.say(HELLO)
            said = chat.llm.sessions.tokens("", chat.session_id)
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
            with pytest.raises(SessionBusy):
                await gate.stepping(chat.llm.sessions.resume("", chat.session_id))
            turn.stream.cancel()
            gate.permits.release(1000)
            async for _ in turn.stream:
                pass
            assert chat.llm.sessions.tokens("", chat.session_id) == said
            turn, told = await chat.say("more")
            assert turn.reused_tokens == len(said)
            plain(turn.prompt, told)
        finally:
            chat.close()

    run(work())


def test_sessions_are_a_tenants_own_and_a_refused_first_turn_leaves_none() -> None:
    async def work() -> None:
        chat = open_chat()
        sessions = chat.llm.sessions
        try:
            view = await sessions.create("one", 30.0)
            assert [v.session_id for v in await sessions.all("one")] == [view.session_id]
            assert await sessions.all("two") == []
            for act in (sessions.find, sessions.delete, sessions.suspend, sessions.resume):
                with pytest.raises(UnknownSession):
                    await act("two", view.session_id)
            message = [ChatMessage("user", "x" * 600)]
            with pytest.raises(InvalidRequest):
                await sessions.turn(request_for((), SamplerParams(), tenant="two", session="new"), message)
            assert await sessions.all("two") == []
            await sessions.delete("one", view.session_id)
            with pytest.raises(UnknownSession):
                await sessions.find("one", view.session_id)
        finally:
            chat.close()

    run(work())


def test_suspending_without_a_disk_is_refused_in_clear_words() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            with pytest.raises(SessionRefused, match="there is none \\(setting disk_cache\\)"):
                await chat.llm.sessions.suspend("", chat.session_id)
        finally:
            chat.close()

    run(work())


def test_a_broken_engine_forgets_blocks_and_not_what_was_said(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        try:
            await chat.say(HELLO)
            said = chat.llm.sessions.tokens("", chat.session_id)
            before = chat.engine.scheduler
            with mock.patch.object(before, "schedule", side_effect=AssertionError("broken")):
                tell(chat.llm, lambda s, now: None)
                await asyncio.to_thread(wait_until, lambda: chat.engine.scheduler is not before)
            turn, told = await chat.say("go on")
            assert (turn.reused_tokens, told.answer.cached) == (len(said), 0)
            plain(turn.prompt, told)
            view = await chat.llm.sessions.suspend("", chat.session_id)
            assert view.blocks.kept == view.blocks.num_blocks > 0
        finally:
            chat.close()

    run(work())
