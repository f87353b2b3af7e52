"""The instruction sets give the same bits: one source, explicit fused steps, no help from the compiler.

All but AMX beside KV in bfloat16, whose sums are in an order of their own (test_matrices.py).
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo import _native

# Prints a digest of everything the kernels make from fixed inputs.
PROGRAM = """
import hashlib
import itertools
import numpy as np
from octavo import _native
from octavo.kernels.contract import AttentionSpec, Batch, Expert, KvShape, Linear, RawTensor, Routing
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import unpack_vector
from tests.blocks import BLOCKS, QUANTISED, SUPER_KINDS, random_tensor, set_halves

rng = np.random.default_rng(5)
ops = NativeOps()
digest, beside_bf16 = hashlib.sha256(), hashlib.sha256()
def note(array, kind="f32"):
    (beside_bf16 if kind == "bf16" else digest).update(np.ascontiguousarray(array).tobytes())
def floats(*shape):
    return rng.standard_normal(shape).astype(np.float32)
weight = floats(150, 96)
matrix = ops.matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
x = floats(13, 96)
for rows in (1, 2, 3, 6, 13):
    note(ops.linear(x[:rows].copy(), matrix, floats(150)))
for kind in QUANTISED:
    inputs = 512 if kind in SUPER_KINDS else 800  # codes of many rows are unpacked 24 groups at a time
    integers = ops.matrix(random_tensor(kind, 150, inputs, rng))
    wide = floats(33, inputs)
    note(ops.embed(integers, np.arange(150, dtype=np.int32)))
    for rows in (1, 2, 3, 13, 16, 32, 33):  # rows of codes are spread at multiples of 16
        note(ops.linear(wide[:rows].copy(), integers, floats(150)))
    note(unpack_vector(random_tensor(kind, 3, 256, rng)))
for kind, code in itertools.product(QUANTISED, (0, 0x7F, 0x80, 0xFF)):
    block = BLOCKS[kind]  # no sum of the largest products saturates
    blocks = np.full((16, 1, block.num_bytes), code, np.uint8)
    set_halves(blocks, kind, [1, 0.5])
    largest = ops.matrix(RawTensor("w", kind, (16, block.size), blocks.reshape(-1)))
    for sign in (-1, 1):
        note(ops.linear(np.full((7, block.size), 127 * sign, np.float32), largest))
for mode in ("bf16", "int8", "q4"):
    held = NativeOps(mode).matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
    note(held.panels)
    for rows in (1, 2, 3, 6, 13):
        note(ops.linear(x[:rows].copy(), held))
brains = NativeOps("bf16").matrix(RawTensor("w", "F32", weight.shape, weight.view(np.uint8).reshape(-1)))
for tiny in (1e-30, 1e-36, 1e-38):  # products and sums that are subnormal, and count as zero
    note(ops.linear(np.float32(tiny) * x, brains))
    small = np.float32(tiny) * weight
    held = NativeOps("bf16").matrix(RawTensor("w", "F32", small.shape, small.view(np.uint8).reshape(-1)))
    note(ops.linear(np.float32(1e-2) * x, held))
halves = ops.matrix(RawTensor("w", "F16", weight.shape, weight.astype(np.float16).view(np.uint8).reshape(-1)))
note(ops.linear(x, halves))
quantised = rng.integers(0, 60, (4 * 2 * 34,)).astype(np.uint8)
note(unpack_vector(RawTensor("q", "Q8_0", (4, 64), quantised)))
note(ops.rms_norm(x, floats(96), 1e-5))
note(ops.layer_norm(x, floats(96), floats(96), 1e-5))
note(ops.rope(x, np.arange(13, dtype=np.int32), floats(20, 12), floats(20, 12), 24))
for activation in ("silu", "gelu_tanh", "gelu", "relu", "swiglu_clamped"):
    note(ops.gated(3 * x, x, activation))
for kind in ("Q8_0", "Q4_1"):
    parts = [[ops.matrix(random_tensor(kind, *shape, rng)) for shape in ((160, 96), (160, 96), (96, 160))]
             for _ in range(5)]
    experts = [Expert(*map(Linear, own)) for own in parts]
    for scoring in ("softmax", "softmax_of_chosen", "sigmoid"):
        routing = Routing(2, scoring, normalised=scoring == "sigmoid")
        note(ops.experts(x, floats(13, 5), experts, routing, "silu"))
note(ops.soft_cap(x, 0.3))
tokens = 300
batch = Batch(np.zeros(tokens, np.int32), np.arange(tokens, dtype=np.int32), np.zeros(1, np.int32),
              np.array([0, tokens], np.int32), np.arange(20, dtype=np.int32)[None], np.zeros(0, np.int32))
for kind in ("f32", "bf16", "int8"):
    pool = ops.allocate_kv(KvShape(1, 2, 24, 16, kind), 20)
    pool.data[:] = 0xFF  # what nobody has written is no number
    ops.store(pool, 0, floats(tokens, 48), floats(tokens, 48), batch)
    note(pool.data)
    for window in (290, 20):
        spec = AttentionSpec(0.2, window, 5.0, floats(6), floats(6))
        log_sum_exp = np.empty((tokens, 6), np.float32)
        note(ops.attend(pool, 0, floats(tokens, 144), batch, spec, log_sum_exp), kind)
        note(log_sum_exp, kind)
for tiny in (1e-19, 1e-30, 1e-38):  # sums and products of pairs that are subnormal, and count as zero
    pool = ops.allocate_kv(KvShape(1, 2, 24, 16, "bf16"), 20)
    factor = np.float32(tiny)
    ops.store(pool, 0, factor * floats(tokens, 48), factor * floats(tokens, 48), batch)
    log_sum_exp = np.empty((tokens, 6), np.float32)
    queries = np.float32(1e-19) * floats(tokens, 144)
    note(ops.attend(pool, 0, queries, batch, AttentionSpec(1e37, 290), log_sum_exp), "bf16")
    note(log_sum_exp, "bf16")
pool = ops.allocate_kv(KvShape(1, 2, 24, 16, "bf16"), 20)  # scores that lie far below the largest one
ops.store(pool, 0, floats(tokens, 48), floats(tokens, 48), batch)
note(ops.attend(pool, 0, floats(tokens, 144), batch, AttentionSpec(12.0), log_sum_exp), "bf16")
# The border of subnormal numbers, seen in scores: queries, and a sum that is normal only when rounded.
border = np.array([0x007F7FFF, 0x007F8000, 0x007FFFFF, 0x00800000, 0x807FFFFF], np.uint32).view(np.float32)
for first, second, k_first, k_second, factor in (
    (border, 0, 1e38, 0, 1.0), (np.float32(2**-80), 2**-63, -(2.0**-80), 2.0**-63, 1e37),
):
    queries, keys = np.zeros((tokens, 144), np.float32), np.zeros((tokens, 48), np.float32)
    queries[:, ::24] = np.resize(first, tokens)[:, None]
    queries[:, 1::24] = second
    keys[:, ::24], keys[:, 1::24] = k_first, k_second
    ops.store(pool, 0, keys, keys, batch)
    ops.attend(pool, 0, queries, batch, AttentionSpec(factor), log_sum_exp)
    note(log_sum_exp, "bf16")
noise = np.empty(1001, np.float32)
_native.gumbel(9, 1, 2, noise)
note(noise)
sums = np.empty(13, np.float32)
_native.log_sum_exp(x, sums)
note(sums)
print(ops.arithmetic_id, digest.hexdigest(), beside_bf16.hexdigest())
"""


def _run(isa: str) -> tuple[str, str, str]:
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "OCTAVO_ISA": isa},
        capture_output=True,
        text=True,
        check=True,
    )
    arithmetic_id, digest, beside_bf16 = run.stdout.split()
    return arithmetic_id, digest, beside_bf16


@pytest.mark.parametrize("isa", [isa for isa in _native.simd_probe()["usable"] if isa != "portable"])
def test_every_instruction_set_gives_the_same_bits(isa: str) -> None:
    portable, given = _run("portable"), _run(isa)
    assert given[0].endswith(isa)
    assert given[1] == portable[1]
    assert (given[2] == portable[2]) == (isa != "avx512_amx")
