"""Mixtures of experts: the native op has its specification's bits; rows and threads keep apart."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from tests.blocks import encoded, floats_tensor

from octavo import _native
from octavo.kernels.contract import Expert, Floats, Linear, Ops, Routing
from octavo.kernels.experts_reference import route
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.program import RowsProgram
from octavo.kernels.reference import ReferenceOps

PLAIN = Routing(2, "softmax")
ROUTINGS = {
    "mixtral": Routing(2, "softmax", normalised=True),
    "olmoe": Routing(8, "softmax"),
    "gpt-oss": Routing(4, "softmax_of_chosen"),
    "llama4": Routing(1, "sigmoid", weighs_input=True),
    "all of them": Routing(9, "sigmoid", normalised=True),
}
# Kinds of gate, up and down.
KINDS = {
    "f32": ("F32", "F32", "F32"),
    "bf16": ("BF16", "BF16", "BF16"),
    "bf16 over codes": ("BF16", "BF16", "Q8_0"),
    "codes over f16": ("Q8_0", "Q4_0", "F16"),
    "q4_1": ("Q4_1", "Q4_1", "Q4_1"),
    "Q4_K_M": ("Q4_K", "Q4_K", "Q6_K"),
}


def make_experts(
    ops: Ops, count: int, inner: int, hidden: int, kinds: Sequence[str] = ("F32",) * 3, biased: bool = True
) -> list[Expert]:
    """Random ones, the same for every backend."""
    rng = np.random.default_rng(5)

    def linear(kind: str, outputs: int, inputs: int) -> Linear:
        values = rng.normal(0, 0.3, (outputs, inputs)).astype(np.float32)
        bias = rng.normal(0, 0.1, outputs).astype(np.float32)
        raw = floats_tensor(values)
        weight = ops.matrix(raw if kind == "F32" else encoded(raw, kind))
        return Linear(weight, ops.vector(bias) if biased else None)

    return [
        Expert(
            linear(kinds[0], inner, hidden), linear(kinds[1], inner, hidden), linear(kinds[2], hidden, inner)
        )
        for _ in range(count)
    ]


def random_rows(rng: np.random.Generator, rows: int, width: int) -> Floats:
    return rng.standard_normal((rows, width)).astype(np.float32)


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_the_native_op_has_the_bits_of_its_specification(
    routing: str, kinds: str, rng: np.random.Generator, threads: Callable[[int], None]
) -> None:
    how, sizes = ROUTINGS[routing], (256, 512) if "K" in kinds else (96, 64)
    activation = "swiglu_clamped" if routing == "gpt-oss" else "silu"
    made = [make_experts(ops, 9, *sizes, KINDS[kinds]) for ops in (NativeOps(), ReferenceOps())]
    for rows in (1, 7, 130):
        x, logits = random_rows(rng, rows, sizes[1]), random_rows(rng, rows, 9)
        expected = ReferenceOps().experts(x, logits, made[1], how, activation)
        for count in (1, 3):
            threads(count)
            np.testing.assert_array_equal(NativeOps().experts(x, logits, made[0], how, activation), expected)


def test_outputs_that_fill_no_panel_and_many_rows_of_one_expert(rng: np.random.Generator) -> None:
    native, reference = (make_experts(ops, 3, 150, 50, biased=False) for ops in (NativeOps(), ReferenceOps()))
    x, logits = random_rows(rng, 230, 50), random_rows(rng, 230, 3)
    logits[:, 1] += 5
    expected = ReferenceOps().experts(x, logits, reference, PLAIN, "gelu_tanh")
    got = NativeOps().experts(x, logits, native, PLAIN, "gelu_tanh")
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


@pytest.mark.full
def test_the_specification_is_what_torch_makes_of_it(rng: np.random.Generator) -> None:
    import torch

    experts = make_experts(ReferenceOps("f32"), 6, 96, 64, biased=False)
    x, logits = random_rows(rng, 20, 64), random_rows(rng, 20, 6)
    scores = torch.softmax(torch.from_numpy(logits).double(), dim=1)
    weights, chosen = torch.topk(scores, 2)
    dense = []
    for expert in experts:
        gate, up, down = (torch.from_numpy(unpacked(linear)).double() for linear in parts_of(expert))
        wide = torch.from_numpy(x).double()
        dense.append((torch.nn.functional.silu(wide @ gate.T) * (wide @ up.T)) @ down.T)
    every = torch.stack(dense, dim=1)  # (T, X, E)
    picked = every.gather(1, chosen[..., None].expand(-1, -1, 64))
    expected = (picked * weights[..., None]).sum(dim=1)
    got = ReferenceOps().experts(x, logits, experts, PLAIN, "silu")
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-4, atol=1e-4)


def parts_of(expert: Expert) -> tuple[Linear, ...]:
    return expert.gate, expert.up, expert.down


def unpacked(linear: Linear) -> Floats:
    """(outputs, inputs), by the op that reads rows back."""
    return ReferenceOps().embed(linear.weight, np.arange(linear.weight.shape[0], dtype=np.int32))


@pytest.mark.parametrize("kinds", KINDS)
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_row_is_as_if_it_were_alone(
    routing: str, kinds: str, rng: np.random.Generator, threads: Callable[[int], None]
) -> None:
    ops, how = NativeOps(), ROUTINGS[routing]
    width = 256 if "Q4_K" in KINDS[kinds] else 64
    experts = make_experts(ops, 12, 256 if width == 256 else 96, width, KINDS[kinds])
    x, logits = random_rows(rng, 140, width), random_rows(rng, 140, 12)
    threads(1)
    alone = [ops.experts(x[i : i + 1], logits[i : i + 1], experts, how, "silu") for i in range(140)]
    for count in (1, 2, 5):
        threads(count)
        slots = [((7 * rows) % (141 - rows), rows) for rows in range(2, 42, 3)]  # shifted through the tile
        for first, last in ((0, 140), *((first, first + rows) for first, rows in slots)):
            together = ops.experts(x[first:last], logits[first:last], experts, how, "silu")
            np.testing.assert_array_equal(together, np.concatenate(alone[first:last]))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_a_row_without_numbers_is_lost_alone(
    ops: Ops, routing: str, bad: float, rng: np.random.Generator
) -> None:
    how = ROUTINGS[routing]
    experts = make_experts(ops, 9, 96, 64)
    x, logits = random_rows(rng, 10, 64), random_rows(rng, 10, 9)
    expected = ops.experts(x, logits, experts, how, "silu")
    x[2, 5] = bad
    logits[6, 3] = np.nan
    got = ops.experts(x, logits, experts, how, "silu")
    assert np.isnan(got[2]).any()
    assert np.isnan(got[6]).all()
    sound = [0, 1, 3, 4, 5, 7, 8, 9]
    np.testing.assert_array_equal(got[sound], expected[sound])


def test_equal_logits_go_to_the_lower_experts() -> None:
    logits = np.array([[1, 3, 3, 3, 0], [2, 2, 2, 2, 2], [-0.0, 0.0, 0.0, -0.0, -1]], np.float32)
    assert route(logits, PLAIN).experts.tolist() == [[1, 2], [0, 1], [0, 1]]
    ops = NativeOps()
    experts = make_experts(ops, 5, 32, 32)
    one = np.ones((1, 32), np.float32)
    alone = [ops.experts(one, logits[:1, [i]], [experts[i]], Routing(1, "softmax"), "silu") for i in (1, 2)]
    half = Routing(2, "softmax", normalised=True)
    np.testing.assert_array_equal(
        ops.experts(one, logits[:1], experts, half, "silu"), 0.5 * alone[0] + 0.5 * alone[1]
    )


@pytest.mark.full
@pytest.mark.parametrize("scoring", ["softmax", "softmax_of_chosen", "sigmoid"])
def test_weights_are_those_of_torch(scoring: str, rng: np.random.Generator) -> None:
    import torch

    logits = 4 * random_rows(rng, 200, 16)
    wide = torch.from_numpy(logits).double()
    for top_k in (1, 2, 8):
        chosen = torch.topk(wide, top_k).indices.sort().values
        picked = wide.gather(1, chosen)
        expected = {
            "softmax": torch.softmax(wide, 1).gather(1, chosen),
            "softmax_of_chosen": torch.softmax(picked, 1),
            "sigmoid": torch.sigmoid(picked),
        }[scoring]
        for normalised in (False, True):
            choices = route(logits, Routing(top_k, scoring, normalised))
            wanted = expected / expected.sum(1, keepdim=True) if normalised else expected
            assert choices.experts.tolist() == chosen.tolist()
            np.testing.assert_allclose(choices.weights, wanted.numpy(), rtol=2e-6, atol=1e-30)


UNREAD = """
import ctypes, mmap
import numpy as np
from octavo import _native

libc = ctypes.CDLL(None, use_errno=True)
mixture = _native.Mixture(1, "softmax", False, False, "silu")
kept = []
for expert in range(4):
    for _ in "gud":
        memory = mmap.mmap(-1, 4 * mmap.PAGESIZE)
        panels = np.frombuffer(memory, np.float32)[: 2 * 32 * 16].reshape(2, 32, 16)
        panels[...] = 0.01
        kept.append(panels)
    mixture.add_expert(*(part for panels in kept[-3:] for part in (_native.float_weight(panels, 32), None)))
    if expert != 2:
        for panels in kept[-3:]:  # PROT_NONE
            assert libc.mprotect(ctypes.c_void_p(panels.ctypes.data), 4 * mmap.PAGESIZE, 0) == 0
x = np.ones((5, 32), np.float32)
logits = np.tile(np.array([0, 0, 1, 0], np.float32), (5, 1))
_native.experts(x, logits, mixture, x)
print("read what was chosen")
"""


def test_experts_that_no_row_chose_are_not_read() -> None:
    """Their weights lie in pages that may not be read."""
    run = subprocess.run([sys.executable, "-c", UNREAD], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "read what was chosen", (run.returncode, run.stderr)


@pytest.mark.parametrize("kind", ["f32", "bf16", "q4_1"])
def test_a_program_has_the_bits_of_the_op(
    kind: str, rng: np.random.Generator, threads: Callable[[int], None]
) -> None:
    ops = NativeOps()
    experts = make_experts(ops, 9, 96, 64, KINDS[kind])
    router, head = (
        ops.matrix(floats_tensor(rng.normal(0, 1, (outputs, 64)).astype(np.float32))) for outputs in (9, 20)
    )
    norm = np.ones(64, np.float32)

    def body(o: Ops, x: Floats) -> Floats:
        for _ in range(2):
            normed = o.rms_norm(x, norm, 1e-5)
            fed = o.experts(normed, o.linear(normed, router), experts, ROUTINGS["mixtral"], "silu")
            x = o.add(x, fed)
        return o.linear(x, head)

    program = RowsProgram(body, 64)
    for rows, count in ((1, 1), (200, 3), (5, 2), (230, 2), (3, 3)):
        x = random_rows(rng, rows, 64)
        expected = body(ops, x)
        threads(count)
        np.testing.assert_array_equal(program(x), expected)
        assert program.argmax(x).tolist() == expected.argmax(axis=1).tolist()
    program._program.time_phases(True)
    program(x)
    assert "experts 2 of 9, 64x96" in [what for what, _ in program._program.phase_times()]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"top_k": 0}, "top_k is 0; allowed: 1 to 1024"),
        ({"scoring": "best"}, "unknown scoring 'best'"),
        ({"activation": "tan"}, "unknown function 'tan'"),
    ],
)
def test_a_mixture_that_makes_no_sense_is_refused(changes: dict[str, object], told: str) -> None:
    given = {
        "top_k": 1,
        "scoring": "softmax",
        "normalised": False,
        "weighs_input": False,
        "activation": "silu",
    }
    with pytest.raises(ValueError, match=told):
        _native.Mixture(**given | changes)


def test_sizes_that_do_not_fit_are_refused() -> None:
    mixture = _native.Mixture(2, "softmax", False, False, "silu")
    wide = _native.float_weight(np.zeros((2, 16, 16), np.float32), 32)  # (32, 16)
    back = _native.float_weight(np.zeros((1, 32, 16), np.float32), 16)  # (16, 32)
    x, logits = np.zeros((3, 16), np.float32), np.zeros((3, 2), np.float32)
    mixture.add_expert(wide, None, wide, None, back, None)
    with pytest.raises(ValueError, match="a mixture of 1 experts, of which each row chooses 2"):
        _native.experts(x, logits, mixture, np.empty_like(x))
    with pytest.raises(ValueError, match="down, outputs, has size 32 where 16"):
        mixture.add_expert(wide, None, wide, None, wide, None)
    with pytest.raises(ValueError, match="up, bias, has size 3 where 32"):
        mixture.add_expert(wide, None, wide, np.zeros(3, np.float32), back, None)
    mixture.add_expert(wide, None, wide, None, back, None)
    with pytest.raises(ValueError, match="logits, second axis, has size 3 where 2"):
        _native.experts(x, np.zeros((3, 3), np.float32), mixture, np.empty_like(x))
    program = _native.Program([])
    rows = program.given_rows(16)
    with pytest.raises(ValueError, match="logits, second axis, has size 16 where 2"):
        program.experts(rows, rows, mixture)
    _native.experts(x[:0], logits[:0], mixture, np.empty((0, 16), np.float32))


@pytest.mark.full
def test_relu_and_the_clamped_gate(ops: Ops, rng: np.random.Generator) -> None:
    import torch

    gate, up = 5 * random_rows(rng, 3, 77), 5 * random_rows(rng, 3, 77)
    gate[0, :3], up[1, :2] = (np.nan, 1e30, -1e30), (np.nan, 30)
    np.testing.assert_array_equal(ops.activate(gate, "relu"), torch.relu(torch.from_numpy(gate)).numpy())
    np.testing.assert_array_equal(
        ops.gated(gate, up, "relu"), torch.relu(torch.from_numpy(gate)).numpy() * up
    )
    g, u = torch.from_numpy(gate).double().clamp(max=7), torch.from_numpy(up).double().clamp(-7, 7)
    expected = (u + 1) * (g * torch.sigmoid(1.702 * g))
    np.testing.assert_allclose(ops.gated(gate, up, "swiglu_clamped"), expected.numpy(), rtol=1e-6, atol=1e-6)
    with pytest.raises(ValueError, match="unknown"):
        ops.activate(gate, "swiglu_clamped")
