"""The command line of a worker: serve's flags for the engine, and Dynamo's own, also as variables."""

from __future__ import annotations

import pytest

from octavo.cli.main import SERVER_ENGINE
from octavo.dynamo.command import WorkerOptions, read_command
from octavo.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch):
    for name in ("NAMESPACE", "COMPONENT", "ENDPOINT", "DISCOVERY_BACKEND", "REQUEST_PLANE", "EVENT_PLANE"):
        monkeypatch.delenv(f"DYN_{name}", raising=False)


def test_a_worker_takes_the_engines_flags_and_dynamos():
    command = read_command(
        ["m.gguf", "--kv-memory", "1GiB", "--served-name", "m", "--discovery-backend", "file"]
    )
    assert command.model == "m.gguf"
    assert (command.engine.kv_memory_bytes, command.engine.served_name) == (2**30, "m")
    assert command.worker == WorkerOptions(discovery_backend="file")


def test_without_flags_it_is_as_serve_is():
    command = read_command([])
    assert (command.model, command.engine, command.worker) == (None, SERVER_ENGINE, WorkerOptions())


def test_dynamos_variables_count_where_no_flag_is_given(monkeypatch):
    monkeypatch.setenv("DYN_NAMESPACE", "ours")
    monkeypatch.setenv("DYN_TOOL_CALL_PARSER", "hermes")
    worker = read_command(["--component", "octavo"]).worker
    assert worker == WorkerOptions("ours", "octavo", dyn_tool_call_parser="hermes")
    assert read_command(["--namespace", "other"]).worker.namespace == "other"


def test_a_wrong_value_is_refused_with_what_is_allowed():
    with pytest.raises(ConfigError, match=r"--discovery-backend is 'zookeeper'; allowed: etcd, file"):
        read_command(["--discovery-backend", "zookeeper"])
    with pytest.raises(SystemExit):
        read_command(["--no-such-flag"])


@pytest.mark.parametrize(
    "flags",
    [
        ("--kv-events", "tcp://127.0.0.1:*"),
        ("--kv-events", "tcp://*:5557", "--kv-events-remote"),
        ("--kv-events", "tcp://127.0.0.1:5557", "--kv-events-replay", "tcp://127.0.0.1:5558"),
    ],
)
def test_events_that_dynamo_would_not_get_are_refused(flags):
    with pytest.raises(ConfigError, match=r"kv_events(_replay)? is '?tcp.*; allowed: (an address|none)"):
        read_command([*flags])
