"""
Spans along the path of a score, exported over OTLP in the background: no work waits for a collector.

Only this module imports `opentelemetry`. Names follow its conventions for messaging and generative AI; others
begin with `tarsy_scoring.`. An error is recorded by type alone: the message may quote a transcript or a
key.

Source: OpenTelemetry semantic conventions 1.44, messaging spans; semantic-conventions-genai, spans and
events.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import NoOpTracerProvider, Span, SpanKind, StatusCode, TracerProvider
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tarsy_scoring import __version__
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import ConfigurationError, LeaseLost
from tarsy_scoring.telemetry.tracing import TRACEPARENT, wants_traces

log = structlog.get_logger()

FLUSH_S = 5.0
# Outcomes with an `error_kind` that is a fault. A cancelled score has one as well, because a caller decided so.
_FAILURES = ("failed", "timed_out", "put_back")
# How a step ends without a fault: a cancelled task, or a score that another worker has taken.
_CALLED_OFF = (asyncio.CancelledError, LeaseLost)
_W3C = TraceContextTextMapPropagator()
# The header itself, or the CloudEvents extension in binary mode.
_MESSAGE_HEADERS = (TRACEPARENT, "ce_traceparent")
Turn = Any  # `judge.verdict.Turn`, which is of a layer above
Attributes = Mapping[str, str | int | float | bool | list[str] | None]


def read_traceparent(values: Sequence[str]) -> str | None:
    """The trace in `traceparent` headers, as version 00 of 55 characters; None: no valid trace, or several."""
    carrier: dict[str, str] = {}
    if len(values) == 1:
        _W3C.inject(carrier, _W3C.extract({TRACEPARENT: values[0]}, Context()))
    return carrier.get(TRACEPARENT)


def traceparent_of(headers: Sequence[tuple[str, bytes]]) -> str | None:
    """Read the trace in Kafka headers; None: no valid trace, or several."""
    for name in _MESSAGE_HEADERS:
        if values := [value.decode("ascii", "replace") for header, value in headers if header == name]:
            return read_traceparent(values)
    return None


class AttemptTrace:
    """
    The span of one attempt.

    Attributes:
        traceparent: Parent for steps and scoring events; None: the attempt is in no trace.
        names: Fields for every log line about the attempt, also for lines logged elsewhere.
    """

    def __init__(self, span: Span) -> None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        context = span.get_span_context()
        self.traceparent = carrier.get(TRACEPARENT)
        self.names = {"trace_id": trace.format_trace_id(context.trace_id)} if context.is_valid else {}
        self._span = span

    @contextmanager
    def current(self) -> Iterator[None]:
        """Open a block whose spans and log lines belong to the attempt, which goes on after it."""
        with (
            trace.use_span(self._span, record_exception=False, set_status_on_exception=False),
            structlog.contextvars.bound_contextvars(**self.names),
        ):
            yield

    def end(self, outcome: str, error_kind: str | None) -> None:
        """End the attempt with the outcome and error kind that it logs. Called once, from any task."""
        self._span.set_attribute("tarsy_scoring.outcome", outcome)
        if error_kind is not None and outcome in _FAILURES:
            _fail(self._span, error_kind)
        self._span.end()


class Tracing:
    """
    Tracer shared by all attempts: the current span is kept per task.

    Args:
        provider: Owned, and shut down by `close`.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("tarsy_scoring", __version__)
        # A provider of the SDK has it, the no-op has not.
        self._shut_down: Callable[[], None] | None = getattr(provider, "shutdown", None)

    def attempt(self, parent: str | None, source: str, topic: str | None, about: Attributes) -> AttemptTrace:
        """
        Begin the span for an attempt, a child of the producer's span; it lasts until `end`.

        Args:
            parent: The trace in which the request for the score arrived; None: begin a new one.
            source: Request kind.
            topic: Kafka topic that brought the request; None: it came another way.
            about: Identifying attributes.
        """
        # A child rather than a link: each attempt handles one message, and one trace shows all of it.
        attributes = {f"tarsy_scoring.{name}": value for name, value in about.items()}
        if topic is not None:
            attributes |= {
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": topic,
            }
        name = f"process {topic or source}"
        # `Context()` begins a new trace, whatever span is current.
        context = _W3C.extract({TRACEPARENT: parent} if parent else {}, Context())
        return AttemptTrace(self._tracer.start_span(name, context, SpanKind.CONSUMER, _known(attributes)))

    @contextmanager
    def step(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Iterator[Span]:
        """Open a span within the current attempt, such as for a phase."""
        known = _known(attributes or {})
        with self._tracer.start_as_current_span(
            name, None, kind, known, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                if not isinstance(error, _CALLED_OFF):
                    _fail(span, type(error).__name__)
                raise

    @contextmanager
    def chat(self, provider: str, settings: ProviderSettings, kind: str) -> Iterator[Callable[[Turn], None]]:
        """
        Open a span for a question to a judge, including waits and repeated calls.

        Yields a function that takes the answer.
        """
        place = urlsplit(settings.base_url)
        attributes = {
            "gen_ai.operation.name": "chat",
            # All endpoints speak OpenAI's protocol. `server.address` tells the servers behind it apart.
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": settings.model,
            "gen_ai.request.temperature": settings.temperature,
            "server.address": place.hostname,
            "server.port": place.port or (443 if place.scheme == "https" else 80),
            "tarsy_scoring.provider": provider,
            "tarsy_scoring.turn": kind,
        }
        with self.step(f"chat {settings.model}", SpanKind.CLIENT, attributes) as span:
            yield lambda turn: span.set_attributes(_known(_answer_attributes(turn)))

    def evaluated(self, criteria: str, total_score: int | None, outcome: str | None) -> None:
        """Record the stored score as an event of the current attempt."""
        # A span event, no log record, so that no second pipeline is needed.
        trace.get_current_span().add_event(
            "gen_ai.evaluation.result",
            _known(
                {
                    "gen_ai.evaluation.name": criteria,
                    "gen_ai.evaluation.score.value": None if total_score is None else float(total_score),
                    "gen_ai.evaluation.score.label": outcome,
                }
            ),
        )

    async def close(self) -> None:
        """Send the remaining spans, for a few seconds at most. The tracer must not be used afterwards."""
        if self._shut_down is None:
            return
        # A daemon thread: the exporter may hang on a dead connection, and the process must still end.
        flushing = threading.Thread(target=self._shut_down, name="traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_S)
        if flushing.is_alive():
            log.warning("traces.not_flushed", timeout_s=FLUSH_S, effect="the last spans are missing")


OFF = Tracing(NoOpTracerProvider())
"""Records nothing. A `traceparent` is still passed on."""


def open_tracing(environ: Mapping[str, str]) -> Tracing:
    """
    Create the tracer that exports spans as `OTEL_*` configures, which OpenTelemetry's SDK reads; `OFF` if
    no traces are wanted.

    Raises:
        ConfigurationError: The SDK is not installed, or refuses a variable.
    """
    if not wants_traces(environ):
        return OFF
    # From the extra `tracing`.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk import resources
    from opentelemetry.sdk.trace import TracerProvider as ExportingProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    for name in ("opentelemetry", "urllib3"):  # the SDK sends with urllib3, which nothing else here uses
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers = [_WarningHandler(logging.WARNING)]
    ours = resources.Resource.create({"service.name": "tarsy-scoring", "service.version": __version__})
    try:
        resource = ours.merge(resources.OTELResourceDetector().detect())
        provider = ExportingProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except (ValueError, OSError, RuntimeError) as error:
        # The message may quote a variable.
        raise ConfigurationError(
            f"traces cannot be exported: OpenTelemetry refuses a variable OTEL_* ({type(error).__name__})"
        ) from None
    return Tracing(provider)


def _answer_attributes(call: Turn) -> Attributes:
    return {
        "gen_ai.response.model": call.model_served,
        "gen_ai.response.finish_reasons": None if call.finish_reason is None else [call.finish_reason],
        "gen_ai.usage.input_tokens": call.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": call.cached_input_tokens,
        "gen_ai.usage.output_tokens": call.output_tokens,
        "tarsy_scoring.call_duration_s": call.latency_ms / 1000,
    }


def _known(attributes: Attributes) -> dict[str, str | int | float | bool | list[str]]:
    """The attributes without those that are None."""
    return {name: value for name, value in attributes.items() if value is not None}


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(StatusCode.ERROR)


# --- warnings of the SDK -------------------------------------------------------------------------------


class _WarningHandler(logging.Handler):
    """
    Turns the SDK's warnings into log lines of this service.

    Shows the warning template alone: arguments quote variables, addresses and the collector's answer,
    which may hold a key.
    """

    def emit(self, record: logging.LogRecord) -> None:
        # Without arguments, a text was put together before and may quote them.
        log.warning("traces.impaired", reason=record.msg if record.args else "see the collector")
