"""A tenant's request is taken, or refused with the engine's own error, before anybody reads its stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from unittest import mock

import pytest
from tests.engine.chats import open_chat
from tests.engine.served import Served, alone, read, serve_tiny
from tests.engine.test_client import LONG, greedy, nothing_is_left, prompt_of
from tests.engine.test_sessions import HELLO
from tests.waiting import LIMIT_S, until
from tests.wanted import request_for

from octavo.engine.port import FitRequest, SetTenants, Submit, ViewKv
from octavo.engine.stream import DeltaStream
from octavo.errors import (
    EngineStopped,
    QueueFull,
    RequestFailed,
    RequestTooLarge,
    TenantsRefused,
    UnknownTenant,
)
from octavo.inspect.inspector import Inspector
from octavo.memory.quota import TenantPolicy
from octavo.params import SamplerParams
from octavo.retention.client_pins import PinRequest
from octavo.retention.session_table import SessionState
from octavo.types import ChatMessage, FinishReason


@pytest.fixture
def served() -> Iterator[Served]:
    served = serve_tiny(rows=1, max_waiting=1)
    yield served
    served.turnstile.open.set()
    served.llm.close()


def submit(served: Served, seed: int, max_tokens: int) -> asyncio.Task[DeltaStream]:
    return asyncio.ensure_future(
        served.llm.submit(request_for(prompt_of(seed), greedy(max_tokens), tenant="alice"))
    )


async def hold(served: Served) -> DeltaStream:
    """A request that runs, in a step that does not end."""
    served.turnstile.open.clear()
    stream = await submit(served, 1, LONG)
    await until(lambda: len(served.turnstile.plans) == 1)
    return stream


def test_its_stream_is_that_of_any_request(served: Served) -> None:
    async def scenario() -> None:
        (told,) = await read(await submit(served, 3, 9))
        assert told.answer.essence == alone(prompt_of(3), 9, ignore_eos=True)[0].essence

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_refusal_is_the_engines_and_leaves_nothing(served: Served) -> None:
    async def scenario() -> None:
        running = await hold(served)
        waiting = submit(served, 2, 4)
        refused = submit(served, 3, 4)
        served.turnstile.open.set()
        with pytest.raises(QueueFull, match="too many requests are waiting; allowed: 1"):
            await asyncio.wait_for(refused, LIMIT_S)
        running.cancel()
        (told,) = await read(await waiting)
        assert told.finishes == [FinishReason.LENGTH]
        assert await served.llm.drain(5), "a refused request is still counted as open"

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_tenant_within_its_share_is_asked_for_although_others_have_as_many_open_as_all_may() -> None:
    served = serve_tiny(rows=1, max_waiting=1000, max_queue=7)
    tenants = (TenantPolicy("alice", max_waiting=1000), TenantPolicy("bob"))
    served.engine.inbox.send(SetTenants(tenants)).result(LIMIT_S)

    def num_asked() -> int:
        return sum(isinstance(command, Submit) for command in list(served.engine.inbox.unread()))

    async def scenario() -> None:
        running = await hold(served)
        streams = [submit(served, seed, 4) for seed in range(2, 9)]
        await until(lambda: num_asked() == 7)
        with pytest.raises(QueueFull, match=r"too many .* allowed: 8 \(settings max_queue and max_seqs\)"):
            await submit(served, 9, 4)
        late = [
            asyncio.ensure_future(served.llm.submit(request_for(prompt_of(seed), greedy(4), tenant="bob")))
            for seed in (10, 11)
        ]
        await until(lambda: num_asked() == 9)
        with pytest.raises(QueueFull):
            await served.llm.submit(request_for(prompt_of(12), greedy(4), tenant="bob"))
        running.cancel()
        served.turnstile.open.set()
        for stream in [*streams, *late]:
            assert (await read(await stream))[0].finishes == [FinishReason.LENGTH]

    try:
        asyncio.run(scenario())
        nothing_is_left(served)
    finally:
        served.turnstile.open.set()
        served.llm.close()


def test_a_client_that_leaves_before_it_is_taken_is_never_taken(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        running = await hold(served)
        taken = []
        monkeypatch.setattr(served.engine.scheduler, "submit", taken.append)
        left = submit(served, 2, 4)
        await until(lambda: served.engine.inbox.unread())
        left.cancel()
        await asyncio.wait({left})
        running.cancel()
        served.turnstile.open.set()
        assert await served.llm.drain(5)
        assert taken == []

    asyncio.run(scenario())
    nothing_is_left(served)


def test_what_a_broken_step_was_just_taking_fails_at_once(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(request: object) -> None:
        raise AssertionError("a broken invariant")

    async def scenario() -> None:
        running = await hold(served)
        both = [submit(served, i, 4) for i in (2, 3)]
        await until(lambda: len(served.engine.inbox.unread()) == 2)
        monkeypatch.setattr(served.engine.scheduler, "submit", refuse)
        served.turnstile.open.set()
        with pytest.raises(RequestFailed, match="broken and restarted"):
            await asyncio.wait_for(both[0], LIMIT_S)
        # It came behind the other, and the engine that recovered has taken it.
        (told,) = await read(await asyncio.wait_for(both[1], LIMIT_S))
        assert told.finishes == [FinishReason.LENGTH]
        assert (await read(running))[0].finishes == [FinishReason.ERROR]
        (told,) = await read(await submit(served, 4, 5))
        assert told.answer.essence == alone(prompt_of(4), 5, ignore_eos=True)[0].essence

    asyncio.run(scenario())
    nothing_is_left(served)


def test_bounds_outlive_a_broken_step(served: Served) -> None:
    async def scenario() -> None:
        bounds = (TenantPolicy("alice", guaranteed=10, maximum=30), TenantPolicy("bob", weight=3.0))
        await served.llm.control.set_tenants(bounds)
        broken = await hold(served)
        served.turnstile.failures = 1
        served.turnstile.open.set()
        assert (await read(broken))[0].finishes == [FinishReason.ERROR]
        with pytest.raises(RequestTooLarge, match="allowed: 30"):
            await served.llm.submit(request_for([5] * 100, greedy(410), tenant="alice"))
        found = {policy.name: policy for policy in served.engine.scheduler.ledger.quotas.policies()}
        assert (found["alice"], found["bob"]) == bounds

    asyncio.run(scenario())


def test_guarantees_that_do_not_fit_are_refused_and_change_nothing(served: Served) -> None:
    async def scenario() -> None:
        await served.llm.control.set_tenants((TenantPolicy("alice", guaranteed=40),))
        with pytest.raises(TenantsRefused):
            await served.llm.control.set_tenants((TenantPolicy("alice", guaranteed=10_000),))
        assert served.engine.scheduler.ledger.quotas.policy("alice").guaranteed == 40

    asyncio.run(scenario())


def test_an_engine_that_ends_takes_nothing_and_says_so(served: Served) -> None:
    async def scenario() -> None:
        await hold(served)
        waiting = submit(served, 2, 4)
        await until(lambda: served.engine.inbox.unread())
        closing = asyncio.get_running_loop().run_in_executor(None, served.llm.close)
        await until(lambda: served.llm.submitter.host._loop._stopping)
        served.turnstile.open.set()
        await closing
        with pytest.raises(EngineStopped):
            await asyncio.wait_for(waiting, LIMIT_S)

    asyncio.run(scenario())


def test_a_tenant_that_is_gone_when_its_request_arrives_gets_nothing_in(served: Served) -> None:
    """Its key was known when its body began to come; neither is it known to an engine that begins afresh."""

    async def scenario() -> None:
        llm = served.llm
        await llm.control.set_tenants((TenantPolicy("alice", maximum=4), TenantPolicy("bob")))
        await read(await submit(served, 1, 4))
        await llm.control.set_tenants((TenantPolicy("bob"),))
        for breaks in (False, True):
            if breaks:
                served.turnstile.failures = 1
                await read(await llm.submit(request_for(prompt_of(2), greedy(4), tenant="bob")))
            with pytest.raises(UnknownTenant):
                await submit(served, 3, 4)
            with pytest.raises(UnknownTenant):
                await llm.control.pin(PinRequest("a", tuple(prompt_of(3)), 60.0, tenant="alice"))
            assert await llm.control.pins() == []
        assert await llm.drain(5), "a refused request is still counted as open"

    asyncio.run(scenario())
    nothing_is_left(served)


def test_a_turn_of_a_tenant_that_is_gone_leaves_its_session_as_it_was() -> None:
    async def scenario() -> None:
        chat = open_chat()
        llm, messages = chat.llm, [ChatMessage("user", HELLO)]
        try:
            await llm.control.set_tenants((TenantPolicy("alice"),))
            turn = await llm.sessions.turn(
                request_for((), greedy(5), tenant="alice", session="new"), messages
            )
            [told] = await read(turn.stream)
            await llm.control.set_tenants(())
            messages += [ChatMessage("assistant", told.text), ChatMessage("user", "more")]
            for session in ("new", turn.session_id):
                with pytest.raises(UnknownTenant):
                    await llm.sessions.turn(
                        request_for((), greedy(5), tenant="alice", session=session), messages
                    )
            [left] = await llm.sessions.all("alice")
            assert (left.session_id, left.blocks.state) == (turn.session_id, SessionState.IDLE)
            await llm.control.set_tenants((TenantPolicy("alice"),))
            turn = await llm.sessions.turn(
                request_for((), greedy(5), tenant="alice", session=turn.session_id), messages
            )
            assert (await read(turn.stream))[0].finishes == [FinishReason.LENGTH]
        finally:
            chat.close()

    asyncio.run(scenario())


def test_fitting_a_request_of_a_tenant_that_was_never_seen_changes_nothing_that_the_engine_owns() -> None:
    served = serve_tiny()
    try:
        quotas = served.llm.engine.scheduler.ledger.quotas
        before = (len(quotas.policies()), list(quotas._pool.weights))
        wanted = request_for(prompt_of(1), SamplerParams(), tenant="never seen")
        fitted = served.llm.engine.inbox.send(FitRequest(wanted)).result(60)
        assert (fitted.tenant, fitted.max_tokens) == ("never seen", 512 - len(wanted.prompt))
        assert (len(quotas.policies()), list(quotas._pool.weights)) == before
    finally:
        served.turnstile.open.set()
        served.llm.close()


def test_a_view_that_fails_loses_its_reply_and_nothing_else() -> None:
    served = serve_tiny()
    try:
        with (
            mock.patch.object(Inspector, "kv", side_effect=ZeroDivisionError),
            pytest.raises(RequestFailed, match="could not read its state: ZeroDivisionError"),
        ):
            served.engine.inbox.send(ViewKv()).result(60)
        before = served.engine.scheduler
        assert served.engine.inbox.send(ViewKv()).result(60).num_blocks == 200
        assert served.engine.scheduler is before
    finally:
        served.turnstile.open.set()
        served.llm.close()
