"""Every family, and folders that are quantised already, as GGUF."""

from __future__ import annotations

import json

import pytest
from tests.model.conversion.test_convert import as_gguf, logits, quiet, require_the_folders_logits
from tests.model.model_bench import CONFIGS, make_model, save_model
from tests.model.quantised.test_quantised import LAYOUTS

from octavo.model.conversion.convert import Target
from octavo.model.conversion.convert_folder import convert_folder

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", CONFIGS)
def test_every_familys_folder_as_gguf_gives_its_logits_bit_for_bit(name, tmp_path):
    require_the_folders_logits(save_model(make_model(name), tmp_path / "model"), name, tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_quantised_folders_keep_their_weights(layout, tmp_path):
    import safetensors.torch

    folder = save_model(make_model("llama"), tmp_path / "model")
    quantise, settings = LAYOUTS[layout]
    stored = folder.path / "model.safetensors"
    tensors = {}
    for name, value in safetensors.torch.load_file(stored).items():
        parts = quantise(value)[0] if "_proj" in name else {"weight": value}
        tensors |= {
            f"{name.removesuffix('.weight')}.{part}": data.contiguous() for part, data in parts.items()
        }
    safetensors.torch.save_file(tensors, stored)
    config = folder.path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": settings}))
    convert_folder(folder.path, Target(tmp_path / "out.gguf", "auto"), quiet)
    assert logits(as_gguf(tmp_path / "out.gguf")).tobytes() == logits(folder).tobytes()
