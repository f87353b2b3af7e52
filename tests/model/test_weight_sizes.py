"""What a model would take is known from headers, to the byte, and no weight is read for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.model.checkpoints import checkpoint, save_checkpoint
from tests.model.gguf_bench import write_model
from tests.model.model_bench import CONFIGS, make_model, save_model
from tests.model.quantised.test_quantised import LAYOUTS, save_quantised

from octavo.errors import UnsupportedModel
from octavo.kernels.contract import Expert, Linear, Routing
from octavo.kernels.native_ops import NativeOps
from octavo.model.files.gguf import read_gguf
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model, open_files
from octavo.model.packed_cache import meta_tensor
from octavo.model.quantised.source import DequantisedFiles
from octavo.model.reader import take_rows, transpose
from octavo.model.spec import LayerWeights, Mixture, ModelSpec, ModelWeights, Norm
from octavo.model.weight_sizes import HeaderSource, MeasuredMatrix, MeasuredModel, measure_model

pytestmark = pytest.mark.full

MODES = ("auto", "f32", "bf16", "int8", "q4")


def require_measured_as_loaded(path: ModelPath, weights: str) -> None:
    loaded = load_model(path, NativeOps(weights)).model
    measured = measure_model(open_files(path), weights)
    assert measured.weights.bytes_by_kind == loaded.weights.bytes_by_kind
    assert measured.weights.num_parameters == loaded.weights.num_parameters
    assert measured.spec == loaded.spec
    tables = {id(one): one for each in loaded.rope_tables for one in (each.q, each.k) if one is not None}
    assert measured.table_bytes == sum(t.cos.nbytes + t.sin.nbytes for t in tables.values())


@pytest.mark.parametrize("name", sorted(CONFIGS))
def test_a_folder_takes_what_its_headers_say(tmp_path, name):
    path = save_model(make_model(name), tmp_path)
    for weights in MODES:
        require_measured_as_loaded(path, weights)


@pytest.mark.parametrize("kind", ["F16", "Q8_0", "Q4_K", "Q3_K", "IQ4_XS"])
def test_a_gguf_file_takes_what_its_header_says(tmp_path, kind):
    path = write_model(checkpoint("llama-wide"), tmp_path / "wide.gguf", kind)
    for weights in MODES:
        require_measured_as_loaded(path, weights)


def test_half_floats_are_measured_as_they_are_held(tmp_path):
    path = save_model(make_model("llama-tied").half(), tmp_path)
    require_measured_as_loaded(path, "auto")


def overwrite_weights(path: Path) -> None:
    """Holes instead of all tensor data: a weight that is read shows as a page in memory, and as zeros."""
    header = read_gguf(path).header_bytes
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(header)
        file.truncate(size)


def test_no_weight_is_read(tmp_path):
    path = write_model(checkpoint("llama-wide"), tmp_path / "wide.gguf", "Q4_K")
    expected = measure_model(open_files(path), "auto")
    overwrite_weights(path.path)
    opened = open_files(path)
    for raw in HeaderSource(opened).tensors.values():
        of_file = opened.source.tensors[raw.name]
        assert not np.shares_memory(raw.data, of_file.data)
        assert raw.data.size == of_file.data.size
    measured = measure_model(opened, "auto")
    assert measured.weights.bytes_by_kind == expected.weights.bytes_by_kind


def test_what_a_load_refuses_is_refused_in_the_same_words(tmp_path):
    theirs = make_model("llama")
    theirs.model.layers[0].register_parameter("strange", torch.nn.Parameter(torch.ones(3)))
    path = save_model(theirs, tmp_path)
    with pytest.raises(UnsupportedModel) as loading:
        load_model(path, NativeOps())
    with pytest.raises(UnsupportedModel) as measuring:
        measure_model(open_files(path), "auto")
    assert str(measuring.value) == str(loading.value)
    assert "strange" in str(measuring.value)


def test_a_token_reads_all_layers_and_the_output_but_not_the_embedding(tmp_path):
    apart = measure_model(open_files(save_checkpoint("llama", tmp_path / "apart")), "f32")
    tied = measure_model(open_files(save_checkpoint("llama-tied", tmp_path / "tied")), "f32")
    assert apart.bytes_read_for_a_token == apart.weights.num_bytes - apart.weights.embedding.num_bytes
    assert tied.bytes_read_for_a_token == tied.weights.num_bytes


def test_a_meta_tensor_is_turned_and_ordered_without_a_copy():
    raw = meta_tensor("w", "F16", (1 << 20, 1 << 20))  # two terabytes
    assert take_rows(raw, np.arange(1 << 20)[::-1]) is raw
    turned = transpose(meta_tensor("w", "F16", (1 << 20, 1 << 19)))
    assert turned.shape == (1 << 19, 1 << 20)
    assert turned.data.strides == (0,)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_safetensors_are_measured_without_decoding(layout, tmp_path, monkeypatch):
    path, _ = save_quantised(layout, tmp_path)
    loaded = load_model(path, NativeOps()).model
    opened = open_files(path)
    assert isinstance(opened.source, DequantisedFiles)
    monkeypatch.setattr(type(opened.source.tensors), "__getitem__", None)
    measured = measure_model(opened, "auto")
    assert measured.weights.num_parameters == loaded.weights.num_parameters
    # Zero points that turn out to be all alike need no minimum: 4 bytes of 20 less.
    assert loaded.weights.num_bytes <= measured.weights.num_bytes <= 1.3 * loaded.weights.num_bytes


def test_a_token_reads_the_chosen_experts_only():
    def linear(num_bytes: int) -> Linear:
        return Linear(MeasuredMatrix((1, 1), "F32", num_bytes))

    expert = Expert(linear(10), linear(10), linear(10))
    mixture = Mixture(linear(4), (expert,) * 8)
    layer = LayerWeights(linear(1), linear(1), linear(1), linear(1), mixture=mixture)
    table = MeasuredMatrix((1, 1), "F32", 1000)
    norm = Norm(np.ones(1, np.float32))
    weights = ModelWeights(table, (layer, layer), norm, MeasuredMatrix((1, 1), "F32", 500))
    spec = ModelSpec("x", 2, 1, 1, 1, 1, 1, 1, 1, 1.0, routing=Routing(2, "softmax"), num_experts=8)
    model = MeasuredModel("x", spec, weights, 0, 0, 0)
    assert weights.num_bytes == 1500 + 2 * (4 + 4 + 8 * 30)
    assert model.bytes_read_for_a_token == 500 + 2 * (4 + 4 + 2 * 30)
