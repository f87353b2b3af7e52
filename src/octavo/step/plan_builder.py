"""A plan in the making: the changes since the last plan, gathered between two calls of `finish`.

Rows are permanent while a sequence runs. Changes made by a commit (a row retired, an entry swapped for its
canonical block) wait here for the next plan, which is safe because plans run in order.
"""

from __future__ import annotations

from octavo.memory.ledger import Reservation
from octavo.types import AdmittedRow, BlockCopy, Chunk, Fork, StepPlan, TableWrite, TokenWrite, Transfer


class PlanBuilder:
    """Collects the fields of the next StepPlan."""

    def __init__(self) -> None:
        self._retired: list[int] = []
        self._admitted: list[AdmittedRow] = []
        self._writes: list[TableWrite] = []
        self._tokens: list[TokenWrite] = []
        self._copies: list[BlockCopy] = []
        self.chunks: list[Chunk] = []
        self.forks: list[Fork] = []
        self.transfers: list[Transfer] = []
        self._discarded: list[tuple[int, int]] = []
        self._step_id = 0
        self.has_cold = False  # a chunk has cold blocks

    def admit(self, row: AdmittedRow, blocks: list[int]) -> None:
        """A sequence gets a row, with its adopted blocks."""
        self._admitted.append(row)
        self.write_table(row.row, 0, blocks)

    def write_table(self, row: int, first_index: int, blocks: list[int] | tuple[int, ...]) -> None:
        """Set the entries from `first_index` on to `blocks`."""
        self._writes += [TableWrite(row, first_index + i, block) for i, block in enumerate(blocks)]

    def write_token(self, row: int, index: int, token: int) -> None:
        """A beam continues in its row, with this token as its last."""
        self._tokens.append(TokenWrite(row, index, token))

    def reserve(self, row: int, reservation: Reservation) -> None:
        """A table grew, or a block of it was replaced."""
        self.write_table(row, reservation.first_index, reservation.blocks)
        self._copies += reservation.copies

    def copy(self, copy: BlockCopy) -> None:
        """Copy a block, after the copies added before."""
        self._copies.append(copy)

    def move(self, copies: tuple[BlockCopy, ...], discarded: tuple[int, int]) -> None:
        """The pool shrank: blocks moved, and those of the range `discarded` are unused."""
        self._copies += copies
        self._discarded.append(discarded)

    def give_back(self, runs: list[tuple[int, int]]) -> None:
        """Return the memory of these blocks. Call it last, when the plan takes no more blocks: it happens
        after the plan's copies."""
        self._discarded += runs

    def keep(self, num_blocks: int) -> None:
        """The pool grew: blocks before `num_blocks` are in use, and keep their memory."""
        kept = ((max(first, num_blocks), last) for first, last in self._discarded)
        self._discarded = [(first, last) for first, last in kept if first < last]

    def retire(self, row: int) -> None:
        """A sequence leaves its row. Its pending changes are dropped: the next one must not inherit them."""
        self._writes = [write for write in self._writes if write.row != row]
        self._tokens = [write for write in self._tokens if write.row != row]
        if any(admitted.row == row for admitted in self._admitted):  # admitted and dropped between two plans
            self._admitted = [admitted for admitted in self._admitted if admitted.row != row]
        else:
            self._retired.append(row)

    def finish(self) -> StepPlan | None:
        """Return the plan and start a new one; None (keeping all) if it would compute and move nothing."""
        if not self.chunks:
            assert not self.forks
            if not (self.transfers or self._copies or self._discarded):
                return None
        self._step_id += 1
        plan = StepPlan(
            self._step_id,
            tuple(self._retired),
            tuple(self._admitted),
            tuple(self._writes),
            tuple(self._copies),
            tuple(self.chunks),
            tuple(self.forks),
            tuple(self.transfers),
            tuple(self._discarded),
            tuple(self._tokens),
            self.has_cold,
        )
        self.has_cold = False
        self._tokens = []
        self._retired, self._admitted, self._writes, self._copies = [], [], [], []
        self.chunks, self.forks, self.transfers, self._discarded = [], [], [], []
        return plan
