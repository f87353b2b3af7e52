"""Planted bugs of sequences larger than the pool: cold blocks, and chunks in parts."""

from __future__ import annotations

from tests.simulator.planting import PlantedBug

from octavo.memory.holders import Holder
from octavo.memory.ledger import Ledger
from octavo.memory.table import BlockTable
from octavo.memory.tiers import OffloadTier
from octavo.scheduler.cold_chunks import ColdChunks
from octavo.scheduler.long_contexts import LongContexts
from octavo.scheduler.sequence import InFlightChunk, Sequence


def _read_without_holding(self: OffloadTier, name: bytes) -> None:
    self._readers[name] += 1  # and its slot may be taken


def _make_cold_without_telling(self: LongContexts, sequence: Sequence, at_most: int) -> None:
    ledger, table = self._context.ledger, sequence.table
    assert table is not None
    if at_most > 0 and (count := ledger.count_cold_candidates(table, at_most)):
        ledger.make_cold(table, count)


def _fork_without_reading(self: Ledger, table: BlockTable, holder: Holder) -> BlockTable:
    names, table.cold = table.cold, []
    twin = _FORK(self, table, holder)
    table.cold, twin.cold = names, list(names)
    return twin


def _close_without_letting_go(self: Ledger, table: BlockTable) -> None:
    table.cold.clear()
    _CLOSE(self, table)


def _cold_before_it_is_stored(self: Ledger, table: BlockTable, at_most: int) -> int:
    return min(at_most, len(table.published))


def _skip_a_part(
    self: ColdChunks, sequence: Sequence, grant: int, flights: list[InFlightChunk], *, is_alone: bool
) -> bool:
    done = _PLAN(self, sequence, grant, flights, is_alone=is_alone)
    if self._begun is not None and self._begun.next_part + 1 < self._begun.num_parts:
        self._begun.next_part += 1
    return done


def _parts_of_two(
    self: ColdChunks, ready: list[Sequence], others: list[tuple[Sequence, int]]
) -> list[tuple[Sequence, int]]:
    turns = _TURNS(self, ready, others)
    if self._begun is not None:
        self._begun.length = max(1, self._begun.length - 1)  # not those that were reserved
    return turns


_FORK, _CLOSE, _PLAN, _TURNS = Ledger.fork, Ledger.close, ColdChunks.plan, ColdChunks.turns

COLD_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("slot of a cold block taken", OffloadTier, "read", _read_without_holding),
    PlantedBug("row not told of a cold block", LongContexts, "_make_cold", _make_cold_without_telling),
    PlantedBug("fork that does not hold cold blocks", Ledger, "fork", _fork_without_reading),
    PlantedBug("cold blocks never let go", Ledger, "close", _close_without_letting_go),
    PlantedBug("cold before it is stored", Ledger, "count_cold_candidates", _cold_before_it_is_stored),
    PlantedBug("part of a chunk skipped", ColdChunks, "plan", _skip_a_part),
    PlantedBug("parts of different lengths", ColdChunks, "turns", _parts_of_two),
    PlantedBug("unreadable slots taken for read", LongContexts, "lose", lambda self, slots: None),
    PlantedBug("nothing becomes cold", LongContexts, "_make_cold", lambda self, sequence, at_most: None),
)
