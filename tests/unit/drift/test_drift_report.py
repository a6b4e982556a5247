"""Texts about drift: findings, estimates with intervals, waiting states, refused arguments."""

import shlex
import uuid
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from click.testing import CliRunner
from pydantic_core import to_json

from tables import table
from tarsy_scoring.cli import cli
from tarsy_scoring.events import DriftDetected
from tarsy_scoring.studies.detection import AnchorJudgement, ChainScore, Tenure
from tarsy_scoring.studies.drift_report import standing_of
from tarsy_scoring.studies.estimates import Estimate
from tarsy_scoring.studies.findings import Finding, Situation, event_of

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40)


def a_finding(**changes: Any) -> Finding:
    found = Finding(
        event_id=uuid.UUID(int=7),
        look="sessions",
        chain_id="kubernetes",
        criteria="methodology",
        criteria_hash="h",
        old_fingerprint="a" * 64,
        new_fingerprint="b" * 64,
        cause="judge",
        is_clear=True,
        judge=estimate(-8, -9.5, -6.5),
        whole=estimate(-7, -10, -4),
        agents=estimate(1, -3, 5),
        began_at=NOON,
        anchors=40,
        anchors_missing=0,
        compared_before=400,
        compared_after=300,
        meaning=["The judge changed."],
        found_at=NOON,
        is_event=True,
        published_at=None,
    )
    return replace(found, **changes)


def test_event_repeats_its_finding() -> None:
    """The size is that of the cause; the same finding gives the same event."""
    event = event_of(a_finding())

    published = DriftDetected.model_validate_json(to_json(event))
    assert (published.chain_id, published.meaning) == ("kubernetes", ["The judge changed."])
    assert (event["size_points"], event["interval"]) == (-8, [-9.5, -6.5])
    assert event["timestamp_us"] == int(NOON.timestamp()) * 1_000_000
    assert event == event_of(a_finding())
    assert event_of(a_finding(cause="both"))["size_points"] == -7
    assert event_of(a_finding(cause="agents"))["interval"] == [-3, 5]


def standing(*, both: int = 40, after: int = 100, old: str | None = "a", outstanding: int = 0, days: int = 0) -> str:
    score = ChainScore(NOON, NOON, "b", "h", None, 60.0)
    tenure = Tenure("b", [score] * after, old, [score])
    said = [AnchorJudgement(f"s-{n}", judge, 60.0, "k") for n in range(both) for judge in "ab"]
    return standing_of(Situation("k", "c", tenure, said, outstanding), [], NOON + timedelta(days=days)).meaning


def test_standing_says_what_the_next_look_waits_for() -> None:
    assert standing(old=None) == ("One judge gave the recent scores. A change of the agents is looked for once a day.")
    assert standing() == "Another judge took over at 2026-03-10 12:00 UTC. 40 anchors were judged by both judges."
    assert "and the new judge gave 60 scores (there are 20), and after 14 days" in standing(after=20)
    assert "40 anchors were judged by both judges, 3 are still to be." in standing(outstanding=3)
    assert "after 14 days" not in standing(outstanding=3, days=15)
    assert "Without anchors that both judged, its part cannot be separated" in standing(both=0)


@table
def test_invalid_arguments_are_refused(arguments: str, says: str) -> None:
    environ = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    ended = CliRunner().invoke(cli, shlex.split(arguments), env=environ)
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
