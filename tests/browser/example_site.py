"""The installation that the demo shows: its three months of example scores, and its ten example sessions judged."""

import contextlib
import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from infrastructure import Kafka, Postgres, fresh_database, fresh_topics
from processes import Service
from tarsy_scoring_lab.demo import CONFIG
from tarsy_scoring_lab.history import fill
from tarsy_scoring_lab.recorded_replies import MODEL, RecordedReplies, example_sessions
from tarsy_scoring_lab.scripted_judge import ScriptedJudge

SESSION = "demo-oom-checkout"


@dataclass(frozen=True)
class ExampleSite:
    """
    A running installation with example data.

    Args:
        known: Values for the parameters of the addresses of pages.
    """

    address: str
    known: dict[str, str]


@contextlib.asynccontextmanager
async def example_site(folder: Path, postgres: Postgres, kafka: Kafka, template: str) -> AsyncIterator[ExampleSite]:
    """Worker and API as processes over the example data, when all is judged."""
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG), encoding="utf-8")
    with fresh_database(postgres, template) as url:
        filled = await fill(url, datetime.now(UTC))
        async with ScriptedJudge(recorded=RecordedReplies()) as judge:
            service = Service(folder, url, fresh_topics(kafka), judge)
            service.env |= {"SCORING_CONFIG": str(folder / "config.yaml"), "SCORING_JUDGE_MODEL": MODEL}
            try:
                worker = service.worker()
                api = service.command("api", SCORING_API_PORT="0")
                address = (await api.says("api.listening"))["address"]
                await worker.ready()
                _add_sessions(service, filled.sessions)
                await _judge_sessions(service)
                score = await service.score_of(SESSION)
                assert score is not None
                known = {"session_id": SESSION, "score_id": str(score["score_id"])}
                yield ExampleSite(address, known | {"criteria_hash": score["criteria_hash"]})
            finally:
                await service.close()


def _add_sessions(service: Service, sessions: Sequence[dict[str, Any]]) -> None:
    """Write sessions into the folder of the timeline source."""
    for session in sessions:
        path = service.sessions / f"{session['session_id']}.json"
        path.write_text(json.dumps(session), encoding="utf-8")


async def _judge_sessions(service: Service) -> None:
    sessions = example_sessions()
    _add_sessions(service, sessions)
    for session in sessions:
        known = {name: session.get(name) for name in ("chain_id", "alert_type", "status", "completed_at", "labels")}
        await service.announce(session["session_id"], **known)
    await service.scores_reach(len(sessions), "status = 'completed' AND session_id LIKE 'demo-%'")
