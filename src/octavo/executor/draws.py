"""The rows that a step samples, and the results.

    positions   | last known | d0 | d1 | d2 |            without drafts a row takes one token
    samples          s0        s1   s2   s3
    taken       s0 = d0: s1 is valid; s1 is not d1: stop. SamplingResult: s0 s1

A row whose prompt is pooled (`pooling.py`) is not sampled.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import msgspec

from octavo.executor.rows import Rows
from octavo.params import SamplerParams
from octavo.sampling.sampler import SampleFailure
from octavo.types import SampledToken, StepPlan


class Draw(msgspec.Struct, frozen=True):
    """A row, and the hidden rows `first`, first + 1, ... that its tokens are sampled from; the first token
    will be at `position`."""

    seq_id: int
    row: int
    first: int
    position: int
    drafts: tuple[int, ...]
    params: SamplerParams
    has_guide: bool  # a grammar may constrain it

    @property
    def count(self) -> int:
        """The largest possible number of tokens."""
        return 1 + len(self.drafts)

    def is_continued(self, place: int, token: int, stop_ids: frozenset[int]) -> bool:
        """Whether another token follows this one, the draw's `place`-th: the draft guessed it, and it does
        not end the output."""
        is_guessed = place < len(self.drafts) and self.drafts[place] == token
        return is_guessed and token not in self.params.end_ids(stop_ids)


@dataclass(slots=True)
class SamplingResult:
    """The samples of a step, by sequence. A sequence that failed has none."""

    samples: dict[int, tuple[SampledToken, ...]] = field(default_factory=dict)
    failed: dict[int, SampleFailure] = field(default_factory=dict)
    num_forced: int = 0  # of the samples, those that grammars forced
    in_grammar: frozenset[int] = frozenset()  # sequences that a grammar constrains now


@dataclass(frozen=True, slots=True)
class DeviceDraws:
    """The draws that a device leaves to the host, and how to collect its own."""

    left: Sequence[Draw]
    collect: Callable[[SamplingResult], None] | None = None  # waits for the device's tokens and adds them


def draws_of(plan: StepPlan, rows: Rows) -> list[Draw]:
    """A draw for every chunk that is sampled, and for every fork of one."""
    draws, end = [], 0
    started: dict[int, Draw] = {}  # by the chunk's row
    for chunk in plan.ended:
        end += chunk.stop - chunk.logits_from
        if chunk.num_samples and rows[chunk.row].params.pooling is None:
            position = chunk.stop - len(chunk.drafts)
            started[chunk.row] = _draw(rows, chunk.row, end - chunk.num_samples, position, chunk.drafts)
            draws.append(started[chunk.row])
    for fork in plan.forks:
        parent = started[fork.parent_row]
        draws.append(_draw(rows, fork.child_row, parent.first, parent.position))
    return draws


def _draw(rows: Rows, row: int, first: int, position: int, drafts: tuple[int, ...] = ()) -> Draw:
    entry = rows[row]
    return Draw(entry.seq_id, row, first, position, drafts, entry.params, entry.guide is not None)
