"""Quantised safetensors mean what the packages that wrote them say, and unsound ones are refused by name.

`vectors/quantised.safetensors` was packed, and unpacked again, by AutoGPTQ 0.7.1, AutoAWQ 0.2.7 and
compressed-tensors 0.20: for each case the tensors of one layer, and `expected`, their own float32 weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tests.model.checkpoints import random_prompt
from tests.model.chunks import load, run_chunks
from tests.model.model_bench import expected_logits, make_model, save_model

from octavo.errors import BadModelFile, ModelError, UnsupportedModel
from octavo.fields import Fields
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import unpack_vector
from octavo.model.files.safetensors_file import SINGLE_NAME, read_safetensors
from octavo.model.loader import open_files
from octavo.model.quantised import layouts
from octavo.model.quantised.blocks import float8_values
from octavo.model.quantised.settings import OUTCOMES
from octavo.model.quantised.source import DequantisedFiles, dequantised_source
from octavo.model.reader import WeightReader
from octavo.model.weights import read_weights

pytestmark = pytest.mark.full

VECTORS = Path(__file__).parent / "vectors" / "quantised.safetensors"
EXACT, MINIMA, ANEW, ROUNDED = "exact", "minima", "anew", "rounded"
CASES = {
    "gptq4": ("Q4_0", EXACT),
    "gptq4_asym": ("Q4_1", MINIMA),
    "gptq4_act": ("Q8_0", ANEW),
    "gptq8": ("Q8_0", EXACT),
    "gptq8_asym": ("Q8_0", ANEW),
    "awq4": ("Q4_1", MINIMA),
    "ct_int4": ("Q4_0", EXACT),
    "ct_int4_asym": ("Q4_1", EXACT),
    "ct_int4_channel": ("Q4_0", EXACT),
    "ct_int8_packed": ("Q8_0", EXACT),
    "ct_int8": ("Q8_0", EXACT),
    "ct_int8_asym": ("Q8_0", ANEW),
    "ct_int8_narrow": ("BF16", ROUNDED),
    "ct_fp8_tensor": ("BF16", ROUNDED),
    "ct_fp8_channel": ("BF16", ROUNDED),
    "ct_fp8_block": ("BF16", ROUNDED),
}


def case_of(case):
    every = load_file(VECTORS)
    with safe_open(VECTORS, "pt") as file:
        settings = json.loads(file.metadata()["about"])[case]
    parts = {key.split(".")[1]: value for key, value in every.items() if key.split(".")[0] == case}
    return parts, settings


def source_of(folder, parts, settings, **others):
    folder.mkdir(exist_ok=True)
    tensors = {f"m.{name}": value for name, value in parts.items() if name != "expected"} | others
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / SINGLE_NAME)
    config = {} if settings is None else {"quantization_config": settings}
    return dequantised_source(read_safetensors(folder), Fields("config.json", config))


def allowed_error(loss, parts):
    """For each weight, or for all: what the loss says."""
    expected = parts["expected"].numpy()
    if loss == ROUNDED:
        return np.abs(expected) / 256
    if loss == ANEW:
        groups = np.abs(expected).reshape(-1, 32).max(axis=1, keepdims=True)
        return np.broadcast_to(groups / 225, (groups.size, 32)).reshape(expected.shape)
    scales = parts["scales"] if "scales" in parts else parts["weight_scale"]
    return float(scales.max()) / 128


@pytest.mark.parametrize("case", CASES)
def test_weights_equal_those_of_the_package_that_packed_them(case, tmp_path):
    parts, settings = case_of(case)
    plain = torch.randn(4, 4)
    source = source_of(tmp_path, parts, settings, **{"norm.weight": plain})
    kind, loss = CASES[case]
    assert sorted(source.tensors) == ["m.weight", "norm.weight"]
    raw = source.tensors["m.weight"]
    expected = parts["expected"].numpy()
    assert (raw.kind, raw.shape) == (kind, expected.shape)
    weights = unpack_vector(raw)
    if loss == EXACT:
        np.testing.assert_array_equal(weights, expected)
    else:
        assert (np.abs(weights - expected) <= allowed_error(loss, parts)).all()
        assert not np.array_equal(weights, expected), "it is told as lossy, and is not"
    np.testing.assert_array_equal(unpack_vector(source.tensors["norm.weight"]), plain.numpy())


@pytest.mark.parametrize("case", ["gptq4", "awq4", "ct_int8_asym", "ct_fp8_block"])
def test_the_kind_is_known_from_headers_and_the_loss_is_reported(case, tmp_path):
    source = source_of(tmp_path, *case_of(case))
    assert [outcome.kind for outcome in source.outcomes] == [CASES[case][0]]
    assert f"lost: {next(iter(source.outcomes)).loss}" in source.in_words()


def test_one_matrix_is_held_decoded_and_a_released_one_is_decoded_again(tmp_path):
    parts, settings = case_of("gptq4")
    source = source_of(tmp_path, parts, settings)
    first = source.tensors["m.weight"]
    assert source.tensors.get("m.weight") is first
    source.release(first)
    again = source.tensors["m.weight"]
    assert again is not first
    assert again.data.tobytes() == first.data.tobytes()


@pytest.mark.parametrize("name", ["glm4", "llama"])
def test_each_matrix_is_decoded_once_and_none_stays_whatever_the_order_of_its_rows(
    name, tmp_path, monkeypatch
):
    """GLM's q and k rows are put in another order, from a copy."""
    path, decoded = save_model(make_model(name), tmp_path), []
    quantise, settings = LAYOUTS["gptq"]
    tensors = {}
    for key, value in load_file(tmp_path / SINGLE_NAME).items():
        parts = quantise(value)[0] if key.endswith("_proj.weight") else {"weight": value}
        stem = key.removesuffix(".weight")
        tensors |= {f"{stem}.{part}": data for part, data in parts.items()} if stem != key else {key: value}
    save_file({key: value.contiguous() for key, value in tensors.items()}, tmp_path / SINGLE_NAME)
    config = tmp_path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": settings}))
    own = layouts._decode
    monkeypatch.setattr(
        layouts, "_decode", lambda parts, codes: decoded.append(codes.name) or own(parts, codes)
    )
    opened = open_files(path)
    read_weights(WeightReader(opened.source, "tiny", False, opened.description, NativeOps()))
    assert sorted(decoded) == sorted(opened.source.matrices)
    assert opened.source._kept == {}


def test_zero_points_of_gptq_v2_are_stored_as_they_are(tmp_path):
    parts, settings = case_of("gptq4_asym")
    one = torch.full_like(parts["qzeros"], 0x11111111)
    moved = parts | {"qzeros": parts["qzeros"] + one}
    source = source_of(tmp_path, moved, settings | {"checkpoint_format": "gptq_v2"})
    expected = source_of(tmp_path / "v1", parts, settings).tensors["m.weight"]
    assert source.tensors["m.weight"].data.tobytes() == expected.data.tobytes()


@pytest.mark.parametrize("kind,dtype", [("F8_E4M3", torch.float8_e4m3fn), ("F8_E5M2", torch.float8_e5m2)])
def test_every_float_of_8_bits_means_what_torch_says(kind, dtype):
    theirs = torch.arange(256, dtype=torch.uint8).view(dtype).float().numpy()
    np.testing.assert_array_equal(float8_values(kind), theirs)


@pytest.mark.parametrize("name,blocks", [("weight_scale_inv", [128, 128]), ("weight_scale", None)])
def test_fine_grained_and_plain_fp8_are_multiplied_by_their_scales(name, blocks, tmp_path):
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(200, 300, generator=generator).to(torch.float8_e4m3fn)
    scales = torch.rand(2, 3, generator=generator) if blocks else torch.tensor(0.03)
    settings = {"quant_method": "fp8", "activation_scheme": "static"}
    settings |= {"weight_block_size": blocks} if blocks else {}
    parts = {"weight": codes, name: scales, "input_scale": torch.tensor(1.0)}
    raw = source_of(tmp_path, parts, settings).tensors["m.weight"]
    wide = scales
    if blocks:
        wide = scales.repeat_interleave(128, 0)[:200].repeat_interleave(128, 1)[:, :300]
    expected = (codes.float() * wide).bfloat16().float().numpy()
    np.testing.assert_array_equal(unpack_vector(raw), expected)


def broken(parts, settings, change):
    return {**parts, **change.get("parts", {})}, {**settings, **change.get("settings", {})}


@pytest.mark.parametrize(
    "case,change,message",
    [
        ("gptq4", {"settings": {"bits": 3}}, "bits is 3; allowed: 4 or 8"),
        ("gptq4", {"settings": {"checkpoint_format": "marlin"}}, "'marlin'; allowed: gptq, gptq_v2"),
        ("gptq4", {"settings": {"quant_method": "hqq"}}, "'hqq'; allowed: gptq, awq"),
        ("gptq4", {"settings": {"group_size": 0}}, "group_size is 0"),
        ("gptq4", {"settings": {"group_size": 48}}, "groups of 48; allowed: a divisor"),
        ("gptq4", {"parts": {"scales": None}}, "no tensor 'm.scales'"),
        (
            "gptq4",
            {"parts": {"scales": torch.ones(3, 32).half()}},
            r"'m.scales' has shape \(3, 32\); expected",
        ),
        ("gptq4", {"parts": {"scales": torch.ones(2, 32).int()}}, "stored as I32; allowed: BF16, F16, F32"),
        ("gptq4", {"parts": {"qzeros": torch.ones(2, 3).int()}}, "'m.qzeros' has shape"),
        ("gptq4", {"parts": {"g_idx": torch.zeros(7).int()}}, "'m.g_idx' has shape"),
        ("gptq4", {"parts": {"qweight": torch.ones(4).int()}}, "two dimensions"),
        ("awq4", {"settings": {"version": "gemv"}}, "'gemv'; allowed: gemm"),
        ("awq4", {"parts": {"qzeros": None}}, "no tensor 'm.qzeros'"),
        ("ct_int4", {"settings": {"format": "marlin-24"}}, "'marlin-24'; allowed: pack-quantized"),
        ("ct_int4", {"parts": {"weight_shape": torch.tensor([32, 500])}}, "4 or 8 bits a weight"),
        ("ct_int4", {"parts": {"weight_shape": torch.tensor([32, -128])}}, "4 or 8 bits a weight"),
        ("ct_int4", {"parts": {"weight_scale": torch.ones(32, 5)}}, "5 groups for 128 inputs"),
        ("ct_int8", {"parts": {"weight_scale": torch.ones(31, 1)}}, r"for a matrix \(32, 128\); allowed: 1"),
        ("ct_int8", {"parts": {"weight_scale": None}}, "no tensor 'm.weight_scale'"),
        ("ct_int8_asym", {"parts": {"weight_zero_point": torch.zeros(3).to(torch.int8)}}, "has shape"),
        ("ct_fp8_block", {"parts": {"weight_scale": torch.ones(2, 9)}}, "9 groups|for a matrix"),
        (
            "ct_fp8_tensor",
            {"settings": {"quant_method": "gptq", "bits": 4, "format": "gptq"}},
            "no layout of gptq",
        ),
        ("ct_int8", {"settings": {"sparsity_config": {"format": "sparse-24-bitmask"}}}, "sparsity_config"),
    ],
)
def test_what_does_not_fit_is_refused_by_name_before_it_is_read(case, change, message, tmp_path):
    parts, settings = broken(*case_of(case), change)
    parts = {name: value for name, value in parts.items() if value is not None}
    with pytest.raises(ModelError, match=message):
        source_of(tmp_path, parts, settings)


def test_an_order_that_names_no_group_is_refused_when_it_is_read(tmp_path):
    parts, settings = case_of("gptq4_act")
    parts["g_idx"][5] = 9
    with pytest.raises(BadModelFile, match="names groups 0 to 9; allowed: 0 to 1"):
        _ = source_of(tmp_path, parts, settings).tensors["m.weight"]


def test_scales_beyond_halves_are_refused(tmp_path):
    parts, settings = case_of("ct_int8")
    with pytest.raises(BadModelFile, match="65,504 at most"):
        _ = source_of(tmp_path, parts | {"weight_scale": torch.tensor([1e6])}, settings).tensors["m.weight"]


def test_packed_weights_without_settings_are_refused(tmp_path):
    parts, _ = case_of("gptq4")
    with pytest.raises(UnsupportedModel, match="no quantization_config"):
        source_of(tmp_path, parts, None)


def test_a_weight_that_is_there_twice_is_refused(tmp_path):
    parts, settings = case_of("gptq4")
    with pytest.raises(BadModelFile, match="both quantised and as it is"):
        source_of(tmp_path, parts | {"weight": torch.ones(32, 128)}, settings)


def test_random_settings_and_shapes_are_errors_never_crashes(tmp_path):
    generator = np.random.default_rng(5)
    values = [None, -1, 0, 3, 4, 8, 2**40, "x", [1], {"a": 1}, True, 1.5, [128, 128], [0, 2**60]]
    refused = 0
    for trial in range(300):
        parts, settings = case_of(list(CASES)[trial % len(CASES)])
        keys = [*settings, "weight_block_size", "kv_cache_scheme", "desc_act"]
        settings[keys[generator.integers(len(keys))]] = values[generator.integers(len(values))]
        if trial % 3 == 0:
            name = list(parts)[generator.integers(len(parts))]
            parts[name] = parts[name].reshape(-1)[: generator.integers(1, 9)].clone()
        try:
            source = source_of(tmp_path, parts, settings)
            assert isinstance(source, DequantisedFiles)
            assert all(raw.data.size for raw in source.tensors.values())
        except ModelError:
            refused += 1
    assert 100 < refused < 300


# -- whole models --------------------------------------------------------------------------------------


def symmetric(weight, bits, group):
    """Codes (outputs, inputs), scales (outputs, groups) that are exact halves, and the weights they mean."""
    groups = weight.reshape(weight.shape[0], -1, group)
    scales = (groups.abs().amax(-1) / (2 ** (bits - 1) - 1)).half().float()
    codes = torch.round(groups / scales[..., None]).clamp(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return codes.reshape(weight.shape).int(), scales, (codes * scales[..., None]).reshape(weight.shape)


def in_words(codes, bits):
    """(..., N) unsigned -> (..., N * bits / 32) int32, the lowest first."""
    per = 32 // bits
    shifts = torch.arange(per, dtype=torch.int64) * bits
    words = (codes.long().reshape(*codes.shape[:-1], -1, per) << shifts).sum(-1)
    return torch.where(words >= 2**31, words - 2**32, words).int()


def as_gptq(weight):
    codes, scales, meant = symmetric(weight, 4, 32)
    zeros = torch.full((scales.shape[1], weight.shape[0]), 7)
    parts = {"qweight": in_words((codes + 8), 4).T, "scales": scales.T.half(), "qzeros": in_words(zeros, 4)}
    return parts, meant


def as_awq(weight):
    codes, scales, meant = symmetric(weight, 4, 32)
    order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])

    def words(values):
        return in_words(values.reshape(values.shape[0], -1, 8)[:, :, order].reshape(values.shape), 4)

    zeros = torch.full((scales.shape[1], weight.shape[0]), 8)
    return {"qweight": words((codes + 8).T), "scales": scales.T.half(), "qzeros": words(zeros)}, meant


def as_packed(weight):
    codes, scales, meant = symmetric(weight, 4, 32)
    shape = torch.tensor(weight.shape)
    return {"weight_packed": in_words(codes + 8, 4), "weight_scale": scales, "weight_shape": shape}, meant


def as_int8(weight):
    codes, scales, meant = symmetric(weight, 8, weight.shape[1])
    return {"weight": codes.to(torch.int8), "weight_scale": scales}, meant


def as_fp8(weight):
    scales = torch.rand(1, 1) + 0.5
    codes = (weight / scales).to(torch.float8_e4m3fn)
    return {"weight": codes, "weight_scale_inv": scales}, (codes.float() * scales).bfloat16().float()


CT = {"quant_method": "compressed-tensors", "quantization_status": "compressed"}
LAYOUTS = {
    "gptq": (as_gptq, {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True}),
    "awq": (as_awq, {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}),
    "packed": (as_packed, CT | {"format": "pack-quantized"}),
    "int8": (as_int8, CT | {"format": "int-quantized"}),
    "fp8": (as_fp8, {"quant_method": "fp8", "weight_block_size": [128, 128]}),
}


def save_quantised(layout, folder):
    """A llama with quantised projections, and the same in transformers with what its weights mean."""
    quantise, settings = LAYOUTS[layout]
    theirs = make_model("llama")
    tensors = {}
    for name, value in theirs.state_dict().items():
        if "_proj" not in name:
            tensors[name] = value.clone()
            continue
        parts, meant = quantise(value)
        value.copy_(meant)
        tensors |= {f"{name.removesuffix('.weight')}.{part}": data for part, data in parts.items()}
    path = save_model(theirs, folder)
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / SINGLE_NAME)
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": settings}
    (folder / "config.json").write_text(json.dumps(config))
    return path, theirs


@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_a_quantised_llama_equal_transformers_on_what_its_weights_mean(layout, tmp_path):
    path, theirs = save_quantised(layout, tmp_path)
    tokens = random_prompt(41)
    ops, model = load(path, "native")
    np.testing.assert_allclose(
        run_chunks(ops, model, tokens, [41]), expected_logits(theirs, tokens), atol=1e-4
    )


def test_every_outcome_names_its_loss():
    assert all(outcome.loss and outcome.layout for outcome in OUTCOMES.values())
