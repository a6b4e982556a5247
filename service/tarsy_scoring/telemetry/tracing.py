"""
How a score joins a distributed trace.

A `traceparent` is read and passed on whether tracing is on or off. `otel.Spans` makes spans; the `Tracing`
here is the no-op that stands in when tracing is off, and imports no OpenTelemetry.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any

from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import ConfigurationError

Answer = Any
"""A judge's turn, `judge.verdict.Turn`, which is of a layer above."""
About = Mapping[str, str | int | float | None]
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


# --- recording spans -----------------------------------------------------------------------------------


class AttemptTrace:
    """
    A span for one attempt.

    Args:
        traceparent: Parent for steps and scoring events; None: the attempt is in no trace.
        names: Fields for every log line about the attempt, also for lines logged elsewhere.
    """

    def __init__(self, traceparent: str | None, names: Mapping[str, str] | None = None) -> None:
        self.traceparent = traceparent
        self.names = names or {}

    def current(self) -> AbstractContextManager[None]:
        """Open a block whose spans and log lines belong to the attempt, which goes on after it."""
        return _NOTHING

    def end(self, outcome: str, error_kind: str | None) -> None:
        """End the attempt with the outcome and error kind that it logs. Called once, from any task."""


class Tracing:
    """No-op tracer, used when tracing is off. The context managers never swallow exceptions."""

    def attempt(self, parent: str | None, source: str, topic: str | None, about: About) -> AttemptTrace:
        """
        Begin the span for an attempt; it lasts until `end`.

        Args:
            parent: The trace in which the request for the score arrived; None: begin a new one.
            source: Request kind.
            topic: Kafka topic that brought the request; None: it came another way.
            about: Identifying attributes.
        """
        return AttemptTrace(parent)

    def step(self, phase: str) -> AbstractContextManager[object]:
        """Open a span for a phase of the current attempt."""
        return _NOTHING

    def chat(
        self, provider: str, settings: ProviderSettings, kind: str
    ) -> AbstractContextManager[Callable[[Answer], None]]:
        """
        Open a span for a question to a judge, including waits and repeated calls.

        Yields a function that takes the answer.
        """
        return _IGNORING

    def evaluated(self, criteria: str, total_score: int | None, outcome: str | None) -> None:
        """Record the stored score as an event of the current attempt."""

    async def close(self) -> None:
        """Send the remaining spans, for a few seconds at most. The tracer must not be used afterwards."""


def _ignore(_: Answer) -> None:
    pass


_NOTHING = nullcontext()
_IGNORING = nullcontext(_ignore)
OFF = Tracing()


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
