"""Loading holds the weights that it makes and one tensor of the file, and tells how far it is in bytes."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import transformers
from tests.model.gguf_bench import write_model
from tests.model.model_bench import make_model

from octavo.kernels.native_ops import NativeOps
from octavo.model import reader
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model, open_files
from octavo.model.weight_sizes import measure_model

pytestmark = pytest.mark.full

SPARE = 20 << 20  # for the rest of the process; the file has 64 MiB, of which a tensor has 4
LOAD = """
import sys
from pathlib import Path
from octavo.kernels.native_ops import NativeOps
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model

def status(name):
    # Not ru_maxrss: that begins with the peak of the process that started this one.
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines[name].split()[0]) * 1024

before = status("VmRSS")
loaded = load_model(ModelPath("m", Path(sys.argv[1]), "gguf"), NativeOps(sys.argv[2]))
print(status("VmHWM") - before, loaded.model.weights.num_bytes)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> ModelPath:
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=1024, intermediate_size=2048, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config)
    return write_model(theirs, tmp_path_factory.mktemp("large") / "large.gguf", "F16")


@pytest.mark.parametrize("weights", ["auto", "q4", "f32"])
def test_the_peak_is_the_weights_and_one_tensor_of_the_file(large, weights):
    done = subprocess.run(
        [sys.executable, "-c", LOAD, str(large.path), weights], capture_output=True, text=True, check=True
    )
    grown, weight_bytes = map(int, done.stdout.split())
    measured = measure_model(open_files(large), weights)
    assert weight_bytes == measured.weights.num_bytes
    assert measured.file_bytes - measured.largest_tensor_bytes > 2 * SPARE, "a leak of it would show"
    assert grown <= measured.num_bytes + measured.largest_tensor_bytes + SPARE


def test_progress_is_reported_in_bytes_of_the_file(tmp_path, monkeypatch):
    monkeypatch.setattr(reader, "_PROGRESS_EVERY_S", -1.0)
    path = write_model(make_model("llama-wide"), tmp_path / "tiny.gguf", "F16")
    said: list[str] = []
    load_model(path, NativeOps(), progress=said.append)
    assert said[0].startswith("loading weights: 0.0 of ")
    assert said[-1].partition(" of ")[2] == said[0].partition(" of ")[2]
    assert len(set(said)) > 5
