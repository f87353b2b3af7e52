"""When a request came to each phase: what queue, transfer and prefill times are made of."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served
from tests.scheduler.test_transfers import PROMPT, finish, go_below

from octavo.params import BeamParams
from octavo.types import FinishReason, Move, Phases


def phases(served: Served, request: int) -> Phases:
    found = served.usage(request).phases
    assert found is not None
    return found


def step_at(served: Served, now: float) -> None:
    served.now = now
    served.step()


def test_a_request_is_admitted_by_the_plan_and_has_its_first_token_at_the_commit() -> None:
    served = Served(tokens=4)
    served.now = 1.0
    request = served.add(6, 3)
    step_at(served, 2.0)
    served.now = 3.0
    plan = served.plan()
    served.now = 3.5
    served.commit(plan)
    for now in (4.0, 5.0):
        step_at(served, now)
    assert served.finished(request) == {0: FinishReason.LENGTH}
    assert phases(served, request) == Phases(1.0, admitted=2.0, first_token=3.5)


def test_who_finds_no_row_is_admitted_when_there_is_one() -> None:
    served = Served(rows=1)
    first, second = served.add(4, 2), served.add(4, 1)
    for now in (1.0, 2.0, 3.0):
        step_at(served, now)
    assert phases(served, first).admitted == 1.0
    assert phases(served, second) == Phases(0.0, admitted=3.0, first_token=3.0)


def test_a_preemption_makes_no_second_admission() -> None:
    served = Served(blocks=8, rows=4)
    low = served.add(16, 8)
    step_at(served, 1.0)
    served.add(16, 8, priority=5)
    for now in range(2, 40):
        if served.scheduler.has_work:
            step_at(served, float(now))
    assert served.usage(low).preemptions > 0
    assert phases(served, low) == Phases(0.0, admitted=1.0, first_token=1.0)


def test_every_choice_shows_the_admission_that_they_share() -> None:
    served = Served()
    request = served.add(4, 2, n=3)
    for now in (1.0, 2.0):
        step_at(served, now)
    told = {u.choice: u.usage.phases for u in served.updates if u.request_id == request and u.finish}
    assert told == dict.fromkeys(range(3), Phases(0.0, admitted=1.0, first_token=1.0))


def test_a_beam_search_shows_its_leaders_phases() -> None:
    served = Served()
    request = served.add(4, 2, n=2, beams=BeamParams(width=2), temperature=0.0)
    step_at(served, 1.0)  # samples without candidates: the search ends at once
    told = {u.choice: u.usage.phases for u in served.updates if u.request_id == request and u.finish}
    assert told == dict.fromkeys(range(2), Phases(0.0, admitted=1.0, first_token=1.0))


@pytest.mark.parametrize("ok", [True, False])
def test_what_comes_from_the_tier_below_has_a_time_of_its_own(ok: bool) -> None:
    served = Served(blocks=20, slots=50)
    go_below(served, PROMPT)
    served.now = 10.0
    request = served.add(PROMPT, 1)
    served.now = 11.0
    plan = served.plan_of_nothing()
    assert plan is not None
    loads = [transfer for transfer in plan.transfers if transfer.move is Move.LOAD]
    served.commit(plan)
    served.now = 12.0
    assert served.plan_of_nothing() is None
    served.now = 13.0
    finish(served, loads, ok=ok)
    while served.scheduler.has_work:
        served.step()
    assert phases(served, request) == Phases(
        10.0, loading_begun=11.0, loaded=13.0, admitted=13.0, first_token=13.0
    )


def test_a_request_that_ends_in_the_queue_was_never_admitted() -> None:
    served = Served(rows=1)
    served.add(4, 5)
    waiting = served.add(4, 1)
    step_at(served, 1.0)
    [update] = served.scheduler.cancel(waiting)
    assert update.usage.phases == Phases(0.0)
