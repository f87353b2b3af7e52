"""Large bodies: which they are, what a process answers to one, and what may happen to the process."""

import asyncio
import json
import os
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.doubles.fake_model import FakeModel
from tests.processes import is_alive
from tests.server.conftest import Edge
from tests.server.test_bad_input import CASES
from tests.waiting import turns, until

from octavo.errors import InvalidRequest, QueueFull, RequestFailed
from octavo.helper_process import HelperProcess
from octavo.server import body_reader, json_pieces, large_bodies
from octavo.server.body_reader import read_body
from octavo.server.json_pieces import PIECE_CHARS_MAX, from_pieces, to_pieces
from octavo.server.large_bodies import ITEMS_MAX, LargeBodies, ModelSizes, is_large
from octavo.server.routes import ROUTES
from octavo.server.settings import ServerSettings

SIZES = ModelSizes(context_length=1000, vocab_size=300)
SPACE = b" " * (64 * ITEMS_MAX + 64)  # makes every body a large one
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hi"}]


def body_of(num_items, item="[]", text=""):
    return f'{{"prompt":"{text}","x":[{",".join([item] * num_items)}]}}'.encode()


@pytest.mark.parametrize(
    "body",
    [
        body_of(ITEMS_MAX // 2),  # each has a comma and a bracket
        body_of(ITEMS_MAX, item="1"),
        body_of(ITEMS_MAX, item='"a"'),
        body_of(ITEMS_MAX // 3, item='{"a":1}'),
        body_of(0, text="\\n" * ITEMS_MAX),
        body_of(0, text="a" * 64 * (ITEMS_MAX + 1)),
        body_of(41, item="9" * (ITEMS_MAX // 5)),
        b'"' * 3 * ITEMS_MAX,
        body_of(ITEMS_MAX, item="1", text='\\\\\\"'),
    ],
)
def test_what_takes_long_to_parse_is_large(body):
    assert is_large([body, b"  "])
    assert not is_large([body[: len(body) // 4]])


def test_what_is_in_a_string_is_text():
    for text in ("," * 2 * ITEMS_MAX, '\\",' * (ITEMS_MAX // 2), "[{:" * ITEMS_MAX, "\\\\" * 400):
        assert not is_large([body_of(ITEMS_MAX // 8, text=text)])
        assert is_large([body_of(ITEMS_MAX, text=text)])


@pytest.fixture(scope="module")
def large():
    bodies = LargeBodies(SIZES)
    yield bodies
    bodies.close()


@pytest.fixture(scope="module")
def wide():
    """A server, with its processes, for all tests."""
    return Edge(FakeModel(), ServerSettings())


@pytest.mark.parametrize("name", sorted(set(CASES) - {"a body over the cap", "empty body"}))
def test_a_large_body_is_refused_as_a_small_one(wide, name):
    (path, body), status, _ = CASES[name]
    body = body if isinstance(body, bytes) else body.encode()
    small = wide.request("POST", path, content=body)
    answer = wide.request("POST", path, content=body + SPACE)
    assert (answer.status_code, answer.json()) == (status, small.json())


LEGAL = {
    COMPLETIONS: {"prompt": [[1] * 900] * 100, "max_tokens": 1, "unknown": ["x"] * 1000, "seed": 1},
    CHAT: {"messages": MESSAGES * 100, "max_tokens": 1, "seed": 1},
    "/tokenize": {"messages": MESSAGES * 100, "return_token_strs": True},
    "/detokenize": {"tokens": [65] * 1000},
    "/v1/embeddings": {"input": [[1] * 900] * 100},
    "/v1/messages": {"messages": MESSAGES * 100, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES * 100},
    "/v1/responses": {"input": MESSAGES * 100, "max_output_tokens": 1, "top_p": 0.5, "store": False},
    "/api/chat": {"model": "fake-model", "messages": MESSAGES * 100, "stream": False},
    "/api/generate": {"model": "fake-model", "prompt": "a" * 900, "stream": False},
    "/api/embed": {"model": "fake-model", "input": ["a"] * 90},
    "/api/embeddings": {"model": "fake-model", "prompt": "a" * 900},
    "/api/show": {"model": "fake-model"},
    "/v1/kv/pins": {"name": "a", "tokens": [1] * 900},
    "/v1/sessions": {"ttl": 5.0},
}
OF_CHANCE = {"id", "request_id", "created", "created_at", "completed_at", "total_duration", "load_duration"}
OF_CHANCE |= {"prompt_eval_duration", "eval_duration"}


def told(answer):
    def without_chance(value):
        if isinstance(value, dict):
            return {key: without_chance(item) for key, item in value.items() if key not in OF_CHANCE}
        return [without_chance(item) for item in value] if isinstance(value, list) else value

    return answer.status_code, without_chance(answer.json())


@pytest.mark.parametrize("path", LEGAL)
def test_a_large_body_is_answered_as_a_small_one(wide, path, monkeypatch):
    body = json.dumps(LEGAL[path]).encode()
    answer = told(wide.request("POST", path, content=body + SPACE))
    monkeypatch.setattr("octavo.server.body.is_large", lambda chunks: False)
    assert answer == told(wide.request("POST", path, content=body))
    assert answer[0] < 300


def test_every_route_that_takes_a_body_takes_a_large_one():
    for route in ROUTES:
        if route.body is not None:
            answer = read_body(
                json.dumps({"method": route.method, "path": route.path}).encode() + b"\n{}", SIZES
            )
            assert answer[:1] in (large_bodies.ACCEPTED, large_bodies.REFUSED)


def test_fields_that_the_route_ignores_stay_in_the_process():
    request = b'{"method": "POST", "path": "/v1/completions"}\n{"prompt": [1], "user": 1, "unknown": 2}'
    answer = read_body(request, SIZES)
    assert from_pieces(memoryview(answer)[1:]) == {"prompt": [1]}


def test_what_takes_too_much_memory_is_the_clients_fault(monkeypatch):
    def parse(body):
        raise MemoryError

    monkeypatch.setattr(body_reader, "parse_json", parse)
    answer = read_body(b'{"method": "POST", "path": "/v1/completions"}\n{}', SIZES)
    assert "too much memory" in json.loads(answer[1:])["message"]


def read(bodies, body=b"{}", tenant=""):
    return bodies.read(tenant, "POST", COMPLETIONS, [body])


def test_a_process_that_dies_costs_one_request(large):
    async def both():
        with pytest.raises(InvalidRequest, match="prompt is wrong"):
            await read(large)
        for helper in large._idle:
            os.kill(helper.pid, signal.SIGKILL)
        with pytest.raises(InvalidRequest, match="ended the process that reads it"):
            await read(large)
        while large._idle:  # another one that was killed
            with pytest.raises(InvalidRequest, match="ended the process"):
                await read(large)
        assert await read(large, b'{"prompt": "a"}') == {"prompt": "a"}

    asyncio.run(both())


# A worker that has taken the model's sizes, said that it is ready, and read a request.
READY = """
import os, signal, sys
def read():
    return sys.stdin.buffer.read(int.from_bytes(sys.stdin.buffer.read(4), "big"))
def answer(data):
    sys.stdout.buffer.write(len(data).to_bytes(4, "big") + data)
    sys.stdout.buffer.flush()
read()
answer(b"")
while request := read():
"""


@pytest.fixture
def made(monkeypatch, tmp_path):
    """Large bodies whose worker does this with each request."""
    every = []

    def make(work):
        worker = tmp_path / "worker.py"
        worker.write_text(READY + work)
        monkeypatch.setattr(large_bodies, "_WORKER", worker)
        every.append(LargeBodies(SIZES))
        return every[-1]

    yield make
    for one in every:
        one.close()


def test_bodies_that_end_their_process_do_not_start_others_without_end(made):
    bodies = made("    os.abort()")
    for _ in range(6):
        with pytest.raises(InvalidRequest, match=r"ended the process that reads it \(signal 6\)"):
            asyncio.run(read(bodies))
    with pytest.raises(RequestFailed, match=r"was ended 6 times within a minute.*; try again later"):
        asyncio.run(read(bodies))
    bodies._ended[0] -= 60.0  # a minute later
    with pytest.raises(InvalidRequest, match="ended the process"):
        asyncio.run(read(bodies))


def test_a_process_that_does_not_start_is_not_tried_without_end(made, monkeypatch, tmp_path):
    bodies = made("")
    monkeypatch.setattr(large_bodies, "_WORKER", tmp_path / "nowhere.py")
    for _ in range(6):
        with pytest.raises(RequestFailed, match="did not start"):
            asyncio.run(read(bodies))
    with pytest.raises(RequestFailed, match="try again later"):
        asyncio.run(read(bodies))


@pytest.mark.skipif(not os.path.exists("/proc/self/oom_score_adj"), reason="Linux has it")
def test_the_kernel_ends_the_process_before_the_server(large):
    asyncio.run(read(large, b'{"prompt": "a"}'))
    with open(f"/proc/{large._idle[-1].pid}/oom_score_adj") as file:
        assert int(file.read()) == 1000


def test_a_body_that_takes_too_long_is_refused(large, monkeypatch):
    monkeypatch.setattr(large_bodies, "SECONDS_MAX", 0.0)
    with pytest.raises(InvalidRequest, match=r"took more than 0 s .*; allowed: up to 0 s; send fewer items"):
        asyncio.run(read(large))


def test_a_body_whose_client_has_gone_is_not_parsed(monkeypatch):
    bodies, begun, go = LargeBodies(SIZES), [], threading.Event()

    def slow(request, *_):
        begun.append(request[-1])
        go.wait(10)
        return {}

    monkeypatch.setattr(bodies, "_read", slow)

    async def leave():
        tasks = [asyncio.create_task(read(bodies, name)) for name in (b"1", b"2", b"3", b"4")]
        await until(lambda: len(begun) == large_bodies.HELPERS_MAX)
        tasks[2].cancel()
        await turns(1)
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(leave())
    assert sorted(begun) == [b"1", b"2", b"4"]


ANSWERS_OR_HANGS = """
    if request.endswith(b"hang"):
        signal.pause()
    answer(b"+")
"""


def test_the_process_of_a_body_whose_client_has_gone_is_ended(made, monkeypatch):
    bodies, sent, plain = made(ANSWERS_OR_HANGS), [], HelperProcess.exchange

    def exchange(helper, request, seconds):
        sent.append((helper.pid, request[-1]))
        return plain(helper, request, seconds)

    monkeypatch.setattr(HelperProcess, "exchange", exchange)

    async def leave():
        for _ in range(large_bodies.ENDED_MAX + 1):  # they do not count as ended by a body
            assert await read(bodies) == {}
            task = asyncio.create_task(read(bodies, b"hang"))
            await until(lambda: sent[-1][1] == b"hang")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await until(lambda: not is_alive(sent[-1][0]))
        assert await read(bodies) == {}

    asyncio.run(leave())


def test_a_process_is_kept_when_the_client_goes_while_it_starts(made, monkeypatch):
    bodies, begun, go = made(ANSWERS_OR_HANGS), threading.Event(), threading.Event()
    started = bodies._start_helper()

    def start():
        begun.set()
        assert go.wait(10)
        return started

    monkeypatch.setattr(bodies, "_start_helper", start)

    async def leave():
        task = asyncio.create_task(read(bodies, b"hang"))
        await until(begun.is_set)
        task.cancel()
        await asyncio.wait([task])
        go.set()
        await until(lambda: bodies._idle == [started])
        assert await read(bodies) == {}

    asyncio.run(leave())


def test_the_bodies_that_wait_are_bounded_for_each_tenant(monkeypatch):
    monkeypatch.setattr(large_bodies, "WAITING_MAX", 1)
    bodies, begun, go = LargeBodies(SIZES), [], threading.Event()

    def slow(request, *_):
        begun.append(request[-1])
        return go.wait(10)

    monkeypatch.setattr(bodies, "_read", slow)

    async def fill():
        tasks = [asyncio.create_task(read(bodies, b"a1", "a"))]
        await until(lambda: begun == [b"a1"])
        tasks.append(asyncio.create_task(read(bodies, b"a2", "a")))
        await turns(1)
        with pytest.raises(QueueFull, match="1 large bodies wait to be read; allowed: 1; try again"):
            await read(bodies, tenant="a")
        tasks.append(asyncio.create_task(read(bodies, b"b1", "b")))
        await until(lambda: begun == [b"a1", b"b1"])  # a tenant has one process at a time
        go.set()
        assert all(await asyncio.gather(*tasks))

    asyncio.run(fill())


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": list(range(50_000)), "b": [1.5, -0.0, 1e300, None, True, "ü"] * 9_000, "": 10**400},
        {"a": "ü\n" * PIECE_CHARS_MAX, "b": ["x", "y" * PIECE_CHARS_MAX, "z"], "c": [[], {}]},
        {"a": [[{"b": {"c": [[str(i)] for i in range(20_000)], "d": 1}}, 2], [3]], "e": 4},
        {str(i): {"a": i} for i in range(30_000)},
        {"tools": [{"parameters": {"properties": {"a" * 70_000: True}}}]},
        {"chat_template_kwargs": {"é" * 40_000: 1.5, "b": {"ü" * 40_000: None}}, "c": 1},
    ],
)
def test_pieces_are_the_same_value_and_short(value):
    data = to_pieces(value)
    again = from_pieces(memoryview(data))
    assert json.dumps(again) == json.dumps(value)
    assert data.count(b"+") >= len(data) // 6 // PIECE_CHARS_MAX


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXTS
VALUES = st.recursive(SCALARS, lambda inside: st.lists(inside) | st.dictionaries(TEXTS, inside))


@given(value=st.dictionaries(TEXTS, VALUES), chars_max=st.integers(1, 30))
def test_pieces_of_any_size_are_the_same_value(value, chars_max):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_pieces, "PIECE_CHARS_MAX", chars_max)
        again = from_pieces(memoryview(to_pieces(value)))
    assert json.dumps(again) == json.dumps(value)
