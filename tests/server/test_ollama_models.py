"""What Ollama's clients ask of the server itself, and its vectors."""

import math
import re

import pytest
from tests.doubles.fake_model import FAKE_CARD, FakeModel
from tests.server.conftest import Edge

from octavo import __version__
from octavo.engine.outputs import ModelCard
from octavo.params import Pooling
from octavo.server.dialects.ollama import tagged
from octavo.server.dialects.ollama_models import API_VERSION, in_words
from octavo.server.dialects.ollama_routes import OLLAMA_ROUTES
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.tenants import digest_of

MODEL = "fake-model"
DETAILS = {
    "parent_model": "",
    "family": "llama",
    "families": ["llama"],
    "parameter_size": "134.52M",
    "quantization_level": "Q8_0",
    "context_length": 1000,
    "embedding_length": 576,
}


def test_the_served_model_is_listed_and_runs(edge):
    [listed] = edge.get("/api/tags").json()["models"]
    assert listed.pop("modified_at").endswith("Z")
    assert listed == {
        "name": "fake-model:latest", "model": "fake-model:latest", "size": FAKE_CARD.weight_bytes,
        "digest": FAKE_CARD.fingerprint, "details": DETAILS,
    }  # fmt: skip
    [running] = edge.get("/api/ps").json()["models"]
    assert running == listed | {
        "expires_at": "9999-12-31T23:59:59Z", "size_vram": 0, "context_length": 1000,
    }  # fmt: skip


def test_all_that_is_known_of_the_model_is_shown(edge):
    for name in ({"model": MODEL}, {"name": f"{MODEL}:latest"}):
        shown = edge.post("/api/show", name).json()
        assert shown["details"] == DETAILS
        assert shown["template"] == FAKE_CARD.chat_template
        assert shown["capabilities"] == ["completion", "tools", "embedding"]
        assert shown["model_info"] == {
            "general.architecture": "llama",
            "general.basename": MODEL,
            "general.parameter_count": 134_515_008,
            "llama.context_length": 1000,
            "llama.embedding_length": 576,
            "llama.block_count": 30,
            "llama.attention.head_count": 9,
            "llama.attention.head_count_kv": 3,
            "llama.vocab_size": 300,
        }
    edge.model.answers.thinks = True
    assert "thinking" in edge.post("/api/show", {"model": MODEL}).json()["capabilities"]


def test_what_is_not_known_is_left_out(edge):
    edge.model.card = ModelCard()
    [listed] = edge.get("/api/tags").json()["models"]
    assert set(listed) == {"name", "model", "modified_at", "details"}
    assert listed["details"] == {"parent_model": "", "context_length": 1000}
    shown = edge.post("/api/show", {"model": MODEL}).json()
    assert "template" not in shown
    assert shown["model_info"] == {"general.basename": MODEL, "model.context_length": 1000}


@pytest.mark.parametrize(
    "name, listed",
    [("a", "a:latest"), ("a:8b", "a:8b"), ("org/a", "org/a:latest"), ("host:80/a", "host:80/a:latest")],
)
def test_a_listed_name_has_a_tag(name, listed):
    assert tagged(name) == listed


@pytest.mark.parametrize(
    "count, words", [(0, ""), (7, "7"), (1_500, "1.5K"), (134_515_008, "134.52M"), (8_030_261_248, "8.03B")]
)
def test_counts_of_parameters_are_reported_in_words(count, words):
    assert in_words(count) == words


def test_the_version_is_octavos(edge):
    assert edge.get("/api/version").json() == {"version": API_VERSION, "octavo": __version__}


# -- probes and keys -----------------------------------------------------------------------------------------
def test_whatever_can_be_got_can_be_probed(edge):
    for path in ("/", "/api/tags", "/api/ps", "/api/version"):
        assert edge.request("HEAD", path).status_code == 200, path
    assert edge.request("HEAD", "/api/chat").status_code == 405


def test_the_front_door_is_open_and_all_of_api_wants_a_key():
    house = Edge(FakeModel(), ServerSettings(api_keys=("secret",)))
    for method in ("GET", "HEAD"):
        assert house.request(method, "/").status_code == 200
        assert house.request(method, "/api/tags").status_code == 401
    key = {"Authorization": "Bearer secret"}
    for route in OLLAMA_ROUTES:
        refused = house.request(route.method, route.path, json={})
        assert refused.status_code == 401, route.path
        assert set(refused.json()) == {"error"}
        assert house.request(route.method, route.path, json={}, headers=key).status_code != 401, route.path
    assert house.get("/api/nothing").status_code == 401
    assert house.get("/api/nothing", headers=key).json() == {"error": "there is no route GET /api/nothing"}


@pytest.mark.parametrize(
    "path, asked",
    [
        ("/api/chat", {"messages": [{"role": "user", "content": "hi"}]}),
        ("/api/generate", {"prompt": "hi"}),
        ("/api/generate", {"prompt": "hi", "raw": True}),
        ("/api/embed", {"input": "hi"}),
        ("/api/embeddings", {"prompt": "hi"}),
    ],
)
def test_whatever_is_asked_is_asked_by_the_keys_tenant_on_its_terms(tmp_path, path, asked):
    (tmp_path / "tenants.toml").write_text(
        f'[[tenant]]\nname = "alice"\nkey_sha256 = "{digest_of("secret").hex()}"\n'
        "[tenant.defaults]\npriority = 3\ntimeout = 9\n"
    )
    model = FakeModel()
    house = Edge(model, ServerSettings(roster=TenantRegistry(tmp_path / "tenants.toml")))
    answer = house.post(path, {"model": MODEL, **asked}, headers={"Authorization": "Bearer secret"})
    assert answer.status_code == 200, answer.text
    [stream] = model.submitted
    assert (stream.tenant, stream.priority, stream.timeouts.total) == ("alice", -3, 9)
    assert [encoding.tenant for encoding in model.encodings] == ["alice"]


def test_the_description_shows_ollamas_streams_and_errors(edge):
    told = edge.get("/openapi.json").json()
    responses = told["paths"]["/api/chat"]["post"]["responses"]
    assert set(responses["200"]["content"]) == {"application/json", "application/x-ndjson"}
    refused = responses["404"]["content"]["application/json"]["schema"]["$ref"]
    assert refused == "#/components/schemas/OllamaError"
    assert told["components"]["schemas"]["OllamaError"]["properties"] == {"error": {"type": "string"}}
    prompt = told["components"]["schemas"]["OllamaGenerateBody"]["properties"]["prompt"]
    assert [one["type"] for one in prompt["anyOf"]] == ["string", "null"]


# -- vectors -------------------------------------------------------------------------------------------------
def embed(edge, **fields):
    answer = edge.post("/api/embed", {"model": MODEL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_vectors_are_those_of_v1_embeddings(edge):
    texts = ["a book", "a page"]
    theirs = [one["embedding"] for one in edge.post("/v1/embeddings", {"input": texts}).json()["data"]]
    both = embed(edge, input=texts)
    assert set(both) == {"model", "embeddings", "total_duration", "load_duration", "prompt_eval_count"}
    assert (both["model"], both["embeddings"]) == (MODEL, theirs)
    assert both["prompt_eval_count"] == len("".join(texts))
    assert (both["total_duration"] > 0, both["load_duration"]) == (True, 0)
    assert embed(edge, input=texts[0])["embeddings"] == theirs[:1]
    assert edge.model.submitted[-1].params.pooling is Pooling.LAST


def test_fewer_dimensions_are_the_first_made_as_long_as_one(edge):
    [all_of_it], [some] = (embed(edge, input="a book", dimensions=n)["embeddings"] for n in (0, 200))
    assert (len(all_of_it), len(some)) == (576, 200)
    assert math.isclose(math.hypot(*some), 1.0, rel_tol=1e-6)
    length = math.hypot(*all_of_it[:200])
    assert all(math.isclose(a, b / length, rel_tol=1e-5) for a, b in zip(some, all_of_it, strict=False) if b)


def test_longer_inputs_are_cut_to_the_context_that_is_asked_for(edge):
    assert embed(edge, input="ab" * 700)["prompt_eval_count"] == 1000
    assert embed(edge, input="ab" * 700, truncate=True, options={"num_ctx": 7.0})["prompt_eval_count"] == 7
    assert edge.model.submitted[-1].prompt == tuple(b"abababa")
    assert embed(edge, input="ab", truncate=False, options={"num_ctx": 1})["prompt_eval_count"] == 2


def test_without_input_there_are_no_vectors(edge):
    for nothing in ({}, {"input": ""}, {"input": []}, {"input": None}):
        assert embed(edge, **nothing)["embeddings"] == []
    answer = edge.post("/api/embeddings", {"model": MODEL, "prompt": ""})
    assert answer.json() == {"embedding": []}
    assert edge.model.submitted == []


def test_the_older_route_gives_one_vector_as_the_model_made_it(edge):
    answer = edge.post("/api/embeddings", {"model": MODEL, "prompt": "a book"})
    assert answer.status_code == 200, answer.text
    [normal] = embed(edge, input="a book")["embeddings"]
    vector = answer.json()["embedding"]
    length = math.hypot(*vector)
    assert not math.isclose(length, 1.0, rel_tol=1e-3)
    assert all(math.isclose(a / length, b, abs_tol=1e-6) for a, b in zip(vector, normal, strict=True))


def test_a_failure_among_vectors_is_reported_in_ollamas_shape(edge):
    edge.model.failure = "it broke"
    answer = edge.post("/api/embed", {"model": MODEL, "input": ["a", "b"]})
    assert (answer.status_code, answer.json()) == (500, {"error": "it broke"})
    assert re.fullmatch(r"req-\w+", answer.headers["x-request-id"])
