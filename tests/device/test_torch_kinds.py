"""The reference over a device's pool: in float32 the bits of the processor's pool, near them otherwise."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from tests.device.over_torch import CPU
from tests.model.chunks import run_chunks
from tests.tiny import random_prompt, tiny_model

from octavo.device.layout import allocate_pool
from octavo.device.reference import TensorBlocks
from octavo.kernels.contract import KvShape
from octavo.kernels.reference import ReferenceOps

pytestmark = pytest.mark.full

# Largest error of a logit; the largest logit is 14. The processor's own bf16 and int8 err by 0.15 and 0.37.
TOLERANCES = {"fp16": 0.03, "bf16": 0.2, "int8": 0.5, "fp8": 3.0}


class OverTensors(ReferenceOps):
    """Pools are a device's, and hold K and V as `kv` says."""

    def __init__(self, kv: str) -> None:
        super().__init__("f32")
        self.kv = kv

    def allocate_kv(self, shape: KvShape, num_blocks: int) -> TensorBlocks:  # type: ignore[override]
        pool = allocate_pool(dataclasses.replace(shape, kind=self.kv), num_blocks, CPU)
        pool.data[...] = 0xFF  # NaN, also as a scale
        return TensorBlocks(pool)


def logits_of(ops: ReferenceOps, lengths: list[int]) -> np.ndarray:
    tokens = random_prompt(np.random.default_rng(3), 41)
    return run_chunks(ops, tiny_model(ops), tokens, lengths)


def test_in_float32_a_tensor_holds_what_an_array_holds() -> None:
    expected = logits_of(ReferenceOps("f32"), [41])
    for lengths in ([41], [7, 16, 1, 17], [20] + [1] * 21):
        assert logits_of(OverTensors("f32"), lengths).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kv", TOLERANCES)
def test_smaller_kinds_of_kv_stay_near_and_chunkings_are_equal(kv: str) -> None:
    whole = logits_of(OverTensors(kv), [41])
    error = np.abs(whole - logits_of(ReferenceOps("f32"), [41])).max()
    assert 1e-5 < error < TOLERANCES[kv], "below: it is not held in this kind"
    for lengths in ([7, 16, 1, 17], [20] + [1] * 21):
        assert logits_of(OverTensors(kv), lengths).tobytes() == whole.tobytes()
