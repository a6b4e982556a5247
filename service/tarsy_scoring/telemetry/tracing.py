"""Whether traces are wanted; `otel` reads and records them."""

from collections.abc import Mapping
from importlib import import_module

from tarsy_scoring.errors import ConfigurationError

TRACEPARENT = "traceparent"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


def wants_traces(environ: Mapping[str, str]) -> bool:
    """
    Whether to export traces: whether OpenTelemetry's own variables name an endpoint.

    OpenTelemetry's SDK reads and validates other `OTEL_*`, and we log the warnings.

    Raises:
        ConfigurationError: Traces are wanted, and the SDK is not installed, or another exporter is named.
    """
    wanted = any(environ.get(name) for name in _ENDPOINTS)
    exporter = (environ.get("OTEL_TRACES_EXPORTER") or "otlp").strip().lower()
    is_disabled = (environ.get("OTEL_SDK_DISABLED") or "").strip().lower() == "true"
    if not wanted or is_disabled or exporter == "none":
        return False
    if exporter != "otlp":
        raise ConfigurationError("OTEL_TRACES_EXPORTER: only otlp and none are supported")
    try:
        import_module("opentelemetry.exporter.otlp.proto.http")
    except ImportError:
        raise ConfigurationError(
            "traces are wanted, and OpenTelemetry's SDK is not installed; install it: "
            "pip install 'tarsy-scoring[tracing]', or set OTEL_TRACES_EXPORTER=none"
        ) from None
    return True
