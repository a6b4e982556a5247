"""Events and score documents that the service emits, through real PostgreSQL, keep their contracts."""

import json
import uuid
from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from contracts import validator
from pydantic_core import to_json

from tarsy_scoring.config.load import load_settings
from tarsy_scoring.events import SOURCE_COMPLETED
from tarsy_scoring.judge.ask.client import create_clients
from tarsy_scoring.outbox import outbox
from tarsy_scoring.queue.admission import Request
from tarsy_scoring.queue.claims import ClaimedScore
from tarsy_scoring.scoring.attempt import Scorer
from tarsy_scoring.scoring.watched_source import WatchedSource
from tarsy_scoring.timeline.files import SessionFiles
from tarsy_scoring.wiring import Parts, open_parts
from tarsy_scoring_lab.scripted_judge import Fault, ScriptedJudge

SESSION = "demo-oom-checkout"
SHORT_LEASE_S = 1e-6  # over before the next transaction begins
Event = dict[str, Any]

CONFIG = Path(__file__).with_suffix(".yaml").read_text("utf-8")


@dataclass
class Service:
    """The parts of a worker, driven step by step."""

    parts: Parts
    scorer: Scorer

    async def accept(self, source: str = SOURCE_COMPLETED, session: str = SESSION, **fields: Any) -> None:
        request = Request(uuid.uuid4(), session, source, session_status="completed", **fields)
        assert await self.parts.inbox.accept([request]) == {request.request_id: "accepted"}

    async def claim(self, lease_s: float = 60) -> ClaimedScore:
        (claimed,) = await self.parts.leases.claim_due(uuid.uuid4(), 1, lease_s)
        return claimed

    async def attempt(self) -> str:
        """Claim the due score and run one attempt; gives its outcome."""
        return (await self.scorer.attempt(await self.claim())).outcome

    async def events(self) -> list[Event]:
        """All events emitted so far, as the topic would hold them, in order of position."""
        database = self.parts.database
        await outbox.assign_positions(database, 1000)
        placed = await database.once(lambda c: outbox.unpublished(database, c, 1000))
        return [json.loads(to_json(p.payload)) for p in placed]

    async def document(self) -> Any:
        """The score document of the session's newest score, as JSON."""
        row = await self.parts.reader.newest_score(SESSION)
        return json.loads(to_json(await self.parts.reader.score(row["score_id"])))


@pytest.fixture
async def service(database_url: str, judge: ScriptedJudge, tmp_path: Path) -> AsyncIterator[Service]:
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(base_url=judge.base_url), "utf-8")
    env = {"SCORING_CONFIG": str(config), "SCORING_EVENTS_CHOOSE_CHAINS": "true"}
    settings = load_settings({"SCORING_DATABASE_URL": database_url} | env)
    source = SessionFiles(Path(str(files("tarsy_scoring_lab") / "examples")))
    clients = create_clients(settings, {})
    async with open_parts(settings) as parts:
        yield Service(
            parts,
            Scorer(
                settings=settings,
                leases=parts.leases,
                store=parts.store,
                source=WatchedSource(source, parts.metrics),
                registry=parts.registry,
                clients=clients,
                metrics=parts.metrics,
                limits=parts.limits,
            ),
        )
    for client in clients.values():
        await client.close()


def assert_stream_laws(events: list[Event]) -> None:
    """Events follow their schemas, and positions, sequences and times are in order."""
    by_score: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        name = event["type"].replace(".", "-").replace("_", "-")
        validator(name).validate(event)
        assert event["timestamp_us"] == round(datetime.fromisoformat(event["timestamp"]).timestamp() * 1_000_000)
        by_score[event["score_id"]].append(event)
    assert [e["position"] for e in events] == list(range(1, len(events) + 1))
    assert len({e["event_id"] for e in events}) == len(events)
    for stream in by_score.values():
        assert [e["sequence"] for e in stream] == list(range(1, len(stream) + 1))
        assert [e["timestamp_us"] for e in stream] == sorted(e["timestamp_us"] for e in stream)
        assert [e["type"] for e in stream[:-1] if e["type"] in ("scoring.completed", "scoring.failed")] == []


def summary_of(events: list[Event]) -> list[str]:
    """The type of each event with its phase, status or error kind."""
    return [":".join([e["type"], *(e[k] for k in ("phase", "status", "error_kind") if k in e)]) for e in events]


QUEUED = "scoring.progress:queued"
BEGUN = ["scoring.started", "scoring.progress:gathering_context"]
ANALYZING = "scoring.progress:analyzing_methodology"
WAITING = "scoring.progress:waiting_retry"


async def test_completed_score_emits_each_phase_and_its_result(service: Service) -> None:
    await service.accept(chain_id="kubernetes", alert_type="PodCrashLooping", labels={"guidance": "v2"})

    assert await service.attempt() == "completed"

    events, document = await service.events(), await service.document()
    assert_stream_laws(events)
    assert summary_of(events) == [
        QUEUED,
        *BEGUN,
        ANALYZING,
        "scoring.progress:identifying_missing_tools",
        "scoring.progress:storing",
        "scoring.completed",
    ]
    last = events[-1]
    shared = [
        "total_score",
        "criteria",
        "criteria_hash",
        "judge_fingerprint",
        "flags",
        "usage",
        "score_id",
        "request_id",
    ]
    assert {k: last[k] for k in shared} == {k: document[k] for k in shared}
    assert isinstance(last["total_score"], int)
    assert datetime.fromisoformat(last["completed_at"]) == datetime.fromisoformat(document["completed_at"])
    assert (last["alert_type"], last["labels"]["guidance"]) == ("PodOOMKilled", "v2")
    assert [e["attempt"] for e in events] == [0] + [1] * (len(events) - 1)


async def test_scores_without_a_total_end_with_null_or_an_error_kind(service: Service, judge: ScriptedJudge) -> None:
    await service.accept(chain_id="metrics-only")
    assert await service.attempt() == "completed"
    judge.script(Fault(kind="no_score"))
    await service.accept(source="api", chain_id="kubernetes", force=True)
    assert await service.attempt() == "failed"
    await service.accept(source="api", session="no-such-session", requested_by="somebody")
    assert await service.attempt() == "failed"

    events = await service.events()
    assert_stream_laws(events)
    by_score = [[e for e in events if e["score_id"] == s] for s in dict.fromkeys(e["score_id"] for e in events)]
    without_judge, without_number, without_session = by_score
    assert (without_judge[-1]["type"], without_judge[-1]["total_score"]) == ("scoring.completed", None)
    ended = "scoring.failed:failed:no_score_in_answer"
    assert summary_of(without_number) == [QUEUED, *BEGUN, ANALYZING, ended]
    assert summary_of(without_session) == [QUEUED, *BEGUN, "scoring.failed:failed:session_not_found"]
    assert without_session[0]["chain_id"] is None
    row = await service.parts.reader.newest_score("no-such-session")
    assert datetime.fromisoformat(events[-1]["completed_at"]) == row["completed_at"]


async def test_score_document_is_valid_in_every_status(service: Service, judge: ScriptedJudge) -> None:
    seen = []

    async def record_document() -> None:
        document = await service.document()
        validator("score-document").validate(document)
        seen.append((document["status"], document.get("waiting_for"), document.get("current_stage")))

    await service.accept(chain_id="kubernetes")
    claimed = await service.claim()
    await record_document()
    await service.scorer.attempt(claimed)
    await record_document()
    judge.script(Fault(kind="status", status=401, times=1))
    await service.accept(source="api", force=True)
    await record_document()
    await service.attempt()
    await record_document()
    newest = await service.parts.reader.newest_score(SESSION)
    await service.parts.leases.cancel(newest["score_id"], "somebody")
    await record_document()

    assert seen == [
        ("in_progress", None, "gathering_context"),
        ("completed", None, None),
        ("pending", None, None),
        ("pending", "key", None),
        ("cancelled", None, None),
    ]
