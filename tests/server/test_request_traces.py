"""Traces: what a collector is sent, and that nothing is imported, slowed or told where it must not be."""

from __future__ import annotations

import asyncio
import gzip
import queue
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from tests.doubles.fake_model import FakeModel
from tests.engine.served import serve_tiny
from tests.processes import running
from tests.server.conftest import Edge
from tests.waiting import LIMIT_S

from octavo.errors import ConfigError
from octavo.params import SamplerParams
from octavo.server.settings import ServerSettings
from octavo.server.traces import ChoiceTimes, RequestEnd, traces_url
from octavo.types import FinishReason, Phases, Usage

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SECRET = "onceuponasecret"


class Collector:
    """What an OTLP collector receives over HTTP: spans, decoded, and the bytes that they came in."""

    def __init__(self):
        self.spans = queue.Queue()
        self.bodies = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                collector.take(self.path, body)
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def take(self, path, body):
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        assert path == "/v1/traces"
        self.bodies.append(body)
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in of_resource.scope_spans:
                for span in scope.spans:
                    self.spans.put((of_resource.resource, span))

    def trace(self, count):
        """The next so many spans, by name."""
        found = [self.spans.get(timeout=20)[1] for _ in range(count)]
        return sorted(found, key=lambda span: (span.start_time_unix_nano, span.name))


@pytest.fixture(scope="module")
def collector():
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra octavo[otel]")
    made = Collector()
    yield made
    made.server.shutdown()


@pytest.fixture(scope="module")
def tiny(collector):
    served = serve_tiny(rows=16)
    yield Edge(served.llm, ServerSettings(otel_endpoint=collector.url))
    served.llm.close()


def attributes(span):
    def plain(value):
        kind = value.WhichOneof("value")
        return [plain(v) for v in value.array_value.values] if kind == "array_value" else getattr(value, kind)

    return {pair.key: plain(pair.value) for pair in span.attributes}


def named(spans, name):
    [found] = [span for span in spans if span.name == name]
    return found


def test_a_request_is_a_span_below_its_callers_with_its_phases_in_order(tiny, collector):
    before = time.time_ns()
    answer = tiny.complete(
        prompt=SECRET,
        max_tokens=5,
        temperature=0,
        ignore_eos=True,
        stream=True,
    )
    spans = collector.trace(4)
    assert answer.status_code == 200
    whole, queue_, prefill, decode = (
        named(spans, name) for name in ("text_completion tiny", "queue", "prefill", "decode")
    )
    assert {span.parent_span_id for span in (queue_, prefill, decode)} == {whole.span_id}
    assert len({span.trace_id for span in spans}) == 1
    version, trace, span, flags = answer.headers["traceresponse"].split("-")
    assert (version, trace, span) == ("00", whole.trace_id.hex(), whole.span_id.hex())
    assert int(flags, 16) & 1  # it is recorded
    assert whole.parent_span_id == b""
    times = [before, whole.start_time_unix_nano]
    for span in (queue_, prefill, decode):
        times += [span.start_time_unix_nano, span.end_time_unix_nano]
    times += [whole.end_time_unix_nano, time.time_ns()]
    assert times == sorted(times)
    assert queue_.end_time_unix_nano == prefill.start_time_unix_nano
    told = attributes(whole)
    assert told["gen_ai.operation.name"] == "text_completion"
    assert (told["gen_ai.request.model"], told["gen_ai.provider.name"]) == ("tiny", "octavo")
    assert (told["gen_ai.usage.input_tokens"], told["gen_ai.usage.output_tokens"]) == (len(SECRET), 5)
    assert told["gen_ai.response.finish_reasons"] == ["length"]
    assert (told["gen_ai.request.max_tokens"], told["gen_ai.request.temperature"]) == (5, 0.0)
    assert (told["http.route"], told["http.response.status_code"]) == ("/v1/completions", 200)
    assert whole.kind == 2  # server
    assert attributes(decode)["gen_ai.usage.output_tokens"] == 5
    assert not any(SECRET.encode() in body for body in collector.bodies)


def test_the_callers_trace_goes_on(tiny, collector):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}
    answer = tiny.post("/v1/completions", {"prompt": "once", "n": 2, "seed": 3}, headers=headers)
    spans = collector.trace(5)
    whole = named(spans, "text_completion tiny")
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert whole.parent_span_id.hex() == PARENT
    assert whole.trace_state == "vendor=1"
    assert answer.headers["traceresponse"].split("-")[1:3] == [TRACE, whole.span_id.hex()]
    decodes = [attributes(span)["octavo.choice"] for span in spans if span.name == "decode"]
    assert sorted(decodes) == [0, 1]
    assert attributes(whole)["gen_ai.request.choice.count"] == 2


@pytest.mark.parametrize(
    "broken", ["garbage", "00-0-0-01", f"00-{'0' * 32}-{PARENT}-01", f"ff-{TRACE}-{PARENT}-01"]
)
def test_a_broken_context_begins_a_new_trace(tiny, collector, broken):
    answer = tiny.post("/v1/completions", {"prompt": "once"}, headers={"traceparent": broken})
    assert answer.status_code == 200
    whole = named(collector.trace(4), "text_completion tiny")
    assert whole.parent_span_id == b""
    assert whole.trace_id.hex() != TRACE


def test_what_the_caller_does_not_record_is_not_recorded(tiny, collector):
    headers = {"traceparent": f"00-{TRACE}-{PARENT}-00"}
    answer = tiny.post("/v1/completions", {"prompt": "once"}, headers=headers)
    assert answer.headers["traceresponse"].endswith("-00")
    tiny.post("/v1/embeddings", {"input": "once"})
    assert {span.name for span in collector.trace(3)} == {"embeddings tiny", "queue", "prefill"}


def test_a_refusal_is_a_span_with_its_status_and_a_failure_an_error(collector):
    model = FakeModel()
    edge = Edge(model, ServerSettings(otel_endpoint=collector.url))
    edge.chat(n=0)
    [refused] = collector.trace(1)
    assert attributes(refused)["http.response.status_code"] == 400
    assert refused.status.code == 0
    model.failure = "its logits were NaN"
    edge.chat()
    failed = named(collector.trace(2), "chat fake-model")
    assert failed.status.code == 2
    assert attributes(failed)["error.type"] == "500"
    assert attributes(failed)["gen_ai.response.finish_reasons"] == ["error"]


def test_a_transfer_lies_inside_the_queue(collector):
    from octavo.server.otel import OtelTracing

    trace = OtelTracing(traces_url(collector.url), "m").begin([])
    now = time.perf_counter()
    phases = Phases(now, loading_begun=now + 1, loaded=now + 3, admitted=now + 4, first_token=now + 5)
    usage = Usage(8, 3, 4, 0, phases=phases)
    done = ChoiceTimes(0, usage, now + 5, now + 9, FinishReason.STOP)
    trace.end(RequestEnd("/v1/messages", 200, now, SamplerParams(), 1, (done,)))
    spans = collector.trace(5)
    seconds = {s.name: (s.end_time_unix_nano - s.start_time_unix_nano) / 1e9 for s in spans}
    seconds.pop("chat m")
    assert seconds == pytest.approx({"queue": 4, "transfer": 2, "prefill": 1, "decode": 4}, abs=1e-5)
    inner, outer = named(spans, "transfer"), named(spans, "queue")
    assert outer.start_time_unix_nano < inner.start_time_unix_nano
    assert inner.end_time_unix_nano < outer.end_time_unix_nano


def test_a_request_of_a_thousand_choices_has_a_bounded_number_of_spans(collector):
    from octavo.server.otel import OtelTracing

    tracing = OtelTracing(traces_url(collector.url), "m")
    usage = Usage(8, 3, 4, 0, phases=Phases(1.0, admitted=2.0, first_token=3.0))
    choices = tuple(ChoiceTimes(i, usage, 3.0, 4.0, FinishReason.STOP) for i in range(1000))
    tracing.begin([]).end(RequestEnd("/v1/completions", 200, 0.0, None, 1, choices))
    assert len(collector.trace(1 + 32 * 3)) == 97
    asyncio.run(tracing.close())
    assert collector.spans.empty()


@pytest.fixture
def black_hole():
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


SERVE = """
import sys
from octavo.server.run import bind, serve
from octavo.server.settings import ServerSettings
from tests.doubles.fake_model import FakeModel
settings = ServerSettings(otel_endpoint=sys.argv[1], drain_timeout_s=0.1)
serve(FakeModel(), bind("127.0.0.1", 0), settings, lambda url: print(url, flush=True))
"""


def test_a_collector_that_never_answers_delays_no_request_and_little_of_the_end(collector, black_hole):
    import httpx

    with running([sys.executable, "-c", SERVE, black_hole], stderr=subprocess.DEVNULL) as process:
        url = process.stdout.readline().strip()
        body = {"messages": [{"role": "user", "content": "hi"}]}
        with httpx.Client(base_url=url, timeout=9) as client:  # a span that was waited for would take 10
            for _ in range(50):
                assert client.post("/v1/chat/completions", json=body).status_code == 200
        process.terminate()
        assert process.wait(LIMIT_S) == 0


def test_without_an_endpoint_nothing_of_it_is_imported():
    code = (
        "import sys; from octavo.server.app import create_app; "
        "from octavo.server.settings import ServerSettings; "
        "from tests.doubles.fake_model import FakeModel; import octavo.server.run, octavo.cli.main; "
        "create_app(FakeModel(), ServerSettings()); "
        "print([m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'google', 'requests')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert run.stdout.strip() == "[]", run.stderr


def test_without_the_packages_the_extra_is_named(monkeypatch):
    from octavo.server.tracing import check_tracing

    monkeypatch.delitem(sys.modules, "octavo.server.otel", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"opentelemetry is not installed.*pip install 'octavo\[otel\]'"):
        check_tracing("http://127.0.0.1:4318")


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://collector.example/", "https://collector.example/v1/traces"),
        ("http://[::1]:4318/otlp/v1/traces", "http://[::1]:4318/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_has_otlps(endpoint, url):
    assert traces_url(endpoint) == url


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "127.0.0.1:4318",
        "grpc://host:4317",
        "http://",
        "http://host:99999",
        "http://a b",
        "http://h" + "a" * 3000,
    ],
)
def test_an_endpoint_that_is_no_address_is_refused(endpoint):
    with pytest.raises(ConfigError, match="--otel-endpoint is"):
        ServerSettings(otel_endpoint=endpoint)


def test_without_an_endpoint_answers_have_no_trace_header(edge):
    assert "traceresponse" not in edge.chat(stream=True).headers
