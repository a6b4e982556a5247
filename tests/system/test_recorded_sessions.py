"""Every recorded investigation through the whole service."""

import json
from pathlib import Path

import pytest

from processes import Service, assert_whole

RECORDED_DIR = Path(__file__).resolve().parents[2] / ".." / "shared" / "sessions"
RECORDED = sorted(RECORDED_DIR.glob("*.json"))


@pytest.mark.slow
@pytest.mark.skipif(not RECORDED, reason="the recorded sessions are not beside this repository")
async def test_every_recorded_session_ends_in_one_true_way(service: Service) -> None:
    """Completed with a number, or failed with `evidence_incomplete` exactly where nothing was there to be judged."""
    config = service.folder / "config.yaml"
    config.write_text(
        json.dumps({"defaults": {"auto_score_statuses": ["completed", "failed", "timed_out", "cancelled"]}})
    )
    shown = ("investigation", "synthesis", "exec_summary", "action")
    judgeable: dict[str, bool] = {}
    for path in RECORDED:
        session = json.loads(path.read_text(encoding="utf-8"))
        stages = [s for s in session["stages"] if s["stage_type"] in shown]
        judgeable[session["session_id"]] = any(x["events"] for s in stages for x in s["executions"])
    env = {"SCORING_TIMELINE_DIR": str(RECORDED_DIR), "SCORING_CONFIG": str(config), "SCORING_SLOTS": "300"}
    service.worker(**env)
    events = dict(zip(judgeable, await service.announce(*judgeable, status="failed"), strict=True))
    await service.all_end(len(judgeable), timeout_s=120)
    await assert_whole(
        service,
        [events[s] for s, is_judgeable in judgeable.items() if is_judgeable],
        failed=[events[s] for s, is_judgeable in judgeable.items() if not is_judgeable],
    )
    assert await service.count("status = 'failed' AND error_kind = 'evidence_incomplete'") == 14
    assert await service.count("status = 'completed' AND total_score BETWEEN 0 AND 100") == len(RECORDED) - 14
