"""From an event on Kafka to a stored score and its events, through real processes."""

import re
from urllib.parse import urlsplit

from infrastructure import wait_until
from processes import Service, assert_whole, small_session
from proxy import DatabaseProxy
from tarsy_scoring_lab.scripted_judge import MODEL, STAND_IN, Fault
from tarsy_scoring_lab.tarsy import load_session

TWO_TOOLS = """Two were missing.

1. **read-file**: the manifest was inferred from its name.
2. **query-metrics-range**: one reading stood in for a course."""

STORY = [
    ("scoring.progress", "queued"),
    ("scoring.started", None),
    ("scoring.progress", "gathering_context"),
    ("scoring.progress", "analyzing_methodology"),
    ("scoring.progress", "identifying_missing_tools"),
    ("scoring.progress", "storing"),
    ("scoring.completed", None),
]


async def test_an_event_becomes_a_score(service: Service, tarsy_database_url: str) -> None:
    await load_session(tarsy_database_url, small_session("session-1"))
    env = {"SCORING_TIMELINE_SOURCE": "tarsy-db", "SCORING_TIMELINE_DATABASE_URL": tarsy_database_url}
    service.judge.script(Fault(kind="reply", turn="missing_tools", content=TWO_TOOLS))
    worker = service.worker(**env)
    events = await service.announce("session-1", chain_id="kubernetes", labels={"guidance": "v3", "region": "eu"})
    score = await service.score_becomes("session-1", "completed")
    seen = await assert_whole(service, events)
    assert await worker.stop() == 0

    assert score["total_score"] in range(101)
    assert score["judge_outcome"] in {"correct", "partial", "wrong"}
    assert STAND_IN in score["score_analysis"]
    assert score["missing_tools_analysis"] == TWO_TOOLS
    assert (score["chain_id"], score["purpose"], score["score_triggered_by"]) == ("kubernetes", "production", "auto")
    assert score["criteria"] == "investigation"
    assert re.fullmatch("[0-9a-f]{64}", score["criteria_hash"])
    assert re.fullmatch("[0-9a-f]{64}", score["judge_fingerprint"])
    assert await service.count("created_at <= started_at AND started_at <= completed_at") == 1
    kept = await service.value("SELECT name FROM scoring_criteria WHERE criteria_hash = $1", score["criteria_hash"])
    assert kept == score["criteria"]
    tools = await service.rows("SELECT tool_name FROM score_missing_tools ORDER BY ordinal")
    assert [t["tool_name"] for t in tools] == ["read-file", "query-metrics-range"]
    turns = await service.rows("SELECT * FROM judge_turns ORDER BY ordinal")
    assert [(t["kind"], t["model_requested"], t["finish_reason"]) for t in turns] == [
        ("analysis", MODEL, "stop"),
        ("missing_tools", MODEL, "stop"),
    ]
    assert turns[1]["reply"] == TWO_TOOLS
    assert all(t["input_tokens"] and t["output_tokens"] for t in turns)

    assert [(e.payload["type"], e.payload.get("phase")) for e in seen] == STORY
    assert {e.key for e in seen} == {b"session-1"}
    end = seen[-1]
    told = {name: end.payload[name] for name in ("labels", "alert_type", "chain_id", "score_triggered_by", "criteria")}
    assert told == {
        "labels": {"guidance": "v2", "region": "eu"},  # where both name one, the source counts
        "alert_type": "PodRestarting",
        "chain_id": "kubernetes",
        "score_triggered_by": "auto",
        "criteria": "investigation",
    }
    assert end.payload["usage"]["input_tokens"] == sum(t["input_tokens"] for t in turns)
    assert {name: value.decode() for name, value in end.headers.items()} == {
        "ce_specversion": "1.0",
        "ce_id": end.payload["event_id"],
        "ce_source": "/tarsy-scoring",
        "ce_type": "scoring.completed",
        "ce_subject": "session-1",
        "ce_time": end.payload["timestamp"],
        "content-type": "application/json",
    }


async def test_roles_in_separate_processes_score_together(service: Service) -> None:
    intake, judging, relay = (service.worker("--only", role) for role in ("intake", "judge", "relay"))
    events = await service.announce(*service.add_sessions(3))
    await service.all_end(3)
    await assert_whole(service, events)
    await wait_until(lambda: len(judging.lines("attempt.finished")) == 3, 60, "it tells of every attempt")
    assert [bool(w.lines("intake.joined")) for w in (intake, judging, relay)] == [True, False, False]
    assert [len(w.lines("attempt.finished")) for w in (intake, judging, relay)] == [0, 3, 0]
    for worker, role in ((intake, "intake"), (judging, "judging"), (relay, "relay")):
        await worker.ready()
        told = (await worker.get("/metrics"))[1]
        assert re.findall(r'^tarsy_scoring_role\{role="(\w+)"\} 1.0$', told, re.MULTILINE) == [role]
        assert "tarsy_scoring_database_up 1.0\n" in told
        assert ("tarsy_scoring_intake_last_pass_timestamp_seconds 0.0\n" in told) == (role != "intake")
        assert await worker.stop() == 0


async def test_each_attempt_logs_one_line_and_no_line_has_a_secret(service: Service) -> None:
    """No line has a key, password, prompt or answer, not even when the judge's error quotes them."""
    planted = "planted-in-the-alert"
    service.add_session("session-1", alert_data=f"The alert of session-1 says {planted}.")
    quoting = {"error": {"message": f"cannot judge {planted} with sk-planted-judge-key", "type": "server_error"}}
    service.judge.script(Fault(kind="status", status=500, times=4, headers={"retry-after-ms": "10"}, json=quoting))
    worker = service.worker(SCORING_LOG_LEVEL="debug", SCORING_KAFKA_SASL_PASSWORD="planted-kafka-password")
    events = await service.announce("session-1")
    waiting = await service.score_becomes("session-1", "pending", attempts_burned=1)
    await service.let_retries_be_due()
    score = await service.score_becomes("session-1", "completed")
    await assert_whole(service, events)
    assert await worker.stop() == 0

    first, second = worker.lines("attempt.finished")
    assert (first["outcome"], first["attempt"], first["waiting_for"]) == ("put_back", 1, "retry")
    assert first["error_kind"] == "judge_unavailable"
    assert second["outcome"] == "completed"
    for line in (first, second):
        assert line["score_id"] == str(score["score_id"])
        assert line["session_id"] == "session-1"
        assert line["duration_s"] >= 0
    assert (second["total_score"], second["turns"]) == (score["total_score"], 2)
    password = urlsplit(service.database_url).password
    secrets = ["sk-planted-judge-key", "planted-kafka-password", planted, STAND_IN, "run out of memory", password]
    assert [s for s in secrets if s and s in worker.log + worker.stdout] == []
    assert "HTTP 500" in waiting["waiting_for_text"]
    assert [s for s in secrets if s and s in waiting["waiting_for_text"]] == []


async def test_readiness_follows_the_database_and_metrics_count(service: Service) -> None:
    """While the database is away at the start the worker is alive and not ready; every step is counted."""
    proxy = DatabaseProxy(service.database_url)
    worker = service.worker(SCORING_DATABASE_URL=proxy.url)
    await worker.says("database.away")
    status, body = await worker.get("/readyz")
    assert status == 503
    assert "database" in body
    assert (await worker.get("/healthz"))[0] == 200
    async with proxy:
        await worker.ready()
        events = await service.announce(*service.add_sessions(2))
        await service.send(service.topics.session_completed, [(b"x", b"not json")])
        await service.all_end(2)
        await assert_whole(service, events)

        async def is_counted() -> bool:
            metrics = (await worker.get("/metrics"))[1]
            wanted = (
                'requests_total{disposition="accepted",source="session-completed"} 2.0',
                'scores_total{chain="other",error_kind="",status="completed"} 2.0',
                'attempts_total{outcome="completed"} 2.0',
                'turn_duration_seconds_count{kind="analysis",provider="default"} 2.0',
                'dead_letters_total{reason="not_json"} 1.0',
                'events_published_total{type="scoring.completed"} 2.0',
                "outbox_backlog_events 0.0",
                "slots 16.0",
                "slots_busy 0.0",
                "database_up 1.0",
            )
            return all(f"tarsy_scoring_{line}\n" in metrics for line in wanted)

        await wait_until(is_counted, 60, "everything is counted")
        assert await worker.stop() == 0
