"""A trace through a real worker: from an event on Kafka to a collector, and to the events out."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from processes import Service, assert_whole
from tarsy_scoring_lab.scripted_judge import MODEL

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"
EVENT = [(b"session-1", b'{"session_id": "session-1", "event_id": "event-1"}')]


class Collector:
    """Receives spans over OTLP."""

    def __init__(self) -> None:
        self.url = ""
        self.services: set[str] = set()
        self.spans: list[Any] = []

    async def take(self, request: web.Request) -> web.Response:
        for resource in ExportTraceServiceRequest.FromString(await request.read()).resource_spans:
            named = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.services.add(named["service.name"])
            self.spans += [span for scope in resource.scope_spans for span in scope.spans]
        return web.Response()


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    collector.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield collector
    await runner.cleanup()


async def test_one_trace_from_event_to_event(service: Service, collector: Collector) -> None:
    """The producer's trace continues in spans, log lines and events; a stop sends the remaining spans."""
    service.add_session("session-1")
    # Spans leave when the worker stops, or after longer than this takes.
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "600000"}
    worker = service.worker(**env)
    await service.send(service.topics.session_completed, EVENT, {"traceparent": TRACEPARENT})
    await service.score_becomes("session-1", "completed")
    seen = await assert_whole(service, ["event-1"])
    is_sent_at_the_end = collector.spans == []
    assert await worker.stop() == 0

    assert is_sent_at_the_end
    assert collector.services == {"tarsy-scoring"}
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE_ID}
    names = [span.name for span in collector.spans]
    whole = f"process {service.topics.session_completed}"
    assert names == ["gathering_context", f"chat {MODEL}", f"chat {MODEL}", "storing", whole]
    places = [e.headers["traceparent"].decode() for e in seen]
    assert [p.split("-")[1] for p in places] == [TRACE_ID] * len(seen)
    assert places[0] == TRACEPARENT
    assert places[-1] == f"00-{TRACE_ID}-{collector.spans[-1].span_id.hex()}-01"
    assert all("traceparent" not in e.payload for e in seen)
    (line,) = worker.lines("attempt.finished")
    assert line["trace_id"] == TRACE_ID
