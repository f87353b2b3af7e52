"""Tenants over HTTP: a key says who it is, each sees its own and nothing else."""

import asyncio
import threading

import httpx
import pytest
from openai import AuthenticationError, BadRequestError, OpenAI, PermissionDeniedError
from tests.doubles.fake_model import FakeModel
from tests.server.conftest import Edge
from tests.server.tenants import ALICE, BOB, BOSS, NOBODY, TENANTS, by, entry, live
from tests.waiting import LIMIT_S

from octavo.errors import ConfigError, OctavoError
from octavo.server.route import Access
from octavo.server.routes import ROUTES
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of, read_tenants

TENANT_ROUTES = {(route.method, route.path) for route in ROUTES if route.access is Access.TENANT}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    return path


@pytest.fixture
def house(model, path):
    """The application with three tenants."""
    house = Edge(model, ServerSettings(roster=TenantRegistry(path)))
    house.roster = house.settings.roster
    return house


# -- who is let in, and where to -----------------------------------------------------------------------------
def test_what_exists_is_the_table_and_what_is_an_operators_is_known(house):
    assert house.app.routes == [], "a route is not in the table"
    found = {(route.method, route.path) for route in ROUTES}
    assert len(found) == len(ROUTES), "a route is in the table twice"
    shut = {(route.method, route.path) for route in ROUTES if route.access is Access.OPERATOR}
    assert shut == {("GET", "/metrics"), ("GET", "/kv_event_sources"), ("PATCH", "/v1/kv")}
    opened = {(route.method, route.path) for route in ROUTES if route.access is Access.OPEN}
    shell = {("GET", "/"), ("GET", "/ui"), ("GET", "/ui/{name:path}")}
    assert opened == {("GET", "/health"), ("GET", "/ping")} | shell


@pytest.mark.parametrize("key", [NOBODY, "", digest_of(ALICE).hex(), ALICE[:-1], "alice"])
def test_a_key_of_no_one_opens_nothing_but_health_and_the_pages_shell(house, key):
    for path in ("/v1/models", "/metrics", "/v1/kv", "/v1/kv/watch", "/nothing", "/uix", "/health/"):
        answer = house.get(path, **by(key))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert house.get("/health").status_code == 200


@pytest.mark.parametrize("value", [f"Basic {ALICE}", ALICE, "Bearer", f"Bearer {ALICE} {BOB}"])
def test_only_a_bearer_token_is_a_key(house, value):
    assert house.get("/v1/models", headers={"Authorization": value}).status_code == 401


def test_a_tenant_reaches_its_routes_and_no_other(house):
    for path in (
        "/v1/models",
        "/v1/models/fake-model",
        "/v1/kv",
        "/v1/kv/map",
        "/v1/kv/pins",
        "/v1/requests",
    ):
        assert house.get(path, **by(ALICE)).status_code == 200
    for method, path in [
        ("GET", "/metrics"), ("PATCH", "/v1/kv"), ("GET", "/nothing"), ("DELETE", "/v1/kv"), ("PUT", "/"),
        ("PUT", "/v1/kv/pins/a"), ("GET", "/v1/kv/pins/a"), ("GET", "/v1/kv/"), ("POST", "/metrics"),
    ]:  # fmt: skip
        answer = house.request(method, path, json={"blocks": 12}, **by(ALICE))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "operators_only"), path
    for _, path in TENANT_ROUTES:
        assert "/".join(path.split("/")[:3]) in answer.json()["error"]["message"], "what is allowed is named"


def test_head_is_as_shut_as_get(house):
    assert house.request("HEAD", "/v1/models", **by(ALICE)).status_code == 200
    assert house.request("HEAD", "/metrics", **by(ALICE)).status_code == 403
    assert house.request("HEAD", "/v1/models", **by(NOBODY)).status_code == 401


def test_an_operator_reaches_everything(house):
    assert house.get("/metrics", **by(BOSS)).status_code == 200
    resized = house.request("PATCH", "/v1/kv", json={"blocks": 12}, **by(BOSS))
    assert resized.json()["counts"]["total"] == 12
    assert house.get("/nothing", **by(BOSS)).status_code == 404


def test_sessions_are_listed_to_their_tenant_and_to_an_operator(house):
    for key in (ALICE, BOB):
        assert house.request("POST", "/v1/sessions", json={}, **by(key)).status_code == 201
    listed = {
        key: [(one["id"], one["tenant"]) for one in house.get("/v1/sessions", **by(key)).json()["data"]]
        for key in (ALICE, BOB, BOSS)
    }
    assert listed == {ALICE: [("s0", "alice")], BOB: [("s1", "bob")], BOSS: [("s0", "alice"), ("s1", "bob")]}
    assert house.get("/v1/sessions/s0", **by(BOSS)).status_code == 404, "seen, and still another's"


def test_an_operator_names_the_tenant_whose_session_it_means(house, path):
    for key in (ALICE, BOB):
        house.request("POST", "/v1/sessions", json={}, **by(key))
    alices = "/v1/sessions/s0{}?tenant=alice"
    acts = ("/suspend", "/resume", "/fork")
    for method, action in (("GET", ""), *(("POST", act) for act in acts), ("DELETE", "")):
        assert house.request(method, alices.format(action), json={}, **by(BOB)).status_code == 403
    suspended = house.request("POST", alices.format("/suspend"), **by(BOSS))
    assert (suspended.json()["state"], suspended.json()["tenant"]) == ("suspended", "alice")
    assert house.request("POST", alices.format("/resume"), **by(BOSS)).json()["state"] == "idle"
    assert house.get(alices.format(""), **by(ALICE)).json()["state"] == "idle", "naming oneself is allowed"
    path.write_text(entry("bob", BOB) + entry("boss", BOSS, lines="operator = true"))
    house.roster.tenants = read_tenants(path)
    assert house.get(alices.format(""), **by(BOSS)).json()["id"] == "s0", (
        "its tenant is gone, and it is there"
    )
    for action in ("/resume", "/fork"):
        refused = house.request("POST", alices.format(action), json={}, **by(BOSS))
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tenant")
    assert house.request("DELETE", alices.format(""), **by(BOSS)).status_code == 200
    assert [one["id"] for one in house.get("/v1/sessions", **by(BOSS)).json()["data"]] == ["s1"]


def test_a_fork_is_its_sessions_tenants(house):
    body = {"messages": [{"role": "user", "content": "hi"}], "session": "new"}
    house.post("/v1/chat/completions", body, **by(ALICE))
    assert house.request("POST", "/v1/sessions/s0/fork", json={}, **by(BOB)).status_code == 404
    for path, key in (("s0/fork", ALICE), ("s0/fork?tenant=alice", BOSS)):
        made = house.request("POST", f"/v1/sessions/{path}", json={}, **by(key))
        assert (made.status_code, made.json()["tenant"]) == (201, "alice")
    assert house.get("/v1/sessions", **by(ALICE)).json()["total"] == 3


def test_what_a_client_says_of_itself_changes_nothing(house, model):
    headers = {"Authorization": f"Bearer {ALICE}", "X-Octavo-Tenant": "bob", "Host": "bob"}
    body = {"prompt": "hi", "user": "bob", "tenant": "bob", "max_tokens": 3}
    assert house.post("/v1/completions?tenant=bob", body, headers=headers).status_code == 200
    assert model.submitted[0].tenant == "alice"


def test_keys_without_a_tenant_alongside_tenants_are_refused(path):
    with pytest.raises(ConfigError, match=r"--api-key .* and --tenants are both given; allowed: one of them"):
        ServerSettings(api_keys=("one",), roster=TenantRegistry(path))


# -- terms of a request --------------------------------------------------------------------------------------
def test_a_request_is_its_tenants_with_the_defaults_of_its_entry(house, model):
    message = [{"role": "user", "content": "hi"}]
    for path, body in [
        ("/v1/completions", {"prompt": "hi"}),
        ("/v1/chat/completions", {"messages": message}),
        ("/v1/completions", {"prompt": "hi", "timeout": 7.0, "queue_timeout": 1.0, "priority": 20}),
        ("/v1/completions", {"prompt": "hi", "timeout": None, "priority": None}),
    ]:
        assert house.post(path, body, **by(BOB)).status_code == 200
    house.post("/v1/completions", {"prompt": "hi"}, **by(ALICE))
    told = [
        (s.tenant, s.priority, s.timeouts.total, s.timeouts.queue, s.timeouts.first_token)
        for s in model.submitted
    ]
    assert told == [
        ("bob", -10, 60.0, None, 5.5),
        ("bob", -10, 60.0, None, 5.5),
        ("bob", -20, 7.0, 1.0, 5.5),
        ("bob", -10, 60.0, None, 5.5),
        ("alice", 0, None, None, None),
    ]


@pytest.mark.parametrize(
    ("key", "priority", "status"),
    [(BOB, 10, 200), (BOB, 9, 400), (ALICE, 0, 200), (ALICE, -1, 400), (BOSS, -100, 200), (BOSS, -101, 400)],
)
def test_no_one_outranks_others_by_asking(house, key, priority, status):
    answer = house.post("/v1/completions", {"prompt": "hi", "priority": priority}, **by(key))
    assert answer.status_code == status
    if status == 400:
        assert f"priority is {priority}; allowed:" in answer.json()["error"]["message"]


# -- what each sees ------------------------------------------------------------------------------------------
def test_a_tenant_sees_its_own_requests_and_no_other(house, model):
    for key in (ALICE, BOB, ALICE):
        house.post("/v1/completions", {"prompt": "hi"}, **by(key))
    live(model, 0, 1, 2)
    seen = {
        key: [view["request_id"] for view in house.get("/v1/requests", **by(key)).json()["data"]]
        for key in (ALICE, BOB, BOSS)
    }
    assert seen == {ALICE: [0, 2], BOB: [1], BOSS: [0, 1, 2]}
    assert house.get("/v1/requests/1", **by(BOB)).status_code == 200
    assert house.get("/v1/requests/1", **by(BOSS)).json()["tenant"] == "bob"
    foreign, none = house.get("/v1/requests/1", **by(ALICE)), house.get("/v1/requests/9", **by(ALICE))
    assert foreign.status_code == none.status_code == 404
    assert foreign.text == none.text.replace("9", "1"), "a foreign request can be told from none"


def test_pins_of_the_same_name_are_two_and_each_tenants_own(house):
    for key, text in ((ALICE, "x" * 32), (BOB, "y" * 48)):
        made = house.post("/v1/kv/pins", {"name": "rules", "prompt": text}, **by(key))
        assert made.status_code == 201
    pins = house.get("/v1/kv/pins", **by(ALICE)).json()["data"]
    assert [(pin["tenant"], pin["num_tokens"]) for pin in pins] == [("alice", 32)]
    assert len(house.get("/v1/kv/pins", **by(BOSS)).json()["data"]) == 2
    assert house.request("DELETE", "/v1/kv/pins/rules", **by(ALICE)).status_code == 200
    assert house.request("DELETE", "/v1/kv/pins/rules", **by(ALICE)).status_code == 404
    assert house.request("PATCH", "/v1/kv/pins/rules", json={"ttl": 9.0}, **by(ALICE)).status_code == 404
    assert house.request("PATCH", "/v1/kv/pins/rules", json={"ttl": 9.0}, **by(BOB)).status_code == 200


def test_only_an_operator_names_another_tenant(house, model):
    body = {"name": "rules", "prompt": "x" * 32, "tenant": "shared"}
    for tenant in ("shared", "bob", "nobody"):
        refused = house.post("/v1/kv/pins", {**body, "tenant": tenant}, **by(ALICE))
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "operators_only")
    assert house.post("/v1/kv/pins", {**body, "tenant": "alice"}, **by(ALICE)).status_code == 201
    assert house.post("/v1/kv/pins", body, **by(BOSS)).status_code == 201
    assert [order.tenant for order in model.control.orders] == ["alice", "shared"]
    unknown = house.post("/v1/kv/pins", {**body, "tenant": "carol"}, **by(BOSS))
    assert unknown.status_code == 400
    assert (
        "there is no tenant 'carol'; allowed: one of the tenants file" in unknown.json()["error"]["message"]
    )
    shared = "/v1/kv/pins/rules?tenant=shared"
    assert house.request("DELETE", shared, **by(ALICE)).status_code == 403
    assert house.request("PATCH", shared, json={"ttl": 9.0}, **by(BOB)).status_code == 403
    assert house.request("DELETE", "/v1/kv/pins/rules", **by(BOSS)).status_code == 404, "its own, not shared"
    assert house.request("DELETE", shared, **by(BOSS)).status_code == 200
    assert house.request("DELETE", "/v1/kv/pins/rules?tenant=alice", **by(BOSS)).status_code == 200


def test_without_tenants_none_can_be_named(edge):
    answer = edge.post("/v1/kv/pins", {"name": "rules", "prompt": "x" * 32, "tenant": "shared"})
    assert answer.status_code == 400
    assert "this server has no tenants" in answer.json()["error"]["message"]


def test_the_pool_is_reported_as_far_as_it_is_the_tenants(house):
    house.post("/v1/kv/pins", {"name": "mine", "prompt": "x" * 32}, **by(ALICE))
    house.post("/v1/kv/pins", {"name": "theirs", "prompt": "x" * 32}, **by(BOB))
    kv = house.get("/v1/kv", **by(ALICE)).json()
    assert (kv["tenant"], [pin["name"] for pin in kv["pins"]]) == ("alice", ["mine"])
    assert not {"counts", "capacity", "pin_budget", "below", "event_counts"} & kv.keys()
    assert set(house.get("/v1/kv/map", **by(ALICE)).json()["states"]) == {"."}
    assert "tenants" not in kv
    assert (kv["bounds"]["guaranteed"], kv["bounds"]["maximum"]) == (4, 8)
    assert house.get("/v1/kv", **by(BOSS)).json()["counts"]["total"] == 10


def test_the_operator_sees_every_tenant_also_of_one_that_is_gone(house, model, path):
    for key in (ALICE, BOB):
        house.post("/v1/completions", {"prompt": "hi"}, **by(key))
    live(model, 0, 1)
    path.write_text(
        entry("bob", BOB, lines='maximum = "3MiB"') + entry("boss", BOSS, lines="operator = true")
    )
    house.roster.tenants = read_tenants(path)
    told = house.get("/v1/kv", **by(BOSS)).json()["tenants"]
    assert [
        (t["name"], t["running"], t["blocks_held"], t.get("maximum"), t.get("operator")) for t in told
    ] == [
        ("bob", 1, 2, 8, False),
        ("boss", 0, 0, None, True),
        ("alice", 1, 2, None, None),
    ]


# -- the real server, the official client --------------------------------------------------------------------
@pytest.fixture
def server(path):
    model, listener, ready = FakeModel(), bind("127.0.0.1", 0), threading.Event()
    settings = ServerSettings(drain_timeout_s=1, roster=TenantRegistry(path))
    server = build_server(model, settings, lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield model, base_url(listener)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def test_the_official_client_with_two_keys(server):
    model, url = server
    assert [policy.name for policy in model.control.policies] == ["alice", "bob", "boss"]
    message = [{"role": "user", "content": "hi"}]
    for key, name in ((ALICE, "alice"), (BOB, "bob")):
        with OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=10) as client:
            answer = client.chat.completions.create(model="fake-model", messages=message)
            assert answer.choices[0].message.content == "Hello wörld!"
            assert model.submitted[-1].tenant == name
            with pytest.raises(BadRequestError, match="priority is -5; allowed"):
                client.completions.create(model="fake-model", prompt="x", extra_body={"priority": -5})
            with pytest.raises(PermissionDeniedError, match="not for this key"):
                client.patch("/kv", body={"blocks": 5}, cast_to=object)
    with (
        OpenAI(base_url=f"{url}/v1", api_key=NOBODY, max_retries=0, timeout=10) as client,
        pytest.raises(AuthenticationError),
    ):
        client.models.list()
    assert httpx.get(f"{url}/health").status_code == 200


def test_bounds_that_the_engine_refuses_end_the_start_with_its_words(path):
    path.write_text(entry("alice", ALICE, lines="guaranteed = 11"))
    listener = bind("127.0.0.1", 0)
    server = build_server(FakeModel(), ServerSettings(roster=TenantRegistry(path)))
    with pytest.raises(OctavoError, match="the guarantees do not fit 10 blocks"):
        asyncio.run(server.serve(sockets=[listener]))
    listener.close()
