"""A fingerprint covers all of a small file, and of a large one size, header and samples."""

from __future__ import annotations

import pytest

from octavo.errors import ModelNotFound
from octavo.model.files import fingerprint
from octavo.model.files.fingerprint import hash_files


@pytest.fixture
def small_strides(monkeypatch):
    monkeypatch.setattr(fingerprint, "SAMPLE", 16)
    monkeypatch.setattr(fingerprint, "STRIDE", 64)


def hashed(path, data, whole_bytes_max, header_bytes=40):
    path.write_bytes(data)
    return hash_files([path], header_bytes, whole_bytes_max=whole_bytes_max)


def changed(data, where):
    return data[:where] + bytes([data[where] ^ 1]) + data[where + 1 :]


def test_every_byte_of_a_small_file_counts(small_strides, tmp_path):
    data = bytes(range(200))
    first = hashed(tmp_path / "f", data, 1000)
    assert hashed(tmp_path / "f", data, 1000) == first
    assert all(hashed(tmp_path / "f", changed(data, where), 1000) != first for where in range(200))


def test_header_samples_and_size_of_a_large_file_count(small_strides, tmp_path):
    data = bytes(range(250))
    first = hashed(tmp_path / "f", data, 100)
    counted = {where for where in range(250) if hashed(tmp_path / "f", changed(data, where), 100) != first}
    assert counted == {*range(48), *range(96, 112), *range(160, 176), *range(224, 240)}
    assert hashed(tmp_path / "f", data + b"x", 100) != first


def test_bytes_that_move_from_one_file_to_the_next_count(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_bytes(b"ab"), two.write_bytes(b"c")
    first = hash_files([one, two], 0)
    one.write_bytes(b"a"), two.write_bytes(b"bc")
    assert hash_files([one, two], 0) != first


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelNotFound, match="missing"):
        hash_files([tmp_path / "missing"], 0)
