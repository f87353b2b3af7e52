"""Tenants take turns at the tokenizer's threads, however much work one of them has."""

from __future__ import annotations

import asyncio
import threading

import pytest
from tests.engine.chats import open_chat
from tests.waiting import LIMIT_S, until

from octavo.engine.fair_threads import FairThreads
from octavo.errors import EngineStopped, QueueFull
from octavo.text.control import RenderedText
from octavo.text.template_helpers import HELPERS_MAX
from octavo.types import ChatMessage


class Gate:
    """Work that waits until it is let through, and then says its name."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun = threading.Event()
        self.done: list[str] = []

    def wait(self) -> None:
        self.begun.set()
        assert self.open.wait(20)


@pytest.fixture
def busy():
    """(threads, gate): the only thread waits at the gate."""
    threads, gate = FairThreads(1, 4, "test"), Gate()
    threads.submit("first", gate.wait)
    assert gate.begun.wait(LIMIT_S)
    yield threads, gate
    gate.open.set()
    threads.close()


def test_waiting_tenants_are_interleaved_and_each_ones_own_order_is_kept(busy):
    threads, gate = busy
    futures = [
        threads.submit(name[0], lambda name=name: gate.done.append(name))
        for name in ("a1", "a2", "a3", "a4", "b1", "c1", "c2")
    ]
    gate.open.set()
    for future in futures:
        future.result(20)
    assert gate.done == ["a1", "b1", "c1", "a2", "c2", "a3", "a4"]


def test_a_tenant_with_too_much_waiting_is_refused_alone(busy):
    threads, gate = busy
    waiting = [threads.submit("a", lambda: gate.done.append("a")) for _ in range(4)]
    with pytest.raises(QueueFull, match="4 texts wait to be tokenised; allowed: 4"):
        threads.submit("a", lambda: None)
    other = threads.submit("b", lambda: "b")
    waiting[1].cancel()  # its client went away: there is room again
    waiting.append(threads.submit("a", lambda: gate.done.append("last")))
    gate.open.set()
    assert other.result(20) == "b"
    waiting[-1].result(20)
    assert gate.done == ["a", "a", "a", "last"]


def test_a_tenant_has_no_more_threads_at_once_than_it_may() -> None:
    threads, gates = FairThreads(3, 9, "test", at_once_max=2), [Gate() for _ in range(4)]
    waiting = [threads.submit("a", gate.wait) for gate in gates[:3]]
    assert gates[0].begun.wait(LIMIT_S)
    assert gates[1].begun.wait(LIMIT_S)
    other = threads.submit("b", gates[3].wait)
    assert gates[3].begun.wait(LIMIT_S)
    assert not gates[2].begun.is_set()
    gates[3].open.set()
    other.result(LIMIT_S)
    assert threads.submit("b", lambda: "again").result(LIMIT_S) == "again"
    assert not gates[2].begun.is_set()
    gates[0].open.set()
    assert gates[2].begun.wait(LIMIT_S)
    for gate in gates:
        gate.open.set()
    for one in waiting:
        one.result(LIMIT_S)
    threads.close()


def test_as_many_run_at_once_as_there_are_threads():
    threads, meeting = FairThreads(2, 4, "test"), threading.Barrier(2)
    for future in [threads.submit("a", lambda: meeting.wait(20)) for _ in range(2)]:
        future.result(20)
    threads.close()


def test_what_work_raises_goes_to_who_waits_and_the_thread_goes_on():
    threads = FairThreads(1, 4, "test")
    with pytest.raises(ZeroDivisionError):
        threads.submit("a", lambda: 1 // 0).result(20)
    assert threads.submit("a", lambda: 7).result(20) == 7
    threads.close()


def test_close_fails_what_waits_and_refuses_more(busy):
    threads, _ = busy
    waiting = threads.submit("a", lambda: None)
    threads.close()
    with pytest.raises(EngineStopped):
        waiting.result(20)
    with pytest.raises(EngineStopped):
        threads.submit("a", lambda: None)


def test_a_slow_template_holds_up_chats_alone() -> None:
    async def work() -> None:
        chat, begun, done = open_chat(), list[object](), threading.Event()

        class Slow:
            def render(self, messages: object, options: object) -> RenderedText:
                begun.append(messages)
                assert done.wait(LIMIT_S)
                return RenderedText("ab")

        chat.llm.tokenizer.chat_template = Slow()  # type: ignore[assignment]
        try:
            chats = [
                asyncio.ensure_future(chat.llm.encode_chat([ChatMessage("user", "a")])) for _ in range(8)
            ]
            await until(lambda: len(begun) == HELPERS_MAX)
            assert await asyncio.wait_for(chat.llm.encode("ab"), LIMIT_S)
            assert not any(one.done() for one in chats)
            done.set()
            assert all(await asyncio.gather(*chats))
        finally:
            done.set()
            chat.close()

    asyncio.run(work())
