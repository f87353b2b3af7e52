"""A target for the time to the first token, on a virtual clock: predictions, who is late, who is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from tests.scheduler.test_latency_target import BETWEEN_S, DECODE_S, PROMPT_S

from octavo.engine.codec import decode_reply_as, encode_reply
from octavo.errors import QueueFull
from octavo.memory.ledger import Ledger
from octavo.memory.names import root_name
from octavo.params import SamplerParams
from octavo.scheduler.scheduler import Scheduler
from octavo.server.errors import error_headers
from octavo.step.context import SchedulerConfig
from octavo.types import Request, SampledToken, StepResult


class Server:
    """A scheduler on a machine whose steps take known times."""

    def __init__(self, target_s: float | None, *, shed: bool = False, rows: int = 16) -> None:
        config = SchedulerConfig(
            max_rows=rows, step_tokens=256, context_length=4096, target_ttft_s=target_s, shed=shed
        )
        self.scheduler = Scheduler(Ledger(4000, 16), config, lambda tenant: root_name(b""))
        self.now = 0.0
        self.first: dict[int, float] = {}
        self.arrived: dict[int, float] = {}
        self._next = 0

    def submit(self, prompt: int, output: int = 20, priority: int = 0, tenant: str = "") -> int:
        self._next += 1
        tokens = tuple(range(1000 * self._next, 1000 * self._next + prompt))
        params = SamplerParams(ignore_eos=True)
        request = Request(
            self._next, tokens, params, output, 0, tenant=tenant, priority=priority, arrival=self.now
        )
        self.scheduler.submit(request)
        self.arrived[self._next] = self.now
        return self._next

    def step(self) -> None:
        plan = self.scheduler.schedule(self.now)
        assert plan is not None
        decoding = sum(chunk.continues for chunk in plan.chunks)
        seconds = DECODE_S + PROMPT_S * (plan.num_tokens - decoding)
        self.now += seconds + BETWEEN_S
        samples = {chunk.seq_id: (SampledToken(0),) for chunk in plan.chunks if chunk.num_samples}
        result = StepResult(plan.step_id, samples, seconds=seconds)
        for update in self.scheduler.commit(plan, result, self.now):
            self.first.setdefault(update.request_id, self.now - self.arrived[update.request_id])

    def drain(self) -> None:
        while self.scheduler.has_work:
            self.step()


def warm(server: Server) -> None:
    """Steps of all kinds are measured."""
    for _ in range(3):
        server.submit(100, 30)
        server.submit(300, 30)
        server.drain()


@pytest.mark.parametrize("crowd", [0, 3, 8])
def test_a_prediction_is_near_what_comes(crowd: int) -> None:
    server = Server(10.0)
    warm(server)
    for _ in range(crowd):
        server.submit(400)
    number = server.submit(400)
    predicted_s = server.scheduler.first_tokens.last_predicted_s
    server.drain()
    assert predicted_s == pytest.approx(server.first[number], rel=0.4)


def test_late_ones_are_counted_and_end_as_others() -> None:
    server = Server(0.5)
    warm(server)
    first = server.scheduler.first_tokens
    before = first.num_late
    for _ in range(6):
        server.submit(400)
    server.drain()
    late = sum(seconds > 0.5 for number, seconds in server.first.items() if number > 6)
    assert late > 2
    assert first.num_late - before == late
    assert first.num_shed == 0
    assert len(server.first) == 12


def test_with_shed_those_that_would_be_late_are_refused_and_learn_when_to_come_again() -> None:
    server = Server(1.0, shed=True)
    warm(server)
    refused = list[QueueFull]()
    for _ in range(12):
        try:
            server.submit(400)
        except QueueFull as error:
            refused.append(error)
    assert 3 <= len(refused) < 12
    assert "allowed: 1 s (setting target_ttft); try again in" in str(refused[0])
    assert refused[-1].retry_after_s > 0.0
    assert server.scheduler.first_tokens.num_shed == len(refused)
    server.drain()
    late = [seconds for number, seconds in server.first.items() if number > 6 and seconds > 1.3]
    assert not late, "what was taken was late by a third"
    server.submit(400)  # there is room again


def test_the_lowest_priority_is_refused_first() -> None:
    server = Server(1.0, shed=True)
    warm(server)
    with suppress(QueueFull):
        for _ in range(12):
            server.submit(400)
    with pytest.raises(QueueFull):
        server.submit(400, priority=0)
    server.submit(400, priority=5)


def test_a_tenant_that_floods_is_refused_and_not_another() -> None:
    server = Server(1.0, shed=True)
    warm(server)

    def flood() -> None:
        while True:
            server.submit(400, tenant="flood")

    with pytest.raises(QueueFull) as refused:
        flood()
    assert "about" not in str(refused.value), "a tenant is told how long others' prompts take"
    server.submit(100, tenant="quiet")


def test_a_pause_is_no_time_between_ends() -> None:
    server = Server(3.0, shed=True, rows=2)
    warm(server)
    server.now += 600.0
    for _ in range(6):
        server.submit(60, 10)
    server.drain()
    for _ in range(6):
        server.submit(60, 10)
    assert server.scheduler.first_tokens.last_predicted_s < 3.0


def test_a_pause_is_not_between_two_steps() -> None:
    server = Server(3.0)
    warm(server)
    before = server.scheduler.context.times.between_s
    server.now += 600.0
    server.submit(1, 10)  # a prompt of one token counts as decoding
    server.drain()
    assert server.scheduler.context.times.between_s < 2 * before + 0.001


def test_an_idle_server_refuses_no_one() -> None:
    server = Server(0.001, shed=True)
    warm_up = server.submit(100, 5)
    server.drain()
    assert server.submit(2000) > warm_up


def test_without_a_target_nothing_is_predicted() -> None:
    server = Server(None)
    warm(server)
    assert server.scheduler.first_tokens.last_predicted_s == 0.0
    assert server.scheduler.first_tokens.num_predicted == 0


def test_when_to_come_again_passes_between_processes_and_into_a_header() -> None:
    error = QueueFull("late", retry_after_s=3.2)
    with pytest.raises(QueueFull) as passed:
        decode_reply_as(int, encode_reply(error))
    assert passed.value.retry_after_s == 3.2
    assert error_headers(passed.value) == {"Retry-After": "4"}
    assert error_headers(QueueFull("full")) == {"Retry-After": "1"}
