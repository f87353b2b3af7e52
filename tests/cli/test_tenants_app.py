"""`octavo tenants`, and `octavo serve --tenants` where it refuses."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.listings import row, rows
from tests.doubles.fake_model import FakeModel
from tests.waiting import LIMIT_S
from typer.testing import CliRunner

from octavo.cli.main import app
from octavo.errors import ConfigError, InvalidRequest, RequestFailed
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of, parse_tenants


def octavo(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    if result.exception is not None:
        raise result.exception
    return result.output


def test_a_new_key_comes_with_the_line_that_lets_it_in() -> None:
    output = octavo("tenants", "new-key")
    found = re.search(r"octavo-[A-Za-z0-9_-]{43}", output)
    assert found is not None
    line = output.splitlines()[-1]
    tenant = parse_tenants(f'[[tenant]]\nname = "alice"\n{line}').of_key(found.group())
    assert tenant is not None
    assert tenant.name == "alice"
    assert octavo("tenants", "new-key") != output
    told = json.loads(octavo("tenants", "new-key", "--json"))
    assert told["key_sha256"] == digest_of(told["key"]).hex()


def test_check_shows_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(
        f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("a").hex()}"\nguaranteed = "1MiB"\n'
        'maximum = 4096\nmax_running = 7\n[tenant.defaults]\ntimeout = 60\n[[tenant]]\nname = "shared"\n'
    )
    output = octavo("tenants", "check", str(path))
    for part in (
        "alice",
        "1 MiB",
        "4,096 blocks",
        "timeout 60",
        "no tenant is an operator",
    ):
        assert part in output
    assert rows(output)[1]["tenant"] == "shared"
    assert digest_of("a").hex() not in output
    told = [json.loads(line) for line in octavo("tenants", "check", str(path), "--json").splitlines()]
    assert [(each["name"], each["keys"], each["max_running"]) for each in told] == [
        ("alice", 1, 7), ("shared", 0, None),
    ]  # fmt: skip
    path.write_text(path.read_text().replace("max_running = 7", "operator = true"))
    output = octavo("tenants", "check", str(path))
    assert rows(output)[0]["operator"] == "yes"
    assert "no tenant is an operator" not in output


@pytest.mark.parametrize("command", [("tenants", "check"), ("serve", "no-model", "--port", "0", "--tenants")])
def test_a_wrong_file_is_refused_before_anything_is_loaded(tmp_path: Path, command: tuple[str, ...]) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text('[[tenant]]\nname = "alice"\n')
    with pytest.raises(ConfigError, match=r"tenants\.toml: tenant alice: key_sha256 is missing; allowed"):
        octavo(*command, str(path))
    with pytest.raises(ConfigError, match="cannot be read"):
        octavo(*command, str(path) + "x")


def test_keys_of_no_one_alongside_tenants_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "tenants.toml"
    path.write_text(f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("a").hex()}"\n')
    with pytest.raises(ConfigError, match="are both given; allowed: one of them"):
        octavo("serve", "no-model", "--port", "0", "--tenants", str(path), "--api-key", "x")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    path = tmp_path / "tenants.toml"
    path.write_text(
        f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("a").hex()}"\nguaranteed = 3\n'
        f'[[tenant]]\nname = "boss"\nkey_sha256 = "{digest_of("b").hex()}"\noperator = true\n'
    )
    listener, ready = bind("127.0.0.1", 0), threading.Event()
    server = build_server(FakeModel(), ServerSettings(roster=TenantRegistry(path)), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield base_url(listener)
    server.should_exit = True
    thread.join(20)


def test_an_operator_lists_the_tenants_of_a_server(url: str) -> None:
    output = octavo("tenants", "list", "--url", url, "--api-key", "b")
    assert rows(output)[0] == {
        "tenant": "alice", "held": "0", "pinned": "0", "guaranteed": "3", "running": "0", "waiting": "0",
    }  # fmt: skip
    assert rows(output)[1]["tenant"] == "boss"
    with pytest.raises(InvalidRequest, match="the key is that of alice; allowed: an operator's"):
        octavo("tenants", "list", "--url", url, "--api-key", "a")


def test_a_tenant_that_asks_for_what_is_the_operators_is_refused(url: str) -> None:
    with pytest.raises(RequestFailed, match="PATCH /v1/kv is not for this key"):
        octavo("pool", "resize", "3MiB", "--url", url, "--api-key", "a")
    added = row(octavo("pins", "add", "rules", "x" * 40, "--url", url, "--api-key", "a"))
    assert (added["pin"], added["tenant"], added["blocks"]) == ("rules", "alice", "2")
    with pytest.raises(InvalidRequest, match="the key is that of alice; allowed: an operator's"):
        octavo("pool", "show", "--url", url, "--api-key", "a")
    assert "alice: 0 blocks held by sequences" in octavo("top", "--once", "--url", url, "--api-key", "a")
    assert row(octavo("pins", "list", "--url", url, "--api-key", "a"))["tenant"] == "alice"
