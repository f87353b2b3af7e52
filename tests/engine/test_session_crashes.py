"""What `suspend` has answered survives a power cut at any later call; what it has not is never half there."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from unittest import mock

import pytest
from tests.engine.chats import Chat, open_chat, plain
from tests.engine.test_sessions import HELLO, _copy_as_killed

from octavo.errors import OctavoError
from octavo.files import OsFiles
from octavo.scheduler.transfers import Transfers
from octavo.sim.faults import Crashed, Fault, FaultKind, FaultyFiles, scripted

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
        files = FaultyFiles(OsFiles(), lambda call, operation: None)
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
    chat = open_chat(folder, files=FaultyFiles(OsFiles(), scripted({point: Fault(kind)})))
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
