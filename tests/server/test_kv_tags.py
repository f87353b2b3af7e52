"""Tags of tenants, by which routers know whose blocks are whose, in what clients send and read."""

import pytest
from tests.server.conftest import Edge
from tests.server.tenants import ALICE, BOB, TENANTS, by

from octavo.kv_events.identity import Identity
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry

KEYED = Identity(b"k" * 32)
OWN, OTHER = KEYED.tenant_tag("alice"), KEYED.tenant_tag("bob")


@pytest.fixture
def tagged(model, tmp_path):
    """The application with tenants, whose events are published."""
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    model.identity = KEYED
    return Edge(model, ServerSettings(roster=TenantRegistry(path)))


def test_a_client_reads_its_own_tag_with_the_model(tagged):
    for key, tag in ((ALICE, OWN), (BOB, OTHER)):
        answer = tagged.get("/v1/models", **by(key))
        assert [one["kv_tag"] for one in answer.json()["data"]] == [tag]
        assert tagged.get("/v1/models/fake-model", **by(key)).json()["kv_tag"] == tag


def test_without_tenants_there_is_no_tag(edge):
    assert "kv_tag" not in edge.get("/v1/models").json()["data"][0]


@pytest.mark.parametrize(
    ("given", "salt"),
    [
        (OWN, ""),
        (f"{OWN}.s", "s"),
        (f"{OWN}s", f"{OWN}s"),
        (OTHER, OTHER),
        (f"{OTHER}.s", f"{OTHER}.s"),
        ("s", "s"),
    ],
)
def test_a_salt_that_begins_with_the_own_tag_means_the_rest(tagged, model, given, salt):
    body = {"messages": [{"role": "user", "content": "a"}], "cache_salt": given}
    assert tagged.post("/v1/chat/completions", body, **by(ALICE)).status_code == 200
    assert (
        tagged.post("/v1/completions", {"prompt": "a", "cache_salt": given}, **by(ALICE)).status_code == 200
    )
    assert [one.cache_salt for one in model.submitted] == [salt, salt]


@pytest.mark.parametrize(("given", "status"), [(OWN, 200), (f"{OWN}.s", 400), (OTHER, 400), ("s", 400)])
def test_the_own_tag_is_no_salt_of_a_session(tagged, given, status):
    body = {"messages": [{"role": "user", "content": "a"}], "cache_salt": given, "session": "new"}
    assert tagged.post("/v1/chat/completions", body, **by(ALICE)).status_code == status


@pytest.mark.parametrize(("given", "status"), [(OWN, 200), (OTHER, 400)])
def test_nor_of_a_response_that_is_stored(tagged, given, status):
    body = {"input": "a", "cache_salt": given, "store": True}
    assert tagged.post("/v1/responses", body, **by(ALICE)).status_code == status
