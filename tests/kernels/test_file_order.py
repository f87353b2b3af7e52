"""Matrices written in another kind are the blocks that the specification and the `gguf` package say."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from tests.blocks import dequantised, floats_tensor, random_tensor

from octavo.kernels.file_order import encoded
from octavo.kernels.integer_reference import requantised

SOURCES = ["Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_blocks_of_another_kind_equal_the_specification(source, kind):
    raw = random_tensor(source, 37, 512, np.random.default_rng(1))
    expected = raw.data if source == kind else requantised(raw, kind).data
    assert encoded(raw, kind).tobytes() == expected.tobytes()


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "F16", "BF16", "F32"])
def test_blocks_of_floats_equal_the_gguf_packages(kind):
    values = np.random.default_rng(2).normal(0, 0.1, (33, 96)).astype(np.float32)
    theirs = gguf.quants.quantize(values, gguf.GGMLQuantizationType[kind])
    assert encoded(floats_tensor(values), kind).tobytes() == theirs.tobytes()


@pytest.mark.parametrize("source", SOURCES)
def test_floats_of_a_quantised_matrix_equal_the_gguf_packages(source):
    raw = random_tensor(source, 20, 256, np.random.default_rng(3))
    np.testing.assert_array_equal(encoded(raw, "F32").view(np.float32).reshape(20, 256), dequantised(raw))
