"""Another tenants file takes the old one's place at a signal, without a request noticing."""

import asyncio
import logging
import os
import signal
import sys
import threading

import httpx
import pytest
from tests.processes import running
from tests.server.conftest import Edge
from tests.server.tenants import ALICE, BOB, NOBODY, TENANTS, by, entry, live
from tests.waiting import LIMIT_S, turns, until, wait_until

from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return path


@pytest.fixture
def house_to_reload(model, path):
    roster = TenantRegistry(path)
    house = Edge(model, ServerSettings(roster=roster))
    return house, roster, lambda: asyncio.run(roster.reload(model.control))


def test_a_new_file_changes_keys_defaults_and_bounds_together(house_to_reload, model, path):
    house, roster, reload = house_to_reload
    asyncio.run(roster.begin(model.control))
    alice = model.control.policies[0]
    assert (alice.name, alice.guaranteed, alice.max_waiting) == ("alice", 4, 5)
    house.post("/v1/completions", {"prompt": "hi"}, **by(ALICE))
    live(model, 0)
    path.write_text(entry("bob", BOB, NOBODY, lines="guaranteed = 6") + entry("carol", "octavo-carol"))
    assert house.get("/v1/models", **by(NOBODY)).status_code == 401, "the file alone changes nothing"
    assert reload()
    assert [(p.name, p.guaranteed) for p in model.control.policies] == [("bob", 6), ("carol", 0)]
    assert house.get("/v1/models", **by(ALICE)).status_code == 401
    assert house.get("/v1/models", **by("octavo-carol")).status_code == 200
    house.post("/v1/completions", {"prompt": "hi"}, **by(NOBODY))
    assert (model.submitted[1].tenant, model.submitted[1].timeouts.total) == ("bob", None)
    assert not model.submitted[0].cancelled, "the request of a tenant that is gone goes on"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[[tenant", "not sound TOML"),
        (entry("alice", BOB, lines="weight = -1"), "tenant alice: weight is -1"),
        (entry("alice", BOB, lines="guaranteed = 11"), "the guarantees do not fit 10 blocks"),
        (
            entry("alice", BOB, lines='maximum = "1KiB"'),
            "maximum is 1,024 bytes; allowed: at least one block",
        ),
        (None, "cannot be read"),
    ],
)
def test_a_file_that_cannot_hold_leaves_everything_as_it_was(
    house_to_reload, model, path, caplog, text, reason
):
    house, roster, reload = house_to_reload
    asyncio.run(roster.begin(model.control))
    before, tenants = model.control.policies, roster.tenants
    path.unlink() if text is None else path.write_text(text)
    with caplog.at_level(logging.ERROR, "octavo.server"):
        assert not reload()
    assert reason in caplog.text
    assert model.control.policies == before
    assert roster.tenants is tenants
    assert house.get("/v1/kv", **by(BOB)).json()["tenant"] == "bob"


def test_a_pipe_in_place_of_the_file_hinders_no_later_reload(house_to_reload, path):
    house, _, reload = house_to_reload
    path.unlink()
    os.mkfifo(path)
    was_opened = threading.Event()

    def open_other_end():
        was_opened.set()
        os.close(os.open(path, os.O_RDWR))

    rescue = threading.Timer(LIMIT_S, open_other_end)  # a reload that waits for the other end must not hang
    rescue.start()
    assert not reload()
    rescue.cancel()
    assert not was_opened.is_set(), "it waited for the other end of the pipe"
    assert house.get("/v1/kv", **by(ALICE)).status_code == 200
    path.unlink()
    path.write_text(entry("bob", BOB))
    assert reload()
    assert house.get("/v1/kv", **by(ALICE)).status_code == 401


def test_many_signals_are_one_reload_and_one_more(path, model):
    async def scenario():
        roster, counted = TenantRegistry(path), []
        plain = model.control.set_tenants

        async def set_tenants(policies):
            counted.append(len(policies))
            await turns()
            await plain(policies)

        model.control.set_tenants = set_tenants
        for _ in range(50):
            roster.reload_soon(model.control)
        await until(lambda: counted)
        for _ in range(50):
            roster.reload_soon(model.control)
        await roster._reloading
        assert len(counted) == 2

    asyncio.run(scenario())


SERVE = """
import asyncio, pathlib, sys
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.server.run import bind, build_server
from tests.doubles.fake_model import FakeModel
from tests.waiting import until

class UntilTold:
    async def wait(self):
        await until(lambda: server.should_exit)

model = FakeModel("Hello")
model.hold = UntilTold()
settings = ServerSettings(roster=TenantRegistry(pathlib.Path(sys.argv[1])))
server = build_server(model, settings, lambda url: print(url, flush=True))
asyncio.run(server.serve(sockets=[bind("127.0.0.1", 0)]))
"""


def test_a_hangup_reads_the_file_again_and_drops_no_work(path, tmp_path):
    log = tmp_path / "log"
    with log.open("w") as errors, running([sys.executable, "-c", SERVE, path], stderr=errors) as process:
        url = process.stdout.readline().strip()

        def opens(key):
            return httpx.get(f"{url}/v1/models", **by(key)).status_code == 200

        body = {"prompt": "a", "stream": True}
        with httpx.stream("POST", f"{url}/v1/completions", json=body, **by(ALICE)) as answer:
            lines = answer.iter_lines()
            assert '"text":"H"' in next(lines)
            path.write_text(entry("bob", NOBODY))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: opens(NOBODY))
            assert not opens(ALICE)
            assert not opens(BOB)
            path.write_text(entry("bob", BOB, lines="weight = 0"))
            process.send_signal(signal.SIGHUP)
            wait_until(lambda: "tenant bob: weight is 0; allowed" in log.read_text())
            assert opens(NOBODY)
            assert not opens(BOB)
            process.send_signal(signal.SIGTERM)
            assert '"finish_reason":"stop"' in list(lines)[-4], "work was dropped"
        assert process.wait(LIMIT_S) == 0
