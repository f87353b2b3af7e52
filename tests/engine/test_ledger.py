"""Questions and pins through the real client: answered between steps, and nothing is left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
from tests.engine.peek import stats_of
from tests.engine.served import Served, read, serve_tiny
from tests.engine.test_client import greedy, prompt_of
from tests.waiting import LIMIT_S, until, wait_until
from tests.wanted import request_for

from octavo.errors import EngineStopped, InvalidRequest, PinRefused
from octavo.params import Timeouts
from octavo.retention.client_pins import PinRequest
from octavo.types import FinishReason


@pytest.fixture
def served() -> Iterator[Served]:
    served = serve_tiny()
    yield served
    served.turnstile.open.set()
    served.llm.close()


def test_a_pinned_prompt_is_served_from_its_blocks(served: Served) -> None:
    async def scenario() -> None:
        prompt = prompt_of(1, 40)
        pin = await served.llm.control.pin(PinRequest("one", tuple(prompt), 60.0))
        size = served.engine.scheduler.ledger.block_size
        assert (pin.num_blocks, pin.filling) == (40 // size, False)
        stream = await served.llm.submit(request_for([*prompt, 5, 6], greedy(3)))
        (told,) = await read(stream)
        assert told.answer.cached == 40 // size * size
        kv = await served.llm.control.kv()
        assert kv.held_by_pins == kv.totals.counts.held == 40 // size
        assert (await served.llm.control.map()).states.count("p") == 40 // size
        await served.llm.control.unpin("", "one")
        assert (await served.llm.control.kv()).totals.counts.held == 0

    asyncio.run(scenario())
    served.engine.scheduler.check()


def test_a_refused_pin_leaves_nothing(served: Served) -> None:
    async def scenario() -> None:
        budget = (await served.llm.control.kv()).totals.pin_budget
        size = served.engine.scheduler.ledger.block_size
        with pytest.raises((PinRefused, InvalidRequest)):
            await served.llm.control.pin(PinRequest("big", tuple(prompt_of(1, (budget + 1) * size)), 60.0))
        with pytest.raises(InvalidRequest, match="at least"):
            await served.llm.control.pin(PinRequest("small", (1,), 60.0))
        assert await served.llm.control.pins() == []
        assert await served.llm.control.requests() == []

    asyncio.run(scenario())


def test_cancelling_the_call_cancels_the_pin(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        work = asyncio.create_task(served.llm.control.pin(PinRequest("one", tuple(prompt_of(1, 40)), 60.0)))
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)
        work.cancel()
        await asyncio.wait({work})
        served.turnstile.open.set()

    asyncio.run(scenario())
    wait_until(lambda: served.engine.idle and len(served.engine.scheduler.pins) == 0)
    served.engine.scheduler.check()


def test_a_pin_that_is_deleted_while_it_fills_is_a_conflict_and_no_failure(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.permits = threading.Semaphore(0)
        filling = asyncio.create_task(
            served.llm.control.pin(PinRequest("one", tuple(prompt_of(1, 200)), 60.0))
        )
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)  # the first of its steps
        deleting = asyncio.create_task(served.llm.control.unpin("", "one"))
        await until(lambda: served.engine.inbox.unread())
        for _ in range(10):
            served.turnstile.permits.release()
        assert (await deleting).filling
        with pytest.raises(PinRefused, match="pin one could not be filled: the pin was deleted while"):
            await filling
        assert await served.llm.control.pins() == []

    asyncio.run(scenario())
    served.engine.scheduler.check()


def test_a_pin_that_expires_while_it_fills_is_a_conflict_that_names_its_ttl() -> None:
    clock = [0.0]
    served = serve_tiny(clock=lambda: clock[0])

    async def scenario() -> None:
        served.turnstile.permits = threading.Semaphore(0)
        filling = asyncio.create_task(served.llm.control.pin(PinRequest("one", tuple(prompt_of(1, 40)), 1.0)))
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)
        clock[0] = 5.0
        for _ in range(10):
            served.turnstile.permits.release()
        with pytest.raises(PinRefused, match="deleted, or expired 1 s after it was asked for"):
            await filling

    try:
        asyncio.run(scenario())
    finally:
        served.llm.close()


def test_a_pin_that_was_replaced_while_it_filled_is_not_reported_as_its_own(served: Served) -> None:
    async def scenario() -> None:
        ledger = served.llm.control
        served.turnstile.permits = threading.Semaphore(0)
        first = asyncio.create_task(ledger.pin(PinRequest("one", tuple(prompt_of(1, 200)), 60.0)))
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)
        deleting = asyncio.create_task(ledger.unpin("", "one"))
        await until(lambda: served.engine.inbox.unread())
        second = asyncio.create_task(ledger.pin(PinRequest("one", tuple(prompt_of(2, 40)), 60.0)))
        for _ in range(40):
            served.turnstile.permits.release()
        await deleting
        assert (await second).num_tokens == 40
        with pytest.raises(PinRefused):
            await first
        assert [pin.num_tokens for pin in await ledger.pins()] == [40]

    asyncio.run(scenario())


def test_a_pin_expires_while_the_engine_is_idle(served: Served) -> None:
    asyncio.run(served.llm.control.pin(PinRequest("one", tuple(prompt_of(1, 40)), 1.0)))
    wait_until(lambda: stats_of(served.llm).events.get("pin_expired"))
    assert len(served.engine.scheduler.pins) == 0
    assert stats_of(served.llm).events["pin_expired"] == 1


def test_a_waiting_request_says_why(served: Served) -> None:
    async def scenario() -> None:
        gate, rows = served.turnstile, served.engine.scheduler.config.max_rows
        gate.permits = threading.Semaphore(0)
        wanted = [request_for(prompt_of(i), greedy(200)) for i in range(rows + 1)]
        streams = [await gate.stepping(served.llm.submit(request)) for request in wanted]
        await gate.stepping(anext(streams[0]))
        view = await gate.stepping(served.llm.control.request(streams[-1].request_id))
        gate.permits.release(10_000)
        assert view is not None
        assert view.sequences[0].reason in {"rows", "blocks", "step_tokens", "queued"}
        assert view.sequences[0].why
        for stream in streams:
            stream.cancel()
        assert await served.llm.control.request(10**9) is None

    asyncio.run(scenario())


def test_a_request_that_is_out_of_time_gives_what_it_made(served: Served) -> None:
    async def scenario() -> None:
        stream = await served.llm.submit(
            request_for(prompt_of(1), greedy(400), timeouts=Timeouts(total=0.001))
        )
        (told,) = await read(stream)
        assert told.finishes == [FinishReason.TIMEOUT]

    asyncio.run(scenario())
    wait_until(lambda: stats_of(served.llm).blocks_held == 0)


def test_a_question_that_no_one_waits_for_any_more_breaks_nothing(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(30)))
        await asyncio.to_thread(served.turnstile.reached.wait, LIMIT_S)
        questions = [asyncio.create_task(served.llm.control.kv()) for _ in range(3)]
        await until(lambda: len(served.engine.inbox.unread()) == 3)
        for question in questions:
            question.cancel()
        await asyncio.wait(questions)
        served.turnstile.open.set()
        (told,) = await read(stream)
        assert told.finishes == [FinishReason.LENGTH]
        assert (await served.llm.control.kv()).running == 0

    asyncio.run(scenario())


def test_after_the_end_there_is_no_one_to_ask(served: Served) -> None:
    served.llm.close()
    with pytest.raises(EngineStopped):
        asyncio.run(served.llm.control.kv())
