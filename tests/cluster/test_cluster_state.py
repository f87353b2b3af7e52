"""A cluster's folder on this machine, and what of the machine it looks at."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octavo.cli import cluster as commands
from octavo.cli.main import app
from octavo.cluster.node_files import files_digest, model_digest
from octavo.cluster.ports import ListeningPort, listening_ports
from octavo.cluster.state import ClusterAddress, ClusterFolder
from octavo.errors import ConfigError, ModelError


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterFolder:
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path))
    return ClusterFolder("one")


def test_others_read_no_token_whatever_the_umask_is(folder: ClusterFolder) -> None:
    before = os.umask(0)
    try:
        token, keys = folder.make_token(), folder.write_keys(["sk-1", "sk-2"])
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (token, keys)} == {0o600}
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert len(token.read_text()) == 64
    assert keys.read_text() == "sk-1\nsk-2\n"
    assert folder.make_token().read_text() != "" != token.read_text()


def test_a_cluster_is_found_by_its_name_until_it_is_forgotten(folder: ClusterFolder) -> None:
    assert folder.find_address() is None
    folder.write_address(ClusterAddress("10.0.0.1:6379", 7, "/token"))
    assert ClusterFolder("one").read_address() == ClusterAddress("10.0.0.1:6379", 7, "/token")
    folder.forget()
    assert not folder.path.exists()
    with pytest.raises(ConfigError, match="there is no cluster 'one' on this machine"):
        folder.read_address()


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ((), "is already served here by process"),
        (("--print-config",), "allowed: --api-key-file or --tenants"),
    ],
)
def test_a_command_that_is_refused_leaves_a_running_clusters_keys(
    folder: ClusterFolder, monkeypatch: pytest.MonkeyPatch, flag: tuple[str, ...], words: str
) -> None:
    monkeypatch.setattr(commands, "check_ray", lambda: None)
    monkeypatch.setattr(commands, "_is_serving", lambda where: True)
    folder.write_address(ClusterAddress("10.0.0.1:6379", os.getpid(), "/token"))
    keys = folder.write_keys(["sk-first"])
    flags = ["cluster", "serve", "--name", "one", "--host", "0.0.0.0", "--api-key", "sk-second", *flag]
    result = CliRunner().invoke(app, flags)
    assert isinstance(result.exception, ConfigError)
    assert words in str(result.exception)
    assert keys.read_text() == "sk-first\n"


def test_a_name_that_leaves_the_folder_is_refused() -> None:
    with pytest.raises(ConfigError, match="allowed: 1 to 40 letters"):
        ClusterFolder("../x")


def test_listening_ports_are_those_of_the_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("", 0)) as all_interfaces:
        found = {(each.address, each.port): each for each in listening_ports(os.getpid())}
        assert not found["127.0.0.1", one.getsockname()[1]].is_on_all_interfaces
        assert found["0.0.0.0", all_interfaces.getsockname()[1]].is_on_all_interfaces
    assert ListeningPort("x", "::", 1).is_on_all_interfaces


def test_a_models_digest_changes_with_its_files_and_is_missing_with_them(
    tmp_path: Path, tiny_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # restored after what the function sets
    before = model_digest(str(tiny_folder))
    assert model_digest(str(tiny_folder)) == before
    (other := tmp_path / "tiny").mkdir()
    for file in tiny_folder.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    assert model_digest(str(other)) == before
    (other / "config.json").write_text((other / "config.json").read_text() + " ")
    assert model_digest(str(other)) != before
    monkeypatch.setenv("OCTAVO_CACHE", str(tmp_path / "empty"))
    with pytest.raises(ModelError, match="octavo models pull smollm2-135m"):
        model_digest(None)


def test_a_file_that_a_node_has_not_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing.*"):
        files_digest([str(tmp_path / "missing")])
