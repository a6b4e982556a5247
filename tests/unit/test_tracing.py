"""Traces: what counts as one, when they are wanted, what spans say, and that nobody waits for them."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, cast

import certifi
import pytest
import structlog
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from builders import turn
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import ProviderSettings, Settings
from tarsy_scoring.errors import ConfigurationError, JudgeUnavailable, LeaseLost
from tarsy_scoring.kafka.clients import Record
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry import otel as spans_module
from tarsy_scoring.telemetry import tracing as tracing_module
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.otel import Spans, open_spans
from tarsy_scoring.telemetry.tracing import OFF, read_traceparent, traceparent_of, wants_traces

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED, UNSAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01", f"00-{TRACE_ID}-{SPAN_ID}-00"


# --- what came -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        pytest.param(SAMPLED, SAMPLED, id="sampled"),
        pytest.param(UNSAMPLED, UNSAMPLED, id="unsampled"),
        pytest.param(f"00-{TRACE_ID}-{SPAN_ID}-ff", f"00-{TRACE_ID}-{SPAN_ID}-03", id="flags-nobody-knows"),
        pytest.param(f"cc-{TRACE_ID}-{SPAN_ID}-01-and-more", SAMPLED, id="later-version"),
        pytest.param(f"{SAMPLED}-more", None, id="more-than-this-version-has"),
        pytest.param(f"ff-{TRACE_ID}-{SPAN_ID}-01", None, id="forbidden-version"),
        pytest.param(f"00-{'0' * 32}-{SPAN_ID}-01", None, id="no-trace-id"),
        pytest.param(f"00-{TRACE_ID}-{'0' * 16}-01", None, id="no-span-id"),
        pytest.param(SAMPLED.upper(), None, id="capitals"),
        pytest.param(f"{SAMPLED}\n", None, id="line-break"),
        pytest.param(f" {SAMPLED}", None, id="space"),
        pytest.param(f"00-{TRACE_ID[:-1]}٣-{SPAN_ID}-01", None, id="digit-of-another-alphabet"),
        pytest.param("'; DROP TABLE sessions; --", None, id="statement"),
        pytest.param("", None, id="empty"),
        pytest.param("0" * 1_000_000, None, id="a-megabyte"),
    ],
)
def test_what_is_a_traceparent(text: str, read: str | None) -> None:
    """Only what the standard allows is taken, and all of it is spelt alike afterwards."""
    assert read_traceparent([text]) == read


def test_two_traceparents_are_none() -> None:
    """Nobody can say which one is meant."""
    assert read_traceparent([SAMPLED, UNSAMPLED]) is None
    assert read_traceparent([]) is None


@pytest.mark.parametrize(
    ("headers", "read"),
    [
        pytest.param([("traceparent", SAMPLED.encode())], SAMPLED, id="header"),
        pytest.param([("ce_traceparent", SAMPLED.encode())], SAMPLED, id="cloudevents-extension"),
        pytest.param(
            [("ce_traceparent", UNSAMPLED.encode()), ("traceparent", SAMPLED.encode())], SAMPLED, id="header-goes-first"
        ),
        pytest.param([("traceparent", b"\xff\xfe")], None, id="no-text"),
        pytest.param([("traceparent", None)], None, id="null-value"),
        pytest.param([("traceparent", b"")], None, id="empty"),
        pytest.param([("tracestate", b"a=b")], None, id="another-header"),
        pytest.param([], None, id="none"),
    ],
)
def test_the_trace_of_a_record(headers: Any, read: str | None) -> None:
    """Wherever a producer put it; whatever else stands there is no trace, and no reason to refuse the record."""
    assert traceparent_of(headers) == read


@pytest.mark.parametrize("topic", ["session-completed", "rescore-requested"])
def test_a_request_keeps_the_trace_of_its_record(topic: str) -> None:
    """From either topic; a malformed one makes no dead letter."""
    settings = load_settings({"SCORING_KAFKA_BOOTSTRAP_SERVERS": "nowhere:9092"})
    intake = Intake(settings, cast(Any, None), cast(Any, None), Metrics())

    def read(value: bytes) -> str | None:
        headers = [("traceparent", value)]
        return intake.read(Record(topic, 0, 0, 0, None, b'{"session_id": "one"}', headers)).traceparent

    assert (read(SAMPLED.encode()), read(b"planted")) == (SAMPLED, None)


# --- whether it is wanted ------------------------------------------------------------------------------

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("traces", "environ", "wanted"),
    [
        pytest.param(None, {}, False, id="nobody-asks"),
        pytest.param(None, ENDPOINT, True, id="endpoint"),
        pytest.param(None, {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, True, id="of-traces"),
        pytest.param(None, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}, False, id="empty-endpoint"),
        pytest.param(True, {}, True, id="asked-for"),
        pytest.param(False, ENDPOINT, False, id="declined"),
        pytest.param(True, {"OTEL_SDK_DISABLED": "True"}, False, id="sdk-disabled"),
        pytest.param(True, {"OTEL_TRACES_EXPORTER": "none"}, False, id="no-exporter"),
        pytest.param(True, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, True, id="the-protocol-there-is"),
        pytest.param(False, {"OTEL_TRACES_EXPORTER": "zipkin"}, False, id="declined-whatever-else"),
    ],
)
def test_when_traces_are_wanted(traces: bool | None, environ: dict[str, str], wanted: bool) -> None:
    """Our variable decides; where it is silent, an endpoint for OpenTelemetry does."""
    assert wants_traces(Settings(traces=traces), environ) is wanted


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        pytest.param({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER", id="exporter"),
        pytest.param({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "4318", id="protocol"),
        pytest.param({"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"}, "http/protobuf", id="protocol-of-traces"),
    ],
)
def test_what_cannot_be_exported_is_refused(environ: dict[str, str], says: str) -> None:
    """Spans that go nowhere would be missed only when somebody needs them."""
    with pytest.raises(ConfigurationError, match=says):
        wants_traces(Settings(), ENDPOINT | environ)


OTLP = "OTEL_EXPORTER_OTLP_"


@pytest.mark.parametrize(
    ("environ", "says"),
    [
        pytest.param({"HEADERS": "api-key: sk-planted"}, "HEADERS", id="colon-for-equals"),
        pytest.param({"HEADERS": "a=b,api-key=sk,planted"}, "HEADERS", id="comma-in-a-value"),
        pytest.param({"HEADERS": 'api-key="sk-planted"'}, "HEADERS", id="quotes"),
        pytest.param({"HEADERS": "api-key=sk%0Aplanted"}, "HEADERS", id="line-break-in-a-value"),
        pytest.param({"HEADERS": "api-key=%E2%82%ACplanted"}, "HEADERS", id="value-that-no-header-holds"),
        pytest.param({"HEADERS": "%20planted=b"}, "HEADERS", id="name-that-no-header-has"),
        pytest.param({"HEADERS": "a=b", "TRACES_HEADERS": "planted"}, "TRACES_HEADERS", id="headers-of-traces"),
        pytest.param({"ENDPOINT": "https://planted@:x"}, "ENDPOINT", id="no-host"),
        pytest.param({"ENDPOINT": "https://collector:planted"}, "ENDPOINT", id="no-port"),
        pytest.param({"ENDPOINT": "http://collector:70000/planted"}, "ENDPOINT", id="too-large-a-port"),
        pytest.param({"ENDPOINT": "http://collector:0/planted"}, "ENDPOINT", id="port-zero"),
        pytest.param({"ENDPOINT": "http://collector:4318 planted"}, "ENDPOINT", id="space"),
        pytest.param({"ENDPOINT": "http://collector:4318/\x7fplanted"}, "ENDPOINT", id="control-character"),
        pytest.param({"ENDPOINT": "planted:4318"}, "ENDPOINT", id="no-scheme"),
        pytest.param({"ENDPOINT": "grpc://planted:4317"}, "ENDPOINT", id="another-scheme"),
        pytest.param({"ENDPOINT": "http://[planted"}, "ENDPOINT", id="no-url"),
        pytest.param({"ENDPOINT": "http://planted..example"}, "ENDPOINT", id="host-that-cannot-be"),
        pytest.param({"TRACES_ENDPOINT": "planted"}, "TRACES_ENDPOINT", id="endpoint-of-traces"),
        pytest.param({"CERTIFICATE": "/planted.pem"}, "CERTIFICATE", id="no-authorities"),
        pytest.param({"TRACES_CERTIFICATE": __file__}, "TRACES_CERTIFICATE", id="authorities-in-no-pem"),
        pytest.param({"CLIENT_CERTIFICATE": "/planted.pem"}, "CLIENT_CERTIFICATE", id="no-client-certificate"),
        pytest.param({"CLIENT_CERTIFICATE": __file__}, "CLIENT_CERTIFICATE", id="client-certificate-in-no-pem"),
        pytest.param(
            {"CLIENT_CERTIFICATE": __file__, "CLIENT_KEY": "/planted.pem"}, "CLIENT_KEY", id="no-key-of-the-client"
        ),
    ],
)
def test_what_cannot_be_sent_is_refused(environ: dict[str, str], says: str) -> None:
    """At once, with the name of the variable; what it holds may be a key, or have one in it."""
    with pytest.raises(ConfigurationError, match=f"^{OTLP}{says}: ") as refused:
        wants_traces(Settings(), ENDPOINT | {OTLP + name: value for name, value in environ.items()})

    assert "planted" not in str(refused.value)
    assert __file__ not in str(refused.value)
    assert refused.value.__cause__ is None


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param({"HEADERS": "api-key=sk-1,authorization=Bearer%20abc, x-other = 1=2 ,"}, id="headers"),
        pytest.param({"HEADERS": "authorization=Basic abc=="}, id="a-space-in-a-value"),
        pytest.param({"HEADERS": "planted", "TRACES_HEADERS": "a=b"}, id="headers-that-others-go-before"),
        pytest.param({"ENDPOINT": "https://user:key@collector.example/otlp?key=abc"}, id="credentials"),
        pytest.param({"ENDPOINT": "http://[::1]:4318"}, id="address"),
        pytest.param({"CERTIFICATE": certifi.where()}, id="authorities"),
        pytest.param({"CERTIFICATE": str(Path(__file__).parent)}, id="folder-of-authorities"),
        pytest.param({"CLIENT_KEY": "/not-looked-at.pem"}, id="key-without-a-certificate"),
    ],
)
def test_what_can_be_sent_is_not_refused(environ: dict[str, str]) -> None:
    """All that OpenTelemetry takes."""
    assert wants_traces(Settings(), ENDPOINT | {OTLP + name: value for name, value in environ.items()})


def test_a_certificate_of_our_own_needs_its_key(tmp_path: Path) -> None:
    """Beside it or in the same file, without a password: nobody is there to ask for one."""
    ours, others = (trustme.CA().issue_cert("us") for _ in range(2))
    password = BestAvailableEncryption(b"planted")
    key = load_pem_private_key(ours.private_key_pem.bytes(), None)
    pem = {
        "certificate": ours.cert_chain_pems[0].bytes(),
        "both": ours.private_key_and_cert_chain_pem.bytes(),
        "key": ours.private_key_pem.bytes(),
        "another": others.private_key_pem.bytes(),
        "locked": key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, password),
    }
    for name, content in pem.items():
        (tmp_path / name).write_bytes(content)

    def environ(certificate: str, key: str | None = None) -> dict[str, str]:
        files = {"CERTIFICATE": certificate} | ({"KEY": key} if key else {})
        return ENDPOINT | {f"{OTLP}CLIENT_{name}": str(tmp_path / file) for name, file in files.items()}

    assert wants_traces(Settings(), environ("both"))
    assert wants_traces(Settings(), environ("certificate", "key"))
    for unfit in (None, "another", "locked"):
        with pytest.raises(ConfigurationError, match=f"^{OTLP}CLIENT_CERTIFICATE: ") as refused:
            wants_traces(Settings(), environ("certificate", unfit))
        assert str(tmp_path) not in str(refused.value)


def test_nobody_looks_at_what_is_not_wanted() -> None:
    """Variables that other programs on the machine need cannot stop this one."""
    assert not wants_traces(Settings(traces=False), {f"{OTLP}HEADERS": "planted", f"{OTLP}CERTIFICATE": "/nope.pem"})


def test_without_the_sdk_the_start_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setattr(tracing_module, "_NEEDED", ("opentelemetry.not_there.at_all",))

    with pytest.raises(ConfigurationError, match=r"pip install 'tarsy-scoring\[tracing\]'"):
        wants_traces(Settings(traces=True), {})
    assert not wants_traces(Settings(), {})


def test_traces_that_are_off_import_nothing() -> None:
    """All of the service is loaded; nothing of the SDK is, and none of our own code that uses it."""
    program = (
        "import sys, tarsy_scoring.cli, tarsy_scoring.wiring, tarsy_scoring.web.app\n"
        "from tarsy_scoring.wiring import _tracing\n"
        "from tarsy_scoring.config.load import load_settings\n"
        "assert type(_tracing(load_settings({}))).__name__ == 'Tracing'\n"
        "tracing = ('opentelemetry.sdk', 'opentelemetry.exporter', 'tarsy_scoring.telemetry.otel')\n"
        "print([m for m in sys.modules if m.startswith(tracing)])\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env={}, check=False)

    assert (ended.stdout, ended.stderr) == ("[]\n", "")


async def test_traces_that_are_off_pass_on_what_came() -> None:
    """A trace is not cut by somebody in its middle who tells nothing."""
    attempt = OFF.attempt(SAMPLED, "api", None, {})
    with attempt.current():
        with OFF.step("storing"), OFF.chat("main", ProviderSettings(), "analysis") as tell:
            tell(turn())
        OFF.evaluated("c", 1, None)
    attempt.end("completed", None)
    await OFF.close()

    assert (attempt.traceparent, dict(attempt.names)) == (SAMPLED, {})


# --- what spans say ------------------------------------------------------------------------------------


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def spans(exported: InMemorySpanExporter) -> Iterator[Spans]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    yield Spans(provider)
    structlog.contextvars.clear_contextvars()


def of(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_an_attempt_is_a_child_of_what_the_producer_did(spans: Spans, exported: InMemorySpanExporter) -> None:
    """Same trace, its own place in it; events are sent with that place."""
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


def test_a_request_that_is_in_no_trace_begins_one(spans: Spans, exported: InMemorySpanExporter) -> None:
    """Also where another attempt's span happens to be current, and where it did not come from Kafka."""
    outermost = spans.attempt(SAMPLED, "api", None, {})
    with outermost.current():
        at = spans.attempt(None, "cli", None, {})
        at.end("completed", None)
    outermost.end("completed", None)

    inner, outer = exported.get_finished_spans()
    assert (inner.name, outer.name) == ("process cli", "process api")
    assert inner.parent is None
    assert TRACE_ID not in (at.traceparent or TRACE_ID)
    assert "messaging.system" not in of(inner)


def test_a_producer_that_is_not_sampled_is_respected(spans: Spans, exported: InMemorySpanExporter) -> None:
    """No span is kept, and who comes after us learns of that."""
    at = spans.attempt(UNSAMPLED, "session-completed", "done", {})
    with at.current(), spans.step("storing"):
        spans.evaluated("c", 50, "pass")
    at.end("completed", None)

    assert exported.get_finished_spans() == ()
    assert at.traceparent is not None
    assert at.traceparent.startswith(f"00-{TRACE_ID}-")
    assert at.traceparent.endswith("-00")
    assert SPAN_ID not in at.traceparent


@pytest.mark.parametrize(
    ("outcome", "kind", "error"),
    [
        pytest.param("completed", None, None, id="completed"),
        pytest.param("failed", "refused", "refused", id="failed"),
        pytest.param("timed_out", "deadline_passed", "deadline_passed", id="timed-out"),
        pytest.param("put_back", "judge_unavailable", "judge_unavailable", id="put-back-after-an-error"),
        pytest.param("put_back", None, None, id="put-back-to-wait"),
        pytest.param("cancelled", "cancelled", None, id="cancelled"),
        pytest.param("released", None, None, id="released"),
        pytest.param("lease_lost", None, None, id="lease-lost"),
    ],
)
def test_how_an_attempt_ended(
    spans: Spans, exported: InMemorySpanExporter, outcome: str, kind: str | None, error: str | None
) -> None:
    """Waiting and being cancelled are no errors."""
    spans.attempt(None, "cli", None, {}).end(outcome, kind)

    (span,) = exported.get_finished_spans()
    assert (of(span)["tarsy_scoring.outcome"], of(span).get("error.type")) == (outcome, error)
    assert span.status.status_code is (trace.StatusCode.ERROR if error else trace.StatusCode.UNSET)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        pytest.param(JudgeUnavailable("planted"), "JudgeUnavailable", id="error"),
        pytest.param(asyncio.CancelledError("planted"), None, id="cancelled"),
        pytest.param(LeaseLost("planted"), None, id="lease-lost"),
    ],
)
def test_how_a_step_ended(spans: Spans, exported: InMemorySpanExporter, error: BaseException, kind: str | None) -> None:
    """What was called off did not go wrong."""
    at = spans.attempt(None, "cli", None, {})
    with pytest.raises(type(error)), at.current(), spans.step("storing"):
        raise error

    (step,) = exported.get_finished_spans()  # and the attempt lasts: it has not been said how it ended
    assert of(step).get("error.type") == kind
    assert step.status.status_code is (trace.StatusCode.ERROR if kind else trace.StatusCode.UNSET)
    assert step.events == ()
    at.end("put_back", "judge_unavailable")


async def test_an_attempt_that_nobody_ended(spans: Spans, exported: InMemorySpanExporter) -> None:
    """It was there, and how it ended was not said; the others were sent before."""
    spans.attempt(None, "cli", None, {}).end("completed", None)
    spans.attempt(None, "api", None, {})
    await spans.close()

    outcomes = {s.name: of(s).get("tarsy_scoring.outcome") for s in exported.get_finished_spans()}
    assert outcomes == {"process cli": "completed", "process api": None}


def test_a_question_and_its_answer(spans: Spans, exported: InMemorySpanExporter) -> None:
    """Names of the conventions; of the text nothing, of the URL host and port."""
    provider = ProviderSettings(base_url="https://judge.example/tenants/acme/v1", model="judge-1", temperature=0)
    with spans.chat("main", provider, "analysis") as tell:
        tell(turn())

    (span,) = exported.get_finished_spans()
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


def test_what_an_answer_does_not_say_is_left_out(spans: Spans, exported: InMemorySpanExporter) -> None:
    """Unknown is never 0, and no attribute is empty."""
    unknown: dict[str, Any] = dict.fromkeys(("model_served", "input_tokens", "output_tokens", "finish_reason"))
    with spans.chat("main", ProviderSettings(base_url="http://judge:8000/v1"), "sample") as tell:
        tell(turn(**unknown, cached_input_tokens=None))

    (span,) = exported.get_finished_spans()
    assert not [name for name in of(span) if name.startswith(("gen_ai.usage", "gen_ai.response"))]
    assert of(span)["server.port"] == 8000


def test_an_error_is_told_by_its_type_alone(spans: Spans, exported: InMemorySpanExporter) -> None:
    """Its message may quote anything; so may a traceback. It goes on as it came."""
    error = JudgeUnavailable("said planted-secret")
    with pytest.raises(JudgeUnavailable) as raised, spans.chat("main", ProviderSettings(), "analysis"):
        raise error

    (span,) = exported.get_finished_spans()
    assert raised.value is error
    assert of(span)["error.type"] == "JudgeUnavailable"
    assert span.status.status_code is trace.StatusCode.ERROR
    assert "planted-secret" not in span.to_json()
    assert span.events == ()


@pytest.mark.parametrize(
    ("total", "outcome", "said"),
    [
        pytest.param(67, "pass", {"score.value": 67.0, "score.label": "pass"}, id="total-and-outcome"),
        pytest.param(0, None, {"score.value": 0.0}, id="zero-is-a-total"),
        pytest.param(None, "fail", {"score.label": "fail"}, id="without-a-judge"),
    ],
)
def test_a_stored_score_is_one_event_of_its_attempt(
    spans: Spans, exported: InMemorySpanExporter, total: int | None, outcome: str | None, said: dict[str, Any]
) -> None:
    """On the attempt's span, whatever phases came and went."""
    at = spans.attempt(None, "cli", None, {})
    with at.current():
        with spans.step("storing"):
            pass
        spans.evaluated("cli-tool-use", total, outcome)
    at.end("completed", None)

    storing, attempt = exported.get_finished_spans()
    assert storing.events == ()
    (event,) = attempt.events
    assert event.name == "gen_ai.evaluation.result"
    expected = {"name": "cli-tool-use"} | said
    assert dict(event.attributes or {}) == {f"gen_ai.evaluation.{name}": value for name, value in expected.items()}


async def test_attempts_beside_each_other_keep_their_own(spans: Spans, exported: InMemorySpanExporter) -> None:
    """What is current is of the task: children find their attempt, and lines of the log its trace."""
    lines: dict[str, Any] = {}

    async def attempt(name: str, entered: asyncio.Event, other: asyncio.Event) -> None:
        at = spans.attempt(None, name, None, {})
        with at.current():
            entered.set()
            await other.wait()
            with spans.step(f"step of {name}"):
                await asyncio.sleep(0)
            lines[name] = structlog.contextvars.merge_contextvars(None, "info", {})["trace_id"]
        assert "trace_id" not in structlog.contextvars.get_contextvars()
        at.end("completed", None)

    one, two = asyncio.Event(), asyncio.Event()
    await asyncio.gather(attempt("one", one, two), attempt("two", two, one))

    found = {s.name: s for s in exported.get_finished_spans()}
    for name in ("one", "two"):
        whole, step = found[f"process {name}"], found[f"step of {name}"]
        assert step.parent is not None
        assert whole.context is not None
        assert step.parent.span_id == whole.context.span_id
        assert lines[name] == trace.format_trace_id(whole.context.trace_id)
    assert lines["one"] != lines["two"]


# --- sending -------------------------------------------------------------------------------------------


@pytest.fixture
def sdk_logger() -> Iterator[logging.Logger]:
    """The SDK's logger, and that of what it sends with, as they were afterwards."""
    loggers = [logging.getLogger(name) for name in ("opentelemetry", "urllib3")]
    before = [(logger.propagate, logger.handlers) for logger in loggers]
    yield loggers[0]
    for logger, (propagate, handlers) in zip(loggers, before, strict=True):
        logger.propagate, logger.handlers = propagate, handlers


def test_who_we_are_where_the_environment_does_not_say(
    sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name of ours, until an operator gives another one."""
    unnamed = open_spans()
    monkeypatch.setenv("OTEL_SERVICE_NAME", "scoring-eu")
    named = open_spans()

    names = [s._provider.resource.attributes["service.name"] for s in (unnamed, named)]
    assert names == ["tarsy-scoring", "scoring-eu"]
    for opened in (unnamed, named):
        opened._provider.shutdown()


def test_a_sampler_is_what_the_environment_says(
    sdk_logger: logging.Logger, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard variables, standard meaning: here only what a producer wants to see."""
    monkeypatch.setattr(spans_module, "OTLPSpanExporter", lambda: exported)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    opened = open_spans()
    for parent in (None, SAMPLED):
        opened.attempt(parent, "cli", None, {}).end("completed", None)
    opened._provider.shutdown()

    (span,) = exported.get_finished_spans()
    assert span.parent is not None
    assert trace.format_trace_id(span.parent.trace_id) == TRACE_ID


def test_variables_that_cannot_be_are_refused(sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a sentence that names those that are set, and says nothing of what they hold."""
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "100000")
    monkeypatch.setenv("OTEL_PYTHON_EXPORTER_OTLP_HTTP_CREDENTIAL_PROVIDER", "planted")

    with pytest.raises(ConfigurationError, match="OTEL_BSP_MAX_EXPORT_BATCH_SIZE") as refused:
        open_spans()
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


async def test_an_exporter_that_is_stuck_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans go on to be made, more than are kept; the end waits for its time and not longer."""
    monkeypatch.setattr(spans_module, "FLUSH_S", 0.2)
    exporter, provider = Stuck(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=20, max_export_batch_size=10))
    opened = Spans(provider)
    began = time.monotonic()
    for _ in range(100):
        opened.attempt(None, "cli", None, {}).end("completed", None)
    with capture_logs() as lines:
        await opened.close()
    flushing = [t.daemon for t in threading.enumerate() if t.name == "traces"]
    exporter.let_go.set()

    assert time.monotonic() - began < 20, "the exporter takes 30 s"
    assert [line["event"] for line in lines] == ["traces.not_flushed"]
    assert flushing == [True]  # the end of the process does not wait for it either


async def test_what_is_left_is_sent_in_the_end() -> None:
    """A drain loses no span that a collector takes."""
    exporter, provider = Stuck(), TracerProvider(shutdown_on_exit=False)
    exporter.let_go.set()
    provider.add_span_processor(BatchSpanProcessor(exporter))
    opened = Spans(provider)
    opened.attempt(None, "cli", None, {}).end("completed", None)
    await opened.close()

    assert exporter.sent == 1


async def test_a_collector_that_is_away(
    sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One line in a minute, without its address; nothing else goes wrong."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://127.0.0.1:9/v1/traces?key=hunter2")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "2")  # enough for a second try
    opened = open_spans()
    for _ in range(3):
        opened.attempt(None, "cli", None, {}).end("completed", None)
    with capture_logs() as lines:
        await opened.close()

    assert [line["event"] for line in lines] == ["traces.impaired"]
    assert "ConnectionError" in lines[0]["reason"]
    assert "hunter2" not in str(lines)
    assert caplog.records == []


def a_complaint(message: Any, *arguments: Any, error: BaseException | None = None) -> logging.LogRecord:
    info = (type(error), error, None) if error else None
    return logging.LogRecord("opentelemetry.x", logging.WARNING, "f", 1, message, arguments, info)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        pytest.param(a_complaint("failed with %s, code %s", OSError("planted"), 503), "failed with OSError, code 503"),
        pytest.param(a_complaint("code: %s, reason: %s", None, "planted"), "code: None, reason: ***"),
        pytest.param(a_complaint("again in %.2fs", 1.234), "again in 1.23s"),
        pytest.param(a_complaint("nothing left"), "nothing left"),
        pytest.param(a_complaint("while sending", error=ValueError("planted")), "while sending (ValueError)"),
        pytest.param(a_complaint("%(key)s", {"key": "planted"}), "%(key)s"),
        pytest.param(a_complaint("%d of %s", "planted", b"planted"), "%d of %s"),
        pytest.param(a_complaint("%s of", 1, 2), "%s of"),
        pytest.param(a_complaint(OSError("planted")), "OSError"),
    ],
    ids=["error", "text", "number", "template-alone", "raised", "by-name", "ill-fitting", "too-many", "no-template"],
)
def test_a_complaint_quotes_nobody(record: logging.LogRecord, reason: str) -> None:
    """Texts come from variables and from the collector: any may hold a key. Numbers and types of errors do not."""
    with capture_logs() as lines:
        spans_module._Seldom().emit(record)

    assert [line["reason"] for line in lines] == [reason]


def test_complaints_come_once_a_minute() -> None:
    """With how many were left out; a text is cut."""
    now = [0.0]
    handler = spans_module._Seldom(clock=lambda: now[0])
    with capture_logs() as lines:
        handler.emit(a_complaint("failed"))
        now[0] = 59.9
        handler.emit(a_complaint("again"))
        handler.emit(a_complaint("and again"))
        now[0] = 60.0
        handler.emit(a_complaint("while exporting " + "x" * 500))

    assert [(line["reason"][:24], line["left_out"]) for line in lines] == [
        ("failed", 0),
        ("while exporting " + "x" * 8, 2),
    ]
    assert max(len(line["reason"]) for line in lines) == 200


async def test_what_it_is_sent_with_quotes_nobody(
    sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It complains of answers with the address that was asked, and whatever is in that."""
    opened = open_spans()
    with capture_logs() as lines:
        logging.getLogger("urllib3.connection").warning("Failed to parse headers (url=%s)", "http://c/?key=planted")
    await opened.close()

    assert [line["reason"] for line in lines] == ["Failed to parse headers (url=***)"]
    assert caplog.records == []


class Rude(BaseHTTPRequestHandler):
    """A collector that tells in its answer what it was asked with."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(403, f"no access for {self.headers['api-key']}")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


async def test_the_words_of_a_collector_are_not_logged(
    sdk_logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may say our key; its status is told."""
    with HTTPServer(("127.0.0.1", 0), Rude) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sk-planted")
        opened = open_spans()
        opened.attempt(None, "cli", None, {}).end("completed", None)
        with capture_logs() as lines:
            await opened.close()
        collector.shutdown()

    assert [line["event"] for line in lines] == ["traces.impaired"]
    assert "403" in lines[0]["reason"]
    assert "planted" not in str(lines)
