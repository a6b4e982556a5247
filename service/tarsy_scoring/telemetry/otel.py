"""
What is told becomes spans of OpenTelemetry, sent by OTLP beside the work: nothing waits for a collector.

The only importer of `opentelemetry`. Names are those of its conventions for messaging and for generative AI; what they
have no name for begins with `tarsy_scoring.`. An error is told by its type alone: its message may say too much.

Source: OpenTelemetry semantic conventions 1.44, messaging spans; semantic-conventions-genai, spans and events.
"""

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

import structlog
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from tarsy_scoring import __version__
from tarsy_scoring.config.settings import ProviderSettings
from tarsy_scoring.errors import ConfigurationError, LeaseLost
from tarsy_scoring.judge.verdict import Turn
from tarsy_scoring.telemetry.tracing import About, AttemptTrace, Tracing

log = structlog.get_logger()

FLUSH_S = 5.0
COMPLAIN_EVERY_S = 60.0
LONGEST_COMPLAINT = 200
# Outcomes of an attempt in which its `error_kind` is what went wrong, and not what somebody decided.
_FAILURES = ("failed", "timed_out", "put_back")
# Nothing went wrong in what was called off, be it for a drain or because somebody else has the score.
_CALLED_OFF = (asyncio.CancelledError, LeaseLost)
# Every endpoint here speaks OpenAI's protocol; who is behind it the address tells, as the conventions have it.
_PROTOCOL = "openai"

Attributes = Mapping[str, str | int | float | bool | list[str] | None]


def open_spans() -> "Spans":
    """
    Spans to where the environment says (`OTEL_*`, as OpenTelemetry's SDK reads them).

    Raises:
        ConfigurationError: A variable says something that cannot be.
    """
    _complain_seldom()
    ours = Resource.create({"service.name": "tarsy-scoring", "service.version": __version__})
    try:
        provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except (ValueError, OSError, RuntimeError) as error:
        # Its message may quote what a variable holds.
        given = ", ".join(sorted(name for name, value in os.environ.items() if name.startswith("OTEL_") and value))
        raise ConfigurationError(
            f"traces cannot be exported: OpenTelemetry refuses a variable ({type(error).__name__}); look at {given}"
        ) from None
    return Spans(provider)


class Spans(Tracing):
    """
    Spans of this process. One for all attempts: what is current is kept per task.

    Args:
        provider: Ours from now on.
    """

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("tarsy_scoring", __version__)
        self._open: set[Span] = set()

    def attempt(self, parent: str | None, source: str, topic: str | None, about: About) -> AttemptTrace:
        """
        See `Tracing`.

        A child of what the producer did, and not only linked to it: each attempt is about one message, and one trace
        shows all of it. An attempt minutes later, elsewhere, is a child as well.
        """
        attributes = {f"tarsy_scoring.{name}": value for name, value in about.items()}
        if topic is not None:
            attributes |= {
                "messaging.system": "kafka",
                "messaging.operation.type": "process",
                "messaging.operation.name": "process",
                "messaging.destination.name": topic,
            }
        name = f"process {topic or source}"
        span = self._tracer.start_span(name, _context(parent), SpanKind.CONSUMER, _known(attributes))
        self._open.add(span)
        return _Attempt(span, self._open.discard)

    @contextmanager
    def step(self, phase: str) -> Iterator[None]:
        with self._span(phase):
            yield

    @contextmanager
    def chat(self, provider: str, settings: ProviderSettings, kind: str) -> Iterator[Callable[[Turn], None]]:
        place = urlsplit(settings.base_url)
        attributes = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": _PROTOCOL,
            "gen_ai.request.model": settings.model,
            "gen_ai.request.temperature": settings.temperature,
            "server.address": place.hostname,
            "server.port": place.port or (443 if place.scheme == "https" else 80),
            "tarsy_scoring.provider": provider,
            "tarsy_scoring.turn": kind,
        }
        with self._span(f"chat {settings.model}", SpanKind.CLIENT, attributes) as span:
            yield lambda turn: span.set_attributes(_known(_answered(turn)))

    def evaluated(self, criteria: str, total_score: int | None, outcome: str | None) -> None:
        # An event of the span and not of the logs: whoever takes spans has it, without a second pipeline.
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
        loop, flushed = asyncio.get_running_loop(), asyncio.Event()
        while self._open:
            self._open.pop().end()

        def flush() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(flushed.set)

        # A thread that the end of the process does not wait for: the exporter may sit on a dead connection.
        threading.Thread(target=flush, name="traces", daemon=True).start()
        try:
            async with asyncio.timeout(FLUSH_S):
                await flushed.wait()
        except TimeoutError:
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
    def __init__(self, span: Span, forget: Callable[[Span], None]) -> None:
        known = span.get_span_context()
        trace_id = trace.format_trace_id(known.trace_id)
        place = f"00-{trace_id}-{trace.format_span_id(known.span_id)}-{known.trace_flags:02x}"
        super().__init__(place, {"trace_id": trace_id})
        self._span = span
        self._forget = forget

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
        self._forget(self._span)


def _context(traceparent: str | None) -> Context:
    """Where a span belongs that is a child of this one; without it nowhere, whatever is current."""
    if traceparent is None:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(NonRecordingSpan(parent), Context())


def _answered(turn: Turn) -> Attributes:
    return {
        "gen_ai.response.model": turn.model_served,
        "gen_ai.response.finish_reasons": None if turn.finish_reason is None else [turn.finish_reason],
        "gen_ai.usage.input_tokens": turn.input_tokens,
        "gen_ai.usage.cache_read.input_tokens": turn.cached_input_tokens,
        "gen_ai.usage.output_tokens": turn.output_tokens,
        "tarsy_scoring.call_duration_s": turn.latency_ms / 1000,
    }


def _known(attributes: Attributes) -> dict[str, str | int | float | bool | list[str]]:
    return {name: value for name, value in attributes.items() if value is not None}


def _fail(span: Span, kind: str) -> None:
    span.set_attribute("error.type", kind)
    span.set_status(Status(StatusCode.ERROR))


# --- what the exporter says ----------------------------------------------------------------------------


class _Seldom(logging.Handler):
    """The SDK's complaints as lines of ours, one a minute: it complains of every batch that cannot be sent."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(logging.WARNING)
        self._clock = clock
        self._next = float("-inf")
        self._left_out = 0

    def emit(self, record: logging.LogRecord) -> None:
        now = self._clock()
        if now < self._next:
            self._left_out += 1
            return
        self._next = now + COMPLAIN_EVERY_S
        left_out, self._left_out = self._left_out, 0
        log.warning("traces.impaired", reason=_complaint(record)[:LONGEST_COMPLAINT], left_out=left_out)


def _complaint(record: logging.LogRecord) -> str:
    """
    What a record says, of its arguments only numbers and the types of errors.

    Texts among them quote variables and the collector's answer, errors quote addresses: any of that may hold a key.
    """
    text = record.msg if isinstance(record.msg, str) else type(record.msg).__name__
    if isinstance(record.args, tuple) and record.args:
        with contextlib.suppress(TypeError, ValueError):  # they do not fit; the template says enough
            text = text % tuple(_harmless(argument) for argument in record.args)
    return f"{text} ({record.exc_info[0].__name__})" if record.exc_info and record.exc_info[0] else text


def _harmless(argument: object) -> object:
    if argument is None or isinstance(argument, int | float):
        return argument
    return type(argument).__name__ if isinstance(argument, BaseException) else "***"


def _complain_seldom() -> None:
    seldom = _Seldom()
    for name in ("opentelemetry", "urllib3"):  # the latter is what it sends with, and of nobody else's use here
        logger = logging.getLogger(name)
        logger.propagate = False
        logger.handlers = [seldom]
