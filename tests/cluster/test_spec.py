"""What a cluster runs, as JSON: from flags, from a config file, to relays and to children."""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from octavo.cli.flags import resolve
from octavo.cluster.spec import ClusterSpec, read_spec, settings_table
from octavo.config import StartOptions
from octavo.errors import ConfigError
from octavo.server.settings import ServerSettings
from octavo.serving.model_parts import prepared_tokenizer
from octavo.serving.start import start_renderer


def test_flags_become_a_table_that_gives_the_same_settings_again(tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("sk-one\n")
    flags = {"max_seqs": "8", "kv_memory_bytes": "2MiB", "target_itl_s": "50ms", "shed": False}
    options, origins = resolve(StartOptions(), flags, environment={})
    table = settings_table((each.setting, each.value) for each in origins)
    settings, given = resolve(ServerSettings(), {"port": "81", "key_file": str(keys)}, environment={})
    server = settings_table((each.setting, each.value) for each in given)
    assert server == {"port": 81, "api_key_file": str(keys)}

    spec = read_spec(json.loads(json.dumps({"engine": table, "server": server})))
    assert spec.engine_options() == options
    assert spec.server_settings() == settings


def test_a_child_gets_its_part_of_the_node_and_nothing_that_is_the_relays(tmp_path: Path) -> None:
    spec = ClusterSpec(
        model="m",
        engine={"max_seqs": 8, "prefix_caching": False, "disk_cache": str(tmp_path)},
        server={"host": "0.0.0.0", "insecure": True, "log_level": "debug", "allowed_host": ["a", "b"]},
    )
    assert spec.child_arguments(threads=2, kv_memory=4096) == [
        *("m", "--max-seqs=8", "--no-prefix-caching", "--threads=2", "--kv-memory=4096", "--log-level=debug")
    ]


def test_what_is_given_for_a_replica_is_not_divided() -> None:
    spec = ClusterSpec(engine={"threads": 3, "kv_memory": "1GiB"})
    assert spec.child_arguments(threads=1, kv_memory=4096) == ["--threads=3", "--kv-memory=1GiB"]


def test_paths_of_the_engine_are_absolute_and_a_template_is_a_file_of_every_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "keys").write_text("sk-one\n")
    server = {"api_key_file": str(tmp_path / "keys")}
    for given, files in (
        ("t.jinja", [str(tmp_path / "t.jinja")]),
        ("~/t.jinja", [str(tmp_path / "home/t.jinja")]),
        ("chatml", []),
        ("{{ messages }}", []),
    ):
        flags = {"chat_template": given, "disk_cache": "disk"}
        _, origins = resolve(StartOptions(), flags, environment={})
        table = settings_table((each.setting, each.value) for each in origins)
        assert table == {"chat_template": (files or [given])[0], "disk_cache": str(tmp_path / "disk")}
        assert ClusterSpec(engine=table, server=server).files() == [*files, str(tmp_path / "keys")]


def test_an_update_of_what_relays_read_at_their_start_is_refused() -> None:
    running = ClusterSpec(engine={"context_length": 64, "max_seqs": 4})
    running.check_update(ClusterSpec(engine={"context_length": 64, "max_seqs": 8, "kv": "int8"}))
    with pytest.raises(ConfigError, match=r"--context-length is 128, and relays.* have 64; allowed: .*serve"):
        running.check_update(ClusterSpec(engine={"context_length": 128}))
    with pytest.raises(ConfigError, match=r"--served-name is 'm', and relays.* have the default"):
        running.check_update(ClusterSpec(engine={**running.engine, "served_name": "m"}))


def test_an_update_notices_that_a_templates_file_has_changed(tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages }}")
    running = ClusterSpec(engine={"chat_template": str(template)}).with_template_digest()
    changed = ClusterSpec(engine={"chat_template": str(template), "max_seqs": 8})
    running.check_update(changed.with_template_digest())
    running.check_template()
    template.write_text("{{ messages }} ")
    with pytest.raises(ConfigError, match="has changed since relays read it"):
        running.check_template()
    with pytest.raises(ConfigError, match=r"has changed since relays read it; allowed: .*stop"):
        running.check_update(changed.with_template_digest())
    assert ClusterSpec(engine={"chat_template": "chatml"}).with_template_digest().template_digest is None


def test_every_setting_that_a_renderer_reads_is_one_that_an_update_refuses() -> None:
    """A queue's length is an exception: of a relay it bounds the texts that wait to be tokenised."""
    source = inspect.getsource(start_renderer) + inspect.getsource(prepared_tokenizer)
    read = set(re.findall(r"options\.(\w+)", source)) - {"max_queue", "max_seqs"}
    for name in read:
        with pytest.raises(ConfigError):
            ClusterSpec().check_update(ClusterSpec(engine={name: "x"}))
    assert len(read) == 5


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"replicas": 2}, "allowed: model, min_replicas"),
        ({"max_replicas": 0}, "--max-replicas is 0; allowed: 1 to 1,000"),
        ({"min_replicas": 3, "max_replicas": 2}, "--max-replicas is 2; allowed: 3 to 1,000"),
        ({"engine": {"max_seq": 2}}, "there is no setting 'max_seq'; near it: max_seqs"),
        ({"engine": {"record": "x"}}, "record is given, which the replicas of a cluster cannot share"),
        ({"server": {"api_key": ["sk-secret"]}}, "keys in a file: api_key_file"),
        ({"server": {"port": 0}}, "--port is 0; allowed for a cluster"),
        ({"server": {"host": "0.0.0.0"}}, "which others can reach"),
    ],
)
def test_what_is_wrong_is_named_with_what_is_allowed(args: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_spec(args)
    assert words in str(raised.value)
    assert "sk-secret" not in str(raised.value)


def test_both_forms_of_the_number_of_replicas_are_refused_together() -> None:
    from octavo.cli.cluster import bounds_of
    from octavo.cli.options import ClusterOptions

    assert bounds_of(ClusterOptions()) == (1, 1)
    assert bounds_of(ClusterOptions(replicas=3)) == (3, 3)
    assert bounds_of(ClusterOptions(max_replicas=3)) == (1, 3)
    with pytest.raises(ConfigError, match="allowed: one form"):
        bounds_of(ClusterOptions(replicas=3, min_replicas=1))


def test_without_ray_the_command_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib.metadata

    from octavo.cli.main import app

    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", version)
    result = CliRunner().invoke(app, ["cluster", "serve", "--replicas", "2"])
    assert isinstance(result.exception, ConfigError)
    assert "pip install 'octavo[ray]'" in str(result.exception)
