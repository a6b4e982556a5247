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
from tarsy_scoring.signals.publisher import DRIFT_KEY
from tarsy_scoring.statistics.agreement import Estimate
from tarsy_scoring.statistics.drift import AnchorJudgement
from tarsy_scoring.studies.detection import ChainScore, Look, Situation, Tenure, detect_new_judge
from tarsy_scoring.studies.drift_loop import message_of
from tarsy_scoring.studies.drift_report import in_points, standing_of
from tarsy_scoring.studies.findings import Finding, event_of

NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


def estimate(value: float | None, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value, low, high, 40, None, "a method")


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


def test_event_key_is_a_drift_key() -> None:
    key, _, _ = message_of(event_of(a_finding()))

    assert DRIFT_KEY.fullmatch(key.decode())


def test_change_is_written_with_its_interval() -> None:
    assert in_points(estimate(-8, -9.5, -6.5)) == "-8.0 (-9.5 to -6.5)"
    assert in_points(estimate(3)) == "+3.0, no interval"
    assert in_points(estimate(0, 0, 0)) == "+0.0"
    assert in_points(estimate(None)) == "unknown"


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


def situation(
    judged_by_both: int,
    *,
    after: int = 100,
    old: str | None = "a",
    outstanding: int = 0,
    judges: int = 2,
    unknown: int = 0,
) -> Situation:
    score = ChainScore(NOON, "b", None, 60.0, NOON, "h")
    tenure = Tenure("b", NOON if old else None, [score] * after, old, [score], judges)
    said = [AnchorJudgement(f"s-{n}", judge, 60.0, "k") for n in range(judged_by_both) for judge in "ab"]
    return Situation("k", "c", tenure, said, outstanding, unknown)


@table
def test_standing_says_what_the_next_look_waits_for(
    judged_by_both: int, found: dict[str, Any], looked: list[Look], days: int, says: str, is_silent_about: str
) -> None:
    """Each state names its own reason and no other."""
    meaning = standing_of(situation(judged_by_both, **found), looked, NOON + timedelta(days=days)).meaning

    assert says in meaning
    assert is_silent_about not in meaning, meaning


def test_anchors_of_other_chains_are_mentioned_where_they_count() -> None:
    for found, lenders, says in (
        (situation(40), 0, None),
        (situation(0), 0, None),
        (situation(5), 1, "estimated from 2 chains"),
        (situation(0), 1, "not in the interval"),
    ):
        lent = [
            AnchorJudgement(f"o-{n}", judge, total, "other")
            for n in range(40 * lenders)
            for judge, total in (("a", 50.0), ("b", 49.0 + n % 3))
        ]
        drift = detect_new_judge(replace(found, judgements=[*found.judgements, *lent]), "sessions")
        meaning = " ".join(drift.meaning)
        assert ("those of other chains do, too" in meaning) == (says is not None)
        assert says is None or says in meaning


def test_report_says_when_only_own_anchors_count() -> None:
    lent = [
        AnchorJudgement(f"o-{n}", judge, total, "other")
        for n in range(40)
        for judge, total in (("a", 50.0), ("b", 80.0 + n % 3))
    ]
    found = situation(10)

    drift = detect_new_judge(replace(found, judgements=[*found.judgements, *lent]), "sessions")

    assert (drift.judge.value, drift.judge.n) == (0, 10)
    assert "Only the 10 anchors of this chain count" in drift.meaning[-1]


def test_comparison_of_anchors_alone_does_not_ask_for_sessions() -> None:
    drift = detect_new_judge(situation(40), "anchors")

    assert (drift.cause, drift.compared) == ("none", (0, 0))
    assert drift.meaning[0].startswith("No change of the judge is shown: the same sessions get +0.0 points (")
    assert "too few" not in " ".join(drift.meaning)


@table
def test_invalid_arguments_are_refused(arguments: str, says: str) -> None:
    environ = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    ended = CliRunner().invoke(cli, shlex.split(arguments), env=environ)
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
