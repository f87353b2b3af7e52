"""Forked sessions: either goes on as if it had been the only one, bit for bit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.chats import Chat, open_chat, plain
from tests.engine.peek import ask
from tests.engine.served import Told, Turnstile, alone, read
from tests.engine.test_sessions import HELLO, _copy_as_killed, clear_pool, run
from tests.waiting import wait_until
from tests.wanted import request_for

from octavo.conversations.store import SESSIONS_MAX, ConversationStore
from octavo.conversations.turns import Turn
from octavo.engine.outputs import SessionView
from octavo.errors import (
    InvalidRequest,
    RequestFailed,
    SessionBusy,
    SessionRefused,
    UnknownSession,
    UnknownTenant,
)
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.retention.session_table import SessionState
from octavo.retention.transfers import Transfers
from octavo.types import ChatMessage


async def fork(chat: Chat, turn: int | None = None) -> tuple[Chat, SessionView]:
    """The same server, as the client of the fork sees it."""
    view = await chat.llm.sessions.fork("", chat.session_id, turn)
    messages = chat.messages[: 2 * view.num_turns]
    return replace(chat, messages=messages, session_id=view.session_id), view


async def check_that_blocks_add_up(chat: Chat) -> None:
    await ask(chat.llm, lambda s, now: s.check())


async def told_alone(questions: Sequence[str]) -> Told:
    """The last answer of a session that was never forked, on a server of its own."""
    chat = open_chat()
    try:
        for question in questions:
            _, told = await chat.say(question)
        return told
    finally:
        chat.close()


def equal(told: Told, wanted: Told) -> bool:
    return (told.text, told.answer.tokens, told.answer.bits) == (
        wanted.text,
        wanted.answer.tokens,
        wanted.answer.bits,
    )


@pytest.mark.parametrize("on_disk", [False, True])
def test_a_session_and_its_fork_answer_as_two_that_never_were_one(tmp_path: Path, on_disk: bool) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path if on_disk else None)
        try:
            for question in (HELLO, "and then"):
                await chat.say(question)
            said = chat.llm.sessions.tokens("", chat.session_id)
            other, view = await fork(chat)
            assert (view.num_tokens, view.num_turns, view.tenant) == (len(said), 2, "")
            told = []
            for one, questions in ((chat, ("Why", "go on")), (other, ("Why", "and now"))):
                for question in questions:
                    turn, answer = await one.say(question)
                    assert (turn.fallback, turn.reused_tokens >= len(said)) == ("", True)
                    assert answer.answer.cached >= len(said) - 16
                    await check_that_blocks_add_up(chat)
                told.append(answer)
            assert equal(told[0], await told_alone((HELLO, "and then", "Why", "go on")))
            assert equal(told[1], await told_alone((HELLO, "and then", "Why", "and now")))
            assert not equal(*told)
        finally:
            chat.close()

    run(work())


def test_a_fork_holds_no_block_more_than_its_session_does() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            before = await ask(chat.llm, lambda s, now: s.ledger.counts().held)
            _, view = await fork(chat)
            assert await ask(chat.llm, lambda s, now: s.ledger.counts().held) == before
            assert view.blocks.held == view.blocks.num_blocks == before > 4
        finally:
            chat.close()

    run(work())


def test_a_fork_at_an_earlier_turn_has_the_tokens_of_that_turn() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            said = []
            for question in (HELLO, "and then", "Why"):
                await chat.say(question)
                said.append(chat.llm.sessions.tokens("", chat.session_id))
            for turn in (1, 2, 3):
                other, view = await fork(chat, turn)
                assert chat.llm.sessions.tokens("", other.session_id) == said[turn - 1]
                assert (view.num_turns, view.blocks.num_blocks) == (turn, len(said[turn - 1]) // 16)
                answer, told = await other.say("go on")
                plain(answer.prompt, told)
                assert (answer.reused_tokens, answer.fallback) == (len(said[turn - 1]), "")
                assert (await chat.llm.sessions.find("", other.session_id)).num_turns == turn + 1
            again, view = await fork(other, 1)  # a fork of a fork
            assert chat.llm.sessions.tokens("", again.session_id) == said[0]
            assert chat.llm.sessions.tokens("", chat.session_id) == said[2]
            await check_that_blocks_add_up(chat)
        finally:
            chat.close()

    run(work())


def test_turns_before_one_that_fell_back_cannot_be_forked_and_that_is_said() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            await chat.say("and then")
            chat.messages[0] = replace(chat.messages[0], content=HELLO.replace("leather", "paper"))
            turn, _ = await chat.say("go on")
            assert turn.fallback
            said = chat.llm.sessions.tokens("", chat.session_id)
            await chat.say("Why")
            with pytest.raises(InvalidRequest, match=r"turn is 2; allowed: 3 to 4 \(what was said before"):
                await chat.llm.sessions.fork("", chat.session_id, 2)
            other, _ = await fork(chat, 3)
            assert chat.llm.sessions.tokens("", other.session_id) == said
            assert [view.num_turns for view in await chat.llm.sessions.all()] == [4, 3]
        finally:
            chat.close()

    run(work())


def test_a_fork_is_made_while_a_turn_runs_and_has_the_turns_before_it() -> None:
    async def work() -> None:
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        try:
            await chat.say(HELLO)
            said = chat.llm.sessions.tokens("", chat.session_id)
            more = [*chat.messages, ChatMessage("user", "more")]
            params = SamplerParams(max_tokens=200, ignore_eos=True, temperature=1.0, seed=7, logprobs=2)
            gate.permits = threading.Semaphore(0)
            running: Turn = await gate.stepping(
                chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
            )
            other, view = await gate.stepping(fork(chat))
            assert (chat.llm.sessions.tokens("", other.session_id), view.num_turns) == (said, 1)
            with pytest.raises(InvalidRequest, match="turn is 2; allowed: 1 to 1"):
                await gate.stepping(fork(chat, 2))
            with pytest.raises(SessionBusy):
                await gate.stepping(
                    chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
                )
            gate.permits.release(1000)
            turn, told = await other.say("go on")
            plain(turn.prompt, told)
            [whole] = await read(running.stream)
            [wanted] = alone(running.prompt, 200, ignore_eos=True, temperature=1.0, seed=7, logprobs=2)
            assert (whole.answer.tokens, whole.answer.bits) == (wanted.tokens, wanted.bits)
            assert (await chat.llm.sessions.find("", chat.session_id)).num_turns == 2
            await check_that_blocks_add_up(chat)
        finally:
            chat.close()

    run(work())


def test_a_session_that_is_deleted_takes_nothing_from_its_fork() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            other, view = await fork(chat)
            await chat.llm.sessions.delete("", chat.session_id)
            clear_pool(chat)
            found = await chat.llm.sessions.find("", other.session_id)
            assert found.blocks.held == view.blocks.held > 4
            turn, told = await other.say("go on")
            plain(turn.prompt, told)
            assert told.answer.cached >= view.num_tokens - 16
        finally:
            chat.close()

    run(work())


@pytest.mark.parametrize("is_suspended", [False, True])
def test_a_fork_is_there_after_a_restart_with_its_turns_and_its_blocks(
    tmp_path: Path, is_suspended: bool
) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        await chat.say(HELLO)
        await chat.say("and then")
        if is_suspended:
            await chat.llm.sessions.suspend("", chat.session_id)
        other, view = await fork(chat, 1)
        if is_suspended:
            assert (view.blocks.state, view.blocks.held) == (SessionState.SUSPENDED, 0)
            assert view.blocks.kept == view.blocks.num_blocks == view.num_tokens // 16
            await chat.llm.sessions.delete("", chat.session_id)
            copy = tmp_path / "copy"
            _copy_as_killed(chat, copy)  # the fork's record is on the medium
        else:
            assert view.blocks.state is SessionState.IDLE
            await asyncio.to_thread(_let_stores_end, chat)
            copy = tmp_path
        chat.close()
        again = open_chat(copy)
        try:
            found = await again.llm.sessions.find("", other.session_id)
            assert (found.num_tokens, found.num_turns) == (view.num_tokens, 1)
            assert found.blocks.state is SessionState.SUSPENDED
            assert found.blocks.kept == view.num_tokens // 16
            restored = replace(again, messages=other.messages, session_id=other.session_id)
            turn, told = await restored.say("Why")
            plain(turn.prompt, told)
            assert turn.reused_tokens == view.num_tokens
            assert told.answer.cached >= view.num_tokens - 16
            assert (await fork(restored, 1))[1].num_tokens == view.num_tokens
            await check_that_blocks_add_up(again)
        finally:
            again.close()

    with mock.patch.object(Transfers, "is_worth_it", return_value=True):
        run(work())


def _let_stores_end(chat: Chat) -> None:
    wait_until(lambda: not any(p.missing for p in chat.engine.scheduler.pins.all()))


def test_a_fork_of_a_suspended_session_that_the_medium_does_not_take_is_not_there(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        sessions = chat.llm.sessions
        failed: Future[bool] = Future()
        failed.set_result(False)
        try:
            await chat.say(HELLO)
            await sessions.suspend("", chat.session_id)
            with (
                mock.patch.object(sessions._store, "sync", return_value=failed),
                pytest.raises(RequestFailed, match="could not be forked: it is suspended, and the record"),
            ):
                await fork(chat)
            assert [view.session_id for view in await sessions.all()] == [chat.session_id]
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 1
            await check_that_blocks_add_up(chat)
        finally:
            chat.close()

    run(work())


def test_what_cannot_be_forked_is_refused_and_nothing_is_made() -> None:
    async def work() -> None:
        chat = open_chat()
        sessions = chat.llm.sessions
        try:
            empty = await sessions.create()
            with pytest.raises(InvalidRequest, match=r"nothing was said in session .* in which a turn has"):
                await sessions.fork("", empty.session_id)
            await sessions.delete("", empty.session_id)
            await chat.say(HELLO)
            for turn in (0, 2):
                with pytest.raises(InvalidRequest, match=f"turn is {turn}; allowed: 1 to 1") as error:
                    await sessions.fork("", chat.session_id, turn)
                assert error.value.param == "turn"
            with pytest.raises(InvalidRequest, match=r"ttl is 0\.5; allowed: 1"):
                await sessions.fork("", chat.session_id, None, 0.5)
            for tenant, session_id in (("another", chat.session_id), ("", "nobody's")):
                with pytest.raises(UnknownSession):
                    await sessions.fork(tenant, session_id)
            with mock.patch("octavo.conversations.store.SESSIONS_MAX", 1), pytest.raises(SessionRefused):
                await sessions.fork("", chat.session_id)
            assert [view.session_id for view in await sessions.all(None)] == [chat.session_id]
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 1
        finally:
            chat.close()

    run(work())


def test_a_tenant_that_is_gone_gets_no_fork() -> None:
    async def work() -> None:
        chat = open_chat()
        sessions, hello = chat.llm.sessions, [ChatMessage("user", HELLO)]
        try:
            await chat.llm.control.set_tenants([TenantPolicy("bob")])
            turn = await sessions.turn(
                request_for((), SamplerParams(max_tokens=5), tenant="bob", session="new"), hello
            )
            await read(turn.stream)
            assert (await sessions.fork("bob", turn.session_id)).tenant == "bob"
            await chat.llm.control.set_tenants([])
            with pytest.raises(UnknownTenant):
                await sessions.fork("bob", turn.session_id)
            assert sessions.count("bob") == 2
        finally:
            chat.close()

    run(work())


def test_a_fork_lives_as_long_as_its_session_would_or_as_is_asked() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            assert (await fork(chat))[1].seconds_left == pytest.approx(60.0, abs=5.0)
            view = await chat.llm.sessions.fork("", chat.session_id, 1, 500.0)
            assert view.seconds_left == pytest.approx(500.0, abs=5.0)
            assert view.age < 5.0
        finally:
            chat.close()

    run(work())


def test_a_session_that_a_broken_engine_forgot_is_forked_from_its_tokens() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            session_id = chat.session_id
            await ask(chat.llm, lambda s, now: s.session_holds.delete("", session_id))
            clear_pool(chat)
            other, view = await fork(chat)
            assert view.blocks.held == 0
            turn, told = await other.say("go on")
            plain(turn.prompt, told)
            assert turn.reused_tokens == view.num_tokens
        finally:
            chat.close()

    run(work())


def test_forks_count_as_sessions_of_their_tenant() -> None:
    store = ConversationStore()
    record = store.create("one", 60.0)
    store.say(record.session_id, [1, 2])
    source = store.find("one", record.session_id)
    for _ in range(SESSIONS_MAX - 1):
        store.fork(source)
    with pytest.raises(SessionRefused, match="there are 1,024 sessions; allowed: 1,024"):
        store.fork(source)
