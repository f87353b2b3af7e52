"""Whether requests are traced: the one door to otel.py, and so to OpenTelemetry, which is imported only where
an endpoint is set."""

from __future__ import annotations

from octavo.errors import ConfigError
from octavo.server.traces import Tracing, traces_url


def open_tracing(endpoint: str | None, model_name: str) -> Tracing | None:
    """What takes traces for that endpoint; None: there is none. Raises ConfigError."""
    if endpoint is None:
        return None
    check_tracing(endpoint)
    from octavo.server.otel import OtelTracing

    return OtelTracing(traces_url(endpoint), model_name)


def check_tracing(endpoint: str | None) -> None:
    """Raise ConfigError for an endpoint that is none, or without the packages of the extra `octavo[otel]`."""
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
