"""Three times more demand than blocks: no livelock, little lost beside an admission that knows lengths."""

from __future__ import annotations

import pytest

from octavo.bench.lengths import CHATS, INSTRUCTIONS, LONG_ANSWERS, LengthSource, synthetic
from octavo.bench.oversubscribed import (
    COMPUTE_BOUND,
    MARGINS,
    Setup,
    best_without_preempting,
    oversubscribed,
    serve,
)
from octavo.sim.driver import Pool, requests_of


@pytest.mark.full
@pytest.mark.parametrize(
    "source, count, blocks", [(CHATS, 60, 256), (INSTRUCTIONS, 150, 128), (LONG_ANSWERS, 40, 256)]
)
def test_throughput_and_gaps_stay_near_the_best_that_never_preempts(
    source: LengthSource, count: int, blocks: int
) -> None:
    rows = list(oversubscribed(synthetic(source, count, 0, 2048), Pool(blocks, 16, 0.03), seed=0))
    assert [(row.costs, row.tier) for row in rows] == [
        ("compute-bound", False), ("compute-bound", True), ("memory-bound", False), ("memory-bound", True),
    ]  # fmt: skip
    for row in rows:
        assert row.throughput_ratio >= 0.8, row
        assert row.gap_p99_ratio <= 3.0, row
    if source is not INSTRUCTIONS:
        plain, tiered = rows[:2]
        assert plain.preemptions > 0
        assert plain.kept == 0
        assert tiered.kept > 0
        assert tiered.recomputed < plain.recomputed


def test_the_same_trace_gives_the_same_figures() -> None:
    requests = requests_of(synthetic(CHATS, 20, 1, 512).jobs, 1)
    setup = Setup(64, 16, COMPUTE_BOUND, num_slots=300, staging=4)
    assert serve(requests, setup) == serve(requests, setup)


def test_the_best_admission_serves_everything_and_never_preempts() -> None:
    requests = requests_of(synthetic(LONG_ANSWERS, 20, 2, 512).jobs, 2)
    best = best_without_preempting(requests, Setup(64, 16, COMPUTE_BOUND))
    assert best.preemptions == 0
    assert best.tokens == sum(request.max_tokens for request in requests)
    assert best.running > 1
    # The largest margin lets fewer in, and none of the others is slower than it.
    last = serve(requests, Setup(64, 16, COMPUTE_BOUND), int(MARGINS[-1] * 64))
    assert last is not None
    assert last.seconds >= best.seconds
