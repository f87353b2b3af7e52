"""Promises about `--weights`: which kind each mode makes of a matrix, and that quantising anew is ggml's."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from tests.blocks import QUANTISED, dequantised, encoded, floats_tensor, random_tensor

from octavo import _native
from octavo.kernels import integer_reference
from octavo.kernels.contract import Floats, RawTensor
from octavo.kernels.integers import pack
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import BLOCKS
from octavo.kernels.panels import panel_bytes
from octavo.kernels.reference import ReferenceOps

MODES = ("auto", "f32", "bf16", "int8", "q4")


@pytest.mark.parametrize("backend", [NativeOps, ReferenceOps])
def test_the_mode_decides_how_a_matrix_is_held(
    backend: type[NativeOps] | type[ReferenceOps], rng: np.random.Generator
) -> None:
    plain = floats_tensor(rng.standard_normal((20, 256)).astype(np.float32))
    odd = floats_tensor(rng.standard_normal((20, 48)).astype(np.float32))
    raws = [plain, odd, encoded(plain, "F16"), encoded(plain, "BF16")]
    raws += [random_tensor(kind, 20, 256, rng) for kind in QUANTISED]
    wanted = {
        "auto": ["F32", "F32", "F16", "BF16", *QUANTISED],
        "f32": ["F32"] * 17,
        "bf16": ["BF16"] * 17,
        "int8": ["Q8_0", "F32", *["Q8_0"] * 15],
        "q4": ["Q4_1", "F32", "Q4_1", "Q4_1"],
    }
    few_bits = {"Q4_0", "Q4_1", "IQ4_NL", "MXFP4", "Q2_K", "Q3_K", "Q4_K", "IQ4_XS"}
    wanted["q4"] += [kind if kind in few_bits else "Q4_1" for kind in QUANTISED]
    tables = wanted | {"q4": ["Q8_0", "F32", "Q8_0", "Q8_0", *QUANTISED]}
    for mode in MODES:
        ops = backend(mode)
        assert [ops.matrix(raw).kind for raw in raws] == wanted[mode]
        assert [ops.matrix(raw, table=True).kind for raw in raws] == tables[mode]


@pytest.mark.parametrize("backend", [NativeOps, ReferenceOps])
def test_modes_have_different_arithmetic(backend: type[NativeOps] | type[ReferenceOps]) -> None:
    assert len({backend(weights).arithmetic_id for weights in MODES}) == len(MODES)


def test_the_settings_page_shows_what_each_kind_takes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "settings.md").read_text()
    told: dict[str, int] = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and cells[0] in ("auto", ""):
            kinds = re.findall(r"[A-Z0-9]+(?:_[A-Z0-9]+)?", cells[1])
            told |= dict(
                zip(kinds, (int(size.replace(",", "")) for size in cells[2].split(", ")), strict=True)
            )
    assert told == {kind: panel_bytes(kind, (16, 4096)) // 256 for kind in BLOCKS}


def test_an_unknown_mode_is_refused(rng: np.random.Generator) -> None:
    with pytest.raises(ValueError, match="known: auto, f32, bf16, int8, q4"):
        NativeOps("q5").matrix(floats_tensor(np.ones((2, 32), np.float32)))


def _awkward(rng: np.random.Generator) -> Floats:
    """(40, 2048): many sizes, a group of zeros, of one value, of negatives, an outlier, ties, subnormals."""
    values = rng.standard_normal((40, 2048)).astype(np.float32)
    values *= np.exp2(rng.integers(-12, 4, (40, 64, 1))).repeat(32, axis=2).reshape(40, 2048)
    values[3, :32] = 0
    values[3, 32:64] = 0.375
    values[3, 64:96] = -np.abs(values[3, 64:96])
    values[4, 5] = 1000
    values[5, :32] = np.arange(32) * 0.5
    values[5, 31] = 127  # a scale of 1: ties
    values[6, :32] *= np.float32(1e-6)  # scales that are subnormal halves
    return values


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_quantising_again_is_that_of_the_gguf_package(kind: str, rng: np.random.Generator) -> None:
    raw = floats_tensor(_awkward(rng))
    wanted = encoded(raw, kind)
    np.testing.assert_array_equal(integer_reference.requantised(raw, kind).data, wanted.data)
    np.testing.assert_array_equal(pack(raw, kind).panels, pack(wanted).panels)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("source", ["F16", "BF16", *QUANTISED])
def test_every_kind_can_be_quantised_again(kind: str, source: str, rng: np.random.Generator) -> None:
    if source in ("F16", "BF16"):
        raw = encoded(floats_tensor(_awkward(rng)), source)
        halves = raw.data.view(np.uint16)
        halves[halves == 0x8000] = 0  # NumPy's smallest of both zeros is the first of them
    else:
        raw = random_tensor(source, 37, 512, rng)
    values = dequantised(raw) + np.float32(0)  # likewise
    wanted = raw if source == kind else encoded(floats_tensor(values), kind)
    np.testing.assert_array_equal(pack(raw, kind).panels, pack(wanted).panels)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_group_that_is_no_number_stays_none(kind: str, poison: float, rng: np.random.Generator) -> None:
    values = rng.standard_normal((16, 64)).astype(np.float32)
    values[7, 40] = poison
    raw = floats_tensor(values)
    again = integer_reference.requantised(raw, kind)
    np.testing.assert_array_equal(pack(raw, kind).panels, pack(again).panels)
    given = NativeOps("auto").embed(pack(raw, kind), np.arange(16, dtype=np.int32))
    assert np.isnan(given[7, 32:]).all()
    given[7, 32:] = 0
    assert np.isfinite(given).all()


@pytest.mark.parametrize("kind, levels", [("Q8_0", 254), ("Q4_1", 15)])
def test_weights_quantised_again_are_within_half_a_step(
    kind: str, levels: int, rng: np.random.Generator
) -> None:
    values = rng.standard_normal((40, 64, 32)).astype(np.float32)
    again = ReferenceOps().embed(
        integer_reference.read(integer_reference.requantised(floats_tensor(values.reshape(40, -1)), kind)),
        np.arange(40, dtype=np.int32),
    )
    span = 2 * np.abs(values).max(axis=2) if kind == "Q8_0" else np.ptp(values, axis=2)
    error = np.abs(again.reshape(values.shape) - values).max(axis=2)
    assert (error <= span / levels * 0.57).all()  # half a step, and the rounding of the halves


def test_halves_give_the_bits_of_their_values_in_float32(rng: np.random.Generator) -> None:
    values = rng.standard_normal((150, 97)).astype(np.float32)
    values[3, :4] = [0.0, -0.0, 1e-7, -3e-5]  # subnormal halves
    raw = encoded(floats_tensor(values), "F16")
    half, full = NativeOps("auto"), NativeOps("f32")
    matrix, wide = half.matrix(raw), full.matrix(raw)
    assert matrix.num_bytes * 2 == wide.num_bytes
    bias = rng.standard_normal(150).astype(np.float32)
    for rows in (1, 2, 3, 5, 6, 8, 9, 17, 33):
        x = rng.standard_normal((rows, 97)).astype(np.float32)
        given = half.linear(x, matrix, bias)
        np.testing.assert_array_equal(given.view(np.uint32), full.linear(x, wide, bias).view(np.uint32))
    every = np.arange(150, dtype=np.int32)
    np.testing.assert_array_equal(half.embed(matrix, every), full.embed(wide, every))


@pytest.mark.parametrize("inputs", [2, 30, 96, 578])
def test_brain_floats_meet_rounded_rows_in_pairs(inputs: int, rng: np.random.Generator) -> None:
    """The specification's bits at every number of rows; rows that are no numbers are lost alone."""
    values = rng.standard_normal((150, inputs)).astype(np.float32)
    values[3, :2] = [0.0, -0.0]
    values[4, :2] = np.array([0x00010000, 0x80200000], np.uint32).view(np.float32)  # subnormal
    raw = encoded(floats_tensor(values), "BF16")
    ops, reference = NativeOps(), ReferenceOps()
    matrix, specified = ops.matrix(raw), reference.matrix(raw)
    bias = rng.standard_normal(150).astype(np.float32)
    x = rng.standard_normal((33, inputs)).astype(np.float32)
    x[:, 0] *= np.float32(2.0) ** rng.integers(-100, 100, 33)
    x[5, 0], x[6, 1], x[7, 0], x[8] = np.nan, np.inf, 3.4e38, 1e-39
    with np.errstate(all="ignore"):
        wanted = reference.linear(x, specified, bias)
    assert not np.isfinite(wanted[5:8]).all(axis=1).any()
    for rows in (1, 2, 3, 5, 6, 8, 9, 17, 33):
        given = ops.linear(x[:rows].copy(), matrix, bias)
        number = ~np.isnan(wanted[:rows])
        np.testing.assert_array_equal(np.isnan(given), ~number)
        np.testing.assert_array_equal(given[number].view(np.uint32), wanted[:rows][number].view(np.uint32))


@pytest.mark.full
def test_brain_floats_are_near_torch(rng: np.random.Generator) -> None:
    import torch

    w, x = (torch.tensor(rng.standard_normal(shape), dtype=torch.bfloat16) for shape in ((70, 512), (9, 512)))
    raw = RawTensor("w", "BF16", (70, 512), w.view(torch.uint8).numpy().reshape(-1))
    ops = NativeOps()
    given = ops.linear(x.float().numpy(), ops.matrix(raw))
    np.testing.assert_allclose(given, (x.double() @ w.double().T).numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("mode", ["auto", "bf16"])
def test_rows_of_an_odd_number_become_float32(mode: str, rng: np.random.Generator) -> None:
    values = rng.standard_normal((5, 7)).astype(np.float32)
    raw = encoded(floats_tensor(values), "BF16")
    for ops in (NativeOps(mode), ReferenceOps(mode)):
        assert ops.matrix(raw).kind == "F32"
        given = ops.embed(ops.matrix(raw), np.arange(5, dtype=np.int32))
        np.testing.assert_array_equal(given, dequantised(raw))


def test_bf16_rounds_every_kind_to_nearest_even(rng: np.random.Generator) -> None:
    values = rng.standard_normal((37, 256)).astype(np.float32)
    values[0, :6] = [1.00390625, 1.01171875, np.inf, -np.inf, np.nan, 3.4e38]  # ties, and what must stay
    raws = [floats_tensor(values), encoded(floats_tensor(values[1:]), "F16")]
    raws += [random_tensor(kind, 20, 256, rng) for kind in QUANTISED]
    ops = NativeOps("bf16")
    for raw in raws:
        wanted = dequantised(encoded(floats_tensor(dequantised(raw)), "BF16"))
        given = ops.embed(ops.matrix(raw), np.arange(raw.shape[0], dtype=np.int32))
        np.testing.assert_array_equal(given, wanted)


def test_halves_are_rounded_to_nearest_even() -> None:
    rng = np.random.default_rng(4)
    halves = np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)
    halves = halves[np.isfinite(halves)]
    between = np.nextafter(halves[:-1], halves[1:])
    with np.errstate(all="ignore"):  # some of any bits are signalling
        middle = (halves[:-1] + halves[1:]) / 2  # ties
        any_bits = rng.integers(0, 2**32, 60_000, np.uint32).view(np.float32)
        values = np.concatenate([halves, middle, between, any_bits, [65519.9, 65520.0, 1e9, 2.0**-25]])
        values = values[: values.size // 32 * 32].astype(np.float32)
        wanted = values.astype(np.float16)
    panels = np.empty((1, values.size, 16), np.uint16)
    _native.pack_halves(values.view(np.uint8), "F32", 1, values.size, "F16", panels)
    given, number = panels[0, :, 0], ~np.isnan(values)
    np.testing.assert_array_equal(given[number], wanted.view(np.uint16)[number])
    assert np.isnan(given.view(np.float16)[~number]).all()


def test_wrong_kinds_of_halves_are_refused() -> None:
    panels = np.zeros((1, 4, 16), np.uint16)
    x, out = np.zeros((1, 4), np.float32), np.zeros((1, 16), np.float32)
    _native.linear_halves(x, panels, "BF16", None, out)
    with pytest.raises(ValueError, match="F16 or BF16"):
        _native.linear_halves(x, panels, "F32", None, out)
    odd = np.zeros((1, 3, 16), np.uint16)
    for refused in (
        lambda: _native.linear_halves(x[:, :3].copy(), odd, "BF16", None, out),
        lambda: _native.pack_halves(np.zeros(96, np.uint8), "BF16", 16, 3, "BF16", odd),
        lambda: _native.embed_halves(odd, "BF16", 16, np.zeros(1, np.int32), np.zeros((1, 3), np.float32)),
        lambda: _native.half_weight(odd, "BF16", 16),
    ):
        with pytest.raises(ValueError, match="BF16 have 3 inputs; it must be even"):
            refused()
    with pytest.raises(ValueError, match="F16 or BF16"):
        _native.pack_halves(np.zeros(256, np.uint8), "F32", 16, 4, "Q8_0", panels)
    with pytest.raises(TypeError):
        _native.linear(x, panels, None, out)  # type: ignore[arg-type]
    with pytest.raises(IndexError):
        _native.embed_halves(panels, "F16", 16, np.array([16], np.int32), np.zeros((1, 4), np.float32))


def test_a_lying_super_block_is_refused(rng: np.random.Generator) -> None:
    from octavo.errors import BadModelFile

    raw = RawTensor("w", "Q4_K", (2, 128), np.zeros(144, np.uint8))  # one block over two rows
    with pytest.raises(BadModelFile, match="multiples of 256"):
        NativeOps().matrix(raw)
