"""`octavo models` lists, fetches and removes what is in the caches, and never a person's own files."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from tests.cli.listings import rows
from tests.model.fake_hub import serving_hub, sha256, use_hub
from tests.processes import running
from typer.testing import CliRunner

from octavo.cli import models_app
from octavo.cli.admin import lines_of
from octavo.cli.main import app
from octavo.errors import ConfigError, ModelNotFound, OctavoError
from octavo.model.hub import alias as aliases
from octavo.model.hub import cache, paths

Q4, Q8 = "X-Q4_K_M.gguf", ("X-Q8_0-00001-of-00002.gguf", "X-Q8_0-00002-of-00002.gguf")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A repository of two quantisations and a projector; an alias that is in the cache."""
    noise = np.random.default_rng(0).bytes
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "octavo"))
    alias = aliases.Alias("tiny==1.0", "tiny.whl", "", "tiny/tiny-Q4_0.gguf", 2048)
    for module in (aliases, cache, paths):
        monkeypatch.setattr(module, "ALIASES", {"tiny": alias})
    (tmp_path / "octavo" / "tiny").mkdir(parents=True)
    (tmp_path / "octavo" / "tiny" / "tiny-Q4_0.gguf").write_bytes(noise(2048))
    with serving_hub() as served:
        use_hub(served, monkeypatch, tmp_path / "cache")
        served.files = {
            Q4: noise(102_400),
            Q8[0]: noise(204_800),
            Q8[1]: noise(1024),
            "mmproj-f16.gguf": noise(99),
        }
        yield served


def run(*words, answer=""):
    result = CliRunner().invoke(app, ["models", *words], input=answer)
    if isinstance(result.exception, OctavoError):
        raise result.exception
    return result


def listed():
    """What the list tells a program: name to its description."""
    lines = [json.loads(line) for line in run("list", "--json").output.splitlines()]
    return {line["name"]: line for line in lines}


def blobs(tmp_path):
    return set(os.listdir(tmp_path / "cache" / "models--owner--name" / "blobs"))


def test_a_model_that_is_pulled_is_listed_with_what_there_is_to_know(hub):
    assert run("pull", "owner/name:Q8_0").exit_code == 0
    assert "201 KiB, gguf" in run("pull", "owner/name", "--file", Q8[1]).stdout
    found = listed()
    assert set(found) == {"tiny", "owner/name:Q8_0"}
    one = found["owner/name:Q8_0"]
    assert (one["kind"], one["quant"], one["num_bytes"], one["num_files"]) == ("gguf", "Q8_0", 205_824, 2)
    assert one["path"].endswith(Q8[0])
    assert one["is_whole"] is True
    assert os.stat(one["path"]).st_mtime <= one["used_at"] <= os.stat(one["path"]).st_mtime + 3600
    assert (found["tiny"]["quant"], found["tiny"]["is_whole"]) == ("Q4_0", True)
    shown = [each for each in rows(run("list").stdout) if each["model"] == "owner/name:Q8_0"]
    assert len(shown) == 1
    assert shown[0].pop("path") == one["path"]
    assert re.fullmatch(r"\d+ s ago", shown[0].pop("last used"))
    assert shown[0] == {
        "model": "owner/name:Q8_0", "size": "201 KiB", "kind": "gguf", "quant": "Q8_0", "files": "2",
    }  # fmt: skip


def test_what_was_chosen_is_reported_by_a_pull(hub):
    result = run("pull", "owner/name")
    assert f"owner/name: {Q4} is taken, the first of Q4_K_M, " in result.stderr


def test_an_alias_that_is_not_here_is_offered(hub, tmp_path):
    run("rm", "tiny", "--yes")
    assert list((tmp_path / "octavo" / "tiny").iterdir()) == []
    (shown, _) = rows(run("list").stdout)
    assert (shown["model"], shown["size"]) == ("tiny", "2.0 KiB")
    assert shown["note"] == "not fetched yet: `octavo models pull tiny`"


def test_removing_asks_and_removes_only_what_is_named(hub, tmp_path):
    run("pull", "owner/name:Q4_K_M")
    run("pull", "owner/name:Q8_0")
    result = run("rm", "owner/name:q4_k_m", answer="n\n")
    assert (result.exit_code, "owner/name:Q4_K_M  100 KiB" in result.stdout) == (1, True)
    assert set(listed()) == {"tiny", "owner/name:Q4_K_M", "owner/name:Q8_0"}
    assert "removed owner/name:q4_k_m; 100 KiB are free now" in run("rm", "owner/name:q4_k_m", "--yes").stdout
    assert set(listed()) == {"tiny", "owner/name:Q8_0"}
    assert blobs(tmp_path) == {sha256(hub.files[name]) for name in Q8}
    assert run("pull", "owner/name:Q4_K_M").exit_code == 0


def test_removing_a_repository_removes_all_of_it(hub, tmp_path):
    for wanted in ("Q4_K_M", "Q8_0"):
        run("pull", f"owner/name:{wanted}")
    assert "301 KiB are free now" in run("rm", "owner/name", "--yes").stdout
    assert set(listed()) == {"tiny"}
    assert list((tmp_path / "cache").glob("models--*")) == []


def test_a_file_of_several_commits_goes_from_all_of_them(hub, tmp_path):
    run("pull", "owner/name:Q4_K_M")
    hub.commit = 40 * "b"
    run("pull", "owner/name:Q4_K_M")
    run("pull", "owner/name:Q8_0")
    assert listed()["owner/name:Q4_K_M"]["num_bytes"] == 102_400  # one blob
    run("rm", "owner/name:Q4_K_M", "--yes")
    assert [path.name for path in (tmp_path / "cache").rglob(Q4)] == []
    assert set(listed()) == {"tiny", "owner/name:Q8_0"}


def test_bytes_that_another_file_of_the_repository_uses_stay(hub, tmp_path):
    hub.files["X-IQ4_XS.gguf"] = hub.files[Q4]
    run("pull", "owner/name:Q4_K_M")
    run("pull", "owner/name:IQ4_XS")
    assert "0 B are free now" in run("rm", "owner/name:IQ4_XS", "--yes").stdout
    [path] = (tmp_path / "cache").rglob(Q4)
    assert path.read_bytes() == hub.files[Q4]


def test_a_projector_is_listed_by_its_file(hub):
    run("pull", "owner/name", "--file", "mmproj-f16.gguf")
    assert set(listed()) == {"tiny", "owner/name:mmproj-f16.gguf"}
    run("rm", "owner/name:mmproj-f16.gguf", "--yes")
    assert set(listed()) == {"tiny"}


def test_safetensors_are_listed_with_their_type_and_whether_they_are_whole(hub, tmp_path):
    config = {"model_type": "llama", "torch_dtype": "bfloat16"}
    hub.files = {"config.json": json.dumps(config).encode(), "model.safetensors": bytes(5000)}
    run("pull", "owner/name")
    one = listed()["owner/name"]
    assert (one["kind"], one["quant"], one["is_whole"]) == ("safetensors", "bfloat16", True)
    [path] = (tmp_path / "cache").rglob("config.json")
    path.unlink()
    assert listed()["owner/name"]["is_whole"] is False
    assert "incomplete: `octavo models pull` fetches the rest" in run("list").stdout


COMMIT = 40 * "a"


@pytest.fixture
def precious(tmp_path):
    """A file and a folder outside of the cache, of the names of those inside."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / Q4).write_bytes(b"mine")
    return outside


def repository(tmp_path):
    folder = tmp_path / "cache" / "models--owner--name"
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    (folder / "blobs").mkdir()
    return folder


def test_removing_a_link_out_of_the_cache_leaves_what_it_leads_to(hub, tmp_path, precious):
    pointer = repository(tmp_path) / "snapshots" / COMMIT / Q4
    pointer.symlink_to(precious / Q4)
    assert "0 B are free now" in run("rm", "owner/name:Q4_K_M", "--yes").stdout
    assert not pointer.is_symlink()
    assert (precious / Q4).read_bytes() == b"mine"


@pytest.mark.parametrize("inside", ["snapshots/" + COMMIT, "snapshots", "."])
@pytest.mark.parametrize("name", ["owner/name:Q4_K_M", "owner/name"])
def test_a_folder_that_leads_out_of_the_cache_is_not_followed(name, inside, hub, tmp_path, precious):
    folder = repository(tmp_path)
    (folder / "blobs" / ("0" * 64 + ".incomplete")).write_bytes(b"part")
    if inside == ".":
        shutil.rmtree(folder)
        (precious / "snapshots" / COMMIT).mkdir(parents=True)
        (precious / Q4).rename(precious / "snapshots" / COMMIT / Q4)
        folder.symlink_to(precious)
    elif inside == "snapshots":
        shutil.rmtree(folder / "snapshots")
        (precious / COMMIT).mkdir()
        (precious / Q4).rename(precious / COMMIT / Q4)
        (folder / "snapshots").symlink_to(precious)
    else:
        (folder / "snapshots" / COMMIT).rmdir()
        (folder / "snapshots" / COMMIT).symlink_to(precious)
    with contextlib.suppress(ModelNotFound):
        run("rm", name, "--yes")
    assert [path.read_bytes() for path in precious.rglob(Q4)] == [b"mine"]
    if ":" in name or inside == ".":
        with pytest.raises(ModelNotFound, match=r"outside of .* nothing was removed"):
            run("rm", name, "--yes")


def test_an_alias_whose_folder_leads_out_of_the_cache_is_refused(hub, tmp_path):
    (tmp_path / "octavo" / "tiny").rename(tmp_path / "outside")
    (tmp_path / "octavo" / "tiny").symlink_to(tmp_path / "outside")
    with pytest.raises(ModelNotFound, match=r"outside of .* nothing was removed"):
        run("rm", "tiny", "--yes")
    assert (tmp_path / "outside" / "tiny-Q4_0.gguf").exists()


@pytest.mark.parametrize("name", ["own.gguf", "own", "./own", "{tmp_path}/own.gguf"])
def test_a_persons_own_files_are_refused_by_name(name, hub, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own").mkdir()
    (tmp_path / "own.gguf").write_bytes(b"x")
    with pytest.raises(ModelNotFound, match="file or folder of your own, which only you remove"):
        run("rm", name.format(tmp_path=tmp_path), "--yes")
    assert (tmp_path / "own").exists()
    assert (tmp_path / "own.gguf").exists()


@pytest.mark.parametrize(
    "name", ["../cache", "owner/..", "owner/name:../x.gguf", "", ":Q4_K_M", "owner/name:"]
)
def test_a_name_that_is_none_removes_nothing(name, hub, tmp_path):
    run("pull", "owner/name:Q4_K_M")
    with pytest.raises(ModelNotFound):
        run("rm", name, "--yes")
    assert set(listed()) == {"tiny", "owner/name:Q4_K_M"}


def test_a_quantisation_of_an_alias_is_refused(hub):
    with pytest.raises(ModelNotFound, match="one file"):
        run("rm", "tiny:Q4_0", "--yes")
    with pytest.raises(ConfigError, match="--file"):
        run("pull", "tiny", "--file", "x.gguf")


def test_an_unfinished_fetch_is_listed_and_goes_with_its_repository(hub, tmp_path):
    hub.cuts = [50_000, 0, 0, 0, 0]
    with pytest.raises(ModelNotFound):
        run("pull", "owner/name")
    assert listed()["owner/name"] | {"path": "", "used_at": 0} == {
        "name": "owner/name", "kind": "unfinished", "quant": None, "num_bytes": 50_000, "path": "",
        "num_files": 1, "used_at": 0, "is_whole": False,
    }  # fmt: skip
    assert "interrupted: `octavo models pull` continues" in run("list").stdout
    assert "48.8 KiB are free now" in run("rm", "owner/name", "--yes").stdout
    assert set(listed()) == {"tiny"}


def test_empty_caches_are_listed(tmp_path, monkeypatch):
    from huggingface_hub import constants

    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "none either"))
    assert run("list", "--json").stdout == ""
    assert "smollm2-135m  93.8 MiB  not fetched yet" in run("list").stdout


def test_ctrl_c_ends_a_pull_at_once_and_the_next_one_goes_on(hub, tmp_path):
    hub.stall, hub.cuts = threading.Event(), [60_000]
    place = {"HF_ENDPOINT": hub.url, "HF_HUB_CACHE": str(tmp_path / "cache"), "HF_TOKEN": "", "NO_PROXY": "*"}
    command = [sys.executable, "-m", "octavo", "models", "pull", "owner/name"]
    part = tmp_path / "cache/models--owner--name/blobs" / (sha256(hub.files[Q4]) + ".incomplete")
    # A program ignores interrupts that its parent ignores, as shells have programs in the background do.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with running(command, env=os.environ | place, stdout=None, stderr=subprocess.PIPE) as pull:
        signal.signal(signal.SIGINT, before)
        while pull.poll() is None and not (part.is_file() and part.stat().st_size == 60_000):
            pass
        pull.send_signal(signal.SIGINT)
        said = pull.communicate(timeout=30)[1]
    assert (pull.returncode, said.splitlines()[-1]) == (
        130,
        "stopped; the same command continues the download",
    )
    hub.stall.set()
    assert run("pull", "owner/name").exit_code == 0
    assert hub.gets() == ["bytes=0-", "bytes=60000-"]


def test_a_line_of_the_list_says_what_is_known():
    used_at = time.time() - 7201.0
    model = cache.CachedModel("o/n:Q8_0", "gguf", None, 1 << 30, cache.Path("/x"), 1, used_at, True)
    assert lines_of(models_app.rows_of([model]), models_app.COLUMNS) == [
        "model     size     kind  last used    path",
        "o/n:Q8_0  1.0 GiB  gguf  2 hours ago  /x",
    ]
