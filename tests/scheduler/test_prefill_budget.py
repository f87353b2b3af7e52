"""How a step's tokens are shared, and the pace that keeps decoding sequences from noticing a prompt."""

from __future__ import annotations

from bisect import bisect

from hypothesis import given
from hypothesis import strategies as st
from tests.scheduler.served import Served, State

from octavo.scheduler.budget import Place, gets_some, share_budget, share_in_turn
from octavo.step.latency_target import PrefillBudget
from octavo.step.step_times import StepTimes, StepWork


def test_the_oldest_prompt_keeps_half_and_the_shortest_goes_first_in_the_rest() -> None:
    assert share_budget([1000, 500, 3], 100) == [50, 47, 3]


def test_what_is_over_goes_to_the_oldest_again() -> None:
    assert share_budget([1000, 3], 100) == [97, 3]


def test_a_herd_of_equal_prompts_is_served_one_after_the_other() -> None:
    assert share_budget([64, 64, 64], 64) == [32, 32, 0]
    assert share_budget([32, 32, 64], 64) == [32, 32, 0]


def test_a_higher_priority_is_served_before_a_lower_one() -> None:
    assert share_in_turn([(5, 60), (0, 60), (0, 5)], 80) == [60, 15, 5]


PLACES = st.tuples(st.integers(-1, 0), st.sampled_from([0.0, 1.0]), st.integers(0, 30), st.just(0))


@given(
    st.lists(st.tuples(PLACES, st.integers(1, 90)), max_size=12),
    PLACES,
    st.integers(1, 90),
    st.integers(0, 200),
)
def test_a_prompt_gets_some_where_sharing_with_it_among_them_grants_it_any(
    prompts: list[tuple[Place, int]], place: Place, remaining: int, budget: int
) -> None:
    prompts.sort()
    index = bisect(prompts, (place, remaining))
    among = [*prompts[:index], (place, remaining), *prompts[index:]]
    grants = share_in_turn([(at[:2], wanted) for at, wanted in among], budget)
    assert gets_some(prompts, (place, remaining), budget) == (grants[index] > 0)


@given(st.lists(st.integers(1, 500), max_size=20), st.integers(0, 600))
def test_grants_never_exceed_the_budget_or_what_is_asked_and_leave_nothing_unused(
    remaining: list[int], budget: int
) -> None:
    grants = share_budget(remaining, budget)
    assert all(0 <= grant <= wanted for grant, wanted in zip(grants, remaining, strict=True))
    assert sum(grants) == min(budget, sum(remaining))
    if remaining and budget:
        assert grants[0] >= min(remaining[0], budget // 2)


def measured(decode_s: float, position_s: float) -> PrefillBudget:
    times = StepTimes()
    for _ in range(20):
        times.observe(StepWork(8), decode_s)
        times.observe(StepWork(8, prompt=100), decode_s + 100 * position_s)
    return PrefillBudget(512, times)


def test_one_prompt_alongside_eight_streams_takes_less_time_than_they_do() -> None:
    budget = measured(decode_s=0.040, position_s=0.002).prompt_budget(8, 1)
    assert 10 <= budget <= 16
    assert 0.040 + budget * 0.002 < 2 * 0.040


def test_many_prompts_alongside_one_stream_are_not_held_up_for_its_sake() -> None:
    assert measured(decode_s=0.030, position_s=0.002).prompt_budget(1, 31) > 150


def test_the_whole_budget_is_granted_when_no_one_decodes_or_nothing_was_measured() -> None:
    assert measured(0.030, 0.002).prompt_budget(0, 1) == 512
    assert PrefillBudget(512, StepTimes()).prompt_budget(8, 1) == 504


def seconds_of(num_positions: int) -> float:
    """A machine on which each position costs alike."""
    return 0.020 + 0.0007 * num_positions


def test_a_server_that_starts_under_prompts_measures_a_decoding_step_first() -> None:
    served = Served(blocks=10_000, tokens=512, seconds_of=lambda plan: seconds_of(plan.num_tokens))
    for _ in range(2):
        served.add(8_000)
    served.step()
    stream = served.add(4, 60)
    served.step()
    taken = list[float]()
    while served.state(stream) is not State.FINISHED:
        plan = served.step()
        taken.append(seconds_of(plan.num_tokens))
        assert taken[-1] < 4 * seconds_of(1), "the stream waited for a whole step of prompts"
        assert any(not chunk.num_samples for chunk in plan.chunks), "prompts always advance"
    assert min(taken[1:]) > 2 * seconds_of(1), "and no more is held back than must be"


def test_a_server_that_knows_no_cost_yet_holds_no_prompt_back() -> None:
    times = StepTimes()
    times.observe(StepWork(8), 0.040)
    assert PrefillBudget(512, times).prompt_budget(8, 1) == 504


def test_a_prompt_always_advances() -> None:
    assert measured(decode_s=0.001, position_s=0.5).prompt_budget(8, 1) == PrefillBudget.FLOOR
