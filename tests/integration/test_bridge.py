"""The bridge announces every terminal session: across outages, late commits and unreadable values."""

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
from infrastructure import Kafka, Postgres, fresh_database, run_apart, wait_until
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.errors import ConfigurationError
from tarsy_scoring.events import SessionCompleted, decode
from tarsy_scoring.kafka.connect import BrokerAway, Headers
from tarsy_scoring.kafka.consumer import Record
from tarsy_scoring.kafka.publisher import Publisher, TooLarge
from tarsy_scoring.kafka.topics import ensure_topics, read_topic
from tarsy_scoring.postgres.database import Database
from tarsy_scoring.retention.erasure import hash_of
from tarsy_scoring.tarsy import bridge as bridge_module
from tarsy_scoring.tarsy import sessions as tarsy_sessions
from tarsy_scoring.tarsy.bridge import Bridge
from tarsy_scoring.tarsy.database import TarsyPool
from tarsy_scoring.tarsy.schema import SESSION_TABLES
from tarsy_scoring.tarsy.sessions import (
    BEGINNING,
    STATUSES,
    EndedSession,
    TarsySessions,
    open_tarsy_sessions,
    sessions_gone,
)
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.tarsy import create_tables

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
# Older than the range of a look: a session that a look should find sets its own time.
NOW = datetime.now(UTC).replace(microsecond=0) - HOUR / 4
DEAD_URL = "postgresql://reader@127.0.0.1:9/tarsy"
Start = Callable[..., Bridge]
Tarsy = asyncpg.Connection


@pytest.fixture(scope="module")
def shared(kafka: Kafka, postgres: Postgres, _migrated_template: str) -> Iterator[Settings]:
    """Both databases and one topic for all tests here: emptying them is faster than creating them."""
    with fresh_database(postgres, _migrated_template) as ours, fresh_database(postgres) as tarsys:
        settings = load_settings(
            {
                "SCORING_KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers,
                "SCORING_TOPIC_SESSION_COMPLETED": f"session-completed-{uuid.uuid4().hex[:8]}",
                "SCORING_CREATE_TOPICS": "true",
                "SCORING_TOPIC_PARTITIONS": "1",
                "SCORING_DATABASE_URL": ours,
                "SCORING_TIMELINE_DATABASE_URL": tarsys,
            }
        )
        run_apart(ensure_topics(settings, [settings.topic_session_completed]))
        yield settings


class Topic:
    """The records published since the test began."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._first = 0

    async def begin(self) -> None:
        self._first = len([r async for r in read_topic(self._settings, self._settings.topic_session_completed)])

    async def records(self) -> list[Record]:
        found = [r async for r in read_topic(self._settings, self._settings.topic_session_completed)]
        return found[self._first :]

    async def events(self) -> list[SessionCompleted]:
        return [decode(SessionCompleted, r.value) for r in await self.records()]

    async def ids(self) -> list[str]:
        """Session ids, each as often as it was announced."""
        return sorted(e.session_id for e in await self.events())

    async def until_alone(self, session_id: str) -> None:
        async def is_alone() -> bool:
            return await self.ids() == [session_id]

        await wait_until(is_alone, 30, f"{session_id} is announced")


@pytest.fixture
async def settings(shared: Settings) -> Settings:
    async with connected(shared.require_database()) as connection:
        await connection.execute("TRUNCATE bridge_bookmark, bridge_announced, erasures, sessions CASCADE")
    return shared


@pytest.fixture(autouse=True)
def _look_in_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_module, "POLL_S", 0.0)


@pytest.fixture
async def topic(shared: Settings) -> Topic:
    found = Topic(shared)
    await found.begin()
    return found


@pytest.fixture
def tarsy_url(settings: Settings) -> str:
    assert settings.timeline_database_url is not None
    return settings.timeline_database_url.get_secret_value()


@pytest.fixture
async def tarsy(tarsy_url: str) -> AsyncIterator[Tarsy]:
    await create_tables(tarsy_url)
    async with connected(tarsy_url) as connection:
        await connection.execute("TRUNCATE alert_sessions CASCADE")
        yield connection


@pytest.fixture
async def altered(tarsy: Tarsy) -> AsyncIterator[Tarsy]:
    """TARSy's database for a test that changes its schema."""
    yield tarsy
    await tarsy.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
async def database(settings: Settings) -> AsyncIterator[Database]:
    opened = Database(settings.require_database(), "public", pool_size=4)
    await opened.open()
    yield opened
    await opened.close()


@pytest.fixture
async def start(settings: Settings, database: Database, tarsy: Tarsy) -> AsyncIterator[Start]:
    """Makes the bridge of a process; a second one shares only the stored state."""
    async with contextlib.AsyncExitStack() as stack:

        def call(
            since: datetime | None = BEGINNING,
            *,
            sessions: TarsySessions | None = None,
            publisher: Publisher | None = None,
            ours: Database = database,
            **changes: Any,
        ) -> Bridge:
            changed = settings.model_copy(update=changes)
            sessions, publisher = sessions or open_tarsy_sessions(changed), publisher or Publisher(changed)
            stack.push_async_callback(sessions.tarsy.close)
            stack.push_async_callback(publisher.stop)
            return Bridge(changed, ours, sessions, Metrics(), since, publisher)

        yield call


async def put(
    tarsy: Tarsy, session_id: str, status: str = "completed", *, created: datetime = NOW, **columns: Any
) -> None:
    """Store a session of TARSy's; a terminal one ended a minute after its creation."""
    row = {
        "session_id": session_id,
        "alert_data": "x",
        "agent_type": "a",
        "chain_id": "kubernetes",
        "status": status,
        "created_at": created,
        "completed_at": created + timedelta(minutes=1) if status in STATUSES else None,
    } | columns
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await tarsy.execute(f"INSERT INTO alert_sessions ({', '.join(row)}) VALUES ({places})", *row.values())


async def end(tarsy: Tarsy, session_id: str, status: str = "completed") -> None:
    statement = "UPDATE alert_sessions SET status = $2, completed_at = clock_timestamp() WHERE session_id = $1"
    await tarsy.execute(statement, session_id, status)


async def swept(bridge: Bridge) -> Bridge:
    """The bridge after a look and a whole sweep."""
    bridge.request_sweep()
    await bridge.run_once()
    return bridge


class Disturbed(TarsySessions):
    """Calls a function before it gives the last page of a sweep."""

    def __init__(self, settings: Settings, disturb: Callable[[], Any]) -> None:
        super().__init__(open_tarsy_sessions(settings).tarsy)
        self.disturb = disturb

    async def ended_page(self, status: str, *place: Any) -> tuple[str, list[EndedSession]]:
        if status == STATUSES[-1]:
            await self.disturb()
        return await super().ended_page(status, *place)


async def die() -> None:
    raise BrokerAway("planted")


async def value(database: Database, statement: str) -> Any:
    return await database.once(lambda c: c.fetchval(statement))


async def execute(database: Database, statement: str) -> None:
    await database.once(lambda c: c.execute(statement))


# --- announcements ----------------------------------------------------------------------------------------


async def test_every_end_is_announced_and_nothing_else(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    for status in (*STATUSES, "in_progress", "pending", "cancelling", "hibernating"):
        await put(tarsy, status, status)
    await put(tarsy, "deleted", deleted_at=NOW)

    await swept(await swept(start()))
    await swept(start())

    assert await topic.ids() == sorted(STATUSES), "each once, neither the next sweep nor another process repeats it"


async def test_an_event_holds_what_tarsy_stored(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    await put(tarsy, "one", "failed", alert_type="PodCrash", labels='["noise", "watch"]')

    await swept(start())

    [one] = await topic.records()
    event = decode(SessionCompleted, one.value)
    assert one.key == b"one"
    assert (event.status, event.chain_id, event.alert_type) == ("failed", "kubernetes", "PodCrash")
    assert event.completed_at == NOW + timedelta(minutes=1)
    assert event.labels == {"noise": "true", "watch": "true"}
    assert event.event_id == str(uuid.UUID(event.event_id))


async def test_the_first_start_announces_no_earlier_end(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    await put(tarsy, "before", created=NOW - HOUR)
    await put(tarsy, "running", "in_progress", created=NOW - HOUR)
    bridge = await swept(start(None))
    await end(tarsy, "running")

    await swept(bridge)

    assert await topic.ids() == ["running"]


async def test_another_since_starts_anew_and_the_same_does_not(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    """An orchestrator repeats the option at every start."""
    since = NOW - 2 * HOUR
    await put(tarsy, "old", created=NOW - 10 * DAY)
    await put(tarsy, "recent", created=NOW - HOUR)
    for each in (since, since, None):
        await swept(start(each))
    assert await topic.ids() == ["recent"]

    await swept(start(BEGINNING))

    assert await topic.ids() == ["old", "recent"]


# Unreadable values of rows, each with whether the event has the labels.
DEEP = "[" * 3000 + "]" * 3000
ODD_VALUES = {
    "never": ("completed_at = 'infinity'", True),
    "year-20000": ("completed_at = '20000-01-01'", True),
    "before-christ": ("completed_at = '0044-03-15 BC'", True),
    "zero-time-of-go": ("completed_at = '0001-01-01 00:00:00+00'", True),
    "deep-label": (f"""labels = '{{"a": {DEEP}}}'""", False),
    "label-of-many-digits": (f"""labels = '{{"a": {"9" * 5000}}}'""", False),
}


async def test_an_unreadable_value_stops_no_session(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    """Labels are left out, which is logged once per session; the creation counts as the end before 1970."""
    for name, (change, _) in ODD_VALUES.items():
        await put(tarsy, name, labels='["watch"]')
        await tarsy.execute(f"UPDATE alert_sessions SET {change} WHERE session_id = '{name}'")
    await put(tarsy, "neighbour", labels='["watch"]')
    await put(tarsy, "a b\n\x1b[2J")  # no id that an event may have

    with capture_logs() as logs:
        await swept(await swept(start()))

    by_session = {e.session_id: e for e in await topic.events()}
    assert await topic.ids() == sorted(["neighbour", *ODD_VALUES])
    assert all(by_session[s].completed_at == NOW for s in ("before-christ", "zero-time-of-go"))
    labelled = {s for s, event in by_session.items() if event.labels == {"watch": "true"}}
    assert labelled == {"neighbour", *(s for s, (_, has_labels) in ODD_VALUES.items() if has_labels)}
    logged = [line["session_id"] for line in logs if line["event"] == "bridge.read_in_part"]
    assert sorted(logged) == sorted(by_session.keys() - labelled)


async def test_an_erased_session_is_not_announced_again(
    start: Start, topic: Topic, tarsy: Tarsy, database: Database
) -> None:
    for session_id in ("erased", "other"):
        await put(tarsy, session_id)
    await swept(start())
    await execute(
        database,
        "DELETE FROM bridge_announced; INSERT INTO erasures (erased_by, why, session_hash, scores) "
        f"VALUES ('bob', 'asked', '{hash_of('erased')}', 0)",
    )

    await swept(start())

    assert await topic.ids() == ["erased", "other", "other"]
    assert await value(database, "SELECT string_agg(session_id, ',') FROM bridge_announced") == "other"


# --- no session is lost -----------------------------------------------------------------------------------


async def test_a_late_commit_is_found(start: Start, topic: Topic, tarsy: Tarsy, tarsy_url: str) -> None:
    """By its own times the session ended before others that were already announced."""
    async with connected(tarsy_url) as slow:
        transaction = slow.transaction()
        await transaction.start()
        await put(slow, "late", created=NOW - 3 * HOUR)
        await put(tarsy, "punctual")
        bridge = await swept(start())
        assert await topic.ids() == ["punctual"]
        await transaction.commit()

    await swept(bridge)

    assert await topic.ids() == ["late", "punctual"]


async def test_an_old_open_session_is_never_lost(start: Start, topic: Topic, tarsy: Tarsy, database: Database) -> None:
    """It began before the overlap and ends while no bridge runs; younger sessions are settled meanwhile."""
    await put(tarsy, "slow", "in_progress", created=NOW - 9 * DAY)
    await put(tarsy, "odd", "a_status_of_next_year", created=NOW - 9 * DAY)
    await put(tarsy, "old", created=NOW - 8 * DAY)
    await swept(start())
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") > NOW - 25 * HOUR
    await end(tarsy, "slow")
    await end(tarsy, "odd")

    await swept(await swept(start()))

    assert await topic.ids() == ["odd", "old", "slow"]
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0


async def test_a_session_that_was_seen_open_is_announced_whatever_its_times(
    start: Start, topic: Topic, tarsy: Tarsy
) -> None:
    """Its process's clock may be behind, or its end time missing."""
    for session_id in ("behind", "timeless", "behind-later", "timeless-later"):
        await put(tarsy, session_id, "in_progress", created=NOW - HOUR)
    bridge = await swept(start(None))
    ends = "UPDATE alert_sessions SET status = 'cancelled', completed_at = $2 WHERE session_id = $1"
    await tarsy.execute(ends, "behind", NOW - HOUR / 2)
    await tarsy.execute(ends, "timeless", None)
    await bridge.run_once()
    assert await topic.ids() == ["behind", "timeless"], "a look found them"
    await tarsy.execute(ends, "behind-later", NOW - HOUR / 2)
    await tarsy.execute(ends, "timeless-later", None)

    await swept(await swept(start(None)))

    assert await topic.ids() == ["behind", "behind-later", "timeless", "timeless-later"]


async def test_a_sweep_over_two_servers_settles_nothing(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server may lack rows of the other; still every session is announced, once."""
    for n in range(3):
        await put(tarsy, f"s{n}", "failed", created=NOW - 5 * DAY)
    elsewhere = tarsy_sessions.SERVER.replace("pg_is_in_recovery() ||", "'another' ||")

    async def fail_over() -> None:
        monkeypatch.setattr(tarsy_sessions, "SERVER", elsewhere)

    bridge = await swept(start(sessions=Disturbed(settings, fail_over)))
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") == BEGINNING

    await swept(bridge)

    assert await topic.ids() == ["s0", "s1", "s2"]
    assert await value(database, "SELECT settled_before FROM bridge_bookmark") > NOW - 2 * DAY


async def test_a_standby_settles_what_it_has_received(
    start: Start, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    standby = tarsy_sessions.SERVER.replace("pg_is_in_recovery()", "true")
    for replayed, settled in (
        ("now() - interval '3 days'", datetime.now(UTC) - timedelta(days=4)),
        ("NULL::timestamptz", BEGINNING),
        ("now() + interval '1 day'", datetime.now(UTC) - timedelta(days=1)),
    ):
        monkeypatch.setattr(tarsy_sessions, "SERVER", standby.replace("pg_last_xact_replay_timestamp()", replayed))
        await execute(database, "DELETE FROM bridge_bookmark")
        await swept(start())
        found = await value(database, "SELECT settled_before FROM bridge_bookmark")
        assert abs(found - settled) < HOUR, replayed


async def test_a_bridge_that_lost_the_bookmark_moves_nothing(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy, database: Database
) -> None:
    """Another process starts anew while this one sweeps, which then settles nothing."""
    await put(tarsy, "old", created=NOW - 5 * DAY)

    async def start_anew() -> None:
        with pytest.raises(BrokerAway):
            await swept(start(BEGINNING, sessions=Disturbed(settings, die)))

    await swept(start(NOW - DAY, sessions=Disturbed(settings, start_anew)))
    assert await value(database, "SELECT since = 'epoch' AND settled_before = 'epoch' FROM bridge_bookmark")

    await swept(start())
    assert await topic.ids() == ["old"]


async def test_a_sweep_of_a_process_that_died_is_repeated_without_its_events(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tarsy_sessions, "PAGE", 3)
    monkeypatch.setattr(bridge_module, "PAGE", 3)
    for n in range(8):
        await put(tarsy, f"s{n}", created=NOW - 5 * DAY + timedelta(seconds=n))
    with pytest.raises(BrokerAway):
        await swept(start(sessions=Disturbed(settings, die)))

    await swept(start())

    assert await topic.ids() == [f"s{n}" for n in range(8)]
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 0


async def test_settled_sessions_are_forgotten_and_not_read_again(
    start: Start, topic: Topic, tarsy: Tarsy, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge_module, "FORGET", 2)  # fewer rows than there are to forget
    for n in range(3):
        await put(tarsy, f"old{n}", created=NOW - 5 * DAY)
    await put(tarsy, "new")
    with monkeypatch.context() as patched:
        patched.setattr(bridge_module, "OVERLAP_S", 10 * 86_400)
        bridge = await swept(start())
    assert await value(database, "SELECT count(*) FROM bridge_announced") == 4

    await swept(start())

    assert await value(database, "SELECT string_agg(session_id, ',') FROM bridge_announced") == "new"
    settled = await value(database, "SELECT settled_before FROM bridge_bookmark")
    assert abs(datetime.now(UTC) - DAY - settled) < HOUR / 2
    await put(tarsy, "impossible", created=NOW - 5 * DAY)
    await swept(bridge)
    assert "impossible" not in await topic.ids()


async def test_pages_lose_no_session_with_the_same_creation(
    start: Start, topic: Topic, tarsy: Tarsy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An import gives thousands of sessions the same time; the id orders them."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 3)
    monkeypatch.setattr(bridge_module, "PAGE", 3)
    for n in range(10):
        status, created = ("completed", NOW) if n < 7 else ("failed", NOW - HOUR)  # the order restarts with each status
        await put(tarsy, f"same{n}", status, created=created)
    await put(tarsy, "deleted", deleted_at=NOW)

    await swept(start())

    assert await topic.ids() == [f"same{n}" for n in range(10)]


async def test_a_look_finds_a_session_that_began_and_ended_since(start: Start, topic: Topic, tarsy: Tarsy) -> None:
    bridge = await swept(start())
    await put(tarsy, "brief", created=datetime.now(UTC))
    await bridge.run_once()
    assert await topic.ids() == ["brief"]
    await swept(bridge)
    assert len(await topic.records()) == 1


# --- the broker -------------------------------------------------------------------------------------------

Messages = Sequence[tuple[bytes | None, bytes | None, Headers]]


class Unacknowledged(Publisher):
    """In the first batch the records at these places get no acknowledgement."""

    places: tuple[int, ...] = (1, 3)

    async def publish(self, topic: str, messages: Messages, timeout_s: float) -> list[bool]:
        places, self.places = self.places, ()
        kept = [m for n, m in enumerate(messages) if n not in places]
        await super().publish(topic, kept, timeout_s)
        return [n not in places for n in range(len(messages))]


@pytest.mark.parametrize("created", [NOW, NOW - 5 * DAY], ids=["young", "settled-by-this-sweep"])
async def test_the_bookmark_waits_for_the_broker(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy, database: Database, created: datetime
) -> None:
    """Only unacknowledged events are sent again; the others are remembered while their page is read again."""
    for n in range(4):
        await put(tarsy, f"s{n}", created=created + timedelta(seconds=n))
    bridge = start(publisher=Unacknowledged(settings))

    with pytest.raises(BrokerAway, match="2 of 4"):
        await bridge.run_once()
    assert await topic.ids() == ["s0", "s2"]

    await swept(bridge)
    assert await topic.ids() == ["s0", "s1", "s2", "s3"]
    assert await value(database, "SELECT count(*) FROM bridge_announced") == (4 if created == NOW else 0)


class SmallMessages(Publisher):
    """A publisher to a topic that takes messages of up to 400 bytes."""

    async def publish(self, topic: str, messages: Messages, timeout_s: float) -> list[bool]:
        refused = [len(value or b"") > 400 for _, value, _ in messages]
        await super().publish(topic, [m for m, is_refused in zip(messages, refused, strict=True) if not is_refused], 30)
        if any(refused):
            raise TooLarge("larger than the topic allows", [not is_refused for is_refused in refused], refused)
        return [True] * len(messages)


async def test_an_event_that_is_too_large_stops_no_other(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy
) -> None:
    """It is not sent; others are sent once."""
    for n in range(3):
        await put(tarsy, f"s{n}", created=NOW + timedelta(seconds=n))
    await put(tarsy, "large", alert_type="x" * 200)

    await swept(await swept(start(publisher=SmallMessages(settings))))

    assert await topic.ids() == ["s0", "s1", "s2"]


# --- processes and outages --------------------------------------------------------------------------------


@pytest.fixture
async def run(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[Bridge], Callable[[], Any]]]:
    """Runs a bridge that polls often; returns the function that stops it."""
    monkeypatch.setattr(bridge_module, "POLL_S", 0.05)
    async with asyncio.TaskGroup() as group:

        def call(bridge: Bridge) -> Callable[[], Any]:
            stopping = asyncio.Event()
            running = group.create_task(bridge.run(stopping))

            async def stop() -> None:
                stopping.set()
                await running

            return stop

        yield call


async def until_swept(database: Database) -> None:
    statement = "SELECT settled_before > 'epoch' FROM bridge_bookmark"
    await wait_until(lambda: value(database, statement), 30, "it has swept, long before the next time")


async def test_a_tarsy_that_is_away_is_waited_for(
    start: Start, topic: Topic, settings: Settings, tarsy: Tarsy, database: Database, run: Any
) -> None:
    """Meanwhile the bridge is not ready; ends during the outage are announced afterwards."""
    sessions = open_tarsy_sessions(settings)
    bridge = start(sessions=sessions)
    stop = run(bridge)
    await until_swept(database)
    reachable = sessions.tarsy
    sessions.tarsy = TarsyPool(DEAD_URL, "X", SESSION_TABLES, is_read_only=True)
    await wait_until(lambda: "cannot be used" in (bridge.lacking or ""), 30, "it says what it lacks")
    assert DEAD_URL not in (bridge.lacking or "")
    await put(tarsy, "meanwhile", created=NOW - 5 * HOUR)

    sessions.tarsy = reachable
    await wait_until(lambda: bridge.lacking is None, 30, "it works")

    await topic.until_alone("meanwhile")
    await stop()


# --- TARSy's database -------------------------------------------------------------------------------------


async def test_every_read_uses_an_index(altered: Tarsy) -> None:
    """On a large table no statement reads the whole table."""
    await altered.execute(
        "INSERT INTO alert_sessions (session_id, alert_data, agent_type, chain_id, status, created_at, completed_at) "
        "SELECT md5(n::text), repeat('x', 200), 'a', 'c', (ARRAY['completed','completed','completed','failed'])[n%4+1],"
        " now() - make_interval(secs => n), now() FROM generate_series(1, 30000) n;"
        "UPDATE alert_sessions SET status = 'in_progress' WHERE created_at > now() - interval '1 minute';"
        "UPDATE alert_sessions SET status = 'pending' WHERE created_at < now() - interval '5 hours'"
    )
    await altered.execute("VACUUM ANALYZE alert_sessions")
    names = "session_id, chain_id, alert_type, status, created_at, completed_at, deleted_at, labels"
    ended = "ARRAY['cancelled','completed','failed','timed_out']"
    for statement, arguments in (
        (tarsy_sessions.ENDED_PAGE, ("'completed'", "now() - interval '3 hours'", "''", "1000")),
        (tarsy_sessions.OPEN_STATUSES, (ended,)),
        (tarsy_sessions.OPEN_SESSIONS, ("ARRAY['in_progress', 'pending']", "2000")),
        (tarsy_sessions.ENDED_OF_THESE, (ended, "ARRAY[md5('7'), md5('8')]")),
        (tarsy_sessions.ENDED_OF_THE_NEWEST, (ended, "interval '5 minutes'", "1000")),
        (tarsy_sessions.STILL_THERE, ("ARRAY[md5('7'), md5('8')]",)),
    ):
        asked = statement.replace("{alert_sessions}", names)
        for n, argument in enumerate(arguments, start=1):
            asked = asked.replace(f"${n}", argument)
        plan = "\n".join(r[0] for r in await altered.fetch(f"EXPLAIN {asked}"))
        assert "Seq Scan on alert_sessions" not in plan, f"{asked}\n{plan}"


# --- sessions that TARSy no longer has --------------------------------------------------------------------


async def gone(database: Database, settings: Settings) -> list[list[str]]:
    sessions = open_tarsy_sessions(settings)
    try:
        return [batch async for batch in sessions_gone(database, sessions)]
    finally:
        await sessions.tarsy.close()


async def known(database: Database, *session_ids: str, first_seen: str = "2 days") -> None:
    statement = "INSERT INTO sessions (session_id, first_seen_at) SELECT unnest($1::text[]), now() - $2::text::interval"
    await database.once(lambda c: c.execute(statement, session_ids, first_seen))


async def test_sessions_that_tarsy_has_deleted_are_listed(
    settings: Settings, database: Database, tarsy: Tarsy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In batches; a recently seen session is not listed, as TARSy's standby may not have it yet."""
    monkeypatch.setattr(tarsy_sessions, "PAGE", 2)
    for session_id in ("a", "c", "e"):
        await put(tarsy, session_id)
    await put(tarsy, "b", deleted_at=NOW)
    await known(database, "a", "b", "c", "d", "e", "f")
    await known(database, "g", first_seen="1 hour")

    assert await gone(database, settings) == [["b"], ["d"], ["f"]]


@pytest.mark.usefixtures("tarsy")
async def test_an_empty_tarsy_is_not_taken_for_deletions(settings: Settings, database: Database) -> None:
    """Otherwise all scores would be erased."""
    await known(database, "a", "b")

    with pytest.raises(ConfigurationError, match="none of 2 sessions"):
        await gone(database, settings)
