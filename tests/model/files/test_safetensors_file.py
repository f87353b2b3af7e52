"""The safetensors reader agrees with the library on sound files, and refuses unsound ones by name."""

from __future__ import annotations

import json
import struct

import numpy as np
import pytest
from safetensors.numpy import save_file

from octavo.errors import BadModelFile, ModelError, ModelNotFound, UnsupportedModel
from octavo.kernels.packed import unpack_vector
from octavo.model.files.safetensors_file import INDEX_NAME, SINGLE_NAME, read_safetensors


def write(folder, header, data=b"", length=None, name=SINGLE_NAME):
    encoded = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = struct.pack("<Q", len(encoded) if length is None else length)
    (folder / name).write_bytes(size + encoded + data)
    return folder


def entry(begin=0, end=8, dtype="F32", shape=(2,)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.mark.full
def test_tensors_equal_the_library(tmp_path):
    import torch
    from safetensors.torch import save_file as save_tensors

    tensors = {
        "f32": torch.randn(4, 6),
        "f16": torch.randn(3, 2).half(),
        "bf16": torch.randn(5).bfloat16(),
        "mask": torch.ones(2, 2, dtype=torch.bool),
    }
    save_tensors(tensors, tmp_path / SINGLE_NAME, metadata={"format": "pt"})
    files = read_safetensors(tmp_path)
    assert sorted(files.tensors) == ["bf16", "f16", "f32"]  # a mask is no weight
    for name, raw in files.tensors.items():
        expected = tensors[name]
        assert (raw.kind, raw.shape) == (name.upper(), tuple(expected.shape))
        np.testing.assert_array_equal(unpack_vector(raw), expected.float().numpy())
        files.release(raw)
        np.testing.assert_array_equal(unpack_vector(raw), expected.float().numpy())


@pytest.mark.parametrize(
    "header,data,message",
    [
        (b"{", b"", "not sound JSON"),
        (b"[]", b"", "not a JSON object"),
        (b"[" * 100_000, b"", "not sound JSON"),
        (b'{"a": {}, "a": {}}', b"", "twice"),
        (b'{"a": NaN}', b"", "not sound JSON"),
        ({"w": 3}, b"", "an object"),
        ({"w": {}}, b"", "not lists of sizes"),
        ({"w": entry(0, 2**70)}, bytes(8), "not lists of sizes"),
        ({"w": entry(-8, 0)}, bytes(8), "not lists of sizes"),
        ({"w": entry(shape=(-2, -1))}, bytes(8), "not lists of sizes"),
        ({"w": entry(shape=(True, 2))}, bytes(8), "not lists of sizes"),
        ({"w": entry(shape=[1] * 9)}, bytes(8), "not lists of sizes"),
        ({"w": entry()}, bytes(7), "lies at bytes 0 to 8 of 7"),
        ({"w": entry(8, 0)}, bytes(8), "lies at bytes"),
        ({"w": entry(shape=(3,))}, bytes(8), "does not take 8 bytes"),
    ],
)
def test_each_lie_is_refused_by_name(header, data, message, tmp_path):
    with pytest.raises(BadModelFile, match=message):
        read_safetensors(write(tmp_path, header, data))


@pytest.mark.parametrize("length", [3, 2**63, 2**64 - 1])
def test_a_header_length_beyond_the_file_is_refused(length, tmp_path):
    with pytest.raises(BadModelFile):
        read_safetensors(write(tmp_path, {"w": entry()}, bytes(8), length))


def test_an_unknown_type_is_named(tmp_path):
    with pytest.raises(UnsupportedModel, match="'F4'; allowed: F32, F16, BF16, I8"):
        read_safetensors(write(tmp_path, {"w": entry(dtype="F4", shape=(16,))}, bytes(8)))


@pytest.mark.parametrize("data", [b"", b"1234567"])
def test_a_file_too_short_for_a_header_is_refused(data, tmp_path):
    (tmp_path / SINGLE_NAME).write_bytes(data)
    with pytest.raises(BadModelFile):
        read_safetensors(tmp_path)


@pytest.mark.parametrize(
    "name", ["../other.safetensors", "/etc/x.safetensors", "a\\b.safetensors", "x.bin", 7, ""]
)
def test_an_index_that_leaves_the_folder_is_refused(name, tmp_path):
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(BadModelFile, match="of the same folder"):
        read_safetensors(tmp_path)


def test_a_name_of_any_length_makes_a_short_message(tmp_path):
    name = "w" * 60_000
    with pytest.raises(BadModelFile) as caught:
        read_safetensors(write(tmp_path, {name: {}}))
    assert len(str(caught.value)) < 600
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {name: name}}))
    with pytest.raises(BadModelFile) as caught:
        read_safetensors(tmp_path)
    assert len(str(caught.value)) < 600


def test_an_index_that_contradicts_its_files_is_refused(tmp_path):
    write(tmp_path, {"w": entry(), "x": entry()}, bytes(8), name="1.safetensors")
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"w": "1.safetensors"}}))
    with pytest.raises(BadModelFile, match="holds 'x'"):
        read_safetensors(tmp_path)
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"w": "2.safetensors"}}))
    with pytest.raises(ModelNotFound, match=r"2\.safetensors does not exist, but"):
        read_safetensors(tmp_path)


def test_truncated_and_flipped_files_are_errors_never_crashes(tmp_path):
    made = np.random.default_rng(2).standard_normal((4, 6))
    save_file({"f32": made.astype(np.float32), "f16": made[:3].astype(np.float16)}, tmp_path / SINGLE_NAME)
    data = (tmp_path / SINGLE_NAME).read_bytes()
    generator = np.random.default_rng(3)
    refused = 0
    for trial in range(600):
        if trial % 2:
            changed = data[: generator.integers(len(data))]
        else:
            flipped = bytearray(data)
            flipped[generator.integers(len(data) // 2)] = generator.integers(256)
            changed = bytes(flipped)
        (tmp_path / SINGLE_NAME).write_bytes(changed)
        try:
            for raw in read_safetensors(tmp_path).tensors.values():
                assert raw.data.tobytes() is not None
        except ModelError:
            refused += 1
    assert refused > 350
