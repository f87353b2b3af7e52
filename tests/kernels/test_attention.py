"""Promises of attention over block tables: right, and the same to the bit however the context was made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from tests.kernels.attention_bench import dense, random_qkv, run

from octavo import _native
from octavo.kernels.contract import AttentionSpec, Batch, KvPool, KvShape, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block, float_views
from octavo.kernels.reference import ReferenceOps

Steps = Callable[..., Batch]
Pools = Callable[..., KvPool]

SPECS = [
    AttentionSpec(0.25),
    AttentionSpec(0.25, window=20),
    AttentionSpec(0.25, window=300),
    AttentionSpec(0.5, soft_cap=3.0),
    AttentionSpec(0.5, window=1),
]
SPEC_NAMES = ["plain", "narrow window", "wide window", "soft cap", "only itself"]


@pytest.mark.parametrize("spec", SPECS, ids=SPEC_NAMES)
def test_it_is_the_softmax(ops: Ops, spec: AttentionSpec, batch: Steps, poisoned_pool: Pools, rng) -> None:
    tokens = 530  # three partitions, the last one short
    q, k, v = random_qkv(rng, tokens)
    pool = poisoned_pool(ops, 40)
    table = rng.permutation(40).tolist()
    out = run(ops, pool, batch, table, [0, tokens], (q, k, v), spec)
    expected = dense(q.reshape(tokens, 6, 16), k.reshape(tokens, 2, 16), v.reshape(tokens, 2, 16), spec)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, atol=2e-6)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize(
    "size, heads, kv_heads", [(8, 1, 1), (40, 2, 2), (64, 9, 3), (128, 8, 1), (256, 3, 3)]
)
def test_every_shape_is_right(
    block: int, size: int, heads: int, kv_heads: int, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    tokens, ops, spec = 75, NativeOps(), AttentionSpec(size**-0.5)
    qkv = random_qkv(rng, tokens, heads, kv_heads, size)
    pool = poisoned_pool(ops, 5, kv_heads, size, block)
    out = run(ops, pool, batch, [4, 1, 0, 3, 2], [0, 60, 61, tokens], qkv, spec)
    expected = dense(*(x.reshape(tokens, -1, size) for x in qkv), spec)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, atol=2e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 5, 7, 8, 11, 40])
def test_every_group_size_is_right(heads: int, batch: Steps, poisoned_pool: Pools, rng) -> None:
    tokens, ops, spec = 20, NativeOps(), AttentionSpec(0.25)
    qkv = random_qkv(rng, tokens, heads, 1)
    out = run(ops, poisoned_pool(ops, 2, heads=1), batch, [1, 0], [0, tokens], qkv, spec)
    expected = dense(*(x.reshape(tokens, -1, 16) for x in qkv), spec)
    np.testing.assert_allclose(out.reshape(expected.shape), expected, atol=2e-6)


@pytest.mark.parametrize("spec", SPECS, ids=SPEC_NAMES)
def test_chunks_blocks_threads_and_unused_slots_change_no_bit(
    ops: Ops, spec: AttentionSpec, batch: Steps, poisoned_pool: Pools, threads: Callable[[int], None], rng
) -> None:
    tokens = 275
    qkv = random_qkv(rng, tokens)
    clean = ops.allocate_kv(KvShape(2, 2, 16, 16), 20)
    threads(1)
    whole = run(ops, clean, batch, list(range(20)), [0, tokens], qkv, spec)
    assert np.isfinite(whole).all()
    for count, cuts in [
        (2, [0, 1, 2, 18, 250, 256, 257, 270, tokens]),
        (1, [0, 100, 200, tokens]),
        (2, [0, 260, *range(261, tokens + 1)]),
    ]:
        threads(count)
        table = rng.permutation(25)[:20].tolist()
        out = run(ops, poisoned_pool(ops, 25), batch, table, cuts, qkv, spec)
        np.testing.assert_array_equal(out, whole)


def test_sequences_in_one_step_do_not_touch_each_other(
    ops: Ops, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    spec = AttentionSpec(0.25)
    lengths, tables = [17, 1, 40], [[7, 2], [5], [0, 6, 1]]
    parts = [random_qkv(rng, length) for length in lengths]
    alone = [
        run(ops, poisoned_pool(ops, 8), batch, table, [0, length], qkv, spec)
        for length, table, qkv in zip(lengths, tables, parts, strict=True)
    ]
    pool = poisoned_pool(ops, 8)
    step = batch(*((0, length, table) for length, table in zip(lengths, tables, strict=True)))
    q, k, v = (np.concatenate([part[i] for part in parts]) for i in range(3))
    ops.store(pool, 0, k, v, step)
    np.testing.assert_array_equal(ops.attend(pool, 0, q, step, spec), np.concatenate(alone))


def test_a_later_token_of_the_chunk_that_is_nan_harms_only_itself(
    ops: Ops, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    q, k, v = random_qkv(rng, 30)
    spec = AttentionSpec(0.25)
    whole = run(ops, poisoned_pool(ops, 2), batch, [0, 1], [0, 30], (q, k, v), spec)
    k[20], v[20] = np.nan, np.inf
    out = run(ops, poisoned_pool(ops, 2), batch, [0, 1], [0, 30], (q, k, v), spec)
    np.testing.assert_array_equal(out[:20], whole[:20])
    assert np.isnan(out[20:]).all()


def test_both_backends_lay_a_block_out_alike(batch: Steps, poisoned_pool: Pools, rng) -> None:
    _, k, v = random_qkv(rng, 20, size=24)
    pools = []
    for ops in (NativeOps(), ReferenceOps()):
        pool = poisoned_pool(ops, 3, size=24)
        ops.store(pool, 1, k, v, batch((0, 20, [2, 0])))
        pools.append(pool)
    np.testing.assert_array_equal(pools[0].data, pools[1].data)
    views = float_views(pools[0], 1)
    np.testing.assert_array_equal(views.k[0, :, :, 3], k[19].reshape(2, 24))
    np.testing.assert_array_equal(views.v[2, :, 15, :], v[15].reshape(2, 24))


@pytest.mark.parametrize("size", [8, 16, 40, 64, 256])
def test_a_block_takes_whole_pages(size: int) -> None:
    shape = KvShape(3, 2, size, 16)
    given = _native.KvLayout(3, 2, size, 16).bytes_per_block
    assert given == bytes_per_block(shape)
    assert given % 4096 == 0
    assert given >= 3 * 2 * 2 * size * 16 * 4


def test_an_untouched_pool_takes_no_memory(ops: Ops) -> None:
    def resident() -> int:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096

    before = resident()
    pool = ops.allocate_kv(KvShape(30, 3, 64, 16), 1000)  # 737 MB
    assert pool.data.nbytes > 700_000_000
    assert resident() - before < 50_000_000


@pytest.mark.parametrize(
    "changes", [{"head_size": 12}, {"head_size": 264}, {"block_size": 8}, {"num_layers": 0}]
)
def test_a_shape_that_the_kernels_do_not_know_is_refused(ops: Ops, changes: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(changes))):
        ops.allocate_kv(replace(KvShape(2, 2, 16, 16), **changes), 4)


@pytest.mark.parametrize("block", [-1, 4, 2**31 - 1])
def test_a_table_that_names_no_block_is_refused(block: int, batch: Steps, poisoned_pool: Pools, rng) -> None:
    ops = NativeOps()
    pool = poisoned_pool(ops, 4)
    q, k, v = random_qkv(rng, 20)
    step = batch((0, 20, [1, block]))
    with pytest.raises(IndexError):
        ops.store(pool, 0, k, v, step)
    with pytest.raises(IndexError):
        ops.attend(pool, 0, q, step, AttentionSpec(1.0))
    with pytest.raises(ValueError, match="too short"):
        ops.store(pool, 0, k, v, batch((0, 20, [1])))
    with pytest.raises(IndexError):
        ops.store(pool, 2, k, v, batch((0, 20, [1, 2])))


def test_blocks_behind_the_window_are_not_looked_up(
    ops: Ops, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    pool = poisoned_pool(ops, 4)
    q, k, v = random_qkv(rng, 60)
    spec = AttentionSpec(0.25, window=10)
    whole = run(ops, pool, batch, [0, 1, 2, 3], [0, 50, 60], (q, k, v), spec)
    step = batch((50, 10, [-1, -1, 2, 3]))
    np.testing.assert_array_equal(ops.attend(pool, 1, q[50:], step, spec), whole[50:])
