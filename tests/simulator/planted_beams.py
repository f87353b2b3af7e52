"""The ways in which beam search is broken on purpose; `planted` lists them and breaks one at a time."""

from __future__ import annotations

from octavo.memory.holders import Holder, HolderKind
from octavo.params import BeamParams
from octavo.scheduler import beams
from octavo.scheduler.beam_rows import BeamRows
from octavo.scheduler.beams import Beam, BeamGroup, PathStep
from octavo.scheduler.planner import Planner
from octavo.scheduler.sequence import Sequence
from octavo.scheduler.victims import Victims
from octavo.types import FinishReason, Request, Update, Usage
from octavo.units import blocks_for


def gather_nobody(self: BeamRows, group: BeamGroup[Sequence]) -> Sequence:
    """The leader goes back to the queue, its beams run on."""
    return group.leader


def gather_half(self: BeamRows, group: BeamGroup[Sequence]) -> Sequence:
    """The last beam keeps its row and its blocks while the others wait."""
    last = group.beams.pop() if len(group.beams) > 1 else None
    leader = _GATHER(self, group)
    group.beams += [last] if last is not None else []
    return leader


def drop_leaking(self: BeamRows, group: BeamGroup[Sequence], beam: Beam[Sequence]) -> None:
    """A beam that was passed over holds its blocks."""
    if beam.sequence is not None:
        stray, ledger = Holder(HolderKind.SEQUENCE, beam.sequence.request.tenant), self._context.ledger
        ledger.fork(beam.sequence.table or ledger.open(Holder(HolderKind.SEQUENCE)), stray)
    _DROP(self, group, beam)


def begin_without_rows(self: BeamRows, sequence: Sequence, params: BeamParams) -> None:
    """A group is admitted where one row is free."""
    _BEGIN(self, sequence, params)
    sequence.forks_left = 0


def cancel_choice_twice(self: BeamRows, group: BeamGroup[Sequence], choice: int) -> list[Update]:
    """It is told that the choice was cancelled, and later what came of it."""
    return [Update(group.request.request_id, choice, (), Usage(0, 0, 0, 0), FinishReason.CANCELLED)]


def blocks_of_one_beam(request: Request, block_size: int) -> int:
    """The worst case of a group is that of one beam."""
    return blocks_for(len(request.prompt) + request.max_tokens - 1, block_size)


def share_one_too_many(one: PathStep | None, other: PathStep | None) -> int:
    """The first token that differs counts as shared."""
    return _SHARED(one, other) + 1


def penalised_never(score: float, length: int, params: BeamParams) -> float:
    """Hypotheses of all lengths are compared by their sums."""
    return score


def ready_ahead(self: Planner) -> tuple[list[Sequence], list[Sequence], list[Sequence]]:
    """A beam continues by the sample that is in flight, as if it were its own."""
    continuing, prompts, cold = _READY(self)
    for s in self._live.running:
        if s.pending and s.group is not None and s.num_planned < s.known < s.max_length:
            continuing.append(s)
    return continuing, prompts, cold


def victim_in_the_group(self: Victims, winner: Sequence) -> list[Sequence]:
    """A beam without a block takes those of another beam."""
    siblings = [] if winner.group is None else winner.group.sequences()
    return [s for s in siblings if s is not winner][:1] or _BEHIND(self, winner)


def advance_with_one_too_few(self: BeamGroup[Sequence]) -> list[beams.Child[Sequence]]:
    """The last of the candidates of each beam is not looked at."""
    for beam in self.beams:
        beam.candidates = (beam.candidates or ())[: self.params.width - 1]
    return _ADVANCE(self)


_GATHER, _DROP, _BEGIN = BeamRows.gather, BeamRows._drop, BeamRows.begin
_SHARED = beams.shared_length
_READY, _BEHIND, _ADVANCE = Planner.ready, Victims.behind, BeamGroup.advance
