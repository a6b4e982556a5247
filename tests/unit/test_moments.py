"""Times from outside, by the one rule of every door."""

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest

from tarsy_scoring.errors import InvalidMessage
from tarsy_scoring.events import SessionCompleted, decode
from tarsy_scoring.postgres.moments import FIRST, LAST, moment

NEW_YORK = timezone(timedelta(hours=-5))
READ: dict[Any, datetime] = {
    "2026-11-29T12:00:00Z": datetime(2026, 11, 29, 12, tzinfo=UTC),
    "2026-11-29T12:00:00.5-05:00": datetime(2026, 11, 29, 17, 0, 0, 500_000, tzinfo=UTC),
    "2026-11-29 12:00": datetime(2026, 11, 29, 12, tzinfo=UTC),
    1_800_000_000.25: datetime(2027, 1, 15, 8, 0, 0, 250_000, tzinfo=UTC),
    datetime(2026, 11, 29, 12, tzinfo=NEW_YORK): datetime(2026, 11, 29, 17, tzinfo=UTC),
    FIRST: FIRST,
}
ZERO_TIMES = (
    *("0001-01-01T00:00:00Z", "0001-01-01T00:00:00+08:00", "0001-01-01T00:00:00"),
    *("9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-08:00", "1969-12-31T23:59:59Z", "2200-01-01T00:00:00Z"),
    # Texts that Python does not read at all: zero dates of MySQL, years of Java, a day that no month has.
    *("0000-00-00T00:00:00Z", "+292278994-08-17T07:12:55.807Z", "-292275055-05-16T16:47:04Z", "2026-02-30T00:00:00Z"),
)
EARLIEST = datetime.min.replace(tzinfo=timezone(timedelta(hours=14)))
NOT_READ = (
    EARLIEST,
    *ZERO_TIMES,
    *(datetime.min, datetime.max, LAST, 0, -1, 1.8e15, 1e300, float("nan"), True, None, "now", b""),
)


def test_times_are_read_in_utc() -> None:
    for value, expected in READ.items():
        read = moment(value)
        assert read == expected
        assert read.tzinfo is UTC


@pytest.mark.parametrize("value", NOT_READ)
def test_a_time_that_cannot_be_is_absent(value: object) -> None:
    assert moment(value) is None


def test_no_zero_time_costs_the_event() -> None:
    for text in ZERO_TIMES:
        event = decode(SessionCompleted, b'{"session_id": "s", "completed_at": "%s"}' % text.encode())
        assert (event.session_id, event.completed_at) == ("s", None), text
    with pytest.raises(InvalidMessage):
        decode(SessionCompleted, b'{"session_id": "s", "completed_at": "yesterday"}')
