"""Migrations: up and down on empty and full databases, in two phases, and the check at each start."""

import asyncio
import multiprocessing
import shutil
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from alembic.script import ScriptDirectory

from builders import completion, connected, open_scoring, rescore
from infrastructure import wait_until
from pooler import TransactionPooler
from tarsy_scoring.errors import ConfigurationError, StartRefused
from tarsy_scoring.judge.verdict import MissingTool
from tarsy_scoring.postgres import migrate as schema
from tarsy_scoring.postgres.migrate import migrate
from tarsy_scoring.postgres.revisions import VERSION_TABLE, check_migrated
from tarsy_scoring.postgres.revisions import revisions as known_revisions

TABLES = {
    "anchor_sessions",
    "bridge_announced",
    "bridge_bookmark",
    "budget_charges",
    "budget_days",
    "caller_rates",
    "chain_figures",
    "chain_rollups",
    "changes",
    "claim_floor",
    "dead_letter_bodies",
    "dead_letters",
    "delivery_bookmarks",
    "drift_findings",
    "drift_watches",
    "erasures",
    "judge_turns",
    "kept_answers",
    "known_names",
    "missed_months",
    "missed_rollups",
    "missed_sets",
    "notices",
    "pauses",
    "provider_calls",
    "provider_states",
    "relay_floor",
    "relay_position",
    "replays",
    "review_days",
    "review_picks",
    "rollups_filled",
    "score_alternative_approach_steps",
    "score_alternative_approaches",
    "score_deltas",
    "score_groups",
    "score_labels",
    "score_missing_tools",
    "score_rollups",
    "score_rollups_of_all",
    "score_rollups_of_chains",
    "scoring_criteria",
    "scoring_events",
    "scoring_requests",
    "session_references",
    "session_scores",
    "sessions",
    "tag_rollups",
    "tarsy_scoring_version",
    "tool_lists",
    "tool_merges",
    "tool_states",
    "write_back_bookmark",
} - {VERSION_TABLE}
HAVE_THEIR_ROW = {"missed_months", "relay_floor", "claim_floor", "rollups_filled"}  # created with rows
REVISIONS = [r.number for r in known_revisions()]
NEWEST = REVISIONS[-1]


async def migrated(url: str, of_schema: str = "public", **how: Any) -> list[str]:
    return await asyncio.to_thread(migrate, url, of_schema, **how)


async def rows(url: str, sql: str, *arguments: Any) -> list[Any]:
    async with connected(url) as connection:
        return await connection.fetch(sql, *arguments)


async def tables(url: str, of_schema: str = "public") -> set[str]:
    found = await rows(url, "SELECT tablename FROM pg_tables WHERE schemaname = $1", of_schema)
    return {r["tablename"] for r in found} - {VERSION_TABLE}


async def shape(url: str) -> list[Any]:
    """Columns, constraints and indexes, as PostgreSQL spells them."""
    return [
        await rows(url, sql)
        for sql in (
            "SELECT table_name, column_name, data_type, column_default, is_nullable FROM information_schema.columns "
            "WHERE table_schema = 'public' ORDER BY 1, ordinal_position",
            "SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint "
            "WHERE connamespace = 'public'::regnamespace ORDER BY 1, 2",
            "SELECT indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1",
        )
    ]


# A row for each table that no score fills.
ROWS = """
INSERT INTO judge_turns (score_id, ordinal, kind, reply, provider, model_requested, latency_ms, attempt, criteria_hash,
  context_hash, nonce, asked_hash) VALUES ('{score}', 1, 'analysis', '67', 'main', 'm', 1, 1, 'h', 'c', 'n', 'a');
INSERT INTO score_alternative_approaches VALUES ('{score}', 1, 'a', 'b');
INSERT INTO score_alternative_approach_steps VALUES ('{score}', 1, 1, 'look');
INSERT INTO dead_letter_bodies (body_id, headers) VALUES (gen_random_uuid(), '[]');
INSERT INTO replays (replay_hash) VALUES ('h');
INSERT INTO dead_letters VALUES ('t', 0, 0, 'e', 'm');
INSERT INTO provider_states (provider) VALUES ('main');
INSERT INTO provider_calls VALUES (gen_random_uuid(), 'main', now(), 900);
INSERT INTO pauses (paused_by) VALUES ('alice');
INSERT INTO budget_days (day, scope, chain_id) VALUES (now()::date, 'all', '');
INSERT INTO budget_charges (charge_id, day, chain_id, provider, score_id, reserved_usd)
VALUES (gen_random_uuid(), now()::date, '', 'main', '{score}', 0.5);
INSERT INTO caller_rates VALUES ('alice', now());
INSERT INTO known_names VALUES ('chain', 'billing', now());
INSERT INTO kept_answers VALUES ('alice', 'key-1', 'hash', 'new', '{score}', gen_random_uuid(), '{{}}');
INSERT INTO changes (changed_by, change, session_id, score_id) VALUES ('alice', 'rescore', 'session-1', '{score}');
INSERT INTO bridge_bookmark (since, settled_before) VALUES (now(), now());
INSERT INTO bridge_announced VALUES ('session-1', gen_random_uuid(), now());
INSERT INTO write_back_bookmark (position) VALUES (7);
INSERT INTO notices (event_id, type, details) VALUES (gen_random_uuid(), 'drift', '{{}}');
INSERT INTO delivery_bookmarks VALUES ('oncall', 7, 1);
INSERT INTO erasures (erased_by, why, session_hash, scores) VALUES ('ada', 'asked', 'h', 1);
INSERT INTO score_labels (score_id, session_id, labelled_by, agrees) VALUES ('{score}', 'session-1', 'ada', true);
INSERT INTO review_days VALUES ('2026-03-01');
INSERT INTO review_picks VALUES ('{score}', '2026-03-01', 1, true, 0.5);
INSERT INTO tool_merges (name, name_key, tool, decided_by) VALUES ('Tail Logs', 'taillogs', 'logs', 'ada');
INSERT INTO tool_states (tool, tool_key, state, since, said_by) VALUES ('logs', 'logs', 'planned', now(), 'ada');
INSERT INTO anchor_sessions (session_id, added_by) VALUES ('session-1', 'ada');
INSERT INTO drift_findings (look, chain_id, criteria, criteria_hash, new_fingerprint, is_clear, judge, whole, agents,
  anchors, anchors_missing, compared_before, compared_after, meaning, is_event)
VALUES ('watch', 'k', 'c', 'h', 'f', true, '{{}}', '{{}}', '{{}}', 0, 0, 0, 0, '[]', false);
INSERT INTO drift_watches VALUES ('k', 'c', now());
INSERT INTO session_references VALUES (gen_random_uuid(), 'session-1', 'a', NULL, 'ada', now(), gen_random_uuid());
INSERT INTO score_groups VALUES (gen_random_uuid(), true, 'k', 'c', 'f', NULL, false, '{{}}');
INSERT INTO score_rollups SELECT n = 1, gen_random_uuid(), '2026-03-01', 67, 1, 1, 1 FROM generate_series(0, 1) n;
INSERT INTO chain_rollups VALUES (gen_random_uuid(), '2026-03-01', 1);
INSERT INTO chain_figures VALUES
  (false, '2026-03-01', 'k', 'c', 'f', false, false, 1, 1, 67, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0);
INSERT INTO tag_rollups VALUES (gen_random_uuid(), '2026-03-01', 'slow', 1);
INSERT INTO missed_sets VALUES (gen_random_uuid(), '{{logs}}');
INSERT INTO missed_rollups VALUES (gen_random_uuid(), '2026-03-01', gen_random_uuid(), 1, 33);
"""


async def fill(url: str) -> None:
    """A row in every table."""
    async with open_scoring(url) as scoring, connected(url) as connection:
        first = await scoring.claimed("session-1")
        await scoring.store.keep_criteria("hash-default", "investigation-methodology", {"name": "x"})
        await scoring.store.end(completion(first, missing_tools=[MissingTool("read-file", "the script was not seen")]))
        await scoring.accept(rescore("session-1"), rescore("session-2"))
        await scoring.store.keep_tools("hash-of-tools", ["logs"])
        await connection.execute(ROWS.format(score=first.score_id))
        assert all([await scoring.value(f"SELECT count(*) FROM {table}") for table in TABLES])


async def contents(url: str, columns: dict[str, str]) -> dict[str, list[Any]]:
    """All rows of these tables as text, restricted to these columns."""
    return {t: await rows(url, f"SELECT ROW({c})::text AS row FROM {t} ORDER BY 1") for t, c in columns.items()}


async def test_each_revision_can_be_undone_on_a_full_database(database_url: str) -> None:
    """Tables of the earlier revision keep their rows; migrating up again creates later tables empty."""
    await fill(database_url)
    newest = await shape(database_url)

    for down in reversed(REVISIONS[:-1]):
        undone = await migrated(database_url, down=down)
        columns = await rows(
            database_url,
            "SELECT table_name, string_agg(quote_ident(column_name), ', ') FROM information_schema.columns "
            "WHERE table_schema = 'public' GROUP BY 1",
        )
        known = {table: names for table, names in columns if table != VERSION_TABLE}
        before = await contents(database_url, known)
        again = await migrated(database_url)

        assert known.keys() <= TABLES
        assert all(before.values()), down
        assert again == undone
        assert await shape(database_url) == newest, down
        assert await contents(database_url, known) == before, down
        created = dict.fromkeys(TABLES - known.keys() - HAVE_THEIR_ROW, "1")
        assert not any((await contents(database_url, created)).values()), down


REFUSED = {
    "status = 'failed', total_score = 67": "a_failure_is_never_a_number",
    "total_score = 67": "a_failure_is_never_a_number",
    "status = 'completed', total_score = 101": "session_scores_total_score_check",
    "status = 'completed', total_score = -1": "session_scores_total_score_check",
    "status = 'in_progress'": "a_lease_belongs_to_an_attempt",
    "lease_token = gen_random_uuid()": "a_lease_belongs_to_an_attempt",
    "status = 'done'": "session_scores_status_check",
    "purpose = 'fun'": "session_scores_purpose_check",
    "priority = 3": "session_scores_priority_check",
    "outcome = 'maybe'": "session_scores_outcome_check",
}


async def test_the_database_refuses_an_inconsistent_score(database_url: str) -> None:
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore())

        for change, constraint in REFUSED.items():
            with pytest.raises(asyncpg.CheckViolationError, match=constraint):
                await scoring.rows(f"UPDATE session_scores SET {change}")
        for total in (0, 100):
            await scoring.rows("UPDATE session_scores SET status = 'completed', total_score = $1", total)


async def test_one_open_production_score_per_session(database_url: str) -> None:
    add = (
        "INSERT INTO session_scores (session_id, request_id, priority, score_triggered_by, purpose, status) "
        "VALUES ('session-1', gen_random_uuid(), 0, 'alice', $1, $2)"
    )
    async with open_scoring(database_url) as scoring:
        await scoring.accept(rescore())

        with pytest.raises(asyncpg.UniqueViolationError, match="session_scores_one_open"):
            await scoring.rows(add, "production", "pending")
        await scoring.rows(add, "shadow", "pending")
        await scoring.rows(add, "production", "cancelled")


async def test_a_watch_sees_each_revision_that_is_done(empty_database_url: str) -> None:
    seen: list[int | str] = []

    @contextmanager
    def watch(_what: str, revisions: int) -> Iterator[Callable[[int], None]]:
        seen.append(f"of {revisions}")
        yield seen.append

    await migrated(empty_database_url, watch=watch)
    await migrated(empty_database_url, down=REVISIONS[-3], watch=watch)
    await migrated(empty_database_url, down=REVISIONS[-3], watch=watch)

    every = range(1, len(REVISIONS) + 1)
    assert seen == [f"of {len(REVISIONS)}", *every, "of 2", 1, 2, "of 0"]


async def test_a_schema_of_its_own_is_migrated_alone(empty_database_url: str) -> None:
    assert await migrated(empty_database_url, "Team_Scoring") == REVISIONS

    assert await tables(empty_database_url, "Team_Scoring") == TABLES
    assert await tables(empty_database_url) == set()
    async with connected(empty_database_url) as connection:
        await check_migrated(connection, "Team_Scoring")
        with pytest.raises(StartRefused, match=f"schema 'public' lacks {', '.join(REVISIONS)}"):
            await check_migrated(connection, "public")


@pytest.fixture
async def owner_url(empty_database_url: str) -> Any:
    """A role that owns the schema `scoring` and may do nothing else."""
    role = f"owner_{uuid.uuid4().hex[:8]}"
    parts = urlsplit(empty_database_url)
    await rows(empty_database_url, f"CREATE ROLE {role} LOGIN PASSWORD 'owned'")
    await rows(empty_database_url, f"CREATE SCHEMA scoring AUTHORIZATION {role}")
    yield parts._replace(netloc=f"{role}:owned@{parts.netloc.rpartition('@')[2]}").geturl()
    for statement in (f"DROP OWNED BY {role} CASCADE", f"DROP ROLE {role}"):
        await rows(empty_database_url, statement)


async def test_a_role_with_rights_in_its_schema_alone(owner_url: str) -> None:
    assert await migrated(owner_url, "scoring") == REVISIONS
    assert await migrated(owner_url, "scoring", down="base") == REVISIONS


async def test_concurrent_migrations_both_succeed(empty_database_url: str) -> None:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        runs = [processes.submit(migrate, empty_database_url) for _ in range(2)]
        assert [run.exception(timeout=60) for run in runs] == [None, None]

    assert await tables(empty_database_url) == TABLES
    assert await rows(empty_database_url, f"SELECT version_num FROM {VERSION_TABLE}") == [(NEWEST,)]


async def test_a_transaction_pooler_is_refused_while_a_revision_is_pending(empty_database_url: str) -> None:
    """The message says how to give another URL. Without a pending revision nothing depends on the session."""
    async with TransactionPooler(empty_database_url, servers=2) as pooler:
        with pytest.raises(StartRefused, match=f"127.0.0.1:{pooler.port}/.* a transaction pooler .*existingSecret"):
            await migrated(pooler.url)
        assert await tables(empty_database_url) == set()

        await migrated(empty_database_url)
        assert await migrated(pooler.url) == []


async def test_a_pooler_of_sessions_is_no_obstacle(empty_database_url: str) -> None:
    async with TransactionPooler(empty_database_url, servers=10, keeps_sessions=True) as pooler:
        assert await migrated(pooler.url) == REVISIONS


async def test_a_failed_revision_is_rolled_back(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "pre", "CREATE TABLE left_over ()")
    add_revision(revisions, later(2), "pre", "CREATE TABLE sessions (again int)")

    with pytest.raises(StartRefused, match="already exists"):
        await migrated(empty_database_url)

    assert await tables(empty_database_url) == TABLES | {"left_over"}
    assert await rows(empty_database_url, f"SELECT version_num FROM {VERSION_TABLE}") == [(later(1),)]


async def test_a_revision_waits_for_a_table_in_use_without_blocking_readers(
    empty_database_url: str, revisions: Path
) -> None:
    """A backup holds its lock for hours: readers continue, and the revision is applied after it."""
    await migrated(empty_database_url)
    add_revision(revisions, later(1), "pre", "ALTER TABLE scoring_events ADD COLUMN more text")
    backup, worker = [await asyncpg.connect(empty_database_url) for _ in range(2)]
    transaction = backup.transaction()
    await transaction.start()
    await backup.execute("LOCK TABLE scoring_events IN ACCESS SHARE MODE")

    migrating = asyncio.create_task(migrated(empty_database_url))
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"
    async with asyncio.timeout(30):
        await wait_until(lambda: backup.fetchval(waits), 30, "the revision waits")
        await worker.fetchval("SELECT count(*) FROM scoring_events")  # waits until the revision gives up its lock
        assert not migrating.done()
        await transaction.rollback()
        await migrating

    await worker.fetchval("SELECT count(more) FROM scoring_events")
    await backup.close()
    await worker.close()


@pytest.fixture
def revisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the migrations that a test may add to."""
    copy = shutil.copytree(schema.migrations_dir(), tmp_path / "migrations")
    for module in ("migrate", "revisions"):
        monkeypatch.setattr(f"tarsy_scoring.postgres.{module}.migrations_dir", lambda: copy)
    return copy / "versions"


async def test_file_names_match_the_revisions() -> None:
    """The check at start reads file names; Alembic reads the files."""
    read = [(s.revision, s.module.phase) for s in ScriptDirectory(str(schema.migrations_dir())).walk_revisions()]

    assert known_revisions() == read[::-1]


def later(steps: int) -> str:
    """The number of the revision this many steps after the newest."""
    return f"{int(NEWEST) + steps:04}"


def add_revision(versions: Path, revision: str, phase: str, up: str) -> None:
    before = f"{int(revision) - 1:04}"
    (versions / f"{revision}_{phase}_test.py").write_text(
        f'"""Test."""\nfrom alembic import op\nrevision, down_revision, phase = {revision!r}, {before!r}, {phase!r}\n'
        f"def upgrade():\n    op.execute({up!r})\ndef downgrade():\n    pass\n"
    )


async def test_each_phase_applies_its_own_revisions(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "pre", "ALTER TABLE sessions ADD added int")
    add_revision(revisions, later(2), "post", "ALTER TABLE sessions DROP added")
    add_revision(revisions, later(3), "pre", "ALTER TABLE sessions ADD later int")

    assert await migrated(empty_database_url, phase="pre") == [*REVISIONS, later(1)]
    assert await migrated(empty_database_url, phase="pre") == []
    assert await migrated(empty_database_url, phase="post") == [later(2), later(3)]
    assert await migrated(empty_database_url, down=later(1)) == [later(2), later(3)]


async def test_a_start_needs_only_pre_revisions(empty_database_url: str, revisions: Path) -> None:
    add_revision(revisions, later(1), "post", "ALTER TABLE sessions ADD added int")
    async with connected(empty_database_url) as connection:
        with pytest.raises(StartRefused, match=rf"lacks {', '.join(REVISIONS)}\); run: tarsy-scoring migrate"):
            await check_migrated(connection, "public")

        await migrated(empty_database_url, phase="pre")
        await check_migrated(connection, "public")

        add_revision(revisions, later(2), "pre", "ALTER TABLE sessions ADD more int")
        with pytest.raises(StartRefused, match=f"lacks {later(2)}"):
            await check_migrated(connection, "public")


async def test_an_older_version_starts_on_a_newer_database(database_url: str) -> None:
    """During a rollout or after a rollback it starts, and it migrates nothing."""
    await rows(database_url, f"UPDATE {VERSION_TABLE} SET version_num = '9999'")

    async with connected(database_url) as connection:
        await check_migrated(connection, "public")
    assert await migrated(database_url) == []
    with pytest.raises(StartRefused, match="9999"):
        await migrated(database_url, down="base")
    assert await tables(database_url) == TABLES


async def test_migrating_down_to_an_unknown_revision_is_refused(empty_database_url: str) -> None:
    with pytest.raises(ConfigurationError, match="--down 0815: there is no such revision"):
        await migrated(empty_database_url, down="0815")
    with pytest.raises(StartRefused, match="0001"):
        await migrated(empty_database_url, down="0001")


@pytest.mark.parametrize("place", ["127.0.0.1:1/db", "127.0.0.1:1,127.0.0.1:2/db"], ids=["one-host", "two-hosts"])
def test_an_unreachable_database_is_named_without_credentials(place: str) -> None:
    with pytest.raises(StartRefused, match=place) as refused:
        migrate(f"postgresql://somebody:hunter2@{place}")

    assert "hunter2" not in str(refused.value)
    assert "somebody" not in str(refused.value)
