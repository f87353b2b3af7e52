"""What a plan in flight changes when it is committed."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.scheduler.sequence import Sequence


@dataclass(slots=True)  # freezing would double its cost
class InFlightChunk:
    """One sequence's stake in a plan that is not committed yet."""

    sequence: Sequence
    epoch: int
    stop: int  # what num_computed becomes
    num_samples: int
    drafts: tuple[int, ...] = ()  # guesses at the last positions before `stop`
