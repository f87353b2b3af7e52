"""What a plan moves inside the pool comes before what it moves out of it or into it; what a step took."""

from __future__ import annotations

import numpy as np
import pytest
from tests.tiny import CONTEXT, EOS, VOCAB, tiny_model

from octavo.executor.forward import BlockMover, HostForward
from octavo.executor.runner import Runner, RunnerConfig, kv_shape
from octavo.kernels.contract import SlotMemory
from octavo.kernels.native_ops import NativeOps
from octavo.params import SamplerParams
from octavo.types import AdmittedRow, BlockCopy, Chunk, Move, StepPlan, StepWay, TableWrite, Transfer


class Looking:
    """A transfer worker that notes what a block holds when its transfer begins."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def serve(self, blocks: BlockMover) -> None:
        self._blocks = blocks

    def slot_memory(self, anchor: tuple[int, int] | None = None) -> SlotMemory:
        return SlotMemory(None, 0, 0, -1, 1, 1, 0)

    def begin(self, transfers: tuple[Transfer, ...]) -> None:
        self.seen += [np.array(self._blocks.read_block(transfer.block)) for transfer in transfers]


def test_a_block_that_has_moved_is_stored_as_what_it_is_now() -> None:
    ops, looking = NativeOps("f32"), Looking()
    config, model = RunnerConfig(16, 2, CONTEXT, frozenset([EOS]), VOCAB), tiny_model(ops)
    forward = HostForward(model, ops, kv_shape(model, 16), 8)
    runner = Runner(forward, config, looking)  # type: ignore[arg-type]
    forward.pool.data[5] = 7
    store = Transfer(1, 2, 0, b"n" * 32, Move.STORE)
    runner.run(StepPlan(1, (), (), (), (BlockCopy(5, 2),), (), (), (store,), ((4, 8),)))
    assert (looking.seen[0] == 7).all()
    assert not forward.pool.data[5].any(), "the tail was not given back"


@pytest.mark.parametrize("way", [None, *StepWay])
def test_the_time_of_the_first_step_of_a_size_is_no_measurement(
    way: StepWay | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ops = NativeOps("f32")
    config, model = RunnerConfig(16, 2, CONTEXT, frozenset([EOS]), VOCAB), tiny_model(ops)
    forward = HostForward(model, ops, kv_shape(model, 16), 8)
    monkeypatch.setattr(forward, "way", lambda: way)
    admitted = AdmittedRow(0, 7, (5, 6), 2, 9, SamplerParams(temperature=0.0), 0, 0)
    plan = StepPlan(1, (), (admitted,), (TableWrite(0, 0, 3),), (), (Chunk(7, 0, 0, 2, 1, 1),), ())
    result = Runner(forward, config).run(plan)
    assert result.way is way
    assert len(result.samples[7]) == 1
    assert (result.seconds > 0) == (way is not StepWay.FIRST)
