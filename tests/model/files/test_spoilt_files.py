"""Spoilt files, end to end: each is an error that names the file, or loads and answers; never anything else.

Three hundred of each way to be wrong, from fixed seeds, within 64 MiB of memory.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import os
import shutil
import struct

import gguf
import numpy as np
import pytest
import transformers
from tests.model.fuzz_bench import (
    GGUF_CODES,
    ODD_VALUES,
    GgufTensor,
    changed_shape,
    flipped,
    gguf_bytes,
    resized,
    try_each,
    try_tokenizers,
    write_safetensors,
)
from tests.model.gguf_bench import write_model
from tests.model.model_bench import CONFIGS, make_model, save_model

from octavo.model import families
from octavo.model.files.gguf import read_gguf
from octavo.model.hub.paths import ModelPath
from octavo.text.byte_level import byte_level_letters

pytestmark = pytest.mark.full

COUNT = 300
TINY = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
TINY |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 64}
FAMILIES = {
    "llama": lambda: transformers.LlamaConfig(**TINY),
    "gemma2": lambda: transformers.Gemma2Config(
        **TINY, head_dim=16, query_pre_attn_scalar=48, sliding_window=8
    ),
    "gpt2": lambda: transformers.GPT2Config(vocab_size=96, n_embd=32, n_head=2, n_layer=2, n_positions=64),
    "qwen3_moe": lambda: transformers.Qwen3MoeConfig(
        **TINY, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32
    ),
}


def made(name, monkeypatch):
    monkeypatch.setitem(CONFIGS, name, FAMILIES[name])
    return make_model(name)


@pytest.fixture
def whole(tmp_path, monkeypatch):
    """A model as one GGUF file."""
    return write_model(made("llama", monkeypatch), tmp_path / "sound.gguf", "Q8_0")


@pytest.fixture
def target(tmp_path):
    """Where the spoilt file is written."""
    return ModelPath("tiny", tmp_path / "spoilt.gguf", "gguf")


def parts_of(path):
    """A sound file taken apart: its settings, its tensors."""
    file = read_gguf(path)
    codes = {name: code for code, name in GGUF_CODES.items()}
    tensors = [
        GgufTensor(raw.name, codes[raw.kind], raw.shape, raw.data.tobytes()) for raw in file.tensors.values()
    ]
    return dict(file.metadata), tensors


# -- GGUF ----------------------------------------------------------------------------------------------


def test_gguf_headers_with_changed_bytes(whole, target):
    data, generator = whole.path.read_bytes(), np.random.default_rng(1)
    stop = read_gguf(whole.path).header_bytes

    def spoil(trial):
        change = flipped if trial % 2 else resized
        target.path.write_bytes(change(data, generator, stop))

    tally = try_each(target, spoil, 2 * COUNT)
    assert len(tally.refused) > COUNT


def test_gguf_files_that_end_early(whole, target):
    data = whole.path.read_bytes()
    cuts = np.random.default_rng(2).integers(0, len(data) - 64, COUNT)
    tally = try_each(target, lambda trial: target.path.write_bytes(data[: cuts[trial]]), COUNT)
    assert len(tally.refused) == COUNT


@pytest.mark.parametrize("family", FAMILIES)
def test_gguf_settings_with_odd_values(family, tmp_path, target, monkeypatch):
    sound = write_model(made(family, monkeypatch), tmp_path / "sound.gguf")
    metadata, tensors = parts_of(sound.path)
    generator, keys = np.random.default_rng(3), list(metadata)
    odd = [*ODD_VALUES, (), (b"\xff", b"x"), np.zeros(3, "<i4"), np.full(5, 2**31, "<u4"), None]

    def spoil(trial):
        key, value = keys[trial % len(keys)], odd[generator.integers(len(odd))]
        changed = metadata | {key: value}
        target.path.write_bytes(gguf_bytes({k: v for k, v in changed.items() if v is not None}, tensors))
        return key, value

    tally = try_each(target, spoil, COUNT)
    assert len(tally.refused) > COUNT // 2


def test_unknown_architectures_of_gguf_files(whole, target):
    metadata, tensors = parts_of(whole.path)
    generator = np.random.default_rng(4)
    known = [name for name in gguf.MODEL_ARCH_NAMES.values() if name != "llama"]

    def spoil(trial):
        letters = "".join(map(chr, generator.integers(32, 1000, 1 + trial % 40)))
        name = known[trial % len(known)] if trial % 3 else letters
        target.path.write_bytes(gguf_bytes(metadata | {"general.architecture": name}, tensors))
        return name

    assert len(try_each(target, spoil, COUNT).refused) == COUNT


def spoilt_tensors(tensors, generator):
    """One of them missing, twice there, renamed, or of another shape or kind, or elsewhere."""
    changed = list(tensors)
    index = int(generator.integers(len(changed)))
    one = changed[index]
    match generator.integers(6):
        case 0:
            del changed[index]
            return changed, ("missing", one.name)
        case 1:
            changed.append(one)
        case 2:
            changed[index] = dataclasses.replace(one, name=one.name.replace(".weight", ".w"))
        case 3:
            changed[index] = dataclasses.replace(one, shape=changed_shape(one.shape, generator))
        case 4:
            code = int(generator.choice([*GGUF_CODES, 99, 2**31]))
            changed[index] = dataclasses.replace(one, code=code)
        case 5:
            offset = [1, 32, 2**20, 2**63 - 32, 2**64 - 32][generator.integers(5)]
            changed[index] = dataclasses.replace(one, offset=offset)
    return changed, (changed[index].name, changed[index].shape, changed[index].code, changed[index].offset)


@pytest.mark.parametrize("family,kinds", [("llama", "Q8_0"), ("qwen3_moe", ("Q5_0", "IQ4_NL", "MXFP4"))])
def test_gguf_tensors_that_are_missing_doubled_or_of_another_shape(
    family, kinds, tmp_path, target, monkeypatch
):
    whole = write_model(made(family, monkeypatch), tmp_path / "sound.gguf", kinds)
    metadata, tensors = parts_of(whole.path)
    generator = np.random.default_rng(5)

    def spoil(_trial):
        changed, what = spoilt_tensors(tensors, generator)
        target.path.write_bytes(gguf_bytes(metadata, changed))
        return what

    tally = try_each(target, spoil, COUNT)
    # A model without an output matrix uses its embedding; of a kind with fewer bits there are bytes enough.
    assert len(tally.refused) > COUNT * 0.85


def test_split_files_with_parts_that_are_missing_mixed_up_or_cut(tmp_path, monkeypatch):
    split = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, arch: split(path, arch, split_max_tensors=6))
    sound, used = tmp_path / "sound", tmp_path / "used"
    sound.mkdir()
    write_model(made("llama", monkeypatch), sound / "m.gguf", "Q8_0")
    names = sorted(os.listdir(sound))
    generator = np.random.default_rng(6)
    assert len(names) > 3

    def spoil(trial):
        shutil.rmtree(used, ignore_errors=True)
        shutil.copytree(sound, used)
        one, other = (used / names[index] for index in generator.choice(len(names), 2, replace=False))
        data = one.read_bytes()
        match trial % 5:
            case 0:
                one.unlink()
                (used / "note.txt").write_text("")
            case 1:
                shutil.copy(one, other)
            case 2:
                one.write_bytes(data[: generator.integers(len(data) - 64)])
            case 3:
                one.write_bytes(other.read_bytes())
                other.write_bytes(data)
            case 4:
                stop = data.index(b"split.tensors.count") + 30
                one.write_bytes(flipped(data, generator, stop if one.name != names[0] else 200))
        return trial % 5, one.name, other.name

    tally = try_each(ModelPath("tiny", used / names[0], "gguf"), spoil, COUNT)
    assert len(tally.refused) > COUNT * 0.8


# -- safetensors ---------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A model as a folder of several shards."""
    return save_model(made("llama", monkeypatch), tmp_path / "folder", max_shard_size="40KB")


def shards_of(folder):
    return sorted(path.name for path in folder.path.glob("*.safetensors"))


def header_of(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def spoiling(folder, name, change):
    """`spoil` for a file of the folder: written anew from its sound bytes each time."""
    sound = (folder.path / name).read_bytes()

    def spoil(trial):
        (folder.path / name).write_bytes(change(sound, trial))

    return spoil


def test_safetensors_headers_with_changed_bytes(folder):
    generator = np.random.default_rng(11)
    name = shards_of(folder)[0]
    stop = 8 + struct.unpack("<Q", (folder.path / name).read_bytes()[:8])[0]

    def change(sound, trial):
        return (flipped if trial % 2 else resized)(sound, generator, stop)

    assert len(try_each(folder, spoiling(folder, name, change), 2 * COUNT).refused) > COUNT


def test_safetensors_files_that_end_early(folder):
    names, generator = shards_of(folder), np.random.default_rng(12)
    sound = {name: (folder.path / name).read_bytes() for name in names}
    assert len(names) > 2

    def spoil(trial):
        for name, data in sound.items():
            (folder.path / name).write_bytes(data)
        name = names[trial % len(names)]
        (folder.path / name).write_bytes(sound[name][: generator.integers(len(sound[name]))])

    assert len(try_each(folder, spoil, COUNT).refused) == COUNT


def test_an_index_that_is_wrong_and_shards_that_are_missing_or_doubled(folder):
    names, generator = shards_of(folder), np.random.default_rng(13)
    index = folder.path / "model.safetensors.index.json"
    sound = {name: (folder.path / name).read_bytes() for name in (*names, index.name)}
    placed = json.loads(sound[index.name])["weight_map"]

    def spoil(trial):
        for path in folder.path.glob("*.safetensors*"):
            path.unlink()
        for name, data in sound.items():
            (folder.path / name).write_bytes(data)
        tensor = list(placed)[generator.integers(len(placed))]
        one, other = generator.choice(len(names), 2, replace=False)
        changed: object = placed
        match trial % 7:
            case 0:
                (folder.path / names[one]).unlink()
            case 1:
                shutil.copy(folder.path / names[one], folder.path / names[other])
            case 2:
                changed = placed | {tensor: next(name for name in names if name != placed[tensor])}
            case 3:
                changed = {name: where for name, where in placed.items() if name != tensor}
            case 4:
                changed = placed | {tensor: ODD_VALUES[generator.integers(len(ODD_VALUES))]}
            case 5:
                changed = placed | {"more.weight": names[one], f"{tensor}.x": "model-9.safetensors"}
            case 6:
                changed = ODD_VALUES[generator.integers(len(ODD_VALUES))]
        if trial % 7 > 1:
            index.write_text(json.dumps({"weight_map": changed}))
        if trial % 14 == 13:
            index.write_bytes(flipped(sound[index.name], generator, len(sound[index.name])))
        return trial % 7, tensor, names[one], names[other]

    assert len(try_each(folder, spoil, COUNT).refused) > COUNT * 0.95


@pytest.mark.parametrize("family", FAMILIES)
def test_safetensors_tensors_that_are_missing_or_of_another_shape(family, tmp_path, monkeypatch):
    folder = save_model(made(family, monkeypatch), tmp_path / "folder")
    [name] = shards_of(folder)
    header, data = header_of((folder.path / name).read_bytes())
    header.pop("__metadata__", None)
    generator, tensors = np.random.default_rng(14), list(header)

    def spoil(trial):
        tensor = tensors[generator.integers(len(tensors))]
        changed = json.loads(json.dumps(header))
        one = changed[tensor]
        match trial % 6:
            case 0:
                del changed[tensor]
            case 1:
                one["shape"] = changed_shape(tuple(one["shape"]), generator)
            case 2:
                one["dtype"] = str(generator.choice(["F16", "BF16", "I8", "F64", "F8_E4M3", "x", ""]))
            case 3:
                one["data_offsets"][generator.integers(2)] = int(generator.choice([-1, 0, 1, 2**40, 2**62]))
            case 4:
                changed[tensor.replace("weight", "wight")] = changed.pop(tensor)
            case 5:
                key = str(generator.choice(["shape", "dtype", "data_offsets"]))
                one[key] = ODD_VALUES[generator.integers(len(ODD_VALUES))]
        write_safetensors(folder.path / name, changed, data)
        return trial % 6, tensor, changed.get(tensor)

    tally = try_each(folder, spoil, COUNT)
    # An offset of 0 or 1 may be what it was; a tensor that is spelt otherwise may be an optional bias.
    assert len(tally.refused) > COUNT * 0.9


@pytest.mark.parametrize("family", FAMILIES)
def test_a_config_with_odd_values_or_changed_bytes(family, tmp_path, monkeypatch):
    folder = save_model(made(family, monkeypatch), tmp_path / "folder")
    path = folder.path / "config.json"
    sound = path.read_bytes()
    config, generator = json.loads(sound), np.random.default_rng(15)
    odd = [*ODD_VALUES, None, [], {}, [1, 2], {"rope_type": "yarn", "factor": 2.0}, 10**400]

    def spoil(trial):
        if trial % 3 == 2:
            path.write_bytes((flipped if trial % 2 else resized)(sound, generator, len(sound)))
            return "bytes"
        key = list(config)[trial % len(config)]
        value = odd[generator.integers(len(odd))]
        path.write_text(json.dumps(config | {key: value}))
        return key, value

    tally = try_each(folder, spoil, 2 * COUNT)
    assert len(tally.refused) > COUNT // 2


def test_unknown_model_types_of_a_config(folder):
    path, generator = folder.path / "config.json", np.random.default_rng(16)
    config = json.loads(path.read_bytes())
    known = [name for name in transformers.CONFIG_MAPPING if name not in families.FAMILIES]

    def spoil(trial):
        letters = "".join(map(chr, generator.integers(1, 1000, trial % 40)))
        name = known[trial % len(known)] if trial % 3 else letters
        path.write_text(json.dumps(config | {"model_type": name}))
        return name

    assert len(try_each(folder, spoil, COUNT).refused) == COUNT


def test_tokenizers_with_changed_bytes(folder):
    generator = np.random.default_rng(17)
    stop = len((folder.path / "tokenizer.json").read_bytes())

    def change(sound, trial):
        return (flipped if trial % 2 else resized)(sound, generator, stop)

    assert len(try_each(folder, spoiling(folder, "tokenizer.json", change), COUNT).refused) > COUNT // 2


def vocabulary_of(kind, folder):
    """A sound vocabulary without a tokenizer.json: tiktoken's ranks, or vocab.json with merges.txt."""
    folder.mkdir()
    letters = [bytes([byte]) for byte in range(256)]
    tokens = [*letters, b"wo", b"rd", b"word", b"s,", b" 1"]
    if kind == "ranks":
        lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
        (folder / "tokenizer.model").write_text("".join(lines))
        (folder / "config.json").write_text('{"model_type": "llama"}')
        return
    spelt = [byte_level_letters(token) for token in tokens]
    (folder / "vocab.json").write_text(json.dumps({token: id_ for id_, token in enumerate(spelt)}))
    (folder / "merges.txt").write_text("#version: 0.2\nw o\nr d\nwo rd\ns ,\n\u0120 1\n")
    (folder / "config.json").write_text('{"model_type": "gpt2"}')


@pytest.mark.parametrize(
    "kind,name", [("ranks", "tokenizer.model"), ("merges", "vocab.json"), ("merges", "merges.txt")]
)
def test_vocabularies_with_changed_bytes_or_that_end_early(kind, name, tmp_path):
    vocabulary_of(kind, tmp_path / "sound")
    path, generator = tmp_path / "sound" / name, np.random.default_rng(18)
    sound = path.read_bytes()
    assert try_tokenizers(tmp_path / "sound", lambda _: None, 1).num_loaded == 1

    def spoil(trial):
        if trial % 3 == 2:
            path.write_bytes(sound[: generator.integers(len(sound))])
        else:
            path.write_bytes((flipped if trial % 2 else resized)(sound, generator, len(sound)))

    assert len(try_tokenizers(tmp_path / "sound", spoil, COUNT).refused) > COUNT // 3
