"""What the scheduler promises its clients beyond right answers: nobody starves, nobody is stuck behind
another, nobody is preempted in vain, and a step costs the same at any context length."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType

from tests.scheduler.served import Served

from octavo.scheduler.admit import BYPASS_MAX, SCAN_MAX
from octavo.scheduler.scheduler import Scheduler
from octavo.scheduler.sequence import State
from octavo.types import FinishReason, SampledToken, StepPlan, StepResult


def steps_until(served: Served, is_met: Callable[[], bool], at_most: int) -> int:
    for step in range(at_most):
        if is_met():
            return step
        served.step()
    raise AssertionError(f"not met within {at_most} steps")


def test_a_huge_request_is_passed_at_most_so_often_and_then_enters() -> None:
    served = Served(blocks=20)
    for _ in range(3):
        served.add(8, 3)
    served.step()
    huge = served.add(64, 4)
    passed: list[int] = []
    for _ in range(300):
        passed.append(served.add(8, 3))  # a stream of small ones that would always fit
        served.step()
        if served.state(huge) is not State.WAITING:
            break
    assert served.state(huge) is not State.WAITING, "the huge request starved"
    entered_before = sum(served.state(small) is not State.WAITING for small in passed)
    assert entered_before <= BYPASS_MAX
    assert entered_before > 3, "it held up the small ones at once"


def test_a_lower_priority_is_served_when_the_higher_load_ends() -> None:
    served = Served(blocks=8, rows=2)
    low = served.add(8, 4, priority=-1)
    for _ in range(20):
        served.add(8, 4)
        served.add(8, 4)
        served.step()
    assert served.finished(low) == {}
    steps_until(served, lambda: bool(served.finished(low)), at_most=200)


def test_a_long_prompt_advances_alongside_an_endless_stream_of_short_ones() -> None:
    served = Served(blocks=500, tokens=16)
    long = served.add(400)
    for _ in range(400 // 8 + 1):
        served.add(12)
        served.add(12)
        served.step()
    assert served.finished(long), "it gets at least half of each step"


def test_any_number_of_followers_does_not_block_who_is_behind_them() -> None:
    served = Served(blocks=400, rows=200, tokens=16)
    prompt = tuple(range(1, 121))
    served.add(prompt)
    served.step()
    for _ in range(SCAN_MAX + 10):
        served.add(prompt)
    other = served.add(3)
    served.step()
    assert served.finished(other)


def test_a_follower_is_free_as_soon_as_its_leader_is_preempted() -> None:
    served = Served()
    prompt = tuple(range(1, 41))
    leader = served.add(prompt)
    served.step()
    follower = served.add(prompt)
    served.step()
    assert served.state(follower) is State.WAITING
    served.scheduler.cancel(leader)
    served.step()
    assert served.state(follower) is not State.WAITING


def test_lending_a_priority_leaves_the_running_sequences_in_order() -> None:
    served = Served(tokens=24)
    prompt = tuple(range(1, 41))
    lazy = served.add(prompt, priority=-1)
    served.step()
    served.add(prompt, priority=5)  # waits for the lazy one, and lends its priority
    other = served.add(100)
    served.plan()
    assert [s.request.request_id for s in served.scheduler.live.running] == [other, lazy]


def test_an_urgent_prompt_advances_where_decoding_sequences_fill_the_step() -> None:
    served = Served(rows=4, tokens=2)
    for _ in range(3):
        served.add(1, 60)
    for _ in range(4):
        served.step()
    urgent = served.add(6, priority=3)
    steps_until(served, lambda: bool(served.finished(urgent)), at_most=7)


def test_blocks_that_only_victims_share_count_as_room() -> None:
    served = Served(blocks=6, rows=4, tokens=16)
    forked = served.add(16, 5, n=2)
    served.step()  # both choices hold the same 4 blocks
    urgent = served.add(16, 4, priority=1)
    served.step()
    assert served.state(urgent) is State.RUNNING
    assert served.state(forked) is State.WAITING


def test_no_one_is_preempted_where_that_would_not_let_the_other_in() -> None:
    served = Served(blocks=13, rows=4, tokens=64)
    shared = tuple(range(1, 21))
    served.add(16, 9)
    low = served.add(shared, 9, priority=-1)
    served.step()
    # The victim's 5 blocks would be freed, but they are the ones that it needs: nothing is won.
    served.add((*shared, *range(50, 66)), 1)
    before = served.scheduler.live.num_preemptions
    served.step()
    assert served.scheduler.live.num_preemptions == before
    assert served.state(low) is State.RUNNING


def test_cancelling_the_first_choice_before_the_fork_leaves_the_others() -> None:
    served = Served(tokens=4)
    request = served.add(8, 3, n=3)
    served.step()
    served.updates += served.scheduler.cancel(request, 0)
    steps_until(served, lambda: not served.scheduler.has_work, at_most=20)
    assert served.finished(request) == {
        0: FinishReason.CANCELLED,
        1: FinishReason.LENGTH,
        2: FinishReason.LENGTH,
    }


def test_what_a_preempted_sequence_wrote_is_not_found_after_it_failed() -> None:
    served = Served()
    request = served.add(9, 5)
    sequence = served.scheduler.live.sequences_of(request)[0]
    served.step()
    in_flight = served.plan()
    served.scheduler.preemption.preempt(sequence, sequence)
    assert served.memory.find_prefix(sequence.chain.names) == 2
    served.commit(in_flight, request)
    assert served.memory.find_prefix(sequence.chain.names) == 0
    assert served.memory.counts().cached == 0
    assert served.finished(request) == {0: FinishReason.ERROR}


def test_each_prompt_position_is_asked_for_its_logprobs_once_across_preemption() -> None:
    served = Served(tokens=5)
    request = served.add(18, 2, prompt_logprobs=0)
    asked: list[int] = []
    step = 0
    while served.scheduler.has_work:
        plan = served.step()
        for chunk in plan.chunks:
            asked += range(chunk.logits_from, min(chunk.stop, 17))
        step += 1
        if step in (2, 3, 5):
            victim = served.scheduler.live.sequences_of(request)[0]
            served.scheduler.preemption.preempt(victim, victim)
    assert asked == list(range(17))


def num_calls(action: Callable[[], object]) -> int:
    """How many functions of ours `action` calls."""
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        action()
    finally:
        sys.setprofile(None)
    return calls


def turn(scheduler: Scheduler, plans: list[StepPlan]) -> None:
    """One step without checks, and what was planned."""
    plan = scheduler.schedule(0.0)
    assert plan is not None
    plans.append(plan)
    scheduler.commit(plan, StepResult(plan.step_id, {c.seq_id: (SampledToken(7),) for c in plan.chunks}), 0.0)


def test_a_decoding_step_costs_the_same_at_any_context_length() -> None:
    costs = []
    for context in (18, 2002):
        served = Served(blocks=10_000, block=16, rows=32, tokens=4096)
        for _ in range(16):
            served.add(context, 100)
        while (
            any(s.remaining > 1 for s in served.scheduler.live.running)
            or len(served.scheduler.live.running) < 16
        ):
            served.step()
        plans: list[StepPlan] = []
        costs.append(num_calls(functools.partial(turn, served.scheduler, plans)))
        assert plans[0].table_writes == ()
    assert costs[1] <= costs[0] * 1.1


def test_a_long_waiting_line_costs_a_bounded_number_of_looks() -> None:
    costs = []
    for waiting in (2 * SCAN_MAX, 8 * SCAN_MAX):
        served = Served(blocks=40, rows=64, tokens=64)
        for _ in range(waiting):
            served.add(100)
        served.step()
        costs.append(num_calls(functools.partial(served.scheduler.schedule, 0.0)))
    assert costs[1] <= costs[0] * 1.1
