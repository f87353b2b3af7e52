"""`octavo pins`, `pool` and `sessions` against a server that is really listening."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from tests.cli.listings import row, rows
from tests.cli.serving import SharedServer, serving
from tests.doubles.fake_model import FakeModel
from typer.testing import CliRunner

from octavo.cli.admin import lines_of, text
from octavo.cli.main import app
from octavo.errors import InvalidRequest, RequestFailed
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of


@pytest.fixture(scope="module")
def server() -> Iterator[SharedServer]:
    model = FakeModel()
    with serving(model, ServerSettings(api_keys=("secret",))) as url:
        yield SharedServer(url, model)


@pytest.fixture
def url(server: SharedServer) -> str:
    server.reset("Hello!")
    return server.url


@pytest.fixture
def octavo(url: str) -> Callable[..., str]:
    def run(*words: str) -> str:
        command, rest = words[:2], words[2:]
        given = ["--url", url, "--api-key", "secret", *rest]
        result = CliRunner().invoke(app, [*command, *given] if len(words) > 1 else [*words, *given])
        if result.exception is not None:
            raise result.exception
        return result.output

    return run


def test_pins_are_added_listed_renewed_and_deleted(octavo: Callable[..., str]) -> None:
    assert octavo("pins", "list") == "no pins\n"
    added = octavo("pins", "add", "one", "x" * 40)
    assert added == (
        "pin  blocks  tokens  strength  state  left\none  2       40      hot       held   3,600 s\n"
    )
    assert row(octavo("pins", "renew", "one", "--ttl", "60"))["left"] == "60 s"
    assert row(octavo("pins", "list"))["pin"] == "one"
    assert octavo("pins", "delete", "one") == "one is deleted\n"
    with pytest.raises(RequestFailed, match="there is no pin named 'a b'"):
        octavo("pins", "delete", "a b")


@pytest.mark.parametrize(
    "words",
    [
        *("sessions " + act for act in ("show", "fork", "suspend", "resume", "delete")),
        *("pins " + act for act in ("renew", "delete")),
    ],
)
def test_an_empty_name_is_refused_before_anything_is_asked(words: str) -> None:
    what = words.split()[0].removesuffix("s")
    result = CliRunner().invoke(app, [*words.split(), "", "--url", "http://127.0.0.1:9"])
    assert isinstance(result.exception, InvalidRequest), result.output
    assert str(result.exception) == f"the {what} is empty; allowed: one that `octavo {what}s list` shows"


@pytest.mark.parametrize("name", [".", "..", "a", "-._"])
def test_a_pin_of_every_name_that_may_be_is_reached(octavo: Callable[..., str], name: str) -> None:
    octavo("pins", "add", "--", name, "x" * 40)
    assert row(octavo("pins", "renew", "--", name))["pin"] == name
    assert octavo("pins", "delete", "--", name) == f"{name} is deleted\n"


@pytest.mark.parametrize(
    "name", [".", "..", "a/b", "a?b#c", "%2e", "ü😀", "\n", "\x00", "\udcff", "x" * 3000]
)
def test_a_session_of_any_name_is_asked_for_and_not_found(octavo: Callable[..., str], name: str) -> None:
    with pytest.raises(RequestFailed, match=r"there is no (session|route GET /v1/sessions/a/b)"):
        octavo("sessions", "show", "--", name)


def test_what_cannot_be_sent_is_reported(octavo: Callable[..., str]) -> None:
    with pytest.raises(InvalidRequest, match="UTF-8 text, and an ASCII key"):
        octavo("pins", "add", "a", "\udcff")
    with pytest.raises(InvalidRequest, match="UTF-8 text, and an ASCII key"):
        octavo("pins", "list", "--api-key", "kéy")


def test_sessions_are_listed_shown_suspended_resumed_and_deleted(
    octavo: Callable[..., str], url: str
) -> None:
    assert octavo("sessions", "list") == "no sessions\n"
    made = httpx.post(f"{url}/v1/sessions", json={"ttl": 60.0}, headers={"Authorization": "Bearer secret"})
    assert made.status_code == 201
    assert row(octavo("sessions", "list")) == {
        "session": "s0", "state": "idle", "tokens": "0", "blocks": "3", "in memory": "2.0 KiB",
        "on disk": "1000 B", "left": "60 s",
    }  # fmt: skip
    assert row(octavo("sessions", "suspend", "s0"))["state"] == "suspended"
    assert row(octavo("sessions", "resume", "s0"))["state"] == "idle"
    assert "blocks_kept_offloaded  0\n" in octavo("sessions", "show", "s0")
    assert octavo("sessions", "delete", "s0") == "s0 is deleted\n"
    with pytest.raises(RequestFailed, match="there is no session 's0'"):
        octavo("sessions", "show", "s0")


def test_a_session_is_forked_at_its_last_turn_or_at_an_earlier_one(
    octavo: Callable[..., str], url: str
) -> None:
    messages = [{"role": "user", "content": "hi"}]
    for session in ("new", "s0"):
        body = {"messages": messages, "session": session}
        headers = {"Authorization": "Bearer secret"}
        assert httpx.post(f"{url}/v1/chat/completions", json=body, headers=headers).status_code == 200
        messages += [{"role": "assistant", "content": "Hello"}, {"role": "user", "content": "more"}]
    assert re.search(r"^turns +2$", octavo("sessions", "show", "s0"), re.MULTILINE)
    whole = row(octavo("sessions", "fork", "s0"))
    first = row(octavo("sessions", "fork", "s0", "--turn", "1"))
    assert (whole["session"], first["session"], first["tokens"]) == ("s1", "s2", "8")
    with pytest.raises(RequestFailed, match="turn is 3; allowed: 1 to 2"):
        octavo("sessions", "fork", "s0", "--turn", "3")


KEYS = {name: f"octavo-{name}" for name in ("alice", "bob", "boss")}


@pytest.fixture
def octavo_of(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A server with three tenants, of whom one is its operator; called with somebody's name and words."""
    path = tmp_path / "tenants.toml"
    path.write_text(
        "".join(
            f'[[tenant]]\nname = "{name}"\nkey_sha256 = "{digest_of(key).hex()}"\n'
            f"operator = {str(name == 'boss').lower()}\n"
            for name, key in KEYS.items()
        )
    )
    with serving(FakeModel(), ServerSettings(roster=TenantRegistry(path))) as url:

        def run(name: str, *words: str) -> str:
            result = CliRunner().invoke(app, [*words, "--url", url, "--api-key", KEYS[name]])
            if result.exception is not None:
                raise result.exception
            return result.output

        run.url = url  # type: ignore[attr-defined]
        yield run


def test_an_operator_s_words_are_for_the_tenant_that_they_name(octavo_of: Callable[..., str]) -> None:
    octavo = octavo_of
    prompt = "x" * 40
    assert row(octavo("boss", "pins", "add", "rules", prompt, "--tenant", "alice"))["tenant"] == "alice"
    octavo("boss", "pins", "add", "rules", prompt, "--tenant", "shared")
    octavo("bob", "pins", "add", "rules", prompt)
    assert row(octavo("alice", "pins", "list"))["tenant"] == "alice"
    assert len(rows(octavo("boss", "pins", "list"))) == 3
    assert row(octavo("boss", "pins", "list", "--tenant", "bob"))["tenant"] == "bob"
    assert octavo("boss", "pins", "list", "--tenant", "carol") == "no pins\n"
    renewed = octavo("boss", "pins", "renew", "rules", "--ttl", "60", "--tenant", "bob")
    assert row(renewed)["left"] == "60 s"
    for tenant in ("bob", "shared"):
        octavo("boss", "pins", "delete", "rules", "--tenant", tenant)
    assert row(octavo("boss", "pins", "list"))["tenant"] == "alice"
    with pytest.raises(RequestFailed, match="there is no pin named 'rules'"):
        octavo("boss", "pins", "delete", "rules")
    with pytest.raises(
        RequestFailed, match="tenant names another than bob; allowed: leave it out, or use an op"
    ):
        octavo("bob", "pins", "delete", "rules", "--tenant", "alice")


def test_an_operator_shows_suspends_resumes_and_deletes_another_s_session(
    octavo_of: Callable[..., str],
) -> None:
    octavo = octavo_of
    url = octavo_of.url  # type: ignore[attr-defined]
    for name in ("alice", "bob"):
        headers = {"Authorization": f"Bearer {KEYS[name]}"}
        assert httpx.post(f"{url}/v1/sessions", json={}, headers=headers).status_code == 201
    assert row(octavo("bob", "sessions", "list"))["session"] == "s1"
    assert [each["tenant"] for each in rows(octavo("boss", "sessions", "list"))] == ["alice", "bob"]
    assert row(octavo("boss", "sessions", "list", "--tenant", "alice"))["session"] == "s0"
    with pytest.raises(RequestFailed, match="there is no session 's0'"):
        octavo("boss", "sessions", "suspend", "s0")
    alices = ("s0", "--tenant", "alice")
    assert row(octavo("boss", "sessions", "suspend", *alices))["state"] == "suspended"
    assert row(octavo("boss", "sessions", "resume", *alices))["tenant"] == "alice"
    assert re.search(r"^tenant +alice$", octavo("boss", "sessions", "show", *alices), re.MULTILINE)
    with pytest.raises(RequestFailed, match="tenant names another than bob"):
        octavo("bob", "sessions", "delete", *alices)
    octavo("boss", "sessions", "delete", *alices)
    assert octavo("alice", "sessions", "list") == "no sessions\n"


def test_the_pool_is_shown_and_resized(octavo: Callable[..., str]) -> None:
    shown = row(octavo("pool", "show"))
    counts = [shown[title] for title in ("blocks", "size", "held", "cached", "free")]
    assert counts == ["10", "3.5 MiB", "3", "2", "5"]
    assert shown["can grow to"].startswith("20 (")
    assert row(octavo("pool", "resize", "5MiB"))["blocks"] == "14"
    with pytest.raises(RequestFailed, match="a pool of 2 blocks was asked for; allowed: 4 to 20"):
        octavo("pool", "resize", "1MiB")


def test_programs_get_an_object_a_line_and_nothing_else(octavo: Callable[..., str], url: str) -> None:
    headers = {"Authorization": "Bearer secret"}
    assert httpx.post(f"{url}/v1/sessions", json={}, headers=headers).status_code == 201
    said = {"messages": [{"role": "user", "content": "x"}], "session": "s0"}
    assert httpx.post(f"{url}/v1/chat/completions", json=said, headers=headers).status_code == 200
    for words in (
        "pins list", "pins add a xxxxxxxxxxxxxxxxxxxx", "pins add b xxxxxxxxxxxxxxxxxxxx", "pins renew a",
        "pins list", "sessions list", "sessions show s0", "sessions suspend s0",
        "sessions resume s0", "sessions fork s0", "pool show", "pool resize 5MiB", "tenants list",
        "pins delete a", "sessions delete s0",
    ):  # fmt: skip
        lines = octavo(*words.split(), "--json").splitlines()
        told = [json.loads(line) for line in lines]
        assert all(isinstance(each, dict) for each in told), words
        if words == "pins list":
            assert [each["name"] for each in told] in ([], ["a", "b"])
        elif words == "pool resize 5MiB":
            assert told[0]["counts"]["total"] == 14
    assert told == [{"deleted": "s0"}]


def test_what_a_server_calls_things_drives_no_terminal() -> None:
    assert "\x1b" not in "".join(lines_of([{"name": "a\x1b[31m\nb", "n": 1}], {"name": text("name")}))


def test_a_server_that_is_not_there_is_said_in_words() -> None:
    result = CliRunner().invoke(app, ["pool", "show", "--url", "http://127.0.0.1:9"])
    assert isinstance(result.exception, RequestFailed)
    assert "does not answer" in str(result.exception)
    assert "--url" in str(result.exception)


def test_a_wrong_key_is_said_in_the_servers_words(url: str) -> None:
    result = CliRunner().invoke(app, ["pool", "show", "--url", url, "--api-key", "wrong"])
    assert "needs a valid API key" in str(result.exception)
