"""Shared by the kernels' tests: both backends, tensors from arrays, and small steps over a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from octavo import _native
from octavo.kernels.contract import Batch, Floats, KvPool, KvShape, Ops, RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.reference import ReferenceOps


@pytest.fixture(params=[NativeOps, ReferenceOps], ids=["native", "reference"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return request.param()


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(20240611)


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of threads; put back afterwards."""
    before = _native.num_threads()
    yield _native.set_num_threads
    _native.set_num_threads(before)


@pytest.fixture
def raw() -> Callable[[Floats], RawTensor]:
    """A float32 array as a file would hold it."""

    def make(array: Floats) -> RawTensor:
        data = np.ascontiguousarray(array, np.float32)
        return RawTensor("w", "F32", data.shape, data.reshape(-1).view(np.uint8))

    return make


@pytest.fixture
def batch() -> Callable[..., Batch]:
    """A step from (start, length, block table) per chunk."""

    def make(*chunks: tuple[int, int, list[int]]) -> Batch:
        lengths = [length for _, length, _ in chunks]
        positions = np.concatenate([np.arange(start, start + length) for start, length, _ in chunks])
        tables = np.full((len(chunks), max(len(table) for _, _, table in chunks)), -1, np.int32)
        for c, (_, _, table) in enumerate(chunks):
            tables[c, : len(table)] = table
        return Batch(
            tokens=np.zeros(sum(lengths), np.int32),
            positions=positions.astype(np.int32),
            starts=np.array([start for start, _, _ in chunks], np.int32),
            offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            tables=tables,
            logit_rows=np.zeros(0, np.int32),
        )

    return make


@pytest.fixture
def poisoned_pool() -> Callable[..., KvPool]:
    """A pool in which every number, or scale of one, is NaN until it is stored."""

    def make(
        ops: Ops,
        num_blocks: int,
        heads: int = 2,
        size: int = 16,
        block: int = 16,
        layers: int = 2,
        kind: str = "f32",
    ) -> KvPool:
        pool = ops.allocate_kv(KvShape(layers, heads, size, block, kind), num_blocks)
        pool.data[...] = 0xFF
        return pool

    return make
