"""The exactness contract, op by op: a row has the same bits in any batch, slot and number of threads."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from octavo.kernels.contract import Floats, Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps

SIZE = 72  # heads of 24: no multiple of 16, so that padded vectors take part
HEAD = 24

RowOp = Callable[[Floats, np.ndarray], Floats]  # of rows and their positions


def _row_ops(ops: Ops, rng: np.random.Generator) -> dict[str, RowOp]:
    weight = rng.standard_normal((50, SIZE)).astype(np.float32)
    matrix = ops.matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
    bias = rng.standard_normal(50).astype(np.float32)
    gain, shift = rng.standard_normal((2, SIZE)).astype(np.float32)
    cos, sin = rng.standard_normal((2, 64, HEAD // 2)).astype(np.float32)
    return {
        "linear": lambda x, p: ops.linear(x, matrix),
        "linear with bias": lambda x, p: ops.linear(x, matrix, bias),
        "embed": lambda x, p: ops.embed(matrix, p % 50),
        "rms_norm": lambda x, p: ops.rms_norm(x, gain, 1e-5),
        "rms_norm by head": lambda x, p: ops.rms_norm(x, gain[:HEAD], 1e-5),
        "layer_norm": lambda x, p: ops.layer_norm(x, gain, shift, 1e-5),
        "rope": lambda x, p: ops.rope(x, p, cos, sin, HEAD),
        "partial rope": lambda x, p: ops.rope(x, p, cos[:, :4].copy(), sin[:, :4].copy(), HEAD),
        "gated silu": lambda x, p: ops.gated(x, x, "silu"),
        "gelu_tanh": lambda x, p: ops.activate(x, "gelu_tanh"),
        "gelu": lambda x, p: ops.activate(x, "gelu"),
        "add": lambda x, p: ops.add(x, x),
        "scale": lambda x, p: ops.scale(x, 1.7),
        "soft_cap": lambda x, p: ops.soft_cap(x, 0.5),
    }


@pytest.mark.parametrize("name", _row_ops(ReferenceOps(), np.random.default_rng(0)))
def test_rows_are_the_same_alone_and_in_every_batch(
    ops: Ops, name: str, threads: Callable[[int], None], rng: np.random.Generator
) -> None:
    op = _row_ops(ops, rng)[name]
    x = rng.standard_normal((40, SIZE)).astype(np.float32)
    positions = rng.integers(0, 64, 40).astype(np.int32)
    threads(1)
    alone = np.concatenate([op(x[i : i + 1].copy(), positions[i : i + 1].copy()) for i in range(40)])
    for count in (1, 2):
        threads(count)
        for rows in range(1, 41):
            first = (7 * rows) % (41 - rows)  # any slot: rows are shifted through the tile
            some = slice(first, first + rows)
            np.testing.assert_array_equal(op(x[some].copy(), positions[some].copy()), alone[some])


@pytest.mark.parametrize("name", _row_ops(ReferenceOps(), np.random.default_rng(0)))
def test_native_follows_the_reference(name: str, rng: np.random.Generator) -> None:
    x = rng.standard_normal((9, SIZE)).astype(np.float32)
    positions = rng.integers(0, 64, 9).astype(np.int32)
    given = _row_ops(NativeOps(), np.random.default_rng(1))[name](x, positions)
    wanted = _row_ops(ReferenceOps(), np.random.default_rng(1))[name](x, positions)
    np.testing.assert_allclose(given, wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("outputs, inputs", [(1, 1), (15, 3), (16, 8), (17, 33), (400, 64), (1000, 100)])
def test_the_product_is_right_and_row_independent_for_many_shapes(
    outputs: int, inputs: int, threads: Callable[[int], None], rng: np.random.Generator
) -> None:
    ops = NativeOps()
    weight = rng.standard_normal((outputs, inputs)).astype(np.float32)
    matrix = ops.matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
    x = rng.standard_normal((70, inputs)).astype(np.float32)
    threads(1)
    alone = np.concatenate([ops.linear(x[i : i + 1].copy(), matrix) for i in range(70)])
    np.testing.assert_allclose(alone, x.astype(np.float64) @ weight.T.astype(np.float64), atol=1e-4)
    for count in (2, 3):
        threads(count)
        for rows in (2, 3, 5, 8, 9, 17, 33, 70):
            np.testing.assert_array_equal(ops.linear(x[:rows].copy(), matrix), alone[:rows])


def test_the_product_is_one_chain_over_the_inputs(rng: np.random.Generator) -> None:
    # Exact in double: 12-bit values. A chain in another order would round elsewhere once 2**24 is passed.
    x = rng.integers(1, 4096, (1, 40)).astype(np.float32)
    weight = rng.integers(1, 4096, (3, 40)).astype(np.float32)
    ops = NativeOps()
    matrix = ops.matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
    expected = np.zeros(3, np.float32)
    for i in range(40):  # in double the product and the sum are exact; one rounding to float32: a fused step
        expected = (expected.astype(np.float64) + x[0, i].astype(np.float64) * weight[:, i]).astype(
            np.float32
        )
    np.testing.assert_array_equal(ops.linear(x, matrix)[0], expected)


def test_no_rows_give_no_rows(ops: Ops, rng: np.random.Generator) -> None:
    for op in _row_ops(ops, rng).values():
        assert op(np.zeros((0, SIZE), np.float32), np.zeros(0, np.int32)).shape[0] == 0


def test_take_is_contiguous_and_checked(ops: Ops) -> None:
    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    taken = ops.take(x, np.array([3, 0, 3], np.int32))
    assert taken.flags.c_contiguous
    np.testing.assert_array_equal(taken, x[[3, 0, 3]])
    with pytest.raises(IndexError):
        ops.take(x, np.array([4], np.int32))
