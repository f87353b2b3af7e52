"""Opens the tracer of an endpoint. The only importer of otel.py, and so of OpenTelemetry."""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.server.traces import Tracing, traces_url


def open_tracing(endpoint: str | None, model_name: str) -> Tracing | None:
    """The tracer for that endpoint, or None without one. Raises ConfigError."""
    if endpoint is None:
        return None
    check_tracing(endpoint)
    from octavo.server.otel import OtelTracing

    return OtelTracing(traces_url(endpoint), model_name)


def check_tracing(endpoint: str | None) -> None:
    """Raise ConfigError for an invalid endpoint, or if the packages of `octavo[otel]` are missing."""
    if endpoint is None:
        return
    traces_url(endpoint)
    try:
        import octavo.server.otel  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            f"--otel-endpoint is given, and {error.name or error} is not installed; allowed with it: "
            "pip install 'octavo[otel]'"
        ) from None
