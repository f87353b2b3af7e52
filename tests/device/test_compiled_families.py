"""Every family by Octavo's own kernels, in Triton's interpreter: recorded, fused, launched and replayed."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import pytest
import torch
from tests.device.over_torch import CPU
from tests.model import model_bench
from tests.model.checkpoints import random_prompt
from triton.runtime import interpreter

from octavo.device import compiled_step, lowering
from octavo.device.compiled import CompiledArithmetic
from octavo.device.layout import allocate_pool
from octavo.device.lowering import lower
from octavo.device.rows import DeviceRows
from octavo.device.weights import DeviceWeights
from octavo.errors import UnsupportedModel
from octavo.executor.batch import shape_of
from octavo.kernels.contract import Expert, KvShape, Routing
from octavo.kernels.recording import MixtureOfExperts, Node, Record
from octavo.model.loader import load_model
from octavo.model.spec import Model
from octavo.params import SamplerParams
from octavo.types import AdmittedRow, Chunk, StepPlan, StepWay, TableWrite, TokenWrite

pytestmark = pytest.mark.full

BLOCK, BLOCKS, TOLERANCE = 16, 6, 2e-4
PROMPT, DECODED = 11, 3
# What no other has, in two layers: scaled queries, scaled branches and logits, no norm before a branch and
# norms over all heads, parallel branches and partial rope.
SHORT = ("ministral3", "granite", "olmo2", "gpt_neox")
# One of each kind of what a decoder may have; the op-after-op tests have all of them.
NAMES = (
    "llama-tied", "llama-biases", "llama-rope-llama3", "mistral-window", "qwen2", "qwen3", "gemma2", "gpt2",
    *SHORT,
)  # fmt: skip


class Machine:
    """One sequence in row 1 of two, over kernels."""

    def __init__(self, model: Model, kv: str = "f32") -> None:
        spec = model.spec
        shape = KvShape(spec.num_layers, spec.num_kv_heads, spec.head_size, BLOCK, kv)
        pool = allocate_pool(shape, BLOCKS, CPU)
        pool.data[...] = 0xFF  # NaN, also as a scale
        self.rows = DeviceRows(2, spec.context_length, BLOCK, CPU)
        self.arithmetic = CompiledArithmetic(model, pool, self.rows, 1)
        self.ways: list[StepWay] = []

    @torch.inference_mode()
    def run(self, plan: StepPlan) -> torch.Tensor:
        """(R, V) logits of the plan's chunks; the likeliest tokens are theirs."""
        self.arithmetic.prepare(shape_of(plan.chunks), self.rows.written_by(plan))
        hidden = self.arithmetic.hidden()
        self.ways.append(self.arithmetic.way())
        logits = self.arithmetic.logits(hidden)
        assert torch.equal(self.arithmetic.likeliest(hidden), logits.argmax(-1))
        return logits


def admitted(tokens: Sequence[int]) -> StepPlan:
    row = AdmittedRow(1, 7, tuple(tokens), len(tokens), len(tokens), SamplerParams(), 0, 0)
    writes = tuple(TableWrite(1, i, block) for i, block in enumerate((4, 0, 3)))
    return StepPlan(0, (), (row,), writes, (), (), ())


def logits_of(machine: Machine, tokens: Sequence[int], lengths: Sequence[int]) -> np.ndarray:
    """(tokens, V), in chunks of these lengths."""
    plan, start, rows = admitted(tokens), 0, []
    for length in lengths:
        chunk = Chunk(7, 1, start, length, 1, start)
        rows.append(
            machine.run(StepPlan(0, plan.retired, plan.admitted, plan.table_writes, (), (chunk,), ()))
        )
        plan, start = StepPlan(0, (), (), (), (), (), ()), start + length
    return torch.cat(rows).numpy()


def loaded(name: str, folder: Path):  # type: ignore[no-untyped-def]
    theirs = model_bench.make_model(name, layers=2 if name in SHORT else None)
    path = model_bench.save_model(theirs, folder)
    return theirs, load_model(path, DeviceWeights(CPU, torch.float32)).model


@pytest.mark.parametrize("name", NAMES)
def test_prefill_and_replayed_decoding_give_transformers_logits(name: str, tmp_path: Path) -> None:
    theirs, model = loaded(name, tmp_path)
    tokens = random_prompt(PROMPT + DECODED)
    expected = model_bench.expected_logits(theirs, tokens)
    machine = Machine(model)
    given = logits_of(machine, tokens, [PROMPT - 4, 4] + [1] * DECODED)
    np.testing.assert_allclose(given, expected, rtol=0, atol=TOLERANCE)
    assert machine.ways == [StepWay.FIRST] * 4 + [StepWay.REPLAYED], "decoding was not replayed"


KERNELS = ("embed", "rms_norm", "linear", "linear_gated", "store_heads", "attend_walking", "attend_splitting")
LAYER = [
    "rms_norm",
    "linear",
    "store_heads",
    "attend_walking",
    "linear",
    "rms_norm",
    "linear_gated",
    "linear",
]


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen3"])
def test_a_layer_is_eight_kernels(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, model = loaded(name, tmp_path)
    machine, launched = Machine(model), []
    for module, kernel in itertools.product((lowering, compiled_step), KERNELS):
        if hasattr(module, kernel):
            plain = getattr(module, kernel)
            monkeypatch.setattr(
                module, kernel, lambda *given, k=kernel, f=plain: (launched.append(k), f(*given))
            )
    logits_of(machine, random_prompt(5), [5])
    assert launched == ["embed", *LAYER * model.spec.num_layers, "rms_norm"]


@pytest.mark.parametrize("kind, more", [("greedy", 6), ("temperature", 8), ("filtered", 10)])
def test_a_step_has_six_launches_alongside_its_layers_and_few_more_where_it_samples(
    kind: str, more: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, model = loaded("llama", tmp_path)
    machine, launched = Machine(model), []
    logits_of(machine, random_prompt(5), [5])
    executed = interpreter.GridExecutor.__call__
    monkeypatch.setattr(
        interpreter.GridExecutor,
        "__call__",
        lambda self, *given, **named: (launched.append(self.fn.__name__), executed(self, *given, **named)),
    )
    arithmetic, row, position = machine.arithmetic, torch.tensor([1]), torch.tensor([6])
    chunks, writes = (Chunk(7, 1, 5, 1, 1, 5),), (TokenWrite(1, 5, 9),)
    plan = StepPlan(0, (), (), (), (), chunks, (), token_writes=writes)
    with torch.inference_mode():
        arithmetic.prepare(shape_of(plan.chunks), machine.rows.written_by(plan))
        hidden = arithmetic.hidden()
        if kind == "greedy":
            tokens = arithmetic.likeliest(hidden)
        else:
            logits = arithmetic.logits(hidden)
            tokens = arithmetic.sampler.draw(logits, row, position, is_filtered=kind == "filtered")
        arithmetic.sampler.append(row, position, tokens)
    assert len(launched) == 8 * model.spec.num_layers + more, launched


def test_weights_that_are_read_together_exist_once(tmp_path: Path) -> None:
    _, model = loaded("llama", tmp_path)
    before = model.weights.num_bytes
    Machine(model)
    layer = model.weights.layers[0]
    stores = {m.weight.data.untyped_storage().data_ptr() for m in (layer.q, layer.k, layer.v)}  # type: ignore[attr-defined]
    gates = {m.weight.data.untyped_storage().data_ptr() for m in (layer.gate, layer.up)}  # type: ignore[union-attr]
    assert len(stores) == len(gates) == 1
    assert model.weights.num_bytes == before


@pytest.mark.parametrize("kv", ["int8", "fp8"])
def test_smaller_kinds_of_kv_stay_near(kv: str, tmp_path: Path) -> None:
    theirs, model = loaded("qwen3", tmp_path)
    tokens = random_prompt(PROMPT + DECODED)
    expected = model_bench.expected_logits(theirs, tokens)
    given = logits_of(Machine(model, kv), tokens, [PROMPT] + [1] * DECODED)
    error = np.abs(given - expected).max()
    assert TOLERANCE < error < {"fp16": 1e-2, "int8": 8e-2, "fp8": 5e-1}[kv]


def test_a_mixture_is_refused_by_name() -> None:
    routing, expert = Routing(2, "softmax", normalised=True), cast(Expert, None)
    record = Record([MixtureOfExperts(Node(), Node(), [expert] * 9, routing, "silu")], Node())
    pool = allocate_pool(KvShape(1, 1, 16, BLOCK), 1, CPU)
    with pytest.raises(UnsupportedModel, match=r"a mixture of 9 experts, .* allowed: --backend native"):
        lower(record, pool)
