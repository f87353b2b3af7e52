"""Every operation of the memory system in any order, as Hypothesis chooses it: after each, ledger, tier and
scheduler are recomputed; every token is the model's without paging; in the end nothing is lost and nothing
is held.

The simulator's parts do what a rule says; Hypothesis chooses the rules, what they are given, and a seed for
the rest.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from random import Random
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.simulator.beams import with_beams
from tests.simulator.lives import Simulation
from tests.simulator.outcome import Outcome
from tests.simulator.planted import BUGS
from tests.simulator.pooling import with_pooling
from tests.simulator.pressure import check_resident
from tests.simulator.sights import check_sights
from tests.simulator.tenants import TENANTS

from octavo.memory.quota import SHARED
from octavo.params import Timeouts
from octavo.retention.session_table import SessionState
from octavo.types import Request

SEEDS = 1 << 12


class Chance(Random):
    """Begun anew by each rule, from a seed that Hypothesis draws: a life is so few draws that one which fails
    becomes short, and a rule that is left out changes no other."""

    def __init__(self, source: Random) -> None:
        self._source, self._is_renewed = source, False
        super().__init__(0)

    def renew(self) -> None:
        """The next draw is that of another rule."""
        self._is_renewed = True

    def settle(self) -> None:
        """How a life ends is not Hypothesis's."""
        self._is_renewed = False

    def random(self) -> float:
        self._begin()
        return super().random()

    def getrandbits(self, k: int, /) -> int:
        self._begin()
        return super().getrandbits(k)

    def _begin(self) -> None:
        if self._is_renewed:
            self._is_renewed = False
            self.seed(self._source.randrange(SEEDS))


class Served(RuleBasedStateMachine):
    """A scheduler, its clients, its operator, its disk and its machine."""

    met: ClassVar[Counter[str]] = Counter()  # over all lives: what they met

    @initialize(source=st.randoms(use_true_random=False), overlap=st.sampled_from([0, 1, 2]))
    def start(self, source: Random, overlap: int) -> None:
        self.chance = Chance(source)
        self.chance.renew()
        self.life = Simulation(self.chance, overlap)
        self.upheaval = 0  # plans, at the last one
        blocks = self.life.memory.pool.num_blocks
        note(f"{blocks} blocks of {self.life.block_size}, {self.life.scheduler.config}")

    # -- clients
    # -------------------------------------------------------------------------------------------------------

    def submit(self, request: Request) -> None:
        note(f"{request}")
        self.life.submit(request)

    def few_live(self) -> bool:
        return len(self.life.scheduler.live.live_requests()) < 20

    @precondition(few_live)
    @rule()
    def submit_any(self) -> None:
        self.submit(self.life.some_request())

    @precondition(few_live)
    @rule(n=st.integers(2, 5))
    def submit_choices(self, n: int) -> None:
        request = self.life.some_request()
        if request.params.beams is None:
            self.submit(replace(request, n=min(n, self.life.scheduler.config.max_rows)))

    @precondition(few_live)
    @rule()
    def submit_beams(self) -> None:
        request = replace(self.life.some_request(), n=1)
        self.submit(with_beams(self.chance, request, self.life.scheduler.config.max_rows, rate=1.0))

    @precondition(few_live)
    @rule()
    def submit_embedding(self) -> None:
        self.submit(with_pooling(self.life.some_request(), rate=1.0))

    @precondition(few_live)
    @rule(total=st.sampled_from([None, 0.5, 5.0]), queue=st.sampled_from([None, 0.2]), first=st.just(1.0))
    def submit_in_haste(self, total: float | None, queue: float | None, first: float) -> None:
        self.submit(replace(self.life.some_request(), timeouts=Timeouts(total, queue, first)))

    @precondition(few_live)
    @rule(priority=st.integers(-2, 2))
    def submit_with_priority(self, priority: int) -> None:
        self.submit(replace(self.life.some_request(), priority=priority))

    def live(self) -> bool:
        return bool(self.life.scheduler.live.live_requests())

    @precondition(live)
    @rule()
    def cancel(self) -> None:
        self.life.cancel(self.chance.choice(self.life.scheduler.live.live_requests()))

    # -- the engine
    # -------------------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 25))
    def steps(self, count: int) -> None:
        for _ in range(count):
            self.life.step()

    @precondition(lambda self: len(self.life.pipe) <= self.life.overlap)
    @rule()
    def plan(self) -> None:
        self.life.plan()

    @precondition(lambda self: bool(self.life.pipe))
    @rule()
    def commit(self) -> None:
        self.life.commit()

    @rule(seconds=st.sampled_from([0.0, 0.3, 1.0, 6.0, 25.0, 2000.0]))
    def pass_time(self, seconds: float) -> None:
        self.life.pass_time(seconds)

    # -- pins
    # -------------------------------------------------------------------------------------------------------

    @rule(owner=st.integers(0, TENANTS - 1), name=st.sampled_from("ab"))
    def pin(self, owner: int, name: str) -> None:
        if self.life.scheduler.pins.find(str(owner), name) is None:
            self.life.open_pin(owner, str(owner), name)

    @rule(owner=st.integers(0, TENANTS - 1))
    def share(self, owner: int) -> None:
        if self.life.scheduler.pins.find(SHARED, "shared") is None:
            self.life.open_pin(owner, SHARED, "shared")

    def pinned(self) -> bool:
        return any(not pin.session_id for pin in self.life.scheduler.pins.all())

    @precondition(pinned)
    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def renew_pin(self, seconds: float) -> None:
        pin = self.chance.choice([pin for pin in self.life.scheduler.pins.all() if not pin.session_id])
        self.life.scheduler.client_pins.renew(pin.tenant, pin.name, seconds, self.life.clock)

    @precondition(pinned)
    @rule()
    def unpin(self) -> None:
        pin = self.chance.choice([pin for pin in self.life.scheduler.pins.all() if not pin.session_id])
        self.life.scheduler.client_pins.release(pin.tenant, pin.name)

    # -- sessions
    # -------------------------------------------------------------------------------------------------------

    def sessions_in(self, *states: SessionState) -> list[str]:
        table = self.life.scheduler.session_table
        known = set(self.life.sessions.known())
        return [s.session_id for s in table if s.session_id in known and s.state in states]

    @precondition(lambda self: len(self.life.sessions.known()) < 4)
    @rule()
    def begin_session(self) -> None:
        self.life.sessions.make()

    @precondition(lambda self: self.sessions_in(*SessionState))
    @rule()
    def say(self) -> None:
        self.life.sessions.say(self.chance.choice(self.sessions_in(*SessionState)))

    @precondition(lambda self: self.sessions_in(SessionState.ACTIVE))
    @rule()
    def stop(self) -> None:
        self.life.sessions.stop(self.chance.choice(self.sessions_in(SessionState.ACTIVE)))

    @precondition(lambda self: self.sessions_in(*SessionState))
    @rule()
    def suspend(self) -> None:
        self.life.sessions.suspend(self.chance.choice(self.sessions_in(*SessionState)))

    @precondition(lambda self: self.sessions_in(SessionState.SUSPENDED, SessionState.IDLE))
    @rule()
    def resume(self) -> None:
        found = self.sessions_in(SessionState.SUSPENDED, SessionState.IDLE)
        self.life.sessions.resume(self.chance.choice(found))

    @precondition(lambda self: self.sessions_in(*SessionState) and len(self.life.sessions.known()) < 4)
    @rule()
    def fork_session(self) -> None:
        self.life.sessions.fork(self.chance.choice(self.sessions_in(*SessionState)))

    @precondition(lambda self: self.sessions_in(*SessionState))
    @rule()
    def delete_session(self) -> None:
        self.life.sessions.delete(self.chance.choice(self.sessions_in(*SessionState)))

    # -- the tiers below
    # -------------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.life.executor.moving)
    @rule(fails=st.sampled_from([False, False, True]))
    def end_transfer(self, fails: bool) -> None:
        self.life.end_transfer(self.chance.choice(self.life.executor.moving), not fails)

    @precondition(lambda self: self.sessions_in(*SessionState))
    @rule()
    def lose_below(self) -> None:
        self.life.sessions.lose(self.chance.choice(self.sessions_in(*SessionState)))

    def calm(self) -> bool:
        """Upheavals that follow each other at once leave nothing to be upset."""
        return self.life.outcome.steps >= self.upheaval + 2

    @precondition(lambda self: self.life.has_tier and self.calm())
    @rule()
    def crash(self) -> None:
        self.life.crash()
        self.upheaval = self.life.outcome.steps

    @precondition(lambda self: self.life.has_tier and self.calm())
    @rule()
    def restart(self) -> None:
        for request_id in self.life.scheduler.live.live_requests():
            self.life.cancel_request(request_id)
        self.life.settle()
        self.life.restart()
        self.upheaval = self.life.outcome.steps

    # -- the operator and the machine
    # -------------------------------------------------------------------------------------------------------

    @precondition(calm)
    @rule()
    def change_tenants(self) -> None:
        self.life.change_tenants()
        self.upheaval = self.life.outcome.steps

    @rule()
    def resize(self) -> None:
        self.life.resize()

    @rule()
    def look_at_machine(self) -> None:
        self.life.look_at_machine()

    # -- what holds
    # -------------------------------------------------------------------------------------------------------

    @invariant()
    def everything_recomputed_agrees(self) -> None:
        self.chance.renew()
        self.life.scheduler.check()
        self.life.check_below()
        check_resident(self.life.scheduler, self.life.executor)
        check_sights(self.life.scheduler, self.life.clock)

    def teardown(self) -> None:
        """Everything ends, and nothing is left behind; the end of a life that has failed says nothing."""
        if sys.exc_info()[0] is not None or not hasattr(self, "life"):
            return
        self.chance.settle()
        self.life.drain()
        outcome = self.life.end()
        self.met.update({name: getattr(outcome, name) for name in Outcome.__slots__})


LIMITS = settings(
    max_examples=140,
    stateful_step_count=50,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
# What so many lives cannot miss.
COMMON = (
    "finished cancelled timed_out pins_filled pins_refused stored transfers_failed resized turns forks "
    "preemptions recomputed cached_tokens evictions beams_searched embedded"
)


def test_some_orders_of_operations_answer_as_without_paging_and_leave_nothing_behind() -> None:
    few = settings(LIMITS, max_examples=25)
    run_state_machine_as_test(Served, settings=few)  # type: ignore[no-untyped-call]


@pytest.mark.full
@pytest.mark.timeout(900)  # a life that fails takes some minutes to become a short one
def test_any_order_of_operations_answers_as_without_paging_and_leaves_nothing_behind() -> None:
    Served.met.clear()
    run_state_machine_as_test(Served, settings=LIMITS)  # type: ignore[no-untyped-call]
    missed = [name for name in COMMON.split() if not Served.met[name]]
    assert not missed, "the lives have not met what they are for"


@pytest.mark.full
@pytest.mark.parametrize(
    "name", ["no copy-on-write", "pin that is not a holder", "moved block is not copied"]
)
def test_a_planted_bug_is_caught(name: str) -> None:
    bug = next(bug for bug in BUGS if bug.name == name)
    hunt = settings(LIMITS, phases=[Phase.generate], derandomize=True)
    with bug.planted(), pytest.raises(AssertionError):
        run_state_machine_as_test(Served, settings=hunt)  # type: ignore[no-untyped-call]
