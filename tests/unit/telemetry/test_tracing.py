"""Traces: reading a parent, whether they are on, the content of spans, and exporting in the background."""

import asyncio
import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from builders import turn
from tables import table
from tarsy_scoring.config.chains import ProviderSettings
from tarsy_scoring.errors import ConfigurationError, JudgeUnavailable, LeaseLost
from tarsy_scoring.telemetry import otel as spans_module
from tarsy_scoring.telemetry.otel import OFF, Tracing, open_tracing, read_traceparent, traceparent_of
from tarsy_scoring.telemetry.tracing import wants_traces

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", f"00-{TRACE_ID}-{SPAN_ID}-00"


# --- reading a trace -----------------------------------------------------------------------------------------


@table
def test_a_traceparent_is_read_by_the_standard(texts: list[str], read: str | None) -> None:
    assert read_traceparent(texts) == read


@table
def test_the_trace_of_a_record(headers: list[tuple[str, str]], read: str | None) -> None:
    """A malformed header does not refuse the record."""
    encoded = [(name, value.encode("latin-1")) for name, value in headers]
    assert traceparent_of(encoded) == read


# --- on or off -----------------------------------------------------------------------------------------


@table
def test_when_traces_are_wanted(environ: dict[str, str], wanted: bool) -> None:
    assert wants_traces(environ) is wanted


def test_without_the_sdk_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'tarsy-scoring\[tracing\]'"):
        wants_traces({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert not wants_traces({})


@pytest.mark.parametrize(("parent", "names"), [(SAMPLED, {"trace_id": TRACE_ID}), (None, {})], ids=["parent", "none"])
async def test_traces_that_are_off_pass_the_parent_on(parent: str | None, names: dict[str, str]) -> None:
    """The next service then belongs to the trace of the producer."""
    attempt = OFF.attempt(parent, "api", None, {})
    with attempt.current():
        with OFF.step("storing"), OFF.chat("main", ProviderSettings(), "analysis") as tell:
            tell(turn())
        OFF.evaluated("c", 1, None)
    attempt.end("completed", None)
    await OFF.close()

    assert (attempt.traceparent, attempt.names) == (parent, names)


# --- the content of spans ------------------------------------------------------------------------------------


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exported: InMemorySpanExporter) -> Iterator[Tracing]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    yield Tracing(provider)
    structlog.contextvars.clear_contextvars()


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_an_attempt_is_a_child_of_the_producers_span(spans: Tracing, exported: InMemorySpanExporter) -> None:
    """It has the same trace and its own span id, which its events carry."""
    at = spans.attempt(SAMPLED, "session-completed", "done", {"score_id": "s-1", "chain_id": None, "attempt": 2})
    at.end("completed", None)

    (span,) = exported.get_finished_spans()
    assert (span.name, span.kind) == ("process done", trace.SpanKind.CONSUMER)
    assert span.parent is not None
    assert trace.format_span_id(span.parent.span_id) == SPAN_ID
    assert span.context is not None
    assert at.traceparent == f"00-{TRACE_ID}-{trace.format_span_id(span.context.span_id)}-01"
    assert at.traceparent == read_traceparent([at.traceparent or ""])
    assert of(span) == {
        "messaging.system": "kafka",
        "messaging.operation.type": "process",
        "messaging.operation.name": "process",
        "messaging.destination.name": "done",
        "tarsy_scoring.score_id": "s-1",
        "tarsy_scoring.attempt": 2,
        "tarsy_scoring.outcome": "completed",
    }
    assert span.status.status_code is trace.StatusCode.UNSET


def test_span_of_an_attempt_has_its_outcome(spans: Tracing, exported: InMemorySpanExporter) -> None:
    """Waiting and cancellation are not errors."""
    ends = {
        ("completed", None): None,
        ("failed", "refused"): "refused",
        ("timed_out", "deadline_passed"): "deadline_passed",
        ("put_back", "judge_unavailable"): "judge_unavailable",
        ("put_back", None): None,
        ("cancelled", "cancelled"): None,
        ("released", None): None,
        ("lease_lost", None): None,
    }
    for outcome, kind in ends:
        spans.attempt(None, "cli", None, {}).end(outcome, kind)

    for span, ((outcome, _), error) in zip(exported.get_finished_spans(), ends.items(), strict=True):
        assert (of(span)["tarsy_scoring.outcome"], of(span).get("error.type")) == (outcome, error)
        assert span.status.status_code is (trace.StatusCode.ERROR if error else trace.StatusCode.UNSET)


def test_span_of_a_step_has_the_type_of_its_error(spans: Tracing, exported: InMemorySpanExporter) -> None:
    """A drain and a lost lease are no errors; messages of errors may hold secrets and are not recorded."""
    ends: dict[BaseException, str | None] = {
        JudgeUnavailable("said planted-secret"): "JudgeUnavailable",
        asyncio.CancelledError("planted-secret"): None,
        LeaseLost("planted-secret"): None,
    }
    at = spans.attempt(None, "cli", None, {})
    for error in ends:
        with pytest.raises(type(error)) as raised, at.current(), spans.step("storing"):
            raise error
        assert raised.value is error

    for step, kind in zip(exported.get_finished_spans(), ends.values(), strict=True):
        assert of(step).get("error.type") == kind
        assert step.status.status_code is (trace.StatusCode.ERROR if kind else trace.StatusCode.UNSET)
        assert step.events == ()
        assert "planted-secret" not in step.to_json()
    at.end("put_back", "judge_unavailable")


def test_span_of_a_call_has_model_and_tokens(spans: Tracing, exported: InMemorySpanExporter) -> None:
    """It has no text, and of the URL only host and port."""
    provider = ProviderSettings(base_url="https://judge.example/tenants/acme/v1", model="judge-1", temperature=0)
    with spans.chat("main", provider, "analysis") as tell:
        tell(turn())
    unknown: dict[str, Any] = dict.fromkeys(("model_served", "input_tokens", "output_tokens", "finish_reason"))
    with spans.chat("main", ProviderSettings(base_url="http://judge:8000/v1"), "sample") as tell:
        tell(turn(**unknown, cached_input_tokens=None))

    span, bare = exported.get_finished_spans()
    assert not [name for name in of(bare) if name.startswith(("gen_ai.usage", "gen_ai.response"))]
    assert of(bare)["server.port"] == 8000
    assert (span.name, span.kind) == ("chat judge-1", trace.SpanKind.CLIENT)
    assert of(span) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "judge-1",
        "gen_ai.request.temperature": 0,
        "gen_ai.response.model": "judge-1-2025",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1000,
        "gen_ai.usage.cache_read.input_tokens": 600,
        "gen_ai.usage.output_tokens": 200,
        "server.address": "judge.example",
        "server.port": 443,
        "tarsy_scoring.provider": "main",
        "tarsy_scoring.turn": "analysis",
        "tarsy_scoring.call_duration_s": 1.2,
    }


def test_a_stored_score_is_one_event_of_its_attempt(spans: Tracing, exported: InMemorySpanExporter) -> None:
    cases: list[tuple[int | None, str | None, dict[str, Any]]] = [
        (67, "pass", {"score.value": 67.0, "score.label": "pass"}),
        (0, None, {"score.value": 0.0}),
        (None, "fail", {"score.label": "fail"}),
    ]
    at = spans.attempt(None, "cli", None, {})
    with at.current():
        with spans.step("storing"):
            pass
        for total, outcome, _ in cases:
            spans.evaluated("cli-tool-use", total, outcome)
    at.end("completed", None)

    storing, attempt = exported.get_finished_spans()
    assert storing.events == ()
    for event, (_, _, values) in zip(attempt.events, cases, strict=True):
        assert event.name == "gen_ai.evaluation.result"
        expected = {"name": "cli-tool-use"} | values
        assert dict(event.attributes or {}) == {f"gen_ai.evaluation.{name}": value for name, value in expected.items()}


# --- exporting -------------------------------------------------------------------------------------------


@pytest.fixture
def sdk_logger() -> Iterator[logging.Logger]:
    """Restores the loggers that `open_tracing` changes."""
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "urllib3")]
    before = [(logger.propagate, logger.handlers) for logger in loggers]
    yield loggers[0]
    for logger, (propagate, handlers) in zip(loggers, before, strict=True):
        logger.propagate, logger.handlers = propagate, handlers


def test_invalid_variables_are_refused(sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message quotes no value."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://c:4318")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000")
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "planted")

    with pytest.raises(ConfigurationError, match="refuses a variable") as refused:
        open_tracing(os.environ)
    assert "planted" not in str(refused.value)


class Stuck(SpanExporter):
    """An exporter whose connection is dead until a test lets it go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.sent = 0

    def export(self, spans: Any) -> SpanExportResult:
        self.let_go.wait(30)
        self.sent += len(spans)
        return SpanExportResult.SUCCESS


async def test_a_stuck_exporter_delays_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """More spans than the queue holds are made, and the end waits only for `FLUSH_S`."""
    monkeypatch.setattr(spans_module, "FLUSH_S", 0.2)
    exporter, provider = Stuck(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=20, max_export_batch_size=10))
    opened = Tracing(provider)
    began = time.monotonic()
    for _ in range(100):
        opened.attempt(None, "cli", None, {}).end("completed", None)
    with capture_logs() as lines:
        await opened.close()
    flushing = [t.daemon for t in threading.enumerate() if t.name == "traces"]
    exporter.let_go.set()

    assert time.monotonic() - began < 20, "the exporter takes 30 s"
    assert [line["event"] for line in lines] == ["traces.not_flushed"]
    assert flushing == [True]  # a daemon thread does not keep the process


class Rude(BaseHTTPRequestHandler):
    """A collector that quotes the request in its answer."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403, f"no access for {self.headers['api-key']}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


async def test_only_the_status_of_a_collectors_answer_is_logged(
    sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with HTTPServer(("127.0.0.1", 0), Rude) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sk-planted")
        opened = open_tracing(os.environ)
        opened.attempt(None, "cli", None, {}).end("completed", None)
        with capture_logs() as lines:
            await opened.close()
        collector.shutdown()

    assert [line["event"] for line in lines] == ["traces.impaired"]
    assert "planted" not in str(lines)
