"""All that is wrong with a model is told before it is loaded, and what is told to run is loaded."""

from __future__ import annotations

import json

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.model.checkpoints import checkpoint, save_checkpoint
from tests.model.gguf_bench import finish, write_model

from octavo.errors import ConfigError, ModelError
from octavo.kernels.reference import ReferenceOps
from octavo.model.files.gguf import read_gguf
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.model_check import check_model


def parts_of(checked):
    return [problem.part for problem in checked.problems]


def test_a_sound_model_has_no_problem_and_is_described(tmp_path):
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf", "Q8_0")
    checked = check_model(path, "auto", context_length=40)
    assert checked.problems == ()
    assert checked.measured.spec == load_model(path, ReferenceOps(), 40).model.spec
    assert list(checked.stored) == ["Q8_0", "F32"]
    assert sum(checked.stored.values()) == read_gguf(path.path).num_bytes
    assert checked.vocabulary.name == "byte-level BPE, cut as smollm"
    assert checked.vocabulary.template is None


def test_every_step_shows_its_problems_whatever_the_others_found(tmp_path):
    path = tmp_path / "many.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    for name, number in (("context_length", 128), ("embedding_length", 256), ("block_count", 4)):
        writer.add_uint32(f"llama.{name}", number)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_uint32("llama.feed_forward_length", 512)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("klingon")
    writer.add_token_list(["a", "b"])
    writer.add_tensor("token_embd.weight", np.zeros((2, 256), np.float32))
    writer.add_tensor("output_norm.weight", np.zeros(128, np.float32))
    for layer in range(3):
        odd = np.zeros((512, 66), np.uint8)
        writer.add_tensor(f"blk.{layer}.ffn_up.weight", odd, raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    writer.add_tensor("strange", np.zeros(3, np.float32))
    finish(writer)
    checked = check_model(ModelPath("many", path, "gguf"), "auto")
    told = [problem.text.replace(f"{path}", "FILE") for problem in checked.problems]
    assert told[0].startswith(
        "FILE: tensor 'blk.0.ffn_up.weight' (and 2 others) is stored as IQ2_XXS; allowed"
    )
    assert "FILE has no tensor 'blk.0.attn_norm.weight' (expected shape (256,)) (3 more like it)" in told
    # That of layer 3 is not there at all; the others are not asked for their kind twice.
    assert "FILE has no tensor 'blk.3.ffn_up.weight' (expected shape (512, 256))" in told
    assert any("'output_norm.weight' has shape (128,); expected (256,)" in text for text in told)
    assert any("has 1 tensors unknown to family llama: strange" in text for text in told)
    assert told[-1].startswith("FILE: pre-tokenizer 'klingon'")
    assert set(parts_of(checked)) == {"tensors", "tokenizer"}


def test_settings_that_are_not_understood_do_not_hide_the_tokenizer(tmp_path):
    path = save_checkpoint("llama", tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"hidden_act": "quick_gelu"}))
    (tmp_path / "tokenizer.json").write_text("{}")
    checked = check_model(path, "auto")
    assert parts_of(checked) == ["settings", "tokenizer"]
    assert "activation 'quick_gelu'" in checked.problems[0].text
    assert checked.measured is None


def test_a_damaged_file_is_a_problem_and_a_long_context_a_wrong_setting(tmp_path):
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    with pytest.raises(ConfigError, match="context_length is 100,000"):
        check_model(path, "auto", context_length=100_000)
    path.path.write_bytes(path.path.read_bytes()[:-100])
    assert parts_of(check_model(path, "auto")) == ["file"]


def test_safetensors_without_a_tensor_lack_every_tensor(tmp_path):
    path = save_checkpoint("llama", tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    checked = check_model(path, "auto")
    assert parts_of(checked)
    assert set(parts_of(checked)) == {"tensors"}
    assert "has no tensor 'model.embed_tokens.weight'" in checked.problems[0].text


def test_a_tensor_of_an_unknown_kind_is_bounded_by_its_file(tmp_path):
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    data = path.path.read_bytes()
    name = b"token_embd.weight"
    at = data.index(name) + len(name) + 4  # behind the number of dimensions
    lying = np.array([2**32, 2**31], "<u8").tobytes() + np.array([16], "<u4").tobytes()
    path.path.write_bytes(data[:at] + lying + data[at + len(lying) :])
    assert "more weights than the file has bits" in check_model(path, "auto").problems[0].text


@pytest.mark.parametrize("seed", range(2))
def test_what_is_run_is_loaded_and_what_is_not_is_refused(seed, tmp_path):
    path = write_model(checkpoint("llama"), tmp_path / "tiny.gguf")
    data = np.frombuffer(path.path.read_bytes(), np.uint8)
    header_bytes = read_gguf(path.path).header_bytes
    generator = np.random.default_rng(seed)
    outcomes = {True: 0, False: 0}
    for _ in range(100):
        changed = data.copy()
        changed[generator.integers(0, header_bytes)] ^= generator.integers(1, 256)
        path.path.write_bytes(changed.tobytes())
        checked = check_model(path, "auto")
        outcomes[not checked.problems] += 1
        try:
            load_model(path, ReferenceOps())
            refusal = ""
        except ModelError as error:
            refusal = str(error)
        if checked.problems:
            assert refusal, checked.problems
        else:  # what only building the vocabulary finds
            assert not refusal or "merges" in refusal or "cannot be distinguished" in refusal
    assert min(outcomes.values()) > 5
