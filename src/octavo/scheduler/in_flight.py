"""What a plan in flight changes when it is committed."""

from __future__ import annotations

import msgspec

from octavo.scheduler.sequence import Sequence


class InFlightChunk(msgspec.Struct):
    """One sequence's stake in a plan that is not committed yet."""

    sequence: Sequence
    num_preemptions: int  # how often the sequence had been preempted when it was planned
    stop: int  # what num_computed becomes
    num_samples: int
    drafts: tuple[int, ...] = ()  # guesses at the last positions before `stop`
    is_void: bool = False  # it counts on a step that came to nothing: nothing of it is taken

    @property
    def is_current(self) -> bool:
        """False where its sequence was preempted since: its blocks were dropped, and publish nothing."""
        return self.num_preemptions == self.sequence.preemptions
