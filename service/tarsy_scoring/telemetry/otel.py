"""
Sends OpenTelemetry spans over OTLP in the background: no work waits for a collector.

Only this module imports `opentelemetry`. Names follow its conventions for messaging and generative AI; others
begin with `tarsy_scoring.`. An error is recorded by type alone: the message may quote a transcript or a
key.

Source: OpenTelemetry semantic conventions 1.44, messaging spans; semantic-conventions-genai, spans and
events.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import urlsplit

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from tarsy_scoring import __version__
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import ConfigurationError, LeaseLost
from tarsy_scoring.telemetry.tracing import TRACEPARENT, About, Answer, AttemptTrace, Tracing

log = structlog.get_logger()

FLUSH_S = 5.0
WARN_EVERY_S = 60.0
# Outcomes with an `error_kind` that is a fault. A cancelled score has one as well, because a caller decided so.
_FAILURES = ("failed", "timed_out", "put_back")
# How a step ends without a fault: a cancelled task, or a score that another worker has taken.
_CALLED_OFF = (asyncio.CancelledError, LeaseLost)
_W3C = TraceContextTextMapPropagator()
Attributes = Mapping[str, str | int | float | bool | list[str] | None]


def open_spans() -> "Spans":
    """
    Create the tracer that exports spans as `OTEL_*` configures, which OpenTelemetry's SDK reads.

    Raises:
        ConfigurationError: The SDK refuses a variable.
    """
    _log_sdk_warnings()
    ours = Resource.create({"service.name": "tarsy-scoring", "service.version": __version__})
    try:
        provider = TracerProvider(
            resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False
        )
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except (ValueError, OSError, RuntimeError) as error:
        # The message may quote a variable.
        raise ConfigurationError(
            f"traces cannot be exported: OpenTelemetry refuses a variable OTEL_* ({type(error).__name__})"
        ) from None
    return Spans(provider)


class Spans(Tracing):
    """
    Tracer shared by all attempts: the current span is kept per task.

    Args:
        provider: Owned, and shut down by `close`.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tarsy_scoring", __version__)

    def attempt(self, parent: str | None, source: str, topic: str | None, about: About) -> AttemptTrace:
        """
        See `Tracing`. The span is a child under the producer's span, also in another worker.
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
        return _Attempt(self._tracer.start_span(name, context, SpanKind.CONSUMER, _known(attributes)))

    def step(self, phase: str) -> AbstractContextManager[object]:
        return self._span(phase)

    @contextmanager
    def chat(
        self, provider: str, settings: ProviderSettings, kind: str
    ) -> Iterator[Callable[[Answer], None]]:
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
        with self._span(f"chat {settings.model}", SpanKind.CLIENT, attributes) as span:
            yield lambda call: span.set_attributes(_known(_answer_attributes(call)))

    def evaluated(self, criteria: str, total_score: int | None, outcome: str | None) -> None:
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
        # A daemon thread: the exporter may hang on a dead connection, and the process must still end.
        flushing = threading.Thread(target=self._provider.shutdown, name="traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, FLUSH_S)
        if flushing.is_alive():
            log.warning("traces.not_flushed", timeout_s=FLUSH_S, effect="the last spans are missing")

    @contextmanager
    def _span(
        self, name: str, kind: SpanKind = SpanKind.INTERNAL, attributes: Attributes | None = None
    ) -> Iterator[Span]:
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


class _Attempt(AttemptTrace):
    def __init__(self, span: Span) -> None:
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, trace.set_span_in_context(span, Context()))
        trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        super().__init__(carrier[TRACEPARENT], {"trace_id": trace_id})
        self._span = span

    @contextmanager
    def current(self) -> Iterator[None]:
        with (
            trace.use_span(self._span, record_exception=False, set_status_on_exception=False),
            structlog.contextvars.bound_contextvars(**self.names),
        ):
            yield

    def end(self, outcome: str, error_kind: str | None) -> None:
        self._span.set_attribute("tarsy_scoring.outcome", outcome)
        if error_kind is not None and outcome in _FAILURES:
            _fail(self._span, error_kind)
        self._span.end()


def _answer_attributes(call: Answer) -> Attributes:
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
    span.set_status(Status(StatusCode.ERROR))


# --- warnings of the SDK -------------------------------------------------------------------------------


class _WarningHandler(logging.Handler):
    """
    Turns the SDK's warnings into log lines of this service, at most one a minute.

    Shows the warning template alone: arguments quote variables, addresses and the collector's answer,
    which may hold a key.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._next_s = float("-inf")

    def emit(self, record: logging.LogRecord) -> None:
        if (now_s := time.monotonic()) >= self._next_s:
            self._next_s = now_s + WARN_EVERY_S
            # Without arguments, a text was put together before and may quote them.
            log.warning("traces.impaired", reason=record.msg if record.args else "see the collector")


def _log_sdk_warnings() -> None:
    handler = _WarningHandler()
    for name in ("opentelemetry", "urllib3"):  # the SDK sends with urllib3, which nothing else here uses
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers = [handler]
