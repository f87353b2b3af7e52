"""Rows: the executor's state of every running sequence, kept in arrays so that a plan carries only changes.

    row r    tokens[r]  [ prompt ........ | output .. ]   length[r] tokens; grows with every sample, before
                                                          the scheduler sees it
             tables[r]  [ 7 | 2 | 9 | 4 | ...         ]   block ids, written by the plans' table writes

Only plans change a row. It does not know the ledger: a block id is a number here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from octavo.kernels.contract import Doubles, Ints
from octavo.params import SamplerParams
from octavo.sampling.grammars import Grammars
from octavo.sampling.guides import Guide, guide_of
from octavo.sampling.masks import Masks, masks_of
from octavo.sampling.sampler import is_plain
from octavo.types import AdmittedRow, Fork, StepPlan
from octavo.units import blocks_for


@dataclass(slots=True)
class Row:
    """The parameters of a row's sequence, and how many tokens it has."""

    seq_id: int
    num_prompt: int
    params: SamplerParams
    masks: Masks | None  # of its params
    seed: int
    choice: int
    length: int
    guide: Guide | None  # what constrains its output, in its current state
    plain_from: float  # the number of output tokens from which on the raw logits' argmax suffices
    host_knows_constraint: bool = (
        False  # the host knows that a grammar constrains it, so that it plans nothing ahead of it
    )
    hidden_sum: Doubles | None = None  # (E,): of the first `num_summed` hidden rows, for their mean
    num_summed: int = 0
    has_missed: bool = False  # a step with positions of it failed: later positions are invalid

    @property
    def is_plain(self) -> bool:
        """True if the argmax of its raw logits suffices, among tokens that its guide allows."""
        return self.length - self.num_prompt >= self.plain_from

    @property
    def is_constrained(self) -> bool:
        """True if its guide forbids tokens."""
        return self.guide is not None and not self.guide.is_free


class Rows:
    """At most R rows of at most `context_length` tokens. Untouched pages of the arrays cost nothing."""

    def __init__(
        self, max_rows: int, context_length: int, block_size: int, grammars: Grammars | None = None
    ) -> None:
        self._grammars = grammars
        self.block_size = block_size
        self.tokens: Ints = np.zeros((max_rows, context_length), np.int32)  # (R, context)
        self.tables: Ints = np.zeros(
            (max_rows, blocks_for(context_length, block_size)), np.int32
        )  # (R, blocks)
        self._rows: list[Row | None] = [None] * max_rows

    def __getitem__(self, row: int) -> Row:
        found = self._rows[row]
        assert found is not None, f"row {row} is empty"
        return found

    def apply(self, plan: StepPlan) -> None:
        """Retire, admit, write tokens, write tables: in this order."""
        for row in plan.retired:
            assert self._rows[row] is not None, f"row {row} is retired twice"
            self._rows[row] = None
        for admitted in plan.admitted:
            self._admit(admitted)
        for said in plan.token_writes:
            assert said.index == self[said.row].length, "a beam's token is not the next one of its row"
            self.append(said.row, said.token)
        for write in plan.table_writes:
            self.tables[write.row, write.index] = write.block

    def fork(self, fork: Fork) -> None:
        """Copy the parent's row to the child's: tokens, table, history. Before the step samples."""
        parent = self[fork.parent_row]
        assert self._rows[fork.child_row] is None
        length = parent.length
        self.tokens[fork.child_row, :length] = self.tokens[fork.parent_row, :length]
        end = blocks_for(length, self.block_size)
        self.tables[fork.child_row, :end] = self.tables[fork.parent_row, :end]
        self._rows[fork.child_row] = Row(
            fork.child_seq_id,
            parent.num_prompt,
            parent.params,
            parent.masks,
            parent.seed,
            fork.choice,
            length,
            None if parent.guide is None else parent.guide.copy(),
            parent.plain_from,
            parent.host_knows_constraint,
        )

    def append(self, row: int, token: int) -> None:
        """Append a sampled token. The last one of a full context has no position and is not kept."""
        entry = self[row]
        if entry.length < self.tokens.shape[1]:
            self.tokens[row, entry.length] = token
            entry.length += 1

    def history(self, row: int) -> Ints:
        """All tokens of the row, a view: (length,)."""
        return self.tokens[row, : self[row].length]

    def clear(self) -> None:
        """Forget every row."""
        self._rows = [None] * len(self._rows)

    def _admit(self, admitted: AdmittedRow) -> None:
        assert self._rows[admitted.row] is None, f"row {admitted.row} is admitted before it was retired"
        length, params = len(admitted.tokens), admitted.params
        guide = guide_of(params, self._grammars, admitted.tokens[admitted.num_prompt :])
        self.tokens[admitted.row, :length] = admitted.tokens
        self._rows[admitted.row] = Row(
            admitted.seq_id,
            admitted.num_prompt,
            params,
            masks_of(params),
            admitted.seed,
            admitted.choice,
            length,
            guide,
            params.min_tokens if is_plain(params, params.min_tokens) else math.inf,
            guide is not None and guide.is_constrained,
        )
