"""A repository's files: which are fetched, resumed, checked, found without network; and every refusal."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections import namedtuple
from types import SimpleNamespace

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub import constants, file_download
from tests.model.fake_hub import git_sha1, serving_hub, sha256, use_hub

from octavo.errors import BadModelFile, ModelNotFound, UnsupportedModel
from octavo.model.hub import download as downloading
from octavo.model.hub import repository as repositories
from octavo.model.hub.paths import ModelPath, resolve
from octavo.types import Notice


def noise(num_bytes, seed=0):
    return np.random.default_rng(seed).bytes(num_bytes)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    with serving_hub() as served:
        use_hub(served, monkeypatch, tmp_path / "cache")
        yield served


@pytest.fixture
def ggufs(hub):
    """A repository as people publish them."""
    hub.files = {
        "README.md": b"words",
        "X-Q4_K_M.gguf": noise(300_000, 1),
        "X-Q8_0-00001-of-00002.gguf": noise(200_000, 2),
        "X-Q8_0-00002-of-00002.gguf": noise(150_000, 3),
        "IQ4_XS/X.gguf": noise(1000, 4),
        "mmproj-X-f16.gguf": noise(1000, 5),
    }
    return hub


@pytest.fixture
def safetensors(hub):
    hub.files = {
        "config.json": b'{"model_type": "llama"}',
        "tokenizer.json": noise(5000, 6),
        "pytorch_model.bin": noise(100),
        "original/params.json": b"{}",
        "consolidated.safetensors": noise(100),
        "model-1.safetensors": noise(50_000, 7),
        "model-2.safetensors": noise(60_000, 8),
        "modeling_x.py": b"import os",
    }
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    hub.files["model.safetensors.index.json"] = json.dumps(index).encode()
    hub.small = {"config.json", "model.safetensors.index.json", "original/params.json"}
    return hub


def blobs(tmp_path):
    return sorted(os.listdir(tmp_path / "cache" / "models--owner--name" / "blobs"))


def read(hub, found, name):
    path = found.path if found.kind == "gguf" else found.path / name
    return path.parent.joinpath(os.path.basename(name)).read_bytes() == hub.files[name]


def test_the_quantisation_that_is_named_is_fetched_and_no_other(ggufs, tmp_path):
    found = resolve("owner/name:iq4_xs")
    assert (found.name, found.kind) == ("owner/name:iq4_xs", "gguf")
    assert found.path.read_bytes() == ggufs.files["IQ4_XS/X.gguf"]
    assert blobs(tmp_path) == [sha256(ggufs.files["IQ4_XS/X.gguf"])]


def test_without_a_name_the_usual_one_is_taken_and_that_is_said(ggufs):
    said = []
    found = resolve("owner/name", said.append)
    assert found.path.name == "X-Q4_K_M.gguf"
    assert [line for line in said if "is taken" in line] == [
        "owner/name: X-Q4_K_M.gguf is taken, the first of Q4_K_M, Q4_K_S, Q4_1, Q4_0, ... that is there"
    ]


@pytest.mark.parametrize("wanted", ["Q8_0", "X-Q8_0-00001-of-00002.gguf", "X-Q8_0-00002-of-00002.gguf"])
def test_all_parts_of_a_split_file_are_fetched_into_one_folder(wanted, ggufs):
    found = resolve(f"owner/name:{wanted}")
    assert found.path.name == "X-Q8_0-00001-of-00002.gguf"
    for name in ("X-Q8_0-00001-of-00002.gguf", "X-Q8_0-00002-of-00002.gguf"):
        assert (found.path.parent / name).read_bytes() == ggufs.files[name]


def test_what_a_repository_does_not_have_lists_what_it_has(ggufs):
    with pytest.raises(ModelNotFound) as caught:
        resolve("owner/name:Q5_K_M")
    for part in ("'Q5_K_M'", "Q4_K_M (293 KiB)", "Q8_0 (342 KiB)", "IQ4_XS (1000 B)"):
        assert part in str(caught.value)
    assert "mmproj" not in str(caught.value)
    assert not ggufs.gets()


def test_safetensors_come_with_what_belongs_to_them_and_nothing_that_runs(safetensors, tmp_path):
    found = resolve("owner/name")
    assert (found.name, found.kind) == ("owner/name", "safetensors")
    here = sorted(path.relative_to(found.path).as_posix() for path in found.path.rglob("*"))
    text = ["config.json", "model.safetensors.index.json", "tokenizer.json"]
    assert here == sorted([*text, "model-1.safetensors", "model-2.safetensors"])
    for name in here:
        assert (found.path / name).read_bytes() == safetensors.files[name]


def test_a_quantisation_of_a_repository_without_gguf_files_is_refused(safetensors):
    with pytest.raises(ModelNotFound, match="no GGUF file for 'Q4_K_M': its safetensors are one model"):
        resolve("owner/name:Q4_K_M")


def test_a_repository_of_pickles_is_refused_before_anything_is_fetched(hub):
    hub.files = {"pytorch_model.bin": noise(100), "config.json": b"{}"}
    with pytest.raises(UnsupportedModel, match="pickled"):
        resolve("owner/name")
    assert not any("resolve" in path for _, path, _ in hub.seen)


def test_an_index_that_names_a_missing_shard_is_refused_before_the_weights_are_fetched(safetensors):
    del safetensors.files["model-2.safetensors"]
    with pytest.raises(ModelNotFound, match=r"index\.json names \['model-2\.safetensors'\]"):
        resolve("owner/name")
    assert not any("model-1" in path for _, path, _ in safetensors.seen)


# -- what goes wrong on the way ------------------------------------------------------------------------


def test_a_cut_connection_is_resumed_from_where_it_ended(ggufs):
    ggufs.cuts = [100_000, 50_000]
    found = resolve("owner/name")
    assert found.path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]
    assert ggufs.gets() == ["bytes=0-", "bytes=100000-", "bytes=150000-"]


def test_a_fetch_that_gave_up_is_resumed_by_the_next_one(ggufs, tmp_path):
    ggufs.cuts = [120_000, 0, 0, 0, 0]
    with pytest.raises(ModelNotFound, match=r"beyond 117 KiB of 293 KiB: .* goes on from there"):
        resolve("owner/name")
    assert blobs(tmp_path) == [sha256(ggufs.files["X-Q4_K_M.gguf"]) + ".incomplete"]
    before = len(ggufs.gets())
    ggufs.cuts = []
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]
    assert ggufs.gets()[before:] == ["bytes=120000-"]


def test_a_store_without_ranges_is_read_from_the_beginning(ggufs):
    ggufs.ranges, ggufs.cuts = False, [100_000]
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]


def test_a_part_that_is_longer_than_the_file_is_fetched_again(ggufs, tmp_path):
    folder = tmp_path / "cache" / "models--owner--name" / "blobs"
    folder.mkdir(parents=True)
    (folder / (sha256(ggufs.files["X-Q4_K_M.gguf"]) + ".incomplete")).write_bytes(noise(300_001))
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_store_is_asked_again(status, ggufs):
    ggufs.statuses = [status, status]
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]


def test_a_store_that_refuses_is_said(ggufs):
    ggufs.statuses = [403]
    with pytest.raises(ModelNotFound, match=r"X-Q4_K_M\.gguf cannot be fetched: HTTP 403"):
        resolve("owner/name")


def test_bytes_in_another_coding_are_refused_at_once(ggufs):
    ggufs.store_headers = {"Content-Encoding": "gzip"}
    with pytest.raises(ModelNotFound, match="it comes as 'gzip', where the plain bytes were asked for"):
        resolve("owner/name")
    assert len(ggufs.gets()) == 1


def test_a_redirection_to_a_file_is_refused_at_once(ggufs):
    ggufs.location = "file:///etc/passwd"
    with pytest.raises(ModelNotFound, match=r"X-Q4_K_M.gguf cannot be fetched: .*file://"):
        resolve("owner/name")
    assert sum(method == "GET" and "resolve" in path for method, path, _ in ggufs.seen) == 1


def test_wrong_bytes_are_refused_and_removed(ggufs, tmp_path):
    ggufs.spoilt = {"X-Q4_K_M.gguf"}
    expected = sha256(ggufs.files["X-Q4_K_M.gguf"])
    with pytest.raises(BadModelFile, match=rf"X-Q4_K_M\.gguf has sha256 \w+; the hub says {expected}"):
        resolve("owner/name")
    assert blobs(tmp_path) == []
    ggufs.spoilt = set()
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]


def test_wrong_bytes_of_a_part_left_behind_are_found_out(ggufs, tmp_path):
    folder = tmp_path / "cache" / "models--owner--name" / "blobs"
    folder.mkdir(parents=True)
    (folder / (sha256(ggufs.files["X-Q4_K_M.gguf"]) + ".incomplete")).write_bytes(noise(1000, 99))
    with pytest.raises(BadModelFile, match="removed"):
        resolve("owner/name")
    assert blobs(tmp_path) == []


def test_a_small_file_is_checked_by_its_name_in_git(safetensors, tmp_path, monkeypatch):
    real = downloading.Download._write

    def spoil(self, answer, fd, start, stop):
        real(self, answer, fd, start, stop)
        if self.file.name == "config.json":
            os.pwrite(fd, b"!", 0)

    monkeypatch.setattr(downloading.Download, "_write", spoil)
    with pytest.raises(
        BadModelFile, match=f"config.json has sha1 .* {git_sha1(safetensors.files['config.json'])}"
    ):
        resolve("owner/name")


@pytest.mark.parametrize("is_right", [True, False])
def test_what_only_the_library_can_fetch_is_checked_too(is_right, ggufs, tmp_path, monkeypatch):
    data = ggufs.files["X-Q4_K_M.gguf"]
    where = SimpleNamespace(file_hash="x")

    def metadata(url, timeout):
        return SimpleNamespace(etag=sha256(data), size=len(data), xet_file_data=where)

    def xet_get(*, incomplete_path, xet_file_data, expected_size, **_more):
        assert (xet_file_data, expected_size) == (where, len(data))
        incomplete_path.write_bytes(data if is_right else data[::-1])

    monkeypatch.setattr(repositories, "_PLAIN_HTTP_MAX", len(data) - 1)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", metadata)
    monkeypatch.setattr(file_download, "xet_get", xet_get)
    if is_right:
        assert resolve("owner/name").path.read_bytes() == data
    else:
        with pytest.raises(
            BadModelFile, match=rf"X-Q4_K_M\.gguf has sha256 \w+; the hub says {sha256(data)}"
        ):
            resolve("owner/name")
    assert blobs(tmp_path) == ([sha256(data)] if is_right else [])
    assert ggufs.gets() == []


def outside(tmp_path):
    """What there is beside the cache's own folder."""
    own = tmp_path / "cache" / "models--owner--name"
    return sorted(path for path in tmp_path.rglob("*") if path != own and own not in path.parents)


HOSTILE_ETAGS = [
    "../../../../etag",
    "..",
    ".",
    "a/b",
    "/tmp/etag",
    "e" * 3000,
    "",
    "a%00b",
    "a..b",
    "a.incomplete",
]


@pytest.mark.parametrize("etag", HOSTILE_ETAGS)
def test_an_etag_that_is_no_name_of_a_blob_is_refused_and_writes_nothing(etag, ggufs, tmp_path):
    (tmp_path / "cache").mkdir()
    (tmp_path / "etag").write_text("mine")
    before = outside(tmp_path)
    ggufs.etags = {"X-Q4_K_M.gguf": etag}
    with pytest.raises(BadModelFile, match=r"gives 'X-Q4_K_M.gguf' the ETag .* allowed: 1 to 128 letters"):
        resolve("owner/name")
    assert outside(tmp_path) == before
    assert (tmp_path / "etag").read_text() == "mine"
    assert blobs(tmp_path) == []


@pytest.mark.parametrize(
    "commit", ["../../../../escape", "/tmp/escape", "..", "main", "a" * 5000, "A" * 40, 7, None, ["a"]]
)
def test_a_commit_that_is_no_hash_is_refused_and_writes_nothing(commit, ggufs, tmp_path):
    (tmp_path / "cache").mkdir()
    before = outside(tmp_path)
    ggufs.commit = commit
    ggufs.statuses = []
    with pytest.raises(ModelNotFound, match=r"names the commit .* allowed: 40 hexadecimal digits"):
        resolve("owner/name")
    assert outside(tmp_path) == before


@pytest.mark.parametrize(
    "name",
    ["../../../../X-Q4_K_M.gguf", "/tmp/X-Q4_K_M.gguf", "a/../X-Q4_K_M.gguf", "a//X.gguf", "", "a\0.gguf"],
)
def test_a_file_that_leaves_the_repository_is_refused_and_writes_nothing(name, ggufs, tmp_path):
    (tmp_path / "cache").mkdir()
    before = outside(tmp_path)
    ggufs.files[name] = noise(1000)
    with pytest.raises(ModelNotFound, match=r"lists the file .* allowed: .* a path inside the repository"):
        resolve("owner/name:IQ4_XS")
    assert outside(tmp_path) == before


@pytest.mark.parametrize("size", [-5, 2**62, "x", 1e300, True, [1]])
def test_a_size_that_is_none_is_refused(size, ggufs):
    ggufs.sizes = {"X-Q4_K_M.gguf": size}
    with pytest.raises(ModelNotFound, match=r"says that 'X-Q4_K_M.gguf' has .* bytes; allowed: 0 to"):
        resolve("owner/name")


@pytest.mark.parametrize(
    "listing",
    [
        b"[1]",
        b"null",
        b"7",
        b"[" * 200_000,
        b"\xff" * 5000,
        b"{}",
        b'{"id": 7}',
        b'{"id": "owner/name", "sha": "' + b"a" * 40 + b'", "siblings": [7]}',
        b'{"id": "owner/name", "sha": "' + b"a" * 40 + b'", "siblings": {"a": 1}}',
        b'{"id": "owner/name", "sha": "' + b"a" * 40 + b'", "siblings": [{"rfilename": "x", "lfs": 3}]}',
    ],
)
def test_json_that_describes_no_repository_is_a_clear_error(listing, hub):
    hub.listing = listing
    with pytest.raises(ModelNotFound, match="repository owner/name could not be fetched"):
        resolve("owner/name")


def test_the_hub_is_asked_for_nothing_but_the_repository(ggufs, monkeypatch):
    from huggingface_hub.utils import _detect_agent

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", False)
    monkeypatch.setattr(_detect_agent, "_registry", None)
    monkeypatch.setattr(constants, "AGENT_HARNESSES_PATH", "/nowhere")
    resolve("owner/name")
    asked = {path for _, path, _ in ggufs.seen if len(path) != 65}
    assert asked == {"/api/models/owner/name", f"/owner/name/resolve/{ggufs.commit}/X-Q4_K_M.gguf"}


def test_a_file_system_without_links_has_the_files_themselves(ggufs, tmp_path, monkeypatch):
    def refuse(*_arguments):
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(repositories.Path, "symlink_to", refuse)
    assert resolve("owner/name").path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]
    assert blobs(tmp_path) == []


def test_a_file_whose_checksum_no_one_shows_is_named(ggufs):
    ggufs.untold = {"X-Q4_K_M.gguf"}
    said = []
    resolve("owner/name", said.append)
    told = [line for line in said if "not checked" in line]
    assert told == ["owner/name: X-Q4_K_M.gguf is not checked: the hub tells no checksum of it"]
    assert isinstance(told[0], Notice)
    said.clear()
    resolve("owner/name:IQ4_XS", said.append)
    assert not any("not checked" in line for line in said)


def test_a_full_disk_is_said_before_anything_is_fetched(ggufs, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(repositories.shutil, "disk_usage", lambda _path: usage(0, 0, 100 << 10))
    with pytest.raises(ModelNotFound, match="has 100 KiB free; 293 KiB are needed"):
        resolve("owner/name")
    assert not any("resolve" in path for _, path, _ in ggufs.seen)


def test_what_is_on_the_way_already_needs_no_room(ggufs, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(repositories.shutil, "disk_usage", lambda _path: usage(0, 0, 100 << 10))
    folder = tmp_path / "cache" / "models--owner--name" / "blobs"
    folder.mkdir(parents=True)
    data = ggufs.files["X-Q4_K_M.gguf"]
    (folder / (sha256(data) + ".incomplete")).write_bytes(data[:250_000])
    assert resolve("owner/name").path.read_bytes() == data


@pytest.mark.parametrize(
    "refused,message",
    [
        ((404, "RepoNotFound"), "no such repository, or it is private"),
        ((401, "RepoNotFound"), "no such repository, or it is private"),
        ((401, "GatedRepo"), "accept terms and log in first"),
        ((403, "GatedRepo"), "accept terms and log in first"),
        ((403, ""), "403 Forbidden"),
        ((401, ""), r"could not be fetched \(.*401"),
        ((500, ""), r"could not be fetched \(.*500"),
    ],
)
def test_each_refusal_of_the_hub_is_a_clear_error(refused, message, hub):
    hub.refused = refused
    with pytest.raises(ModelNotFound, match=message):
        resolve("owner/name")


def test_a_gated_repository_that_lists_its_files_is_a_clear_error(ggufs):
    ggufs.refused_files = (403, "GatedRepo")
    with pytest.raises(ModelNotFound, match="accept terms and log in first"):
        resolve("owner/name")


def test_a_token_goes_to_the_hub_and_not_to_the_file_store(ggufs, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("owner/name")
    assert ggufs.gets()
    assert set(ggufs.tokens) == {("hub", "Bearer hf_secret")}


# -- a second start ------------------------------------------------------------------------------------


def test_what_is_here_is_not_fetched_again(ggufs):
    first = resolve("owner/name")
    num_seen = len(ggufs.seen)
    assert resolve("owner/name") == first
    assert ggufs.seen[num_seen:] == [("GET", "/api/models/owner/name", "")]


def offline(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


@pytest.mark.parametrize("how", ["offline", "no network", "hub is down", "repository is gone"])
def test_without_the_hub_the_cached_copy_is_used_and_that_is_said(how, ggufs, monkeypatch):
    expected = resolve("owner/name:Q8_0")
    if how == "offline":
        offline(monkeypatch)
    elif how == "no network":
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    else:
        ggufs.refused = (503, "") if how == "hub is down" else (404, "RepoNotFound")
    said = []
    assert resolve("owner/name:Q8_0", said.append) == expected
    assert "cannot be asked" in said[-1]
    assert "in the cache is used" in said[-1]
    assert resolve("owner/name").path == expected.path  # the only one that is there


def test_without_the_hub_an_incomplete_copy_is_refused_by_what_is_missing(ggufs, monkeypatch):
    found = resolve("owner/name:Q8_0")
    (found.path.parent / "X-Q8_0-00002-of-00002.gguf").unlink()
    offline(monkeypatch)
    with pytest.raises(ModelNotFound, match=r"cache: snapshot c0ffee000000 has 1 of the 2 parts of X-Q8_0-0"):
        resolve("owner/name:Q8_0")
    with pytest.raises(ModelNotFound, match="for 'Q4_0'; allowed: Q8_0"):
        resolve("owner/name:Q4_0")


def test_without_the_hub_safetensors_need_every_shard(safetensors, monkeypatch):
    expected = resolve("owner/name")
    offline(monkeypatch)
    assert resolve("owner/name") == expected
    (expected.path / "model-2.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"and of what is in the cache: .*model-2"):
        resolve("owner/name")


def test_without_the_hub_an_older_whole_copy_serves_where_the_newest_is_not(ggufs, monkeypatch):
    older = resolve("owner/name")
    ggufs.commit, ggufs.files["X-Q4_K_M.gguf"] = 40 * "a", noise(400_000, 11)
    newer = resolve("owner/name")
    assert newer.path != older.path
    offline(monkeypatch)
    assert resolve("owner/name") == newer
    newer.path.unlink()
    assert resolve("owner/name") == older


def test_a_repository_that_is_nowhere_is_a_clear_error(hub, monkeypatch):
    offline(monkeypatch)
    with pytest.raises(
        ModelNotFound, match=r"owner/name could not be fetched \(OfflineMode.*Check the network"
    ):
        resolve("owner/name")


def test_two_fetches_of_one_file_at_once_fetch_it_once(ggufs):
    ggufs.stall, ggufs.cuts = threading.Event(), [100_000]
    found: list[ModelPath] = []
    threads = [threading.Thread(target=lambda: found.append(resolve("owner/name"))) for _ in range(3)]
    for thread in threads:
        thread.start()
    while not ggufs.gets():
        pass
    ggufs.stall.set()
    for thread in threads:
        thread.join()
    assert len({each.path for each in found}) == 1
    assert found[0].path.read_bytes() == ggufs.files["X-Q4_K_M.gguf"]
    assert ggufs.gets() == ["bytes=0-", "bytes=100000-"]


def test_progress_shows_bytes_speed_and_what_is_left(ggufs):
    file = downloading.RemoteFile("X.gguf", "", {}, 4000 << 10, None, None)
    download = downloading.Download(file, ggufs, ggufs)
    said = []
    meter = repositories._DownloadMeter("owner/name", 8000 << 10, said.append)
    meter.before = 2000 << 10
    assert meter._speed(100.0, 2000 << 10) == ""
    assert meter._speed(102.0, 3000 << 10) == ", 500 KiB/s, 10 s left"
    download.num_bytes = 1000 << 10
    meter.report(download)
    download.doing, download.checking.num_bytes = "checking", 2000 << 10
    meter.report(download)
    assert said[0].startswith("owner/name: fetching X.gguf, 2.9 MiB of 7.8 MiB")
    assert said[1] == "owner/name: checking X.gguf, 2.0 MiB of 3.9 MiB"


def test_someone_who_looks_once_a_second_is_reported_while_nothing_comes(ggufs, monkeypatch):
    monkeypatch.setattr(downloading, "TICK_S", 0.01)
    ggufs.stall, ggufs.cuts = threading.Event(), [100_000]
    said = []

    def hear(line):
        said.append(line)
        if sum("97.7 KiB of 293 KiB" in each for each in said) == 3:
            ggufs.stall.set()

    resolve("owner/name", hear)
    assert ggufs.stall.is_set()


def test_an_interrupt_leaves_a_part_that_the_next_fetch_goes_on_with(ggufs, tmp_path, monkeypatch):
    monkeypatch.setattr(downloading, "TICK_S", 0.01)
    ggufs.stall, ggufs.cuts = threading.Event(), [100_000]

    def interrupt(line):
        if "97.7 KiB of 293 KiB" in line:
            ggufs.stall.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resolve("owner/name", interrupt)
    part = (
        tmp_path / "cache/models--owner--name/blobs" / (sha256(ggufs.files["X-Q4_K_M.gguf"]) + ".incomplete")
    )
    assert part.stat().st_size == 100_000
    resolve("owner/name")
    assert ggufs.gets() == ["bytes=0-", "bytes=100000-"]
