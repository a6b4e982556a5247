"""Traces along the path of a score: the spans of an attempt, and the trace of its events."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import structlog
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from structlog.testing import capture_logs

from attempting import Service, open_service, watched
from fakes import FakeSessions
from infrastructure import wait_until
from tarsy_scoring.errors import LeaseLost, TimelineUnavailable
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.limits.fleet import Limits
from tarsy_scoring.outbox import outbox
from tarsy_scoring.outbox.outbox import OutboxEvent
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.scoring.attempt import Finished
from tarsy_scoring.scoring.worker import Worker
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring.telemetry.otel import OFF, Tracing
from tarsy_scoring.timeline.model import Timeline
from tarsy_scoring_lab.scripted_judge import MODEL, ScriptedJudge

TRACE_ID, SPAN_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{SPAN_ID}-01"
KEY = "sk-planted-key"
YAML = Path(__file__).with_suffix(".yaml").read_text("utf-8")


@pytest.fixture
async def service(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> AsyncIterator[Service]:
    config = tmp_path / "scoring.yaml"
    config.write_text(YAML.format(base_url=judge.base_url, model=MODEL), encoding="utf-8")
    async with open_service(database_url, SCORING_CONFIG=str(config)) as opened:
        yield opened


@pytest.fixture
def exported() -> Iterator[InMemorySpanExporter]:
    yield InMemorySpanExporter()
    structlog.contextvars.clear_contextvars()


@pytest.fixture
def spans(exported: InMemorySpanExporter) -> Tracing:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exported))
    return Tracing(provider)


Line = Mapping[str, Any]


async def attempt(service: Service, tracing: Tracing, timeline: Timeline | Exception | None = None) -> Line:
    """Claim and finish a due score as a worker does; returns the attempt's log line."""
    clients = create_clients(service.settings, {"OPENAI_API_KEY": KEY}, tracing)
    scorer = service.scorer(clients, timeline, tracing=tracing)
    await service.database.once(lambda c: c.execute("UPDATE session_scores SET next_attempt_at = now()"))
    try:
        with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
            assert await a_worker(service, scorer, tracing).claim(1) == 1
            await wait_until(lambda: finished(lines), 30, "the attempt's line")
    finally:
        for client in clients.values():
            await client.close()
    return finished(lines)["one"]


def a_worker(service: Service, scorer: Any, tracing: Tracing) -> Worker:
    settings = service.settings.model_copy(update={"drain_timeout_s": 0})
    limits = Limits(service.database, settings)
    return Worker(
        settings=settings,
        leases=service.leases,
        scorer=scorer,
        source=watched(FakeSessions()),
        metrics=Metrics(),
        limits=limits,
        tracing=tracing,
    )


def finished(lines: Sequence[Line]) -> dict[str, Line]:
    """The lines of ended attempts, by session."""
    return {line["session_id"]: line for line in lines if line["event"] == "attempt.finished"}


async def events_of(service: Service) -> list[OutboxEvent]:
    """All events, as the relay would publish them."""
    database = service.database
    await outbox.assign_positions(database, 1000)
    return await database.once(lambda c: outbox.unpublished(database, c, 1000))


def kind_of(event: OutboxEvent) -> str:
    return str(event.payload.get("phase") or event.payload["type"])


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def traceparent_of(span: ReadableSpan) -> str:
    """The traceparent of a span."""
    assert span.context is not None
    return f"00-{trace.format_trace_id(span.context.trace_id)}-{trace.format_span_id(span.context.span_id)}-01"


async def test_a_score_is_one_trace(service: Service, spans: Tracing, exported: InMemorySpanExporter) -> None:
    """From the producer's span to the event about the stored score; every phase is a child of the attempt."""
    await service.request(traceparent=SAMPLED)
    line = await attempt(service, spans)
    events = await events_of(service)

    whole = exported.get_finished_spans()[-1]
    assert whole.name == f"process {service.settings.topic_session_completed}"
    assert traceparent_of(whole).split("-")[1] == TRACE_ID
    assert whole.parent is not None
    assert trace.format_span_id(whole.parent.span_id) == SPAN_ID
    children = exported.get_finished_spans()[:-1]
    assert [s.name for s in children] == ["gathering_context", f"chat {MODEL}", f"chat {MODEL}", "storing"]
    assert {s.parent.span_id for s in children if s.parent} == {whole.context.span_id if whole.context else 0}
    (score_id,) = {e.payload["score_id"] for e in events}
    assert (attributes(whole)["tarsy_scoring.score_id"], attributes(whole)["tarsy_scoring.session_id"]) == (
        score_id,
        "one",
    )
    assert (attributes(whole)["tarsy_scoring.outcome"], attributes(whole)["tarsy_scoring.chain_id"]) == (
        line["outcome"],
        "k",
    )
    before = ["queued", "scoring.started", "gathering_context"]
    assert {kind_of(e): e.traceparent for e in events} == dict.fromkeys(before, SAMPLED) | dict.fromkeys(
        ["analyzing_methodology", "identifying_missing_tools", "storing", "scoring.completed"], traceparent_of(whole)
    )


async def test_no_span_contains_texts_or_secrets(
    service: Service, spans: Tracing, exported: InMemorySpanExporter
) -> None:
    """No text of session or answer, no key and no endpoint, however the attempt ends."""
    await service.request()
    await attempt(service, spans, TimelineUnavailable("the password is planted-in-an-error"))
    await attempt(service, spans)
    score = await service.score((await events_of(service))[0].payload["score_id"])

    everything = "".join(s.to_json() for s in exported.get_finished_spans())
    secrets = ["runs out of memory", "a pod restarts", KEY, "planted-in-an-error", score["score_analysis"][:30]]
    assert score["status"] == "completed"
    assert [s for s in secrets if s in everything] == []
    assert service.settings.config.providers["default"].base_url not in everything


class EndsLike:
    """A stand-in for `Scorer`: each attempt ends as the name of its session says."""

    def __init__(self, service: Service) -> None:
        self._leases = service.leases
        self.hanging: set[str] = set()

    async def attempt(self, claimed: ClaimedScore, **_: Any) -> Finished:
        structlog.get_logger().info("within", session_id=claimed.session_id)
        if claimed.session_id == "lost":
            raise LeaseLost("another worker has it")
        if claimed.session_id == "breaks":
            raise ZeroDivisionError
        self.hanging.add(claimed.session_id)
        await asyncio.Event().wait()
        raise AssertionError

    async def end_broken(self, claimed: ClaimedScore, what: str, spent_s: float) -> Finished:
        wait = {"due_s": 60, "waiting_reason": "retry", "waiting_for_text": what}
        await self._leases.put_back(claimed, burns=True, spent_s=spent_s, **wait)
        return Finished("put_back", {"error_kind": "internal_error"})


async def test_an_interrupted_attempt_ends_its_span(
    service: Service, spans: Tracing, exported: InMemorySpanExporter
) -> None:
    """Lost, taken away, broken or given back: span and log line agree, and lines have the trace's id."""
    sessions = ("lost", "taken", "breaks", "drained")
    of_session = {session: SAMPLED.replace(TRACE_ID, f"{n:032x}") for n, session in enumerate(sessions, 1)}
    for session, traceparent in of_session.items():
        await service.request(session, traceparent=traceparent)
    scorer, stopping = EndsLike(service), asyncio.Event()
    worker = a_worker(service, scorer, spans)

    with capture_logs([structlog.contextvars.merge_contextvars]) as lines:
        running = asyncio.create_task(worker.run(stopping))
        await wait_until(lambda: len(scorer.hanging) == 2 and len(finished(lines)) == 2, 30, "all are under way")
        take = "UPDATE session_scores SET lease_token = gen_random_uuid() WHERE session_id = 'taken'"
        await service.database.once(lambda c: c.execute(take))
        await worker.keep_leases()
        await wait_until(lambda: len(finished(lines)) == 3, 30, "one is taken away")
        stopping.set()
        await asyncio.wait_for(running, 30)

    ended = {attributes(s)["tarsy_scoring.session_id"]: s for s in exported.get_finished_spans()}
    outcomes = {"lost": "lease_lost", "taken": "lease_lost", "breaks": "put_back", "drained": "released"}
    assert {session: attributes(s)["tarsy_scoring.outcome"] for session, s in ended.items()} == outcomes
    assert {session: line["outcome"] for session, line in finished(lines).items()} == outcomes
    assert {session for session, s in ended.items() if s.status.status_code is trace.StatusCode.ERROR} == {"breaks"}
    assert {
        session: attributes(s).get("error.type") for session, s in ended.items() if "error.type" in attributes(s)
    } == {"breaks": "internal_error"}
    about = [line for line in lines if "session_id" in line]
    assert Counter(line["event"] for line in about) == {"within": 4, "attempt.finished": 4, "attempt.broke": 1}
    assert [line for line in about if line["trace_id"] != of_session[line["session_id"]].split("-")[1]] == []
    assert [line for line in lines if "session_id" not in line and "trace_id" in line] == []
    back = {e.session_id: e.traceparent for e in await events_of(service) if kind_of(e) == "waiting_retry"}
    assert back == {session: traceparent_of(ended[session]) for session in ("breaks", "drained")}


async def test_without_tracing_the_producers_traceparent_is_passed_on(
    service: Service, exported: InMemorySpanExporter
) -> None:
    """A request without a traceparent gives events without one."""
    await service.request(traceparent=SAMPLED)
    await attempt(service, OFF)
    await service.request("two")

    events = await events_of(service)
    assert {e.traceparent for e in events if e.session_id == "one"} == {SAMPLED}
    assert [e.traceparent for e in events if e.session_id == "two"] == [None]
    assert exported.get_finished_spans() == ()
