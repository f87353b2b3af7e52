"""After a broken step everybody is told, nobody waits, the next request works; three in a minute, and the
engine gives up."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
import types
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import httpx
import pytest
from tests.doubles.fake_model import FakeModel
from tests.engine.peek import ask, stats_of
from tests.engine.served import Served, alone, read, sent, serve_tiny
from tests.engine.test_client import LONG, greedy, nothing_is_left, prompt_of
from tests.processes import running, url_told
from tests.waiting import LIMIT_S, until, wait_until
from tests.wanted import request_for

import octavo.engine.loop
from octavo.engine.outputs import Delta
from octavo.errors import DeviceLost, EngineStopped, RequestFailed
from octavo.executor.executor import Executor
from octavo.scheduler.scheduler import Scheduler
from octavo.server.app import create_app
from octavo.server.settings import ServerSettings
from octavo.types import FinishReason, StepPlan, StepResult, Update

ROOT = Path(__file__).parents[2]


@pytest.fixture(params=[0, 1], ids=["in turn", "overlapped"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    served = serve_tiny(depth=request.param, rows=4)
    yield served
    served.turnstile.open.set()
    served.llm.close()


class BreaksLater:
    """An executor whose future raises, as one with a thread of its own would."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self.failures = 1

    def submit(self, plan: StepPlan) -> Future[StepResult]:
        if not self.failures:
            return self._inner.submit(plan)
        self.failures -= 1
        future: Future[StepResult] = Future()
        future.set_exception(RuntimeError("the executor broke"))
        return future

    def close(self) -> None:
        self._inner.close()


async def works(served: Served, seed: int = 50) -> None:
    """The next request is answered, with the bits it always has, and nothing from a doubtful cache."""
    (told,) = await read(await served.llm.submit(request_for(prompt_of(seed), greedy(12))))
    assert told.answer.essence == alone(prompt_of(seed), 12, ignore_eos=True)[0].essence
    assert told.answer.cached == 0


def break_when_running(served: Served) -> None:
    served.turnstile.failures += 1


def break_in_the_future(served: Served) -> None:
    served.engine.executor = BreaksLater(served.engine.executor)


@pytest.mark.parametrize("how", [break_when_running, break_in_the_future])
def test_every_live_request_fails_with_a_clear_error_and_the_next_works(
    served: Served, how: Callable[[Served], None]
) -> None:
    async def scenario() -> None:
        choices = [1, 3, 1, 2, 1]  # 8 sequences for 4 rows: some wait
        permits = served.turnstile.permits = threading.Semaphore(0)
        taken = [
            await sent(served, request_for(prompt_of(i), greedy(LONG), n=n)) for i, n in enumerate(choices)
        ]
        permits.release(3)  # the second step takes what the first has left in the inbox, and the fourth waits
        streams = [await stream for stream in taken]
        await anext(streams[0])
        how(served)
        permits.release(1000)
        for stream, n in zip(streams, choices, strict=True):
            for told in await read(stream, n):
                assert told.finishes == [FinishReason.ERROR]
                assert "broken and restarted" in told.error
                assert "the executor broke" in told.error
        wait_until(lambda: stats_of(served.llm).running == 0)  # the statistics too begin afresh
        stats = stats_of(served.llm)
        assert (stats.waiting, stats.blocks_held, stats.blocks_cached) == (0, 0, 0)
        await works(served, seed=0)

    asyncio.run(scenario())
    assert served.llm.gave_up is None
    nothing_is_left(served)


def test_a_request_that_still_lies_in_the_inbox_is_served(served: Served) -> None:
    async def scenario() -> None:
        served.turnstile.open.clear()
        broken = await served.llm.submit(request_for(prompt_of(1), greedy(LONG)))
        await asyncio.to_thread(served.turnstile.reached.wait)
        unread = await sent(served, request_for(prompt_of(2), greedy(9)))
        served.turnstile.failures = 1
        served.turnstile.open.set()
        assert (await read(broken))[0].finishes == [FinishReason.ERROR]
        (told,) = await read(await unread)
        assert told.answer.essence == alone(prompt_of(2), 9, ignore_eos=True)[0].essence

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_request_that_the_broken_step_had_just_ended_is_reported_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit that breaks half-way has closed sequences whose final updates are lost with it."""
    commit = served.engine.scheduler.commit

    def commit_and_break(plan: StepPlan, result: StepResult, now: float) -> list[Update]:
        updates = commit(plan, result, now)
        if any(update.finish for update in updates):
            raise AssertionError("a broken invariant")
        return updates

    monkeypatch.setattr(served.engine.scheduler, "commit", commit_and_break)

    async def scenario() -> None:
        stream = await served.llm.submit(request_for(prompt_of(1), greedy(3)))
        (told,) = await read(stream)
        assert told.finishes == [FinishReason.ERROR]
        assert "a broken invariant" in told.error
        assert await served.llm.drain(5), "the engine's client still waits for it"

    asyncio.run(scenario())


def test_a_request_that_the_broken_step_was_just_taking_is_reported_too(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was drained with the command that broke is served by the engine that begins afresh."""

    def refuse(request: object) -> None:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        served.turnstile.open.clear()
        running = await served.llm.submit(request_for(prompt_of(1), greedy(2)))
        await asyncio.to_thread(served.turnstile.reached.wait)
        broken, unread = [await sent(served, request_for(prompt_of(i), greedy(4))) for i in (2, 3)]
        monkeypatch.setattr(served.engine.scheduler, "submit", refuse)
        served.turnstile.open.set()
        assert (await read(running))[0].finishes == [FinishReason.ERROR]
        with pytest.raises(RequestFailed, match="a broken invariant"):
            await broken
        assert (await read(await unread))[0].finishes == [FinishReason.LENGTH]
        await works(served)

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_question_that_breaks_the_engine_keeps_no_one_behind_it_waiting(served: Served) -> None:
    def break_it(scheduler: Scheduler, now: float) -> None:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        llm = served.llm
        served.turnstile.open.clear()
        running = await llm.submit(request_for(prompt_of(1), greedy(2)))
        await asyncio.to_thread(served.turnstile.reached.wait)
        asked = [
            ask(llm, lambda s, now: 1),
            ask(llm, break_it),
            ask(llm, lambda s, now: 2),
            ask(llm, break_it),
        ]
        tasks = [asyncio.ensure_future(question) for question in asked]
        await until(lambda: len(served.engine.inbox.unread()) == 4)
        stream = await sent(served, request_for(prompt_of(2), greedy(3)))
        tasks.append(asyncio.ensure_future(ask(llm, lambda s, now: 3)))
        await until(lambda: len(served.engine.inbox.unread()) == 6)
        served.turnstile.open.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert [answers[i] for i in (0, 2, 4)] == [1, 2, 3]
        assert all(isinstance(answers[i], RequestFailed) for i in (1, 3))
        assert (await read(running))[0].finishes == [FinishReason.ERROR]
        assert (await read(await stream))[0].finishes == [FinishReason.LENGTH]

    asyncio.run(scenario())


def test_who_waits_behind_the_failure_that_was_one_too_many_is_refused(served: Served) -> None:
    def break_it(scheduler: Scheduler, now: float) -> None:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        llm = served.llm
        served.turnstile.open.clear()
        await llm.submit(request_for(prompt_of(1), greedy(2)))
        await asyncio.to_thread(served.turnstile.reached.wait)
        asked = [*(ask(llm, break_it) for _ in range(3)), ask(llm, lambda s, now: 2)]
        tasks = [asyncio.ensure_future(question) for question in asked]
        await until(lambda: len(served.engine.inbox.unread()) == 4)
        served.turnstile.open.set()
        answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert isinstance(answers[3], EngineStopped)
        assert "repeated failures" in str(answers[3])

    asyncio.run(scenario())


def break_three_times(served: Served) -> list[str]:
    """Three requests, one after the other, each in a step that breaks; what they were told."""

    async def scenario() -> list[str]:
        errors = []
        for i in range(3):
            served.turnstile.failures = 1
            errors.append(
                (await read(await served.llm.submit(request_for(prompt_of(i), greedy(4)))))[0].error
            )
        return errors

    return asyncio.run(scenario())


def test_three_failures_within_a_minute_end_the_engine(served: Served) -> None:
    errors = break_three_times(served)
    assert all("the executor broke" in error for error in errors)
    wait_until(lambda: served.llm.gave_up is not None)
    assert served.llm.gave_up is not None
    assert "repeated failures" in served.llm.gave_up
    assert "the executor broke" in served.llm.gave_up

    async def too_late() -> None:
        with pytest.raises(EngineStopped, match="repeated failures"):
            await served.llm.submit(request_for(prompt_of(1), greedy(4)))
        assert await served.llm.drain(5)

    asyncio.run(too_late())


def test_a_lost_device_ends_the_engine_at_once_and_says_so(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(plan: StepPlan) -> Future[StepResult]:
        raise DeviceLost("cuda:0 is lost (an illegal memory access); restart the server")

    monkeypatch.setattr(served.turnstile, "submit", submit)
    (told,) = asyncio.run(read_one(served))
    assert told.finishes == [FinishReason.ERROR]
    wait_until(lambda: served.llm.gave_up is not None)
    assert served.llm.gave_up == (
        "the engine has stopped: DeviceLost: cuda:0 is lost (an illegal memory access); restart the server"
    )


async def read_one(served: Served) -> list[Delta]:
    return await read(await served.llm.submit(request_for(prompt_of(1), greedy(4))))


def test_three_failures_in_longer_than_a_minute_do_not(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    minutes = iter(range(0, 3600, 31))
    clock = types.SimpleNamespace(monotonic=lambda: float(next(minutes)))
    monkeypatch.setattr(octavo.engine.loop, "time", clock)
    break_three_times(served)
    asyncio.run(works(served))
    assert served.llm.gave_up is None


def test_an_engine_that_cannot_be_made_again_gives_up_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise MemoryError("no memory for a new ledger")

    monkeypatch.setattr(served.engine, "_new_scheduler", refuse)
    served.turnstile.failures = 1

    async def scenario() -> None:
        (told,) = await read(await served.llm.submit(request_for(prompt_of(1), greedy(4))))
        assert told.finishes == [FinishReason.ERROR]
        assert "no memory" in told.error

    asyncio.run(scenario())
    assert "no memory" in (served.llm.gave_up or "")


def test_health_says_why_the_engine_gave_up() -> None:
    model = FakeModel()

    async def health() -> httpx.Response:
        transport = httpx.ASGITransport(create_app(model, ServerSettings()))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return await client.get("/health")

    assert asyncio.run(health()).status_code == 200
    model.gave_up = "the engine has stopped after repeated failures: RuntimeError: the executor broke"
    answer = asyncio.run(health())
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == model.gave_up
    assert answer.json()["error"]["code"] == "engine_stopped"


SERVE = """
import sys
import octavo.serving.start
from octavo.cli.main import main
from tests.engine.served import serve_tiny
from tests.engine.peek import ask, stats_of

served = serve_tiny()
served.turnstile.failures = 3
octavo.serving.start.start_engine = lambda *given: served.llm
sys.argv = ["octavo", "serve", "--port", "0"]
main()
"""


def test_a_server_whose_engine_gave_up_ends_by_itself_with_status_1() -> None:
    env = {**os.environ, "NO_COLOR": "1"}
    with running(
        [sys.executable, "-c", SERVE], stdout=None, stderr=subprocess.PIPE, cwd=ROOT, env=env
    ) as process:
        url = url_told(process)
        with httpx.Client() as client:
            for _ in range(3):
                answer = client.post(f"{url}/v1/completions", json={"prompt": [30, 31], "max_tokens": 2})
                assert answer.status_code in (500, 503)
                assert "the executor broke" in answer.json()["error"]["message"]
        assert process.wait(LIMIT_S) == 1
        assert process.stderr is not None
        assert "octavo: the engine has stopped after repeated failures" in process.stderr.read()
