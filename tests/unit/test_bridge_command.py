"""The command `bridge` refuses invalid options before it connects; its events have stable ids."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from click.testing import CliRunner
from pydantic_core import from_json

from tables import table
from tarsy_scoring.commands.bridge import bridge
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SessionCompleted, decode
from tarsy_scoring.tarsy.announcer import event_id_of, message_of
from tarsy_scoring.tarsy.sessions import EndedSession

OURS = {"SCORING_DATABASE_URL": "postgresql://a/b", "SCORING_KAFKA_BOOTSTRAP_SERVERS": "broker:9092"}
NOW = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)


def ended(**changes: Any) -> EndedSession:
    fields: dict[str, Any] = {
        "session_id": "one",
        "chain_id": "kubernetes",
        "alert_type": "PodCrash",
        "status": "completed",
        "created_at": NOW - timedelta(hours=1),
        "ended_at": NOW,
        "is_deleted": False,
        "labels": {"noise": "true"},
    } | changes
    return EndedSession(**fields)


@table
def test_a_missing_setting_is_named(changes: dict[str, Any], says: str) -> None:
    refused = CliRunner().invoke(bridge, [], env=OURS | changes)
    assert isinstance(refused.exception, ConfigurationError)
    assert says in str(refused.exception)


@table
def test_an_invalid_or_future_time_is_refused(since: str, says: str) -> None:
    refused = CliRunner().invoke(bridge, ["--since", since], env=OURS)
    assert refused.exit_code == 2
    assert says in refused.output


def test_each_end_of_each_session_has_its_own_event_id() -> None:
    for other in ({"session_id": "two"}, {"status": "timed_out"}, {"ended_at": NOW + timedelta(microseconds=1)}):
        assert event_id_of(ended()) != event_id_of(ended(**other))


def test_an_event_id_never_changes() -> None:
    """No other field of a session and no later version of ours makes an old event new."""
    changed = ended(labels={}, chain_id=None, alert_type="x", created_at=NOW)

    assert event_id_of(changed) == event_id_of(ended()) == uuid.UUID("49f24d30-8029-5260-b35a-8029322ff976")


def test_intake_understands_the_message() -> None:
    key, value, headers = message_of(ended(chain_id=None), NOW)

    event = decode(SessionCompleted, value)
    assert (key, event.session_id, event.chain_id, event.labels) == (b"one", "one", None, {"noise": "true"})
    assert event.completed_at == NOW
    assert dict(headers)["ce_type"] == b"session.completed"
    assert dict(headers)["ce_id"].decode() == from_json(value)["event_id"]
