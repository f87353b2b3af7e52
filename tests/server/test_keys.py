"""A key that nobody can send, or that everybody sends by sending nothing, is refused at start."""

import os
import signal
import sys

import pytest
from tests.processes import running
from tests.waiting import LIMIT_S
from typer.testing import CliRunner

from octavo.cli.flags import read_config, resolve
from octavo.cli.main import app
from octavo.errors import ConfigError
from octavo.server.settings import ServerSettings
from octavo.tenants import digest_of

BAD = ["", " ", "\t", "a\nb", "a\n", "\nb", "schlüssel", "two words", "a\x00b", "\x7f", "k" * 513, "\u2028"]


def keys_of(flags=(), path=None, environment=None):
    """The keys of a server that was given those: by --api-key, by --api-key-file, by variables."""
    typed = {"api_keys": list(flags), "key_file": None if path is None else str(path)}
    return resolve(ServerSettings(), typed, environment=environment or {})[0].keys


@pytest.mark.parametrize("key", BAD)
def test_a_key_that_is_none_is_refused_wherever_it_comes_from(key, tmp_path):
    with pytest.raises(ConfigError, match="--api-key number 2"):
        keys_of(["good", key])
    with pytest.raises(ConfigError, match="OCTAVO_API_KEY"):
        keys_of(environment={"OCTAVO_API_KEY": key})
    with pytest.raises(ConfigError, match="API key number 1"):
        ServerSettings(api_keys=(key,))
    if key.strip() and len(key.splitlines()) < 2 and key == key.rstrip("\n"):
        path = tmp_path / "keys"
        path.write_text(f"good\n{key}\n")
        with pytest.raises(ConfigError, match="line 2"):
            keys_of(path=path)


@pytest.mark.parametrize("key", [key for key in BAD if len(key.strip()) > 3])
def test_the_error_never_shows_the_key(key):
    with pytest.raises(ConfigError) as caught:
        keys_of([key])
    assert key not in str(caught.value)


def test_a_key_that_is_no_text_in_a_config_file_is_not_reported(tmp_path):
    path = tmp_path / "octavo.toml"
    path.write_text("[server]\napi_key = 123454321\n")
    with pytest.raises(ConfigError, match=r"api_key number 1 is something else; allowed: text") as caught:
        read_config(path)
    assert "123454321" not in str(caught.value)


def test_keys_of_a_file_are_one_a_line_and_come_alongside_those_of_flags_or_the_environment(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# ours\none\n\ntwo\r\none\n")
    environment = {"OCTAVO_API_KEY": "env"}
    assert keys_of(["zero"], path, environment) == ("zero", "one", "two")
    assert keys_of([], path, environment) == ("env", "one", "two")


@pytest.mark.parametrize("content", ["", "\n\n", "# nothing\n"])
def test_a_file_without_keys_is_refused(tmp_path, content):
    path = tmp_path / "keys"
    path.write_text(content)
    with pytest.raises(ConfigError, match="no key"):
        keys_of(path=path)


def test_a_file_that_is_none_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "nothing"):
        with pytest.raises(ConfigError, match="--api-key-file"):
            keys_of(path=path)


def test_the_environment_counts_where_no_option_is_given():
    environment = {"OCTAVO_API_KEY": "env"}
    assert keys_of(environment=environment) == ("env",)
    assert keys_of(["option"], environment=environment) == ("option",)
    assert keys_of() == ()


def test_more_keys_than_can_be_compared_are_refused():
    with pytest.raises(ConfigError, match=r"1,025 API keys; allowed: up to 1,024"):
        ServerSettings(api_keys=tuple(f"key-{number}" for number in range(1_025)))


@pytest.mark.parametrize(
    "arguments, environment",
    [
        (["--api-key", ""], {}),
        (["--api-key", "good", "--api-key", " "], {}),
        ([], {"OCTAVO_API_KEY": ""}),
        ([], {"OCTAVO_API_KEY": "a\nb"}),
    ],
)
def test_serve_ends_before_it_loads_anything(arguments, environment):
    result = CliRunner().invoke(app, ["serve", "--port", "0", *arguments], env=environment)
    assert isinstance(result.exception, ConfigError)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.5", "box.lan", "::ffff:10.0.0.5"])
def test_strangers_are_let_in_only_where_the_operator_says_so(host):
    with pytest.raises(ConfigError, match="--insecure"):
        ServerSettings(host=host)
    assert ServerSettings(host=host, insecure=True).host == host
    assert ServerSettings(host=host, api_keys=("key",)).has_keys


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "LOCALHOST", "::1"])
def test_this_machine_alone_needs_no_key(host):
    assert not ServerSettings(host=host).has_keys


@pytest.mark.parametrize("name", ["", "a b", "http://octavo", "user@octavo", "octavo/path", "*"])
def test_an_allowed_host_is_a_name(name):
    with pytest.raises(ConfigError, match="--allowed-host"):
        ServerSettings(allowed_hosts=(name,))


@pytest.mark.parametrize(
    "origin", ["*", "app.example", "https://app.example/", "https://App.example", "null"]
)
def test_an_allowed_origin_is_a_page_by_name(origin):
    with pytest.raises(ConfigError, match="--allowed-origin"):
        ServerSettings(allowed_origins=(origin,))


def test_every_page_is_allowed_alongside_keys_alone():
    assert ServerSettings(api_keys=("key",), allowed_origins=("*",)).allowed_origins == ("*",)


# -- over HTTP -----------------------------------------------------------------------------------------------
MODELS = "/v1/models"


@pytest.mark.parametrize(
    "headers, status",
    [
        ({"x-api-key": "one"}, 200),
        ({"x-api-key": " one "}, 200),
        ({"x-api-key": "three"}, 401),
        ({"x-api-key": ""}, 401),
        ({"x-api-key": "three", "Authorization": "Bearer one"}, 200),
        ({"x-api-key": "one", "Authorization": "Bearer three"}, 200),
        ({"x-api-key": "three", "Authorization": "Bearer four"}, 401),
    ],
)
def test_a_key_comes_in_either_header(make_edge, headers, status):
    assert make_edge(api_keys=("one", "two")).get(MODELS, headers=headers).status_code == status


def test_a_tenants_key_comes_in_either_header_and_the_first_counts(make_edge, tmp_path):
    from octavo.server.tenant_registry import TenantRegistry

    path = tmp_path / "tenants.toml"
    path.write_text(
        "".join(
            f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{digest_of(key).hex()}"\noperator = {operator}\n'
            for name, key, operator in (("alice", "a-key", "false"), ("boss", "b-key", "true"))
        )
    )
    edge = make_edge(roster=TenantRegistry(path))
    assert edge.get("/metrics", headers={"x-api-key": "b-key"}).status_code == 200
    assert edge.get("/metrics", headers={"x-api-key": "a-key"}).status_code == 403
    both = {"Authorization": "Bearer a-key", "x-api-key": "b-key"}
    assert edge.get("/metrics", headers=both).status_code == 403


def test_an_allowed_host_and_an_allowed_origin_are_served_without_keys(make_edge):
    edge = make_edge(allowed_hosts=("octavo",), allowed_origins=("https://app.example",))
    assert edge.get(MODELS, headers={"Host": "octavo:8000"}).status_code == 200
    assert edge.get(MODELS, headers={"Host": "evil.octavo:8000"}).status_code == 403
    asked = edge.get(MODELS, headers={"Origin": "https://app.example"})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == "https://app.example"
    foreign = edge.get(MODELS, headers={"Origin": "https://other.example"})
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers


def test_a_browsers_preflight_needs_no_key_and_its_answers_can_be_read(make_edge):
    edge = make_edge(api_keys=("one",), allowed_origins=("https://app.example",))
    ask = {
        "Origin": "https://app.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type",
    }
    answer = edge.request("OPTIONS", "/v1/chat/completions", headers=ask)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "https://app.example"
    assert "authorization" in answer.headers["access-control-allow-headers"]
    refused = edge.post("/v1/chat/completions", {}, headers={"Origin": "https://app.example"})
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "https://app.example", "a page can read why"
    assert (
        edge.request("OPTIONS", "/v1/models", headers=ask | {"Origin": "https://x.example"}).status_code
        == 403
    )


def test_without_allowed_pages_there_is_no_preflight(edge):
    assert edge.request("OPTIONS", MODELS).status_code == 405


# -- the banner ----------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "settings, words",
    [
        (ServerSettings(host="0.0.0.0", insecure=True), "every address of this machine (0.0.0.0)"),
        (ServerSettings(host="0.0.0.0", insecure=True), "anyone there can use it"),
        (ServerSettings(host="0.0.0.0", api_keys=("k",)), "every request needs a key"),
        (ServerSettings(host="10.0.0.5", insecure=True), "clients that reach 10.0.0.5"),
    ],
)
def test_the_banner_shows_who_can_reach_it(capsys, settings, words):
    from octavo.cli.serve import show_ready

    show_ready("http://127.0.0.1:8000", "model", settings)
    assert words in capsys.readouterr().err


SERVE = """
import sys
from octavo.server.run import bind, serve
from octavo.server.settings import ServerSettings
from tests.doubles.fake_model import FakeModel
serve(FakeModel(), bind("127.0.0.1", 0), ServerSettings(), lambda url: print(url, flush=True))
"""


def test_a_hangup_without_tenants_ends_nothing_and_a_term_ends_in_order():
    with running([sys.executable, "-c", SERVE]) as process:
        import httpx

        url = process.stdout.readline().strip()
        process.send_signal(signal.SIGHUP)
        assert httpx.get(f"{url}/health").status_code == 200
        process.terminate()
        assert process.wait(LIMIT_S) == 0
