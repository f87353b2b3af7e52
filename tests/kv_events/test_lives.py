"""Random lives of the real scheduler: what routers find is what its ledger finds."""

from __future__ import annotations

import itertools

import pytest
from tests.kv_events.published import drive_published
from tests.simulator.fingerprint import WitnessedLife

from octavo.memory.changes import ChangeRecord


class RecordedLife(WitnessedLife):
    """A life with a record, that tells each plan and update."""

    def new_record(self) -> ChangeRecord:
        return ChangeRecord()


# Together these lives notice every bug of `planted_events`.
@pytest.mark.parametrize("seed, overlap", [*itertools.product(range(4), (0, 1)), (5, 0)])
def test_readers_find_what_the_ledger_finds(seed: int, overlap: int) -> None:
    assert drive_published(seed, overlap).num_looked > 20


@pytest.mark.parametrize("seed", [0, 3])
def test_plans_and_answers_are_the_same_with_a_record_and_without(seed: int) -> None:
    told: list[list[tuple[str, object]]] = [[], []]
    WitnessedLife(seed, 1, lambda kind, value: told[0].append((kind, value))).live(seed)
    RecordedLife(seed, 1, lambda kind, value: told[1].append((kind, value))).live(seed)
    assert told[0] == told[1]


@pytest.mark.full
def test_readers_find_a_thousand_prompts_after_a_hundred_thousand_changes() -> None:
    changes = looked = found = lost = 0
    seed = 100
    while changes < 100_000:
        life = drive_published(seed, seed % 3, 400)
        changes += life.channel.num_changes
        looked, found, lost = looked + life.num_looked, found + life.num_found, lost + life.channel.num_lost
        seed += 1
    assert looked > 1_000
    assert found > 1_000
    assert lost > 100
