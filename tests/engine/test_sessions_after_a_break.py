"""A step that breaks takes the scheduler with it; what was said stays, and the next scheduler knows of it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.chats import Chat, open_chat, plain
from tests.engine.peek import ask
from tests.engine.served import Turnstile, read
from tests.engine.test_sessions import HELLO, run
from tests.wanted import request_for

from octavo.conversations.record import Record
from octavo.conversations.responses import new_response_id
from octavo.conversations.turns import TurnRecorder
from octavo.engine.outputs import Delta
from octavo.engine.port import ForgetSession
from octavo.engine.stream import DeltaStream
from octavo.errors import InvalidRequest, SessionRefused
from octavo.params import SamplerParams
from octavo.retention.session_table import SessionState
from octavo.types import ChatMessage, FinishReason


async def break_a_step(chat: Chat, gate: Turnstile) -> None:
    """And the engine begins again."""
    gate.failures = 1
    stream = await chat.llm.submit(request_for([5] * 20, SamplerParams(max_tokens=4)))
    [told] = await read(stream)
    assert told.finishes == [FinishReason.ERROR]


def test_a_scheduler_that_is_new_knows_every_session_and_none_that_was_deleted(tmp_path: Path) -> None:
    async def work() -> None:
        chat, gone = open_chat(tmp_path), "new"
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        sessions = chat.llm.sessions
        try:
            await chat.say(HELLO)
            assert (await sessions.suspend("", chat.session_id)).blocks.kept > 0
            hello, params = [ChatMessage("user", HELLO)], SamplerParams(max_tokens=4)
            turn = await sessions.turn(request_for((), params, session=gone), hello)
            await read(turn.stream)
            await sessions.delete("", turn.session_id)
            response_id = new_response_id()
            await sessions.responses.create("", response_id, b"{}")
            await read(
                (await sessions.responses.turn(request_for((), params, session=response_id), hello)).stream
            )
            await break_a_step(chat, gate)
            known = await ask(
                chat.llm, lambda s, now: {one.session_id: one.is_response for one in s.session_table}
            )
            assert known == {chat.session_id: False, response_id: True}
            blocks = (await sessions.find("", chat.session_id)).blocks
            assert (blocks.state, blocks.kept) == (SessionState.SUSPENDED, 0), "the tiers began again, too"
            turn, told = await chat.say("go on")
            assert turn.reused_tokens > 0
            plain(turn.prompt, told)
        finally:
            chat.close()

    run(work())


def test_what_was_said_as_the_engine_broke_is_known_to_the_scheduler_that_follows(tmp_path: Path) -> None:
    """The turn ended in a step, and the next one broke before the event loop came to the end."""

    async def work() -> None:
        chat = open_chat(tmp_path)
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        sessions = chat.llm.sessions
        params = SamplerParams(max_tokens=60, temperature=0.0, ignore_eos=True)
        try:
            late: list[tuple[TurnRecorder, DeltaStream, Delta]] = []
            with mock.patch.object(TurnRecorder, "take", lambda *given: late.append(given)):
                turn = await sessions.turn(
                    request_for((), params, session="new"), [ChatMessage("user", HELLO)]
                )
                await read(turn.stream)
            await break_a_step(chat, gate)
            for recorder, stream, delta in late:
                recorder.take(stream, delta)
            with pytest.raises(
                SessionRefused, match=r"7 of the 7 blocks .* are neither in memory nor on disk"
            ):
                await sessions.suspend("", turn.session_id)
        finally:
            chat.close()

    run(work())


def test_a_session_deleted_as_its_turn_ends_after_a_break_ends_the_turn(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        sessions = chat.llm.sessions
        store = sessions._store
        say = store.say

        def say_and_delete(session_id: str, tokens: Sequence[int], num_shared: int = 0) -> bool:
            is_kept = say(session_id, tokens, num_shared)
            store.delete(store.find("", session_id))
            return is_kept

        try:
            late: list[tuple[TurnRecorder, DeltaStream, Delta]] = []
            params = SamplerParams(max_tokens=20, ignore_eos=True)
            with mock.patch.object(TurnRecorder, "take", lambda *given: late.append(given)):
                turn = await sessions.turn(
                    request_for((), params, session="new"), [ChatMessage("user", HELLO)]
                )
                await read(turn.stream)
            await break_a_step(chat, gate)
            with mock.patch.object(store, "say", say_and_delete):
                for recorder, stream, delta in late:
                    recorder.take(stream, delta)
            assert not store._turns
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0
        finally:
            chat.close()

    run(work())


def test_a_turn_of_a_session_that_the_scheduler_let_expire_a_moment_earlier_knows_what_was_said() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            chat.llm.submitter.post(ForgetSession("", chat.session_id))
            more = [*chat.messages, ChatMessage("user", "more")]
            params = SamplerParams(max_tokens=300, ignore_eos=True)
            turn = await chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
            turn.stream.cancel()
            await read(turn.stream)
            num_names = await ask(chat.llm, lambda s, now: [len(one.names) for one in s.session_table])
            assert num_names == [len(turn.prompt[: turn.reused_tokens]) // chat.engine.block_size]
        finally:
            chat.close()

    run(work())


def test_a_session_deleted_just_before_its_turn_is_queued_is_not_known_again() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            await chat.say(HELLO)
            submitter, store = chat.llm.submitter, chat.llm.sessions._store
            begin_turn = store.begin_turn

            def begin_and_delete(record: Record, turn: object) -> Record:
                found = begin_turn(record, turn)
                store.delete(record)
                submitter.post(ForgetSession("", record.session_id))
                return found

            more = [*chat.messages, ChatMessage("user", "more")]
            params = SamplerParams(max_tokens=300, ignore_eos=True)
            with mock.patch.object(store, "begin_turn", begin_and_delete):
                turn = await chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0, "while its turn runs"
            turn.stream.cancel()
        finally:
            chat.close()

    run(work())


def test_a_salt_with_a_session_is_refused_and_costs_no_other_request_anything() -> None:
    async def work() -> None:
        chat = open_chat()
        try:
            params = SamplerParams(max_tokens=30, ignore_eos=True)
            other = await chat.llm.submit(request_for([5] * 20, params))
            salted = request_for((), params, session="new", cache_salt="x")
            with pytest.raises(InvalidRequest, match="cache_salt is given; allowed with a session: none"):
                await chat.llm.sessions.turn(salted, [ChatMessage("user", HELLO)])
            [told] = await read(other)
            assert told.finishes == [FinishReason.LENGTH]
            assert chat.llm.sessions.count() == 0
        finally:
            chat.close()

    run(work())
