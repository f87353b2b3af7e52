"""A step that breaks takes the scheduler with it; what was said stays, and the next scheduler knows of it."""

from __future__ import annotations

from pathlib import Path

from tests.engine.chats import Chat, open_chat, plain
from tests.engine.peek import ask
from tests.engine.served import Turnstile, read
from tests.engine.test_sessions import HELLO, run
from tests.wanted import request_for

from octavo.conversations.responses import new_response_id
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
