"""Every family over torch's ops gives transformers' logits: the cases of the processor's tests, and the kinds
of KV that hold less than float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.device.over_torch import TinyTorch
from tests.device.reusing import step_of
from tests.model import chunks, model_bench, test_families
from tests.model.checkpoints import random_prompt

from octavo.device.arithmetic import EagerArithmetic
from octavo.device.layout import allocate_pool
from octavo.kernels.contract import Batch, Floats, KvShape
from octavo.model.spec import Model

pytestmark = pytest.mark.full

TOLERANCE = 5e-5  # half of the processor's: what is left is mostly the oracle's own error
# Largest error of a logit; the largest logits are between 1 and 8.
KV_TOLERANCES = {"fp16": 1e-2, "bf16": 8e-2, "int8": 8e-2, "fp8": 5e-1}


@pytest.fixture(autouse=True)
def torch_in_the_bench(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The bench's backends are torch's, whatever a test calls them."""
    for name in (*chunks.BACKENDS, "torch"):
        monkeypatch.setitem(chunks.BACKENDS, name, TinyTorch)
    monkeypatch.setattr(test_families, "run_chunks", run_chunks)
    monkeypatch.setattr(test_families, "TOLERANCE", TOLERANCE)
    yield
    assert ran, "nothing ran on torch"
    ran.clear()


ran: list[str] = []


def run_chunks(ops: TinyTorch, model: Model, tokens: Sequence[int], lengths: Sequence[int]) -> Floats:
    """(tokens, V) logits of one sequence computed in chunks of these lengths, blocks in scrambled places."""
    assert isinstance(ops, TinyTorch)
    ran.append(ops.kv)
    spec, block = model.spec, chunks.BLOCK
    num_blocks = -(-len(tokens) // block)
    shape = KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, block, ops.kv)
    pool = allocate_pool(shape, num_blocks + 2, ops.device)
    pool.data[...] = 0xFF  # NaN, also as a scale
    arithmetic = EagerArithmetic(model, ops, pool)
    table = np.random.default_rng(2).permutation(num_blocks + 2)[:num_blocks].astype(np.int32)[None, :]
    assert sum(lengths) == len(tokens)
    rows, start = [], 0
    for length in lengths:
        batch = Batch(
            tokens=np.asarray(tokens[start : start + length], np.int32),
            positions=np.arange(start, start + length, dtype=np.int32),
            starts=np.asarray([start], np.int32),
            offsets=np.asarray([0, length], np.int32),
            tables=table,
            logit_rows=np.arange(length, dtype=np.int32),
        )
        with torch.inference_mode():
            rows.append(arithmetic.logits(arithmetic.hidden(step_of(batch))).numpy())
        start += length
    return np.concatenate(rows)


@pytest.mark.parametrize("name", model_bench.CONFIGS)
def test_logits_equal_transformers(name: str, tmp_path: Path) -> None:
    test_families.test_logits_equal_transformers(name, "torch", tmp_path)


@pytest.mark.parametrize(
    "case",
    [
        test_families.test_window_is_smaller_than_the_prompt_and_matters,
        test_families.test_sharded_files_load_as_one,
        test_families.test_a_bare_decoder_without_prefix_loads,
    ],
    ids=lambda case: case.__name__.removeprefix("test_"),
)
def test_files_and_windows_are_as_on_the_processor(case: Callable[[Path], None], tmp_path: Path) -> None:
    case(tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_files_are_read_exactly(dtype: torch.dtype, tmp_path: Path) -> None:
    test_families.check_half_precision(dtype, tmp_path)


@pytest.mark.parametrize("kv", KV_TOLERANCES)
def test_smaller_kinds_of_kv_stay_near_and_chunkings_are_equal(kv: str, tmp_path: Path) -> None:
    theirs = model_bench.make_model("qwen3")
    _, model = chunks.load(model_bench.save_model(theirs, tmp_path), "torch")
    tokens = random_prompt(test_families.PROMPT)
    expected = model_bench.expected_logits(theirs, tokens)
    whole = run_chunks(TinyTorch(kv), model, tokens, [41])
    error = np.abs(whole - expected).max()
    print(f"\n{kv}: largest error {error:.2g} of logits up to {np.abs(expected).max():.2g}")
    assert TOLERANCE < error < KV_TOLERANCES[kv], "TOLERANCE < error: else it is not held in this kind"
    for lengths in ([7, 16, 1, 17], [20] + [1] * 21):
        assert run_chunks(TinyTorch(kv), model, tokens, lengths).tobytes() == whole.tobytes()
