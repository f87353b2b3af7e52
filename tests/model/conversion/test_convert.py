"""A converted file gives what `--weights` of that name gives, and is there whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import gguf
import numpy as np
import pytest
from tests.blocks import dequantised
from tests.model.checkpoints import SHAPES, random_prompt, save_checkpoint
from tests.model.chunks import run_chunks

from octavo.cli.convert import in_words, run
from octavo.errors import BadModelFile, ConfigError, UnsupportedModel
from octavo.kernels.integer_reference import requantised
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.packed import unpack_vector
from octavo.model.conversion.convert import Target, convert_gguf
from octavo.model.conversion.convert_folder import convert_folder
from octavo.model.files.gguf import read_gguf
from octavo.model.files.gguf_writer import PlannedTensor
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model

TOKENS = random_prompt(41)
# Settings of the tiny models that GGUF has no key for.
UNSAID = {
    "gemma2": "attention_scale",
    "gemma3_text": "attention_scale",
    "llama4_text": "temperatures",
    "llama4_text-no-norm": "ropes, temperatures, norms_after_rope, mixed_layers",
    "ministral": "windows",
    "qwen2-window": "windows",
    "smollm3-window": "ropes, windows",
}


def quiet(_message: str) -> None:
    pass


def logits(path: ModelPath, weights: str = "auto") -> np.ndarray:
    ops = NativeOps(weights)
    return run_chunks(ops, load_model(path, ops).model, TOKENS, [41])


def as_gguf(path) -> ModelPath:
    return ModelPath("tiny", path, "gguf")


@pytest.fixture
def folder(tmp_path):
    return save_checkpoint("llama", tmp_path / "model")


@pytest.fixture
def file(folder, tmp_path):
    """The tiny Llama as GGUF, in float32."""
    convert_folder(folder.path, Target(tmp_path / "f32.gguf", "f32"), quiet)
    return tmp_path / "f32.gguf"


def require_the_folders_logits(path: ModelPath, name: str, tmp_path: Path) -> None:
    """The model as GGUF computes what its folder does, or GGUF cannot say it."""
    out = tmp_path / "out.gguf"
    if name in UNSAID:
        with pytest.raises(UnsupportedModel, match=rf"cannot say its {UNSAID[name]};"):
            convert_folder(path.path, Target(out, "f32"), quiet)
        assert not out.exists()
        return
    convert_folder(path.path, Target(out, "f32"), quiet)
    if name == "llama-rope-llama3":  # factors are rounded to float32
        np.testing.assert_allclose(logits(as_gguf(out)), logits(path), rtol=0, atol=1e-4)
    else:
        assert logits(as_gguf(out)).tobytes() == logits(path).tobytes()


@pytest.mark.parametrize("name", SHAPES)
def test_a_folder_as_gguf_gives_its_logits_bit_for_bit(name, tmp_path):
    require_the_folders_logits(save_checkpoint(name, tmp_path / "model"), name, tmp_path)


@pytest.mark.parametrize("weights", ["bf16", "int8", "q4"])
@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2", "qwen3_moe"])
def test_a_kind_in_the_file_is_the_kind_of_the_setting(name, weights, tmp_path):
    path = save_checkpoint(name, tmp_path / "model")
    once, twice = tmp_path / "once.gguf", tmp_path / "twice.gguf"
    convert_folder(path.path, Target(once, weights), quiet)
    expected = logits(path, weights)
    assert logits(as_gguf(once)).tobytes() == expected.tobytes()
    convert_folder(path.path, Target(tmp_path / "f32.gguf", "f32"), quiet)
    convert_gguf(tmp_path / "f32.gguf", Target(twice, weights), quiet)
    assert logits(as_gguf(twice)).tobytes() == expected.tobytes()


def test_the_gguf_package_reads_what_is_written(file, tmp_path):
    out = tmp_path / "q4.gguf"
    plan = convert_gguf(file, Target(out, "q4"), quiet)
    theirs, before = gguf.GGUFReader(out), read_gguf(file)
    assert [tensor.name for tensor in theirs.tensors] == [planned.name for planned in plan]
    for tensor in theirs.tensors:
        source = before.tensors[tensor.name]
        if len(source.shape) == 1:
            np.testing.assert_array_equal(tensor.data, unpack_vector(source))
            continue
        kind = "Q8_0" if tensor.name in ("token_embd.weight", "output.weight") else "Q4_1"
        assert tensor.tensor_type.name == kind
        assert tensor.data.tobytes() == requantised(source, kind).data.tobytes()
    assert theirs.fields["general.file_type"].contents() == 3
    assert theirs.fields["general.quantization_version"].contents() == 2
    assert theirs.fields["llama.block_count"].contents() == 3


def test_metadata_of_a_gguf_are_copied_byte_for_byte(tmp_path):
    source = tmp_path / "source.gguf"
    writer = gguf.GGUFWriter(source, "llama")
    writer.add_uint16("some.u16", 7)
    writer.add_float64("some.f64", 0.1)
    writer.add_array("some.strings", ["a", "ü", ""])
    writer.add_array("some.numbers", [1, -2, 3])
    writer.add_bool("some.flag", True)
    writer.add_file_type(1)
    weight = np.random.default_rng(1).normal(size=(32, 64)).astype(np.float16)
    for name in ("token_embd.weight", "blk.0.ffn_gate_inp.weight"):
        writer.add_tensor(name, weight)
    writer.add_tensor("blk.0.attn_q.bias", weight[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    convert_gguf(source, Target(tmp_path / "out.gguf", "int8"), quiet)
    had, has = read_gguf(source), read_gguf(tmp_path / "out.gguf")
    changed = {"general.file_type", "general.quantization_version"}
    assert {key: data.tobytes() for key, data in had.pairs.items() if key not in changed} == {
        key: data.tobytes() for key, data in has.pairs.items() if key not in changed
    }
    kinds = {name: raw.kind for name, raw in has.tensors.items()}
    assert kinds == {
        "token_embd.weight": "Q8_0",
        "blk.0.ffn_gate_inp.weight": "Q8_0",
        "blk.0.attn_q.bias": "F16",
    }


def test_the_tokenizer_is_kept_whole(folder, file):
    had, has = (load_model(path, NativeOps()).tokenizer for path in (folder, as_gguf(file)))
    text = "Hello wörld"
    assert has.encode(text) == had.encode(text)
    assert (has.bos_id, has.eos_id, has.stop_ids) == (had.bos_id, had.eos_id, had.stop_ids)
    assert has.to_json() == had.to_json()


def test_special_tokens_and_the_template_are_kept(folder, tmp_path):
    (folder.path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6, 7]}))
    settings = {"bos_token": "!", "eos_token": "&", "chat_template": "{{ messages[0].content }}"}
    (folder.path / "tokenizer_config.json").write_text(json.dumps(settings))
    out = tmp_path / "out.gguf"
    convert_folder(folder.path, Target(out, "f32"), quiet)
    had, has = (load_model(path, NativeOps()).tokenizer for path in (folder, as_gguf(out)))
    assert has.stop_ids == had.stop_ids == {5, 6, 7}
    assert (has.bos_id, has.eos_id) == (had.bos_id, had.eos_id)
    assert has.chat_template is not None
    assert has.chat_template.source == settings["chat_template"]
    (folder.path / "generation_config.json").write_text(json.dumps({"eos_token_id": [5, 6, 7, 8]}))
    with pytest.raises(UnsupportedModel, match="end tokens"):
        convert_folder(folder.path, Target(tmp_path / "more.gguf", "f32"), quiet)


@pytest.mark.parametrize(
    "target,message",
    [
        (("f32.gguf", "q4"), "exists; allowed: another name, or --overwrite"),
        (("out.bin", "q4"), "does not end in .gguf"),
        (("none/out.gguf", "q4"), "is no folder"),
        (("out.gguf", "q3"), "weights is 'q3'; allowed: auto, f32, bf16, int8, q4"),
        (("out.gguf", "auto"), "would copy the file"),
    ],
)
def test_a_target_that_makes_no_sense_is_refused(target, message, file, tmp_path):
    with pytest.raises(ConfigError, match=message):
        convert_gguf(file, Target(tmp_path / target[0], target[1]), quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f32.gguf", "model"]


def test_a_file_is_replaced_only_when_told_also_by_itself(file):
    size = file.stat().st_size
    convert_gguf(file, Target(file, "q4", overwrite=True), quiet)
    assert file.stat().st_size < size / 4
    assert np.isfinite(logits(as_gguf(file))).all()


def test_a_full_disk_leaves_nothing_behind_and_keeps_what_was_there(file, tmp_path, monkeypatch):
    before = file.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(ConfigError, match="No space left on device; about"):
        convert_gguf(file, Target(file, "q4", overwrite=True), quiet)
    monkeypatch.undo()
    assert file.read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f32.gguf", "model"]


def test_an_interrupt_leaves_nothing_behind(file, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.model.conversion.convert.Reporter.add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        convert_gguf(file, Target(tmp_path / "out.gguf", "q4"), quiet)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f32.gguf", "model"]


def test_tensors_are_encoded_in_slabs_of_rows(file, tmp_path, monkeypatch):
    convert_gguf(file, Target(tmp_path / "whole.gguf", "q4"), quiet)
    for module in ("convert", "convert_folder"):
        monkeypatch.setattr(f"octavo.model.conversion.{module}.SLAB_ELEMENTS", 1)
    convert_gguf(file, Target(tmp_path / "slabs.gguf", "q4"), quiet)
    assert (tmp_path / "slabs.gguf").read_bytes() == (tmp_path / "whole.gguf").read_bytes()


def test_a_model_that_cannot_be_served_is_not_converted(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "odd")
    writer.add_tensor("x", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="'odd'; allowed: llama"):
        convert_gguf(tmp_path / "odd.gguf", Target(tmp_path / "out.gguf", "q4"), quiet)
    (tmp_path / "odd.gguf").write_bytes(b"GGUF")
    with pytest.raises(BadModelFile):
        convert_gguf(tmp_path / "odd.gguf", Target(tmp_path / "out.gguf", "q4"), quiet)


def test_the_command_says_what_is_in_the_file(file, tmp_path, capsys):
    run(str(file), tmp_path / "out.gguf", "q4", overwrite=False)
    said = capsys.readouterr().out
    assert "out.gguf: " in said
    assert "Q4_1" in said
    assert in_words([PlannedTensor("a", "F32", (256,)), PlannedTensor("b", "Q8_0", (4096, 32))]) == (
        "137 KiB: Q8_0 136 KiB, F32 1.0 KiB"
    )


@pytest.mark.real_model
def test_the_default_model_in_8_bits_equals_its_setting(default_gguf, tmp_path):
    convert_gguf(default_gguf, Target(tmp_path / "out.gguf", "int8"), quiet)
    expected = logits(as_gguf(default_gguf), "int8")
    assert logits(as_gguf(tmp_path / "out.gguf")).tobytes() == expected.tobytes()
    had, has = read_gguf(default_gguf), read_gguf(tmp_path / "out.gguf")
    some = "blk.0.attn_q.weight"
    error = np.abs(dequantised(has.tensors[some]) - dequantised(had.tensors[some])).max()
    assert error < np.abs(dequantised(had.tensors[some])).max() / 200
