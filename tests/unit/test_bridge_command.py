"""The command `bridge` refuses wrong options before it connects; events and their ids."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from click.testing import CliRunner
from pydantic_core import from_json

from tarsy_scoring.commands.bridge import bridge
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import decode_session_completed
from tarsy_scoring.tarsy.announcer import event_id_of, message_of
from tarsy_scoring.tarsy.sessions import EndedSession, LogOnce

OURS = {"SCORING_DATABASE_URL": "postgresql://a/b", "SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker:9092"}
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def ended(**changes: Any) -> EndedSession:
    told = {
        "session_id": "one",
        "chain_id": "kubernetes",
        "alert_type": "PodCrash",
        "status": "completed",
        "created_at": NOW - timedelta(hours=1),
        "ended_at": NOW,
        "is_deleted": False,
        "labels": {"noise": "true"},
    } | changes
    return EndedSession(**told)


@pytest.mark.parametrize(
    ("env", "says"),
    [
        pytest.param(OURS, "SCORING_TIMELINE_DATABASE_URL is not set", id="no-tarsy"),
        pytest.param(
            OURS | {"SCORING_KAFKA_BOOTSTRAP_SERVERS": ""}, "KAFKA_BOOTSTRAP_SERVERS is not set", id="no-broker"
        ),
        pytest.param(OURS | {"SCORING_DATABASE_URL": ""}, "SCORING_DATABASE_URL is not set", id="no-database"),
        pytest.param(
            OURS | {"SCORING_TIMELINE_DATABASE_URL": "postgresql://a:99999/b"},
            "SCORING_TIMELINE_DATABASE_URL: 99999 is no port",
            id="wrong-tarsy",
        ),
    ],
)
def test_what_is_missing_is_named(env: dict[str, str], says: str) -> None:
    """The variable, and what to give."""
    told = CliRunner().invoke(bridge, [], env=env)

    assert isinstance(told.exception, ConfigurationError)
    assert says in str(told.exception)


def test_a_time_that_is_none_is_asked_wrongly() -> None:
    """With an example of one."""
    told = CliRunner().invoke(bridge, ["--since", "last week"], env=OURS)

    assert told.exit_code == 2
    assert "2026-01-31" in told.output


def test_a_time_to_come_is_asked_wrongly() -> None:
    """A bridge that announces nothing would look healthy."""
    told = CliRunner().invoke(bridge, ["--since", "2999-01-01"], env=OURS)

    assert told.exit_code == 2
    assert "in the future" in told.output


@pytest.mark.parametrize(
    "changes",
    [{"session_id": "two"}, {"status": "timed_out"}, {"ended_at": NOW + timedelta(microseconds=1)}],
    ids=["session", "status", "time-of-the-end"],
)
def test_an_event_id_is_of_one_end_of_one_session(changes: dict[str, Any]) -> None:
    """Another session, status or time is another event."""
    assert event_id_of(ended()) != event_id_of(ended(**changes))


def test_an_event_id_is_the_same_for_ever() -> None:
    """Nothing else that TARSy may change about a session makes old events new, nor does another version of ours."""
    changed = ended(labels={}, chain_id=None, alert_type="x", created_at=NOW)

    assert event_id_of(changed) == event_id_of(ended()) == uuid.UUID("49f24d30-8029-5260-b35a-8029322ff976")


def test_a_problem_is_logged_once_per_session() -> None:
    """Of a bounded number of sessions; the oldest is forgotten first."""
    logged = LogOnce(2)

    assert [logged.is_first(session_id) for session_id in "aabcba"] == [True, False, True, True, False, True]


def test_amessage_of_is_what_intake_understands() -> None:
    """And what others can route by its headers."""
    key, value, headers = message_of(ended(chain_id=None), NOW)

    event = decode_session_completed(value)
    assert (key, event.session_id, event.chain_id, event.labels) == (b"one", "one", None, {"noise": "true"})
    assert event.completed_at == NOW
    assert dict(headers)["ce_type"] == b"session.completed"
    assert dict(headers)["ce_id"].decode() == from_json(value)["event_id"]
