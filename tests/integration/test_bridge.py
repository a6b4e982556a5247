"""The bridge: every session that ended is announced, whatever was away, late or in the way."""

import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from builders import connected
from infrastructure import Kafka, Postgres, fresh_database, wait_until
from proxy import DatabaseProxy
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SessionCompleted, decode_session_completed
from tarsy_scoring.kafka.clients import BrokerAway, Headers, Publisher, Record, TooLarge
from tarsy_scoring.kafka.topics import ensure_topics, read_topic
from tarsy_scoring.postgres import database as database_module
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.records.erasure import hash_of
from tarsy_scoring.tarsy import announcer
from tarsy_scoring.tarsy import bridge as bridge_module
from tarsy_scoring.tarsy import database as tarsy_module
from tarsy_scoring.tarsy import sessions as tarsy_sessions
from tarsy_scoring.tarsy.announcer import BEGINNING
from tarsy_scoring.tarsy.bridge import Bridge
from tarsy_scoring.tarsy.database import STATUS_MESSAGE, TIMEOUT_S, TarsyAway, TarsyPool, TarsyUnfit
from tarsy_scoring.tarsy.schema import SESSION_TABLES
from tarsy_scoring.tarsy.sessions import STATUSES, TarsySessions, open_tarsy_sessions, sessions_gone
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.tarsy import create_tables

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Older than what a look calls fresh, at whatever moment of a run a test begins: what is to be fresh says so.
NOW = datetime.now(UTC).replace(microsecond=0) - HOUR / 4
DEAD_URL = "postgresql://nobody@127.0.0.1:9/tarsy"
Start = Callable[..., Bridge]


@pytest.fixture(scope="module")
def database_urls(postgres: Postgres, _migrated_template: str) -> Iterator[tuple[str, str]]:
    """Ours and TARSy's, for all tests here: they are emptied, which takes less than making them."""
    with fresh_database(postgres, _migrated_template) as ours, fresh_database(postgres) as tarsys:
        yield ours, tarsys


@pytest.fixture
async def settings(kafka: Kafka, database_urls: tuple[str, str]) -> Settings:
    """Empty tables, and a topic of its own."""
    ours, tarsys = database_urls
    async with connected(ours) as connection:
        await connection.execute("TRUNCATE bridge_bookmark, bridge_announced, erasures, sessions CASCADE")
    async with connected(tarsys) as connection:
        await connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    await create_tables(tarsys)
    topic = f"session-completed-{uuid.uuid4().hex[:8]}"
    settings = load_settings(
        {
            "SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
            "SCORING_TOPIC_SESSION_COMPLETED": topic,
            "SCORING_CREATE_TOPICS": "true",
            "SCORING_TOPIC_PARTITIONS": "2",
            "SCORING_DATABASE_URL": ours,
            "SCORING_TIMELINE_DATABASE_URL": tarsys,
        }
    )
    await ensure_topics(settings, [topic])
    return settings


@pytest.fixture
def tarsy_url(settings: Settings, database_urls: tuple[str, str]) -> str:
    return database_urls[1]


@pytest.fixture
async def tarsy(tarsy_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(tarsy_url) as connection:
        yield connection


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    opened = Database(settings.require_database(), "public", pool_size=4)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def start(settings: Settings, database: Database) -> AsyncIterator[Start]:
    """A process's bridge; a second one knows nothing but what is stored."""
    async with contextlib.AsyncExitStack() as stack:

        def call(since: datetime | None = BEGINNING, **changes: Any) -> Bridge:
            changed = settings.model_copy(update=changes)
            sessions = open_tarsy_sessions(changed)
            made = Bridge(changed, database, sessions, Metrics(), since)
            stack.push_async_callback(sessions.tarsy.close)
            stack.push_async_callback(made._announcer.stop)
            return made

        yield call


async def put(
    tarsy: asyncpg.Connection, session_id: str, status: str = "completed", *, created: datetime = NOW, **columns: Any
) -> None:
    """A session of TARSy's; it ended a minute after it was created, if at all."""
    ended = created + timedelta(minutes=1) if status in STATUSES else None
    row = {
        "session_id": session_id,
        "alert_data": "x",
        "agent_type": "a",
        "chain_id": "kubernetes",
        "status": status,
        "created_at": created,
        "completed_at": ended,
    } | columns
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await tarsy.execute(f"INSERT INTO alert_sessions ({', '.join(row)}) VALUES ({places})", *row.values())


async def end(tarsy: asyncpg.Connection, session_id: str, status: str = "completed") -> None:
    await tarsy.execute(
        "UPDATE alert_sessions SET status = $2, completed_at = clock_timestamp() WHERE session_id = $1",
        session_id,
        status,
    )


async def swept(bridge: Bridge) -> Bridge:
    """The bridge after a look and a whole sweep."""
    await bridge.open_bookmark()
    bridge._swept_at = None
    await run_dry(bridge)
    return bridge


async def run_dry(bridge: Bridge) -> None:
    while await bridge.run_once():
        pass


async def records(settings: Settings) -> list[Record]:
    return [r async for r in read_topic(settings, settings.topic_session_completed)]


async def events(settings: Settings) -> list[SessionCompleted]:
    return [decode_session_completed(r.value) for r in await records(settings)]


async def announced(settings: Settings) -> list[str]:
    """Session ids on the topic, each as often as it stands there."""
    return sorted(e.session_id for e in await events(settings))


async def until_announced(settings: Settings, session_id: str) -> None:
    """Wait until this one stands on the topic, alone."""

    async def is_there() -> bool:
        return await announced(settings) == [session_id]

    await wait_until(is_there, 30, f"{session_id} is announced")


async def value(database: Database, statement: str) -> Any:
    return await database.once(lambda c: c.fetchval(statement))


# --- what is announced ------------------------------------------------------------------------------------


async def test_whatever_ended_is_announced_and_nothing_else(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """All four ends; not what still runs, in a known status or not, nor what was deleted."""
    for status in (*STATUSES, "in_progress", "pending", "cancelling", "hibernating"):
        await put(tarsy, status, status)
    await put(tarsy, "deleted", deleted_at=NOW)

    await swept(start())

    assert await announced(settings) == sorted(STATUSES)


async def test_an_event_says_what_tarsy_knows(start: Start, settings: Settings, tarsy: asyncpg.Connection) -> None:
    """A list of labels becomes a map to `true`; the record is keyed by the session."""
    await put(tarsy, "one", "failed", alert_type="PodCrash", labels='["noise", "watch"]')

    await swept(start())

    [record] = await records(settings)
    event = decode_session_completed(record.value)
    assert record.key == b"one"
    assert (event.status, event.chain_id, event.alert_type) == ("failed", "kubernetes", "PodCrash")
    assert event.completed_at == NOW + timedelta(minutes=1)
    assert event.labels == {"noise": "true", "watch": "true"}
    assert event.event_id == str(uuid.UUID(event.event_id))


async def test_the_first_start_announces_nothing_of_before(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """Without a time it begins now; a session that was created earlier and ends later counts."""
    await put(tarsy, "before", created=NOW - HOUR)
    await put(tarsy, "running", "in_progress", created=NOW - HOUR)
    bridge = await swept(start(None))
    await end(tarsy, "running")

    await swept(bridge)

    assert await announced(settings) == ["running"]


async def test_another_time_begins_anew_and_the_same_does_not(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """An orchestrator repeats the option at every start."""
    since = NOW - 2 * HOUR
    await put(tarsy, "old", created=NOW - 10 * DAY)
    await put(tarsy, "recent", created=NOW - HOUR)
    await swept(start(since))
    await swept(start(since))
    await swept(start(None))
    assert await announced(settings) == ["recent"]

    await swept(start(BEGINNING))

    assert await announced(settings) == ["old", "recent"]


async def test_nothing_is_announced_twice(start: Start, settings: Settings, tarsy: asyncpg.Connection) -> None:
    """Neither by the next sweep nor by another process."""
    for n in range(5):
        await put(tarsy, f"s{n}")

    await swept(await swept(start()))
    await swept(start())

    assert len(await records(settings)) == 5


async def test_another_end_of_the_same_session_is_another_event(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """TARSy's recovery of orphans may turn `completed` into `timed_out`."""
    await put(tarsy, "one")
    bridge = await swept(start())
    await end(tarsy, "one", "timed_out")

    await swept(bridge)

    first, second = await events(settings)
    assert (first.status, second.status) == ("completed", "timed_out")
    assert first.event_id != second.event_id


async def test_a_session_id_that_no_event_may_carry_stops_nobody(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """It is left out, and all others go; once it is told which one, as a log can hold it."""
    for session_id in ("a b\n\x1b[2J", "fine", "-x" + 1000 * "y"):
        await put(tarsy, session_id)

    with capture_logs() as logs:
        await swept(await swept(start()))

    assert await announced(settings) == ["fine"]
    told = [(line["session_id"], line["length"]) for line in logs if line["event"] == "bridge.unusable_session_id"]
    assert sorted(told) == [("-x" + 58 * "y", 1002), ("a b\\n\\x1b[2J", 8)]


# What a row may hold that nobody can read, with what is left out of its event.
DEEP, LONG = "[" * 3000 + "]" * 3000, "9" * 5000
ODD_VALUES = {
    "never": ("completed_at = 'infinity'", ["completed_at"]),
    "always": ("completed_at = '-infinity'", ["completed_at"]),
    "year-20000": ("completed_at = '20000-01-01'", ["completed_at"]),
    "before-christ": ("completed_at = '0044-03-15 BC'", ["completed_at"]),
    "zero-time-of-go": ("completed_at = '0001-01-01 00:00:00+00'", ["completed_at"]),
    "deep-labels": (f"labels = '{DEEP}'", ["labels"]),
    "deep-label": (f"""labels = '{{"a": {DEEP}}}'""", ["labels"]),
    "label-of-many-digits": (f"""labels = '{{"a": {LONG}}}'""", ["labels"]),
    "both": (f"completed_at = 'infinity', labels = '{DEEP}'", ["completed_at", "labels"]),
}


async def test_a_row_that_cannot_be_read_costs_no_more_than_that(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """It is announced by a look and by a sweep without what nobody can read, which is told once; so are all others."""
    for name in ODD_VALUES:
        await put(tarsy, f"swept-{name}", labels='["watch"]')
        await put(tarsy, f"seen-{name}", "in_progress", labels='["watch"]')
    bridge = start()
    await bridge.open_bookmark()
    await bridge.run_once()
    for name, (change, _) in ODD_VALUES.items():
        await tarsy.execute(
            "UPDATE alert_sessions SET status = 'failed', completed_at = created_at + interval '1 minute' "
            "WHERE session_id = $1",
            f"seen-{name}",
        )
        await tarsy.execute(f"UPDATE alert_sessions SET {change} WHERE session_id IN ('seen-{name}', 'swept-{name}')")
    await put(tarsy, "neighbour", labels='["watch"]')
    bridge._woken.set()

    with capture_logs() as logs:
        await bridge.run_once()
        assert await announced(settings) == sorted(f"seen-{name}" for name in ODD_VALUES)
        await swept(await swept(bridge))

    by_session = {e.session_id: e for e in await events(settings)}
    odd = [f"{which}-{name}" for name in ODD_VALUES for which in ("seen", "swept")]
    assert await announced(settings) == sorted(["neighbour", *odd])
    assert by_session.pop("neighbour").labels == {"watch": "true"}
    for session_id, event in by_session.items():
        left_out = ODD_VALUES[session_id.partition("-")[2]][1]
        assert event.completed_at == (NOW if "completed_at" in left_out else NOW + timedelta(minutes=1)), session_id
        assert event.labels == ({} if "labels" in left_out else {"watch": "true"}), session_id
    told = [(line["session_id"], line["left_out"]) for line in logs if line["event"] == "bridge.read_in_part"]
    assert sorted(told) == sorted((session_id, ODD_VALUES[session_id.partition("-")[2]][1]) for session_id in odd)


@pytest.mark.parametrize(
    ("kind", "labels"), [("text", "watch"), ("text[]", ["watch"])], ids=["labels-as-text", "labels-as-array"]
)
async def test_labels_of_another_type_are_left_out(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, kind: str, labels: object
) -> None:
    """Somebody's TARSy has another column by that name."""
    await tarsy.execute(f"ALTER TABLE alert_sessions DROP labels, ADD labels {kind}")
    await put(tarsy, "one", labels=labels)

    await swept(start())

    assert [(e.session_id, e.labels) for e in await events(settings)] == [("one", {})]


@pytest.mark.parametrize("created", ["infinity", "20000-01-01"])
async def test_a_creation_that_is_no_time_stops_nobody(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, created: str
) -> None:
    """More of them than a page holds, ended and still open; what is deleted at no time is deleted."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 2)
    monkeypatch.setattr(bridge_module, "PAGE", 2)
    for session_id in ("a", "b", "c", "deleted", "fine"):
        await put(tarsy, session_id)
    await put(tarsy, "open", "in_progress")
    await tarsy.execute(f"UPDATE alert_sessions SET created_at = '{created}' WHERE session_id <> 'fine'")
    await tarsy.execute("UPDATE alert_sessions SET deleted_at = 'infinity' WHERE session_id = 'deleted'")

    async with asyncio.timeout(60):
        await swept(start())

    assert await announced(settings) == ["a", "b", "c", "fine"]


def test_no_more_than_so_many_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first, and told again."""
    monkeypatch.setattr(tarsy_sessions, "TOLD_LIMIT", 2)
    told = tarsy_sessions.Told()

    assert [told.is_news(session_id) for session_id in "aabcba"] == [True, False, True, True, False, True]


async def test_labels_without_measure_stay_away(start: Start, settings: Settings, tarsy: asyncpg.Connection) -> None:
    """Everything else about the session is told."""
    await put(tarsy, "one", labels=f'["{"x" * 300_000}"]')

    await swept(start())

    [event] = await events(settings)
    assert (event.session_id, event.labels) == ("one", {})


# --- nothing is missed ------------------------------------------------------------------------------------


async def test_a_commit_that_comes_late_is_found(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, tarsy_url: str
) -> None:
    """It ended, by its own time, before others that were announced long ago."""
    async with connected(tarsy_url) as slow:
        transaction = slow.transaction()
        await transaction.start()
        await put(slow, "late", created=NOW - 3 * HOUR)
        await put(tarsy, "punctual")
        bridge = await swept(start())
        assert await announced(settings) == ["punctual"]
        await transaction.commit()

    await swept(bridge)

    assert await announced(settings) == ["late", "punctual"]


@pytest.mark.parametrize("status", ["in_progress", "a_status_of_next_year"])
async def test_what_is_open_is_never_lost(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database, status: str
) -> None:
    """It began long before the overlap, and ends while no bridge runs; what is younger is settled meanwhile."""
    await put(tarsy, "slow", status, created=NOW - 9 * DAY)
    await put(tarsy, "old", created=NOW - 8 * DAY)
    await swept(start(bridge_overlap_s=3600))
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") > NOW - 2 * HOUR
    await end(tarsy, "slow")

    await swept(await swept(start(bridge_overlap_s=3600)))

    assert await announced(settings) == ["old", "slow"]
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0


async def test_too_many_open_sessions_hold_back_what_is_settled(
    start: Start,
    settings: Settings,
    tarsy: asyncpg.Connection,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A bounded number is kept in mind; those after it are found by the sweeps."""
    monkeypatch.setattr(tarsy_sessions, "SWEEP_LIMIT", 2)
    for n in range(4):
        await put(tarsy, f"s{n}", "pending", created=NOW - 9 * DAY + n * HOUR)
    await put(tarsy, "other", "in_progress", created=NOW - 9 * DAY)
    await swept(start())
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") == NOW - 9 * DAY + HOUR
    await tarsy.execute("UPDATE alert_sessions SET status = 'cancelled'")

    await swept(start())

    assert await announced(settings) == ["other", "s0", "s1", "s2", "s3"]


async def test_what_was_seen_open_is_announced_whatever_its_times_say(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """The clock of its process is behind, or it has no time of the end."""
    for session_id in ("behind", "timeless", "behind-later", "timeless-later"):
        await put(tarsy, session_id, "in_progress", created=NOW - HOUR)
    bridge = await swept(start(None))
    ends = "UPDATE alert_sessions SET status = 'cancelled', completed_at = $2 WHERE session_id = $1"
    await tarsy.execute(ends, "behind", NOW - HOUR / 2)
    await tarsy.execute(ends, "timeless", None)
    bridge._woken.set()
    await bridge.run_once()
    assert await announced(settings) == ["behind", "timeless"], "a look found them"
    await tarsy.execute(ends, "behind-later", NOW - HOUR / 2)
    await tarsy.execute(ends, "timeless-later", None)

    await swept(await swept(start(None)))

    assert await announced(settings) == ["behind", "behind-later", "timeless", "timeless-later"]


async def test_a_restored_tarsy_ends_sessions_again(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """They are older than what is settled, and still remembered; one sweep in between sees them open."""
    await put(tarsy, "one", created=NOW - 3 * DAY)
    await swept(start(bridge_overlap_s=10 * 86_400))
    await tarsy.execute("UPDATE alert_sessions SET status = 'in_progress', completed_at = NULL")
    await swept(start())
    await end(tarsy, "one", "failed")

    await swept(start())

    assert [e.status for e in await events(settings)] == ["completed", "failed"]


async def test_what_is_gone_is_not_asked_for_for_ever(
    start: Start, tarsy: asyncpg.Connection, database: Database
) -> None:
    """An open session was deleted; a young one may only not have arrived at this server yet."""
    for session_id, created in (("removed", NOW - 3 * DAY), ("marked", NOW - 3 * DAY), ("young", NOW - HOUR)):
        await put(tarsy, session_id, "in_progress", created=created)
    await swept(start())
    await tarsy.execute("UPDATE alert_sessions SET deleted_at = now() WHERE session_id = 'marked'")
    await tarsy.execute("DELETE FROM alert_sessions WHERE session_id IN ('removed', 'young')")

    await swept(start())

    assert await value(database, "SELECT string_agg(session_id, ',') FROM bridge_announced") == "young"


async def test_a_sweep_over_two_servers_settles_nothing(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may not have received yet what the other has; everything is announced all the same, once."""
    for n in range(3):
        await put(tarsy, f"s{n}", "failed", created=NOW - 5 * DAY)
    elsewhere = tarsy_sessions.SERVER.replace("pg_is_in_recovery() ||", "'another' ||")
    assert elsewhere != tarsy_sessions.SERVER
    bridge = start()
    await bridge.open_bookmark()
    await bridge.run_once()
    monkeypatch.setattr(tarsy_sessions, "SERVER", elsewhere)
    await run_dry(bridge)
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") == BEGINNING

    await swept(bridge)

    assert await announced(settings) == ["s0", "s1", "s2"]
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") > NOW - 2 * DAY


@pytest.mark.parametrize(
    ("replayed", "settled"),
    [
        pytest.param("now() - interval '3 days'", timedelta(days=4), id="behind"),
        pytest.param("NULL::timestamptz", None, id="nothing-replayed"),
        pytest.param("now() + interval '1 day'", timedelta(days=1), id="clock-ahead"),
    ],
)
async def test_a_standby_settles_what_it_has_received(
    start: Start,
    tarsy: asyncpg.Connection,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
    replayed: str,
    settled: timedelta | None,
) -> None:
    """Its own clock says nothing of that."""
    standby = tarsy_sessions.SERVER.replace("pg_is_in_recovery()", "true")
    standby = standby.replace("pg_last_xact_replay_timestamp()", replayed)
    monkeypatch.setattr(tarsy_sessions, "SERVER", standby)

    await swept(start())

    found = await value(database, "SELECT settled_before FROM bridge_bookmark")
    expected = BEGINNING if settled is None else datetime.now(UTC) - settled
    assert abs(found - expected) < HOUR


async def test_a_bridge_that_lost_its_place_moves_nothing(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """Another one began anew meanwhile: a sweep from before must not settle for it."""
    await put(tarsy, "old", created=NOW - 5 * DAY)
    late = start(NOW - DAY)
    await late.open_bookmark()
    while await value(database, "SELECT coalesce(at_status, '') FROM bridge_bookmark") != STATUSES[-1]:
        await late.run_once()
    stored = await late._bookmark()
    await start(BEGINNING).open_bookmark()

    assert await late._settle(stored, NOW) is False
    await late._move(stored, stored)

    assert await value(database, "SELECT at_status IS NULL AND swept_at IS NULL FROM bridge_bookmark")
    await swept(start())
    assert await announced(settings) == ["old"]


async def test_a_bookmark_that_somebody_removed_is_written_again(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """With all that was kept in mind: nothing is missed, and what was nobody's business stays so."""
    await put(tarsy, "before", created=NOW - HOUR)
    for session_id in ("slow", "slower"):
        await put(tarsy, session_id, "in_progress", created=NOW - 9 * DAY)
    bridge = await swept(start(None))
    since = await value(database, "SELECT since FROM bridge_bookmark")
    await database.once(lambda c: c.execute("DELETE FROM bridge_bookmark; DELETE FROM bridge_announced"))
    await end(tarsy, "slow")
    await put(tarsy, "meanwhile", created=datetime.now(UTC))
    bridge._woken.set()

    await run_dry(bridge)

    assert await announced(settings) == ["meanwhile", "slow"]
    assert await value(database, "SELECT since FROM bridge_bookmark") == since
    assert await value(database, "SELECT swept_at IS NOT NULL FROM bridge_bookmark"), "it swept at once"
    await database.once(lambda c: c.execute("DELETE FROM bridge_bookmark"))
    await swept(bridge)
    assert await value(database, "SELECT since FROM bridge_bookmark") == since, "at the next lead as well"
    await end(tarsy, "slower")
    await swept(start(None))
    assert await announced(settings) == ["meanwhile", "slow", "slower"]


async def test_a_long_list_of_settled_ones_is_forgotten_at_once(
    start: Start, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bounded number in each statement, and until there are none."""
    monkeypatch.setattr(bridge_module, "FORGET", 3)
    await database.once(
        lambda c: c.execute(
            "INSERT INTO bridge_announced SELECT n::text, gen_random_uuid(), now() - interval '3 days' "
            "FROM generate_series(1, 10) n"
        )
    )

    await swept(start())

    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0


async def test_who_was_erased_is_not_announced_again(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """TARSy still has the session; an event would bring its id back."""
    for session_id in ("erased", "other"):
        await put(tarsy, session_id)
    await swept(start())
    await database.once(
        lambda c: c.execute(
            "DELETE FROM bridge_announced; INSERT INTO erasures (erased_by, why, session_hash, scores) "
            f"VALUES ('bob', 'asked', '{hash_of('erased')}', 0)"
        )
    )

    await swept(start())

    assert await announced(settings) == ["erased", "other", "other"]
    assert await value(database, "SELECT string_agg(session_id, ',') FROM bridge_announced") == "other"


async def test_what_is_settled_is_not_read_again_and_forgotten(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """A sweep begins where the last one settled, and nobody remembers what none will meet."""
    for n in range(3):
        await put(tarsy, f"old{n}", created=NOW - 5 * DAY)
    await put(tarsy, "new")
    bridge = await swept(start(bridge_overlap_s=10 * 86_400))
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 4

    await swept(start(bridge_overlap_s=3600))

    assert await value(database, "SELECT string_agg(session_id, ',') FROM bridge_announced") == "new"
    settled = await value(database, "SELECT settled_before FROM bridge_bookmark")
    assert abs(datetime.now(UTC) - HOUR - settled) < HOUR / 2
    await put(tarsy, "impossible", created=NOW - 5 * DAY)
    await swept(bridge)
    assert "impossible" not in await announced(settings)


async def test_pages_lose_nobody_who_was_created_at_the_same_moment(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import gives thousands the same time; the id tells them apart."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 3)
    monkeypatch.setattr(bridge_module, "PAGE", 3)
    for n in range(10):
        status, created = ("completed", NOW) if n < 7 else ("failed", NOW - HOUR)  # each status from its beginning
        await put(tarsy, f"same{n}", status, created=created)
    await put(tarsy, "deleted", deleted_at=NOW)

    await swept(start())

    assert await announced(settings) == [f"same{n}" for n in range(10)]


async def test_another_process_goes_on_in_the_middle_of_a_sweep(
    start: Start,
    settings: Settings,
    tarsy: asyncpg.Connection,
    database: Database,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of a first scan over a large database no page is read twice, and nothing has to be remembered."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 3)
    monkeypatch.setattr(bridge_module, "PAGE", 3)
    for n in range(8):
        await put(tarsy, f"s{n}", created=NOW - 5 * DAY + timedelta(seconds=n))
    dying = start()
    await dying.open_bookmark()
    while not await announced(settings):
        assert await dying.run_once()
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0
    await tarsy.execute("UPDATE alert_sessions SET chain_id = 'changed'")

    await swept(start())

    by_session = {e.session_id: e.chain_id for e in await events(settings)}
    assert len(await records(settings)) == 8
    assert [by_session[f"s{n}"] for n in range(8)] == ["kubernetes"] * 3 + ["changed"] * 5


async def test_a_look_finds_at_once_what_was_open_a_moment_ago(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """Long before the next sweep, which says nothing more; what came and went between two looks, too."""
    await put(tarsy, "open", "in_progress", created=NOW - 3 * DAY)
    await put(tarsy, "still-open", "in_progress", created=NOW - HOUR)
    bridge = await swept(start())
    await end(tarsy, "open")
    await put(tarsy, "brief", created=datetime.now(UTC))
    bridge._woken.set()

    assert await bridge.run_once() is False

    assert await announced(settings) == ["brief", "open"]
    await swept(bridge)
    assert len(await records(settings)) == 2


class Faulty(Publisher):
    """A publisher over the real one: in the first batch the records at some places get no acknowledgement."""

    def __init__(self, settings: Settings, *places: int) -> None:
        super().__init__(settings)
        self._places = set(places)

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        places, self._places = self._places, set()
        kept = [m for n, m in enumerate(messages) if n not in places]
        await super().publish(topic, kept, timeout_s)
        return [n not in places for n in range(len(messages))]


async def test_the_bookmark_waits_for_the_broker(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """What was not acknowledged goes again, and what was does not."""
    for n in range(4):
        await put(tarsy, f"s{n}", created=NOW + timedelta(seconds=n))
    bridge = start()
    bridge._announcer._publisher = Faulty(settings, 1, 3)
    await bridge.open_bookmark()

    with pytest.raises(BrokerAway, match="2 of 4"):
        await run_dry(bridge)
    assert await announced(settings) == ["s0", "s2"]

    await swept(bridge)
    assert await announced(settings) == ["s0", "s1", "s2", "s3"]


async def test_what_arrived_of_a_settled_page_does_not_go_again(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """Old sessions are remembered, too, as long as their page will be read again."""
    for n in range(4):
        await put(tarsy, f"s{n}", created=NOW - 5 * DAY + n * HOUR)
    bridge = start()
    bridge._announcer._publisher = Faulty(settings, 1, 3)
    await bridge.open_bookmark()
    with pytest.raises(BrokerAway):
        await run_dry(bridge)

    await swept(bridge)

    assert await announced(settings) == ["s0", "s1", "s2", "s3"]
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0


class Narrow(Publisher):
    """A publisher to a topic that takes messages up to so many bytes."""

    limit = 400

    async def publish(
        self, topic: str, messages: Sequence[tuple[bytes | None, bytes | None, Headers]], timeout_s: float
    ) -> list[bool]:
        if any(len(value or b"") > self.limit for _, value, _ in messages):
            raise TooLarge("larger than the topic allows")
        return await super().publish(topic, messages, timeout_s)


async def test_an_event_that_is_too_large_stops_nobody(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """It goes without its labels, or not at all where even that is too much; once, like the others."""
    for n in range(3):
        await put(tarsy, f"s{n}", created=NOW + timedelta(seconds=n))
    await put(tarsy, "many-labels", labels=f'["{"x" * 700}"]')
    await put(tarsy, "hopeless", alert_type="x" * 200)
    bridge = start()
    bridge._announcer._publisher = Narrow(settings)

    await swept(await swept(bridge))

    labels = {e.session_id: e.labels for e in await events(settings)}
    assert await announced(settings) == ["many-labels", "s0", "s1", "s2"]
    assert labels["many-labels"] == {}


async def test_a_crash_after_the_acknowledgement_repeats_the_same_event(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database
) -> None:
    """Intake knows a repeat by its id, so it is scored once."""
    await put(tarsy, "one")
    await swept(start())
    await database.once(lambda c: c.execute("DELETE FROM bridge_announced; DELETE FROM bridge_bookmark"))

    await swept(start())

    first, second = await events(settings)
    assert first.event_id == second.event_id


# --- alone and with others --------------------------------------------------------------------------------


async def test_one_works_and_the_next_takes_over(start: Start, settings: Settings, tarsy: asyncpg.Connection) -> None:
    """The one that stands by is ready, and looks into nothing."""
    first, second = start(), start()
    stop_first, stop_second = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(first.run(stop_first))
    await wait_until(lambda: first.lacking is None, 30, "the first works")
    standing_by = asyncio.create_task(second.run(stop_second))
    await wait_until(lambda: second.lacking is None, 30, "the second is ready")
    assert (first._looked_at is not None, second._looked_at) == (True, None)

    stop_first.set()
    await running
    await put(tarsy, "later", created=datetime.now(UTC))
    await until_announced(settings, "later")
    stop_second.set()
    await standing_by


async def test_a_lost_lock_ends_the_work_until_it_is_taken_again(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may work by then; here nobody does, so this one goes on."""
    monkeypatch.setattr(bridge_module, "POLL_S", 0.05)
    bridge, stopping = start(), asyncio.Event()
    running = asyncio.create_task(bridge.run(stopping))
    await wait_until(lambda: bridge.lacking is None, 30, "it works")
    holder = (
        "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND database = (SELECT oid FROM "
        "pg_database WHERE datname = current_database())"
    )
    first = await value(database, holder)

    await value(database, f"SELECT pg_terminate_backend({first})")

    async def is_taken_again() -> bool:
        return await value(database, holder) not in (None, first)

    await wait_until(is_taken_again, 30, "the lock is taken again")
    await put(tarsy, "one", created=datetime.now(UTC))
    await until_announced(settings, "one")
    stopping.set()
    await running


@pytest.mark.parametrize(
    "statement", ["SELECT 1", "bridge_bookmark", "bridge_announced"], ids=["the-lock", "the-bookmark", "the-memory"]
)
async def test_our_database_that_stands_still_is_told_in_time(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """As soon as TARSy's: after the time of a contact, and not after that of a long statement; then it goes on."""
    assert database_module.CONTACT_S <= TIMEOUT_S
    for module in (database_module, bridge_module, announcer):
        monkeypatch.setattr(module, "CONTACT_S", 1.0)
    monkeypatch.setattr(bridge_module, "POLL_S", 0.05)
    assert settings.database_url is not None
    async with DatabaseProxy(settings.database_url.get_secret_value()) as proxy:
        ours = Database(proxy.url, "public", pool_size=3, statement_cache=0)
        await ours.open()
        bridge, stopping = start(), asyncio.Event()
        bridge._database = bridge._announcer._database = ours
        running = asyncio.create_task(bridge.run(stopping))
        await wait_until(lambda: bridge._swept_at is not None, 30, "it has swept")

        proxy.fall_silent(at=statement)
        await put(tarsy, "meanwhile", created=datetime.now(UTC))
        await wait_until(lambda: "no answer in time" in (bridge.lacking or ""), 15, "it says what it lacks")

        proxy.speak_again()
        await until_announced(settings, "meanwhile")
        await wait_until(lambda: bridge.lacking is None, 30, "it works")
        stopping.set()
        await running
        await ours.close()


async def test_tarsy_away_is_told_and_waited_for(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not ready meanwhile; afterwards nothing of the time in between is missed."""
    monkeypatch.setattr(bridge_module, "POLL_S", 0.05)
    bridge, stopping = start(), asyncio.Event()
    running = asyncio.create_task(bridge.run(stopping))
    await wait_until(lambda: bridge._swept_at is not None, 30, "it has swept, long before the next time")
    there = bridge._sessions.tarsy
    bridge._sessions.tarsy = TarsyPool(DEAD_URL, "X", SESSION_TABLES, is_read_only=True)
    await wait_until(lambda: "cannot be used" in (bridge.lacking or ""), 30, "it says what it lacks")
    assert DEAD_URL not in (bridge.lacking or "")
    await put(tarsy, "meanwhile", created=NOW - 5 * HOUR)

    bridge._sessions.tarsy = there
    await wait_until(lambda: bridge.lacking is None, 30, "it works")

    await until_announced(settings, "meanwhile")
    stopping.set()
    await running


async def test_only_a_change_of_status_wakes(start: Start, tarsy: asyncpg.Connection) -> None:
    """The channel is full of progress."""
    woken: list[None] = []
    bridge = start()
    following = asyncio.create_task(bridge._sessions.tarsy.follow(lambda: woken.append(None)))
    await wait_until(lambda: len(woken) == 1, 30, "it listens, and looks once")

    for message in ('{"type": "session.progress"}', f'{{"type": {STATUS_MESSAGE}}}', '{"type": "review.status"}'):
        await tarsy.execute("SELECT pg_notify('sessions', $1)", message)
    await tarsy.execute("SELECT pg_notify('other', $1)", STATUS_MESSAGE)
    await tarsy.execute("SELECT pg_notify('sessions', $1)", STATUS_MESSAGE)

    await wait_until(lambda: len(woken) == 3, 30, "both changes were heard")
    following.cancel()


async def test_listening_goes_on_after_a_failover(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a moment no server is the one that the URL asks for; nobody would tell if nobody listened from then on."""
    connect, tries = asyncpg.connect, 0

    async def none_at_first(*arguments: Any, **options: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise asyncpg.exceptions.TargetServerAttributeNotMatched("planted")
        return await connect(*arguments, **options)

    monkeypatch.setattr(tarsy_module, "RETRY_S", 0)
    monkeypatch.setattr(tarsy_module.asyncpg, "connect", none_at_first)
    woken = asyncio.Event()
    following = asyncio.create_task(start()._sessions.tarsy.follow(woken.set))

    await asyncio.wait_for(woken.wait(), 30)
    following.cancel()


# --- TARSy's database -------------------------------------------------------------------------------------


async def test_a_role_that_may_only_read_suffices(
    start: Start, settings: Settings, tarsy: asyncpg.Connection, tarsy_url: str
) -> None:
    """`SELECT` on one table; and whatever the role may do, the server refuses our writes."""
    await put(tarsy, "one")
    role = f"reader_{uuid.uuid4().hex[:8]}"
    await tarsy.execute(
        f"CREATE ROLE {role} LOGIN PASSWORD 'secret';"
        f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON alert_sessions TO {role}"
    )
    try:
        place = tarsy_url.rpartition("@")[2]
        reading = TarsyPool(f"postgresql://{role}:secret@{place}", "X", SESSION_TABLES, is_read_only=True)
        bridge = start()
        bridge._sessions = TarsySessions(reading)
        await swept(bridge)
        await reading.close()
    finally:
        await tarsy.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")
    assert await announced(settings) == ["one"]

    with pytest.raises(TarsyAway, match="read-only"):
        await start()._sessions.tarsy.once(lambda c, _: c.execute("DELETE FROM alert_sessions"))


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        pytest.param("DROP TABLE alert_sessions CASCADE", "the table alert_sessions", id="no-table"),
        pytest.param("ALTER TABLE alert_sessions DROP chain_id", "the column alert_sessions.chain_id", id="no-column"),
    ],
)
async def test_another_database_than_tarsys_is_refused(
    start: Start, tarsy: asyncpg.Connection, statement: str, says: str
) -> None:
    """With what it lacks."""
    await tarsy.execute(statement)

    with pytest.raises(TarsyUnfit, match=says):
        await swept(start())


async def test_older_deployments_have_fewer_columns(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """What is not there says nothing; without a time of the end the creation counts."""
    await put(tarsy, "one")
    for column in ("labels", "completed_at", "deleted_at", "alert_type"):
        await tarsy.execute(f"ALTER TABLE alert_sessions DROP {column}")

    await swept(start())

    [event] = await events(settings)
    assert (event.session_id, event.completed_at, event.labels) == ("one", NOW, {})


async def test_a_column_that_an_upgrade_brings_is_seen_by_the_next_sweep(
    start: Start, settings: Settings, tarsy: asyncpg.Connection
) -> None:
    """Without a restart."""
    await tarsy.execute("ALTER TABLE alert_sessions DROP labels")
    bridge = await swept(start())
    await tarsy.execute("ALTER TABLE alert_sessions ADD labels jsonb")
    await put(tarsy, "one", labels='["watch"]', created=NOW - HOUR)  # for the sweep alone

    await swept(bridge)

    assert [e.labels for e in await events(settings)] == [{"watch": "true"}]


async def test_what_is_read_together_is_of_one_moment(start: Start) -> None:
    """A session that changes between two statements would be neither open nor ended."""
    tarsy = start()._sessions.tarsy

    assert await tarsy.once(lambda c, _: c.fetchval("SHOW transaction_isolation")) == "repeatable read"


async def test_every_read_is_carried_by_an_index(tarsy: asyncpg.Connection) -> None:
    """On a table of a size at which it matters; none of them reads the table as a whole."""
    await tarsy.execute(
        "INSERT INTO alert_sessions (session_id, alert_data, agent_type, chain_id, status, created_at, completed_at) "
        "SELECT md5(n::text), repeat('x', 200), 'a', 'c', (ARRAY['completed','completed','completed','failed'])[n%4+1],"
        " now() - make_interval(secs => n), now() FROM generate_series(1, 30000) n;"
        "UPDATE alert_sessions SET status = 'in_progress' WHERE created_at > now() - interval '1 minute';"
        "UPDATE alert_sessions SET status = 'pending' WHERE created_at < now() - interval '5 hours'"
    )
    await tarsy.execute("VACUUM ANALYZE alert_sessions")
    names = "session_id, chain_id, alert_type, status, created_at, completed_at, deleted_at, labels"
    columns = {"alert_sessions": names}
    ended = "ARRAY['cancelled','completed','failed','timed_out']"
    for statement, arguments in (
        (tarsy_sessions.ENDED_PAGE, ("'completed'", "now() - interval '3 hours'", "''", "1000")),
        (tarsy_sessions.OPEN_STATUSES, (ended,)),
        (tarsy_sessions.OPEN_SESSIONS, ("ARRAY['in_progress', 'pending']", "now() - interval '1 day'", "10000")),
        (tarsy_sessions.OPEN_SESSIONS, ("ARRAY['in_progress', 'pending']", "'infinity'", "2000")),
        (tarsy_sessions.ENDED_OF_THESE, (ended, "ARRAY[md5('7'), md5('8')]")),
        (tarsy_sessions.ENDED_OF_THE_NEWEST, (ended, "interval '5 minutes'", "1000")),
        (tarsy_sessions.STILL_THERE, ("ARRAY[md5('7'), md5('8')]",)),
    ):
        asked = statement.replace("{alert_sessions}", columns["alert_sessions"])
        for n, argument in enumerate(arguments, start=1):
            asked = asked.replace(f"${n}", argument)
        plan = "\n".join(r[0] for r in await tarsy.fetch(f"EXPLAIN {asked}"))
        assert "Seq Scan on alert_sessions" not in plan, f"{asked}\n{plan}"


# --- what is gone upstream --------------------------------------------------------------------------------


async def gone(database: Database, bridge: Bridge) -> list[list[str]]:
    return [batch async for batch in sessions_gone(database, bridge._sessions)]


async def known(database: Database, *session_ids: str, first_seen: str = "2 days") -> None:
    statement = "INSERT INTO sessions (session_id, first_seen_at) SELECT unnest($1::text[]), now() - $2::text::interval"
    await database.once(lambda c: c.execute(statement, session_ids, first_seen))


async def test_sessions_that_tarsy_has_no_more_are_listed(
    start: Start, database: Database, tarsy: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removed or marked as deleted, batch by batch; not what is so new that TARSy may still be behind."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 2)
    for session_id in ("a", "c", "e"):
        await put(tarsy, session_id)
    await put(tarsy, "b", deleted_at=NOW)
    await known(database, "a", "b", "c", "d", "e", "f")
    await known(database, "g", first_seen="1 hour")

    assert await gone(database, start()) == [["b"], ["d"], ["f"]]


async def test_an_empty_tarsy_is_not_taken_for_deletions(start: Start, database: Database) -> None:
    """Somebody would erase everything."""
    await known(database, "a", "b")

    with pytest.raises(ConfigurationError, match="none of 2 sessions"):
        await gone(database, start())
