"""Reads the trace in which a request arrived, and whether traces are wanted; `otel` records spans."""

import re
from collections.abc import Mapping, Sequence
from importlib import import_module

from tarsy_scoring.errors import ConfigurationError

TRACEPARENT = "traceparent"
# The header itself, or the CloudEvents extension in binary mode.
_MESSAGE_HEADERS = (TRACEPARENT, "ce_traceparent")
_FORM = re.compile(
    r"(?P<version>[0-9a-f]{2})-(?P<ids>[0-9a-f]{32}-[0-9a-f]{16})-(?P<flags>[0-9a-f]{2})(?P<more>-.*)?"
)
_NO_ID = re.compile(r"0{32}-.*|.*-0{16}")
_KNOWN_FLAGS = 0b11  # sampled, and random trace id
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")


# --- reading a trace -----------------------------------------------------------------------------------


def read_traceparent(values: Sequence[str]) -> str | None:
    """
    Read the trace in `traceparent` headers; None: no valid trace, or several.

    Returns:
        The trace as version 00, 55 characters. From a later version only these fields are read.

    Source:
        W3C Trace Context, sections 3.2 and 4.3.
    """
    found = _FORM.fullmatch(values[0]) if len(values) == 1 else None
    if found is None or found["version"] == "ff" or _NO_ID.fullmatch(found["ids"]):
        return None
    if found["version"] == "00" and found["more"] is not None:
        return None
    return f"00-{found['ids']}-{int(found['flags'], 16) & _KNOWN_FLAGS:02x}"


def traceparent_of(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """Read the trace in Kafka headers; None: no valid trace, or several."""
    for name in _MESSAGE_HEADERS:
        if values := [
            (value or b"").decode("ascii", "replace") for header, value in headers if header == name
        ]:
            return read_traceparent(values)
    return None


# --- whether traces are wanted -------------------------------------------------------------------------


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
