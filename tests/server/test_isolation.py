"""Two tenants on a real engine: neither finds, sees or stops what is the other's."""

import asyncio
import json
import threading

import httpx
import pytest
from tests.engine.peek import ask
from tests.engine.served import serve_tiny

from octavo.server.app import create_app
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of

ALICE, BOB, BOSS = "octavo-alice", "octavo-bob", "octavo-boss"
SECRET = "thequickbrownfoxjumpsoverthelazydogandrunsawayintothewoods" * 2


@pytest.fixture
def roster(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(
        "".join(
            f'[[tenant]]\nname = "{key.removeprefix("octavo-")}"\nkey_sha256 = "{digest_of(key).hex()}"\n'
            f"operator = {str(key == BOSS).lower()}\npriority_min = -5\n"
            for key in (ALICE, BOB, BOSS)
        )
    )
    return TenantRegistry(path)


class House:
    """The application over a tiny engine, on the test's own event loop. The engine takes a step when somebody
    waits for an answer, and none otherwise."""

    def __init__(self, served, roster):
        self.llm, self.turnstile = served.llm, served.turnstile
        self.turnstile.permits = threading.Semaphore(0)
        app = create_app(served.llm, ServerSettings(roster=roster))
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url="http://house", timeout=20)

    def begin(self, key, method, path, body=None):
        """A call that goes on while others wait for their answers."""
        headers = {"Authorization": f"Bearer {key}"}
        return asyncio.ensure_future(self._client.request(method, path, json=body, headers=headers))

    async def ask(self, key, method, path, body=None):
        return await self.finish(self.begin(key, method, path, body))

    async def finish(self, call):
        return await self.turnstile.stepping(call)

    def generate(self, key, prompt=SECRET, **fields):
        body = {"prompt": prompt, "max_tokens": 4, "temperature": 0, "ignore_eos": True, **fields}
        return self.begin(key, "POST", "/v1/completions", body)

    async def cached(self, key, prompt=SECRET):
        """How much of the prompt was found."""
        answer = await self.finish(self.generate(key, prompt))
        assert answer.status_code == 200, answer.text
        usage = answer.json()["usage"]
        assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"]
        return usage["cached_tokens"]

    async def told(self, key, path):
        answer = await self.ask(key, "GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def pin(self, key, name, prompt):
        return await self.ask(key, "POST", "/v1/kv/pins", {"name": name, "prompt": prompt})


@pytest.fixture
def run(roster):
    """Runs a scenario over a house of its own."""

    def run_one(scenario, **options):
        served = serve_tiny(**options)
        house = House(served, roster)
        try:
            return asyncio.run(asyncio.wait_for(scenario(house), 30))
        finally:
            served.turnstile.permits.release(10_000)
            served.llm.close()

    return run_one


def test_another_tenants_prompt_is_never_found_in_the_cache(run):
    async def scenario(house):
        assert await house.cached(ALICE) == 0
        assert await house.cached(BOB) == 0, "a prompt can be probed for"
        assert await house.cached(ALICE) == (len(SECRET) - 1) // 16 * 16
        assert (await house.pin(ALICE, "rules", SECRET[:64])).status_code == 201
        assert await house.cached(BOSS) == 0
        assert await house.cached(ALICE, SECRET[:64] + "xyz") == 64

    run(scenario)


def test_a_running_request_is_its_tenants_alone(run):
    async def scenario(house):
        call = house.generate(ALICE, max_tokens=300)
        while not (listed := (await house.told(ALICE, "/v1/requests"))["data"]):
            pass
        one = f"/v1/requests/{listed[0]['request_id']}"
        assert listed[0]["tenant"] == "alice"
        assert (await house.told(BOB, "/v1/requests"))["data"] == []
        assert (await house.ask(BOB, "GET", one)).status_code == 404
        assert (await house.ask(BOB, "DELETE", one)).status_code == 403
        assert (await house.told(BOSS, one))["tenant"] == "alice"
        assert (await house.told(ALICE, one))["sequences"][0]["table"]
        kv = {key: await house.told(key, "/v1/kv") for key in (ALICE, BOB)}
        assert [(kv[key]["running"], kv[key]["held_by_sequences"] > 0) for key in (ALICE, BOB)] == [
            (1, True),
            (0, False),
        ]
        drawn = {key: await house.told(key, "/v1/kv/map") for key in (ALICE, BOB, BOSS)}
        assert "s" in drawn[ALICE]["states"]
        assert (set(drawn[BOB]["states"]), drawn[BOB]["owners"]) == ({"."}, [])
        assert drawn[ALICE]["owners"][0] in drawn[BOSS]["owners"]
        assert not call.done()
        call.cancel()
        await asyncio.wait({call})
        while (await house.told(BOSS, "/v1/requests"))["data"]:
            pass

    run(scenario)


def test_the_card_of_a_running_and_of_an_ended_request_splits_its_prompt_for_its_tenant_alone(run):
    async def scenario(house):
        await house.cached(ALICE, SECRET[:64])
        call = house.generate(ALICE, max_tokens=300)
        while not (listed := (await house.told(ALICE, "/v1/requests"))["data"]) or listed[0]["split"] is None:
            pass
        one = f"/v1/requests/{listed[0]['request_id']}"
        running = await house.told(ALICE, one)
        sources = {part["source"]: part["tokens"] for part in running["split"]["parts"]}
        tokens = running["sequences"][0]["usage"]["num_prompt"]
        assert sources == {"pool": 64, "never_computed": (tokens - 1) // 16 * 16 - 64, "tail": tokens % 16}
        assert "64 in the pool" in running["split"]["text"]
        assert (running["ended_ago"], running["sequences"][0]["finish_reason"]) == (None, None)
        call.cancel()
        await asyncio.wait({call})
        while (await house.told(BOSS, "/v1/requests"))["data"]:
            pass
        ended = await house.told(ALICE, one)
        [choice] = ended["sequences"]
        assert (choice["state"], choice["finish_reason"]) == ("finished", "cancelled")
        assert (choice["usage"]["num_prompt"], choice["usage"]["num_cached"]) == (tokens, 64)
        assert ended["split"] == running["split"]
        assert ended["ended_ago"] >= 0.0
        assert (await house.told(BOSS, one))["tenant"] == "alice"
        foreign, none = await house.ask(BOB, "GET", one), await house.ask(BOB, "GET", "/v1/requests/9999")
        assert foreign.status_code == none.status_code == 404
        assert foreign.text == none.text.replace("9999", one.rpartition("/")[2])

    run(scenario)


def test_for_whom_a_block_was_evicted_is_reported_to_operators_alone(run):
    async def scenario(house):
        await house.cached(ALICE)
        for first in "ab":  # of bob's, more than the pool has room for
            await house.finish(house.generate(BOB, first + SECRET * 2))
        answer = await house.finish(house.generate(ALICE))
        one = f"/v1/requests/{answer.headers['x-octavo-request']}"
        cards = {key: (await house.told(key, one))["split"] for key in (ALICE, BOSS)}
        told, own = (
            [part for part in cards[key]["parts"] if part["source"] == "evicted"] for key in (BOSS, ALICE)
        )
        assert sum(part["tokens"] for part in told) == sum(part["tokens"] for part in own) > 0
        assert all(part["for_request"] is not None for part in told)
        assert [part["for_request"] for part in own] == [None]
        assert own[0]["seconds_ago"] >= 0.0
        assert "for request" in cards[BOSS]["text"]
        assert "request" not in cards[ALICE]["text"]

    run(scenario, num_blocks=20)


def test_pins_of_one_name_are_two_and_neither_touches_the_other(run):
    async def scenario(house):
        assert (await house.pin(ALICE, "rules", SECRET[:64])).json()["num_blocks"] == 4
        assert (await house.pin(BOB, "rules", SECRET[:32])).json()["num_blocks"] == 2
        assert [pin["num_blocks"] for pin in (await house.told(BOB, "/v1/kv/pins"))["data"]] == [2]
        assert (await house.ask(BOB, "DELETE", "/v1/kv/pins/rules")).status_code == 200
        assert (await house.ask(BOB, "DELETE", "/v1/kv/pins/rules")).status_code == 404
        assert (await house.ask(BOB, "PATCH", "/v1/kv/pins/rules", {"ttl": 9.0})).status_code == 404
        kv = {key: await house.told(key, "/v1/kv") for key in (ALICE, BOB, BOSS)}
        assert {key: kv[key]["held_by_pins"] for key in kv} == {ALICE: 4, BOB: 0, BOSS: 4}
        assert "alice" not in str(kv[BOB])
        assert [event["kind"] for event in kv[ALICE]["events"]] == ["pinned"]
        assert {event["tenant"] for event in kv[BOSS]["events"]} == {"alice", "bob"}

    run(scenario)


def test_a_tenant_that_was_preempted_does_not_learn_for_whom(run):
    async def scenario(house):
        calls = [house.generate(BOB, max_tokens=100, prompt="b" * 100)]
        while not (await house.told(BOB, "/v1/kv"))["held_by_sequences"]:
            pass
        calls.append(house.generate(ALICE, max_tokens=20, prompt="a" * 150, priority=-5))
        while not (events := (await house.told(BOB, "/v1/kv"))["events"]):
            pass
        everything = (await house.told(BOSS, "/v1/kv"))["events"]
        assert events[0]["kind"] == "preempted"
        assert "for request 2" in str(everything), "which the operator is told"
        assert events[0]["text"] == f"request 1: preempted, {events[0]['blocks']} blocks"
        for call in calls:
            assert (await house.finish(call)).status_code == 200

    run(scenario, num_blocks=13)


def test_what_only_the_engine_can_refuse_is_a_429_that_left_nothing(run):
    async def scenario(house):
        calls = [house.generate(BOB, max_tokens=200)]
        while not (await house.told(BOB, "/v1/kv"))["running"]:
            pass
        calls.append(house.generate(BOB))
        while not (await house.told(BOB, "/v1/kv"))["waiting"]:
            pass
        refused = await house.finish(house.generate(BOB))
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "queue_full")
        assert refused.headers["retry-after"]
        several = await house.finish(house.generate(BOB, prompt=["abc", "def", "ghi"], stream=True))
        assert several.status_code == 429, "before the stream begins"
        assert len((await house.told(BOSS, "/v1/requests"))["data"]) == 2
        for call in calls:
            assert (await house.finish(call)).status_code == 200
        assert await house.cached(BOB) > 0

    run(scenario, rows=1, max_waiting=1)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "abc", "max_tokens": 4}),
        ("/v1/kv/pins", {"name": "mine", "prompt": SECRET}),
        ("/v1/sessions", {}),
    ],
)
def test_a_tenant_taken_off_while_its_body_arrives_is_answered_as_an_unknown_key(run, roster, path, body):
    async def scenario(house):
        await roster.begin(house.llm.control)

        async def slowly():
            data = json.dumps(body).encode()
            yield data[:1]
            entries = roster.path.read_text().split("[[tenant]]")
            roster.path.write_text("[[tenant]]".join(e for e in entries if '"alice"' not in e))
            assert await roster.reload(house.llm.control)
            yield data[1:]

        headers = {"Authorization": f"Bearer {ALICE}"}
        call = asyncio.ensure_future(house._client.post(path, content=slowly(), headers=headers))
        answer = await house.finish(call)
        assert (answer.status_code, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert await ask(house.llm, lambda s, now: (s.live.live_requests(), len(s.pins))) == ([], 0)
        assert house.llm.sessions.count(None) == 0

    run(scenario)
