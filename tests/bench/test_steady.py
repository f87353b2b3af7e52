"""The benchmarks of a long life and of a flood, on the tiny model: what they notice, not how fast it is."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from bench.fairness import fairness
from bench.fairness.fairness import FLOOD, Scenario, SituationResult, bound_s
from tests.endurance import steady
from tests.engine.served import Served, serve_tiny

from octavo.memory.name_history import GONE_MAX
from octavo.scheduler.ended_requests import ENDED_MAX
from octavo.step.events import EVENTS_MAX

pytestmark = pytest.mark.full

BOUNDS = {
    "_pool.by_name": 24,  # as many as are cached just then
    "events._ring": EVENTS_MAX,
    "ended._cards": ENDED_MAX,
    "ended._cards[].choices": 8 * ENDED_MAX,
    "history._gone": GONE_MAX,
    "_times.residuals": 512,
    ".chain.names": 24 * 8,  # of sequences that ended last, until the next plan
}


@pytest.fixture
def served() -> Iterator[Served]:
    found = serve_tiny(num_blocks=24)
    yield found
    found.llm.close()


def test_no_index_grows_over_requests_of_all_kinds(served: Served) -> None:
    looks = asyncio.run(steady.run(served.llm, 900, 300, lambda text: None))
    assert [look.requests for look in looks] == [0, 300, 600, 900]
    assert looks[-1].preemptions > 0
    assert looks[-1].evictions > 0
    assert looks[-1].blocks_held == 0
    grown = [path for path in steady.grown(looks, 1) if most_of(path) is None]
    assert grown == []
    full = [path for path, size in looks[-1].indexes.items() if size > (most_of(path) or size)]
    assert full == [], "more entries than its bound"


def most_of(path: str) -> int | None:
    """Entries of an index that grows up to a bound, by the end of its path; None: it may not grow."""
    return next((most for end, most in BOUNDS.items() if path.endswith(end)), None)


def test_the_census_sees_an_index_that_grows(served: Served) -> None:
    engine = served.engine
    before = steady.census(served.llm)
    engine.scheduler.leak = {i: i for i in range(50)}  # type: ignore[attr-defined]
    grown = {path: size for path, size in steady.census(served.llm).items() if before[path] != size}
    assert [(path.rsplit(".", 1)[1], size) for path, size in grown.items()] == [("leak", 50)]


def test_a_flood_keeps_to_its_maximum_and_the_quiet_tenant_gets_its_blocks(served: Served) -> None:
    scenario = Scenario(clients=6, requests=4, prompt=12, flood_output=8, quiet_output=2)
    alone, tenants, first_come = asyncio.run(fairness.measure(served.llm, scenario))
    assert len(alone.first_token_s) == len(tenants.first_token_s) == len(first_come.first_token_s) == 4
    assert tenants.flood_tokens > 0
    assert tenants.flood_maximum is not None
    assert 0 < tenants.flood_blocks <= tenants.flood_maximum
    assert max(tenants.admitted_steps) <= 2
    assert served.engine.scheduler.ledger.quotas.policy(FLOOD).maximum is None, "nothing is left behind"


def test_the_bound_is_half_as_long_again_and_two_steps() -> None:
    alone, flooded = SituationResult("alone"), SituationResult("flooded")
    alone.first_token_s = [0.2] * 10
    flooded.between_s = [0.1] * 10
    assert bound_s(alone, flooded) == pytest.approx(0.5)
