"""Random lives of the real scheduler and ledger against an oracle, and the bugs that this refuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.simulator.lives import drive
from tests.simulator.planted import BUGS, NAME_WIDTH, hunt
from tests.simulator.planting import PlantedBug

# What `make planted-bugs` printed last: where to look first. A life that has changed since then is no error:
# the others follow.
TABLE = Path(__file__).with_name("planted.txt").read_text(encoding="utf-8")
SEEN = {
    line[:NAME_WIDTH].rstrip(): (int(found[1]), int(found[2]))
    for line in TABLE.splitlines()
    if (found := re.search(r"seed (\d+), overlap (\d)", line))
}


@pytest.mark.parametrize("seed, overlap", sorted(set(SEEN.values())))
def test_a_life_that_shows_something_answers_as_without_paging(seed: int, overlap: int) -> None:
    """The quick tier's lives: together they notice every planted bug."""
    drive(seed, overlap, steps=300)


def test_every_planted_bug_breaks_something_that_is_there() -> None:
    """Also after a renaming: the hunt for them is the full tier's."""
    assert [bug.name for bug in BUGS if not hasattr(bug.target, bug.attribute)] == []


@pytest.mark.full
@pytest.mark.parametrize("overlap", [0, 1, 2])
def test_random_lives_answer_as_without_paging_and_lose_nothing(overlap: int) -> None:
    outcomes = [drive(seed, overlap) for seed in range(24)]
    # The runs must have met what they are for.
    assert sum(o.finished for o in outcomes) > 175
    assert sum(o.preemptions for o in outcomes) > 35
    assert sum(o.kept for o in outcomes) > 35
    assert sum(o.recomputed for o in outcomes) > 35
    assert sum(o.staged for o in outcomes) > 70
    assert sum(o.forks for o in outcomes) > 35
    assert sum(o.cancelled for o in outcomes) > 35
    assert sum(o.evictions for o in outcomes) > 350
    assert sum(o.cached_tokens for o in outcomes) > 350
    assert sum(o.failed for o in outcomes) > 17
    assert sum(o.prompts_scored for o in outcomes) > 35
    assert sum(o.timed_out for o in outcomes) > 35
    assert sum(o.pins_filled for o in outcomes) > 17
    assert sum(o.pins_refused for o in outcomes) > 17
    assert sum(o.stored for o in outcomes) > 350
    assert sum(o.loaded for o in outcomes) > 70
    assert sum(o.transfers_failed for o in outcomes) > 7
    assert sum(o.turns for o in outcomes) > 105
    assert sum(o.suspended for o in outcomes) > 17
    assert sum(o.suspensions_refused for o in outcomes) > 17
    assert sum(o.sessions_forked for o in outcomes) > 7
    assert sum(o.gave_way for o in outcomes) > 7
    assert sum(o.resized for o in outcomes) > 17
    assert sum(o.resizes_refused for o in outcomes) > 7
    assert sum(o.embedded for o in outcomes) > 35
    assert sum(o.beams_searched for o in outcomes) > 70
    assert sum(o.beams_preempted for o in outcomes) > 7


@pytest.mark.full
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(bug: PlantedBug) -> None:
    assert hunt(bug, first=SEEN.get(bug.name, (0, 0))) is not None, f"nobody noticed: {bug.name}"


@pytest.mark.full
def test_a_planted_bug_is_mended_afterwards() -> None:
    for bug in BUGS:
        with bug.planted():
            pass
    drive(seed=0, overlap=1)
