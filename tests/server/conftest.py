import asyncio

import httpx
import pytest
from tests.doubles.fake_model import FakeModel

from octavo.server.app import create_app
from octavo.server.settings import ServerSettings


class Edge:
    """The application over a fake model, called without a socket."""

    def __init__(self, model, settings):
        self.model = model
        self.settings = settings
        self.app = create_app(model, settings)

    def request(self, method, path, **options):
        async def send():
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                return await client.request(method, path, **options)

        return asyncio.run(send())

    def get(self, path, **options):
        return self.request("GET", path, **options)

    def post(self, path, body=None, **options):
        return (
            self.request("POST", path, json=body, **options)
            if body is not None
            else self.request("POST", path, **options)
        )

    def chat(self, **fields):
        return self.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], **fields})

    def complete(self, **fields):
        return self.post("/v1/completions", {"prompt": "hi", **fields})


@pytest.fixture
def model():
    return FakeModel()


@pytest.fixture
def edge(model):
    return Edge(model, ServerSettings(body_bytes_max=400_000))


@pytest.fixture
def make_edge(model):
    return lambda **settings: Edge(model, ServerSettings(**settings))
