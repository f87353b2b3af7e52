"""Changes that a plan in flight makes when it is committed."""

from __future__ import annotations

import msgspec

from octavo.scheduler.sequence import Sequence


class InFlightChunk(msgspec.Struct):
    """One sequence's chunk in a plan that is not committed yet."""

    sequence: Sequence
    num_preemptions: int  # of the sequence, at planning
    stop: int  # what num_computed becomes
    num_samples: int
    drafts: tuple[int, ...] = ()  # guesses at the last positions before `stop`
    is_void: bool = False  # a step that it depends on failed: discarded

    @property
    def is_current(self) -> bool:
        """False if its sequence was preempted since: its blocks were dropped, and it publishes nothing."""
        return self.num_preemptions == self.sequence.preemptions
