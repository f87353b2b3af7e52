"""The load generator measures what it says, and hides no error: against the real server, and broken ones."""

import asyncio
import json
import threading

import httpx2
import pytest
from tests.doubles.fake_model import FakeModel
from tests.waiting import LIMIT_S, turns

from octavo.bench.endpoint import Answer, Client, Endpoint
from octavo.bench.load import Arrival, apply, is_good, play, scripts_of
from octavo.bench.load_processes import parts_of
from octavo.bench.traces import TraceRequest, TrafficTrace, read_trace
from octavo.bench.workloads import LoadOptions, LoadProfile, WorkloadTargets
from octavo.cli.bench_serve import notes_of, requests_for, run
from octavo.errors import ConfigError, QueueFull, RequestFailed
from octavo.server.run import base_url, bind, build_server
from octavo.server.settings import ServerSettings
from octavo.sse_reader import events

LAX = WorkloadTargets(60_000, 60_000)
UNFINISHED = {"choices": [{"text": "a", "finish_reason": None}]}


@pytest.fixture(scope="module")
def served():
    """A real server over a fake model, in a thread: its URL and its model."""
    listener = bind("127.0.0.1", 0)
    ready = threading.Event()
    model = FakeModel("x" * 50)
    server = build_server(model, ServerSettings(drain_timeout_s=1), lambda _: ready.set())
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])))
    thread.start()
    assert ready.wait(LIMIT_S)
    yield f"{base_url(listener)}/v1", model
    server.should_exit = True
    thread.join(10)
    assert not thread.is_alive()


def loaded(url, load, count, arrival, targets=LAX, transport=None):
    async def go():
        async with Client(Endpoint(url, "any" if transport else "", timeout_s=10), transport) as client:
            return await apply(client, load, count, arrival, targets)

    return asyncio.run(go())


def played(url, trace, load, transport=None):
    async def go():
        async with Client(Endpoint(url, "any" if transport else "", timeout_s=10), transport) as client:
            return await play(client, trace, load, LAX)

    return asyncio.run(go())


def broken(respond):
    """A report of three requests to an endpoint that answers each with what `respond` returns."""
    transport = httpx2.MockTransport(respond)
    return loaded("http://it/v1", LoadProfile(prompt=4, output=2), 3, Arrival(2), transport=transport)


def stream(*bodies, done=True):
    text = "".join(f"data: {json.dumps(body)}\n\n" for body in bodies)
    return httpx2.Response(200, text=text + ("data: [DONE]\n\n" if done else ""))


@pytest.mark.parametrize("kind, lengths", [("random", {40}), ("shared-prefix", {60})])
def test_token_prompts_reach_the_server_as_they_are(served, kind, lengths):
    url, model = served
    model.submitted.clear()
    load = LoadProfile(kind, prompt=40, output=10, prefix=20, vocab_size=250)
    report = loaded(url, load, 5, Arrival(2))
    assert {len(each.prompt) for each in model.submitted} == lengths
    assert {each.prompt for each in model.submitted} == {turn.tokens for (turn,) in scripts_of(load, 5)}
    assert all(each.params.ignore_eos and each.params.max_tokens == 10 for each in model.submitted)
    assert (report.completed, report.errors, report.output_tokens, report.short) == (5, {}, 50, 0)
    assert report.output_tokens_per_s == pytest.approx(50 / report.seconds)
    assert report.tokens_per_chunk == 1.0
    assert 0 < report.ttft_ms.p50 <= report.e2e_ms.p50 <= report.e2e_ms.p99
    assert report.good == 5


def test_each_turn_of_a_chat_carries_the_answers_before_it(served):
    url, model = served
    model.submitted.clear()
    report = loaded(url, LoadProfile("multi-turn", prompt=3, output=5, turns=3), 6, Arrival(1))
    assert (report.requests, report.completed) == (6, 6)
    first, second, third = (bytes(each.prompt).decode() for each in model.submitted[:3])
    assert second.startswith(first.removesuffix("\n") + "\nassistant:xxxxx\nuser:")
    assert third.startswith(second.removesuffix("\n") + "\nassistant:xxxxx\nuser:")


def test_mixed_lengths_stay_within_a_quarter_and_four_times():
    prompts = [len(turn.tokens) for (turn,) in scripts_of(LoadProfile("mixed", prompt=100, output=100), 300)]
    assert 25 <= min(prompts) < 40
    assert 250 < max(prompts) <= 400


def test_the_same_seed_gives_the_same_requests_and_another_gives_others():
    assert scripts_of(LoadProfile(seed=1), 3) == scripts_of(LoadProfile(seed=1), 3)
    assert scripts_of(LoadProfile(seed=1), 3) != scripts_of(LoadProfile(seed=2), 3)


def test_a_closed_loop_keeps_that_many_in_flight():
    running, most, all_together = 0, 0, asyncio.Barrier(3)

    class Counting(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request):
            nonlocal running, most
            running += 1
            most = max(most, running)
            await all_together.wait()
            await turns(9)  # a fourth that does not wait for the others to end would begin now
            running -= 1
            return stream({"choices": [{"text": "a", "finish_reason": "length"}]})

    loaded("http://it/v1", LoadProfile(prompt=2, output=1), 9, Arrival(3), transport=Counting())
    assert most == 3


def test_poisson_arrivals_wait_for_no_answer():
    waiting = []

    class Held(httpx2.AsyncBaseTransport):
        """Nobody is answered before all have arrived: a closed loop would wait for ever."""

        async def handle_async_request(self, request):
            waiting.append(asyncio.Event())
            if len(waiting) == 4:
                for each in waiting:
                    each.set()
            await waiting[-1].wait()
            return stream({"choices": [{"text": "a", "finish_reason": "length"}]})

    report = loaded(
        "http://it/v1", LoadProfile(prompt=2, output=1), 4, Arrival(rate_per_s=500), transport=Held()
    )
    assert report.completed == 4
    assert report.arrival == "500/s"


def test_a_trace_is_played_in_its_order_with_its_lengths_and_blocks(served, tmp_path):
    url, model = served
    model.submitted.clear()
    path = tmp_path / "it.jsonl"
    path.write_text(
        '{"timestamp": 60, "input_length": 520, "output_length": 3, "hash_ids": [1, 3]}\n'
        '{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
        '{"timestamp": 30, "input_length": 9, "output_length": 4}\n'
    )
    report = played(url, read_trace(path), LoadProfile(seed=3, vocab_size=250))
    assert [(len(each.prompt), each.params.max_tokens) for each in model.submitted] == [
        (600, 5),
        (9, 4),
        (520, 3),
    ]
    first, _, last = (each.prompt for each in model.submitted)
    assert first[:512] == last[:512]
    assert first[512:520] != last[512:520]
    assert all(each.params.ignore_eos for each in model.submitted)
    assert (report.workload, report.arrival) == ("it.jsonl", "trace")
    assert (report.requests, report.completed, report.output_tokens, report.short) == (3, 3, 12, 0)
    assert report.seconds >= 0.06


def test_a_trace_waits_for_no_answer():
    waiting = []

    class Held(httpx2.AsyncBaseTransport):
        """No answer before all have arrived."""

        async def handle_async_request(self, request):
            waiting.append(asyncio.Event())
            if len(waiting) == 3:
                for each in waiting:
                    each.set()
            await waiting[-1].wait()
            return stream({"choices": [{"text": "a", "finish_reason": "length"}]})

    trace = TrafficTrace("it", tuple(TraceRequest(at, 2, 1) for at in (0.0, 0.001, 0.001)))
    assert played("http://it/v1", trace, LoadProfile(), Held()).completed == 3


def test_a_request_of_a_trace_that_is_too_long_for_the_server_is_counted(served):
    url, model = served
    trace = TrafficTrace("it", (TraceRequest(0.0, 2, 1), TraceRequest(0.0, model.context_length, 1)))
    report = played(url, trace, LoadProfile(vocab_size=250))
    assert (report.completed, report.errors) == (1, {"HTTP 400": 1})


def test_a_refusing_server_is_reported_with_its_words(served):
    url, model = served
    model.refusal = QueueFull("the queue is full")
    try:
        report = loaded(url, LoadProfile(prompt=4, output=2, vocab_size=250), 3, Arrival(1))
    finally:
        model.refusal = None
    assert report.errors == {"HTTP 429": 3}
    assert "queue is full" in report.error_details["HTTP 429"]
    assert (report.completed, report.output_tokens, report.good) == (0, 0, 0)
    assert "3 x HTTP 429" in notes_of([report])[0]


def test_an_answer_that_fails_in_the_middle_is_an_error(served):
    url, model = served
    model.failure = "its logits were NaN"
    try:
        report = loaded(url, LoadProfile(prompt=4, output=2, vocab_size=250), 2, Arrival(1))
    finally:
        model.failure = ""
    assert report.errors == {"error in the stream": 2}
    assert "NaN" in report.error_details["error in the stream"]


@pytest.mark.parametrize(
    "respond, kind",
    [
        (lambda request: httpx2.Response(500, text="boom"), "HTTP 500"),
        (lambda request: stream(UNFINISHED, done=False), "stream cut off"),
        (lambda request: stream(), "empty answer"),
        (lambda request: httpx2.Response(200, text="data: {oops\n\n"), "not JSON"),
        (lambda request: httpx2.Response(200, text="data: 7\n\n"), "error in the stream"),
    ],
)  # fmt: skip
def test_every_kind_of_failure_is_counted(respond, kind):
    assert broken(respond).errors == {kind: 3}


def test_a_vanished_endpoint_is_counted():
    def vanish(request):
        raise httpx2.ConnectError("nobody there")

    report = broken(vanish)
    assert report.errors == {"ConnectError": 3}
    assert report.error_details == {"ConnectError": "nobody there"}


def test_a_failed_turn_fails_the_turns_that_needed_it():
    def respond(request):
        return httpx2.Response(503)

    load = LoadProfile("multi-turn", prompt=2, output=2, turns=3)
    report = loaded("http://it/v1", load, 3, Arrival(1), transport=httpx2.MockTransport(respond))
    assert report.errors == {"HTTP 503": 1, "not sent: an earlier turn failed": 2}


def test_usage_counts_tokens_where_a_chunk_carries_several():
    report = broken(
        lambda request: stream(
            {"choices": [{"text": "ab", "finish_reason": None}]},
            {"choices": [], "usage": {"completion_tokens": 2}},
        )
    )
    assert report.output_tokens == 6
    assert report.tokens_per_chunk == 2.0
    assert "2.00 tokens" in notes_of([report])[0]


def test_an_answer_is_good_when_both_targets_are_kept():
    answer = Answer(begun=10.0, asked=3, chunks=[10.1, 10.15, 10.3], ended=10.3, tokens=3)
    assert is_good(answer, WorkloadTargets(101, 101))
    assert not is_good(answer, WorkloadTargets(99, 101))
    assert not is_good(answer, WorkloadTargets(101, 99))


def test_events_do_not_depend_on_how_bytes_are_cut():
    data = b": ping\n\ndata: one\n\ndata: two\r\n\r\ndata: [DONE]\n\n"

    async def read(size):
        async def cut():
            for start in range(0, len(data), size):
                yield data[start : start + size]

        return [each async for each in events(cut())]

    assert all(asyncio.run(read(size)) == [b"one", b"two", b"[DONE]"] for size in range(1, len(data)))


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="multi-turn"):
        LoadProfile("sideways")
    with pytest.raises(ConfigError, match="http"):
        Endpoint("127.0.0.1:8000")


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("as_json", [True, False])
def test_the_command_reports_every_run(served, capsys, as_json, processes):
    url, _ = served
    load = LoadProfile(prompt=4, output=2, vocab_size=250)
    run(Endpoint(url), load, (1, 2), LoadOptions(n=3, processes=processes), LAX, as_json=as_json)
    told = capsys.readouterr().out
    if as_json:
        lines = [json.loads(line) for line in told.splitlines()]
        assert [line["arrival"] for line in lines] == ["1 in flight", "2 in flight"]
        assert all(line["completed"] == 3 for line in lines)
    else:
        assert "3 of 3" in told


def test_the_command_fails_when_no_answer_was_complete(served, capsys):
    url, model = served
    model.refusal = QueueFull("the queue is full")
    try:
        with pytest.raises(RequestFailed, match="queue is full"):
            run(
                Endpoint(url),
                LoadProfile(prompt=4, output=2, vocab_size=250),
                (1,),
                LoadOptions(n=2),
                LAX,
                as_json=False,
            )
    finally:
        model.refusal = None
    assert "2 x HTTP 429" in capsys.readouterr().out


def test_several_processes_share_clients_and_rates():
    assert parts_of(Arrival(5), 2) == [Arrival(3), Arrival(2)]
    assert parts_of(Arrival(1), 4) == [Arrival(1)]
    assert parts_of(Arrival(rate_per_s=6.0), 3) == [Arrival(rate_per_s=2.0)] * 3


def test_an_endpoint_without_models_is_explained():
    async def go():
        async with Client(Endpoint("http://it/v1"), httpx2.MockTransport(lambda r: httpx2.Response(404))):
            pass

    with pytest.raises(RequestFailed, match="--model"):
        asyncio.run(go())


def test_default_numbers_of_requests():
    assert [requests_for(Arrival(count)) for count in (1, 8, 32, 100)] == [4, 16, 64, 100]
    assert requests_for(Arrival(rate_per_s=2.0)) == 64
