"""Turns of a session that meet each other, an engine that breaks, or the end of their session."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.chats import open_chat, plain
from tests.engine.peek import ask
from tests.engine.served import Turnstile, read
from tests.engine.test_sessions import HELLO, run
from tests.waiting import LIMIT_S, until, wait_until
from tests.wanted import request_for

from octavo.conversations.turns import TurnRecorder
from octavo.engine.outputs import Delta
from octavo.engine.port import Submit
from octavo.errors import (
    SessionBusy,
)
from octavo.params import SamplerParams
from octavo.retention.client_pins import PinRequest
from octavo.types import ChatMessage, FinishReason


@pytest.mark.parametrize("kind", ["turn", "pin"])
def test_an_engine_that_breaks_as_a_stream_is_opened_leaves_no_request_that_runs_for_no_one(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        llm, submitter, done = chat.llm, chat.llm.submitter, threading.Event()
        opened, recovered = submitter._open, submitter.host._loop._recovered

        def recover(*given):  # type: ignore[no-untyped-def]
            recovered(*given)
            done.set()

        try:
            turn, _ = await chat.say(HELLO)
            gate.open.clear()
            gate.reached.clear()
            await llm.submit(request_for(turn.prompt, SamplerParams(max_tokens=40, ignore_eos=True)))
            assert await asyncio.to_thread(gate.reached.wait, LIMIT_S)

            def open_and_break(*given, **more):  # type: ignore[no-untyped-def]
                found = opened(*given, **more)
                gate.failures = 1
                gate.open.set()
                assert done.wait(LIMIT_S)  # it has told whom it lost
                return found

            monkeypatch.setattr(llm.submitter.host._loop, "_recovered", recover)
            monkeypatch.setattr(llm.submitter, "_open", open_and_break)
            if kind == "turn":
                _, told = await chat.say("more", ignore_eos=True)
                assert told.finishes == [FinishReason.LENGTH]
                monkeypatch.setattr(llm.submitter, "_open", opened)
                await chat.say("again")  # not busy
            else:
                view = await llm.control.pin(PinRequest("a", tuple(turn.prompt), 60.0))
                assert view.num_blocks == len(turn.prompt) // 16
            assert await ask(llm, lambda s, now: s.live.live_requests()) == []
        finally:
            gate.open.set()
            chat.close()

    run(work())


@pytest.mark.parametrize("kind", ["turn", "pin"])
def test_what_was_on_its_way_to_an_engine_that_broke_is_served_by_the_next_one(kind: str) -> None:
    async def work() -> None:
        chat = open_chat()
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        llm, params = chat.llm, SamplerParams(max_tokens=40, ignore_eos=True)
        try:
            prompt = await llm.encode_chat([ChatMessage("user", HELLO)])
            gate.open.clear()
            stream = await llm.submit(request_for(prompt, params))
            assert await asyncio.to_thread(gate.reached.wait, LIMIT_S)  # a step waits, which will break
            messages = [ChatMessage("user", "hello")]
            if kind == "turn":
                asked = asyncio.ensure_future(
                    llm.sessions.turn(request_for((), params, session="new"), messages)
                )
            else:
                asked = asyncio.ensure_future(llm.control.pin(PinRequest("a", tuple(prompt), 60.0)))
            unread = chat.engine.inbox.unread
            await until(lambda: any(isinstance(command, Submit) for command in unread()))
            gate.failures = 1
            gate.open.set()
            [told] = await read(stream)
            assert told.finishes == [FinishReason.ERROR]
            if kind == "turn":
                turn = await asked
                [told] = await read(turn.stream)
                assert told.finishes == [FinishReason.LENGTH]
                assert llm.sessions.tokens("", turn.session_id)
            else:
                assert (await asked).num_blocks == len(prompt) // 16
            assert await ask(llm, lambda s, now: s.live.live_requests()) == []
        finally:
            gate.open.set()
            chat.close()

    run(work())


def test_a_turn_that_was_prepared_before_another_one_ended_is_refused() -> None:
    """Its prompt goes on from older tokens than those that it would replace."""

    async def work() -> None:
        chat = open_chat()
        llm, params = chat.llm, SamplerParams(max_tokens=5, temperature=0.0, ignore_eos=True)
        compose, prepared, go_on = llm.encoder.compose, asyncio.Event(), asyncio.Event()

        async def compose_slowly(*given, **named):  # type: ignore[no-untyped-def]
            composed = await compose(*given, **named)
            prepared.set()
            await go_on.wait()
            return composed

        try:
            await chat.say(HELLO)
            late = [*chat.messages, ChatMessage("user", "late")]
            with mock.patch.object(llm.encoder, "compose", compose_slowly):
                slow = asyncio.ensure_future(
                    llm.sessions.turn(request_for((), params, session=chat.session_id), late)
                )
                await prepared.wait()
            await chat.say("in between")
            said = llm.sessions.tokens("", chat.session_id)
            go_on.set()
            with pytest.raises(SessionBusy, match="another turn has ended meanwhile"):
                await slow
            assert llm.sessions.tokens("", chat.session_id) == said
            turn, told = await chat.say("and then")
            assert turn.prompt[: len(said)] == said
            plain(turn.prompt, told)
        finally:
            chat.close()

    run(work())


def test_a_turn_begins_only_when_what_the_one_before_it_said_is_noted() -> None:
    """The engine has ended a turn before its client's loop has read the end."""

    async def work() -> None:
        chat = open_chat()
        llm, params = chat.llm, SamplerParams(max_tokens=5, temperature=0.0, ignore_eos=True)
        try:
            taken: list[tuple[TurnRecorder, Delta]] = []
            with mock.patch.object(TurnRecorder, "take", lambda self, _, delta: taken.append((self, delta))):
                turn = await llm.sessions.turn(
                    request_for((), params, session="new"), [ChatMessage("user", HELLO)]
                )
                [told] = await read(turn.stream)  # as if the loop had not come to it yet
            more = [ChatMessage("user", HELLO), ChatMessage("assistant", told.text), ChatMessage("user", "b")]
            with pytest.raises(SessionBusy, match="is active"):
                await llm.sessions.turn(request_for((), params, session=turn.session_id), more)
            for recorder, delta in taken:
                recorder.take(turn.stream, delta)
            said = llm.sessions.tokens("", turn.session_id)
            assert len(said) == len(turn.prompt) + 5
            after = await llm.sessions.turn(request_for((), params, session=turn.session_id), more)
            assert after.prompt[: len(said)] == said
            await read(after.stream)
        finally:
            chat.close()

    run(work())


def test_a_turn_whose_event_loop_is_closed_keeps_its_session_from_no_one() -> None:
    chat = open_chat()
    params = SamplerParams(max_tokens=400, temperature=0.0, ignore_eos=True)
    messages = [ChatMessage("user", HELLO)]
    try:
        turn = asyncio.run(chat.llm.sessions.turn(request_for((), params, session="new"), messages))
        wait_until(lambda: not chat.llm.sessions._store._turns)

        async def again() -> None:
            await read(
                (
                    await chat.llm.sessions.turn(request_for((), params, session=turn.session_id), messages)
                ).stream
            )

        run(again())
    finally:
        chat.close()


def test_a_turn_that_ends_after_its_session_was_deleted_brings_nothing_back(tmp_path: Path) -> None:
    async def work() -> None:
        chat = open_chat(tmp_path)
        gate = chat.engine.executor = Turnstile(chat.engine.executor)
        params = SamplerParams(max_tokens=200, ignore_eos=True, temperature=0.0)
        try:
            await chat.say(HELLO)
            more = [*chat.messages, ChatMessage("user", "more")]
            gate.permits = threading.Semaphore(0)
            turn = await gate.stepping(
                chat.llm.sessions.turn(request_for((), params, session=chat.session_id), more)
            )
            await gate.stepping(chat.llm.sessions.delete("", chat.session_id))
            gate.permits.release(1000)
            [told] = await read(turn.stream)
            assert told.finishes == [FinishReason.LENGTH]
            assert await chat.llm.sessions.all() == []
            assert await ask(chat.llm, lambda s, now: len(s.session_table)) == 0
            assert not await asyncio.wrap_future(chat.llm.sessions._store.sync(chat.session_id))
        finally:
            chat.close()

    run(work())
