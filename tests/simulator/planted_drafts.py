"""Bugs planted in drafts: what they take, and what is left of those that were rejected."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence as Many
from unittest import mock

from tests.simulator.planting import PlantedBug

from octavo.memory.ledger import Ledger
from octavo.memory.table import BlockTable
from octavo.scheduler import drafts as drafts_module
from octavo.scheduler.block_budget import BlockBudget
from octavo.scheduler.committer import Committer
from octavo.scheduler.drafts import Drafts
from octavo.scheduler.live import LiveSequences
from octavo.scheduler.sequence import InFlightChunk, Sequence
from octavo.speculation.speculator import DRAFTS_MAX
from octavo.types import SampledToken


def _published_with_the_rejected(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    _SETTLE(self, flight, samples, num_taken)
    return flight.stop


def _table_keeps_the_rejected(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    with mock.patch.object(Ledger, "truncate", autospec=True):
        return _SETTLE(self, flight, samples, num_taken)


def _table_loses_an_accepted_one(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    computed, table = _SETTLE(self, flight, samples, num_taken), flight.sequence.table
    if flight.drafts and flight.is_current and table is not None:
        self._context.ledger.truncate(table, computed - self._context.ledger.block_size)
    return computed


def _planned_with_the_rejected(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    computed = _SETTLE(self, flight, samples, num_taken)
    if flight.drafts and flight.is_current:
        flight.sequence.num_planned = min(
            flight.stop, len(flight.sequence.tokens) - 1 + (computed < flight.stop)
        )
    return computed


def _served_with_the_rejected(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    computed = _SETTLE(self, flight, samples, num_taken)
    if flight.drafts and flight.is_current:
        self._live.service.count(flight.sequence, flight.stop)
    return computed


def _accepted_with_the_rejected(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    computed, drafting = _SETTLE(self, flight, samples, num_taken), flight.sequence.drafting
    if drafting is not None and flight.drafts:
        drafting.num_accepted += len(flight.drafts)
    return computed


def _settled_for_another_epoch(
    self: Drafts, flight: InFlightChunk, samples: Many[SampledToken], num_taken: int
) -> int:
    flight.num_preemptions = flight.sequence.preemptions
    return _SETTLE(self, flight, samples, num_taken)


def _lengthen_charging(
    self: Drafts, offer: drafts_module._Offer, count: int, spare: int, promised: Counter[str]
) -> int:
    taken = _LENGTHEN(self, offer, count, spare, promised)
    offer.drafts.blocks_guessed = 0
    offer.flight.sequence.count_blocks(self._context.now)
    return taken


def _taken_past_the_end(
    self: Committer, sequence: Sequence, samples: tuple[SampledToken, ...]
) -> tuple[SampledToken, ...]:
    sequence.tokens.extend(sampled.token for sampled in samples)
    return samples


def _borrowed_for(self: Drafts, sequence: Sequence, table: BlockTable) -> int:
    return self._context.ledger.quotas.room(table.owner)


def _beyond_the_maximum(self: Drafts, sequence: Sequence, table: BlockTable) -> int:
    return self._context.ledger.num_available


def _promised_to_nobody(self: BlockBudget, running: Many[Sequence]) -> Counter[str]:
    return Counter()


def _offers_beyond_the_row(
    self: Drafts, flights: list[InFlightChunk], to_read: int
) -> list[drafts_module._Offer]:
    return [
        drafts_module._Offer(offer.drafts, offer.flight, offer.index, DRAFTS_MAX)
        for offer in _OFFERS(self, flights, to_read)
    ]


def _requeued_with_its_guesses(self: LiveSequences, sequence: Sequence) -> None:
    guessed = sequence.num_guessed
    _REQUEUE(self, sequence)
    if sequence.drafts is not None:
        sequence.drafts.num_guessed = guessed
    sequence.num_planned = guessed


_SETTLE, _LENGTHEN, _OFFERS = Drafts.settle, Drafts._lengthen, Drafts._offers
_REQUEUE = LiveSequences.requeue

DRAFT_BUGS: tuple[PlantedBug, ...] = (
    PlantedBug("rejected drafts published", Drafts, "settle", _published_with_the_rejected),
    PlantedBug("table not truncated", Drafts, "settle", _table_keeps_the_rejected),
    PlantedBug("table truncated too far", Drafts, "settle", _table_loses_an_accepted_one),
    PlantedBug("rejected drafts stay planned", Drafts, "settle", _planned_with_the_rejected),
    PlantedBug("rejected drafts count as service", Drafts, "settle", _served_with_the_rejected),
    PlantedBug("rejected drafts count as output", Drafts, "settle", _accepted_with_the_rejected),
    PlantedBug("drafts of a victim taken back again", Drafts, "settle", _settled_for_another_epoch),
    PlantedBug("blocks of drafts charged", Drafts, "_lengthen", _lengthen_charging),
    PlantedBug("stop amid a draft missed", Committer, "_accepted", _taken_past_the_end),
    PlantedBug("drafts borrow", Drafts, "_own_room", _borrowed_for),
    PlantedBug("drafts beyond a tenant's maximum", Drafts, "_own_room", _beyond_the_maximum),
    PlantedBug("drafts take what was promised", BlockBudget, "promised_by_tenant", _promised_to_nobody),
    PlantedBug("drafts pass the row's length", Drafts, "_offers", _offers_beyond_the_row),
    PlantedBug("victim keeps its guesses", LiveSequences, "requeue", _requeued_with_its_guesses),
)
