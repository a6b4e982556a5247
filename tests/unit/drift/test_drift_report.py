"""The event of a finding, and refused arguments of `anchors`."""

import shlex
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from click.testing import CliRunner
from jsonschema import Draft202012Validator
from pydantic_core import from_json, to_json

from tables import table
from tarsy_scoring.cli import cli
from tarsy_scoring.studies.estimates import Estimate
from tarsy_scoring.studies.findings import Finding, event_of

SCHEMA = Path(__file__).parents[3] / "schemas/scoring-drift-detected.v1.json"
NOON = datetime(2026, 3, 10, 12, tzinfo=UTC)


FOUND = Finding(
    event_id=uuid.UUID(int=7),
    look="sessions",
    chain_id="kubernetes",
    criteria="methodology",
    criteria_hash="h",
    old_fingerprint="a" * 64,
    new_fingerprint="b" * 64,
    cause="judge",
    is_clear=True,
    judge=Estimate(-8, -9.5, -6.5, 40),
    whole=Estimate(-7, -10, -4, 700),
    agents=Estimate(1, -3, 5, 700),
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


def test_event_repeats_its_finding() -> None:
    """The size is that of the cause; the same finding gives the same event."""
    event = event_of(FOUND)

    published = from_json(to_json(event))
    Draft202012Validator(from_json(SCHEMA.read_bytes())).validate(published)
    assert (published["chain_id"], published["meaning"]) == ("kubernetes", ["The judge changed."])
    assert (event["size_points"], event["interval"]) == (-8, [-9.5, -6.5])
    assert event["timestamp_us"] == int(NOON.timestamp()) * 1_000_000
    assert event == event_of(FOUND)
    assert event_of(replace(FOUND, cause="both"))["size_points"] == -7
    assert event_of(replace(FOUND, cause="agents"))["interval"] == [-3, 5]


@table
def test_invalid_arguments_are_refused(arguments: str, says: str) -> None:
    environ = {"SCORING_DATABASE_URL": "postgresql://nobody@127.0.0.1:9/none"}
    ended = CliRunner().invoke(cli, shlex.split(arguments), env=environ)
    assert ended.exit_code == 2
    assert says in " ".join(ended.stderr.split())
