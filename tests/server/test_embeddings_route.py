"""/v1/embeddings in OpenAI's shapes: its own client, all forms of input, every kind of wrong request."""

import asyncio
import base64
import json
import math
import threading

import numpy as np
import pytest
from openai import BadRequestError, OpenAI
from tests.doubles.fake_model import FAKE_CARD, FakeModel, fake_embedding
from tests.server.conftest import Edge
from tests.server.test_tenant_keys import ALICE, BOB, TENANTS, by
from tests.waiting import LIMIT_S, turns, until

from octavo.errors import EngineStopped, InvalidRequest, QueueFull
from octavo.params import Pooling
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.server.tenant_registry import TenantRegistry
from octavo.serving.embedding import IN_FLIGHT_MAX, EmbeddingOptions, embed_all, vector_of

PATH = "/v1/embeddings"
SIZE = FAKE_CARD.hidden_size


def embed(edge, given="hi", **fields):
    return edge.post(PATH, {"input": given, **fields})


def vectors(answer):
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    assert {one["object"] for one in data} == {"embedding"}
    return [one["embedding"] for one in data]


def expected(text, pooling=Pooling.LAST, dimensions=None):
    return vector_of(fake_embedding(text.encode(), pooling), dimensions).tolist()


@pytest.fixture(scope="module")
def client():
    """OpenAI's own, against a real server over a fake model, in a thread."""
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    server = build_server(FakeModel(), ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    with OpenAI(base_url=f"{base_url(listener)}/v1", api_key="none", max_retries=0, timeout=10) as client:
        yield client
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


# -- OpenAI's client -----------------------------------------------------------------------------------------
def test_the_official_client_reads_equal_vectors_as_floats_and_in_base64(client):
    def asked(**options):
        return client.embeddings.create(model="fake-model", input=["one", "two three"], **options)

    default, floats, base64s = asked(), asked(encoding_format="float"), asked(encoding_format="base64")
    assert [one.embedding for one in floats.data] == [one.embedding for one in default.data]
    decoded = [np.frombuffer(base64.b64decode(one.embedding), "<f4").tolist() for one in base64s.data]
    assert [one.embedding for one in floats.data] == decoded
    assert decoded == [expected("one"), expected("two three")]
    assert (default.object, default.model, default.data[1].index) == ("list", "fake-model", 1)
    assert (default.usage.prompt_tokens, default.usage.total_tokens) == (12, 12)


def test_the_official_client_passes_dimensions_and_meets_refusals(client):
    [one] = client.embeddings.create(model="fake-model", input="one", dimensions=64).data
    assert len(one.embedding) == 64
    with pytest.raises(BadRequestError, match="allowed: 1 to 576"):
        client.embeddings.create(model="fake-model", input="one", dimensions=577)
    with pytest.raises(BadRequestError, match="input"):
        client.embeddings.create(model="fake-model", input=[])


# -- what comes out ------------------------------------------------------------------------------------------
def test_text_texts_ids_and_lists_of_ids_are_one_thing(edge):
    ids = list(b"hi")
    assert vectors(embed(edge, "hi")) == vectors(embed(edge, ids)) == [expected("hi")]
    assert vectors(embed(edge, ["hi", "there"])) == vectors(embed(edge, [ids, list(b"there")]))
    assert vectors(embed(edge, ["hi", list(b"there")])) == [expected("hi"), expected("there")]


def test_a_vector_has_length_one_unless_the_client_wants_it_raw(edge):
    [whole] = vectors(embed(edge))
    assert math.isclose(math.hypot(*whole), 1.0, rel_tol=1e-6)
    raw = np.frombuffer(fake_embedding(b"hi", Pooling.LAST), np.float32).tolist()
    assert vectors(embed(edge, normalize=False)) == vectors(embed(edge, use_activation=False)) == [raw]


def test_dimensions_are_cut_first_and_normalised_then(edge):
    [short] = vectors(embed(edge, "a long text of letters", pooling="mean", dimensions=200))
    raw = np.frombuffer(fake_embedding(b"a long text of letters", Pooling.MEAN), np.float32)[:200]
    assert short == (raw / np.float64(np.linalg.norm(raw.astype(np.float64)))).astype(np.float32).tolist()
    assert math.isclose(math.hypot(*short), 1.0, rel_tol=1e-6)


def test_a_vector_of_zeros_stays_zeros():
    assert vector_of(bytes(16)).tolist() == [0.0] * 4


def test_pooling_is_the_request_s_and_else_the_server_s(edge, model):
    assert vectors(embed(edge, "abc")) == [expected("abc", Pooling.LAST)]
    assert vectors(embed(edge, "abc", pooling="mean")) == [expected("abc", Pooling.MEAN)]
    assert [one.params.pooling for one in model.submitted] == ["last", "mean"]
    assert {one.params.max_tokens for one in model.submitted} == {1}


def test_longer_inputs_are_cut_where_the_client_says_so(edge, model):
    embed(edge, ["abcdef", list(b"uvwxyz"), "ab"], truncate_prompt_tokens=3)
    embed(edge, "abcdef", truncate_prompt_tokens=3, truncation_side="left")
    embed(edge, "a" * 1500, truncate_prompt_tokens=-1)
    embed(edge, [65] * 1500, truncate_prompt_tokens=-1)
    assert [bytes(one.prompt) for one in model.submitted[:4]] == [b"abc", b"uvw", b"ab", b"def"]
    assert [len(one.prompt) for one in model.submitted[4:]] == [1000, 1000]


def test_an_input_may_fill_the_whole_context(edge):
    assert len(vectors(embed(edge, [5] * 1000))) == 1
    error = embed(edge, ["a", "b" * 1001]).json()["error"]
    assert (
        "input[1] has 1,001 tokens; this model's maximum context length is 1,000 tokens" in error["message"]
    )
    assert (error["param"], error["code"]) == ("input", "context_length_exceeded")


def test_special_tokens_are_added_unless_the_client_says_no(edge, model):
    embed(edge)
    embed(edge, add_special_tokens=False)
    assert [one.add_special_tokens for one in model.encodings] == [True, False]


def test_priority_timeouts_and_salt_reach_every_input(edge, model):
    embed(edge, ["a", "b"], priority=3, timeout=5, queue_timeout=6, ttft_timeout=7, cache_salt="s")
    for one in model.submitted:
        assert (one.priority, one.cache_salt) == (-3, "s")
        assert (one.timeouts.total, one.timeouts.queue, one.timeouts.first_token) == (5, 6, 7)


def test_cached_tokens_are_reported(edge):
    usage = embed(edge, ["abcd", "ab"]).json()["usage"]
    assert usage["prompt_tokens"] == usage["total_tokens"] == 6
    assert usage["cached_tokens"] == usage["prompt_tokens_details"]["cached_tokens"] == 3


def test_as_many_inputs_as_openai_takes_come_back_in_order(edge, model):
    texts = [f"{place % 7}{place % 11}" for place in range(2048)]
    found = vectors(embed(edge, texts, dimensions=300))
    assert found == [expected(text, dimensions=300) for text in texts]
    assert len(model.submitted) == 2048


# -- wrong requests ------------------------------------------------------------------------------------------
def wrong(**fields):
    return json.dumps({"input": "hi", **fields})


def given(value):
    return json.dumps({"input": value})


# name: (raw body, status, param)
CASES = {
    "not JSON": ("hello", 400, None),
    "empty body": ("", 400, None),
    "a list": ("[]", 400, None),
    "not UTF-8": (b'{"input": "\xff\xfe"}', 400, None),
    "half a surrogate pair": ('{"input": "\\ud83d"}', 400, None),
    "nested 100,000 deep": ('{"input":' + "[" * 100_000 + "]" * 100_000 + "}", 400, None),
    "nested 500 deep": ('{"input":' + "[" * 500 + "]" * 500 + "}", 400, "input"),
    "NaN": ('{"input": "hi", "timeout": NaN}', 400, None),
    "an integer of 5,000 digits": ('{"input": [1' + "0" * 5000 + "]}", 400, None),
    "a body too large": ('{"input": "' + "a" * 500_000 + '"}', 413, None),
    "unknown model": (wrong(model="gpt-17"), 404, "model"),
    "model of a wrong type": (wrong(model=5), 400, "model"),
    "no input": ("{}", 400, "input"),
    "null input": (given(None), 400, "input"),
    "empty text": (given(""), 400, "input"),
    "empty list": (given([]), 400, "input"),
    "a list with an empty text": (given(["a", ""]), 400, "input"),
    "a list with an empty list": (given(["a", []]), 400, "input"),
    "a number": (given(5), 400, "input"),
    "an object": (given({"text": "a"}), 400, "input"),
    "a list of objects": (given([{"text": "a"}]), 400, "input"),
    "a list of floats": (given([1.5, 2.5]), 400, "input"),
    "ids with a float": (given([1, 2.5]), 400, "input"),
    "ids with a bool": (given([True, 1]), 400, "input"),
    "ids with a text": (given([1, "a"]), 400, "input"),
    "ids with a null": (given([[1, None]]), 400, "input"),
    "a negative id": (given([-1]), 400, "input"),
    "an id beyond the vocabulary": (given([300]), 400, "input"),
    "an id of 40 digits": (given([10**40]), 400, "input"),
    "lists of lists of lists": (given([[[1]]]), 400, "input"),
    "a text beyond any context": (given("a" * 20_000), 400, "input"),
    "ids beyond the context": (given([1] * 1001), 400, "input"),
    "too many inputs": (given(["a"] * 2049), 400, "input"),
    "an unknown encoding": (wrong(encoding_format="hex"), 400, "encoding_format"),
    "an encoding of a wrong type": (wrong(encoding_format=1), 400, "encoding_format"),
    "no dimensions": (wrong(dimensions=0), 400, "dimensions"),
    "negative dimensions": (wrong(dimensions=-5), 400, "dimensions"),
    "too many dimensions": (wrong(dimensions=577), 400, "dimensions"),
    "dimensions as text": (wrong(dimensions="5"), 400, "dimensions"),
    "dimensions as a float": (wrong(dimensions=5.5), 400, "dimensions"),
    "dimensions as a bool": (wrong(dimensions=True), 400, "dimensions"),
    "unknown pooling": (wrong(pooling="cls"), 400, "pooling"),
    "pooling of a wrong type": (wrong(pooling=["mean"]), 400, "pooling"),
    "normalize as a number": (wrong(normalize=1), 400, "normalize"),
    "normalize and its other name differ": (
        wrong(normalize=True, use_activation=False), 400, "use_activation"
    ),
    "cut to nothing": (wrong(truncate_prompt_tokens=0), 400, "truncate_prompt_tokens"),
    "cut to less": (wrong(truncate_prompt_tokens=-2), 400, "truncate_prompt_tokens"),
    "cut to more than the context": (wrong(truncate_prompt_tokens=1001), 400, "truncate_prompt_tokens"),
    "cut at an unknown side": (wrong(truncation_side="top"), 400, "truncation_side"),
    "a priority too far": (wrong(priority=10_000), 400, "priority"),
    "a timeout of nothing": (wrong(timeout=0), 400, "timeout"),
    "an empty salt": (wrong(cache_salt=""), 400, "cache_salt"),
    "a salt too long": (wrong(cache_salt="s" * 257), 400, "cache_salt"),
    "another dtype": (wrong(embed_dtype="float16"), 400, "embed_dtype"),
    "the other end first": (wrong(endianness="big"), 400, "endianness"),
    "a chat": (wrong(messages=[]), 400, "messages"),
    "a session": (wrong(session="new"), 400, "session"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_wrong_request_is_refused_in_openai_s_shape_and_nothing_is_submitted(edge, name):
    body, status, param = CASES[name]
    answer = edge.post(PATH, content=body)
    assert answer.status_code == status, answer.text
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param, error
    assert len(error["message"]) < 700
    assert edge.model.submitted == []
    assert embed(edge).status_code == 200


@pytest.mark.parametrize(
    "refusal, status, code",
    [(QueueFull("full"), 429, "queue_full"), (EngineStopped("over"), 503, "engine_stopped")],
)
def test_what_the_engine_refuses_has_its_status(edge, model, refusal, status, code):
    model.refusal = refusal
    answer = embed(edge, ["a", "b"])
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


def test_one_that_fails_or_comes_too_late_fails_the_request(edge, model):
    model.failure = "its numbers are no numbers"
    answer = embed(edge, ["a", "b"])
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, model.failure)
    model.failure, model.times_out_after = "", 1
    answer = embed(edge)
    assert (answer.status_code, answer.json()["error"]["code"]) == (408, "timeout")


# -- tenants, leaving, queues --------------------------------------------------------------------------------
def test_a_key_says_whose_embeddings_they_are_and_on_which_terms(model, tmp_path):
    path = tmp_path / "tenants.toml"
    path.write_text(TENANTS)
    house = Edge(model, ServerSettings(roster=TenantRegistry(path)))
    assert house.post(PATH, {"input": "a"}).status_code == 401
    assert house.post(PATH, {"input": "a"}, **by(ALICE)).status_code == 200
    assert house.post(PATH, {"input": "a", "user": "alice"}, **by(BOB)).status_code == 200
    assert [one.tenant for one in model.submitted] == ["alice", "bob"]
    assert [one.tenant for one in model.encodings] == ["alice", "bob"]
    assert [one.priority for one in model.submitted] == [0, -10]
    assert (model.submitted[1].timeouts.total, model.submitted[1].timeouts.first_token) == (60, 5.5)
    error = house.post(PATH, {"input": "a", "priority": -5}, **by(BOB)).json()["error"]
    assert error["param"] == "priority"


async def call_and_leave(app, body, leave):
    """One raw ASGI call whose client is gone once `leave` is set; returns what was sent to it."""
    sent, parts = [], [{"type": "http.request", "body": json.dumps(body).encode(), "more_body": False}]

    async def receive():
        if parts:
            return parts.pop()
        await leave.wait()
        return {"type": "http.disconnect"}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1",
        "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"",
        "root_path": "", "scheme": "http",
        "headers": [(b"host", b"127.0.0.1")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8000),
    }  # fmt: skip
    await asyncio.wait_for(app(scope, receive, send), LIMIT_S)
    return sent


def test_leaving_cancels_every_input_that_runs_and_submits_no_other(edge, model):
    async def scenario():
        model.hold = asyncio.Event()
        leave = asyncio.Event()
        call = asyncio.create_task(call_and_leave(edge.app, {"input": ["a"] * 500}, leave))
        await until(lambda: len(model.submitted) >= IN_FLIGHT_MAX)
        leave.set()
        return await call

    asyncio.run(scenario())
    assert len(model.submitted) == IN_FLIGHT_MAX
    assert all(one.cancelled for one in model.submitted)


class FewTurns:
    """A hold of some turns of the event loop."""

    async def wait(self):
        await turns(20)


class Narrow(FakeModel):
    """Takes no more than `room` requests at a time."""

    def __init__(self, room):
        super().__init__()
        self.room, self.most, self.hold = room, 0, FewTurns()

    async def submit(self, request):
        await turns()
        running = sum(not one.ended for one in self.submitted)
        if running >= self.room:
            raise QueueFull("full")
        self.most = max(self.most, running + 1)
        return await super().submit(request)


def test_a_full_queue_holds_a_list_up_and_refuses_it_only_where_none_of_it_runs():
    model = Narrow(room=3)
    prompts = [[65 + place % 20] for place in range(50)]
    found = asyncio.run(embed_all(model, prompts, EmbeddingOptions()))
    assert [one.vector.tolist() for one in found] == [expected(chr(prompt[0])) for prompt in prompts]
    assert model.most == 3
    with pytest.raises(QueueFull):
        asyncio.run(embed_all(Narrow(room=0), prompts, EmbeddingOptions()))


def test_dimensions_are_checked_before_anything_is_submitted(model):
    with pytest.raises(InvalidRequest, match="1 to 576"):
        asyncio.run(embed_all(model, [[5]], EmbeddingOptions(dimensions=SIZE + 1)))
    assert model.submitted == []
