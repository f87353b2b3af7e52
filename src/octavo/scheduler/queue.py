"""The queue of waiting sequences, by rank, and the register of names that running sequences are computing."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from octavo.scheduler.sequence import Sequence


class WaitingQueue:
    """Waiting sequences by (priority, arrival). A preempted one returns to its old place. O(n) changes, n
    bounded."""

    def __init__(self) -> None:
        self.line: list[Sequence] = []  # changed only by `add` and `remove`

    def __len__(self) -> int:
        return len(self.line)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self.line)

    def __contains__(self, sequence: object) -> bool:
        return sequence in self.line

    @property
    def first(self) -> Sequence:
        """The best-ranked sequence; the queue is not empty."""
        return self.line[0]

    def add(self, sequence: Sequence) -> None:
        """Insert by rank. No follower lends priority to a waiting sequence, so its rank does not change."""
        sequence.give_back()
        bisect.insort(self.line, sequence, key=lambda waiting: waiting.rank)

    def remove(self, sequence: Sequence) -> None:
        """Remove a sequence that is in the queue."""
        self.line.remove(sequence)


class NamesInProgress:
    """The running sequence that computes the block of a given name, if any.

    A sequence that needs such a block next waits for it instead of computing it again. Only running sequences
    are registered: a preempted or cancelled one is removed, and the followers that waited for it are free in
    the next step.
    """

    def __init__(self) -> None:
        self.computing: dict[bytes, Sequence] = {}

    def begin(self, sequence: Sequence) -> None:
        """The sequence was admitted: it will compute every full block of its known tokens that it did not
        adopt."""
        assert sequence.table is not None
        for name in sequence.chain.names[sequence.table.num_published :]:
            self.computing.setdefault(name, sequence)

    def end(self, sequence: Sequence, names: list[bytes]) -> None:
        """These names are published, or will not be: remove those of the sequence."""
        for name in names:
            if self.computing.get(name) is sequence:
                del self.computing[name]

    def leader_of(self, name: bytes) -> Sequence | None:
        """The running sequence that will publish `name`, if any."""
        return self.computing.get(name)

    def sequences(self) -> set[Sequence]:
        """All registered sequences: for checks."""
        return set(self.computing.values())
