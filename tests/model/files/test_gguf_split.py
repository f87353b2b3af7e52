"""Split GGUF files: any part opens all of them, and parts that are not of one set are refused by name."""

from __future__ import annotations

import shutil

import gguf
import numpy as np
import pytest
from tests.model.checkpoints import checkpoint, random_prompt
from tests.model.chunks import load, run_chunks
from tests.model.gguf_bench import finish, write_model
from tests.model.sizes import VOCABULARY

from octavo.errors import BadModelFile, ModelNotFound
from octavo.model.files.gguf import read_gguf
from octavo.model.files.gguf_split import parse_part_name
from octavo.model.hub.paths import ModelPath

NUM_TENSORS = 7


def write_parts(path, *, per_part=3, rename=lambda name: name, arch="llama", small_first=False, spread=1.0):
    """Parts that the `gguf` package splits: seven tensors, so many in each; returns their paths."""
    writer = gguf.GGUFWriter(path, arch, split_max_tensors=per_part, small_first_shard=small_first)
    writer.add_string("general.name", "sample")
    writer.add_array("a.strings", ["one", "two"])
    generator = np.random.default_rng(0)
    for index in range(NUM_TENSORS):
        values = spread * generator.standard_normal((4, 64)).astype(np.float32)
        kind = gguf.GGMLQuantizationType.Q8_0 if index % 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(rename(f"t{index}"), gguf.quants.quantize(values, kind), raw_dtype=kind)
    finish(writer)
    return sorted(path.parent.glob(f"{path.stem}-*-of-*.gguf"))


@pytest.mark.parametrize("small_first", [False, True])
def test_any_part_opens_all_of_them_as_the_gguf_package_has_them(small_first, tmp_path):
    parts = write_parts(tmp_path / "m.gguf", small_first=small_first)
    assert len(parts) == 3 + small_first
    expected = {t.name: t.data.tobytes() for part in parts for t in gguf.GGUFReader(part).tensors}
    for part in parts:
        file = read_gguf(part)
        assert file.paths == tuple(parts)
        assert file.metadata["general.name"] == "sample"
        assert {name: raw.data.tobytes() for name, raw in file.tensors.items()} == expected
        assert len(expected) == NUM_TENSORS


def test_released_tensors_of_every_part_still_read_the_same(tmp_path):
    file = read_gguf(write_parts(tmp_path / "m.gguf")[0])
    before = {name: raw.data.tobytes() for name, raw in file.tensors.items()}
    for raw in file.tensors.values():
        file.release(raw)  # of the file that holds it: another one asserts
    assert {name: raw.data.tobytes() for name, raw in file.tensors.items()} == before


def test_a_split_model_computes_what_the_whole_one_does(tmp_path, monkeypatch):
    theirs = checkpoint("llama")
    whole = write_model(theirs, tmp_path / "whole.gguf", "Q8_0")
    made = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, arch: made(path, arch, split_max_tensors=11))
    write_model(theirs, tmp_path / "split.gguf", "Q8_0")
    parts = sorted(tmp_path.glob("split-*.gguf"))
    assert len(parts) == 3
    tokens = random_prompt(20)
    logits, names = [], set()
    for path in (whole, ModelPath("tiny", parts[1], "gguf"), ModelPath("tiny", parts[0], "gguf")):
        ops, model = load(path, "native")
        logits.append(run_chunks(ops, model, tokens, [20]))
        names.add(model.fingerprint)
    assert logits[0].shape == (20, VOCABULARY)
    np.testing.assert_array_equal(logits[0].view(np.uint32), logits[1].view(np.uint32))
    assert len(names) == 2  # whole files and parts are other bytes; the part that was named is no matter


def test_a_change_in_a_later_part_changes_the_fingerprint(tmp_path, monkeypatch):
    made = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, arch: made(path, arch, split_max_tensors=11))
    write_model(checkpoint("llama"), tmp_path / "m.gguf")
    parts = sorted(tmp_path.glob("m-*.gguf"))
    before = load(ModelPath("tiny", parts[0], "gguf"), "native")[1].fingerprint
    data = bytearray(parts[2].read_bytes())
    data[-1] ^= 1
    parts[2].write_bytes(data)
    assert load(ModelPath("tiny", parts[0], "gguf"), "native")[1].fingerprint != before


@pytest.mark.parametrize("lost,named", [(0, 1), (1, 2), (2, 0)])
def test_a_missing_part_is_named(lost, named, tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    parts[lost].unlink()
    with pytest.raises(ModelNotFound, match=f"{parts[lost].name} does not exist, but .*{parts[named].name}"):
        read_gguf(parts[named])


def test_a_renamed_part_is_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    alone = parts[1].rename(tmp_path / "alone.gguf")
    with pytest.raises(BadModelFile, match=r"part 2 of 3 by its header; .* alone-00002-of-00003\.gguf"):
        read_gguf(alone)
    shutil.copy(parts[2], parts[1])
    with pytest.raises(BadModelFile, match="says part 3 of 3, 7 tensors in all; expected: part 2 of 3"):
        read_gguf(parts[0])


def test_a_whole_file_among_parts_is_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(parts[1], "llama")
    writer.add_tensor("t3", np.zeros(4, np.float32))
    finish(writer)
    with pytest.raises(BadModelFile, match=r"m-00002-of-00003\.gguf: its header says it is a whole file"):
        read_gguf(parts[0])


def test_a_whole_file_that_is_named_like_a_part_is_read(tmp_path):
    path = tmp_path / "m-00001-of-00002.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("w", np.zeros(4, np.float32))
    finish(writer)
    assert read_gguf(path).paths == (path,)


def foreign(tmp_path, parts, **options):
    """Part 2 replaced by that of another model."""
    other = write_parts(tmp_path / "other.gguf", **options)
    shutil.copy(other[1], parts[1])


def test_a_part_with_other_counts_is_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    foreign(tmp_path, parts, per_part=2)  # four parts
    with pytest.raises(BadModelFile, match=r"says part 2 of 4, 7 tensors .* expected: part 2 of 3"):
        read_gguf(parts[0])


def test_a_part_of_another_model_is_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    foreign(tmp_path, parts, rename=lambda name: f"x{name}" if name != "t3" else "t0")
    with pytest.raises(BadModelFile, match=r"m-00002-.* tensor 't0' is in .*m-00001-of-00003\.gguf as well"):
        read_gguf(parts[0])


def test_fewer_tensors_than_promised_are_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    for part in parts:
        own = bytearray(part.read_bytes())
        place = own.index(b"split.tensors.count") + len("split.tensors.count") + 4
        own[place : place + 4] = (9).to_bytes(4, "little")
        part.write_bytes(own)
    with pytest.raises(BadModelFile, match="hold 7 tensors; their headers promise 9"):
        read_gguf(parts[2])


def test_a_part_that_contradicts_the_first_is_refused(tmp_path):
    parts = write_parts(tmp_path / "m.gguf")
    writer = gguf.GGUFWriter(parts[1], "gpt2")
    writer.add_uint16("split.no", 1)
    writer.add_uint16("split.count", 3)
    writer.add_int32("split.tensors.count", NUM_TENSORS)
    for name in ("t3", "t4", "t5"):
        writer.add_tensor(name, np.zeros(4, np.float32))
    finish(writer)
    with pytest.raises(BadModelFile, match=r"another model than .* their general\.architecture differ"):
        read_gguf(parts[0])


@pytest.mark.parametrize("count", [-1, 1 << 20])
def test_a_count_of_parts_out_of_bounds_is_refused(count, tmp_path):
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_int32("split.count", count)
    finish(writer)
    with pytest.raises(BadModelFile, match=r"split\.count is"):
        read_gguf(tmp_path / "m.gguf")


def test_names_of_parts_are_distinguished_from_others():
    assert parse_part_name("m-00002-of-00003.gguf").of(3) == "m-00003-of-00003.gguf"
    for name in ("m.gguf", "m-00000-of-00003.gguf", "m-00004-of-00003.gguf", "m-1-of-3.gguf"):
        assert parse_part_name(name) is None
    assert parse_part_name("m-00001-of-99999.gguf") is None
