"""A step for which the device had no memory costs time, and no request but one that cannot begin again."""

from __future__ import annotations

import pytest
from tests.scheduler.served import Served

from octavo.scheduler import shortage
from octavo.step.events import EventKind
from octavo.types import FinishReason, SampledToken, StepPlan, StepResult, Update

WHY = "cuda:0 had no memory left for the step"


def commit_short(served: Served, plan: StepPlan) -> list[Update]:
    updates = served.scheduler.commit(plan, StepResult(plan.step_id, {}, too_large=WHY), served.now)
    served.scheduler.check()
    return updates


def test_its_sequences_begin_again_in_steps_of_half_the_size() -> None:
    served = Served(tokens=16)
    one, two = served.add(10, 3), served.add(10, 3)
    plan = served.plan()
    assert plan.num_tokens == 16
    assert commit_short(served, plan) == []
    assert served.scheduler.step_tokens == 8
    assert served.scheduler.events.counts[EventKind.STEP_SHRUNK] == 1
    sizes = []
    while served.scheduler.has_work:
        sizes.append(served.step().num_tokens)
    assert max(sizes) == 8
    ends = {u.request_id: u.usage.num_output for u in served.updates if u.finish is FinishReason.LENGTH}
    assert ends == {one: 3, two: 3}
    assert served.memory.num_available == 100


def test_what_was_planned_ahead_of_its_result_is_not_taken() -> None:
    served = Served(tokens=16)
    request = served.add(4, 5)
    first = served.plan()
    ahead = served.scheduler.schedule(served.now)  # continues from the first one's sample
    assert ahead is not None
    [chunk] = ahead.chunks
    commit_short(served, first)
    [sequence] = served.scheduler.live.sequences_of(request)
    garbage = StepResult(ahead.step_id, {chunk.seq_id: (SampledToken(99),)})
    assert served.scheduler.commit(ahead, garbage, served.now) == []
    assert sequence.pending == 0
    assert list(sequence.tokens) == list(sequence.request.prompt)
    served.scheduler.check()
    while served.scheduler.has_work:
        served.step()
    assert [token for u in served.updates for token in u.tokens] == [SampledToken(7)] * 5


def test_a_failure_that_was_met_ahead_of_its_result_is_none() -> None:
    served = Served(tokens=16)
    request = served.add(4, 5)
    first, ahead = served.plan(), served.scheduler.schedule(served.now)
    assert ahead is not None
    commit_short(served, first)
    poisoned = StepResult(ahead.step_id, {}, failures={ahead.chunks[0].seq_id: "NaN"})
    assert served.scheduler.commit(ahead, poisoned, served.now) == []
    assert request in served.scheduler.live


def test_the_size_grows_back_and_later_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shortage, "GROW_AFTER", 4)
    served = Served(tokens=16)
    sizes = []
    for _ in range(2):
        served.add(40, 30)
        commit_short(served, served.plan())
        while served.scheduler.has_work:
            served.step()
            sizes.append(served.scheduler.step_tokens)
    assert sizes[:6] == [8, 8, 8, 16, 16, 16]
    second = sizes[len(sizes) // 2 :]
    assert second.index(16) == 7  # twice as many steps


def test_one_that_waits_does_not_learn_that_its_prompt_was_scored() -> None:
    served = Served(tokens=16, blocks=12)
    scored = served.add(20, 2, prompt_logprobs=0, logprobs=0)
    plan = served.plan()
    [sequence] = served.scheduler.live.sequences_of(scored)
    served.scheduler.preemption.preempt(sequence, None)
    [update] = commit_short(served, plan)
    assert (update.request_id, update.finish) == (scored, FinishReason.ERROR)


def test_of_a_step_of_one_position_its_sequence_alone_fails() -> None:
    served = Served(tokens=16)
    request = served.add(4, 5, n=2)
    served.step()  # both choices have their first token
    served.scheduler.context.step_tokens = 1
    plan = served.plan()
    assert plan.num_tokens == 1
    [update] = commit_short(served, plan)
    assert (update.request_id, update.finish) == (request, FinishReason.ERROR)
    assert len(served.scheduler.live.sequences_of(request)) == 1
    assert served.scheduler.step_tokens == 1


def test_a_step_of_one_position_cannot_be_smaller() -> None:
    served = Served(tokens=1)
    served.add(4, 5)
    [update] = commit_short(served, served.plan())
    assert (update.finish, update.error) == (FinishReason.ERROR, WHY)
    assert not served.scheduler.has_work
    assert served.scheduler.events.counts[EventKind.STEP_SHRUNK] == 0


@pytest.mark.parametrize("params", [{"prompt_logprobs": 0, "logprobs": 0}])
def test_one_that_cannot_begin_again_fails_alone(params: dict[str, object]) -> None:
    served = Served(tokens=16)
    scored, plain = served.add(6, 2, **params), served.add(6, 2)
    [update] = commit_short(served, served.plan())
    assert (update.request_id, update.finish) == (scored, FinishReason.ERROR)
    while served.scheduler.has_work:
        served.step()
    assert served.updates[-1].request_id == plain
    assert served.updates[-1].finish is FinishReason.LENGTH
