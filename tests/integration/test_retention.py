"""Erasing and pruning on real PostgreSQL, beside workers and other clean-ups."""

import asyncio
import hashlib
import json
import uuid
from datetime import UTC, datetime, timedelta
from unittest.mock import AsyncMock

import pytest
from click.testing import CliRunner, Result

from builders import Scoring, completion, connected, rescore, session_completed, step
from live import connected_to, of_type
from processes import small_session
from stored import store_score
from tarsy_scoring.cli import cli
from tarsy_scoring.config.load import load_settings
from tarsy_scoring.errors import LeaseLost
from tarsy_scoring.live.events import SESSIONS
from tarsy_scoring.live.gateway import Gateway
from tarsy_scoring.outbox import outbox
from tarsy_scoring.retention import pruning as retention
from tarsy_scoring.retention.erasure import Inventory, erase, inventory
from tarsy_scoring.retention.pruning import PARTS, Pruner, days_to_keep
from tarsy_scoring.telemetry.metrics import Metrics
from tarsy_scoring_lab.tarsy import load_session

NOW = datetime.now(UTC)
YEAR, QUARTER = NOW - timedelta(days=365), NOW - timedelta(days=90)
KEEP = days_to_keep(180)


async def fill(scoring: Scoring, session_id: str) -> uuid.UUID:
    """Store a scored session with a row in every table that can refer to it."""
    claimed = await scoring.claimed(session_id, event_id=f"event-of-{session_id}", reason=f"{session_id} looks odd")
    await scoring.store.record(step(claimed, "analyzing_methodology", ordinal=1))
    await scoring.store.end(completion(claimed))
    for statement in (
        "INSERT INTO score_missing_tools VALUES ($1, 1, 'tool', 'why')",
        "INSERT INTO score_alternative_approaches VALUES ($1, 1, 'a', 'b')",
        "INSERT INTO score_alternative_approach_steps VALUES ($1, 1, 1, 'look')",
        "INSERT INTO kept_answers VALUES ('ada', 'k-' || gen_random_uuid(), 'h', 'new', $1, gen_random_uuid(), '{}')",
        "INSERT INTO budget_charges (charge_id, day, chain_id, provider, score_id, reserved_usd) "
        "VALUES (gen_random_uuid(), now()::date, '', 'main', $1, 0.5)",
        "INSERT INTO score_labels (score_id, session_id, labelled_by, agrees, reason) "
        "SELECT score_id, session_id, 'ada', true, session_id || ' is well done' FROM session_scores "
        "WHERE score_id = $1",
    ):
        await scoring.rows(statement, claimed.score_id)
    for statement in (
        "INSERT INTO changes (changed_by, change, session_id, score_id) "
        "VALUES ('ada', 'rescore', $1, gen_random_uuid())",
        "INSERT INTO bridge_announced VALUES ($1, gen_random_uuid(), now())",
        "INSERT INTO session_references VALUES (gen_random_uuid(), $1, $1, NULL, 'ada', now(), gen_random_uuid())",
        "INSERT INTO anchor_sessions VALUES ($1, 'ada', now(), $1 || ' is typical', 'ada', now())",
        "INSERT INTO dead_letter_bodies VALUES (gen_random_uuid(), convert_to($1, 'UTF8'), 'x', '[]')",
        "INSERT INTO dead_letter_bodies "
        "VALUES (gen_random_uuid(), NULL, convert_to('{\"session_id\": \"' || $1 || '\"}', 'UTF8'), '[]')",
    ):
        await scoring.rows(statement, session_id)
    return claimed.score_id


class TestErase:
    async def test_an_erasure_is_noted_under_a_hash(self, scoring: Scoring) -> None:
        """It removes what the inventory shows; a session with a longer id and charges stay."""
        await fill(scoring, "session-22")
        neighbour = await inventory(scoring.database, "session-22")
        await fill(scoring, "session-2")
        there = await inventory(scoring.database, "session-2")

        assert await erase(scoring.database, scoring.leases, "session-2", by="ada") == there

        assert all(there.rows.values())
        assert (await inventory(scoring.database, "session-2")).is_empty
        assert await inventory(scoring.database, "session-22") == neighbour
        [noted] = await scoring.rows("SELECT erased_by, why, session_hash, scores FROM erasures")
        assert list(noted.values()) == ["ada", "asked", hashlib.sha256(b"session-2").hexdigest(), 1]
        assert await scoring.value("SELECT count(*) FROM budget_charges") == 2, "the money stays in the books"

    async def test_only_a_new_event_brings_the_session_back(self, scoring: Scoring) -> None:
        """The request id stays, so a repeat is recognised; another id is another request."""
        event = session_completed("session-1")
        await scoring.accept(event)
        await erase(scoring.database, scoring.leases, "session-1", by="ada", relay_wait_s=0)

        assert await scoring.accept(event) == [None]
        assert (await inventory(scoring.database, "session-1")).is_empty
        assert await scoring.value("SELECT arrivals FROM scoring_requests") == 2
        assert await scoring.accept(rescore("session-1")) == ["accepted"]

    async def test_a_deferred_request_does_not_survive(self, scoring: Scoring) -> None:
        """The cancel promotes it, and its score is cancelled too; nothing is left to promote."""
        await scoring.claimed("session-1")
        assert await scoring.accept(rescore("session-1", criteria="cli-tool-use")) == ["deferred"]
        removed = await erase(scoring.database, scoring.leases, "session-1", by="ada", relay_wait_s=0)

        assert removed.rows["session_scores"] == 2
        assert removed.open_scores == 0
        assert await scoring.claim() == []
        assert await scoring.value("SELECT count(*) FROM scoring_requests WHERE disposition = 'deferred'") == 0

    async def test_an_attempt_may_end_at_the_same_moment(self, scoring: Scoring) -> None:
        """In either order no row is left, and there is no deadlock."""
        sessions = [f"session-{n}" for n in range(20)]
        attempts = {s: await scoring.claimed(s) for s in sessions}
        ends = [scoring.store.end(completion(claimed)) for claimed in attempts.values()]
        erasing = [erase(scoring.database, scoring.leases, s, by="ada", relay_wait_s=0) for s in sessions]
        async with asyncio.timeout(30):
            results = await asyncio.gather(*ends, *erasing, return_exceptions=True)

        assert all(r is None or isinstance(r, (LeaseLost, Inventory)) for r in results), results
        for table in ("sessions", "session_scores", "scoring_events", "judge_turns"):
            assert await scoring.value(f"SELECT count(*) FROM {table}") == 0

    async def test_followers_of_its_events_see_an_end(self, scoring: Scoring) -> None:
        """Where a relay runs, a running score is published as cancelled before it is deleted."""
        claimed = await scoring.claimed("session-1")
        erasing = asyncio.create_task(erase(scoring.database, scoring.leases, "session-1", by="ada", relay_wait_s=10))
        published: list[str] = []
        while not erasing.done():
            rows = await scoring.rows(
                "UPDATE scoring_events SET published_at = now() WHERE published_at IS NULL RETURNING score_id, type"
            )
            published += [r["type"] for r in rows if r["score_id"] == claimed.score_id]
            await asyncio.wait([erasing], timeout=0.02)

        assert (await erasing).rows["session_scores"] == 1
        assert published[-1] == "scoring.failed"

    async def test_the_relay_publishes_nothing_of_it_afterwards(self, scoring: Scoring) -> None:
        """Erasing waits for a relay that has read its events; the next pass finds none."""
        await fill(scoring, "session-1")
        async with connected(scoring.url) as relay:
            transaction = relay.transaction()
            await transaction.start()
            assert await outbox.RELAY_LOCK.try_acquire(relay, "public")
            erasing = asyncio.create_task(
                erase(scoring.database, scoring.leases, "session-1", by="ada", relay_wait_s=0)
            )
            await asyncio.wait([erasing], timeout=0.3)
            assert not erasing.done()
            assert await relay.fetchval("SELECT count(*) FROM scoring_events") > 0
            await transaction.commit()
        async with asyncio.timeout(30):
            await erasing
        assert await scoring.value("SELECT count(*) FROM scoring_events") == 0


async def prune(scoring: Scoring, keep: dict[str, int] = KEEP, rest: AsyncMock | None = None) -> dict[str, int]:
    """Prune; returns the number of removed rows of each part that lost any."""
    removed = await Pruner(scoring.database, keep, rest=rest or AsyncMock()).run()
    return {part: number for part, number in removed.items() if number}


async def sessions_left(scoring: Scoring) -> set[str]:
    return {r["session_id"] for r in await scoring.rows("SELECT session_id FROM sessions")}


async def add_events(scoring: Scoring, score_id: uuid.UUID, at: datetime, *, published: bool = True) -> None:
    """Two placed events of a score."""
    await scoring.rows(
        "WITH counter AS (UPDATE relay_position SET position = position + 2 RETURNING position) "
        "INSERT INTO scoring_events "
        "  (score_id, session_id, sequence, position, type, payload, created_at, published_at) "
        "SELECT $1, s.session_id, n + coalesce((SELECT max(sequence) FROM scoring_events WHERE score_id = $1), 0), "
        "  position - 2 + n, 'scoring.progress', jsonb_build_object('type', 'scoring.progress', 'phase', 'queued', "
        "  'purpose', 'production', 'session_id', s.session_id, 'timestamp_us', 1), "
        "  $2::timestamptz, CASE WHEN $3 THEN $2::timestamptz END "
        "FROM counter, generate_series(1, 2) n, session_scores s WHERE s.score_id = $1",
        score_id,
        at,
        published,
    )


class TestPrune:
    async def test_an_old_session_is_removed_whole(self, scoring: Scoring) -> None:
        """A recent score, a recent request or an open score keeps it."""
        for session_id in ("old", "asked-again", "open", "failed-again"):
            await store_score(scoring, session_id, 67, at=YEAR, missing_tools=("read-file",))
        await store_score(scoring, "young", 67, at=QUARTER)
        await store_score(scoring, "open", status="pending", at=YEAR)
        await store_score(scoring, "failed-again", status="failed", at=QUARTER)
        await scoring.accept(session_completed("asked-again"))

        assert await prune(scoring) == {"sessions": 1}
        assert await sessions_left(scoring) == {"asked-again", "open", "failed-again", "young"}
        assert await scoring.value("SELECT count(*) FROM score_missing_tools") == 3

    async def test_the_latest_completed_score_stays_with_its_session(self, scoring: Scoring) -> None:
        """Older, failed and other scores are removed; the score of a session is never lost."""
        await store_score(scoring, "s", 50, at=YEAR - timedelta(days=2))
        kept = await store_score(scoring, "s", 60, at=YEAR)
        await store_score(scoring, "s", status="failed", at=YEAR + timedelta(days=1))
        await store_score(scoring, "s", 70, at=YEAR + timedelta(days=1), purpose="consistency")
        recent = await store_score(scoring, "s", status="failed", at=QUARTER)

        assert await prune(scoring) == {"scores": 3}
        assert {r["score_id"] for r in await scoring.rows("SELECT score_id FROM session_scores")} == {kept, recent}

    async def test_without_a_retention_only_expired_answers_are_removed(self, scoring: Scoring) -> None:
        score_id = await store_score(scoring, "s", 67, at=YEAR)
        for caller, age in (("ada", "25 hours"), ("bob", "23 hours")):
            await scoring.rows(
                "INSERT INTO kept_answers VALUES "
                "($1, 'k', 'h', 'new', $2, gen_random_uuid(), '{}', now() - $3::text::interval)",
                *(caller, score_id, age),
            )

        assert await prune(scoring, days_to_keep(None)) == {"kept_answers": 1}
        assert await scoring.value("SELECT caller FROM kept_answers") == "bob"

    async def test_replies_may_be_removed_before_their_scores(self, scoring: Scoring) -> None:
        """The text is removed and the numbers stay; an open score keeps the replies that it may need."""
        for session_id, status in (("done", "completed"), ("open", "pending")):
            score_id = await store_score(scoring, session_id, at=YEAR, status=status)
            await scoring.rows(
                "INSERT INTO judge_turns (score_id, ordinal, kind, reply, refusal, provider, model_requested, "
                "latency_ms, attempt, criteria_hash, context_hash, nonce, output_tokens, created_at) "
                "SELECT $1, n, 'analysis', '67', 'no', 'main', 'm', 1, 1, 'h', 'c', 'n', 11, $2 "
                "FROM generate_series(1, 2) n",
                score_id,
                YEAR,
            )
        turns = "SELECT session_id, reply, refusal, output_tokens FROM judge_turns JOIN session_scores USING (score_id)"

        assert await prune(scoring, {"replies": 30}) == {"replies": 2}
        assert sorted({tuple(r.values()) for r in await scoring.rows(turns)}, key=str) == [
            ("done", "", None, 11),
            ("open", "67", "no", 11),
        ]
        assert await prune(scoring, {"replies": 30}) == {}

    async def test_old_published_events_are_removed_and_the_position_is_kept(self, scoring: Scoring) -> None:
        """`forgotten` is the last removed position; it never falls."""
        score_id = await store_score(scoring, "s", 67, at=QUARTER)
        await add_events(scoring, score_id, YEAR)
        await add_events(scoring, score_id, YEAR, published=False)
        await add_events(scoring, score_id, YEAR)
        await add_events(scoring, score_id, QUARTER)

        assert await prune(scoring) == {"events": 4}
        left = await scoring.rows("SELECT position FROM scoring_events ORDER BY 1")
        assert [r["position"] for r in left] == [3, 4, 7, 8]
        assert await scoring.value("SELECT forgotten FROM relay_position") == 6
        assert await prune(scoring, {"events": 3_000}) == {}
        assert await scoring.value("SELECT forgotten FROM relay_position") == 6

    async def test_a_client_behind_removed_events_is_sent_an_overflow(self, scoring: Scoring) -> None:
        """A gap is reported; a session from its beginning means its events that are left."""
        score_id = await store_score(scoring, "s", 67, at=QUARTER)
        for at in (YEAR, YEAR, QUARTER):
            await add_events(scoring, score_id, at)
        await prune(scoring)
        gateway = Gateway(load_settings({}), scoring.database, Metrics())
        await gateway.read_missing()
        behind = {(SESSIONS, 3), (SESSIONS, 0), ("session:s", 1)}
        for channel, since in sorted({*behind, (SESSIONS, 4), ("session:s", 0), ("session:s", 4)}):
            async with connected_to(gateway, channel, last_event_id=since) as socket:
                messages = await socket.answer()

            assert [m["position"] for m in messages if "position" in m] == [5, 6]
            assert bool(of_type(messages, "catchup.overflow")) == ((channel, since) in behind), (channel, since)

    async def test_old_records_are_removed_but_for_requests_of_open_scores(self, scoring: Scoring) -> None:
        """Requests, changes, charges and bodies of dead letters."""
        for session_id in ("done", "open"):
            await fill(scoring, session_id)
        await scoring.accept(rescore("open"))
        await scoring.rows("UPDATE scoring_requests SET received_at = $1", YEAR)
        await scoring.rows("UPDATE changes SET changed_at = $1", YEAR)
        await scoring.rows("UPDATE dead_letter_bodies SET created_at = $1", YEAR)
        await scoring.rows("UPDATE budget_charges SET day = $1", YEAR.date())

        assert await prune(scoring, {"records": 366}) == {}
        gone = {"requests": 2, "changes": 2, "charges": 2, "dead_letter_bodies": 4}
        assert await prune(scoring, {"records": 364}) == gone
        assert await scoring.value("SELECT disposition FROM scoring_requests") == "accepted"
        assert await scoring.claim() != []

    async def test_a_deferred_request_stays_however_old(self, scoring: Scoring) -> None:
        """The clean-up rests after a batch, because a score is judged."""
        await store_score(scoring, "old", 67, at=YEAR)
        await scoring.claimed("session-1")
        await scoring.accept(rescore("session-1", criteria="cli-tool-use"))
        await scoring.rows("UPDATE scoring_requests SET received_at = $1", YEAR)
        rest = AsyncMock()
        assert await prune(scoring, rest=rest) == {"sessions": 1}
        rest.assert_called_once()

    async def test_locked_rows_are_skipped(self, scoring: Scoring) -> None:
        """The next clean-up removes them."""
        for n in range(3):
            await store_score(scoring, "s", status="failed", at=YEAR + timedelta(minutes=n))
        await store_score(scoring, "s", 67, at=QUARTER)
        async with connected(scoring.url) as other, other.transaction():
            await other.execute("SELECT FROM session_scores ORDER BY created_at LIMIT 1 FOR UPDATE")
            async with asyncio.timeout(30):
                assert await prune(scoring) == {"scores": 2}
        assert await prune(scoring) == {"scores": 1}

    async def test_a_session_that_is_no_longer_old_stays(
        self, scoring: Scoring, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The condition is checked again once the row is locked."""
        await store_score(scoring, "asked-again", 67, at=YEAR)
        await scoring.accept(session_completed("asked-again"))
        lock = "SELECT session_id FROM {schema}.sessions WHERE $1 > 0 AND session_id = ANY($2::text[]) FOR UPDATE"
        monkeypatch.setattr(retention, "LOCK_UNTOUCHED", lock)

        assert await prune(scoring) == {}
        assert await sessions_left(scoring) == {"asked-again"}

    async def test_old_rows_are_found_by_an_index(self, scoring: Scoring) -> None:
        """A clean-up without work reads no table whole, except for the few bodies of dead letters."""
        wanted = {
            "events": "scoring_events_position",
            "replies": "judge_turns_replies",
            "sessions": "sessions_recent",
            "scores": "session_scores_recent",
            "requests": "scoring_requests_received",
            "findings": "drift_findings_recent",
            "changes": "changes_recent",
            "charges": "budget_charges_of_day",
            "kept_answers": "kept_answers_age",
            "dead_letters": "dead_letters_recent",
        }
        parts = {part.name: part for part in PARTS}
        assert {*parts} == {*wanted, "dead_letter_bodies"}, "every part has a name of its own"
        async with connected(scoring.url) as connection:
            await connection.execute("SET enable_seqscan = off; SET enable_sort = off")
            for name, index in wanted.items():
                prepared = await connection.prepare("EXPLAIN " + scoring.database.sql(parts[name].find))
                plan = "\n".join(r[0] for r in await prepared.fetch(30, parts[name].start, 10))
                assert f"using {index} on" in plan, plan
                assert "Seq Scan" not in plan.replace("Seq Scan on relay_floor", "")


async def command(scoring: Scoring, *arguments: str, **env: str) -> Result:
    """Run a command against this database."""
    variables = {"SCORING_DATABASE_URL": scoring.url, "USER": "ada"} | env
    return await asyncio.to_thread(CliRunner().invoke, cli, arguments, env=variables)


class TestCommands:
    async def test_erase_shows_and_then_does(self, scoring: Scoring) -> None:
        """Without --yes the command only shows; with it the user is recorded."""
        await fill(scoring, "session-1")
        await scoring.accept(rescore("session-1"))
        shown = await command(scoring, "erase", "session-1", "session-9")
        assert shown.exit_code == 0
        assert "2 in session_scores" in shown.stdout
        assert "1 pending or running, to be cancelled" in shown.stdout
        assert "session-9: no rows" in shown.stdout
        assert "add --yes" in shown.stdout
        assert not (await inventory(scoring.database, "session-1")).is_empty

        await scoring.store.end(completion(*await scoring.claim()))
        done = await command(scoring, "erase", "session-1", "session-9", "--yes", "--json")
        assert done.exit_code == 0
        first, second = json.loads(done.stdout)["sessions"]
        assert (first["session_id"], first["erased"], first["rows"]["session_scores"]) == ("session-1", True, 2)
        assert (second["erased"], set(second["rows"].values())) == (False, {0})
        assert await scoring.value("SELECT erased_by FROM erasures") == "ada"

    async def test_prune_counts_and_then_removes(self, scoring: Scoring) -> None:
        """The settings decide, or --keep in their place."""
        for n in range(3):
            await store_score(scoring, f"old-{n}", 67, at=YEAR)
        untouched = await command(scoring, "prune", "--yes")
        assert "scores are kept for ever" in untouched.stdout
        shown = await command(scoring, "prune", SCORING_RETENTION_DAYS="180")
        assert "3 sessions" in shown.stdout
        assert "add --yes" in shown.stdout
        kept = await command(scoring, "prune", "--keep", "400", "--yes", "--json", SCORING_RETENTION_DAYS="180")
        assert json.loads(kept.stdout)["removed"]["sessions"] == 0
        assert len(await sessions_left(scoring)) == 3
        done = await command(scoring, "prune", "--yes", "--json", SCORING_RETENTION_DAYS="180")
        assert json.loads(done.stdout)["removed"]["sessions"] == 3
        assert await sessions_left(scoring) == set()

    async def test_sessions_deleted_upstream_follow(self, scoring: Scoring, tarsy_database_url: str) -> None:
        """Sessions that TARSy deleted or lost are erased, and recorded with that reason; others stay."""
        env = {"SCORING_TIMELINE_DATABASE_URL": tarsy_database_url}
        for session_id in ("kept", "deleted", "lost"):
            await store_score(scoring, session_id, 67, at=QUARTER)
            if session_id != "lost":
                await load_session(tarsy_database_url, small_session(session_id))
        async with connected(tarsy_database_url) as tarsy:
            await tarsy.execute("UPDATE alert_sessions SET deleted_at = now() WHERE session_id = 'deleted'")
        shown = await command(scoring, "prune", "--deleted-upstream", "--json", **env)
        assert json.loads(shown.stdout) == {"would_remove": {"sessions": 2}}
        done = await command(scoring, "prune", "--deleted-upstream", "--yes", **env)

        assert "2 sessions" in done.stdout
        assert await sessions_left(scoring) == {"kept"}
        noted = await scoring.rows("SELECT DISTINCT why, erased_by FROM erasures")
        assert noted == [{"why": "deleted_upstream", "erased_by": "ada"}]
