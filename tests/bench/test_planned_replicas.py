"""Virtual replicas behind a balancer: where chats go, what reports say, and how late."""

from __future__ import annotations

from functools import partial

import pytest
from tests.bench.test_planner import TARGETS, calibration_of, setup_of, trace_of

from bench import routing
from octavo.bench.planner import Balancer, CapacityPlanner, DrawResult, Traffic
from octavo.bench.replicas import PrefixBalancer, RoutingPolicy, balancer_of
from octavo.bench.traces import TraceRequest, TrafficTrace


def chats(num_chats: int, num_turns: int, every_s: float) -> TrafficTrace:
    """Each turn of a chat has its earlier turns' blocks; chats come in turn, in an order of their own."""
    requests = [
        TraceRequest(
            every_s * (turn * num_chats + place),
            512 * (turn + 1) + 40,
            8,
            tuple(100 * chat + i for i in range(turn + 1)),
        )
        for turn in range(num_turns)
        for place, chat in enumerate(sorted(range(num_chats), key=lambda chat: (chat * 7 + turn * 3) % 11))
    ]
    return trace_of(*requests)


def served(
    routing: RoutingPolicy, trace: TrafficTrace, replicas: int = 3, delay_s: float = 0.1
) -> DrawResult:
    setup = setup_of()
    planner = CapacityPlanner(calibration_of(setup), TARGETS, setup, replicas=replicas)
    planner.balancer = lambda servers: balancer_of(routing, servers, setup, delay_s, 0)
    return planner.run_draw(Traffic(trace))


def test_chats_find_their_blocks_behind_the_router_and_seldom_without() -> None:
    trace = chats(7, 5, 1.0)
    found = {routing: served(routing, trace).cached_tokens for routing in RoutingPolicy}
    assert found[RoutingPolicy.PREFIX] == 7 * 512 * (1 + 2 + 3 + 4)
    assert found[RoutingPolicy.PREFIX] > 1.3 * max(
        found[RoutingPolicy.ROUND_ROBIN], found[RoutingPolicy.TWO_CHOICES]
    )


@pytest.mark.parametrize("routing", list(RoutingPolicy))
def test_all_answers_come_once_whatever_chooses(routing: RoutingPolicy) -> None:
    report = served(routing, chats(7, 3, 0.1)).report
    assert (report.completed, report.requests, report.errors) == (21, 21, {})


def test_replicas_share_what_one_would_queue() -> None:
    trace = trace_of(*[TraceRequest(0.2 * i, 800, 8) for i in range(30)])
    one, three = (served(RoutingPolicy.PREFIX, trace, replicas=count).report.ttft_ms.p95 for count in (1, 3))
    assert three < one / 3


def test_a_chats_next_turn_is_followed_however_late_reports_are() -> None:
    trace = chats(5, 4, 0.5)
    late = served(RoutingPolicy.PREFIX, trace, delay_s=1.5)
    assert late.cached_tokens > 0.8 * served(RoutingPolicy.PREFIX, trace, delay_s=0.0).cached_tokens


def test_what_the_router_predicts_is_what_requests_get() -> None:
    setup, balancers = setup_of(), list[PrefixBalancer]()

    def balancer(servers: list) -> Balancer:
        balancers.append(PrefixBalancer(servers, setup, 0.1))
        return balancers[0]

    planner = CapacityPlanner(calibration_of(setup), TARGETS, setup, replicas=3, balancer=balancer)
    result = planner.run_draw(Traffic(chats(7, 5, 1.0)))
    balancers[0]._clock.advance(1e9)  # the last first tokens
    counts = balancers[0].router.counts
    assert counts.predicted_tokens == result.cached_tokens
    assert counts.chosen == 35
    assert balancers[0].router.index.num_blocks > 0
    balancers[0].router.index.check()


def test_users_wait_for_their_answers_on_all_replicas() -> None:
    setup = setup_of()
    planner = CapacityPlanner(calibration_of(setup), TARGETS, setup, replicas=2)
    planner.balancer = partial(balancer_of, RoutingPolicy.TWO_CHOICES, setup=setup, delay_s=0.1, seed=0)
    result = planner.run_draw(Traffic(trace_of(*[TraceRequest(0.0, 16, 10)] * 12), users=4, think_s=3.0))
    assert result.report.completed == 12
    assert 6.0 < result.seconds < 7.0


def test_the_routers_benchmark_finds_what_it_filled_in(capsys: pytest.CaptureFixture[str]) -> None:
    routing.time_router(4, 4 * 2100)
    said = capsys.readouterr().out
    assert "4 replicas, 8,400 blocks" in said
    assert said.count("found 100 %") == 4
