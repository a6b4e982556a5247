"""Reviews in TARSy become labels: each one once, across outages, late commits, changes and reopened reviews."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from builders import Scoring, connected, open_scoring
from infrastructure import Postgres, fresh_database, run_apart, wait_until
from stored import store_score, store_session
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.config.settings import Settings
from tarsy_scoring.retention import persons
from tarsy_scoring.retention.erasure import erase
from tarsy_scoring.tarsy import reviews as reviews_module
from tarsy_scoring.tarsy.database import TarsyAway
from tarsy_scoring.tarsy.reviews import OVERLAP, Reviews, open_reviews
from tarsy_scoring_lab.tarsy import create_tables

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
LONG_AGO = NOW - 101 * DAY


class Tarsy:
    """TARSy's database, in which people review as TARSy's API lets them."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self.connection = connection

    async def act(self, session_id: str, action: str, at: datetime = NOW, by: str = "ada", **set_: Any) -> None:
        """Log an action with the rating that the session has after it, in one transaction with the session."""
        status = {"claim": "in_progress", "reopen": "needs_review"}.get(action, "reviewed")
        empty = {"quality_rating": None, "investigation_feedback": None} if action == "reopen" else {}
        columns = {"review_status": status, **empty, **set_}
        names = [f"{name} = ${n}" for n, name in enumerate(columns, start=2)]
        async with self.connection.transaction():
            await self.connection.execute(
                "INSERT INTO alert_sessions (session_id, alert_data, agent_type, chain_id, status, created_at) "
                "VALUES ($1, 'x', 'a', 'kubernetes', 'completed', now()) ON CONFLICT DO NOTHING",
                session_id,
            )
            update = f"UPDATE alert_sessions SET {', '.join(names)} WHERE session_id = $1 RETURNING quality_rating"
            rating = await self.connection.fetchval(update, session_id, *columns.values())
            await self.connection.execute(
                "INSERT INTO session_review_activities "
                "(activity_id, session_id, actor, action, to_status, quality_rating, created_at) "
                "VALUES (gen_random_uuid(), $1, $2, $3, $4, $5, $6)",
                *(session_id, by, action, status, rating if action in ("complete", "update_feedback") else None, at),
            )

    async def complete(
        self, session_id: str, rating: str = "accurate", feedback: str | None = None, **how: Any
    ) -> None:
        await self.act(session_id, "complete", quality_rating=rating, investigation_feedback=feedback, **how)


@pytest.fixture(scope="module")
def urls(postgres: Postgres, _migrated_template: str) -> Iterator[tuple[str, str]]:
    with fresh_database(postgres, _migrated_template) as ours, fresh_database(postgres) as tarsys:
        run_apart(create_tables(tarsys))
        yield ours, tarsys


@pytest.fixture
async def scoring(urls: tuple[str, str]) -> AsyncIterator[Scoring]:
    async with open_scoring(urls[0]) as opened:
        await opened.rows("TRUNCATE bridge_bookmark, erasures, sessions, scoring_requests CASCADE")
        await opened.rows("INSERT INTO bridge_bookmark (since, settled_before) VALUES (now(), 'epoch')")
        yield opened


@pytest.fixture
async def tarsy(urls: tuple[str, str]) -> AsyncIterator[Tarsy]:
    async with connected(urls[1]) as connection:
        await connection.execute("TRUNCATE alert_sessions CASCADE")
        yield Tarsy(connection)


@pytest.fixture
async def start(urls: tuple[str, str], scoring: Scoring) -> AsyncIterator[Any]:
    """Makes the reader of a process, which shares only the stored state with others."""
    async with contextlib.AsyncExitStack() as stack:

        def call(since: datetime | None = None, *, url: str = urls[1], inbox: Any = None, **config: Any) -> Reviews:
            settings = settings_of(urls[0], url, config)
            pool = open_reviews(settings)
            stack.push_async_callback(pool.close)
            return Reviews(settings, scoring.database, pool, inbox, since)

        yield call


def settings_of(ours: str, tarsys: str, config: dict[str, Any]) -> Settings:
    settings = load_settings({"SCORING_DATABASE_URL": ours, "SCORING_TIMELINE_DATABASE_URL": tarsys})
    defaults = settings.config.defaults.model_copy(update=config)
    return settings.model_copy(update={"config": settings.config.model_copy(update={"defaults": defaults})})


async def labels_of(scoring: Scoring) -> dict[str, tuple[Any, ...]]:
    rows = await scoring.rows(
        "SELECT session_id, outcome, labelled_by, reason FROM score_labels WHERE source = 'tarsy'"
    )
    found = {r["session_id"]: tuple(r.values())[1:] for r in rows}
    assert len(found) == len(rows)
    return found


async def test_each_rating_becomes_the_word_that_labels_use(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """With author, time and the feedback without its secrets; a second pass changes nothing."""
    ratings = {"accurate": "correct", "partially_accurate": "partial", "inaccurate": "wrong", "excellent": None}
    for rating in ratings:
        await store_session(scoring, rating)
        await tarsy.complete(rating, rating, "the pod; password=hunter2hunter2", by="bob")
    reviews = start()

    assert [await reviews.catch_up() for _ in range(2)] == [3, 0]
    reason = "the pod; password=[REDACTED:password#1]"
    assert await labels_of(scoring) == {r: (word, "bob", reason) for r, word in ratings.items() if word}
    assert await scoring.value("SELECT count(*) FROM score_labels WHERE labelled_at = $1", NOW) == 3


async def test_a_label_follows_the_review(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """Changed, reopened, rated again, acknowledged without a rating: one label, by the author of the last change."""
    await store_session(scoring, "s")
    await tarsy.complete("s", "accurate")
    reviews, said = start(), []
    changes: list[dict[str, Any]] = [
        {"action": "update_feedback", "by": "bob", "quality_rating": "inaccurate", "investigation_feedback": "no"},
        {"action": "update_feedback", "by": "eve", "investigation_feedback": None},
        {"action": "reopen"},
        {"action": "claim", "by": "zoe"},
        {"action": "complete", "quality_rating": "partially_accurate"},
        {"action": "reopen"},
        {"action": "acknowledge"},
    ]
    await reviews.catch_up()
    for n, change in enumerate(changes):
        await tarsy.act("s", at=NOW + timedelta(seconds=n + 1), **change)
        await reviews.catch_up()
        said.append((await labels_of(scoring)).get("s"))

    partial = ("partial", "ada", None)
    assert said == [("wrong", "bob", "no"), ("wrong", "eve", None), None, None, partial, None, None]


async def test_ratings_that_no_review_gave_do_not_count(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """TARSy's migration rated reviewed sessions; a later change of another field copies that rating."""
    for session_id in ("migrated", "edited"):
        await store_session(scoring, session_id)
        await tarsy.act(session_id, "complete")
        await tarsy.connection.execute(
            "UPDATE alert_sessions SET quality_rating = 'accurate' WHERE session_id = $1", session_id
        )
    await tarsy.act("edited", "update_feedback")

    assert await start().catch_up() == 0
    assert await labels_of(scoring) == {}


async def test_nothing_is_missed_and_nothing_comes_twice(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """
    10,000 past reviews, late commits, an outage, restarts, and sessions that become known after their review.

    Each pass is that of a new process. `changed` counts every write of a label, so their sum shows repeats.
    """
    await scoring.rows(
        "INSERT INTO sessions (session_id, first_seen_at) "
        "SELECT 'past-' || n, now() - interval '99 days' FROM generate_series(1, 10000) n"
    )
    await tarsy.connection.execute(Path(__file__).with_suffix(".sql").read_text("utf-8"))
    for name in ("late", "away", "known"):
        await store_session(scoring, name)
    changed = [await start().catch_up()]
    assert changed == [0], "without --reviews-since past reviews are left out"

    changed += [await start(LONG_AGO).catch_up(), await start().catch_up(), await start(LONG_AGO).catch_up()]
    assert changed[1:] == [10_000, 0, 0]

    await tarsy.complete("late", at=datetime.now(UTC) - OVERLAP + timedelta(minutes=5))  # committed after that pass
    await tarsy.complete("unknown-yet", at=NOW - 50 * DAY)
    changed.append(await start().catch_up())
    with pytest.raises(TarsyAway):
        await start(url="postgresql://reader@127.0.0.1:9/tarsy").catch_up()
    await tarsy.complete("away", at=datetime.now(UTC))
    changed.append(await start().catch_up())
    await store_session(scoring, "unknown-yet", first_seen_at=datetime.now(UTC))
    changed += [await start().catch_up() for _ in range(2)]

    assert changed[4:] == [1, 1, 1, 0]
    assert len(await labels_of(scoring)) == 10_003


async def test_a_pass_begins_at_a_notification(
    scoring: Scoring, tarsy: Tarsy, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a review only, and after each reconnection of the listener; otherwise a pass waits for its time."""
    monkeypatch.setattr(reviews_module, "PAUSE_S", 0.0)
    await store_session(scoring, "s")
    reviews = start()
    running = asyncio.create_task(reviews.run())
    listens = "SELECT pid FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
    try:
        await wait_until(lambda: tarsy.connection.fetchval(listens), 30, "it listens")
        await tarsy.complete("s")
        await tarsy.connection.execute("""NOTIFY sessions, '{"type":"review.status","session_id":"s"}'""")
        await wait_until(lambda: labels_of(scoring), 30, "the review is a label")
        await tarsy.act("s", "reopen", at=datetime.now(UTC))
        await tarsy.connection.execute(f"SELECT pg_terminate_backend(({listens}))")

        async def is_withdrawn() -> bool:
            return not await labels_of(scoring)

        await wait_until(is_withdrawn, 30, "a reconnection reads what was missed")
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)


async def test_a_missing_grant_is_said_once(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    await tarsy.connection.execute("ALTER TABLE session_review_activities RENAME TO hidden")
    try:
        with capture_logs() as logs:
            reviews = start()
            for _ in range(2):
                assert await reviews._try_to_catch_up()
    finally:
        await tarsy.connection.execute("ALTER TABLE hidden RENAME TO session_review_activities")
    [line] = logs
    assert (line["event"], "the table session_review_activities" in line["reason"]) == ("reviews.waiting", True)


async def test_erased_sessions_and_persons_stay_erased(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """Also when the reviews are read again."""
    for name in ("gone", "stays"):
        await store_session(scoring, name)
        await tarsy.complete(name, by="bob", feedback="no")
    await start().catch_up()
    pseudonym, _ = await persons.pseudonymise(scoring.database, "bob")
    found = await erase(scoring.database, scoring.leases, "gone", by="ada", relay_wait_s=0)

    assert found.rows["score_labels"] == 1
    assert await start(LONG_AGO).catch_up() == 0
    assert await labels_of(scoring) == {"stays": ("correct", pseudonym, "no")}


async def test_feedback_is_a_reference_once_for_each_text(scoring: Scoring, tarsy: Tarsy, start: Any) -> None:
    """Of the ratings that the chain wants, where the session has a score; the sender is named."""
    for name, rating in (("right", "accurate"), ("wrong", "inaccurate"), ("unscored", "inaccurate")):
        await (store_session(scoring, name) if name == "unscored" else store_score(scoring, name, 80))
        await tarsy.complete(name, rating, f"about {name}", by="bob")
    asked = "SELECT session_id, source, requested_by, force FROM scoring_requests ORDER BY session_id"

    await start(inbox=scoring.inbox, references={"from_reviews": "none"}).catch_up()
    assert await scoring.rows(asked) == []
    for wanted, sessions in (("inaccurate", ["wrong"]), ("all", ["right", "wrong"])):
        for _ in range(2):
            await start(inbox=scoring.inbox, references={"from_reviews": wanted}).catch_up()
        assert [tuple(r.values()) for r in await scoring.rows(asked)] == [(s, "review", "bob", True) for s in sessions]
    await tarsy.act("wrong", "update_feedback", datetime.now(UTC), "bob", investigation_feedback="it was the disk")
    await start(inbox=scoring.inbox, references={"from_reviews": "all"}).catch_up()

    given = await scoring.rows("SELECT text, provided_by, sent_by FROM session_references WHERE session_id = 'wrong'")
    texts = ("about wrong", "it was the disk")
    assert {tuple(r.values()) for r in given} == {(text, "bob", "review in TARSy by bob") for text in texts}
    open_scores = "SELECT count(*) FROM session_scores WHERE reference_id IS NOT NULL AND status = 'pending'"
    assert await scoring.value(open_scores) == 2
    assert await scoring.value("SELECT count(*) FROM scoring_requests WHERE disposition = 'deferred'") == 1
