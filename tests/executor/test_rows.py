"""The executor's side of a plan: the order of its parts, where one row changes hands within a plan."""

from __future__ import annotations

import pytest

from octavo.executor.rows import Rows
from octavo.params import SamplerParams
from octavo.types import AdmittedRow, Fork, StepPlan, TableWrite


def admitted(row: int, seq_id: int, *tokens: int) -> AdmittedRow:
    return AdmittedRow(row, seq_id, tokens, len(tokens), len(tokens) + 4, SamplerParams(), seed=0, choice=0)


def plan(
    *, retired: tuple[int, ...] = (), rows: tuple[AdmittedRow, ...] = (), writes: tuple[TableWrite, ...] = ()
) -> StepPlan:
    return StepPlan(1, retired, rows, writes, (), (), ())


def test_a_row_retired_and_admitted_in_one_plan_belongs_to_the_new_sequence() -> None:
    rows = Rows(max_rows=2, context_length=16, block_size=4)
    rows.apply(plan(rows=(admitted(0, 1, 5, 6, 7),), writes=(TableWrite(0, 0, 3),)))
    rows.apply(plan(retired=(0,), rows=(admitted(0, 2, 8, 9),), writes=(TableWrite(0, 0, 4),)))
    assert rows[0].seq_id == 2
    assert rows.history(0).tolist() == [8, 9]
    assert rows.tables[0, 0] == 4


def test_a_row_retired_in_a_plan_can_be_the_child_of_its_fork() -> None:
    rows = Rows(max_rows=2, context_length=16, block_size=4)
    rows.apply(plan(rows=(admitted(0, 1, 5, 6, 7), admitted(1, 2, 8)), writes=(TableWrite(0, 0, 3),)))
    rows.apply(plan(retired=(1,)))
    rows.fork(Fork(parent_row=0, child_row=1, child_seq_id=3, choice=1))
    rows.append(1, 9)
    assert rows.history(1).tolist() == [5, 6, 7, 9]
    assert rows.history(0).tolist() == [5, 6, 7]
    assert rows.tables[1, 0] == 3
    assert (rows[1].seq_id, rows[1].choice) == (3, 1)


def test_a_row_admitted_before_it_was_retired_is_a_bug_that_is_noticed() -> None:
    rows = Rows(max_rows=1, context_length=16, block_size=4)
    rows.apply(plan(rows=(admitted(0, 1, 5),)))
    with pytest.raises(AssertionError, match="before it was retired"):
        rows.apply(plan(rows=(admitted(0, 2, 6),)))
