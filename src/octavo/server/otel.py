"""OpenTelemetry traces: spans of requests, sent to an OTLP collector over HTTP.

The only module that imports OpenTelemetry (the extra `octavo[otel]`). A request's own span begins with the
request; its child spans are made at its end from times that are measured anyway, so tokens cost nothing. A
full queue drops spans. A separate thread waits for a slow collector; requests do not.

Attributes follow OpenTelemetry's conventions for HTTP servers and generative AI; `octavo.*` are our own. The
conventions' attributes for prompts and answers are never set. The SDK's environment variables
(OTEL_EXPORTER_OTLP_HEADERS, OTEL_TRACES_SAMPLER, OTEL_RESOURCE_ATTRIBUTES) apply.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable
from typing import Final

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from octavo import __version__
from octavo.server.traces import ChoiceTimes, RequestEnd
from octavo.types import Phases

_QUEUE_MAX = 4096  # spans that wait to be sent; more are dropped
_BATCH_MAX = 512
_DELAY_MS = 1000
_EXPORT_TIMEOUT_S = 10
_CLOSE_S = 3.0
_CHOICES_MAX = 32  # choices of a request that get spans
_CONTEXT_HEADERS = frozenset({"traceparent", "tracestate"})
_OPERATIONS: Final = (  # by a route's prefix; the first match counts
    ("/v1/embeddings", "embeddings"),
    ("/api/embed", "embeddings"),
    ("/v1/completions", "text_completion"),
    ("/api/generate", "text_completion"),
)

Attributes = dict[str, AttributeValue]


class OtelTracing:
    """The tracer of one server, with a sending thread."""

    def __init__(self, url: str, model_name: str) -> None:
        resource = Resource.create({"service.name": "octavo", "service.version": __version__})
        self._model_name = model_name
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(
            BatchSpanProcessor(
                OTLPSpanExporter(endpoint=url, timeout=_EXPORT_TIMEOUT_S),
                max_queue_size=_QUEUE_MAX,
                schedule_delay_millis=_DELAY_MS,
                max_export_batch_size=_BATCH_MAX,
            )
        )
        self._tracer = self._provider.get_tracer("octavo", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def begin(self, headers: Iterable[tuple[bytes, bytes]]) -> OtelTrace:
        """Begin the span of a request; the caller's `traceparent` is its parent."""
        carrier = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in headers
            if name.decode("latin-1").lower() in _CONTEXT_HEADERS
        }
        parent = self._propagator.extract(carrier, Context())
        return OtelTrace(self._tracer, parent, self._model_name)

    async def close(self) -> None:
        """Flush for up to `_CLOSE_S`. The thread is a daemon, in case the collector hangs."""
        thread = threading.Thread(target=self._provider.shutdown, name="octavo-otel-close", daemon=True)
        thread.start()
        deadline = time.monotonic() + _CLOSE_S
        while thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(0.02)


class OtelTrace:
    """The span of one request, and at its end its child spans."""

    def __init__(self, tracer: api.Tracer, parent: Context, model_name: str) -> None:
        self._tracer = tracer
        self._model_name = model_name
        # Converts times of `perf_counter` to epoch time.
        self._epoch_ns = time.time_ns() - time.perf_counter_ns()
        self._span = tracer.start_span("request", parent, api.SpanKind.SERVER, start_time=time.time_ns())
        self._context = self._span.get_span_context()

    @property
    def header(self) -> str:
        """Trace, span and flags in the format of `traceresponse` and `traceparent`."""
        flags = int(self._context.trace_flags)
        return f"00-{self.trace_id}-{api.format_span_id(self._context.span_id)}-{flags:02x}"

    @property
    def trace_id(self) -> str:
        """The trace id as 32 hexadecimal digits."""
        return str(api.format_trace_id(self._context.trace_id))

    def end(self, request: RequestEnd) -> None:
        """Set the span's attributes, make its child spans, and queue all of them for sending."""
        if not self._span.is_recording():
            return
        operation = _operation_of(request.route)
        self._span.update_name(f"{operation} {self._model_name}")
        self._span.set_attributes(self._attributes(request, operation))
        if request.status >= 500:
            self._span.set_status(api.StatusCode.ERROR)
            self._span.set_attribute("error.type", str(request.status))
        own = api.set_span_in_context(self._span, Context())
        for choice in request.choices[:_CHOICES_MAX]:
            is_first = choice.index % max(1, request.num_choices) == 0
            phases = None if choice.usage is None else choice.usage.phases
            if is_first and phases is not None:
                self._add_prompt_spans(own, choice, phases)
            self._add_decode_span(own, choice)
        self._span.end(self._at(time.perf_counter()))

    def _attributes(self, request: RequestEnd, operation: str) -> Attributes:
        usages = [choice.usage for choice in request.choices if choice.usage is not None]
        prompts = [
            choice.usage
            for choice in request.choices
            if choice.usage is not None and choice.index % max(1, request.num_choices) == 0
        ]
        found: Attributes = {
            "gen_ai.operation.name": operation,
            "gen_ai.provider.name": "octavo",
            "gen_ai.request.model": self._model_name,
            "gen_ai.response.model": self._model_name,
            "gen_ai.usage.input_tokens": sum(usage.num_prompt for usage in prompts),
            "gen_ai.usage.output_tokens": sum(usage.num_output for usage in usages),
            "gen_ai.usage.cache_read.input_tokens": sum(usage.num_cached for usage in prompts),
            "gen_ai.response.finish_reasons": [
                choice.finish.value for choice in request.choices if choice.finish is not None
            ],
            "http.request.method": "POST",
            "http.route": request.route,
            "http.response.status_code": request.status,
            "octavo.preemptions": sum(usage.preemptions for usage in usages),
        }
        return found | _sampling_attributes(request)

    def _add_prompt_spans(self, own: Context, choice: ChoiceTimes, phases: Phases) -> None:
        """Queue, transfer from the offload tier, and prefill, as far as the request got."""
        what: Attributes = {"octavo.choice": choice.index}
        if phases.admitted is not None:
            self._add(own, "queue", phases.arrived, phases.admitted, what)
        if phases.loading_begun is not None and phases.loaded is not None:
            self._add(own, "transfer", phases.loading_begun, phases.loaded, what)
        if phases.admitted is not None and phases.first_token is not None and choice.usage is not None:
            what |= {
                "gen_ai.usage.input_tokens": choice.usage.num_prompt,
                "gen_ai.usage.cache_read.input_tokens": choice.usage.num_cached,
            }
            self._add(own, "prefill", phases.admitted, phases.first_token, what)

    def _add_decode_span(self, own: Context, choice: ChoiceTimes) -> None:
        """Add a span from the first token to the last."""
        if choice.first_token is None or choice.last_token is None or choice.usage is None:
            return
        what: Attributes = {
            "octavo.choice": choice.index,
            "gen_ai.usage.output_tokens": choice.usage.num_output,
            "octavo.preemptions": choice.usage.preemptions,
        }
        if choice.finish is not None:
            what["gen_ai.response.finish_reasons"] = [choice.finish.value]
        self._add(own, "decode", choice.first_token, choice.last_token, what)

    def _add(self, own: Context, name: str, started: float, ended: float, what: Attributes) -> None:
        span = self._tracer.start_span(name, own, attributes=what, start_time=self._at(started))
        span.end(self._at(ended))

    def _at(self, seconds: float) -> int:
        """A time of `time.perf_counter` as nanoseconds since the epoch."""
        return self._epoch_ns + int(seconds * 1e9)


def _operation_of(route: str) -> str:
    """The conventions' name of the operation."""
    return next((name for begin, name in _OPERATIONS if route.startswith(begin)), "chat")


def _sampling_attributes(request: RequestEnd) -> Attributes:
    """The sampling parameters that the client requested."""
    params = request.params
    if params is None:
        return {}
    given: dict[str, float | None] = {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": request.num_choices if request.num_choices > 1 else None,
    }
    return {name: value for name, value in given.items() if value is not None}
