"""Rows on the device under random lives of the real scheduler: the simulator's oracle looks at each step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.simulator import lives
from tests.simulator.lives import drive

from octavo.device.rows import DeviceRows, carry
from octavo.device.sampler import TorchSampler, params_of
from octavo.errors import ConfigError
from octavo.executor.batch import shape_of
from octavo.params import SamplerParams
from octavo.sim.oracle import OracleExecutor
from octavo.types import AdmittedRow, Fork, StepPlan, StepResult, TableWrite

pytestmark = pytest.mark.full

CPU = torch.device("cpu")
SEEN: list[int] = []


class WithDeviceRows(OracleExecutor):
    """The oracle, beside rows that are changed as the device's runner changes them."""

    def __init__(self, *given: object, **named: object) -> None:
        super().__init__(*given, **named)  # type: ignore[arg-type]
        self.on_device = DeviceRows(64, 2048, self.block_size, CPU)

    def run(self, plan: StepPlan) -> StepResult:
        shape = shape_of(plan.chunks)
        indices, values = carry(self.on_device.written_by(plan).arrays(), CPU)
        assert len(set(indices.tolist())) == indices.numel(), "writes have no order"
        self.on_device.state[indices.long()] = values
        self._chunks = iter(zip(shape.offsets[:-1], shape.offsets[1:], strict=True))
        table_rows = shape.table_rows[shape.token_chunks]
        self._tokens = self.on_device.tokens.numpy()[table_rows, shape.positions].tolist()
        result = super().run(plan)
        rows = {chunk.row: chunk.stop - len(chunk.drafts) for chunk in plan.chunks if chunk.num_samples}
        for fork in plan.forks:
            self.on_device.fork(fork)
            rows[fork.child_row] = rows[fork.parent_row]
        for row, position in rows.items():
            admitted = self.rows[row].admitted
            if admitted.params.beams is None:
                tokens = torch.tensor([s.token for s in result.samples[admitted.seq_id]])
                places = torch.arange(position, position + tokens.numel())
                TorchSampler(self.on_device).append(torch.full_like(tokens, row), places, tokens)
        return result

    def _write(self, chunk) -> None:  # type: ignore[no-untyped-def]
        """Before the chunk runs: what the device would compute it from."""
        row = self.rows[chunk.row]
        first, last = next(self._chunks)
        known = [*row.tokens[: chunk.stop - len(chunk.drafts)], *chunk.drafts]
        assert self._tokens[first:last] == known[chunk.start : chunk.stop]
        assert self.on_device.tables[chunk.row, : len(row.blocks)].tolist() == row.blocks
        SEEN.append(chunk.length)
        super()._write(chunk)


@pytest.mark.parametrize("overlap", [0, 1])
def test_every_step_of_random_lives_reads_the_tokens_and_tables_that_it_should(
    overlap: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lives, "OracleExecutor", WithDeviceRows)
    SEEN.clear()
    for seed in range(6):
        drive(seed, overlap)
    assert len(SEEN) > 1000
    assert max(SEEN) > 20


def test_a_plan_that_forgets_a_write_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lives, "OracleExecutor", WithDeviceRows)
    monkeypatch.setattr(DeviceRows, "fork", lambda self, fork: None)
    with pytest.raises(AssertionError):
        drive_all(8)


def drive_all(count: int) -> None:
    for seed in range(count):
        drive(seed, 0)


def rows_with(params: SamplerParams, seed: int) -> DeviceRows:
    rows = DeviceRows(2, 32, 16, CPU)
    admitted = AdmittedRow(1, 9, (5, 6, 7), 3, 20, params, seed, 2)
    plan = StepPlan(1, (), (admitted,), (TableWrite(1, 0, 3), TableWrite(1, 1, 4)), (), (), ())
    indices, values = carry(rows.written_by(plan).arrays(), CPU)
    rows.state[indices.long()] = values
    return rows


@pytest.mark.parametrize("seed", [0, 1, -1, 2**63 - 1, -(2**63), 0xFFFF_FFFF, 1 << 32])
def test_drawing_parameters_arrive_bit_for_bit(seed: int) -> None:
    params = SamplerParams(temperature=0.7, top_p=0.9, min_p=0.05, top_k=40)
    rows = rows_with(params, seed)
    drawn = params_of(rows.drawn[1:])
    assert drawn.temperature.tolist() == np.float32([0.7]).tolist()
    assert (drawn.top_p.item(), drawn.min_p.item()) == (0.9, 0.05), "the host compares in float64"
    assert (drawn.top_k.item(), drawn.choice.item()) == (40, 2)
    assert (int(drawn.seed_high.item()) << 32 | int(drawn.seed_low.item())) == seed % 2**64


def test_a_fork_is_its_parent_but_for_the_choice_and_grows_alone() -> None:
    rows = rows_with(SamplerParams(), 5)
    rows.fork(Fork(1, 0, 10, 1))
    assert rows.tokens[0].tolist() == rows.tokens[1].tolist()
    assert rows.tables[0].tolist() == rows.tables[1].tolist()
    assert params_of(rows.drawn).choice.tolist() == [1, 2]
    TorchSampler(rows).append(torch.tensor([0]), torch.tensor([3]), torch.tensor([9]))
    assert (rows.tokens[0, 3], rows.tokens[1, 3]) == (9, 0)


def test_a_token_behind_the_context_and_one_that_is_none_are_not_appended() -> None:
    rows = rows_with(SamplerParams(), 5)
    before = rows.state.clone()
    TorchSampler(rows).append(torch.tensor([0, 1]), torch.tensor([32, 4]), torch.tensor([9, -1]))
    assert torch.equal(rows.state, before)


def test_more_rows_than_indices_are_refused_before_anything_is_taken() -> None:
    with pytest.raises(ConfigError, match=r"4,096 sequences \(max_seqs\) of 10,000,000 tokens"):
        DeviceRows(4096, 10_000_000, 16, CPU)


def test_every_array_of_a_step_is_aligned_as_kernels_are_compiled_for() -> None:
    arrays = [np.arange(size, dtype=np.int32) for size in (3, 1, 0, 4, 5, 17)]
    carried = list(carry(arrays, CPU))
    assert [x.tolist() for x in carried] == [x.tolist() for x in arrays]
    assert {(x.data_ptr() - carried[0].data_ptr()) % 16 for x in carried} == {0}
