"""Idle responses, which clients store by the way and never delete, give their blocks up for what is newer."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.engine.chats import Chat, open_chat
from tests.engine.peek import ask
from tests.engine.served import read
from tests.wanted import request_for

from octavo.conversations.responses import new_response_id
from octavo.params import SamplerParams
from octavo.types import ChatMessage

# Each takes six full blocks of sixteen tokens or so.
LONG = "the quick brown fox jumps over the lazy dog and then it sleeps a while"


async def respond(chat: Chat, text: str) -> str:
    """A stored response to a conversation of its own."""
    responses, response_id = chat.llm.sessions.responses, new_response_id()
    await responses.create("", response_id, b"{}")
    params = SamplerParams(max_tokens=20, temperature=0.0)
    turn = await responses.turn(request_for((), params, session=response_id), [ChatMessage("user", text)])
    await read(turn.stream)  # type: ignore[arg-type]
    await ask(chat.llm, lambda scheduler, now: None)  # behind its end
    return response_id


def held(chat: Chat) -> dict[str, int]:
    table = chat.engine.scheduler.session_table
    return {s.session_id: s.hold.num_held if s.hold is not None else 0 for s in table}


@pytest.mark.parametrize("below", [False, True])
def test_the_newest_response_is_held_in_place_of_the_one_used_longest_ago(
    tmp_path: Path, below: bool
) -> None:
    chat = open_chat(tmp_path if below else None, num_slots=12, num_blocks=40)

    async def talk() -> None:
        made = [await respond(chat, f"{letter} {LONG}") for letter in "abcdefgh"]
        table = chat.engine.scheduler.session_table
        newest = table.find("", made[-1])
        assert newest.hold is not None, newest.note
        assert len(newest.hold.names) == len(newest.names)
        assert newest.hold.num_held or newest.hold.is_kept
        oldest = table.find("", made[0])
        assert oldest.hold is None
        assert "newer" in oldest.note

    try:
        asyncio.run(talk())
        chat.engine.scheduler.check()
    finally:
        chat.close()


def test_a_session_comes_before_responses_and_never_gives_way_to_them() -> None:
    chat = open_chat(num_blocks=40)

    async def talk() -> None:
        for letter in "abcdef":
            await respond(chat, f"{letter} {LONG}")
        await chat.say(LONG, max_tokens=10)
        await ask(chat.llm, lambda scheduler, now: None)
        assert held(chat)[chat.session_id] > 0
        for letter in "ghijkl":
            await respond(chat, f"{letter} {LONG}")
        assert held(chat)[chat.session_id] > 0

    try:
        asyncio.run(talk())
    finally:
        chat.close()
