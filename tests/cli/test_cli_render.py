"""`octavo render`: tokens of prompts without an engine."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import httpx
import pytest
from tests.doubles.fake_model import FakeModel
from tests.engine.served import FACTS, LetterTokenizer
from tests.processes import running, url_told
from tests.server.conftest import Edge
from tests.server.tenants import ALICE, NOBODY, TENANTS, by
from tests.waiting import LIMIT_S

from octavo.engine.no_engine import NoEngine
from octavo.engine.requests import render_chat
from octavo.errors import EngineStopped
from octavo.model.hub.paths import resolve
from octavo.model.loader import open_files, read_tokenizer
from octavo.server.routes import RENDER_ROUTES, ROUTES
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.serving.client import EngineClient
from octavo.text.continuation import encode_rendered
from octavo.types import ChatMessage, Request

HI = {"messages": [{"role": "user", "content": "What is a book?"}]}


@pytest.fixture
def renderer():
    client = EngineClient(NoEngine(frozenset([1])), LetterTokenizer(), FACTS, 8)
    yield client
    client.close()


def test_it_has_the_routes_that_need_no_engine_and_no_other(renderer):
    edge = Edge(renderer, ServerSettings())
    assert {route.path for route in RENDER_ROUTES} == {
        *(
            "/health",
            "/ping",
            "/version",
            "/openapi.json",
            "/docs",
            "/v1/models",
            "/v1/models/{model_id:path}",
        ),
        *(
            "/v1/chat/completions/render",
            "/v1/completions/render",
            "/tokenize",
            "/detokenize",
            "/tokenizer_info",
        ),
    }
    for route in ROUTES:
        answer = edge.request(
            route.method, route.path.replace("{model_id:path}", "tiny"), json={"prompt": "ab"}
        )
        assert (answer.status_code != 404) == (route in RENDER_ROUTES), route.path
    described = edge.get("/openapi.json").json()["paths"]
    assert "/v1/completions/render" in described
    assert "/v1/completions" not in described


def test_its_errors_are_those_of_a_server(renderer):
    edge = Edge(renderer, ServerSettings())
    [one] = edge.post("/v1/completions/render", {"prompt": "ab"}).json()
    assert one["token_ids"] == [26, 27]
    for fields in (
        {"prompt": "a" * 512},
        {"prompt": [97]},
        {"prompt": "a", "temperature": 9},
        {"model": "no"},
    ):
        answer = edge.post("/v1/completions/render", fields)
        assert answer.status_code in (400, 404)
        assert answer.json()["error"]["message"]
    assert edge.post("/v1/chat/completions/render", HI).json()["error"]["param"] == "messages"


def test_tenants_are_known_and_bound_nothing(renderer, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    registry = TenantRegistry(path)
    edge = Edge(renderer, ServerSettings(roster=registry))
    asyncio.run(registry.begin(None))
    body = {"prompt": "ab"}
    assert edge.post("/v1/completions/render", body, **by(ALICE)).status_code == 200
    assert edge.post("/v1/completions/render", body, **by(NOBODY)).status_code == 401
    assert asyncio.run(registry.reload(None))


def test_nothing_is_generated_without_an_engine(renderer):
    async def ask():
        with pytest.raises(EngineStopped, match="octavo render"):
            await renderer.submit(Request(prompt=(3,)))
        with pytest.raises(EngineStopped, match="octavo render"):
            await renderer.control.kv()
        return await renderer.drain(1.0)

    assert asyncio.run(ask())
    assert not renderer.generates
    assert FakeModel().generates


@pytest.mark.real_model
def test_a_renderer_shows_the_tokens_of_its_model_until_it_is_ended():
    command = [sys.executable, "-m", "octavo", "render", "--port", "0", "--context-length", "512"]
    with running(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        url = url_told(process)
        assert httpx.get(f"{url}/health").json() == {"status": "ok"}
        assert httpx.get(f"{url}/v1/models").json()["data"][0]["max_model_len"] == 512
        tokenizer = read_tokenizer(open_files(resolve()))
        try:
            chat = encode_rendered(tokenizer, render_chat(tokenizer, [ChatMessage(**HI["messages"][0])]))
            rendered = httpx.post(f"{url}/v1/chat/completions/render", json=HI, timeout=LIMIT_S).json()
            assert rendered["token_ids"] == chat
            assert rendered["sampling_params"] == {"max_tokens": 512 - len(chat)}
            [one] = httpx.post(f"{url}/v1/completions/render", json={"prompt": "Once upon"}).json()
            assert one["token_ids"] == tokenizer.encode("Once upon")
        finally:
            tokenizer.close()
        assert httpx.post(f"{url}/v1/completions", json={"prompt": "Once"}).status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(LIMIT_S) == 0
