"""Who is let in: foreign pages never, strangers only where no key is asked for."""

import pytest

MODELS = "/v1/models"


@pytest.mark.parametrize(
    "host", ["localhost:8000", "127.0.0.1", "[::1]:8000", "LOCALHOST:8000", "localhost."]
)
def test_this_machines_names_are_served(edge, host):
    assert edge.get(MODELS, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "127.0.0.1.evil.example",
        "10.0.0.5",
        "[::1",
        "localhost@evil.example",
        "user@127.0.0.1",
        "[::1]evil.com",
        "[::1]:80:80",
        "[localhost]",
        "127.0.0.1/evil.example",
        "127.0.0.1 evil.example",
        "127.0.0.1:123456",
        "",
        ".",
    ],
)
def test_foreign_hosts_are_refused_without_keys(edge, host):
    answer = edge.get(MODELS, headers={"Host": host})
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_host"


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://10.0.0.5:8000", "http://[broken", ""]
)
def test_foreign_origins_are_refused_without_keys(edge, origin):
    assert edge.get(MODELS, headers={"Origin": origin}).status_code == 403


@pytest.mark.parametrize("origin", ["http://localhost:3000", "http://127.0.0.1:8000", "http://[::1]"])
def test_pages_of_this_machine_are_served(edge, origin):
    assert edge.get(MODELS, headers={"Origin": origin}).status_code == 200


def test_a_server_on_every_address_serves_addresses_but_no_foreign_names(make_edge):
    edge = make_edge(host="0.0.0.0", insecure=True)
    assert edge.get(MODELS, headers={"Host": "192.168.1.7:8000"}).status_code == 200
    assert (
        edge.get(MODELS, headers={"Host": "192.168.1.7", "Origin": "http://192.168.1.7"}).status_code == 200
    )
    assert edge.get(MODELS, headers={"Host": "192.168.1.7", "Origin": "http://6.6.6.6"}).status_code == 403
    assert edge.get(MODELS, headers={"Host": "evil.example"}).status_code == 403


def test_the_bound_name_is_served(make_edge):
    assert (
        make_edge(host="box.lan", insecure=True).get(MODELS, headers={"Host": "box.lan:80"}).status_code
        == 200
    )


@pytest.mark.parametrize(
    "path",
    ["/v1/models", "/metrics", "/v1/nothing", "/docs", "/uix", "/health/", "/v1/kv/watch"],
)
def test_with_keys_every_route_but_health_and_the_pages_shell_wants_one(make_edge, path):
    edge = make_edge(api_keys=("one", "two"))
    answer = edge.get(path)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert edge.get("/health").status_code == 200


@pytest.mark.parametrize(
    "value, status",
    [
        ("Bearer one", 200),
        ("bearer two", 200),
        ("Bearer three", 401),
        ("Bearer on", 401),
        ("Bearer ", 401),
        ("Basic one", 401),
        ("one", 401),
        ("", 401),
    ],
)
def test_only_a_known_key_opens(make_edge, value, status):
    edge = make_edge(api_keys=("one", "two"))
    assert edge.get(MODELS, headers={"Authorization": value}).status_code == status


def test_a_key_serves_foreign_names(make_edge):
    headers = {"Authorization": "Bearer one", "Host": "api.example", "Origin": "https://app.example"}
    assert make_edge(api_keys=("one",)).get(MODELS, headers=headers).status_code == 200
