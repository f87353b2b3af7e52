"""A packed copy on disk gives the very weights, and is refused and replaced when it is not sound."""

from __future__ import annotations

import fcntl
import json
import logging
import os

import numpy as np
import pytest
from tests.blocks import random_tensor
from tests.model.checkpoints import random_prompt, save_checkpoint
from tests.model.chunks import run_chunks

from octavo.kernels.contract import RawTensor
from octavo.kernels.native_ops import NativeOps
from octavo.kernels.panels import matrix_of, panel_bytes, panels_of
from octavo.model.files.mapped import MappedFile
from octavo.model.files.packed_file import PREAMBLE_BYTES, SAMPLE_BYTES, SAMPLE_EVERY, PackWriter, survey
from octavo.model.hub.paths import ModelPath
from octavo.model.loader import load_model
from octavo.model.packed_cache import PACKING_VERSION, PackedFolder

TOKENS = random_prompt(41)
KINDS = ["F32", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"]


class Loader:
    """Loads one model again and again through one folder, and counts what was packed."""

    def __init__(self, path: ModelPath, folder, weights: str = "auto") -> None:
        self.path, self.weights = path, weights
        self.folder = folder
        self.packed: list[str] = []

    def load(self):
        ops = NativeOps(self.weights)
        own, self.packed = ops.matrix, []

        def matrix(raw: RawTensor, table: bool = False):
            self.packed.append(raw.name)
            return own(raw, table)

        ops.matrix = matrix
        loaded = load_model(self.path, ops, packed=PackedFolder(self.folder, ops.arithmetic_id))
        return run_chunks(ops, loaded.model, TOKENS, [41], prepared=True).tobytes(), loaded

    @property
    def file(self):
        return survey(self.folder)[0].path


@pytest.fixture
def loader(tmp_path):
    return Loader(save_checkpoint("llama", tmp_path / "model"), tmp_path / "packed")


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt2", "qwen3_moe", "gpt_oss-window-8"])
@pytest.mark.parametrize("weights", ["auto", "q4"])
def test_the_second_load_packs_nothing_and_gives_the_same_bits(name, weights, tmp_path):
    loader = Loader(save_checkpoint(name, tmp_path / "model"), tmp_path / "packed", weights)
    first, made = loader.load()
    assert loader.packed
    assert made.mapped_bytes == 0
    second, mapped = loader.load()
    assert loader.packed == []
    assert second == first
    assert mapped.mapped_bytes == mapped.model.weights.num_bytes
    assert mapped.model.fingerprint == made.model.fingerprint


def test_on_a_second_load_no_weight_of_the_model_is_read(loader, monkeypatch):
    monkeypatch.setattr("octavo.model.loader.fingerprint", lambda *_: b"the same".ljust(32))
    first, _ = loader.load()
    weights = loader.path.path / "model.safetensors"
    data, stat = bytearray(weights.read_bytes()), weights.stat()
    header = 8 + int.from_bytes(data[:8], "little")
    for name, entry in json.loads(data[8:header]).items():
        if name != "__metadata__" and len(entry["shape"]) > 1:  # what norms say is still read
            begin, end = entry["data_offsets"]
            data[header + begin : header + end] = b"\xff" * (end - begin)
    weights.write_bytes(data)
    os.utime(weights, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert loader.load()[0] == first


def test_a_file_that_changed_where_no_sample_looks_is_packed_again(loader, monkeypatch, caplog):
    monkeypatch.setattr("octavo.model.loader.hash_files", lambda *_: b"sampled".ljust(32))
    first, made = loader.load()
    weights = loader.path.path / "model.safetensors"
    data, before = bytearray(weights.read_bytes()), weights.stat().st_mtime_ns
    data[-4096:] = bytes(4096)  # an edit that keeps the size
    weights.write_bytes(data)
    os.utime(weights, ns=(before, before + 1))
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        again, changed = loader.load()
    assert loader.packed, "the copy of the file as it was is used for the file as it is"
    assert again != first
    assert "made of another model" in caplog.text
    assert len(survey(loader.folder)) == 1  # it is replaced
    assert changed.model.fingerprint == made.model.fingerprint


def test_the_name_of_the_weights_does_not_follow_the_time_of_a_file(loader):
    """KV that was kept on disk stays good when a model is copied or touched; its packed copy is made anew."""
    _, made = loader.load()
    os.utime(loader.path.path / "model.safetensors", ns=(1, 1))
    _, touched = loader.load()
    assert loader.packed
    assert touched.model.fingerprint == made.model.fingerprint
    assert touched.weights_fingerprint == made.weights_fingerprint


@pytest.mark.full
@pytest.mark.parametrize("layout", ["gptq", "fp8"])
def test_a_second_load_of_quantised_files_decodes_nothing(layout, tmp_path, monkeypatch):
    import safetensors.torch
    from tests.model.quantised.test_quantised import LAYOUTS

    path = save_checkpoint("llama", tmp_path / "model")
    quantise, settings = LAYOUTS[layout]
    file = path.path / "model.safetensors"
    tensors = {}
    for name, value in safetensors.torch.load_file(file).items():
        parts = quantise(value)[0] if "_proj" in name else {"weight": value}
        tensors |= {
            f"{name.removesuffix('.weight')}.{part}": data.contiguous() for part, data in parts.items()
        }
    safetensors.torch.save_file(tensors, file)
    config = path.path / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"quantization_config": settings}))
    loader = Loader(path, tmp_path / "packed")
    first, _ = loader.load()

    def refuse(*_):
        raise AssertionError("a matrix was decoded")

    monkeypatch.setattr("octavo.model.quantised.layouts._in_slabs", refuse)
    assert loader.load()[0] == first


def truncate(data):
    return data[: len(data) // 2]


def flip_index(data):
    return data[:-20] + b"1" + data[-19:]


def flip_panels(data):
    return (
        data[: PREAMBLE_BYTES + 100] + bytes([data[PREAMBLE_BYTES + 100] ^ 1]) + data[PREAMBLE_BYTES + 101 :]
    )


DAMAGE = {
    "truncated": truncate,
    "empty": lambda data: b"",
    "a page": lambda data: data[:PREAMBLE_BYTES],
    "index": flip_index,
    "panels": flip_panels,
    "foreign": lambda data: b"GGUF" + data[4:],
    "version": lambda data: data[:8] + b"\x09" + data[9:],
    "longer": lambda data: data + b"\0" * 64,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_copy_is_reported_and_made_again(damage, loader, caplog):
    first, _ = loader.load()
    sound = loader.file.read_bytes()
    loader.file.write_bytes(DAMAGE[damage](sound))
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        again, _ = loader.load()
    assert again == first
    assert loader.packed, "the damaged copy was used"
    assert "are not used:" in caplog.text
    assert loader.file.read_bytes() == sound
    assert loader.load()[0] == first
    assert loader.packed == []


def test_random_damage_of_length_preamble_and_index_never_crashes_and_is_always_seen(loader):
    first, _ = loader.load()
    path = loader.file
    sound = path.read_bytes()
    start = int.from_bytes(sound[16:24], "little")
    generator = np.random.default_rng(4)
    for trial in range(100):
        data = bytearray(sound)
        if trial % 2:
            data = data[: generator.integers(len(data))]
        else:
            place = generator.integers(start, len(data)) if trial % 4 else generator.integers(56)
            data[place] = (data[place] + generator.integers(1, 256)) % 256
        path.write_bytes(bytes(data))
        assert loader.load()[0] == first
        assert loader.packed


def test_a_panels_bit_that_flips_between_samples_is_not_seen(loader):
    """The limit of what is checked, as in a model's own file: 4 KiB of every 4 MiB of panels."""
    first, made = loader.load()
    data = bytearray(loader.file.read_bytes())
    start = int.from_bytes(data[16:24], "little")
    sampled_end = PREAMBLE_BYTES + SAMPLE_BYTES
    assert sampled_end < start < PREAMBLE_BYTES + SAMPLE_EVERY  # so that one sample is all
    data[sampled_end:start] = bytes(start - sampled_end)
    loader.file.write_bytes(data)
    again, mapped = loader.load()
    assert loader.packed == []
    assert again != first
    assert mapped.model.fingerprint == made.model.fingerprint


def test_an_index_that_lies_in_its_sizes_is_refused(loader):
    loader.load()
    data = loader.file.read_bytes()
    from octavo.model.files import packed_file

    start = int.from_bytes(data[16:24], "little")
    index = json.loads(data[start:])
    for change in (
        {"size": 64},
        {"offset": 1 << 40},
        {"offset": 4097},
        {"kind": "Q9"},
        {"shape": [1 << 50, 4]},
    ):
        lie = {**index, "entries": [index["entries"][0] | change, *index["entries"][1:]]}
        text = json.dumps(lie).encode()
        digest = packed_file._digest(text, np.frombuffer(data[:start], np.uint8))
        values = (packed_file.MAGIC, packed_file.FORMAT_VERSION, start, len(text), start + len(text), digest)
        head = packed_file._PREAMBLE.pack(*values).ljust(PREAMBLE_BYTES, b"\0")
        loader.file.write_bytes(head + data[PREAMBLE_BYTES:start] + text)
        with pytest.raises(packed_file.UnusablePack):
            packed_file.open_packed(loader.file, index["identity"])


def test_the_file_is_named_by_the_weights_whatever_the_context(loader):
    _, loaded = loader.load()
    own = PackedFolder(loader.folder, NativeOps().arithmetic_id)
    assert loader.file == own.path_of(loaded.weights_fingerprint)
    ops = NativeOps()
    shorter = load_model(loader.path, ops, context_length=64, packed=own)
    assert shorter.mapped_bytes > 0
    assert len(survey(loader.folder)) == 1


def test_another_mode_and_another_model_have_files_of_their_own(loader, tmp_path):
    loader.load()
    loader.weights = "int8"
    loader.load()
    assert loader.packed
    other = Loader(save_checkpoint("llama", tmp_path / "other", seed=3), loader.folder)
    other.load()
    assert other.packed
    assert len(survey(loader.folder)) == 3
    assert all(f"-{PACKING_VERSION}.packed" in pack.path.name for pack in survey(loader.folder))


def test_a_copy_under_anothers_name_is_refused(loader, tmp_path, caplog):
    loader.load()
    other = Loader(save_checkpoint("llama", tmp_path / "other", seed=3), tmp_path / "theirs")
    first, _ = other.load()
    other.file.write_bytes(loader.file.read_bytes())
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        assert other.load()[0] == first
    assert "made of another model" in caplog.text


def test_a_folder_that_cannot_be_written_is_reported_and_the_load_goes_on(loader, caplog, tmp_path):
    (tmp_path / "packed").write_text("a file, not a folder")
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        _, loaded = loader.load()
    assert "cannot be kept" in caplog.text
    assert loaded.mapped_bytes == 0


def test_a_disk_that_fills_leaves_nothing_behind(loader, monkeypatch, caplog):
    calls = []

    def full(*args):
        calls.append(args)
        if len(calls) > 5:
            raise OSError(28, "No space left on device")
        return own(*args)

    own = os.pwrite
    monkeypatch.setattr("os.pwrite", full)
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        loader.load()
    assert "No space left" in caplog.text
    assert list(loader.folder.iterdir()) == []


def test_a_part_whose_writer_was_killed_is_removed_and_a_living_ones_stays(loader):
    loader.folder.mkdir()
    (loader.folder / ".dead.part").write_bytes(b"x")
    living = (loader.folder / ".living.part").open("wb")
    fcntl.flock(living, fcntl.LOCK_EX)
    loader.load()
    names = {path.name for path in loader.folder.iterdir()}
    living.close()
    assert ".dead.part" not in names
    assert ".living.part" in names


def test_a_part_that_another_start_removes_before_it_is_locked_is_begun_again(loader, monkeypatch):
    removed = []

    def remove_first(file, operation):
        if not removed:
            removed.extend(loader.folder.iterdir())
            removed[0].unlink()
        own(file, operation)

    own = fcntl.flock
    monkeypatch.setattr("fcntl.flock", remove_first)
    first, _ = loader.load()
    assert removed
    assert loader.load()[0] == first
    assert loader.packed == []


def test_a_copy_whose_part_is_gone_at_the_end_is_reported_and_the_load_goes_on(loader, monkeypatch, caplog):
    finish = PackWriter.finish

    def cleaned(writer, *made_of):
        for path in loader.folder.iterdir():
            path.unlink()
        return finish(writer, *made_of)

    monkeypatch.setattr(PackWriter, "finish", cleaned)
    with caplog.at_level(logging.WARNING, "octavo.packed"):
        _, loaded = loader.load()
    assert "cannot be kept" in caplog.text
    assert loaded.mapped_bytes == 0
    assert list(loader.folder.iterdir()) == []


def test_an_interrupted_load_leaves_nothing_behind(loader, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.model.reader.WeightReader.refuse_leftovers", interrupted)
    with pytest.raises(KeyboardInterrupt):
        loader.load()
    assert list(loader.folder.iterdir()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_of_its_own_panels_is_the_matrix(kind, tmp_path):
    rng, modes = np.random.default_rng(1), {"F32": "f32", "BF16": "bf16"}
    raw = random_tensor("Q8_0" if kind in modes else kind, 40, 256, rng)
    ops = NativeOps(modes.get(kind, "auto"))
    matrix = ops.matrix(raw)
    panels = panels_of(matrix)
    assert panels.size == matrix.num_bytes == panel_bytes(kind, (40, 256))
    (tmp_path / "panels").write_bytes(panels.tobytes())
    again = matrix_of(kind, matrix.shape, MappedFile(tmp_path / "panels").data)
    x = rng.normal(size=(3, 256)).astype(np.float32)
    assert ops.linear(x, again).tobytes() == ops.linear(x, matrix).tobytes()
    rows = np.array([0, 39, 7], np.int32)
    assert ops.embed(again, rows).tobytes() == ops.embed(matrix, rows).tobytes()


@pytest.mark.real_model
def test_a_gguf_of_interleaved_heads_is_mapped_with_the_same_bits(default_gguf, tmp_path):
    loader = Loader(ModelPath("smollm2-135m", default_gguf, "gguf"), tmp_path / "packed")
    first, _ = loader.load()
    assert loader.packed
    assert loader.load()[0] == first
    assert loader.packed == []
