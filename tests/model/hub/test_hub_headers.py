"""A repository is looked at by its headers alone, which tell what its whole files would tell."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from tests.model.checkpoints import checkpoint, save_checkpoint
from tests.model.fake_hub import serving_hub, use_hub
from tests.model.gguf_bench import write_model

from octavo.errors import ModelNotFound
from octavo.model.hub import headers
from octavo.model.hub.headers import fetch_headers
from octavo.model.hub.paths import ModelPath, resolve
from octavo.model.model_check import check_model
from octavo.types import Notice

LLAMA3 = np.linspace(1.0, 8.0, 8)  # factors of rope, which are read as well


@pytest.fixture
def hub(tmp_path, monkeypatch):
    monkeypatch.setattr(headers, "FIRST_BYTES", 1 << 10)
    with serving_hub() as served:
        use_hub(served, monkeypatch, tmp_path / "cache")
        yield served


def look(tmp_path, name, said=None):
    """The folder for headers, and the model as it is found with them."""
    folder = tmp_path / "headers"
    folder.mkdir(exist_ok=True)
    report = (said if said is not None else []).append
    found = resolve(name, report, lambda *repository: fetch_headers(folder, *repository))
    return folder, found


def fetched(hub):
    """Bytes that were asked of the file store; of ranges without an end, all."""
    total = 0
    for wanted in hub.gets():
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        assert last, "a whole file was asked for"
        total += int(last) + 1 - int(first)
    return total


def assert_alike(found, whole):
    one, other = check_model(found, "auto"), check_model(whole, "auto")
    assert one.problems == other.problems == ()
    assert one.stored == other.stored
    assert one.vocabulary == other.vocabulary
    assert one.measured.spec == other.measured.spec
    assert one.measured.num_bytes == other.measured.num_bytes


@pytest.mark.parametrize("folder", ["", "Q8_0/"])
def test_a_gguf_file_is_reported_by_its_header_and_the_tensors_of_rope(folder, hub, tmp_path):
    whole = write_model(checkpoint("llama"), tmp_path / "X-Q8_0.gguf", "Q8_0", rope_factors=LLAMA3)
    data = whole.path.read_bytes()
    hub.files = {f"{folder}X-Q8_0.gguf": data}
    said: list[str] = []
    _, found = look(tmp_path, "owner/name:Q8_0", said)
    assert found.path.stat().st_size == len(data)
    assert_alike(found, whole)
    assert len(hub.gets()) > 1
    assert fetched(hub) < len(data) // 2
    told = next(line for line in said if isinstance(line, Notice))
    assert told == f"owner/name: only headers were read; serving it fetches {len(data) / 1024:.0f} KiB"
    blobs = tmp_path / "cache" / "models--owner--name" / "blobs"
    assert not blobs.exists()


def test_all_parts_of_a_split_file_are_reported(hub, tmp_path, monkeypatch):
    import gguf

    split = gguf.GGUFWriter
    monkeypatch.setattr(gguf, "GGUFWriter", lambda path, arch: split(path, arch, split_max_tensors=12))
    (tmp_path / "split").mkdir()
    write_model(checkpoint("llama"), tmp_path / "split" / "m.gguf")
    names = sorted(os.listdir(tmp_path / "split"))
    hub.files = {name: (tmp_path / "split" / name).read_bytes() for name in names}
    assert len(names) > 1
    _, found = look(tmp_path, "owner/name")
    assert_alike(found, ModelPath("m", tmp_path / "split" / names[0], "gguf"))


def test_safetensors_are_reported_by_the_headers_of_their_shards_and_their_texts(hub, tmp_path):
    whole = save_checkpoint("llama", tmp_path / "model", shard_bytes=100_000)
    hub.files = {path.name: path.read_bytes() for path in whole.path.iterdir()}
    hub.small = {name for name in hub.files if name.endswith(".json")}
    weights = [name for name in hub.files if name.endswith(".safetensors")]
    assert len(weights) > 2
    _, found = look(tmp_path, "owner/name")
    assert_alike(found, whole)
    assert fetched(hub) < sum(len(hub.files[name]) for name in weights) // 2


def test_what_is_in_the_cache_is_not_asked_for_again(hub, tmp_path):
    whole = write_model(checkpoint("llama"), tmp_path / "X-Q8_0.gguf", "Q8_0")
    hub.files = {"X-Q8_0.gguf": whole.path.read_bytes()}
    cached = resolve("owner/name")
    before = len(hub.gets())
    folder, found = look(tmp_path, "owner/name")
    assert found.path == cached.path
    assert len(hub.gets()) == before
    assert list(folder.iterdir()) == []


def test_a_store_without_ranges_is_read_to_the_end_of_the_header(hub, tmp_path, monkeypatch):
    monkeypatch.setattr(headers, "FIRST_BYTES", 1 << 16)
    whole = write_model(checkpoint("llama"), tmp_path / "X-Q8_0.gguf", "Q8_0")
    hub.files, hub.ranges = {"X-Q8_0.gguf": whole.path.read_bytes()}, False
    assert_alike(look(tmp_path, "owner/name")[1], whole)


def test_a_store_that_refuses_is_an_error_that_says_what_to_do(hub, tmp_path):
    whole = write_model(checkpoint("llama"), tmp_path / "X-Q8_0.gguf", "Q8_0")
    hub.files, hub.statuses = {"X-Q8_0.gguf": whole.path.read_bytes()}, [403] * 3
    with pytest.raises(ModelNotFound, match=r"X-Q8_0.gguf: its header cannot be read \(HTTP 403\); `octavo"):
        look(tmp_path, "owner/name")


def test_a_file_that_is_no_gguf_is_reported_by_its_reader(hub, tmp_path):
    hub.files = {"X-Q8_0.gguf": np.random.default_rng(1).bytes(20_000)}
    _, found = look(tmp_path, "owner/name")
    assert "does not begin with the letters GGUF" in check_model(found, "auto").problems[0].text


def test_doctor_leaves_no_headers_behind(hub, tmp_path, monkeypatch):
    from octavo.cli import doctor_headers
    from octavo.config import StartOptions
    from octavo.engine.backends import choose_backend

    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(doctor_headers, "measure_read", lambda: 1e9)
    (tmp_path / "temporary").mkdir()
    whole = write_model(checkpoint("llama"), tmp_path / "X-Q8_0.gguf", "Q8_0")
    hub.files = {"X-Q8_0.gguf": whole.path.read_bytes()}
    options = StartOptions(backend="native")
    assert doctor_headers.diagnose("owner/name", options, choose_backend(options))
    assert list(Path(tmp_path / "temporary").iterdir()) == []
    assert 0 < fetched(hub) < len(hub.files["X-Q8_0.gguf"])
