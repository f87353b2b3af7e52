"""The GGUF parser agrees with the `gguf` package on sound files, and refuses unsound ones by name."""

from __future__ import annotations

import struct

import gguf
import numpy as np
import pytest
from tests.blocks import QUANTISED, random_tensor
from tests.model.gguf_bench import KINDS, finish, write_sample

from octavo import _native
from octavo.errors import BadModelFile, ModelError, UnsupportedModel
from octavo.model.files import gguf as gguf_module
from octavo.model.files.gguf import read_gguf


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    return write_sample(tmp_path_factory.mktemp("gguf") / "sample.gguf")


def equal(ours, theirs):
    if isinstance(ours, np.ndarray):
        return ours.tolist() == list(theirs)
    if isinstance(ours, tuple):
        return [item.decode() for item in ours] == list(theirs)
    return ours == theirs


def test_metadata_equals_the_gguf_package(sample):
    ours, theirs = read_gguf(sample).metadata, gguf.GGUFReader(sample)
    names = [name for name in theirs.fields if not name.startswith("GGUF.")]
    assert list(ours) == names
    for name in names:
        assert equal(ours[name], theirs.fields[name].contents()), name


@pytest.mark.parametrize("kind", KINDS)
def test_weights_equal_the_gguf_package(sample, kind):
    file, theirs = read_gguf(sample), {tensor.name: tensor for tensor in gguf.GGUFReader(sample).tensors}
    raw, their = file.tensors[f"{kind}.matrix"], theirs[f"{kind}.matrix"]
    assert (raw.kind, raw.shape) == (kind, (6, 64))
    assert raw.data.tobytes() == their.data.tobytes()
    out = np.empty(6 * 64, np.float32)
    _native.dequantise(raw.data, raw.kind, out.size, out)
    expected = gguf.quants.dequantize(their.data, their.tensor_type).reshape(-1)
    np.testing.assert_array_equal(out, expected)


def test_a_released_tensor_still_reads_the_same(sample):
    file = read_gguf(sample)
    raw = file.tensors["Q8_0.matrix"]
    before = raw.data.tobytes()
    file.release(raw)
    assert raw.data.tobytes() == before


def test_version_2_is_read_and_others_are_refused(sample, tmp_path):
    data = bytearray(sample.read_bytes())
    path = tmp_path / "versions.gguf"
    for version, refused in ((2, None), (1, "version 1"), (4, "version 4"), (0x0300_0000, "big-endian")):
        data[4:8] = struct.pack("<I", version)
        path.write_bytes(data)
        if refused is None:
            assert read_gguf(path).version == version
        else:
            with pytest.raises(UnsupportedModel, match=refused):
                read_gguf(path)


@pytest.mark.parametrize("kind", QUANTISED)
def test_quantised_tensors_equal_the_gguf_package(kind, tmp_path):
    given, their_kind = random_tensor(kind, 6, 512, np.random.default_rng(1)), gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("w", given.data.reshape(6, -1), raw_dtype=their_kind)
    finish(writer)
    raw = read_gguf(tmp_path / "k.gguf").tensors["w"]
    assert (raw.kind, raw.shape) == (kind, (6, 512))
    out = np.empty(6 * 512, np.float32)
    _native.dequantise(raw.data, raw.kind, out.size, out)
    theirs = gguf.GGUFReader(tmp_path / "k.gguf").tensors[0]
    expected = gguf.quants.dequantize(theirs.data, their_kind).reshape(-1)
    np.testing.assert_array_equal(out.view(np.uint32), expected.view(np.uint32))


def test_an_unknown_kind_is_named(tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    writer.add_tensor("w", np.zeros((2, 66), np.uint8), raw_dtype=gguf.GGMLQuantizationType.IQ2_XXS)
    finish(writer)
    with pytest.raises(UnsupportedModel, match="'w' is stored as IQ2_XXS; allowed: BF16, F16"):
        read_gguf(tmp_path / "k.gguf")


@pytest.mark.parametrize("nested", [False, True])
def test_many_arrays_that_are_each_allowed_are_bounded_together(nested, tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_module, "HEADER_MEMORY_MAX", 1 << 20)

    def write(count):
        pairs = b"".join(
            text(f"key{i}".encode())
            + (
                struct.pack("<IIQ", 9, 9, 4000) + struct.pack("<IQ", 4, 0) * 4000
                if nested
                else struct.pack("<IIQ", 9, 8, 4000) + text(b"") * 4000
            )
            for i in range(count)
        )
        (tmp_path / "many.gguf").write_bytes(head(0, count) + pairs + bytes(64))
        return read_gguf(tmp_path / "many.gguf")

    assert len(write(2).metadata) == 2
    with pytest.raises(BadModelFile, match=r"'key\d' takes its header beyond 1.0 MiB of memory"):
        write(6)


def test_the_parts_of_a_split_file_share_one_budget_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(gguf_module, "HEADER_MEMORY_MAX", 1 << 20)
    for number in (1, 2):
        writer = gguf.GGUFWriter(tmp_path / f"m-0000{number}-of-00002.gguf", "llama")
        writer.add_uint16("split.no", number - 1)
        writer.add_uint16("split.count", 2)
        writer.add_int32("split.tensors.count", 2)
        writer.add_string("note", "x" * 600_000)
        writer.add_tensor(f"w{number}", np.zeros(8, np.float32))
        finish(writer)
    with pytest.raises(BadModelFile, match=r"m-00002-of-00002.gguf .*'note' takes its header beyond 1.0 MiB"):
        read_gguf(tmp_path / "m-00001-of-00002.gguf")


def head(num_tensors, num_pairs):
    return b"GGUF" + struct.pack("<IQQ", 3, num_tensors, num_pairs)


def text(value):
    return struct.pack("<Q", len(value)) + value


def info(name=b"w", dims=(32, 2), kind=0, offset=0):
    return text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


@pytest.mark.parametrize(
    "data,message",
    [
        (b"", "is empty"),
        (b"GGUF", "does not begin"),
        (b"GGML" + bytes(60), "does not begin with the letters GGUF"),
        (head(2**60, 0) + bytes(64), "number of tensors is 1,152"),
        (head(1000, 0) + bytes(64), "number of tensors is 1,000; .* 72 bytes are left"),
        (head(0, 2**63) + bytes(64), "number of metadata pairs"),
        (head(0, 1) + text(b"k") + struct.pack("<I", 13) + bytes(8), "value type 13"),
        (head(0, 1) + text(b"k") + struct.pack("<IQ", 8, 2**62), "length of metadata 'k'"),
        (head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 4, 2**61), "length of metadata 'k'"),
        (head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 8, 2**61), "length of metadata 'k'"),
        (head(0, 1) + text(b"k") + struct.pack("<IIQQ", 9, 8, 1, 2**61), "metadata 'k': "),
        (head(0, 1) + text(b"k") + struct.pack("<IIQIQIQ", 9, 9, 1, 9, 1, 9, 1) + bytes(24), "too deeply"),
        (head(0, 1) + text(b"\xff\xfe") + struct.pack("<I", 7) + bytes(8), "is not UTF-8"),
        (head(0, 2) + 2 * (text(b"k") + struct.pack("<IB", 7, 1)), "appears twice"),
        (head(0, 1) + text(b"general.alignment") + struct.pack("<II", 4, 24), "a power of two"),
        (head(1, 0) + info(dims=()), "0 dimensions"),
        (head(1, 0) + info(dims=(1, 1, 1, 1, 1)), "5 dimensions"),
        (head(1, 0) + info(dims=(0, 4)), "allowed: 1 to"),
        (head(1, 0) + info(dims=(2**63, 4)), "allowed: 1 to"),
        (head(1, 0) + info(dims=(2**40, 2**40)), "ends at byte"),
        (head(1, 0) + info(dims=(40, 2), kind=8), "not a multiple of 32"),
        (head(1, 0) + info(dims=(128, 4), kind=12), r"not a multiple of 256 \(Q4_K\)"),
        (head(1, 0) + info(offset=7) + bytes(512), "not a multiple of 32"),
        (head(1, 0) + info(offset=2**63 - 32) + bytes(512), "ends at byte"),
        (head(2, 0) + info() + info() + bytes(1024), "appears twice"),
        (head(2, 0) + info() + info(b"x", offset=32) + bytes(1024), "overlap"),
    ],
)  # fmt: skip
def test_each_lie_is_refused_by_name(data, message, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(BadModelFile, match=message):
        read_gguf(path)


@pytest.mark.parametrize(
    "data",
    [
        head(0, 2) + 2 * (text(b"k" * 60_000) + struct.pack("<IB", 7, 1)),
        head(0, 1) + text(b"k" * 60_000) + struct.pack("<I", 13) + bytes(8),
        head(1, 0) + info(b"w" * 60_000, kind=99),
        head(1, 0) + info(b"w" * 60_000, offset=7) + bytes(512),
    ],
)
def test_a_name_of_any_length_makes_a_short_message(data, tmp_path):
    path = tmp_path / "bad.gguf"
    path.write_bytes(data)
    with pytest.raises(ModelError) as caught:
        read_gguf(path)
    assert len(str(caught.value)) < 600


def test_nested_arrays_are_read(tmp_path):
    path = tmp_path / "nested.gguf"
    inner = struct.pack("<IQHH", 2, 2, 5, 6)
    path.write_bytes(head(0, 1) + text(b"k") + struct.pack("<IIQ", 9, 9, 2) + inner + inner)
    value = read_gguf(path).metadata["k"]
    assert [row.tolist() for row in value] == [[5, 6], [5, 6]]


def read_or_refuse(path, data):
    """Parse, look at every byte the parser promises, and let only a ModelError out."""
    path.write_bytes(data)
    try:
        file = read_gguf(path)
    except ModelError:
        return False
    for raw in file.tensors.values():
        assert raw.data.tobytes() is not None
    return True


def test_every_truncation_is_an_error_never_a_crash(sample, tmp_path):
    data = sample.read_bytes()
    header_bytes = read_gguf(sample).header_bytes
    last = len(data) - 32  # what follows the last tensor's end may be padding
    cuts = [*range(0, header_bytes, 7), *range(header_bytes, last, 97)]
    for cut in cuts:
        assert not read_or_refuse(tmp_path / "cut.gguf", data[:cut]), cut


def test_flipped_bytes_never_crash_hang_or_allocate(sample, tmp_path):
    generator = np.random.default_rng(7)
    data = np.frombuffer(sample.read_bytes(), np.uint8)
    header_bytes = read_gguf(sample).header_bytes
    refused = 0
    for _ in range(1500):
        changed = data.copy()
        where = generator.integers(0, header_bytes, generator.integers(1, 6))
        changed[where] = generator.choice([0, 1, 0x7F, 0x80, 0xFF, generator.integers(256)], len(where))
        refused += not read_or_refuse(tmp_path / "flip.gguf", changed.tobytes())
    assert refused > 300, "the flips were too harmless to prove anything"


@pytest.mark.real_model
def test_the_default_file_equals_the_gguf_package(default_gguf):
    ours = read_gguf(default_gguf)
    theirs = gguf.GGUFReader(default_gguf)
    for name, field in theirs.fields.items():
        if not name.startswith("GGUF.") and len(field.data) < 1000:
            assert equal(ours.metadata[name], field.contents()), name
    tokens = theirs.fields["tokenizer.ggml.tokens"]
    assert ours.metadata["tokenizer.ggml.tokens"] == tuple(bytes(tokens.parts[i]) for i in tokens.data)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        raw = ours.tensors[tensor.name]
        assert raw.kind == tensor.tensor_type.name
        assert raw.shape == tuple(reversed(tensor.shape.tolist()))
        assert np.array_equal(raw.data, np.ascontiguousarray(tensor.data).reshape(-1).view(np.uint8))
