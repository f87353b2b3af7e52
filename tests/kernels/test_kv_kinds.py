"""Promises of KV held as f32, bf16 or int8: attention is right over what is stored, and exact to the bit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from tests.kernels.attention_bench import (
    Pools,
    Steps,
    assert_attended,
    compared,
    dense_softmax,
    random_qkv,
    run,
    stored,
)

from octavo import _native
from octavo.kernels.contract import AttentionSpec, Batch, Floats, KvPool, KvShape, Ops
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.pool import bytes_per_block, code_views, layout_of
from octavo.kernels.reference import ReferenceOps

KINDS = ["f32", "bf16", "int8"]
SINKS = np.array([0.3, -1.0, 2.0, 8.0, -30.0, 0.0], np.float32)
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625, 0.03, 0.0], np.float32)
SPECS = {
    "plain": AttentionSpec(0.25),
    "window": AttentionSpec(0.25, window=270),
    "cap": AttentionSpec(0.5, soft_cap=3.0),
    "sinks": AttentionSpec(0.25, window=20, sinks=SINKS),
    "slopes": AttentionSpec(0.25, slopes=SLOPES),
    "all": AttentionSpec(0.5, 300, 3.0, SINKS, SLOPES),
}
HUGE = 2**40  # partitions of a piece that nothing reaches: never cut


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_it_is_the_softmax_over_what_is_stored(
    ops: Ops, kind: str, spec: AttentionSpec, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    tokens = 530
    q, k, v = random_qkv(rng, tokens)
    pool, table = poisoned_pool(ops, 40, kind=kind), rng.permutation(40)[:34].tolist()
    step = batch((0, tokens, table))
    ops.store(pool, 1, k, v, step)
    log_sum_exp = np.empty((tokens, 6), np.float32)
    out = ops.attend(pool, 1, q, step, spec, log_sum_exp)
    keys, values = stored(pool, 1, table, tokens)
    expected = dense_softmax(compared(q.reshape(tokens, 6, 16), kind), keys, values, spec, kind)
    assert_attended(out.reshape(expected.out.shape), expected.out, kind)
    assert_attended(log_sum_exp, expected.log_sum_exp, kind)


@pytest.mark.parametrize("block", [16, 32, 64])
@pytest.mark.parametrize(
    "size, heads, kv_heads",
    [(8, 1, 1), (40, 2, 2), (64, 9, 3), (80, 5, 1), (96, 14, 2), (128, 8, 1), (256, 6, 1)],
)
def test_every_shape_is_right(
    kind: str, block: int, size: int, heads: int, kv_heads: int, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    tokens, ops, spec, table = 75, NativeOps(), AttentionSpec(size**-0.5), [4, 1, 0, 3, 2]
    qkv = random_qkv(rng, tokens, heads, kv_heads, size)
    pool = poisoned_pool(ops, 5, kv_heads, size, block, kind=kind)
    out = run(ops, pool, batch, table, [0, 60, 61, tokens], qkv, spec)
    keys, values = stored(pool, 1, table, tokens)
    queries = compared(qkv[0].reshape(tokens, heads, size), kind)
    expected = dense_softmax(queries, keys, values, spec, kind).out
    assert_attended(out.reshape(expected.shape), expected, kind)


@pytest.mark.parametrize("kind, tolerance", [("bf16", 0.03), ("int8", 0.06)])
def test_what_is_stored_is_close_to_what_came(
    kind: str, tolerance: float, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    ops, spec, qkv = NativeOps(), AttentionSpec(0.125), random_qkv(rng, 300, 6, 2, 64)
    outs = [
        run(ops, poisoned_pool(ops, 20, 2, 64, kind=name), batch, list(range(20)), [0, 300], qkv, spec)
        for name in (kind, "f32")
    ]
    assert 0 < np.abs(outs[0] - outs[1]).max() < tolerance


@pytest.mark.parametrize("spec", [SPECS["plain"], SPECS["all"]], ids=["plain", "all"])
def test_chunks_blocks_threads_and_unused_slots_change_no_bit(
    ops: Ops,
    kind: str,
    spec: AttentionSpec,
    batch: Steps,
    poisoned_pool: Pools,
    threads: Callable[[int], None],
    rng,
) -> None:
    tokens, qkv = 275, random_qkv(rng, 275)
    clean = ops.allocate_kv(KvShape(2, 2, 16, 16, kind), 20)
    threads(1)
    whole = run(ops, clean, batch, list(range(20)), [0, tokens], qkv, spec)
    assert np.isfinite(whole).all()
    for count, block, cuts in [
        (2, 16, [0, 1, 2, 18, 250, 256, 257, 270, tokens]),
        (1, 32, [0, 100, 200, tokens]),
        (2, 64, [0, 260, *range(261, tokens + 1)]),
    ]:
        threads(count)
        pool, table = poisoned_pool(ops, 25, block=block, kind=kind), rng.permutation(25)[:20].tolist()
        np.testing.assert_array_equal(run(ops, pool, batch, table, cuts, qkv, spec), whole)


def _long_context(kind: str, batch: Steps, poisoned_pool: Pools, rng) -> tuple[KvPool, Batch, Floats]:
    """A full pool of 1,536 tokens and a step of a long decode, a short one and a chunk; 9 query heads."""
    ops = NativeOps()
    pool = poisoned_pool(ops, 96, heads=3, layers=1, kind=kind)
    table = rng.permutation(96).tolist()
    _, k, v = random_qkv(rng, 1536, 9, 3)
    ops.store(pool, 0, k, v, batch((0, 1536, table)))
    step = batch((1500, 1, table), (0, 1, table), (700, 20, table))
    return pool, step, random_qkv(rng, 22, 9, 3)[0]


@pytest.mark.parametrize("window", [None, 600])
def test_pieces_and_threads_change_no_bit(
    kind: str,
    window: int | None,
    batch: Steps,
    poisoned_pool: Pools,
    threads: Callable[[int], None],
    rng,
) -> None:
    pool, step, q = _long_context(kind, batch, poisoned_pool, rng)
    sinks = rng.standard_normal(9).astype(np.float32)
    results = []
    for count in (1, 2, 3):
        threads(count)
        for pieces in (HUGE, 0, 1, 2, 3):
            out, log_sum_exp = np.empty_like(q), np.empty((22, 9), np.float32)
            _native.attend(
                layout_of(pool.shape), pool.data, 0, q, step.starts, step.offsets, step.tables,
                0.25, window, None, sinks, None, out, log_sum_exp, pieces,
            )  # fmt: skip
            results.append((out, log_sum_exp))
    for out, log_sum_exp in results:
        np.testing.assert_array_equal(out, results[0][0])
        np.testing.assert_array_equal(log_sum_exp, results[0][1])


def test_both_backends_lay_a_block_out_alike(kind: str, batch: Steps, poisoned_pool: Pools, rng) -> None:
    _, k, v = random_qkv(rng, 20, size=24)
    k[3, 24:], v[4, :24], v[5, 2] = 0.0, 1e-42, np.nan  # a zero row, a subnormal one, one that is no number
    pools = []
    for ops in (NativeOps(), ReferenceOps()):
        pool = poisoned_pool(ops, 3, size=24, kind=kind)
        ops.store(pool, 1, k, v, batch((0, 20, [2, 0])))
        pools.append(pool)
    np.testing.assert_array_equal(pools[0].data, pools[1].data)


@pytest.mark.full
def test_bfloat16_is_rounded_to_the_nearest_even(batch: Steps, poisoned_pool: Pools, rng) -> None:
    import torch

    ops = NativeOps()
    bits = rng.integers(0, 2**32, (20, 32), np.uint64).astype(np.uint32)  # every class of number
    bits[0, :6] = [0x3F808000, 0x3F818000, 0x7F7FFFFF, 0x7F800001, 0xFF800000, 0x00000001]
    k = bits.view(np.float32)
    pool = poisoned_pool(ops, 2, kind="bf16")
    ops.store(pool, 0, k, k, batch((0, 20, [0, 1])))
    expected = torch.from_numpy(k.copy()).bfloat16().float().numpy()
    for given in stored(pool, 0, [0, 1], 20):
        np.testing.assert_array_equal(given.reshape(20, 32), expected)


def test_a_token_has_its_own_scale_for_each_head(batch: Steps, poisoned_pool: Pools) -> None:
    ops, pool = NativeOps(), poisoned_pool(NativeOps(), 1, kind="int8")
    k = np.ones((2, 32), np.float32)
    k[0, :16], k[0, 0], k[1, 16:] = 2.0, -254.0, 0.0
    ops.store(pool, 0, k, 127 * k, batch((0, 2, [0])))
    views = code_views(pool, 0)
    np.testing.assert_array_equal(views.scales[0, 0, :, 0], [2.0, float.fromhex("0x1.020408p-7")])  # 1 / 127
    np.testing.assert_array_equal(views.scales[0, 1, :, 1], [1.0, 0.0])
    assert views.k[0, 0, 0, 0].tolist() == [1, 129, 129, 129]  # -127, 1, 1, 1
    assert views.v[0, :, 0, 1].tolist() == [1, 127]


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_a_token_that_is_no_number_harms_only_those_who_see_it(
    ops: Ops, kind: str, wrong: float, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    q, k, v = random_qkv(rng, 30)
    spec = AttentionSpec(0.25)
    whole = run(ops, poisoned_pool(ops, 2, kind=kind), batch, [0, 1], [0, 30], (q, k, v), spec)
    v[20, 3] = k[20, 5] = wrong
    out = run(ops, poisoned_pool(ops, 2, kind=kind), batch, [0, 1], [0, 30], (q, k, v), spec)
    np.testing.assert_array_equal(out[:20], whole[:20])
    assert np.isnan(out[20:, 3]).all()  # query head 0 reads kv head 0


@pytest.mark.full
def test_sinks_are_those_of_gpt_oss(kind: str, batch: Steps, poisoned_pool: Pools, rng) -> None:
    import torch
    from transformers.models.gpt_oss import modeling_gpt_oss

    tokens, ops, table = 40, NativeOps(), [0, 1, 2]
    q, k, v = random_qkv(rng, tokens)
    pool = poisoned_pool(ops, 3, kind=kind)
    out = run(ops, pool, batch, table, [0, tokens], (q, k, v), AttentionSpec(0.25, sinks=SINKS))
    keys, values = stored(pool, 1, table, tokens)
    queries = compared(q.reshape(tokens, 6, 16), kind)
    states = [
        torch.from_numpy(np.ascontiguousarray(x, np.float64)).swapaxes(0, 1)[None]
        for x in (queries, keys, values)
    ]
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks = 3, torch.from_numpy(SINKS).double()
    hidden = torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)[None, None]
    expected, _ = modeling_gpt_oss.eager_attention_forward(module.eval(), *states, hidden, 0.25)
    tolerance = 2**-8 if kind == "bf16" else 3e-6  # its weights are rounded
    np.testing.assert_allclose(out.reshape(tokens, 6, 16), expected[0].numpy(), atol=tolerance)


@pytest.mark.parametrize("size", [8, 16, 40, 64, 256])
@pytest.mark.parametrize("block", [16, 32, 64])
def test_a_block_takes_whole_pages_and_no_more(kind: str, size: int, block: int) -> None:
    given = _native.KvLayout(3, 2, size, block, kind).bytes_per_block
    assert given == bytes_per_block(KvShape(3, 2, size, block, kind))
    assert given % 4096 == 0
    needed = 3 * 2 * block * (2 * size * {"f32": 4, "bf16": 2, "int8": 1}[kind] + 8 * (kind == "int8"))
    assert needed <= given


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed: f32, bf16, int8"):
        NativeOps().allocate_kv(KvShape(2, 2, 16, 16, "fp8"), 4)


@pytest.mark.parametrize("field", ["sinks", "slopes"])
def test_one_number_is_needed_for_each_query_head(
    field: str, batch: Steps, poisoned_pool: Pools, rng
) -> None:
    ops = NativeOps()
    pool, qkv = poisoned_pool(ops, 1), random_qkv(rng, 3)
    with pytest.raises(ValueError, match=field):
        run(ops, pool, batch, [0], [0, 3], qkv, AttentionSpec(1.0, **{field: SINKS[:5]}))
