"""The request that intake decodes from a record, without a broker and without a database."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from tables import table
from tarsy_scoring.config.chains import Config
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.queue.admission import Policy, Priority, Request
from tarsy_scoring.queue.inbox import Inbox
from tarsy_scoring.queue.intake import Intake
from tarsy_scoring.telemetry.metrics import Metrics

NOW_S = 1_800_000_000.0
BROKERS: dict[str, Any] = {"kafka_bootstrap_servers": "127.0.0.1:9"}
REPLAYED = (
    ("scoring-original-topic", b"session-completed"),
    ("scoring-original-partition", b"4"),
    ("scoring-original-offset", b"7"),
    ("scoring-original-timestamp", b"1000"),
)


def intake_with(**config: Any) -> Intake:
    settings = Settings(config=Config(**config), **BROKERS)
    database = Database("postgresql://127.0.0.1:9/x", "public", pool_size=1)
    return Intake(settings, Inbox(database, Policy(settings, {})), cast(Any, None), Metrics(), clock=lambda: NOW_S)


def record(topic: str, fields: dict[str, Any], **changes: Any) -> Record:
    value = json.dumps({"session_id": "s1"} | fields).encode()
    return replace(Record(topic, 0, 5, round(NOW_S * 1000), None, value, ()), **changes)


def decoded(topic: str, fields: dict[str, Any] | None = None, /, at: Intake | None = None, **changes: Any) -> Request:
    return (at or intake_with()).decode(record(topic, fields or {}, **changes))


def test_absent_fields_of_a_completed_session() -> None:
    request = decoded("session-completed")

    assert (request.source, request.session_status, request.labels) == ("session-completed", "completed", {})
    assert (request.completed_at, request.is_stale, request.event_id) == (None, False, None)


def test_a_time_without_a_zone_is_utc() -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    for text in ("2026-03-01T12:00:00", "2026-03-01T12:00:00Z", "2026-03-01T13:00:00+01:00"):
        assert decoded("session-completed", {"completed_at": text}).completed_at == noon


def test_an_event_is_stale_beyond_the_configured_age() -> None:
    """An event without a time is never stale. Headers that any producer can write change nothing."""
    limited, old = intake_with(max_event_age_s=60), round(NOW_S * 1000) - 60_001
    table: list[tuple[Intake, dict[str, Any], bool]] = [
        (limited, {"timestamp_ms": old}, True),
        (limited, {"timestamp_ms": old + 1}, False),
        (limited, {"timestamp_ms": old, "headers": REPLAYED}, True),
        (limited, {"timestamp_ms": 0}, False),
        (limited, {"timestamp_ms": -1}, False),
        (intake_with(max_event_age_s=None), {"timestamp_ms": 1}, False),
    ]
    for row, (intake, changes, is_stale) in enumerate(table):
        assert decoded("session-completed", at=intake, **changes).is_stale is is_stale, row


def test_a_rescore_request_forces_unless_it_says_no() -> None:
    for said, force in (({}, True), ({"force": None}, True), ({"force": True}, True), ({"force": False}, False)):
        request = decoded("rescore-requested", said)

        assert request.force is force
        assert (request.requested_by, request.priority) == ("event", Priority.PEOPLE)
    assert decoded("rescore-requested", {"requested_by": "alice"}).requested_by == "alice"


def test_the_same_message_is_the_same_request() -> None:
    """By its event id wherever it stands; without one, by its original place and its content."""
    named, unnamed = {"event_id": "e1"}, {"labels": {"a": "b"}}

    def ids(*messages: tuple[dict[str, Any], dict[str, Any]]) -> int:
        return len({decoded("session-completed", fields, **changes).request_id for fields, changes in messages})

    assert ids((named, {"offset": 5}), (named, {"offset": 6}), (named | unnamed, {"partition": 1})) == 1
    assert ids((unnamed, {}), (unnamed, {"headers": (("other", b"x"),)})) == 1
    assert ids((unnamed, {"offset": 5}), (unnamed, {"offset": 6}), (unnamed, {"partition": 1}), ({}, {})) == 4
    assert ids((unnamed, {"headers": REPLAYED, "offset": 8}), (unnamed, {"headers": REPLAYED, "offset": 9})) == 2


def test_reference_of_a_rescore_request_forces_and_is_masked() -> None:
    """Without a name and a time, they are those of the event. Also a refusal of the stored reference forces."""
    own = intake_with(masking_patterns={"ticket": "INC-[0-9]+"})
    given = {"text": "INC-4711: password=hunter2hunter2", "source_url": "https://tickets.example/4711"}

    request = decoded("rescore-requested", {"reference": given, "requested_by": "ada", "force": False}, own)
    named = decoded(
        "rescore-requested", {"reference": {"text": "x", "provided_by": "grace", "provided_at": "2026-03-01T12:00:00"}}
    )
    declined = decoded("rescore-requested", {"use_reference": False, "force": False})

    reference = request.reference
    assert reference is not None
    assert (request.force, request.use_reference) == (True, True)
    assert reference.text == "[REDACTED:ticket#1]: password=[REDACTED:password#2]"
    assert (reference.source_url, reference.provided_by) == (given["source_url"], "ada")
    assert reference.provided_at == datetime.fromtimestamp(NOW_S, UTC)
    assert named.reference is not None
    assert named.reference.provided_by == "grace"
    assert named.reference.provided_at == datetime(2026, 3, 1, 12, tzinfo=UTC)
    assert (declined.force, declined.use_reference, declined.reference) == (True, False, None)


def test_reference_of_an_event_keeps_its_sender_and_can_be_refused() -> None:
    """A refused one leaves a request that forces a score, flagged, and a line in the log."""
    fields = {"reference": {"text": "x", "provided_by": "ciso@corp"}, "requested_by": "mallory-pod", "force": False}
    kept = decoded("rescore-requested", fields)
    unnamed = decoded("rescore-requested", {"reference": {"text": "x"}})
    with capture_logs() as lines:
        refused = decoded("rescore-requested", fields, intake_with(references={"from_events": False}))

    assert kept.reference is not None
    assert unnamed.reference is not None
    assert (kept.reference.provided_by, kept.reference.sent_by) == ("ciso@corp", "event: mallory-pod")
    assert (unnamed.reference.sent_by, kept.is_reference_refused) == ("event", False)
    assert (refused.reference, refused.force, refused.is_reference_refused) == (None, True, True)
    assert [(line["event"], line["requested_by"]) for line in lines] == [("intake.reference_refused", "mallory-pod")]


def test_what_a_sender_writes_is_masked_on_arrival() -> None:
    """Also what only the name of a label announces, and the operator's own secrets."""
    own = intake_with(masking_patterns={"ticket": "INC-[0-9]+"})
    labels = {"password": "hunter2hunter2", "INC-4711": "see INC-4712", "guidance": "v2", "a=b": "c"}
    event = decoded("session-completed", {"labels": labels, "alert_type": "INC-4713 down"}, own)
    request = decoded("rescore-requested", {"reason": "api_key=hunter2hunter2"}, own)

    assert event.labels == {
        "password": "[REDACTED:password#1]",
        "[REDACTED:ticket#1]": "see [REDACTED:ticket#1]",
        "guidance": "v2",
        "a=b": "c",
    }
    assert event.alert_type == "[REDACTED:ticket#1] down"
    assert request.reason == "api_key=[REDACTED:token#1]"


@table
def test_reference_that_is_not_valid_is_a_dead_letter(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        decoded("rescore-requested", fields)

    assert caught.value.reason == "invalid_field"
