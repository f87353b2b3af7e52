"""The official client against a real socket, and the server's orderly end."""

import asyncio
import signal
import sys
import threading

import httpx
import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from tests.doubles.fake_model import FakeModel
from tests.processes import running
from tests.waiting import LIMIT_S

from octavo.errors import ConfigError
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings


@pytest.fixture(scope="module")
def url():
    """The base URL of a real server over a fake model, in a thread."""
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = build_server(FakeModel(), ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield base_url(listener)
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def client(url):
    with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client


MESSAGES = [{"role": "user", "content": "hi"}]


def test_models(client):
    [model] = client.models.list().data
    assert client.models.retrieve(model.id).id == "fake-model"


def test_chat(client):
    answer = client.chat.completions.create(
        model="fake-model", messages=MESSAGES, n=2, logprobs=True, top_logprobs=1, stop=["!"]
    )
    assert [choice.message.content for choice in answer.choices] == ["Hello wörld"] * 2
    assert answer.choices[1].logprobs.content[0].top_logprobs[0].bytes == [72]
    assert answer.usage.prompt_tokens_details.cached_tokens == 4


def test_a_chat_of_a_session_by_the_client_s_own_means(client):
    answer = client.chat.completions.with_raw_response.create(
        model="fake-model", messages=MESSAGES, extra_body={"session": "new"}
    )
    session = answer.headers["x-octavo-session"]
    again = client.chat.completions.create(
        model="fake-model", messages=MESSAGES, extra_headers={"X-Octavo-Session": session}
    )
    assert again.model_extra["session"]["id"] == session
    with pytest.raises(NotFoundError, match="there is no session 'gone'"):
        client.chat.completions.create(model="fake-model", messages=MESSAGES, extra_body={"session": "gone"})


def test_streamed_chat(client):
    chunks = list(
        client.chat.completions.create(
            model="fake-model", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
    )
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "Hello wörld!"
    assert chunks[-2].choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == 13


def test_completions(client):
    answer = client.completions.create(
        model="fake-model", prompt=["a", "b"], max_tokens=5, logprobs=1, echo=True, extra_body={"top_k": 3}
    )
    assert [choice.text for choice in answer.choices] == ["aHello", "bHello"]
    assert answer.choices[0].logprobs.token_logprobs[0] is None


def test_streamed_completions(client):
    chunks = client.completions.create(model="fake-model", prompt="a", max_tokens=5, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Hello"


def test_errors_are_the_clients_own_exceptions(client):
    with pytest.raises(NotFoundError, match="fake-model"):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(BadRequestError) as caught:
        client.chat.completions.create(model="fake-model", messages=MESSAGES, temperature=9)
    assert caught.value.param == "temperature"


def test_a_body_over_the_cap_leaves_the_server_alive(url):
    with httpx.Client() as client:
        answer = client.post(f"{url}/v1/completions", content=b" " * (9 * 2**20))
        assert answer.status_code == 413
        assert client.get(f"{url}/health").status_code == 200


def test_a_port_in_use_is_a_clear_error(url):
    with pytest.raises(ConfigError, match="--port"):
        bind("127.0.0.1", int(url.rpartition(":")[2]))


SERVE = """
import asyncio
from octavo.server.settings import ServerSettings
from octavo.server.run import base_url, bind, build_server
from tests.doubles.fake_model import FakeModel
from tests.waiting import until

class UntilSignal:
    async def wait(self):
        await until(lambda: server.should_exit)

model = FakeModel("Hello")
model.hold = UntilSignal()
listener = bind("127.0.0.1", 0)
server = build_server(model, ServerSettings(), lambda url: print(url, flush=True))
asyncio.run(server.serve(sockets=[listener]))
assert model.drained
print("drained", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_drains_and_ends_with_status_zero(number):
    with running([sys.executable, "-c", SERVE]) as process:
        url = process.stdout.readline().strip()
        with httpx.stream("POST", f"{url}/v1/completions", json={"prompt": "a", "stream": True}) as answer:
            lines = answer.iter_lines()
            assert '"text":"H"' in next(lines)
            process.send_signal(number)
            rest = list(lines)
            assert '"finish_reason":"stop"' in rest[-4], "the running request was not allowed to end"
        assert process.wait(LIMIT_S) == 0
        assert process.stdout.read() == "drained\n"
