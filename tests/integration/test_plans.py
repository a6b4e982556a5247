"""The statements of the busy loops use their indexes on tables large enough for that to matter."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from builders import connected
from full_database import filled_database, indexes, plan_of, scanned
from infrastructure import Postgres
from tarsy_scoring.limits import fleet
from tarsy_scoring.limits import ledger as tables
from tarsy_scoring.live import stored
from tarsy_scoring.outbox import outbox
from tarsy_scoring.queue import (
    backlog,
    claims,
    idempotency,
    inbox,
    known_names,
    leases,
    selection,
    session_states,
    store,
)
from tarsy_scoring.references import store as stored_references
from tarsy_scoring.scores import reader as scores
from tarsy_scoring.tarsy import write_back

BIG = {"sessions", "session_scores", "scoring_requests", "scoring_events", "judge_turns", "kept_answers"} | {
    "session_references",
    "provider_calls",
    "budget_charges",
    "budget_days",
    "provider_states",
}
# 24,000 scores, of which 600 are pending (a third of them not due) and 400 in progress; 72,000 events, of which
# 300 have no position and 500 more are not published.
FILL = Path(__file__).with_suffix(".sql").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def full_database_url(postgres: Postgres, _migrated_template: str) -> Iterator[str]:
    """A migrated database with many rows and fresh statistics; tests only read it."""
    with filled_database(postgres, _migrated_template, FILL) as url:
        yield url


@pytest.fixture
async def connection(full_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    async with connected(full_database_url) as opened:
        yield opened


def _ids(what: str, *numbers: int) -> str:
    return "ARRAY[" + ", ".join(f"md5('{what}-{n}')::uuid" for n in numbers) + "]"


def _document(**columns: Any) -> str:
    rows = [{**columns, "score_id": str(uuid.uuid4()), "lease_token": str(uuid.uuid4())} for _ in range(100)]
    return f"'{json.dumps(rows)}'"


HUNDRED = range(601, 701)
SCORES, TOKENS = _ids("score", *HUNDRED), _ids("token", *HUNDRED)
SOME_SESSIONS = "ARRAY[" + ", ".join(f"'session-{n}'" for n in range(500, 600)) + "]"
SCORE, TOKEN = "md5('score-700')::uuid", "md5('token-700')::uuid"
CALLS, NUMBERS = _ids("call", *range(100)), "ARRAY[" + ", ".join(["1"] * 100) + "]"
DAYS = "ARRAY[now()::date, now()::date], ARRAY['all', 'chain'], ARRAY['', 'chain-300']"
PROVIDER = f"'{json.dumps([{'provider': 'provider-7', 'failed_calls': [], 'cool_down_s': 0, 'reason': ''}])}'"
PHASES = "ARRAY[" + ", ".join(["'storing'"] * 100) + "]"
EVENTS = _document(type="scoring.progress", extra={"phase": "storing"})
TURNS = _document(ordinal=1, attempt=1)
ENDING = f"{_document(status='completed')}, {_document()}, {TURNS}, {TURNS}, {EVENTS}"

NONE = "'{}'::text[]"
CLAIMING = f"md5('owner')::uuid, 16, 60, {NONE}, {NONE}, false, 1, 2, ARRAY['c'], {NONE}, 180"

# Name: statement, its arguments as SQL, the index that must carry it.
STATEMENTS = {
    "claim": (claims.CLAIM, CLAIMING, "session_scores_due"),
    "claim-suspect": (claims.CLAIM, CLAIMING, "session_scores_lost"),
    "move-claim-floor": (claims.MOVE_CLAIM_FLOOR, "", "session_scores_due"),
    "keep-leases": (leases.RENEW, f"{SCORES}, {TOKENS}, 60", "session_scores_pkey"),
    "keep-locked-leases": (leases.RENEW_LOCKED, f"{SCORES}, {TOKENS}, 60", "session_scores_pkey"),
    "expired": (leases.EXPIRED, TOKENS, "session_scores_running"),
    "take-back": (leases.TAKE_BACK, f"{SCORES}, 5, 3600", "session_scores_pkey"),
    "record": (store.RECORD, f"{SCORES}, {TOKENS}, {PHASES}, {PHASES}, {TURNS}", "session_scores_pkey"),
    "still-held": (store.STILL_HELD, f"{SCORES}, {TOKENS}", "session_scores_pkey"),
    "turns": (store.TURNS, SCORE, "judge_turns_pkey"),
    "bind": (store.BIND, f"{SCORE}, {TOKEN}, 'c', 'c', 'h', 'auto', 1, false", "session_scores_pkey"),
    "leave-to-others": (known_names.LEAVE, f"{SCORE}, {TOKEN}, 'k', 1, 180, 'c'", "session_scores_pkey"),
    "unknown": (known_names.UNKNOWN, f"ARRAY['c'], {NONE}, 900", "session_scores_due"),
    "fail-unknown": (known_names.FAIL_UNKNOWN, f"ARRAY['other'], {NONE}, {SCORES}", "session_scores_pkey"),
    "put-back": (leases.PUT_BACK, f"{SCORE}, {TOKEN}, 1, 'retry', 1, 1, 'x'", "session_scores_pkey"),
    "release-untracked": (leases.RELEASE_UNTRACKED, f"md5('owner')::uuid, {TOKENS}", "session_scores_running"),
    "learn-sessions": (store.LEARN_SESSIONS, _document(alert_type="disk-full"), "sessions_pkey"),
    "end": (store.END, ENDING, "session_scores_pkey"),
    "cancel": (leases.CANCEL, f"{SCORE}, 'bob'", "session_scores_pkey"),
    "defer-joined": (inbox.DEFER_JOINED, f"{SCORES}, 'session-completed'", "scoring_requests_score"),
    "known-requests": (inbox.KNOWN_REQUESTS, _ids("request", *HUNDRED), "scoring_requests_pkey"),
    "count-arrivals": (inbox.COUNT_ARRIVALS, f"{_ids('request', 1, 2, 3)}, ARRAY[1, 1, 1]", "scoring_requests_pkey"),
    "lock-sessions": (inbox.LOCK_SESSIONS, SOME_SESSIONS, "sessions_pkey"),
    "lock-free-sessions": (inbox.LOCK_FREE_SESSIONS, SOME_SESSIONS, "sessions_pkey"),
    "open-scores": (session_states.STATES, SOME_SESSIONS, "session_scores_one_open"),
    "completed-scores": (session_states.STATES, SOME_SESSIONS, "session_scores_scored"),
    "deferred-requests": (inbox.DEFERRED_REQUESTS, SOME_SESSIONS, "scoring_requests_one_deferred"),
    "answer-request": (inbox.SET_DISPOSITION, f"{SCORE}, 'accepted', {SCORE}", "scoring_requests_pkey"),
    "count-open": (backlog.OPEN_SCORES, "'{}'::text[], '{}'::text[], 'nothing'", "session_scores_due"),
    "due-scores": (backlog.DUE_SCORES, "1100002, '{}'::text[], '{}'::text[], false", "session_scores_due"),
    "newest-reference": (session_states.STATES, SOME_SESSIONS, "session_references_of_session"),
    "references-of-sessions": (scores.REFERENCES_OF_SESSIONS, SOME_SESSIONS, "session_references_of_session"),
    "old-references": (stored_references.REMOVE_OLD, "'session-700'", "session_references_of_session"),
    "reference-of-score": (stored_references.OF_SCORE, SCORE, "session_references_pkey"),
    "scores-of-requests": (inbox.SCORES_OF_REQUESTS, _ids("request", *HUNDRED), "scoring_requests_pkey"),
    "requests-of-score": (inbox.SURVIVING_REQUEST, f"{SCORE}, 'session-completed'", "scoring_requests_score"),
    "lock-open-scores": (inbox.LOCK_OPEN_SCORES, f"{SOME_SESSIONS}, {SCORES}", "session_scores_one_open"),
    "superseded": (inbox.SUPERSEDED, _ids("request", 1, 2), "session_scores_one_open"),
    "event-of-superseded": (inbox.REQUESTS_BY_EVENT, "'event-77', 1000", "scoring_events_of_session"),
    "requests-by-event": (inbox.REQUESTS_BY_EVENT, "'event-77', 1000", "scoring_requests_event"),
    "emit": (outbox.EMIT, EVENTS, "scoring_events_score_id_sequence_key"),
    "place": (outbox.ASSIGN_POSITIONS, "1000, false, 'relay', 'public'", "scoring_events_unplaced"),
    "look": (outbox.LOOK, "", "scoring_events_position"),
    "unpublished": (outbox.UNPUBLISHED, "1000", "scoring_events_position"),
    "raise-entry": (outbox.RAISE_ENTRY, "71700", "scoring_events_unplaced"),
    "name-stages": (write_back.NAME_STAGES, f"{SCORES}, {PHASES}", "session_scores_pkey"),
    "mark-published": (outbox.MARK_PUBLISHED, "ARRAY[71300, 71301, 71302]", "scoring_events_position"),
    "backlog": (backlog.UNPUBLISHED_EVENTS, "", "scoring_events_position"),
    "gateway-newer": (stored.NEWER, "71000, 71700, 1000", "scoring_events_position"),
    "catch-up-of-session": (stored.NEWER_OF_SESSION, "0, 71700, 201, 'session-77'", "scoring_events_of_session"),
    "catch-up-of-all": (
        stored.NEWER_OF_ALL,
        "71000, 71700, 201, ARRAY['queued', 'waiting_retry']",
        "scoring_events_position",
    ),
    "score": (scores.SCORE, SCORE, "session_scores_pkey"),
    "score-of-session": (scores.SCORE_OF_SESSION, "'session-7700'", "session_scores_latest"),
    "newest-score": (scores.NEWEST_SCORE, "'session-77', NULL", "session_scores_of_session"),
    "history": (scores.HISTORY, f"'session-77', now(), {SCORE}, 'production', 51", "session_scores_of_session"),
    "history-from-the-start": (scores.HISTORY, "'session-77', NULL, NULL, NULL, 51", "session_scores_of_session"),
    "replies": (scores.REPLIES, SCORE, "judge_turns_pkey"),
    "recall": (idempotency.ANSWER, "'caller-7', 'key-7000'", "kept_answers_pkey"),
    "keep": (idempotency.KEEP_ANSWER, f"'caller-7', 'new', 'h', 'new', {SCORE}, {SCORE}", "kept_answers_pkey"),
    "complete": (idempotency.COMPLETE_ANSWER, f"'caller-7', 'key-7000', {SCORE}, 'text'", "kept_answers_pkey"),
    "never-scored": (selection.NEVER_SCORED, SOME_SESSIONS, "session_scores_of_session"),
    "lock-providers": (tables.LOCK_PROVIDERS, "ARRAY['provider-7', 'provider-8']", "provider_states_pkey"),
    "save-providers": (tables.SAVE_PROVIDERS, PROVIDER, "provider_states_pkey"),
    "count-window": (tables.COUNT_WINDOW, "'provider-7', now() - interval '1 min'", "provider_calls_window"),
    "read-window": (tables.READ_WINDOW, "'provider-7', now() - interval '1 min'", "provider_calls_window"),
    "correct-calls": (tables.CORRECT_CALLS, f"{CALLS}, {NUMBERS}", "provider_calls_pkey"),
    "lock-today": (tables.LOCK_TODAY, "ARRAY['all', 'chain'], ARRAY['', 'chain-300']", "budget_days_pkey"),
    "lock-days": (tables.LOCK_DAYS, DAYS, "budget_days_pkey"),
    "change-days": (tables.CHANGE_DAYS, f"{DAYS}, ARRAY[1, 1], ARRAY[1, 1]", "budget_days_pkey"),
    "settle-charges": (tables.SETTLE_CHARGES, f"{CALLS}, {NUMBERS}", "budget_charges_pkey"),
    "today": (fleet.TODAY, "", "budget_days_pkey"),
    "learn-factor": (fleet.LEARN_FACTOR, "'provider-7', 'm', 1.5, 1.0", "provider_states_pkey"),
}


@pytest.mark.parametrize("generic", [False, True], ids=["first-runs", "prepared"])
async def test_every_statement_uses_its_index(connection: asyncpg.Connection, generic: bool) -> None:
    """No statement reads a large table from end to end."""
    for name, (statement, arguments, index) in STATEMENTS.items():
        nodes = await plan_of(connection, statement, arguments, generic=generic)

        assert (name, scanned(nodes) & BIG, index in indexes(nodes)) == (name, set(), True), nodes


async def test_a_heartbeat_changes_no_indexed_column(connection: asyncpg.Connection) -> None:
    """A heartbeat changes no indexed column, so renewing leases stays a heap-only update."""
    indexed = await connection.fetch("SELECT indexdef FROM pg_indexes WHERE tablename = 'session_scores'")

    assert len(indexed) > 3
    assert not [r for r in indexed if "lease_expires_at" in r["indexdef"]]
